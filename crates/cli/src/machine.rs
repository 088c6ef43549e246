//! This computer: processor features, cores, memory, Python. Read from where Linux tells; unknown elsewhere.

use std::process::Command;

use ferrotune_models::{LayerKind, Mixer, ModelConfig};
use ferrotune_recipe::ComputeDtype;

use crate::failure::Failure;
use crate::terminal::{bytes, counted};

/// Processor flags that mean bf16 products are faster than f32: those that `ferrotune-cpu` has products for.
const FAST_BF16: [&str; 2] = ["amx_bf16", "avx512_bf16"];

/// The narrowest model in which matrix products outweigh the conversions around them.
const WIDE: usize = 512;

/// Which of the bf16 features the processor has.
pub(crate) fn bf16_features() -> Vec<&'static str> {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    FAST_BF16
        .into_iter()
        .filter(|flag| has_flag(&text, flag))
        .collect()
}

fn has_flag(cpuinfo: &str, flag: &str) -> bool {
    let lists = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let mut flags = lists.filter(|(name, _)| matches!(name.trim(), "flags" | "Features"));
    flags
        .next()
        .is_some_and(|(_, list)| list.split_whitespace().any(|it| it == flag))
}

/// The number format for a model of this width on a machine with these features, and why.
pub(crate) fn choose_compute(hidden_size: usize, features: &[&str]) -> (ComputeDtype, String) {
    match features.first() {
        None => (
            ComputeDtype::F32,
            "this processor has no fast bf16 products".to_owned(),
        ),
        Some(_) if hidden_size < WIDE => (
            ComputeDtype::F32,
            format!("hidden size {hidden_size} is below {WIDE}, too small for bf16 to pay"),
        ),
        Some(feature) => (ComputeDtype::Bf16, format!("this processor has {feature}")),
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> Option<usize> {
    std::thread::available_parallelism().ok().map(Into::into)
}

/// A field of `/proc/self/status` or `/proc/meminfo`, in bytes.
fn kilobytes(path: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(number * 1024)
}

/// Memory of the machine, and what is free of it, in bytes.
pub(crate) fn memory() -> Option<(u64, u64)> {
    Some((
        kilobytes("/proc/meminfo", "MemTotal")?,
        kilobytes("/proc/meminfo", "MemAvailable")?,
    ))
}

/// Refuses what needs more memory than is free, since a system ends a process that takes more. `what` needs `needed` bytes at
/// least; `cure` says what to change.
pub(crate) fn check_free(what: &str, needed: f64, cure: &str) -> Result<(), Failure> {
    match memory() {
        Some((total, free)) if needed > free as f64 => Err(Failure::refused(anyhow::anyhow!(
            "{what} would take at least {} of memory, and of the {} of this machine {} are free: {cure}",
            bytes(needed as u64),
            bytes(total),
            bytes(free)
        ))),
        _ => Ok(()),
    }
}

/// Refuses rows whose keys, values and activations alone need more memory than the machine has, before anything is compiled for
/// them: XLA ends the process over sizes that are beyond all reason. `cure` says what to change.
pub(crate) fn check_rows(
    model: &ModelConfig,
    rows: usize,
    tokens: usize,
    cure: &str,
) -> Result<(), Failure> {
    let Some((total, _)) = memory() else {
        return Ok(());
    };
    // Of one layer: the stream before and after, queries, and what they read.
    let layer = 2.0 * model.hidden_size as f64
        + 2.0 * model.num_attention_heads as f64 * model.head_dim as f64;
    let needed = 4.0 * rows as f64 * tokens as f64 * (cached(model) + layer);
    if needed <= total as f64 {
        return Ok(());
    }
    Err(Failure::refused(anyhow::anyhow!(
        "keys, values and activations of {} in {} would take about {} of memory, and this machine has {}: {cure}",
        counted(tokens, "token"),
        counted(rows, "row"),
        bytes(needed as u64),
        bytes(total)
    )))
}

/// How many keys and values a sampler keeps of each token.
pub(crate) fn cached(model: &ModelConfig) -> f64 {
    let attends = |kind: &&LayerKind| kind.mixer == Mixer::Attention;
    let layers = model.layers.iter().filter(attends).count();
    let sizes = [layers, model.num_key_value_heads, model.head_dim];
    2.0 * sizes.map(|it| it as f64).iter().product::<f64>()
}

/// Memory that this process holds now, in bytes.
pub(crate) fn resident() -> Option<u64> {
    kilobytes("/proc/self/status", "VmRSS")
}

/// The most memory that this process held since [`forget_peak`], in bytes.
pub(crate) fn peak_resident() -> Option<u64> {
    kilobytes("/proc/self/status", "VmHWM")
}

/// Starts the measurement of [`peak_resident`] anew. False if the system does not let us.
pub(crate) fn forget_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// The version line of a program, if it is there and runs.
pub(crate) fn version_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = if output.stdout.is_empty() {
        output.stderr
    } else {
        output.stdout
    };
    let text = String::from_utf8_lossy(&text);
    output
        .status
        .success()
        .then(|| text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_a_whole_word_of_the_flags_line() {
        let text = "model name\t: amx_bf16 lookalike\nflags\t\t: fpu avx512_bf16x avx2\n";
        assert!(has_flag(text, "avx2"));
        assert!(!has_flag(text, "avx512_bf16"));
        assert!(!has_flag(text, "amx_bf16"));
    }

    #[test]
    fn bf16_is_for_fast_machines_and_wide_models() {
        assert_eq!(choose_compute(4096, &[]).0, ComputeDtype::F32);
        assert_eq!(choose_compute(192, &["amx_bf16"]).0, ComputeDtype::F32);
        assert_eq!(
            choose_compute(512, &["amx_bf16"]),
            (ComputeDtype::Bf16, "this processor has amx_bf16".to_owned())
        );
    }
}
