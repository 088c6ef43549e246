//! From a recipe and its files to a trainer on a device.

use ferrotune_batch::{Aggregation, DEFAULT_PAD_ALIGN, Packing, PadPosition};
use ferrotune_engine::{AdamW, Engine, EngineConfig, Schedule, ScheduleKind};
use ferrotune_graph::{HostArray, Policy};
use ferrotune_models::{ModelConfig, init_params};
use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::DType;
use ferrotune_recipe as recipe;
use ferrotune_recipe::{ComputeDtype, ModelInit, Recipe, Resolved, sharding_rules};
use ferrotune_rl::{ClipRange, Estimator, Imitation, Plan, Reinforcement, Trainer};
use ferrotune_rollout::{Sampler, SamplerConfig};

use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::machine;
use crate::model_folder;
use crate::terminal::short_count;
use crate::train::inputs::{Inputs, checker};
use crate::train::watch::Watch;

/// The most answers that are decoded together.
const MOST_ROWS: usize = 256;

/// The most memory that the sampler's cache may take, in bytes.
const CACHE_BYTES: usize = 1 << 30;

/// The most memory that saved contractions may take before layers are recomputed instead, in bytes.
const SAVED_BYTES: usize = 1 << 30;

/// Puts the number format for this machine and model in the place of `auto`.
pub(crate) fn settle_compute_dtype(resolved: &mut Resolved, model: &ModelConfig) {
    let features = machine::bf16_features();
    let (dtype, why) = machine::choose_compute(model.hidden_size, &features);
    resolved.settle_compute_dtype(dtype, &why);
}

/// A trainer before its first step, and the number type of the weights on disk, if they are of one.
///
/// Says what it starts with.
pub(crate) fn trainer(
    resolved: &Resolved,
    inputs: Inputs,
    watch: &Watch,
) -> Result<(Trainer, Option<DType>), Failure> {
    let recipe = resolved.recipe();
    watch.busy("reading the model");
    let (params, stored) = first_weights(recipe, &inputs.model)?;
    watch.busy("starting the device");
    let device = Device::mesh(&recipe.mesh_axes(), sharding_rules(recipe))?;
    say_what_runs(resolved, &inputs, &device, watch);

    let compute = match recipe.compute_dtype {
        ComputeDtype::Bf16 => DType::BF16,
        ComputeDtype::F32 | ComputeDtype::Auto => DType::F32,
    };
    let Inputs { model, data, stop_ids, .. } = inputs;
    let rows = recipe.packing.rows_per_micro_batch;
    let width = recipe.packing.row_tokens;
    let config = EngineConfig {
        compute,
        policy: policy(recipe, &model, compute),
        token_chunk: model_folder::token_chunk(rows, width, model.vocab_size),
        temperature: recipe.rollout.temperature,
        adamw: AdamW {
            beta1: recipe.optimizer.beta1,
            beta2: recipe.optimizer.beta2,
            eps: recipe.optimizer.eps,
            weight_decay: recipe.optimizer.weight_decay,
        },
        max_grad_norm: recipe.optimizer.max_grad_norm,
    };
    let engine = Engine::new(&device.client, &device.mesh, &device.rules, model, config, &params);
    let engine = engine.map_err(of_placement)?;
    drop(params);
    watch.busy("compiling the sampler");
    let sampler = SamplerConfig {
        batch: sampler_rows(recipe, engine.model(), data.heldout.problems().len(), compute),
        max_prompt_tokens: recipe.rollout.max_prompt_tokens,
        max_new_tokens: recipe.rollout.max_new_tokens,
        tokens_per_dispatch: recipe.rollout.tokens_per_dispatch,
        compute,
        pad_id: stop_ids[0],
        stop_ids,
    };
    let layout = engine.param_layout();
    let sampler = Sampler::new(&device.client, &device.rules, engine.model(), layout, sampler).or_fail()?;
    let trainer = Trainer::new(engine, sampler, plan(recipe)?, data).or_refuse()?;
    Ok((trainer, stored))
}

