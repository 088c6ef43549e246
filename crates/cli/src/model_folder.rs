//! A model folder as commands read it: configuration, tokenizer, weights.

use std::path::Path;

use anyhow::bail;
use ferrotune_engine::{
    Engine, EngineConfig, HeadMode, HeadSettings, HeadSizes, Offload, Optimizer, OrderKind,
    RouterSettings, ShardOverData, Trains,
};
use ferrotune_graph::{HostArray, Policy};
use ferrotune_models::{ModelConfig, load, load_adapter};
use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::DType;
use ferrotune_program::{Group, Layout, Leaf};

use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::terminal::say;

/// Weights in the order of the model's parameters, and the type that they are stored in, if it is one.
pub(crate) type StoredWeights = (Vec<(ParamSpec, HostArray)>, Option<DType>);

/// The configuration of a model folder.
pub(crate) fn config(dir: &Path) -> Result<ModelConfig, Failure> {
    check(dir, "the model", "config.json").or_refuse()?;
    ModelConfig::load(dir).or_refuse()
}

/// Refuses what is not a folder with the file that makes it one of `what`.
pub(crate) fn check(dir: &Path, what: &str, file: &str) -> Result<(), anyhow::Error> {
    let found = dir
        .metadata()
        .map_err(|error| crate::input_file::refusal(dir, what, &error))?;
    if !found.is_dir() {
        bail!("{} is a file: name the folder of {what}", dir.display());
    }
    if !dir.join(file).exists() {
        bail!(
            "{} holds no {file}: name a folder of {what} as Hugging Face writes it",
            dir.display()
        );
    }
    Ok(())
}

/// The weights of a folder.
pub(crate) fn weights(dir: &Path, config: &ModelConfig) -> Result<StoredWeights, Failure> {
    let weights = load(dir, config).or_refuse()?;
    for name in &weights.unused {
        say(format_args!(
            "note: {} has {name}, which the model does not use",
            dir.display()
        ));
    }
    Ok((weights.params, weights.stored))
}

/// The weights of a folder with those of adapters behind them, if there are any, and which of them are the adapters.
pub(crate) fn with_adapter(
    dir: &Path,
    adapter: Option<&Path>,
    config: &ModelConfig,
) -> Result<(Vec<(ParamSpec, HostArray)>, Trains), Failure> {
    // Adapters are small: what is wrong with them is said before the weights are read.
    let read = |dir: &Path| {
        check(dir, "the adapters", "adapter_config.json")?;
        load_adapter(dir, config).map_err(anyhow::Error::from)
    };
    let adapter = adapter.map(read).transpose().or_refuse()?;
    let (mut params, _) = weights(dir, config)?;
    let Some(adapter) = adapter else {
        return Ok((params, Trains::All));
    };
    for note in &adapter.notes {
        say(format_args!("note: {note}"));
    }
    if let Some(warning) = adapter.other_base(dir) {
        say(format_args!("warning: {warning}"));
    }
    params.extend(adapter.params);
    Ok((params, Trains::Adapters(adapter.lora)))
}

/// Puts parameters on a device, in one group.
pub(crate) fn upload(device: &Device, params: &[(ParamSpec, HostArray)]) -> Result<Group, Failure> {
    let leaf = |spec: &ParamSpec| Leaf {
        name: spec.path.clone(),
        dtype: spec.dtype,
        dims: spec.dims.clone(),
        axes: spec.axes.clone(),
    };
    let leaves: Vec<Leaf> = params.iter().map(|(spec, _)| leaf(spec)).collect();
    let layout = Layout::new(&device.mesh, &device.rules, &leaves).or_fail()?;
    let host: Vec<HostArray> = params.iter().map(|(_, array)| array.clone()).collect();
    Group::upload(&device.client, &layout, &host).or_fail()
}

/// Bytes that a chunk of the log-prob head may take: few enough to stay small beside any model.
pub(crate) const HEAD_BYTES: usize = 32 << 20;

/// Chunks of the log-prob head for so many tokens on each device.
pub(crate) fn head(mode: HeadMode, tokens: usize, model: &ModelConfig) -> HeadSettings {
    HeadSettings::within(HEAD_BYTES, mode, head_sizes(tokens, model), None, None)
}

/// What the head of a model has to do for so many tokens.
pub(crate) fn head_sizes(tokens: usize, model: &ModelConfig) -> HeadSizes {
    HeadSizes {
        tokens,
        width: model.hidden_size,
        vocab: model.vocab_size,
    }
}

/// An engine that scores and differentiates, and is never updated.
pub(crate) fn scoring_engine(
    device: &Device,
    model: ModelConfig,
    (params, trains): (&[(ParamSpec, HostArray)], Trains),
    compute: DType,
    (head, temperature): (HeadSettings, f64),
) -> Result<Engine, Failure> {
    let config = EngineConfig {
        compute,
        fp8_history: 0,
        policy: Policy::recompute(),
        head,
        temperature,
        optimizer: Optimizer::default(),
        max_inflight: 2,
        max_shapes: 8,
        group_norms: Vec::new(),
        trains,
        shard_over_data: ShardOverData::Nothing,
        offload: Offload::Nothing,
        router: RouterSettings::default(),
        order: OrderKind::default(),
    };
    Engine::new(
        &device.client,
        &device.mesh,
        &device.rules,
        model,
        config,
        params,
    )
    .or_fail()
}
