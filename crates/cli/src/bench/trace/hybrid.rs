//! A hybrid model of small width: of four layers, three hold a gated delta rule and one gated attention; each has experts
//! and one expert for all. Blocks of four are scanned.
//!
//! Letters: `B` rows, `T` tokens, `D` width, `H` heads, `E` head size, `F` feed-forward width, `V` vocabulary.

use ferrotune_graph::{DType, Graph, Policy, Tensor};
use ferrotune_nn::{
    DeltaInputs, Params, Routing, Sequence, attend, causal_convolution, causal_mask,
    gated_delta_rule, linear, mix_experts, rms_norm, swiglu,
};
use ferrotune_program::{Layout, Leaf};

use crate::device::Device;
use crate::failure::{Failure, OrFail};

const ROWS: usize = 2;
const TOKENS: usize = 128;
const WIDTH: usize = 64;
const HEADS: usize = 4;
const HEAD: usize = 16;
const INNER: usize = 32;
const EXPERTS: usize = 8;
const VOCAB: usize = 512;
const PERIOD: usize = 4;

/// Parameters of one layer: name and dimensions.
fn layer_shapes(attention: bool) -> Vec<(&'static str, Vec<usize>)> {
    let (d, he) = (WIDTH, HEADS * HEAD);
    let mut shapes = vec![
        ("input_norm", vec![d]),
        ("post_norm", vec![d]),
        ("o_proj", vec![he, d]),
        ("router", vec![d, EXPERTS]),
        ("experts/gate_proj", vec![EXPERTS, d, INNER]),
        ("experts/up_proj", vec![EXPERTS, d, INNER]),
        ("experts/down_proj", vec![EXPERTS, INNER, d]),
        ("shared/gate_proj", vec![d, INNER]),
        ("shared/up_proj", vec![d, INNER]),
        ("shared/down_proj", vec![INNER, d]),
        ("shared_gate", vec![d, 1]),
    ];
    if attention {
        shapes.extend([
            ("q_proj", vec![d, 2 * he]),
            ("k_proj", vec![d, he]),
            ("v_proj", vec![d, he]),
        ]);
        shapes.extend([("q_norm", vec![HEAD]), ("k_norm", vec![HEAD])]);
    } else {
        shapes.extend([
            ("qkv_proj", vec![d, 3 * he]),
            ("z_proj", vec![d, he]),
            ("ba_proj", vec![d, 2 * HEADS]),
        ]);
        shapes.extend([
            ("conv", vec![4, 3 * he]),
            ("log_a", vec![HEADS]),
            ("dt_bias", vec![HEADS]),
            ("norm", vec![HEAD]),
        ]);
    }
    shapes
}

/// The parameters of a block of four layers, in order.
fn block_shapes() -> Vec<(String, Vec<usize>)> {
    let layer = |i: usize| {
        let shapes = layer_shapes(i + 1 == PERIOD).into_iter();
        shapes.map(move |(name, dims)| (format!("{i}/{name}"), dims))
    };
    (0..PERIOD).flat_map(layer).collect()
}

/// The arrays of the step: token ids first, then the embedding, then the stacked parameters of the blocks.
pub(super) fn layout(device: &Device, layers: usize) -> Result<Layout, Failure> {
    let whole =
        |name: &str, dtype, dims: &[usize]| Leaf::new(name, dtype, dims, &vec!["_"; dims.len()]);
    let mut leaves = vec![
        whole("ids", DType::S32, &[ROWS, TOKENS]),
        whole("embedding", DType::F32, &[VOCAB, WIDTH]),
    ];
    let blocks = layers / PERIOD;
    leaves.extend(
        block_shapes()
            .iter()
            .map(|(name, dims)| whole(name, DType::F32, &[&[blocks], &dims[..]].concat())),
    );
    Layout::new(&device.mesh, &device.rules, &leaves).or_fail()
}

/// The mean negative log-probability of the next tokens.
pub(super) fn loss(g: &Graph, state: &[Tensor], layers: usize) -> Tensor {
    let (ids, embedding) = (&state[0], &state[1]);
    let tokens = g.iota(DType::S32, &[ROWS, TOKENS], 1);
    let seq = Sequence {
        segment_ids: tokens.ones_like(),
        positions: tokens,
    };
    let names: Vec<String> = block_shapes().into_iter().map(|(name, _)| name).collect();
    let hidden = embedding.take(ids);
    let (hidden, _) = g.scan(
        Policy::recompute(),
        vec![hidden],
        state[2..].to_vec(),
        layers / PERIOD,
        |_, carry, part| {
            let params = Params::new(names.iter().cloned().zip(part.iter().cloned()));
            let mut h = carry[0].clone();
            for i in 0..PERIOD {
                h = g.scope("layer", || {
                    layer(&h, &params.under(&i.to_string()), &seq, i + 1 == PERIOD)
                });
            }
            (vec![h], vec![])
        },
    );
    let logits = g.einsum("btd,vd->btv", &hidden[0], embedding, DType::F32);
    let peak = logits.max_keep(&[2]).stop_gradient();
    let shifted = logits - peak;
    let next = Tensor::concatenate(&[&ids.slice(1, 1, TOKENS), &ids.slice(1, 0, 1)], 1);
    let logprob = shifted.pick_last(&next) - shifted.exp().sum(&[2]).ln();
    logprob.sum_all() * (-1.0 / (ROWS * TOKENS) as f64)
}

