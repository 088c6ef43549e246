//! Every device scores its own tokens: the region, and what of the weights it has to gather.

use ferrotune_graph::{DType, Mesh, Sharding, Tensor};

use super::projection::{Projection, Split, VocabAxis};
use super::{Head, TokenScores};

/// The tokens of one device.
pub(super) struct Tokens {
    /// Hidden states `[N,D]`.
    pub(super) x: Tensor,
    /// s32 `[N]`.
    pub(super) targets: Tensor,
    /// Boolean `[N]`.
    pub(super) mask: Tensor,
}

impl Tokens {
    pub(super) fn count(&self) -> usize {
        self.targets.dim(0)
    }

    /// `[B,T,…]` → `[N,…]`.
    pub(super) fn flat(t: &Tensor) -> Tensor {
        let dims = t.dims();
        t.reshape(&[&[dims[0] * dims[1]], &dims[2..]].concat())
    }
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

impl Placement {
    /// Mesh axes that split tokens.
    pub(super) fn token_axes(&self) -> Vec<&str> {
        let axes = self.tokens.dims.iter().flatten();
        axes.map(String::as_str).collect()
    }
}

impl Head {
    /// By the rules of the graph; `None` on one device.
    #[track_caller]
    pub(super) fn placement(&self, x: &Tensor) -> Option<Placement> {
        let g = x.graph();
        let mesh: Mesh = g.mesh();
        if mesh.device_count() == 1 {
            return None;
        }
        let axes: Vec<String> = mesh.axes().iter().map(|(name, _)| name.clone()).collect();
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

    /// Runs `score` on every device for its own tokens.
    #[track_caller]
    pub(super) fn by_region(
        &self,
        x: &Tensor,
        targets: &Tensor,
        mask: &Tensor,
        score: impl FnOnce(&Self, &Projection, &Tokens) -> TokenScores,
    ) -> TokenScores {
        let (g, compute) = (x.graph().clone(), x.dtype());
        let placement = self.placement(x);
        let run = |parts: &[Tensor]| {
            let projection = Projection {
                weight: parts[1].clone(),
                tied: self.tied,
                compute,
                split: placement
                    .as_ref()
                    .map_or(Split::default(), |p| p.split.clone()),
            };
            let tokens = Tokens {
                x: Tokens::flat(&parts[0]),
                targets: Tokens::flat(&parts[2]),
                mask: Tokens::flat(&parts[3]),
            };
            let scores = score(self, &projection, &tokens);
            let shape = parts[2].dims();
            [scores.logprob, scores.entropy, scores.hit]
                .iter()
                .map(|t| t.reshape(&shape))
                .collect()
        };
        let tensors = [x, &self.weight, targets, mask].map(Clone::clone);
        let found: Vec<Tensor> = match &placement {
            None => run(&tensors),
            Some(p) => {
                let shardings = [&p.x, &p.weight, &p.tokens, &p.tokens];
                let inputs: Vec<(&Tensor, Sharding)> =
                    tensors.iter().zip(shardings.map(Clone::clone)).collect();
                let axes: Vec<&str> = p.axes.iter().map(String::as_str).collect();
                let outputs = vec![p.tokens.clone(); 3];
                g.manual(&axes, &inputs, &outputs, run)
            }
        };
        debug_assert_eq!(found[2].dtype(), DType::Pred);
        let [logprob, entropy, hit] =
            <[Tensor; 3]>::try_from(found).expect("three scores of each token");
        TokenScores {
            logprob,
            entropy,
            hit,
        }
    }
}
