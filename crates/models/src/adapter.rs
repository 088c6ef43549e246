//! LoRA: small matrices beside the weights of linear layers, which are trained in their place.
//!
//! A layer with the weight `path` gets `path_lora_a` `[L,in,R]` and `path_lora_b` `[L,R,out]`; the decoder adds
//! `alpha / R · (x·A)·B` to its product. Experts get `[L,X,in,R]` and `[L,X,R,out]`: two matrices each. Fresh adapters change
//! nothing: `B` is zero.

use std::fmt;

use ferrotune_nn::{Init, ParamSpec};

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::layout::{ADAPTER_PREFIX, Entry, Naming, Piece, one_run};

/// Which layers get adapters, and of what size.
///
/// # Source
/// Hu et al., "LoRA" (2021), §4.1.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// `R`: the width between the two matrices. Beyond the smaller dimension of a layer an adapter can express no more than the
    /// layer itself, but it may be as wide, as PEFT allows.
    pub rank: usize,
    /// The adapter's product is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Names of linear layers, such as `q_proj`.
    pub targets: Vec<String>,
    /// Whether the experts' layers of these names get adapters too, each expert its own.
    pub experts: bool,
}

impl Lora {
    /// What products of adapters are multiplied by.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }
}

/// The layer's name, where a parameter is the weight of linear layers that can have adapters: one matrix on disk for each, or
/// rows of one for each expert. Not routers and gates of one value.
fn host_name(entry: &Entry, experts: bool) -> Option<&str> {
    let name = entry.spec.path.rsplit('/').next()?;
    let piece = entry.pieces.first()?;
    let whole = piece.dims.len() == 2 && piece.height() == piece.dims[0];
    let leading = entry.leading == 1 || experts && entry.leading == 2;
    let linear = leading && entry.transposed && name.contains("proj");
    (whole && linear).then_some(name)
}

impl ModelConfig {
    /// Names of the linear layers that can have adapters; with `experts`, also of those that only experts have.
    pub fn adapter_targets(&self, experts: bool) -> Vec<String> {
        let entries = self.entries(&Naming::default());
        let mut names: Vec<String> = Vec::new();
        for name in entries.iter().filter_map(|it| host_name(it, experts)) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    }

    /// The parameters of adapters, in a fixed order; all f32.
    ///
    /// # Errors
    /// [`Error::Adapter`] with everything that is wrong with the settings: a rank of 0, an alpha that is not above 0, no targets,
    /// targets named twice or that the model does not have, experts in a model without such targets among theirs.
    pub fn adapter_params(&self, lora: &Lora) -> Result<Vec<ParamSpec>> {
        let entries = self.adapter_entries(lora, &Naming::default())?;
        Ok(entries.into_iter().map(|entry| entry.spec).collect())
    }

    pub(crate) fn adapter_entries(&self, lora: &Lora, naming: &Naming) -> Result<Vec<Entry>> {
        let problems = self.adapter_problems(lora);
        if !problems.is_empty() {
            return Err(Error::Adapter { problems });
        }
        let entries = self.entries(naming);
        let chosen = |entry: &&Entry| {
            let name = host_name(entry, lora.experts);
            name.is_some_and(|name| lora.targets.iter().any(|target| target == name))
        };
        let pairs = entries.iter().filter(chosen);
        Ok(pairs.flat_map(|host| pair(host, lora.rank)).collect())
    }

    /// Everything that is wrong with the settings, for this model.
    pub(crate) fn adapter_problems(&self, lora: &Lora) -> Vec<AdapterProblem> {
        let mut problems = Vec::new();
        if lora.rank == 0 {
            problems.push(AdapterProblem::Rank(
                "the rank must be at least 1".to_owned(),
            ));
        }
        if lora.alpha <= 0.0 || !lora.alpha.is_finite() {
            let text = format!("alpha must be above 0, found {}", lora.alpha);
            problems.push(AdapterProblem::Alpha(text));
        }
        problems.extend(self.target_problems(lora));
        problems
    }

