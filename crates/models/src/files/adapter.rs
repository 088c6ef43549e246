//! Adapters in the layout of PEFT: `adapter_config.json` and `adapter_model.safetensors`.

use std::io::Write;
use std::path::Path;

use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::HostArray;
use serde_json::{Map, Value, json};

use super::atomic;
use super::load::{compare_pieces, read_all};
use super::mapped::MappedTensors;
use super::save::{arrays_by_path, write_arrays};
use super::stream::HfLayout;
use crate::adapter::{AdapterProblem, Lora};
use crate::config::ModelConfig;
use crate::error::{Error, Result, WeightProblem};
use crate::layout::Naming;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// Adapters read from a folder. Experts have them where the file has tensors of single experts, `….experts.N.gate_proj.…`, which
/// is how PEFT names them where every expert is a layer of its own.
#[derive(Debug)]
#[non_exhaustive]
pub struct AdapterWeights {
    /// What they are.
    pub lora: Lora,
    /// One f32 array for each of [`ModelConfig::adapter_params`], in that order.
    pub params: Vec<(ParamSpec, HostArray)>,
    /// The model that they were made for, as the file names it: a folder, or a name.
    pub base: Option<String>,
    /// Settings of the file that have no effect here: to be shown to the user once.
    pub notes: Vec<String>,
}

/// Writes adapters to the folder `dir`, in f32: `params` are the arrays of [`ModelConfig::adapter_params`], in any order. `base` is
/// the folder or the name of the model that they belong to.
///
/// # Errors
/// [`Error::Adapter`], [`Error::Io`]; [`Error::Arrays`] with every array that is missing, extra, of the wrong shape or number type, or
/// not finite.
pub fn save_adapter(
    dir: impl AsRef<Path>,
    config: &ModelConfig,
    lora: &Lora,
    params: &[(ParamSpec, HostArray)],
    base: &str,
) -> Result<()> {
    let dir = dir.as_ref();
    let path = dir.join(WEIGHTS);
    let layout = HfLayout::of_adapters(config, lora)?;
    let arrays = arrays_by_path(&path, layout.entries(), params)?;
    std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    write_arrays(&path, &layout, &arrays, true)?;
    let described = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": lora.targets,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
    });
    atomic::write(&dir.join(CONFIG), |file| writeln!(file, "{described:#}"))
}

/// Reads the adapters of the folder `dir` for a model.
///
/// # Errors
/// [`Error::Io`], [`Error::Json`], [`Error::Corrupt`]; [`Error::AdapterFile`] with everything in `adapter_config.json` that the model
/// cannot have, or that would change the numbers and is not supported; [`Error::AdapterWeights`] with every tensor that is missing, extra, of the wrong shape or number
/// type, or not finite.
pub fn load_adapter(dir: impl AsRef<Path>, config: &ModelConfig) -> Result<AdapterWeights> {
    let dir = dir.as_ref();
    let path = dir.join(CONFIG);
    let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let value: Value = serde_json::from_str(&text).map_err(|e| Error::Json {
        origin: path.display().to_string(),
        message: e.to_string(),
    })?;
    let weights = dir.join(WEIGHTS);
    let tensors = MappedTensors::open_file(&weights);
    // The same names stand for the layers of experts or not, as the model had them when the adapters were made.
    let of_expert = |(name, _): (&str, _)| name.contains(".mlp.experts.");
    let experts = tensors.as_ref().is_ok_and(|it| it.iter().any(of_expert));
    let described = describe(&value, config, experts);
    let (lora, notes) = described.map_err(|problems| Error::AdapterFile {
        path: path.clone(),
        problems,
    })?;
    let tensors = tensors?;
    let refuse = |problems| Error::AdapterWeights {
        path: weights.clone(),
        problems,
    };
    let naming = Naming::of_adapter(tensors.names());
    let entries = config.adapter_entries(&lora, &naming)?;
    let (known, mut problems) = compare_pieces(&tensors, &entries);
    let extra = tensors.iter().filter(|(name, _)| !known.contains(name));
    problems.extend(extra.map(|(name, info)| WeightProblem::Extra {
        name: name.to_owned(),
        found: info.shape.clone(),
    }));
    if !problems.is_empty() {
        return Err(refuse(problems));
    }
    Ok(AdapterWeights {
        lora,
        params: read_all(&tensors, &entries, refuse)?,
        base: base(&value),
        notes,
    })
}

