//! From a recipe and its files to a trainer on a device.

use ferrotune_engine::{Engine, EngineConfig, HeadMode, HeadSettings, Offload};
use ferrotune_graph::{Mesh, Policy, Rules};
use ferrotune_models::{ModelConfig, init_params};
use ferrotune_pjrt::{DType, MemoryStats, Platform};
use ferrotune_recipe::{
    ComputeDtype, Fault, ModelInit, Recipe, Resolved, Routes, TokenOrder, sampling_rules,
    sharding_rules,
};
use ferrotune_rl::Trainer;
use ferrotune_rollout::{Sampler, SamplerConfig};

use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::machine;
use crate::model_folder::{self, HEAD_BYTES, StoredWeights, head_sizes};
use crate::terminal::{bytes, counted, short_count};
use crate::train::inputs::Inputs;
use crate::train::plan::{offload, optimizer, plan, shard_over_data, token_order};
use crate::train::watch::Watch;

/// The most answers that are decoded together.
const MOST_ROWS: usize = 256;

/// Shapes of rows that steps may be compiled for. Packing makes all micro-batches of a run of one shape; more are a fault.
const MAX_SHAPES: usize = 1;

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

/// Refuses a mesh that does not divide the model, or an order that it cannot have, before a device is started.
pub(crate) fn check_mesh(resolved: &Resolved, model: &ModelConfig) -> Result<(), Failure> {
    let recipe = resolved.recipe();
    let shared = recipe.mesh.context > 1;
    if shared && recipe.mesh.order == TokenOrder::Balanced && model.has_recurrence() {
        let family = model.family.model_type();
        let fault = Fault {
            keys: vec!["mesh.order", "mesh.context"],
            title: format!("a model of the family {family} reads rows in their natural order"),
            help: Some(
                "write `mesh.order = \"dual_chunk_swap\"`, which evens out its attention alone"
                    .to_owned(),
            ),
        };
        return Err(Failure::Recipe(resolved.refuse(&[fault])));
    }
    let axes = recipe.mesh_axes();
    let axes: Vec<(&str, usize)> = axes
        .iter()
        .map(|(name, size)| (name.as_str(), *size))
        .collect();
    let mesh = Mesh::new(&axes).or_refuse()?;
    let rules = Rules::new(sharding_rules(recipe));
    for spec in model.params() {
        let axes: Vec<&str> = spec.axes.iter().map(String::as_str).collect();
        if let Err(error) = rules.place(&spec.path, &spec.dims, &axes, &mesh) {
            let fault = Fault {
                keys: vec!["mesh.fsdp", "mesh.context", "mesh.data"],
                title: format!("the model does not fit the mesh: {error}"),
                help: Some("change `mesh.fsdp`, `mesh.context` or `mesh.data`".to_owned()),
            };
            return Err(Failure::Recipe(resolved.refuse(&[fault])));
        }
    }
    Ok(())
}

/// Refuses to keep with the host what lies there already.
fn check_offload(resolved: &Resolved, device: &Device) -> Result<(), Failure> {
    let client = &device.client;
    let why = match client.platform() {
        _ if offload(resolved.recipe()) == Offload::Nothing => return Ok(()),
        Platform::Cpu => "the memory of a CPU device is the host's",
        _ if !client.has_host_memory() => "the devices copy to no memory of the host",
        _ => return Ok(()),
    };
    let fault = Fault {
        keys: vec!["optimizer.offload"],
        title: format!("nothing can be offloaded: {why}"),
        help: Some("take `optimizer.offload` out".to_owned()),
    };
    Err(Failure::Recipe(resolved.refuse(&[fault])))
}

