//! Training steps on synthetic rows: how fast, how much of it is the host's doing, how much memory.
//!
//! A step is what a run does: trajectories are packed, and their micro-batches are uploaded and handed to the device with their
//! update, as one program. *Host time* is what passes in packing and in the call, which returns before the device is done.

use std::time::{Duration, Instant};

use ferrotune_batch::{Aggregation, Field, Packing, Trajectory};
use ferrotune_engine::{
    Engine, EngineConfig, HeadMode, Loss, Offload, Optimizer, OrderKind, RouterSettings,
    ShardOverData, Trains,
};
use ferrotune_graph::Policy;
use ferrotune_models::{ModelConfig, init_params};
use ferrotune_rl::{ClipRange, policy_gradient};
use serde_json::{Value, json};

use super::{StepSizes, exact_memory, median};
use crate::args::BenchStepArgs;
use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::machine;
use crate::model_folder::head;
use crate::terminal::{bytes, counted, print, say};

/// Steps before those that count.
const WARM_UP: usize = 2;

/// Documents in a row.
const SEGMENTS: usize = 4;

/// A model like that of the quickstart.
const SMALL: &str = r#"{
    "model_type": "qwen3", "vocab_size": 512, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 48, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "max_position_embeddings": 4096, "hidden_act": "silu", "initializer_range": 0.02
}"#;

/// What to do about sizes that are too large.
const LOWER: &str = "lower --rows, --width or --micro-batches, or name a smaller --model";

pub(crate) fn run(args: &BenchStepArgs) -> Result<(), Failure> {
    if !exact_memory::is_on() {
        return exact_memory::again(None, LOWER);
    }
    let model = match &args.model {
        Some(dir) => ModelConfig::load(dir).or_refuse()?,
        None => ModelConfig::parse(SMALL, "the built-in model").or_fail()?,
    };
    if !args.rows.is_multiple_of(args.fsdp) {
        let (rows, fsdp) = (args.rows, args.fsdp);
        return Err(Failure::refused(anyhow::anyhow!(
            "--rows {rows} does not divide by --fsdp {fsdp}"
        )));
    }
    let (rows, width, micro_batches) = (args.rows, args.width, args.micro_batches);
    let shape = format!("{} of {width} tokens", counted(rows, "row"));
    let step = StepSizes {
        parameters: model.param_count() as f64,
        // Parameters, their gradient, two moments.
        copies: 4.0,
        stream: model.num_hidden_layers as f64 * model.hidden_size as f64,
        tokens: rows as f64 * width as f64,
        micro_batches: micro_batches as f64,
    };
    machine::check_free(
        &format!(
            "the model and {} of {shape}",
            counted(micro_batches, "micro-batch")
        ),
        step.bytes(),
        LOWER,
    )?;
    let axes = [("data".to_owned(), 1), ("fsdp".to_owned(), args.fsdp)];
    let device = Device::mesh(&axes, rules())?;
    say(device.describe());
    say(format_args!("compiling for {shape}"));
    let bench = Bench::new(args, &device, model)?;
    let measured = bench.measure(args)?;
    if args.json {
        print(measured)
    } else {
        show(&measured)
    }
}

/// As a run splits them.
fn rules() -> Vec<(String, Vec<String>)> {
    let split = |name: &str, over: &[&str]| {
        (
            name.to_owned(),
            over.iter().map(|it| (*it).to_owned()).collect(),
        )
    };
    let whole = ferrotune_nn::LOGICAL_AXES
        .iter()
        .filter(|it| !matches!(**it, "batch" | "embed"));
    let mut rules = vec![split("batch", &["data", "fsdp"]), split("embed", &["fsdp"])];
    rules.extend(whole.map(|name| split(name, &[])));
    rules
}

struct Bench {
    engine: Engine,
    loss: Loss,
    packing: Packing,
    batch: Vec<Trajectory>,
}

impl Bench {
    fn new(args: &BenchStepArgs, device: &Device, model: ModelConfig) -> Result<Self, Failure> {
        let params = init_params(&model, 0).or_fail()?;
        let batch = trajectories(args, model.vocab_size);
        let config = EngineConfig {
            compute: args.compute_dtype.dtype(),
            fp8_history: 0,
            policy: Policy::keep_dots(),
            head: head(HeadMode::Fused, args.rows * args.width / args.fsdp, &model),
            temperature: 1.0,
            optimizer: Optimizer {
                max_grad_norm: 1.0,
                ..Optimizer::default()
            },
            max_inflight: 2,
            max_shapes: 8,
            group_norms: Vec::new(),
            trains: Trains::All,
            shard_over_data: ShardOverData::Nothing,
            offload: Offload::Nothing,
            router: RouterSettings::default(),
            order: OrderKind::default(),
        };
        let mut engine = Engine::new(
            &device.client,
            &device.mesh,
            &device.rules,
            model,
            config,
            &params,
        )
        .or_refuse()?;
        drop(params);
        let loss = policy_gradient(ClipRange {
            low: 0.2,
            high: 0.2,
        });
        engine
            .compile_step(args.micro_batches, args.rows, args.width, &loss)
            .or_fail()?;
        Ok(Self {
            engine,
            loss,
            packing: Packing::packed(args.width),
            batch,
        })
    }

