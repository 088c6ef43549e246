//! A model folder as commands read it: configuration, tokenizer, weights.

use std::path::Path;

use ferrotune_engine::{AdamW, Engine, EngineConfig};
use ferrotune_graph::{HostArray, Policy};
use ferrotune_models::{ModelConfig, load};
use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::DType;

use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::terminal::say;

/// Weights in the order of the model's parameters, and the type that they are stored in, if it is one.
pub(crate) type StoredWeights = (Vec<(ParamSpec, HostArray)>, Option<DType>);

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

/// Tokens of a row that the log-prob head scores at a time: few enough that their logits stay small beside the model.
pub(crate) fn token_chunk(rows: usize, width: usize, vocab_size: usize) -> usize {
    /// 16 MiB of f32.
    const LOGITS: usize = 1 << 22;
    let fitting = LOGITS / rows.saturating_mul(vocab_size).max(1);
    fitting.clamp(16, width.max(16)).min(width)
}

/// An engine that scores and differentiates, and is never updated.
pub(crate) fn scoring_engine(
    device: &Device,
    model: ModelConfig,
    params: &[(ParamSpec, HostArray)],
    compute: DType,
    token_chunk: usize,
) -> Result<Engine, Failure> {
    let config = EngineConfig {
        compute,
        policy: Policy::recompute(),
        token_chunk,
        temperature: 1.0,
        adamw: AdamW {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
        },
        max_grad_norm: f64::INFINITY,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_never_empty_nor_longer_than_a_row() {
        assert_eq!(token_chunk(4, 256, 272), 256);
        assert_eq!(token_chunk(1, 32_768, 151_936), 27);
        assert_eq!(token_chunk(64, 4096, 151_936), 16);
        assert_eq!(token_chunk(64, 3, 151_936), 3);
    }
}