/// Refuses steps that need more memory than the machine has.
pub(crate) fn check_memory(trainer: &Trainer, recipe: &Recipe) -> Result<(), Failure> {
    // The accumulation is among the temporaries of a step.
    let [params, kept, _] = trainer.engine().state_bytes();
    // Virtual devices share the memory of the machine.
    let devices = recipe.device_count() as u64;
    let programs = trainer.program_memory();
    let own = |it: &MemoryStats| (it.temp + it.output).saturating_sub(it.alias);
    let largest = programs.iter().max_by_key(|(_, it)| own(it));
    let Some(((name, program), (total, _))) = largest.zip(machine::memory()) else {
        return Ok(());
    };
    let needed = (params + kept) as u64 + devices * own(program);
    if needed <= total {
        return Ok(());
    }
    Err(Failure::refused(anyhow::anyhow!(
        "the run needs about {} of memory for `{name}`, and this machine has {}: \
         lower packing.row_tokens or packing.rows_per_micro_batch, or take a smaller model",
        bytes(needed),
        bytes(total)
    )))
}

/// How the head works: its chunks as they are set, or sized for the tokens of one device.
fn head_settings(recipe: &Recipe, tokens: usize, model: &ModelConfig) -> HeadSettings {
    let mode = match recipe.head.mode {
        ferrotune_recipe::HeadMode::Off => HeadMode::Off,
        ferrotune_recipe::HeadMode::Local => HeadMode::Local,
        ferrotune_recipe::HeadMode::Fused => HeadMode::Fused,
        ferrotune_recipe::HeadMode::SinglePass => HeadMode::SinglePass,
    };
    let sizes = head_sizes(tokens / recipe.device_count(), model);
    let (tokens, vocab) = (recipe.head.token_chunk, recipe.head.vocab_chunk);
    HeadSettings::within(HEAD_BYTES, mode, sizes, tokens, vocab)
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
    let (mut params, stored) = first_weights(recipe, &inputs.model)?;
    watch.busy("starting the device");
    let device = Device::mesh(&recipe.mesh_axes(), sharding_rules(recipe))?;
    check_offload(resolved, &device)?;
    say_what_runs(resolved, &inputs, &device, watch);

    let compute = match recipe.compute_dtype {
        ComputeDtype::Bf16 => DType::BF16,
        ComputeDtype::F32 | ComputeDtype::Auto => DType::F32,
    };
    let Inputs {
        model,
        learns,
        data,
        stop_ids,
        ..
    } = inputs;
    params.extend(learns.adapters);
    let rows = recipe.packing.rows_per_micro_batch;
    let width = recipe.packing.row_tokens;
    let config = EngineConfig {
        compute,
        fp8_history: recipe.fp8_history,
        policy: policy(recipe, &model, compute),
        head: head_settings(recipe, rows * width, &model),
        temperature: recipe.rollout.temperature,
        optimizer: optimizer(recipe),
        max_inflight: recipe.optimizer.max_inflight,
        max_shapes: MAX_SHAPES,
        group_norms: recipe.optimizer.group_norms.clone(),
        shard_over_data: shard_over_data(recipe),
        offload: offload(recipe),
        trains: learns.trains,
        router: learns.router,
        order: token_order(recipe),
    };
    let engine = Engine::new(
        &device.client,
        &device.mesh,
        &device.rules,
        model,
        config,
        &params,
    );
    let engine = engine.or_fail()?;
    drop(params);
    watch.busy("compiling the sampler");
    let adapter_scale = engine.trains().adapter_scale();
    let sampler = SamplerConfig {
        batch: sampler_rows(
            recipe,
            engine.model(),
            data.heldout.problems().len(),
            compute,
        ),
        max_prompt_tokens: recipe.rollout.max_prompt_tokens,
        max_new_tokens: recipe.rollout.max_new_tokens,
        tokens_per_dispatch: recipe.rollout.tokens_per_dispatch,
        compute,
        adapter_scale,
        routes: recipe.router.routes == Routes::Sampler,
        pad_id: stop_ids[0],
        stop_ids,
    };
    let layouts = engine.layouts();
    let sampler = Sampler::new(
        &device.client,
        &Rules::new(sampling_rules(recipe)),
        engine.model(),
        &layouts,
        sampler,
    )
    .or_fail()?
    .with_tokenizer(data.tokenizer.clone());
    let trainer = Trainer::new(engine, sampler, plan(recipe)?, data).or_refuse()?;
    Ok((trainer, stored))
}

fn first_weights(recipe: &Recipe, model: &ModelConfig) -> Result<StoredWeights, Failure> {
    match recipe.model.init {
        ModelInit::Random => Ok((init_params(model, recipe.seed).or_fail()?, None)),
        ModelInit::Pretrained => model_folder::weights(&recipe.model.path, model),
    }
}