    /// One step; answers the host's part of it and all of it.
    fn step(&mut self, rows: usize) -> Result<(Duration, Duration), Failure> {
        let (begun, waited) = (Instant::now(), self.engine.waited());
        let weights = Aggregation::TokenMean.weights(&self.batch).or_fail()?;
        let packed = self.packing.pack(&self.batch, &weights).or_fail()?;
        let micro_batches = packed.micro_batches(rows).or_fail()?;
        let pending = self
            .engine
            .train(&micro_batches, &self.loss, 1e-6)
            .or_fail()?;
        let host = begun
            .elapsed()
            .saturating_sub(self.engine.waited() - waited);
        pending.read().or_fail()?;
        self.engine.weights().or_fail()?[0].wait().or_fail()?;
        Ok((host, begun.elapsed()))
    }

    fn measure(mut self, args: &BenchStepArgs) -> Result<Value, Failure> {
        for _ in 0..WARM_UP {
            self.step(args.rows)?;
        }
        // At rest the process holds parameters, moments, and what has nothing to do with a step: code, threads, the client.
        let [params, moments, accumulators] = self.engine.state_bytes();
        let others = machine::resident().map(|it| it.saturating_sub((params + moments) as u64));
        let peak_is_known = machine::forget_peak();
        let mut times = Vec::new();
        for _ in 0..args.steps {
            times.push(self.step(args.rows)?);
        }
        let (host, whole): (Vec<_>, Vec<_>) = times.into_iter().unzip();
        let (host, whole) = (median(&host), median(&whole));
        let tokens: usize = self.batch.iter().map(Trajectory::len).sum();
        let programs = self.engine.program_memory();
        let temporaries = programs
            .iter()
            .map(|(_, it)| it.temp as usize * args.fsdp)
            .max()
            .unwrap_or(0);
        // The accumulation is among the temporaries.
        let needed = (params + moments + temporaries) as u64;
        let peak = machine::peak_resident().filter(|_| peak_is_known);
        let peak = peak
            .zip(others)
            .map(|(peak, others)| peak.saturating_sub(others));
        Ok(json!({
            "tokens_per_second": (tokens as f64 / whole).round(),
            "step_ms": round(whole * 1e3),
            "micro_batches": args.micro_batches,
            "host_ms_per_micro_batch": round(host * 1e3 / args.micro_batches as f64),
            "host_share": round(host / whole),
            "peak_bytes": peak,
            "parameter_bytes": params,
            "moment_bytes": moments,
            "accumulator_bytes": accumulators,
            "temporary_bytes": temporaries,
            "peak_over_needed": peak.map(|it| round(it as f64 / needed as f64)),
            "tokens_per_step": tokens,
            "steps": args.steps,
            "rows": args.rows,
            "width": args.width,
            "fsdp": args.fsdp,
            "parameters": self.engine.model().param_count(),
        }))
    }
}

/// Documents that fill all rows of a step, half of each trained on.
fn trajectories(args: &BenchStepArgs, vocab_size: usize) -> Vec<Trajectory> {
    let segments = SEGMENTS.min(args.width / 2);
    let length = args.width / segments;
    let count = args.rows * args.micro_batches * segments;
    let ids = |n: usize| {
        (0..length)
            .map(move |t| ((n * 31 + t * 7 + 1) % vocab_size) as u32)
            .collect::<Vec<_>>()
    };
    (0..count)
        .map(|n| {
            let ids = ids(n);
            let (prompt, answer) = ids.split_at(length / 2);
            let logprobs = vec![-1.0; answer.len()];
            Trajectory::from_prompt(prompt, answer)
                .with_constant(Field::Advantage, if n % 2 == 0 { 1.0 } else { -1.0 })
                .with_tail(Field::OldLogprob, &logprobs)
                .with_tail(Field::SamplerLogprob, &logprobs)
        })
        .collect()
}

fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn show(measured: &Value) -> Result<(), Failure> {
    let number = |name: &str| measured[name].as_f64().unwrap_or(f64::NAN);
    let size = |name: &str| {
        measured[name]
            .as_u64()
            .map_or_else(|| "unknown".to_owned(), bytes)
    };
    print(format_args!(
        "tokens/s      {:.0}",
        number("tokens_per_second")
    ))?;
    print(format_args!(
        "step          {:.1} ms for {}",
        number("step_ms"),
        counted(number("micro_batches") as usize, "micro-batch")
    ))?;
    print(format_args!(
        "host          {:.3} ms a micro-batch, {:.2}% of the step",
        number("host_ms_per_micro_batch"),
        number("host_share") * 100.0
    ))?;
    print(format_args!(
        "peak memory   {}, {:.3} of what is needed: parameters {}, moments {}, temporaries {}, accumulators {} among them",
        size("peak_bytes"),
        number("peak_over_needed"),
        size("parameter_bytes"),
        size("moment_bytes"),
        size("temporary_bytes"),
        size("accumulator_bytes")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_model_is_one() {
        let model = ModelConfig::parse(SMALL, "the built-in model").unwrap();
        assert!(
            (1_000_000..3_000_000).contains(&model.param_count()),
            "{}",
            model.param_count()
        );
    }
}