/// A model that the mesh does not divide is a matter of the recipe; all else is not.
fn of_placement(error: ferrotune_engine::Error) -> Failure {
    match error {
        ferrotune_engine::Error::Placement(_) => Failure::refused(
            anyhow::Error::new(error).context("the model does not fit the mesh: change mesh.fsdp or mesh.data"),
        ),
        other => Failure::failed(other),
    }
}

type FirstWeights = (Vec<(ParamSpec, HostArray)>, Option<DType>);

fn first_weights(recipe: &Recipe, model: &ModelConfig) -> Result<FirstWeights, Failure> {
    match recipe.model.init {
        ModelInit::Random => Ok((init_params(model, recipe.seed).or_fail()?, None)),
        ModelInit::Pretrained => model_folder::weights(&recipe.model.path, model),
    }
}

fn say_what_runs(resolved: &Resolved, inputs: &Inputs, device: &Device, watch: &Watch) {
    let recipe = resolved.recipe();
    let model = &inputs.model;
    let why = resolved.origin("compute_dtype").map_or_else(String::new, |it| format!(" ({it})"));
    watch.say(&format!("device   {}", device.describe()));
    watch.say(&format!("compute  {}{why}", recipe.compute_dtype));
    watch.say(&format!(
        "model    {} {}: {} parameters, {} layers, hidden size {}, vocabulary {}",
        recipe.model.path.display(),
        recipe.model.init,
        short_count(model.param_count()),
        model.num_hidden_layers,
        model.hidden_size,
        model.vocab_size,
    ));
    watch.say(&format!(
        "data     {} problems, {} held out, {} demonstrations",
        inputs.data.train.problems().len(),
        inputs.data.heldout.problems().len(),
        inputs.data.demonstrations.len(),
    ));
    let mut phases = Vec::new();
    if recipe.warmup.steps > 0 {
        phases.push(format!("{} of warm-up on {} demonstrations each", recipe.warmup.steps, recipe.warmup.batch_size));
    }
    if recipe.rl.steps > 0 {
        phases.push(format!(
            "{} of GRPO on {} x {} answers each, {} update(s) a step",
            recipe.rl.steps, recipe.rl.prompts_per_step, recipe.rl.group_size, recipe.rl.updates_per_step
        ));
    }
    watch.say(&format!("steps    {}", phases.join(", then ")));
    watch.say(&format!(
        "rows     micro-batches of {} rows of {} tokens, as many as it takes",
        recipe.packing.rows_per_micro_batch, recipe.packing.row_tokens
    ));
    watch.say(&format!("run      {}", recipe.run.dir.display()));
}

/// Keeps contractions for the backward pass where they are small, which saves a second forward pass.
fn policy(recipe: &Recipe, model: &ModelConfig, compute: DType) -> Policy {
    let tokens = recipe.packing.rows_per_micro_batch.saturating_mul(recipe.packing.row_tokens);
    let heads = model.num_attention_heads * (recipe.packing.row_tokens + 2 * model.head_dim);
    let kept = heads + 2 * model.num_key_value_heads * model.head_dim + 3 * model.hidden_size + 3 * model.intermediate_size;
    let bytes = tokens.saturating_mul(kept).saturating_mul(model.num_hidden_layers * compute.bytes());
    if bytes <= SAVED_BYTES { Policy::SaveDots } else { Policy::Recompute }
}

/// Rows of the sampler: all answers of a step, or equal parts of them, that the devices divide and whose cache is bounded.
fn sampler_rows(recipe: &Recipe, model: &ModelConfig, heldout: usize, compute: DType) -> usize {
    let devices = recipe.device_count();
    let answers = match recipe.rl.steps {
        0 => heldout,
        _ => recipe.rl.prompts_per_step * recipe.rl.group_size,
    };
    let slots = recipe.rollout.max_prompt_tokens + recipe.rollout.max_new_tokens;
    let row_bytes = 2 * slots * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * compute.bytes();
    let most = MOST_ROWS.min(CACHE_BYTES / row_bytes.max(1)).max(1);
    let parts = answers.div_ceil(most);
    answers.div_ceil(parts).next_multiple_of(devices)
}