/// Every array a step further down the gradient.
pub(super) fn descend(g: &Graph, loss: &Tensor, state: &[Tensor]) -> Vec<Tensor> {
    let parameters: Vec<&Tensor> = state[1..].iter().collect();
    let gradients = g.grad(loss, &parameters);
    let updated = parameters.iter().zip(gradients).map(|(p, d)| *p - d * 0.01);
    std::iter::once(state[0].clone()).chain(updated).collect()
}

fn layer(h: &Tensor, params: &Params, seq: &Sequence, attention: bool) -> Tensor {
    let normed = rms_norm(h, params.at("input_norm"), 1e-6);
    let mixed = if attention {
        gated_attention(&normed, params, seq)
    } else {
        gated_delta(&normed, params, seq)
    };
    let h = h + linear(&mixed, params.at("o_proj"));
    let normed = rms_norm(&h, params.at("post_norm"), 1e-6);
    h + feed_forward(&normed, params)
}

fn heads(x: &Tensor) -> Tensor {
    x.reshape(&[ROWS, TOKENS, HEADS, HEAD])
}

fn gated_attention(x: &Tensor, params: &Params, seq: &Sequence) -> Tensor {
    let both = linear(x, params.at("q_proj")).reshape(&[ROWS, TOKENS, HEADS, 2 * HEAD]);
    let (q, gate) = (both.slice(3, 0, HEAD), both.slice(3, HEAD, 2 * HEAD));
    let q = rms_norm(&q, params.at("q_norm"), 1e-6);
    let k = rms_norm(
        &heads(&linear(x, params.at("k_proj"))),
        params.at("k_norm"),
        1e-6,
    );
    let v = heads(&linear(x, params.at("v_proj")));
    let keys = |t: &Tensor| t.transpose(&[0, 2, 1, 3]);
    let read = attend(&q, &keys(&k), &keys(&v), &causal_mask(seq));
    (read * gate.logistic()).reshape(&[ROWS, TOKENS, HEADS * HEAD])
}

fn gated_delta(x: &Tensor, params: &Params, seq: &Sequence) -> Tensor {
    let qkv = causal_convolution(&linear(x, params.at("qkv_proj")), params.at("conv"), seq).silu();
    let third = |i: usize| heads(&qkv.slice(2, i * HEADS * HEAD, (i + 1) * HEADS * HEAD));
    let unit = |t: &Tensor| t * (t.square().sum_keep(&[3]) + 1e-6).rsqrt();
    let ba = linear(x, params.at("ba_proj"));
    let (b, a) = (ba.slice(2, 0, HEADS), ba.slice(2, HEADS, 2 * HEADS));
    let rate = (a + params.at("dt_bias")).exp().ln_1p(); // softplus
    let one = [ROWS, TOKENS, HEADS, 1];
    let read = gated_delta_rule(
        &DeltaInputs {
            query: unit(&third(0)) * (HEAD as f64).powf(-0.5),
            key: unit(&third(1)),
            value: third(2).reshape(&[ROWS, TOKENS, HEADS, 1, HEAD]),
            log_decay: (-(params.at("log_a").exp() * rate)).reshape(&one),
            beta: b.logistic().reshape(&one),
        },
        seq,
        64,
    );
    let z = heads(&linear(x, params.at("z_proj")));
    let normed = rms_norm(&heads(&read), params.at("norm"), 1e-6) * z.silu();
    normed.reshape(&[ROWS, TOKENS, HEADS * HEAD])
}

fn feed_forward(x: &Tensor, params: &Params) -> Tensor {
    let g = x.graph();
    let flat = x.reshape(&[ROWS * TOKENS, WIDTH]);
    let counted = g
        .iota(DType::S32, &[ROWS * TOKENS], 0)
        .ge(&g.scalar(0.0, DType::S32));
    let routing = Routing {
        top_k: 2,
        normalize: true,
    };
    let routes = routing.route(&flat, params.at("router"), None);
    let mixed = mix_experts(&flat, &routes, &counted, &params.under("experts")).reshape(&x.dims());
    let gate = linear(x, params.at("shared_gate")).logistic();
    mixed + swiglu(x, &params.under("shared")) * gate
}