fn say_what_runs(resolved: &Resolved, inputs: &Inputs, device: &Device, watch: &Watch) {
    let recipe = resolved.recipe();
    let model = &inputs.model;
    let why = resolved
        .origin("compute_dtype")
        .map_or_else(String::new, |it| format!(" ({it})"));
    watch.say(&format!("device   {}", device.describe()));
    watch.say(&format!("compute  {}{why}", recipe.compute_dtype));
    watch.say(&format!(
        "model    {} {}: {} parameters, {}, hidden size {}, vocabulary {}",
        recipe.model.path.display(),
        recipe.model.init,
        short_count(model.param_count()),
        counted(model.num_hidden_layers, "layer"),
        model.hidden_size,
        model.vocab_size,
    ));
    watch.say(&format!("learns   {}", inputs.learns.describe()));
    watch.say(&format!(
        "data     {}, {} held out, {}",
        counted(inputs.data.train.problems().len(), "problem"),
        inputs.data.heldout.problems().len(),
        counted(inputs.data.demonstrations.len(), "demonstration"),
    ));
    let mut phases = Vec::new();
    if recipe.warmup.steps > 0 {
        phases.push(format!(
            "{} of warm-up on {} each",
            recipe.warmup.steps,
            counted(recipe.warmup.batch_size, "demonstration")
        ));
    }
    if recipe.rl.steps > 0 {
        phases.push(format!(
            "{} of GRPO on {} x {} answers each, in {}",
            recipe.rl.steps,
            recipe.rl.prompts_per_step,
            recipe.rl.group_size,
            counted(recipe.rl.updates_per_step, "update"),
        ));
    }
    watch.say(&format!("steps    {}", phases.join(", then ")));
    watch.say(&format!(
        "rows     micro-batches of {} of {} tokens, as many as it takes",
        counted(recipe.packing.rows_per_micro_batch, "row"),
        recipe.packing.row_tokens
    ));
    let mut losses = Vec::new();
    if recipe.warmup.steps > 0 {
        losses.push("supervised");
    }
    if recipe.rl.steps > 0 {
        losses.push("policy");
    }
    watch.say(&format!(
        "compile  sampler, {} step, update, unless the cache has them",
        losses.join(" and ")
    ));
    watch.say(&format!("run      {}", recipe.run.dir.display()));
}

/// Keeps contractions for the backward pass where they are small, which saves a second forward pass.
fn policy(recipe: &Recipe, model: &ModelConfig, compute: DType) -> Policy {
    let tokens = recipe
        .packing
        .rows_per_micro_batch
        .saturating_mul(recipe.packing.row_tokens);
    let heads = model.num_attention_heads * (recipe.packing.row_tokens + 2 * model.head_dim);
    let kept = heads
        + 2 * model.num_key_value_heads * model.head_dim
        + 3 * model.hidden_size
        + 3 * model.intermediate_size;
    let bytes = tokens
        .saturating_mul(kept)
        .saturating_mul(model.num_hidden_layers * compute.bytes());
    if bytes <= SAVED_BYTES {
        Policy::keep_dots()
    } else {
        Policy::recompute()
    }
}

/// Rows of the sampler: all answers of a step, or equal parts of them, that the devices divide and whose cache is bounded.
fn sampler_rows(recipe: &Recipe, model: &ModelConfig, heldout: usize, compute: DType) -> usize {
    let devices = recipe.device_count();
    let answers = match recipe.rl.steps {
        0 => heldout,
        _ => recipe.rl.prompts_per_step * recipe.rl.group_size,
    };
    let slots = recipe.rollout.max_prompt_tokens + recipe.rollout.max_new_tokens;
    let row_bytes = 2
        * slots
        * model.num_hidden_layers
        * model.num_key_value_heads
        * model.head_dim
        * compute.bytes();
    let most = MOST_ROWS.min(CACHE_BYTES / row_bytes.max(1)).max(1);
    let parts = answers.div_ceil(most);
    answers.div_ceil(parts).next_multiple_of(devices)
}
