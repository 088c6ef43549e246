//! What the engine adds to the programs that it runs: the same executables called by it, and bare.
//!
//! *Bare* is a list of calls with rows and learning rate on the device beforehand; nothing is checked, uploaded, reported or
//! waited for before the end. Steps of all kinds take turns, forth and back, so that a slower moment of the machine, or what a step
//! leaves behind, meets all of them. The models are small, and what the host does stands out: layers in a loop give a few arrays,
//! layers written out (the last one is of another kind, so no pattern repeats) some three hundred.

mod bare;

use std::time::{Duration, Instant};

use ferrotune_batch::{Aggregation, Packing, Rows, Trajectory};
use ferrotune_engine::{
    Engine, EngineConfig, HeadMode, Loss, Offload, Optimizer, OrderKind, Pending, RouterSettings,
    ShardOverData, Trains,
};
use ferrotune_graph::{DType, Policy};
use ferrotune_models::{ModelConfig, init_params};
use serde_json::{Value, json};

use self::bare::Bare;
use super::{StepSizes, median};
use crate::args::BenchEngineArgs;
use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::model_folder::head;
use crate::terminal::{counted, print, say};

/// Steps before those that count.
const WARM_UP: usize = 2;

const MICRO_BATCHES: [usize; 2] = [1, 8];

const RATE: f64 = 1e-6;

pub(crate) fn run(args: &BenchEngineArgs) -> Result<(), Failure> {
    if !args.hidden.is_multiple_of(16) {
        let hidden = args.hidden;
        return Err(Failure::refused(anyhow::anyhow!(
            "--hidden {hidden} is not a multiple of 16, the size of a head"
        )));
    }
    let counts = match &args.micro_batches[..] {
        [] => &MICRO_BATCHES[..],
        counts => counts,
    };
    check_memory(args, counts)?;
    let device = Device::single()?;
    say(device.describe());
    let mut models = Vec::new();
    for (layers, text) in [
        ("in a loop", looped(args)),
        ("written out", written_out(args)),
    ] {
        let model = ModelConfig::parse(&text, "the built-in model").or_fail()?;
        let mut engine = engine(args, &device, model)?;
        let arrays = engine.weights().or_fail()?[0].len();
        let mut steps = Vec::new();
        for &count in counts {
            say(format_args!(
                "{} layers {layers}, {}",
                args.layers,
                counted(count, "micro-batch")
            ));
            let measured = measure(args, &device, &mut engine, count)?;
            if !args.json {
                show(layers, arrays, &measured)?;
            }
            steps.push(measured);
        }
        models.push(json!({ "layers": layers, "arrays": arrays, "steps": steps }));
    }
    if args.json {
        print(json!({
            "plugin": device.client.plugin().name(),
            "layers": args.layers,
            "hidden": args.hidden,
            "rows": args.rows,
            "width": args.width,
            "measured_steps": args.steps,
            "models": models,
        }))?;
    }
    Ok(())
}

/// Refuses sizes of which what is always held is more than the machine has free.
///
/// A layer has `8·hidden²` parameters: queries and outputs `hidden²` each, three of `2·hidden²` between.
fn check_memory(args: &BenchEngineArgs, counts: &[usize]) -> Result<(), Failure> {
    let most = counts.iter().copied().max().unwrap_or(1);
    let [layers, hidden, rows, width] =
        [args.layers, args.hidden, args.rows, args.width].map(|it| it as f64);
    let step = StepSizes {
        parameters: layers * 8.0 * hidden * hidden,
        // On the host, learning, their gradient and accumulation, and two moments.
        copies: 6.0,
        stream: layers * hidden,
        tokens: rows * width,
        micro_batches: most as f64,
    };
    crate::machine::check_free(
        &format!(
            "{layers} layers of {hidden} and up to {} of {} of {width} tokens",
            counted(most, "micro-batch"),
            counted(args.rows, "row")
        ),
        step.bytes(),
        "lower --layers, --hidden, --rows, --width or --micro-batches",
    )
}

