//! The time to trace, differentiate, write and compile a step of a hybrid model, by its number of layers.
//!
//! Layers are scanned, so neither the time nor the text should grow with their number.

mod hybrid;

use std::time::{Duration, Instant};

use ferrotune_graph::{Graph, Platform};
use ferrotune_program::{Builder, Layout};
use serde_json::{Value, json};

use super::median;
use crate::args::BenchTraceArgs;
use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::terminal::{print, say};

/// Times that are kept of several runs.
struct Measured {
    layers: usize,
    trace: f64,
    differentiate: f64,
    write: f64,
    bytes: usize,
    lines: usize,
}

impl Measured {
    fn total(&self) -> f64 {
        self.trace + self.differentiate + self.write
    }
}

pub(crate) fn run(args: &BenchTraceArgs) -> Result<(), Failure> {
    let device = Device::single()?;
    say(device.describe());
    let measured: Vec<Measured> = [args.layers, 2 * args.layers]
        .into_iter()
        .map(|layers| measure(&device, layers, args.runs))
        .collect::<Result<_, Failure>>()?;
    let (cold, warm) = compile(&device, args.layers)?;
    if args.json {
        let sizes: Vec<Value> = measured.iter().map(describe).collect();
        return print(json!({
            "plugin": device.client.plugin().name(), "runs": args.runs, "steps": sizes,
            "growth": { "seconds": measured[1].total() / measured[0].total(), "bytes": measured[1].bytes as f64 / measured[0].bytes as f64 },
            "compile_s": { "cold": cold, "cached": warm },
        }));
    }
    for m in &measured {
        print(format_args!(
            "{:4} layers: {:.3} s to trace, {:.3} s to differentiate, {:.3} s to write; {} bytes in {} lines (median of {})",
            m.layers, m.trace, m.differentiate, m.write, m.bytes, m.lines, args.runs
        ))?;
    }
    print(format_args!(
        "compiled in {}; loaded from the cache in {warm:.3} s",
        cold.map_or("the past: it was in the cache".to_owned(), |s| format!(
            "{s:.3} s"
        ))
    ))
}

fn describe(m: &Measured) -> Value {
    json!({
        "layers": m.layers, "trace_s": m.trace, "differentiate_s": m.differentiate, "write_s": m.write,
        "total_s": m.total(), "text_bytes": m.bytes, "text_lines": m.lines,
    })
}

/// Traces the step anew for each run.
fn measure(device: &Device, layers: usize, runs: usize) -> Result<Measured, Failure> {
    let layout = hybrid::layout(device, layers)?;
    let (mut trace, mut differentiate, mut write) = (Vec::new(), Vec::new(), Vec::new());
    let (mut bytes, mut lines) = (0, 0);
    for _ in 0..runs {
        let (builder, times) = build(device, &layout, layers);
        trace.push(times[0]);
        differentiate.push(times[1]);
        let begun = Instant::now();
        let text = builder.lower(Platform::Cpu).module.text;
        write.push(begun.elapsed());
        (bytes, lines) = (text.len(), text.lines().count());
    }
    Ok(Measured {
        layers,
        trace: median(&trace),
        differentiate: median(&differentiate),
        write: median(&write),
        bytes,
        lines,
    })
}

/// The step, and the times to trace it and to add its derivative.
fn build(device: &Device, layout: &Layout, layers: usize) -> (Builder, [Duration; 2]) {
    let mut builder = Builder::new("hybrid_step", &device.mesh, &device.rules);
    let state = builder.input("state", layout);
    let g: Graph = builder.graph().clone();
    let begun = Instant::now();
    let loss = hybrid::loss(&g, &state, layers);
    let traced = begun.elapsed();
    let begun = Instant::now();
    let updated = hybrid::descend(&g, &loss, &state);
    let differentiated = begun.elapsed();
    builder.output_replacing(layout, &updated, &state);
    (builder, [traced, differentiated])
}

/// Seconds to compile, unless it was in the cache, and to load it from there.
fn compile(device: &Device, layers: usize) -> Result<(Option<f64>, f64), Failure> {
    let layout = hybrid::layout(device, layers)?;
    let timed = || {
        let (builder, _) = build(device, &layout, layers);
        let begun = Instant::now();
        let program = builder.compile(&device.client).or_fail()?;
        Ok((program.from_cache(), begun.elapsed().as_secs_f64()))
    };
    let (cached, first) = timed()?;
    let (_, second) = timed()?;
    Ok(((!cached).then_some(first), second))
}
