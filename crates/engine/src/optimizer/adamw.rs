//! AdamW: two moments with bias correction.

use ferrotune_graph::random::Key;
use ferrotune_graph::{DType, Tensor};

use super::Moment;

/// Settings of AdamW. `eps` is added outside of the root.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Number type in which both moments are kept: f32 or bf16. They are computed in f32.
    pub moments: DType,
}

/// The settings of Kingma and Ba, "Adam" (2015), algorithm 1.
impl Default for AdamW {
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            moments: DType::F32,
        }
    }
}

/// Seed of the draws that round second moments.
const ROUNDING: u64 = 0x6d6f_6d65_6e74;

impl AdamW {
    pub(super) fn kept(&self) -> Vec<(&'static str, DType)> {
        vec![("first", self.moments), ("second", self.moments)]
    }

    /// m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g².
    ///
    /// In bf16 the first moment is rounded to the nearest. The second is rounded up or down by chance, so that it is right in
    /// the mean: one step moves it by 1 − β₂ of itself, which is less than half of the spacing of bf16, and rounded to the
    /// nearest it would never come down again. The draws follow from the number of updates, so a restored run repeats them.
    pub(super) fn advance(&self, kept: &[Tensor], gradient: &Tensor, at: &Moment) -> Vec<Tensor> {
        let wide = |t: &Tensor| t.convert(DType::F32);
        let m = wide(&kept[0]) * self.beta1 + gradient * (1.0 - self.beta1);
        let v = wide(&kept[1]) * self.beta2 + gradient.square() * (1.0 - self.beta2);
        if self.moments == DType::F32 {
            return vec![m, v];
        }
        vec![m.convert(self.moments), rounded_by_chance(&v, at)]
    }

    /// m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + eps).
    pub(super) fn direction(&self, kept: &[Tensor], at: &Moment) -> Tensor {
        // 1 − βᵗ = −expm1(t · ln β): exact where β is close to 1 and t small.
        let correction = |beta: f64| -(&at.steps * beta.ln()).expm1();
        let m = kept[0].convert(DType::F32) / correction(self.beta1);
        let v = kept[1].convert(DType::F32) / correction(self.beta2);
        m / (v.sqrt() + self.eps)
    }
}

/// f32 to bf16, up with the probability that the part cut off has of a whole unit.
fn rounded_by_chance(x: &Tensor, at: &Moment) -> Tensor {
    let g = x.graph();
    let place = g.scalar(at.place as f64, DType::S32);
    let key = Key::new(g, ROUNDING).fold_in(&at.count).fold_in(&place);
    let below = x.bitcast(DType::U32).scalar_like(f64::from(u16::MAX));
    let draw = key.bits(&x.dims()).and(&below);
    let moved = x.bitcast(DType::U32) + draw;
    let kept = moved.and(&moved.scalar_like(f64::from(u32::MAX - u32::from(u16::MAX))));
    kept.bitcast(DType::F32).convert(DType::BF16)
}