    fn target_problems(&self, lora: &Lora) -> Vec<AdapterProblem> {
        let (targets, known) = (&lora.targets, self.adapter_targets(lora.experts));
        let mut problems = Vec::new();
        if targets.is_empty() {
            let list = known.join(", ");
            let text = format!("no targets are named; this model has {list}");
            problems.push(AdapterProblem::Targets(text));
        }
        for (i, target) in targets.iter().enumerate() {
            let before = targets[..i].iter().filter(|it| *it == target).count();
            if before == 1 {
                let text = format!("the target \"{target}\" is named more than once");
                problems.push(AdapterProblem::Targets(text));
            }
            if before == 0 && !known.contains(target) {
                problems.push(AdapterProblem::NoLayer {
                    target: target.clone(),
                    known: known.clone(),
                });
            }
        }
        problems.extend(self.expert_problem(lora));
        problems
    }

    fn expert_problem(&self, lora: &Lora) -> Option<AdapterProblem> {
        let named = |name: &&str| lora.targets.iter().any(|it| it == name);
        let problem = match self.experts {
            None => AdapterProblem::NoExperts,
            Some(_) if EXPERT_LAYERS.iter().any(named) => return None,
            Some(_) => AdapterProblem::Experts(format!(
                "no layer of the experts is among the targets; they have {}",
                EXPERT_LAYERS.join(", ")
            )),
        };
        lora.experts.then_some(problem)
    }
}

/// One thing that is wrong with the settings of adapters, by the setting to blame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterProblem {
    /// Of [`Lora::rank`].
    Rank(String),
    /// Of [`Lora::alpha`].
    Alpha(String),
    /// Of [`Lora::targets`].
    Targets(String),
    /// A target that the model does not have.
    NoLayer {
        /// Its name, one of [`Lora::targets`].
        target: String,
        /// Those that it has.
        known: Vec<String>,
    },
    /// Of [`Lora::experts`].
    Experts(String),
    /// [`Lora::experts`], in a model without experts.
    NoExperts,
}

impl fmt::Display for AdapterProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(text) | Self::Alpha(text) | Self::Targets(text) | Self::Experts(text) => {
                f.write_str(text)
            }
            Self::NoLayer { target, known } => write!(
                f,
                "the model has no linear layer \"{target}\" that can have an adapter; it has {}",
                known.join(", ")
            ),
            Self::NoExperts => f.write_str("the model has no experts to adapt"),
        }
    }
}

/// The layers of an expert.
const EXPERT_LAYERS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// The two matrices beside a weight, named on disk as PEFT names them: those of each expert by themselves.
fn pair(host: &Entry, rank: usize) -> [Entry; 2] {
    let (leading, sides) = host.spec.dims.split_at(host.leading);
    let (counted, axes) = host.spec.axes.split_at(host.leading);
    let limit = (sides[0] as f32).sqrt().recip();
    let matrix = |suffix: &str, part: &str, dims: [usize; 2], axes: [&str; 2], init| {
        let piece = |piece: &Piece| {
            let module = piece.name.trim_end_matches(".weight");
            Piece {
                name: format!("{ADAPTER_PREFIX}{module}.{part}.weight"),
                dims: vec![dims[1], dims[0]],
                rows: one_run(0..dims[1]),
            }
        };
        let axes = axes.map(str::to_owned);
        Entry {
            spec: ParamSpec {
                path: format!("{}_{suffix}", host.spec.path),
                dims: [leading, &dims].concat(),
                dtype: host.spec.dtype,
                axes: [counted, &axes].concat(),
                init,
            },
            pieces: host.pieces.iter().map(piece).collect(),
            leading: host.leading,
            transposed: true,
        }
    };
    // As PEFT begins: uniform with the variance of a layer's own weights.
    let uniform = Init::Uniform { limit };
    [
        matrix(
            "lora_a",
            "lora_A",
            [sides[0], rank],
            [&axes[0], "_"],
            uniform,
        ),
        matrix(
            "lora_b",
            "lora_B",
            [rank, sides[1]],
            ["_", &axes[1]],
            Init::Zeros,
        ),
    ]
}
