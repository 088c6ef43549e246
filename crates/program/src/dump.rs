//! What was traced, written and compiled, as files for people.
//!
//! One folder per program and target, `NAME-HASH-TARGET` by the hash of its text: `graph.txt` (nodes with their source), `module.mlir`,
//! `report.txt` (arguments, operations, work, what is kept for the backward pass, choices made for the platform; then what the
//! compiler has made of it: memory, operations, collectives).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ferrotune_graph::{Graph, Module, Tensor};
use ferrotune_pjrt::{ArraySpec, MemoryStats, Operations};

use crate::program::Error;

/// Names the folder to dump to.
const VARIABLE: &str = "FERROTUNE_DUMP";

static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Asks that every program compiled from now on leaves a dump in this folder.
///
/// Without a call, the environment variable `FERROTUNE_DUMP` says where; without that, nothing is written. Only what is
/// said before the first program counts.
pub fn dump_to(folder: impl Into<PathBuf>) {
    let _ = FOLDER.set(Some(folder.into()));
}

fn folder() -> Option<&'static Path> {
    let from_variable = || {
        let value = std::env::var_os(VARIABLE)?;
        (!value.is_empty()).then(|| PathBuf::from(value))
    };
    FOLDER.get_or_init(from_variable).as_deref()
}

/// What the compiler says of a program that it has made.
pub(crate) struct Account {
    pub(crate) memory: MemoryStats,
    pub(crate) operations: Option<Operations>,
}

/// The dump of one program, begun before it is compiled, so that a failure to compile leaves its text behind.
pub(crate) struct Dump(PathBuf);

impl Dump {
    /// `target` says for what the program is compiled: a platform, or the name of a topology.
    pub(crate) fn begin(module: &Module, target: &str) -> Result<Option<Self>, Error> {
        let Some(folder) = folder() else {
            return Ok(None);
        };
        let mut hash = 0xCBF2_9CE4_8422_2325_u64; // FNV-1a: the name only has to be stable
        for byte in module.text.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
        // A program may be called anything; a folder may not.
        let plain = |name: &str| -> String {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
            let kept = name.chars().take(100);
            kept.map(|c| if plain(c) { c } else { '_' }).collect()
        };
        let (name, target) = (plain(&module.name), plain(target));
        let path = folder.join(format!("{name}-{:08x}-{target}", hash >> 32));
        std::fs::create_dir_all(&path).map_err(failed(&path))?;
        let dump = Self(path);
        dump.write("module.mlir", &module.text)?;
        Ok(Some(dump))
    }

    fn write(&self, file: &str, text: &str) -> Result<(), Error> {
        let path = self.0.join(file);
        std::fs::write(&path, text).map_err(failed(&path))
    }

    pub(crate) fn graph(&self, graph: &Graph, results: &[&Tensor]) -> Result<(), Error> {
        self.write("graph.txt", &graph.show(results))
    }

    /// Everything that is known before compilation.
    pub(crate) fn report(
        &self,
        graph: &Graph,
        results: &[&Tensor],
        module: &Module,
        target: &str,
        choices: &BTreeMap<&'static str, usize>,
    ) -> Result<(), Error> {
        let name = module.name.escape_debug();
        let mut text = format!("program {name} for {target} on {}\n", module.mesh);
        let _ = writeln!(text, "\narguments");
        for arg in &module.args {
            let note = if arg.donated { "  donated" } else { "" };
            let _ = writeln!(text, "  {}{note}", line(&arg.spec, module));
        }
        let _ = writeln!(text, "\nresults");
        for spec in &module.results {
            let _ = writeln!(text, "  {}", line(spec, module));
        }
        let _ = writeln!(text, "\noperations");
        for (name, count) in operations(&module.text) {
            let _ = writeln!(text, "  {count:6}  {name}");
        }
        let _ = writeln!(text, "\nchosen for the platform");
        for (choice, count) in choices {
            let _ = writeln!(text, "  {count:6}  {choice}");
        }
        let _ = writeln!(
            text,
            "\nkept for the backward pass, all devices and all steps together"
        );
        for saved in graph.saved(results) {
            let place = if saved.offload { "host" } else { "device" };
            let _ = writeln!(
                text,
                "  {} bytes on the {place}: {} {}",
                saved.ty.bytes(),
                saved.name.escape_debug(),
                saved.ty
            );
        }
        let cost = graph.cost(results);
        let _ = writeln!(
            text,
            "\nwork, all devices and all steps of loops\n  {:.6e} floating-point operations\n  {:.6e} transcendental functions\n  \
             {:.6e} bytes read and written, nothing fused\n  {:.6e} bytes sent by each device in manual collectives",
            cost.flops, cost.transcendentals, cost.bytes, cost.collective_bytes,
        );
        self.write("report.txt", &text)
    }

