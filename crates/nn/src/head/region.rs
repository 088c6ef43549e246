//! Every device scores its own tokens: the region, and what of the weights it has to gather.

use ferrotune_graph::{Mesh, Sharding, Tensor};

use super::projection::{Projection, Split, VocabAxis};
use super::{Head, TokenScores};

/// What one device has to do.
pub(super) struct Region {
    /// Its hidden states `[N,D]`.
    pub(super) x: Tensor,
    /// What else it has of its tokens, `[N]` each: targets, mask, perhaps more.
    pub(super) tokens: Vec<Tensor>,
    /// Its part of the weights.
    pub(super) projection: Projection,
    /// Mesh axes along which devices have other tokens.
    pub(super) token_axes: Vec<String>,
}

/// `[B,T,…]` → `[N,…]`.
fn flat(t: &Tensor) -> Tensor {
    let dims = t.dims();
    t.reshape(&[&[dims[0] * dims[1]], &dims[2..]].concat())
}

/// Where the head's tensors lie on a mesh.
pub(super) struct Placement {
    pub(super) axes: Vec<String>,
    /// Of `[B,T]`.
    pub(super) tokens: Sharding,
    /// Of `[B,T,D]`: as the tokens.
    pub(super) x: Sharding,
    pub(super) weight: Sharding,
    pub(super) split: Split,
}

impl Head {
    /// By the rules of the graph; `None` where tensors are whole on each device.
    #[track_caller]
    pub(super) fn placement(&self, x: &Tensor) -> Option<Placement> {
        let g = x.graph();
        let mesh: Mesh = g.mesh();
        if g.is_local() {
            return None;
        }
        let axes = g.automatic_axes();
        let x_sharding = g.placement("head/x", &x.dims(), &["batch", "tokens", "_"]);
        let logical = if self.tied {
            ["vocab", "embed"]
        } else {
            ["embed", "vocab"]
        };
        let weight = g.placement("head/weight", &self.weight.dims(), &logical);
        let (width, vocab) = if self.tied {
            (&weight.dims[1], &weight.dims[0])
        } else {
            (&weight.dims[0], &weight.dims[1])
        };
        let by_tokens = |axis: &String| x_sharding.dims.iter().flatten().any(|a| a == axis);
        let vocab = vocab.iter().map(|axis| VocabAxis {
            name: axis.clone(),
            size: mesh.axis_size(axis).unwrap_or(1),
            gathered: by_tokens(axis),
        });
        Some(Placement {
            axes,
            tokens: Sharding {
                dims: x_sharding.dims[..2].to_vec(),
            },
            split: Split {
                width: width.clone(),
                vocab: vocab.collect(),
            },
            x: x_sharding,
            weight,
        })
    }

    /// Runs `run` on every device for its own tokens, of which `tokens` (`[B,T]` each) says more.
    #[track_caller]
    pub(super) fn in_region(
        &self,
        x: &Tensor,
        tokens: &[Tensor],
        results: Results,
        run: impl FnOnce(&Region) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let placement = self.placement(x);
        let split = placement.as_ref().map(|p| p.split.clone());
        let token_axes: Vec<String> = placement
            .iter()
            .flat_map(|p| p.tokens.dims.iter().flatten().cloned())
            .collect();
        let on_device = |parts: &[Tensor]| {
            let region = Region {
                projection: Projection {
                    weight: parts[1].clone(),
                    tied: self.tied,
                    compute: x.dtype(),
                    split: split.unwrap_or_default(),
                },
                x: flat(&parts[0]),
                tokens: parts[2..].iter().map(flat).collect(),
                token_axes,
            };
            let found = run(&region);
            match results {
                Results::Tokens(_) => {
                    let shape = parts[2].dims();
                    found.iter().map(|t| t.reshape(&shape)).collect()
                }
                Results::Scalars(_) => found,
            }
        };
        let tensors = [&[x.clone(), self.weight.clone()], tokens].concat();
        let Some(p) = placement else {
            return on_device(&tensors);
        };
        let shardings = [p.x, p.weight].into_iter();
        let shardings = shardings.chain(tokens.iter().map(|_| p.tokens.clone()));
        let inputs: Vec<(&Tensor, Sharding)> = tensors.iter().zip(shardings).collect();
        let axes: Vec<&str> = p.axes.iter().map(String::as_str).collect();
        let outputs = match results {
            Results::Tokens(count) => vec![p.tokens; count],
            Results::Scalars(count) => vec![Sharding::replicated(0); count],
        };
        x.graph().manual(&axes, &inputs, &outputs, on_device)
    }

    /// The same for scores.
    #[track_caller]
    pub(super) fn scores_in_region(
        &self,
        x: &Tensor,
        targets: &Tensor,
        mask: &Tensor,
        score: impl FnOnce(&Self, &Region) -> TokenScores,
    ) -> TokenScores {
        let tokens = [targets.clone(), mask.clone()];
        let found = self.in_region(x, &tokens, Results::Tokens(3), |region| {
            let scores = score(self, region);
            vec![scores.logprob, scores.entropy, scores.hit]
        });
        let [logprob, entropy, hit] =
            <[Tensor; 3]>::try_from(found).expect("three scores of each token");
        TokenScores {
            logprob,
            entropy,
            hit,
        }
    }
}

/// What a device answers with, and how many of them.
pub(super) enum Results {
    /// `[N]`, which are put back into their places.
    Tokens(usize),
    /// Scalars, equal on all devices.
    Scalars(usize),
}
