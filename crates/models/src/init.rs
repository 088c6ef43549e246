//! Fresh parameters, the same for the same seed on every machine and with any set of other parameters.
//!
//! Each parameter has its own random stream, named by its path, so adding or reordering parameters changes none of the others.

use ferrotune_nn::{Init, ParamSpec};
use ferrotune_pjrt::HostArray;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::adapter::Lora;
use crate::config::ModelConfig;
use crate::error::Result;
use crate::memory;

/// Fresh f32 arrays for every parameter of the model: normal matrices, norms of one.
///
/// # Errors
/// [`Error::Memory`](crate::Error::Memory) if there is no room for a parameter.
pub fn init_params(config: &ModelConfig, seed: u64) -> Result<Vec<(ParamSpec, HostArray)>> {
    fresh(config.params(), seed)
}

/// Fresh f32 arrays for the parameters of adapters, which change nothing yet.
///
/// # Errors
/// [`Error::Adapter`](crate::Error::Adapter) for settings that do not fit the model, [`Error::Memory`](crate::Error::Memory).
pub fn init_adapter(
    config: &ModelConfig,
    lora: &Lora,
    seed: u64,
) -> Result<Vec<(ParamSpec, HostArray)>> {
    fresh(config.adapter_params(lora)?, seed)
}

fn fresh(specs: Vec<ParamSpec>, seed: u64) -> Result<Vec<(ParamSpec, HostArray)>> {
    let one = |spec: ParamSpec| {
        let array = init_param(&spec, seed)?;
        Ok((spec, array))
    };
    specs.into_iter().map(one).collect()
}

fn init_param(spec: &ParamSpec, seed: u64) -> Result<HostArray> {
    let mut bytes = memory::zeros(spec)?;
    let (values, _) = bytes.as_chunks_mut();
    match spec.init {
        Init::Zeros => {}
        Init::Ones => values.fill(1f32.to_ne_bytes()),
        Init::Uniform { limit } => {
            let mut rng = stream(spec, seed);
            for slot in values {
                let value = f64::from(limit) * (2.0 * uniform(&mut rng) - 1.0);
                *slot = (value as f32).to_ne_bytes();
            }
        }
        Init::LogUniform { low, high } => {
            let mut rng = stream(spec, seed);
            for slot in values {
                let value = low + (high - low) * uniform(&mut rng) as f32;
                *slot = value.ln().to_ne_bytes();
            }
        }
        Init::Normal { std } => {
            let mut rng = stream(spec, seed);
            for pair in values.chunks_mut(2) {
                for (slot, value) in pair.iter_mut().zip(normal_pair(&mut rng)) {
                    *slot = ((value * f64::from(std)) as f32).to_ne_bytes();
                }
            }
        }
    }
    Ok(memory::array(spec, bytes))
}

fn stream(spec: &ParamSpec, seed: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(fnv1a(&spec.path));
    rng
}

/// A uniform value between 0 and 1: the middle of a step of 2^-32, so that it is neither.
fn uniform(rng: &mut impl Rng) -> f64 {
    (f64::from(rng.next_u32()) + 0.5) / 4_294_967_296.0
}

/// Two standard normal values by the Box-Muller transform: `sqrt(-2 ln u) cos(2πv)` and `… sin(2πv)` for uniform `u`, `v`.
fn normal_pair(rng: &mut impl Rng) -> [f64; 2] {
    let radius = (-2.0 * uniform(rng).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * uniform(rng)).sin_cos();
    [radius * cos, radius * sin]
}

/// FNV-1a: a fixed hash of a path, unlike the standard library's, which may change.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
