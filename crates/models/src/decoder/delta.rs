//! The gated delta rule as a layer: projections, a short convolution, the rule, a gated norm.
//!
//! Letters besides the decoder's: `C` channels of the convolution, `W` its taps, `K` key heads, `R` value heads of each, `E` and
//! `V` the sizes of a key and of a value.

use ferrotune_graph::{DType, Tensor};
use ferrotune_nn::{
    DeltaInputs, Params, Sequence, causal_convolution, convolution_step, delta_step,
    gated_delta_state, project, rms_norm,
};

use super::{Decoder, InCache, Reach};
use crate::config::DeltaSizes;

/// Tokens that the rule computes at once.
const CHUNK: usize = 64;

/// Added to the sum of squares when queries and keys are normalised, as in `transformers`.
const NORM_EPS: f64 = 1e-6;

impl Decoder<'_> {
    /// Normed `x [B,T,D]` → what the rule adds to the stream, `[B,T,D]`, and what a cache holds.
    ///
    /// # Source
    /// `Qwen3NextGatedDeltaNet` in transformers.
    pub(super) fn delta(
        &self,
        x: &Tensor,
        params: &Params,
        reach: &Reach<'_>,
    ) -> (Tensor, Vec<Tensor>) {
        let g = self.graph();
        let sizes = self.config.delta.expect("a hybrid has the rule's sizes");
        let linear = |name: &str| g.scope(name, || project(x, params, name));
        let qkv = linear("in_proj_qkv");
        let (convolved, taps) = convolve(&qkv, params.at("taps"), reach);
        let mixed = convolved.silu().convert(self.compute);
        let inputs = Gates {
            decay_log: params.at("decay_log"),
            decay_bias: params.at("decay_bias"),
            a: linear("in_proj_a"),
            b: linear("in_proj_b"),
        }
        .inputs(&mixed, sizes);
        let (read, state) = apply(&inputs, reach);
        let normed = rms_norm(&read, params.at("norm"), self.config.rms_norm_eps);
        let gate = linear("in_proj_z").convert(DType::F32);
        let gated = normed.reshape(&gate.dims()) * gate.silu();
        let out = g.scope("out_proj", || {
            project(&gated.convert(self.compute), params, "out_proj")
        });
        (out, state.into_iter().chain(taps).collect())
    }
}

/// What sets decay and strength of each token.
struct Gates<'a> {
    decay_log: &'a Tensor,
    decay_bias: &'a Tensor,
    a: Tensor,
    b: Tensor,
}

impl Gates<'_> {
    /// The rule's inputs from convolved queries, keys and values `[B,T,C]`.
    fn inputs(&self, mixed: &Tensor, s: DeltaSizes) -> DeltaInputs {
        let (b, t) = (mixed.dim(0), mixed.dim(1));
        let (keys, shared) = (s.keys(), s.value_heads / s.key_heads);
        let unit = |from: usize| {
            let heads = mixed.slice(2, from, from + keys).convert(DType::F32);
            let heads = heads.reshape(&[b, t, s.key_heads, s.key_dim]);
            let length = heads.square().sum_keep(&[3]) + NORM_EPS;
            heads * length.rsqrt()
        };
        let value = mixed.slice(2, 2 * keys, s.channels());
        let per_head = |x: &Tensor| x.reshape(&[b, t, s.key_heads, shared]);
        let wide = |x: &Tensor| x.convert(DType::F32);
        let open = softplus(&(wide(&self.a) + wide(self.decay_bias)));
        let decay = -(wide(self.decay_log).exp() * open);
        DeltaInputs {
            query: unit(0) * (s.key_dim as f64).powf(-0.5),
            key: unit(keys),
            value: value.reshape(&[b, t, s.key_heads, shared, s.value_dim]),
            log_decay: per_head(&decay),
            beta: per_head(&wide(&self.b).logistic()),
        }
    }
}

/// `ln(1 + eˣ)`, without overflow.
fn softplus(x: &Tensor) -> Tensor {
    let zero = x.scalar_like(0.0);
    x.maximum(&zero) + (-x.abs()).exp().ln_1p()
}

/// The convolution of `[B,T,C]`, f32, and the inputs that it goes on from, `[L,B,W−1,C]` in a cache.
fn convolve(qkv: &Tensor, weight: &Tensor, reach: &Reach<'_>) -> (Tensor, Option<Tensor>) {
    let back = weight.dim(0) - 1;
    match reach {
        Reach::Rows { seq, keep, .. } => {
            let kept = keep.then(|| last_inputs(qkv, seq, back));
            (causal_convolution(qkv, weight, seq), kept)
        }
        Reach::Cache(InCache { held, repeat, .. }) => {
            let (out, next) = convolution_step(&of_repeat(&held[1], repeat), qkv, weight);
            (out, Some(store(&held[1], &next, repeat)))
        }
    }
}

/// The last `back` inputs of each row, zero where they are padding.
fn last_inputs(qkv: &Tensor, seq: &Sequence, back: usize) -> Tensor {
    let real = seq.segment_ids.gt(&seq.segment_ids.scalar_like(0.0));
    let kept = real.expand(2).select(qkv, &qkv.scalar_like(0.0));
    let padded = kept.pad(1, back, 0, 0.0);
    padded.slice(1, padded.dim(1) - back, padded.dim(1))
}

/// Runs the rule: what it reads, f32 `[B,T,K,R,V]`, and its state.
fn apply(inputs: &DeltaInputs, reach: &Reach<'_>) -> (Tensor, Option<Tensor>) {
    match reach {
        Reach::Rows { seq, keep, .. } => {
            let (read, state) = gated_delta_state(inputs, seq, CHUNK);
            (read, keep.then_some(state))
        }
        Reach::Cache(InCache { held, repeat, .. }) => {
            let one = |t: &Tensor| {
                let dims = t.dims();
                t.reshape(&[&dims[..1], &dims[2..]].concat())
            };
            let token = DeltaInputs {
                query: one(&inputs.query),
                key: one(&inputs.key),
                value: one(&inputs.value),
                log_decay: one(&inputs.log_decay),
                beta: one(&inputs.beta),
            };
            let (read, next) = delta_step(&of_repeat(&held[0], repeat), &token);
            (read.expand(1), Some(store(&held[0], &next, repeat)))
        }
    }
}

/// One repeat's part of a tensor of the cache.
fn of_repeat(whole: &Tensor, repeat: &Tensor) -> Tensor {
    let (dims, zero) = (whole.dims(), repeat.scalar_like(0.0));
    let mut start = vec![&zero; dims.len()];
    start[0] = repeat;
    let window = [&[1], &dims[1..]].concat();
    whole.dynamic_slice(&start, &window).reshape(&dims[1..])
}

/// The tensor of the cache with that part replaced.
fn store(whole: &Tensor, part: &Tensor, repeat: &Tensor) -> Tensor {
    let zero = repeat.scalar_like(0.0);
    let mut start = vec![&zero; whole.rank()];
    start[0] = repeat;
    whole.dynamic_update_slice(&part.expand(0), &start)
}
