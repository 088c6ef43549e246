//! The log-prob head alone: cross-entropy of random hidden states, with its gradients by hidden states and weights.
//!
//! Here it runs, one mode after the other, each in a process of its own so that its memory is its own. For a slice of TPUs
//! it is compiled, and says what it needs there: weights are split at rest over fsdp and expert, tokens over all axes.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use ferrotune_engine::{EntropyUse, HeadMode, HeadSettings, HeadSizes};
use ferrotune_graph::{DType, HostArray, Mesh, Rules, Tensor};
use ferrotune_nn::{Head, PartialLoss, TokenScores};
use ferrotune_pjrt::{Plugin, Topology};
use ferrotune_program::{Argument, Builder, Group, Layout, Leaf};
use serde_json::{Value, json};

use super::{exact_memory, median};
use crate::args::{BenchHeadArgs, HeadArg};
use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::machine;
use crate::terminal::{bytes, print, say};

const MODES: [HeadArg; 4] = [
    HeadArg::Off,
    HeadArg::Local,
    HeadArg::Fused,
    HeadArg::SinglePass,
];

/// Bytes that one chunk may take here, and on a device of a slice.
const CHUNK_BYTES: [usize; 2] = [64 << 20, 128 << 20];

pub(crate) fn run(args: &BenchHeadArgs) -> Result<(), Failure> {
    let modes = if args.mode.is_empty() {
        &MODES[..]
    } else {
        &args.mode
    };
    if let Some(name) = &args.topology {
        return compile_for(args, name, modes);
    }
    if let ([mode], true) = (modes, exact_memory::is_on()) {
        return measure(args, *mode);
    }
    modes.iter().try_for_each(|mode| {
        let not_given = args.mode.is_empty();
        let one = not_given.then(|| format!("--mode={}", mode.name()));
        exact_memory::again(one, LOWER)
    })
}

/// Sizes of one bench.
#[derive(Clone, Copy)]
struct Sizes {
    /// Rows of tokens and their length; both are split on a mesh.
    rows: [usize; 2],
    width: usize,
    vocab: usize,
}

/// The program: hidden states in the type of products, weights, targets, weights of tokens → loss, gradients. Weights and
/// their gradient are f32, as master weights in training are, if `wide`.
fn trace(
    mesh: &Mesh,
    rules: &Rules,
    sizes: Sizes,
    compute: DType,
    settings: HeadSettings,
    wide: bool,
) -> Result<(Builder, [Layout; 2], f64), Failure> {
    let Sizes { rows, width, vocab } = sizes;
    let tokens = |name: &str, dtype| Leaf::new(name, dtype, &rows, &["batch", "tokens"]);
    let x = Leaf::new(
        "x",
        compute,
        &[rows[0], rows[1], width],
        &["batch", "tokens", "_"],
    );
    let w = |dtype| Leaf::new("w", dtype, &[width, vocab], &["embed", "vocab"]);
    let stored = if wide { DType::F32 } else { compute };
    let place = |leaves: &[Leaf]| Layout::new(mesh, rules, leaves).or_refuse();
    let weights = place(&[x.clone(), w(stored)])?;
    let batch = place(&[tokens("targets", DType::S32), tokens("weight", DType::F32)])?;
    let mut builder = Builder::new("head", mesh, rules);
    let given = builder.input("weights", &weights);
    let rows = builder.input("rows", &batch);
    let g = builder.graph().clone();
    let head = Head {
        weight: given[1].clone(),
        tied: false,
        temperature: 1.0,
        settings,
        entropy: EntropyUse::Unread,
    };
    let loss = if settings.mode == HeadMode::SinglePass {
        let told = |scores: &TokenScores, extra: &[Tensor]| PartialLoss {
            loss: -(&extra[0] * &scores.logprob).sum_all(),
            others: vec![],
        };
        let extra = [rows[1].clone()];
        head.single_pass(&given[0], &rows[0], None, &extra, told)
            .loss
    } else {
        -(&rows[1] * head.score(&given[0], &rows[0], None).logprob).sum_all()
    };
    let gradients = g.grad(&loss, &[&given[0], &given[1]]);
    let counted = g.cost(&[&loss, &gradients[0], &gradients[1]]);
    builder.output(&place(&[Leaf::new("loss", DType::F32, &[], &[])])?, &[loss]);
    builder.output(&place(&[x, w(stored)])?, &gradients);
    let exponentials = counted.transcendentals / mesh.device_count() as f64;
    Ok((builder, [weights, batch], exponentials))
}