/// The recipe's values as the algorithm takes them.
fn plan(recipe: &Recipe) -> Result<Plan, Failure> {
    let (warmup, rl) = (&recipe.warmup, &recipe.rl);
    let imitation = Imitation {
        steps: warmup.steps as u64,
        batch_size: warmup.batch_size,
        schedule: Schedule {
            kind: schedule_kind(warmup.lr_schedule),
            peak: warmup.learning_rate,
            warmup_steps: warmup.lr_warmup_steps as u64,
            total_steps: warmup.steps as u64,
            final_ratio: warmup.min_lr_ratio,
        },
    };
    let reinforcement = Reinforcement {
        steps: rl.steps as u64,
        prompts_per_step: rl.prompts_per_step,
        group_size: rl.group_size,
        updates_per_step: rl.updates_per_step,
        estimator: estimator(rl.advantage),
        aggregation: aggregation(recipe)?,
        clip: ClipRange { low: rl.clip_ratio_low, high: rl.clip_ratio_high },
        temperature: recipe.rollout.temperature,
        schedule: Schedule {
            kind: schedule_kind(rl.lr_schedule),
            peak: rl.learning_rate,
            warmup_steps: rl.lr_warmup_steps as u64,
            total_steps: rl.steps as u64,
            final_ratio: rl.min_lr_ratio,
        },
    };
    Ok(Plan {
        seed: recipe.seed,
        warmup: (warmup.steps > 0).then_some(imitation),
        grpo: (rl.steps > 0).then_some(reinforcement),
        packing: packing(recipe),
        rows_per_micro_batch: recipe.packing.rows_per_micro_batch,
        max_new_tokens: recipe.rollout.max_new_tokens,
        checker: checker(recipe),
        evaluate_every: recipe.eval.every_steps as u64,
    })
}

fn schedule_kind(kind: recipe::LrSchedule) -> ScheduleKind {
    match kind {
        recipe::LrSchedule::Constant => ScheduleKind::Constant,
        recipe::LrSchedule::Cosine => ScheduleKind::Cosine,
        recipe::LrSchedule::Linear => ScheduleKind::Linear,
    }
}

fn estimator(advantage: recipe::Advantage) -> Estimator {
    match advantage {
        recipe::Advantage::GroupNorm => Estimator::GroupNorm,
        recipe::Advantage::GroupMean => Estimator::GroupMean,
        recipe::Advantage::Rloo => Estimator::Rloo,
    }
}

fn aggregation(recipe: &Recipe) -> Result<Aggregation, Failure> {
    let rl = &recipe.rl;
    // The answers of one update, each as long as it may be.
    let answers = rl.prompts_per_step * rl.group_size / rl.updates_per_step;
    let constant = (rl.loss_aggregation == recipe::LossAggregation::TokenSum)
        .then_some(answers as f64 * recipe.rollout.max_new_tokens as f64);
    Aggregation::parse(rl.loss_aggregation.word(), constant).or_refuse()
}

fn packing(recipe: &Recipe) -> Packing {
    let packing = &recipe.packing;
    let (pad_position, pad_align) = match packing.pad_position {
        recipe::PadPosition::End => (PadPosition::End, DEFAULT_PAD_ALIGN),
        recipe::PadPosition::Start => (PadPosition::Start, packing.pad_align),
    };
    Packing {
        max_segments: packing.max_segments,
        segment_align: packing.segment_align,
        pad_position,
        pad_align,
        ..Packing::packed(packing.row_tokens)
    }
}
