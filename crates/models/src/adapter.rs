//! LoRA: small matrices beside the weights of linear layers, which are trained in their place.
//!
//! A layer with the weight `path` gets `path_lora_a` `[L,in,R]` and `path_lora_b` `[L,R,out]`; the decoder adds
//! `alpha / R · (x·A)·B` to its product. Fresh adapters change nothing: `B` is zero.

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
    /// `R`: the width between the two matrices.
    pub rank: usize,
    /// The adapter's product is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Names of linear layers, such as `q_proj`.
    pub targets: Vec<String>,
}

impl Lora {
    /// What products of adapters are multiplied by.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }
}

/// The layer's name, where a parameter is the weight of a linear layer that can have an adapter: one matrix on disk.
///
/// Not those of experts, which are many in one; not routers and gates of one value.
fn host_name(entry: &Entry) -> Option<&str> {
    let name = entry.spec.path.rsplit('/').next()?;
    let piece = entry.pieces.first()?;
    let whole = piece.dims.len() == 2 && piece.height() == piece.dims[0];
    let linear = entry.leading == 1 && entry.transposed && name.contains("proj");
    (whole && linear).then_some(name)
}

impl ModelConfig {
    /// Names of the linear layers that can have adapters.
    pub fn adapter_targets(&self) -> Vec<String> {
        let entries = self.entries(&Naming::default());
        let mut names: Vec<String> = Vec::new();
        for name in entries.iter().filter_map(host_name) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    }

    /// The parameters of adapters, in a fixed order; all f32.
    ///
    /// # Errors
    /// [`Error::Adapter`] with everything that is wrong with the settings: a rank of 0 or above the smaller dimension of a
    /// target, an alpha that is not above 0, no targets, targets named twice or that the model does not have.
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
            let name = host_name(entry);
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
        problems.extend(self.target_problems(&lora.targets));
        problems.extend(self.rank_problem(lora));
        problems
    }

    fn target_problems(&self, targets: &[String]) -> Vec<AdapterProblem> {
        let known = self.adapter_targets();
        let list = known.join(", ");
        let mut problems = Vec::new();
        if targets.is_empty() {
            problems.push(format!("no targets are named; this model has {list}"));
        }
        for (i, target) in targets.iter().enumerate() {
            let before = targets[..i].iter().filter(|it| *it == target).count();
            if before == 1 {
                problems.push(format!("the target \"{target}\" is named more than once"));
            }
            if before == 0 && !known.contains(target) {
                problems.push(format!(
                    "the model has no linear layer \"{target}\" that can have an adapter; it has {list}"
                ));
            }
        }
        problems.into_iter().map(AdapterProblem::Targets).collect()
    }

    /// Beyond the smaller dimension of a weight an adapter holds more than the weight itself and can express no more.
    fn rank_problem(&self, lora: &Lora) -> Option<AdapterProblem> {
        let mut narrow: Vec<(String, usize)> = Vec::new();
        for entry in self.entries(&Naming::default()) {
            let Some(name) = host_name(&entry).map(str::to_owned) else {
                continue;
            };
            let smaller = entry.spec.dims[1].min(entry.spec.dims[2]);
            let known = narrow.iter().any(|(it, _)| *it == name);
            if smaller < lora.rank && lora.targets.contains(&name) && !known {
                narrow.push((name, smaller));
            }
        }
        let list = narrow.iter().map(|(name, n)| format!("{name} ({n})"));
        let list = list.collect::<Vec<_>>().join(", ");
        (!narrow.is_empty()).then(|| {
            AdapterProblem::Rank(format!(
                "the rank {} is above the smaller dimension of {list}: lower it, or leave such layers out of the targets",
                lora.rank
            ))
        })
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
}

impl fmt::Display for AdapterProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Rank(text) | Self::Alpha(text) | Self::Targets(text)) = self;
        f.write_str(text)
    }
}

/// The two matrices beside a weight, named on disk as PEFT names them.
fn pair(host: &Entry, rank: usize) -> [Entry; 2] {
    let [layers, from, to] = host.spec.dims[..] else {
        unreachable!("a linear layer of stacked layers has three dimensions")
    };
    let axes = &host.spec.axes;
    let limit = (from as f32).sqrt().recip();
    let matrix = |suffix: &str, part: &str, dims: [usize; 2], axes: [&str; 3], init| {
        let piece = |piece: &Piece| {
            let module = piece.name.trim_end_matches(".weight");
            Piece {
                name: format!("{ADAPTER_PREFIX}{module}.{part}.weight"),
                dims: vec![dims[1], dims[0]],
                rows: one_run(0..dims[1]),
            }
        };
        Entry {
            spec: ParamSpec {
                path: format!("{}_{suffix}", host.spec.path),
                dims: vec![layers, dims[0], dims[1]],
                dtype: host.spec.dtype,
                axes: axes.map(str::to_owned).to_vec(),
                init,
            },
            pieces: host.pieces.iter().map(piece).collect(),
            leading: 1,
            transposed: true,
        }
    };
    [
        // As PEFT begins: uniform with the variance of a layer's own weights.
        matrix(
            "lora_a",
            "lora_A",
            [from, rank],
            [&axes[0], &axes[1], "_"],
            Init::Uniform { limit },
        ),
        matrix(
            "lora_b",
            "lora_B",
            [rank, to],
            [&axes[0], "_", &axes[2]],
            Init::Zeros,
        ),
    ]
}
