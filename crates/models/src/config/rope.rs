//! The rotary settings of `config.json`, in the old and in the new spelling, and the frequencies that follow from them.
//!
//! Old: `rope_theta` and `rope_scaling` at the top. New: `rope_parameters` with both in it.
//!
//! Rows hold documents of many lengths, so frequencies must not depend on the length of what is read. `dynamic` is refused. For
//! `longrope` transformers takes the short factors for texts up to the length of the first training and the long ones for all of
//! a longer text, which while a text grows would turn what is already cached: here the short ones are read, and no document may
//! be longer, see [`ModelConfig::longest`](super::ModelConfig::longest).
//!
//! Source of every formula: `modeling_rope_utils.py` in transformers.

mod read;

use std::f64::consts::TAU;

pub(crate) use self::read::{ORIGINAL, read};

/// How positions turn queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// Base of the frequencies.
    pub theta: f64,
    /// Dimensions at the front of each head that turn; even.
    pub dims: usize,
    /// How frequencies are changed to reach further than the model was first trained for.
    pub scaling: RotaryScaling,
}

/// A kind of rotary scaling.
#[derive(Clone, Debug, PartialEq)]
pub enum RotaryScaling {
    /// None.
    Default,
    /// All frequencies divided by a factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Frequencies that turn less often than this over the original length are low.
        low: f64,
        /// Those that turn more often are high.
        high: f64,
        /// The length of the first training.
        original: f64,
    },
    /// The same idea with a ramp over the number of the frequency, and a factor on cosines and sines.
    ///
    /// Source: Peng et al., "YaRN" (2023), §3.2–3.4.
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// Turns over the original length from which a frequency is kept.
        fast: f64,
        /// Turns at which it is fully divided.
        slow: f64,
        /// Whether the ends of the ramp are rounded outwards.
        truncate: bool,
        /// What cosines and sines are multiplied by.
        attention: f64,
        /// The length of the first training.
        original: f64,
    },
    /// Every frequency divided by a factor of its own, and a factor on cosines and sines.
    ///
    /// Source: Ding et al., "LongRoPE" (2024), §3, with the factors of short texts.
    LongRope {
        /// The divisor of each frequency in texts no longer than `original`.
        short: Vec<f64>,
        /// What cosines and sines are multiplied by.
        attention: f64,
        /// The length of the first training; no text is longer.
        original: f64,
    },
}

impl Rotary {
    /// Radians per position of each pair of dimensions, `dims / 2` of them.
    pub fn frequencies(&self) -> Vec<f32> {
        (0..self.dims / 2).map(|i| self.frequency(i)).collect()
    }

    /// Radians per position of pair `i`.
    fn frequency(&self, i: usize) -> f32 {
        let plain = self.theta.powf(-2.0 * i as f64 / self.dims as f64);
        self.scaled(i, plain) as f32
    }

    /// What cosines and sines are multiplied by.
    pub fn amplitude(&self) -> f64 {
        match self.scaling {
            RotaryScaling::Yarn { attention, .. } | RotaryScaling::LongRope { attention, .. } => {
                attention
            }
            _ => 1.0,
        }
    }

    /// Tokens of the longest text whose frequencies these are, if they are not those of any.
    pub fn longest(&self) -> Option<usize> {
        match self.scaling {
            RotaryScaling::LongRope { original, .. } => Some(original as usize),
            _ => None,
        }
    }

    fn scaled(&self, i: usize, frequency: f64) -> f64 {
        match self.scaling {
            RotaryScaling::Default => frequency,
            RotaryScaling::LongRope { ref short, .. } => frequency / short[i],
            RotaryScaling::Linear { factor } => frequency / factor,
            RotaryScaling::Llama3 {
                factor,
                low,
                high,
                original,
            } => {
                let turns = original * frequency / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            }
            RotaryScaling::Yarn {
                factor,
                fast,
                slow,
                truncate,
                original,
                ..
            } => {
                let dims = self.dims as f64;
                let number =
                    |turns: f64| dims * (original / (turns * TAU)).ln() / (2.0 * self.theta.ln());
                let (mut begin, mut end) = (number(fast), number(slow));
                if truncate {
                    (begin, end) = (begin.floor(), end.ceil());
                }
                (begin, end) = (begin.max(0.0), end.min(dims - 1.0));
                if begin == end {
                    end += 0.001;
                }
                let divided = ((i as f64 - begin) / (end - begin)).clamp(0.0, 1.0);
                frequency * (1.0 - divided + divided / factor)
            }
        }
    }
}