/// Sizes that both models have.
fn sizes(args: &BenchEngineArgs) -> String {
    let BenchEngineArgs { layers, hidden, .. } = args;
    format!(
        r#""vocab_size": 128, "hidden_size": {hidden}, "intermediate_size": {}, "num_hidden_layers": {layers},
        "num_attention_heads": {}, "num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true, "max_position_embeddings": 4096, "hidden_act": "silu", "initializer_range": 0.02"#,
        2 * hidden,
        hidden / 16
    )
}

/// All layers are alike.
fn looped(args: &BenchEngineArgs) -> String {
    let sizes = sizes(args);
    format!(r#"{{ "model_type": "qwen3", "rope_theta": 10000.0, {sizes} }}"#)
}

/// The last layer is of another kind than all others.
fn written_out(args: &BenchEngineArgs) -> String {
    let sizes = sizes(args);
    let full = vec![r#""full_attention""#; args.layers - 1].join(", ");
    format!(
        r#"{{ "model_type": "qwen3_5_text", "layer_types": [{full}, "linear_attention"], "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16, "linear_num_key_heads": 1, "linear_num_value_heads": 1, "linear_value_head_dim": 16,
        "rope_parameters": {{ "partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default" }}, {sizes} }}"#
    )
}

fn engine(args: &BenchEngineArgs, device: &Device, model: ModelConfig) -> Result<Engine, Failure> {
    let params = init_params(&model, 0).or_fail()?;
    let config = EngineConfig {
        compute: DType::F32,
        fp8_history: 0,
        policy: Policy::keep_dots(),
        head: head(HeadMode::Fused, args.rows * args.width, &model),
        temperature: 1.0,
        optimizer: Optimizer {
            max_grad_norm: 1.0,
            ..Optimizer::default()
        },
        max_inflight: 2,
        max_shapes: 1,
        group_norms: Vec::new(),
        trains: Trains::All,
        shard_over_data: ShardOverData::Nothing,
        offload: Offload::Nothing,
        router: RouterSettings::default(),
        order: OrderKind::default(),
    };
    let (client, mesh, rules) = (&device.client, &device.mesh, &device.rules);
    let mut engine = Engine::new(client, mesh, rules, model, config, &params).or_fail()?;
    engine
        .compile(args.rows, args.width, &Loss::cross_entropy())
        .or_fail()?;
    Ok(engine)
}

/// `count` micro-batches of one document a row.
fn micro_batches(args: &BenchEngineArgs, count: usize) -> Result<Vec<Rows>, Failure> {
    let document = |n: usize| (0..args.width).map(move |t| ((n * 31 + t * 7 + 1) % 128) as u32);
    let documents = (0..count * args.rows).map(|n| Trajectory::document(document(n).collect()));
    let documents: Vec<Trajectory> = documents.collect();
    let weights = Aggregation::TokenMean.weights(&documents).or_fail()?;
    let packed = Packing::padded(args.width)
        .pack(&documents, &weights)
        .or_fail()?;
    packed.micro_batches(args.rows).or_fail()
}

/// Whose step it is.
#[derive(Clone, Copy)]
enum Turn {
    BareParts,
    Parts,
    BareWhole,
    Whole,
}

/// Seconds that steps of one kind took.
#[derive(Default)]
struct Times {
    /// In the calls, which return before the device is done, without waiting.
    host: Vec<Duration>,
    engine: Vec<Duration>,
    bare: Vec<Duration>,
}

impl Times {
    fn add(&mut self, (host, engine): (Duration, Duration)) {
        self.host.push(host);
        self.engine.push(engine);
    }

    fn numbers(&self) -> Value {
        let (engine, bare) = (median(&self.engine), median(&self.bare));
        json!({
            "host_us": micros(median(&self.host)),
            "engine_ms": (engine * 1e6).round() / 1e3,
            "bare_ms": (bare * 1e6).round() / 1e3,
            "engine_over_bare": (engine / bare * 1e4).round() / 1e4,
        })
    }
}

fn micros(seconds: f64) -> f64 {
    (seconds * 1e7).round() / 10.0
}