fn settings(args: &BenchHeadArgs, mode: HeadMode, bytes: usize, sizes: Sizes) -> Vec<HeadSettings> {
    let sizes = HeadSizes {
        tokens: sizes.rows[0] * sizes.rows[1],
        width: sizes.width,
        vocab: sizes.vocab,
    };
    let with = |chunk| HeadSettings::within(bytes, mode, sizes, chunk, args.vocab_chunk);
    if args.token_chunk.is_empty() {
        vec![with(None)]
    } else {
        args.token_chunk
            .iter()
            .map(|chunk| with(Some(*chunk)))
            .collect()
    }
}

fn describe(args: &BenchHeadArgs, mode: HeadArg, settings: HeadSettings, sizes: Sizes) -> Value {
    json!({
        "mode": mode.name(),
        "token_chunk": settings.token_chunk,
        "vocab_chunk": settings.vocab_chunk,
        "tokens": sizes.rows[0] * sizes.rows[1],
        "width": sizes.width,
        "vocab": sizes.vocab,
        "compute": args.compute_dtype.dtype().to_string(),
    })
}

fn tell(args: &BenchHeadArgs, mut about: Value, found: &Value) -> Result<(), Failure> {
    if let (Some(about), Some(found)) = (about.as_object_mut(), found.as_object()) {
        about.extend(found.clone());
        if !args.json {
            let pairs: Vec<String> = about.iter().map(|(k, v)| format!("{k} {v}")).collect();
            return print(pairs.join("  "));
        }
    }
    print(about)
}

/// Runs one mode in this process.
fn measure(args: &BenchHeadArgs, mode: HeadArg) -> Result<(), Failure> {
    let sizes = Sizes {
        rows: [1, args.tokens.unwrap_or(2048)],
        width: args.width.unwrap_or(1024),
        vocab: args.vocab.unwrap_or(151_936),
    };
    // The weights are on the host too before they are on the device.
    let needed = held(
        &settings(args, mode.mode(), CHUNK_BYTES[0], sizes),
        sizes,
        3.0,
    );
    machine::check_free(&about(mode, sizes), needed, LOWER)?;
    let device = Device::single()?;
    let compute = args.compute_dtype.dtype();
    for settings in settings(args, mode.mode(), CHUNK_BYTES[0], sizes) {
        let (builder, layouts, exponentials) =
            trace(&device.mesh, &device.rules, sizes, compute, settings, true)?;
        let program = builder.compile(&device.client).or_fail()?;
        let groups = inputs(&device, &layouts, sizes)?;
        let before = machine::resident();
        let known = machine::forget_peak();
        let mut times: Vec<Duration> = Vec::new();
        let mut loss = f32::NAN;
        for _ in 0..=args.runs {
            let begun = Instant::now();
            let arguments = groups.iter().map(Argument::Borrowed).collect();
            let results = program.call(arguments).or_fail()?;
            for group in &results {
                group.wait().or_fail()?;
            }
            times.push(begun.elapsed());
            loss = results[0].to_host().or_fail()?[0].as_slice::<f32>()[0];
        }
        let extra = machine::peak_resident().zip(before).filter(|_| known);
        let seconds = median(&times[1..]);
        let work = 6.0 * (sizes.rows[1] * sizes.width) as f64 * sizes.vocab as f64;
        let mib = |bytes: u64| bytes >> 20;
        let found = json!({
            "seconds": (seconds * 1e3).round() / 1e3,
            "fastest_seconds": times[1..].iter().min().map(Duration::as_secs_f64),
            "useful_gflops": (work / seconds / 1e9).round(),
            "extra_mib": extra.map(|(peak, before)| mib(peak.saturating_sub(before))),
            "temporary_mib": mib(program.memory().temp),
            "transcendentals": exponentials,
            "loss": loss,
        });
        tell(args, describe(args, mode, settings, sizes), &found)?;
    }
    Ok(())
}

/// Bytes that are held at least: weights `copies` times (their gradient among them), hidden states and theirs, all f32, and the
/// logits that the mode keeps at a time.
fn held(settings: &[HeadSettings], sizes: Sizes, copies: f64) -> f64 {
    let [tokens, width, vocab] = [sizes.rows[1], sizes.width, sizes.vocab].map(|it| it as f64);
    let logits = |settings: &HeadSettings| {
        let [n, v] = [settings.token_chunk, settings.vocab_chunk].map(|it| it as f64);
        match settings.mode {
            HeadMode::Off => tokens * vocab,
            HeadMode::Local | HeadMode::SinglePass => n.min(tokens) * vocab,
            HeadMode::Fused => n.min(tokens) * v.min(vocab),
        }
    };
    let logits = settings.iter().map(logits).fold(0.0, f64::max);
    4.0 * (copies * width * vocab + 3.0 * tokens * width + logits)
}

