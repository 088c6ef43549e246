//! The groups of arrays that go in and out of the programs: names, types, placement.
//!
//! Letters: `B` rows, `P` prompt columns, `S` cache slots, `C` columns per dispatch, `L` layers, `K` key heads, `E` head
//! size.

use ferrotune_graph::{DType, PlacementError, Rules};
use ferrotune_models::ModelConfig;
use ferrotune_program::{Layout, Leaf};

use crate::config::SamplerConfig;

/// The groups of arrays that go in and out.
#[derive(Clone, Debug)]
pub(crate) struct Layouts {
    /// The model's parameters, as the trainer holds them.
    pub(crate) weights: Layout,
    /// What was asked, in the order of [`Asked`]; read only.
    pub(crate) requests: Layout,
    /// Keys and values, `[L,B,K,S,E]`.
    pub(crate) cache: Layout,
    /// The token to read next s32 `[B,1]`, number of tokens generated s32, rows that have finished boolean `[B]`.
    pub(crate) state: Layout,
    /// Tokens s32 (−1 where a row has finished), log-probs and raw log-probs f32; all `[B,C]`.
    pub(crate) emitted: Layout,
}

impl Layouts {
    /// Places the groups on the mesh of the weights; `rules` split rows only.
    pub(crate) fn new(
        rules: &Rules,
        model: &ModelConfig,
        weights: &Layout,
        config: &SamplerConfig,
    ) -> Result<Self, PlacementError> {
        let (b, p, c) = (config.batch, config.prompt_width(), config.columns());
        let (l, k, e) = (
            model.num_hidden_layers,
            model.num_key_value_heads,
            model.head_dim,
        );
        let requests = [
            by_row("prompt", DType::S32, &[b, p]),
            by_row("start", DType::S32, &[b]),
            by_row("limit", DType::S32, &[b]),
            by_row("seed", DType::U32, &[b, 2]),
            by_row("greedy", DType::Pred, &[b]),
            by_row("inverse_temperature", DType::F32, &[b]),
        ];
        let slots = [l, b, k, config.slots(), e];
        let cache = ["keys", "values"]
            .map(|name| Leaf::new(name, config.compute, &slots, &["_", "batch", "_", "_", "_"]));
        let state = [
            by_row("token", DType::S32, &[b, 1]),
            by_row("generated", DType::S32, &[]),
            by_row("done", DType::Pred, &[b]),
        ];
        let emitted = [
            by_row("tokens", DType::S32, &[b, c]),
            by_row("logprobs", DType::F32, &[b, c]),
            by_row("raw_logprobs", DType::F32, &[b, c]),
        ];
        let place = |leaves: &[Leaf]| Layout::new(weights.mesh(), rules, leaves);
        Ok(Self {
            weights: weights.clone(),
            requests: place(&requests)?,
            cache: place(&cache)?,
            state: place(&state)?,
            emitted: place(&emitted)?,
        })
    }
}

/// An array whose first dimension, if it has one, is the rows.
fn by_row(name: &str, dtype: DType, dims: &[usize]) -> Leaf {
    let axes: Vec<&str> = (0..dims.len())
        .map(|i| if i == 0 { "batch" } else { "_" })
        .collect();
    Leaf::new(name, dtype, dims, &axes)
}
