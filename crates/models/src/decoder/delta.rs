//! The gated delta rule as a layer: projections, a short convolution, the rule, a gated norm.
//!
//! Letters besides the decoder's: `C` channels of the convolution, `W` its taps, `K` key heads, `R` value heads of each, `E` and
//! `V` the sizes of a key and of a value.

use ferrotune_graph::{DType, Tensor};
use ferrotune_nn::{
    DeltaInputs, Params, Sequence, by_heads, causal_convolution, convolution_step, delta_step,
    gated_delta_rule, gated_delta_state, project, rms_norm, rows_are_shared,
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
        let gates = Gates {
            decay_log: params.at("decay_log"),
            decay_bias: params.at("decay_bias"),
            a: &linear("in_proj_a"),
            b: &linear("in_proj_b"),
        };
        let (read, state, taps) = match reach {
            Reach::Rows {
                seq, keep: false, ..
            } if rows_are_shared(x) => {
                let read = gates.over_heads(&qkv, params.at("taps"), seq, sizes);
                (read, None, None)
            }
            _ => {
                let (convolved, taps) = convolve(&qkv, params.at("taps"), reach);
                let mixed = convolved.silu().convert(self.compute);
                let inputs = gates.inputs(&sizes.cut(&mixed, 2), sizes);
                let (read, state) = apply(&inputs, reach);
                (read, state, taps)
            }
        };
        let normed = rms_norm(&read, params.at("norm"), self.config.rms_norm_eps);
        let gate = linear("in_proj_z").convert(DType::F32);
        let gated = normed.reshape(&gate.dims()) * gate.silu();
        let out = g.scope("out_proj", || {
            project(&gated.convert(self.compute), params, "out_proj")
        });
        (out, state.into_iter().chain(taps).collect())
    }
}

/// What sets decay and strength of each token: of heads, `[K·R]`, and of their tokens, `[B,T,K·R]`.
struct Gates<'a> {
    decay_log: &'a Tensor,
    decay_bias: &'a Tensor,
    a: &'a Tensor,
    b: &'a Tensor,
}

/// The parts of a tensor's channels: queries and keys `[…,K,E]`, values `[…,K,R,V]`.
type Channels = [Tensor; 3];

impl DeltaSizes {
    /// Value heads of a key head.
    fn shared(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// The channels of `[…,C]`, the last of `lead + 1` dimensions.
    fn cut(&self, x: &Tensor, lead: usize) -> Channels {
        let (keys, dims) = (self.keys(), x.dims());
        let part = |from: usize, to: usize, of_head: &[usize]| {
            let dims = [&dims[..lead], &[self.key_heads], of_head].concat();
            x.slice(lead, from, to).reshape(&dims)
        };
        let values = [self.shared(), self.value_dim];
        [
            part(0, keys, &[self.key_dim]),
            part(keys, 2 * keys, &[self.key_dim]),
            part(2 * keys, self.channels(), &values),
        ]
    }

    /// `[…,C]` → `[…,K,C/K]`: the channels of each key head side by side.
    fn by_head(&self, x: &Tensor, lead: usize) -> Tensor {
        let [query, key, value] = self.cut(x, lead);
        let value =
            value.reshape(&[&value.dims()[..=lead], &[self.shared() * self.value_dim]].concat());
        Tensor::concatenate(&[&query, &key, &value], lead + 1)
    }

    /// The channels of `[B,T,K·(C/K)]` that stand as [`Self::by_head`] puts them.
    fn cut_by_head(&self, x: &Tensor) -> Channels {
        let (b, t, e) = (x.dim(0), x.dim(1), self.key_dim);
        let heads = x.reshape(&[b, t, self.key_heads, self.channels() / self.key_heads]);
        let values = [b, t, self.key_heads, self.shared(), self.value_dim];
        [
            heads.slice(3, 0, e),
            heads.slice(3, e, 2 * e),
            heads.slice(3, 2 * e, heads.dim(3)).reshape(&values),
        ]
    }
}

impl Gates<'_> {
    /// The rule's inputs from convolved queries, keys and values.
    fn inputs(&self, [query, key, value]: &Channels, s: DeltaSizes) -> DeltaInputs {
        let (b, t) = (value.dim(0), value.dim(1));
        let unit = |heads: &Tensor| {
            let heads = heads.convert(DType::F32);
            let length = heads.square().sum_keep(&[3]) + NORM_EPS;
            heads * length.rsqrt()
        };
        let per_head = |x: &Tensor| x.reshape(&[b, t, value.dim(2), s.shared()]);
        let wide = |x: &Tensor| x.convert(DType::F32);
        let open = softplus(&(wide(self.a) + wide(self.decay_bias)));
        let decay = -(wide(self.decay_log).exp() * open);
        DeltaInputs {
            query: unit(query) * (s.key_dim as f64).powf(-0.5),
            key: unit(key),
            value: value.clone(),
            log_decay: per_head(&decay),
            beta: per_head(&wide(self.b).logistic()),
        }
    }

    /// What the rule reads of `[B,T,C]`, where devices share rows: convolution and rule read whole rows, so each device runs them
    /// for heads of its own.
    fn over_heads(&self, qkv: &Tensor, taps: &Tensor, seq: &Sequence, sizes: DeltaSizes) -> Tensor {
        let compute = qkv.dtype();
        let of_heads = |x: &Tensor| {
            let (rank, dims) = (x.rank(), x.dims());
            let heads = [sizes.key_heads, sizes.shared()];
            x.reshape(&[&dims[..rank - 1], &heads].concat())
        };
        let tokens = [sizes.by_head(qkv, 2), of_heads(self.a), of_heads(self.b)];
        let taps = sizes.by_head(taps, 1).transpose(&[1, 0, 2]);
        let weights = [taps, of_heads(self.decay_log), of_heads(self.decay_bias)];
        by_heads(&tokens, &weights, seq, 5, |tokens, weights, seq| {
            let own = DeltaSizes {
                key_heads: tokens[0].dim(2),
                value_heads: tokens[0].dim(2) * sizes.shared(),
                ..sizes
            };
            let flat = |x: &Tensor, lead: usize| {
                let dims = x.dims();
                x.reshape(&[&dims[..lead], &[dims[lead..].iter().product()]].concat())
            };
            let taps = flat(&weights[0].transpose(&[1, 0, 2]), 1);
            let convolved = causal_convolution(&flat(&tokens[0], 2), &taps, seq);
            let gates = Gates {
                decay_log: &flat(&weights[1], 0),
                decay_bias: &flat(&weights[2], 0),
                a: &flat(&tokens[1], 2),
                b: &flat(&tokens[2], 2),
            };
            let mixed = convolved.silu().convert(compute);
            let inputs = gates.inputs(&own.cut_by_head(&mixed), own);
            gated_delta_rule(&inputs, seq, CHUNK)
        })
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