/// What the sizes of one mode are, in words.
fn about(mode: HeadArg, sizes: Sizes) -> String {
    format!(
        "weights of {} x {} with their gradient, {} tokens, and what the mode {} keeps of them",
        sizes.width,
        sizes.vocab,
        sizes.rows[1],
        mode.name()
    )
}

/// What to do about sizes that are too large.
const LOWER: &str = "lower --tokens, --width or --vocab";

/// No device of a slice has as much memory.
const BEYOND_ALL_DEVICES: f64 = (1_u64 << 40) as f64;

/// Numbers without pattern, so that no logit is special.
fn inputs(device: &Device, layouts: &[Layout; 2], sizes: Sizes) -> Result<[Group; 2], Failure> {
    let noise = |dims: &[usize], dtype: DType, scale: f32| {
        let mut state = 0x9E37_79B9_u32;
        let count = dims.iter().product();
        let number = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * scale
        };
        let values: Vec<f32> = (0..count).map(number).collect();
        if dtype == DType::F32 {
            return HostArray::from_slice(dims, &values).or_fail();
        }
        let halves = values
            .iter()
            .flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes());
        HostArray::new(dtype, dims.to_vec(), halves.collect()).or_fail()
    };
    let specs = layouts[0].specs();
    let weights = [
        noise(&specs[0].dims, specs[0].dtype, 1.0)?,
        noise(&specs[1].dims, specs[1].dtype, 0.05)?,
    ];
    let tokens = sizes.rows[1];
    let targets: Vec<i32> = (0..tokens)
        .map(|t| (t * 7919 % sizes.vocab) as i32)
        .collect();
    let each = vec![1.0 / tokens as f32; tokens];
    let rows = [
        HostArray::from_slice(&sizes.rows, &targets).or_fail()?,
        HostArray::from_slice(&sizes.rows, &each).or_fail()?,
    ];
    let upload = |layout, host: &[HostArray]| Group::upload(&device.client, layout, host).or_fail();
    Ok([upload(&layouts[0], &weights)?, upload(&layouts[1], &rows)?])
}

/// Compiles the modes for a slice of TPUs.
fn compile_for(args: &BenchHeadArgs, name: &str, modes: &[HeadArg]) -> Result<(), Failure> {
    let plugin = Plugin::tpu(&mut |line| say(line)).or_refuse()?;
    let topology = Topology::named(&plugin, name).or_refuse()?;
    let axes = args.mesh.iter().map(|(name, size)| (name.as_str(), *size));
    let mesh = Mesh::new(&axes.collect::<Vec<_>>()).or_refuse()?;
    let size = |name: &str| mesh.axis_size(name).unwrap_or(1);
    let of = |names: &[&str]| {
        let known = names.iter().filter(|name| mesh.axis_size(name).is_some());
        known.map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    let rules = Rules::new([
        ("batch", of(&["fsdp", "expert"])),
        ("tokens", of(&["context"])),
        ("embed", of(&["fsdp", "expert"])),
        ("vocab", vec![]),
    ]);
    let own = Sizes {
        rows: [1, args.tokens.unwrap_or(16_384)],
        width: args.width.unwrap_or(4096),
        vocab: args.vocab.unwrap_or(248_320),
    };
    let all = Sizes {
        rows: [size("fsdp") * size("expert"), own.rows[1] * size("context")],
        ..own
    };
    let compute = args.compute_dtype.dtype();
    for mode in modes {
        // Of weights and gradient there may be a part on each device, so they do not count.
        let needed = held(&settings(args, mode.mode(), CHUNK_BYTES[1], own), own, 0.0);
        if needed > BEYOND_ALL_DEVICES {
            return Err(Failure::refused(anyhow!(
                "{} need {} on each device, which none has: {LOWER}",
                about(*mode, own),
                bytes(needed as u64)
            )));
        }
        for settings in settings(args, mode.mode(), CHUNK_BYTES[1], own) {
            let (builder, _, exponentials) = trace(&mesh, &rules, all, compute, settings, false)?;
            let begun = Instant::now();
            let found = match builder.compile_for(&topology) {
                Ok(compilation) => {
                    let temporaries = compilation.memory().temp as f64;
                    json!({
                        "temporary_gib": (temporaries / (1_u64 << 30) as f64 * 1e3).round() / 1e3,
                        "transcendentals_reported": compilation.cost().map(|c| c.transcendentals),
                        "transcendentals": exponentials,
                        "compile_seconds": begun.elapsed().as_secs_f64().round(),
                    })
                }
                Err(error) => {
                    let said: String = error.to_string().chars().take(300).collect();
                    json!({ "refused": said })
                }
            };
            tell(args, describe(args, *mode, settings, own), &found)?;
        }
    }
    Ok(())
}
