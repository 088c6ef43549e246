//! From parameters and rows to per-token log-probabilities and entropies.

use ferrotune_graph::Tensor;
use ferrotune_models::{Decoder, ModelConfig};
use ferrotune_nn::{Params, TokenScores};

use crate::batch::RowTensors;
use crate::engine::EngineConfig;

/// Scores every token of the rows under the model, f32 `[B,T]`, at the token's own place.
///
/// The model's output at place t − 1 predicts the token at t. The first token of a document is predicted by nothing: it
/// and padding score 0, and no gradient passes there.
pub(crate) fn scores(
    model: &ModelConfig,
    config: &EngineConfig,
    params: &Params,
    rows: &RowTensors,
) -> TokenScores {
    let decoder = Decoder {
        config: model,
        params,
        compute: config.compute,
        policy: config.policy.clone(),
    };
    let hidden = decoder.hidden(&rows.token_ids, &rows.sequence);
    let width = rows.token_ids.dim(1);
    let targets = rows.token_ids.slice(1, 1, width).pad(1, 0, 1, 0.0);
    let g = hidden.graph().clone();
    let head = decoder.head(config.temperature, config.token_chunk);
    let ahead = g.scope("head", || head.score(&hidden, &targets));
    let first = rows
        .sequence
        .positions
        .eq(&g.scalar(0.0, rows.sequence.positions.dtype()));
    let padding = rows
        .sequence
        .segment_ids
        .eq(&g.scalar(0.0, rows.sequence.segment_ids.dtype()));
    let unpredicted = first.or(&padding);
    let place = |x: &Tensor| {
        let own = x.slice(1, 0, width - 1).pad(1, 1, 0, 0.0);
        unpredicted
            .select(&own.scalar_like(0.0), &own)
            .shard(&["batch", "tokens"])
    };
    TokenScores {
        logprob: place(&ahead.logprob),
        entropy: place(&ahead.entropy),
    }
}