/// The model that adapters were made for.
fn base(described: &Value) -> Option<String> {
    let name = described.get("base_model_name_or_path")?.as_str()?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Whether a value says nothing: absent, null, false, zero, or empty.
fn is_idle(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => true,
        Some(Value::Number(n)) => n.as_f64() == Some(0.0),
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Bool(true)) => false,
    }
}

/// Settings that would change the numbers, and that are not built here.
const UNSUPPORTED: [&str; 15] = [
    "use_rslora",
    "use_dora",
    "fan_in_fan_out",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layers_to_transform",
    "exclude_modules",
    "target_parameters",
    "trainable_token_indices",
    "lora_bias",
    "layer_replication",
    "use_qalora",
    "use_bdlora",
    "alora_invocation_tokens",
];

/// What `adapter_config.json` describes, and what of it has no effect.
fn describe(
    value: &Value,
    config: &ModelConfig,
    experts: bool,
) -> Result<(Lora, Vec<String>), Vec<String>> {
    let Value::Object(object) = value else {
        return Err(vec![format!("it must be a JSON object, found {value}")]);
    };
    let mut problems = Vec::new();
    let kind = object.get("peft_type");
    if kind.and_then(Value::as_str) != Some("LORA") {
        let found = kind.unwrap_or(&Value::Null);
        problems.push(format!("peft_type must be \"LORA\", found {found}"));
    }
    let bias = object.get("bias");
    if !is_idle(bias) && bias.and_then(Value::as_str) != Some("none") {
        problems.push(format!(
            "bias {} is not supported, only \"none\"",
            bias.unwrap_or(&Value::Null)
        ));
    }
    for key in UNSUPPORTED
        .into_iter()
        .filter(|key| !is_idle(object.get(*key)))
    {
        let why = match key {
            "target_parameters" => {
                ": adapters of experts are read one by one, not of all experts in one tensor"
            }
            _ => "",
        };
        problems.push(format!("{key} {} is not supported{why}", object[key]));
    }
    let rank = object
        .get("r")
        .and_then(Value::as_u64)
        .filter(|r| (1..1 << 20).contains(r));
    if rank.is_none() {
        problems.push("r must be a whole number above 0".to_owned());
    }
    let alpha = object
        .get("lora_alpha")
        .and_then(Value::as_f64)
        .filter(|a| *a > 0.0);
    if alpha.is_none() {
        problems.push("lora_alpha must be a number above 0".to_owned());
    }
    let targets = read_targets(object, config, experts);
    if let Err(problem) = &targets {
        problems.push(problem.clone());
    }
    let (Some(rank), Some(alpha), Ok(targets)) = (rank, alpha, targets) else {
        return Err(problems);
    };
    let dropout = object
        .get("lora_dropout")
        .filter(|rate| !is_idle(Some(rate)));
    let note =
        |rate| format!("lora_dropout {rate} has no effect: adapters are trained without dropout");
    let lora = Lora {
        rank: rank as usize,
        alpha,
        targets,
        experts,
    };
    let unfit = config.adapter_problems(&lora).into_iter();
    problems.extend(unfit.map(|problem| {
        let key = match problem {
            AdapterProblem::Rank(_) => "r",
            AdapterProblem::Alpha(_) => "lora_alpha",
            _ => "target_modules",
        };
        format!("{key}: {problem}")
    }));
    if problems.is_empty() {
        Ok((lora, dropout.map(note).into_iter().collect()))
    } else {
        Err(problems)
    }
}

fn read_targets(
    object: &Map<String, Value>,
    config: &ModelConfig,
    experts: bool,
) -> Result<Vec<String>, String> {
    match object.get("target_modules") {
        Some(Value::String(all)) if all == "all-linear" => Ok(config.adapter_targets(experts)),
        Some(Value::Array(list)) => {
            let names = list.iter().map(|name| name.as_str().map(str::to_owned));
            names
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| "target_modules must hold texts".to_owned())
        }
        other => Err(format!(
            "target_modules must be a list of names of layers or \"all-linear\", found {}",
            other.unwrap_or(&Value::Null)
        )),
    }
}