    /// What the compiler says.
    pub(crate) fn compiled(&self, account: &Account) -> Result<(), Error> {
        let path = self.0.join("report.txt");
        let memory = account.memory;
        let mut text = format!(
            "\nmemory of each device in bytes\n  {} arguments\n  {} results, {} of them in the memory of arguments\n  {} temporaries\n  \
             {} host temporaries\n",
            memory.argument, memory.output, memory.alias, memory.temp, memory.host_temp,
        );
        compiled_operations(&mut text, account.operations.as_ref());
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .map_err(failed(&path))?;
        file.write_all(text.as_bytes()).map_err(failed(&path))
    }
}

/// Operations and collectives of the compiled program.
fn compiled_operations(text: &mut String, operations: Option<&Operations>) {
    let unknown = "  this plugin does not show them";
    let _ = writeln!(text, "\noperations of the compiled program");
    let Some(operations) = operations else {
        let _ = writeln!(
            text,
            "{unknown}\n\ncollectives of the compiled program\n{unknown}"
        );
        return;
    };
    for (opcode, count) in &operations.counts {
        let _ = writeln!(text, "  {count:6}  {opcode}");
    }
    let _ = writeln!(text, "\ncollectives of the compiled program");
    if operations.collectives.is_empty() {
        let _ = writeln!(text, "  none");
    }
    for made in &operations.collectives {
        let place = if made.in_loop { ", in a loop" } else { "" };
        let _ = writeln!(
            text,
            "  {} of {} bytes on a device{place}: {}",
            made.kind, made.bytes, made.scope
        );
    }
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    |source| Error::Dump { path, source }
}

/// Name, type and placement of an array, with its size on one device.
fn line(spec: &ArraySpec, module: &Module) -> String {
    let local = spec.sharding.local_dims(&module.mesh, &spec.dims);
    let bytes = local.map_or(0, |dims| {
        dims.iter().product::<usize>() * spec.dtype.bytes()
    });
    format!(
        "{} {spec}, {bytes} bytes on a device",
        spec.name.escape_debug()
    )
}

/// How often each operation stands in the text.
fn operations(text: &str) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == '_'));
    let names = words.filter(|w| {
        ["stablehlo.", "chlo.", "sdy."]
            .iter()
            .any(|p| w.starts_with(p))
    });
    // A dialect's attributes look like its operations; those that describe an operation are no work.
    let attributes = ["sdy.sharding", "sdy.mesh", "stablehlo.return", "sdy.return"];
    for name in names.filter(|n| !attributes.contains(n)) {
        *counts.entry(name).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::{Operations, compiled_operations};

    #[test]
    fn a_program_that_sends_nothing_and_one_that_is_not_shown_are_told_apart() {
        let text = |operations: Option<&Operations>| {
            let mut text = String::new();
            compiled_operations(&mut text, operations);
            text
        };
        let mut silent = Operations::default();
        silent.counts.insert("dot".to_owned(), 2);
        assert_eq!(
            text(Some(&silent)),
            "\noperations of the compiled program\n       2  dot\n\ncollectives of the compiled program\n  none\n"
        );
        assert_eq!(
            text(None).matches("this plugin does not show them").count(),
            2
        );
    }
}