fn measure(
    args: &BenchEngineArgs,
    device: &Device,
    engine: &mut Engine,
    count: usize,
) -> Result<Value, Failure> {
    let loss = Loss::cross_entropy();
    let rows = micro_batches(args, count)?;
    engine
        .compile_step(count, args.rows, args.width, &loss)
        .or_fail()?;
    let mut bare = Bare::new(device, engine, &rows, RATE)?;
    let (mut parts, mut whole) = (Times::default(), Times::default());
    let (mut micro_batch, mut update) = (Vec::new(), Vec::new());
    for step in 0..WARM_UP + args.steps {
        let mut turns = [Turn::BareParts, Turn::Parts, Turn::BareWhole, Turn::Whole];
        if step % 2 == 1 {
            turns.reverse();
        }
        for turn in turns {
            let begun = Instant::now();
            match turn {
                Turn::BareParts => {
                    bare.parts(engine)?;
                    parts.bare.push(begun.elapsed());
                }
                Turn::BareWhole => {
                    bare.whole(engine, count)?;
                    whole.bare.push(begun.elapsed());
                }
                Turn::Parts => {
                    let times = engine_step(engine, |engine| {
                        let (pending, [gathered, updated]) = by_parts(engine, &rows, &loss)?;
                        micro_batch.push(gathered / count as u32);
                        update.push(updated);
                        Ok(pending)
                    })?;
                    parts.add(times);
                }
                Turn::Whole => {
                    let step = |engine: &mut Engine| engine.train(&rows, &loss, RATE).or_fail();
                    whole.add(engine_step(engine, step)?);
                }
            }
        }
        if step + 1 == WARM_UP {
            (parts, whole) = (Times::default(), Times::default());
            micro_batch.clear();
            update.clear();
        }
    }
    Ok(json!({
        "micro_batches": count,
        "host_us_per_micro_batch": micros(median(&micro_batch)),
        "host_us_per_update": micros(median(&update)),
        "parts": parts.numbers(),
        "whole": whole.numbers(),
    }))
}

/// A step call by call, and the host's time in the calls: of all micro-batches, and of the update.
fn by_parts(
    engine: &mut Engine,
    rows: &[Rows],
    loss: &Loss,
) -> Result<(Pending, [Duration; 2]), Failure> {
    let (begun, before) = (Instant::now(), engine.waited());
    for rows in rows {
        engine.forward_backward(rows, loss).or_fail()?;
    }
    let waited = engine.waited() - before;
    let gathered = begun.elapsed().saturating_sub(waited);
    let pending = engine.update(RATE).or_fail()?;
    let updated = begun.elapsed().saturating_sub(waited + gathered);
    Ok((pending, [gathered, updated]))
}

/// The host's part of a step of the engine, and all of it until report and parameters are there.
fn engine_step(
    engine: &mut Engine,
    step: impl FnOnce(&mut Engine) -> Result<Pending, Failure>,
) -> Result<(Duration, Duration), Failure> {
    let (begun, waited) = (Instant::now(), engine.waited());
    let pending = step(engine)?;
    let host = begun.elapsed().saturating_sub(engine.waited() - waited);
    pending.read().or_fail()?;
    engine.weights().or_fail()?[0].wait().or_fail()?;
    Ok((host, begun.elapsed()))
}

fn show(layers: &str, arrays: usize, measured: &Value) -> Result<(), Failure> {
    let count = counted(
        measured["micro_batches"].as_u64().unwrap_or(0) as usize,
        "micro-batch",
    );
    print(format_args!(
        "layers {layers}, {arrays} arrays, {count}: host {} us a micro-batch, {} us an update",
        measured["host_us_per_micro_batch"], measured["host_us_per_update"]
    ))?;
    for (kind, what) in [("parts", "call by call"), ("whole", "as one program")] {
        let times = &measured[kind];
        print(format_args!(
            "  {what}: {} ms, bare {} ms: {} times",
            times["engine_ms"], times["bare_ms"], times["engine_over_bare"]
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_model_is_a_loop_and_the_other_is_written_out() {
        let args = BenchEngineArgs {
            layers: 28,
            hidden: 64,
            rows: 2,
            width: 64,
            micro_batches: vec![],
            steps: 1,
            json: true,
        };
        let arrays = |text: &str| ModelConfig::parse(text, "it").unwrap().params().len();
        let (looped, written) = (arrays(&looped(&args)), arrays(&written_out(&args)));
        assert!(looped < 20, "{looped}");
        assert!((180..=320).contains(&written), "{written}");
    }
}
