//! The counted work of a program, beside what the TPU's compiler counts.

use ferrotune_graph::{DType, Graph, Policy, Tensor};

use super::{compile, trace};

const TOKENS: usize = 512;
const WIDTH: usize = 512;
const HEADS: usize = 4;
const HEAD: usize = 128;

/// One layer: norm, causal attention, norm, SwiGLU.
fn layer(g: &Graph, x: &Tensor, w: &[Tensor]) -> Tensor {
    let norm = |x: &Tensor| x * (x.square().mean_keep(&[1]) + 1e-6).rsqrt();
    let h = norm(x);
    let heads = |w: &Tensor| g.einsum("td,dhe->the", &h, w, DType::F32);
    let (q, k, v) = (heads(&w[0]), heads(&w[1]), heads(&w[2]));
    let scores = g.einsum("qhe,khe->hqk", &q, &k, DType::F32) * (HEAD as f64).powf(-0.5);
    let index = |axis| g.iota(DType::S32, &[HEADS, TOKENS, TOKENS], axis);
    let scores = index(1)
        .ge(&index(2))
        .select(&scores, &g.scalar(-1e30, DType::F32));
    let e = (&scores - scores.max_keep(&[2]).stop_gradient()).exp();
    // Without a barrier the compiler computes the exponentials twice, once for each reader, and counts them twice.
    let e = g.barrier(&[&e]).remove(0);
    let p = &e / e.sum_keep(&[2]);
    let attended = g.einsum("hqk,khe->qhe", &p, &v, DType::F32);
    let x = x + g.einsum("the,hed->td", &attended, &w[3], DType::F32);
    let h = norm(&x);
    let gate = g.einsum("td,df->tf", &h, &w[4], DType::F32);
    let up = g.einsum("td,df->tf", &h, &w[5], DType::F32);
    x + g.einsum("tf,fd->td", &(gate.silu() * up), &w[6], DType::F32)
}

fn forward(g: &Graph, x: &[Tensor], layers: usize) -> Tensor {
    let (carry, _) = g.scan(
        Policy::recompute(),
        vec![x[0].clone()],
        x[1..].to_vec(),
        layers,
        |_, h, w| (vec![layer(g, &h[0], w)], vec![]),
    );
    carry[0].square().sum_all()
}

fn arguments(layers: usize) -> Vec<(DType, Vec<usize>)> {
    let (d, h, e, f) = (WIDTH, HEADS, HEAD, 3 * WIDTH);
    let weights = [
        vec![d, h, e],
        vec![d, h, e],
        vec![d, h, e],
        vec![h, e, d],
        vec![d, f],
        vec![d, f],
        vec![f, d],
    ];
    let stacked = weights
        .iter()
        .map(|w| (DType::F32, [&[layers], &w[..]].concat()));
    std::iter::once((DType::F32, vec![TOKENS, WIDTH]))
        .chain(stacked)
        .collect()
}

/// Ours over the compiler's, flops and transcendentals, for a scan over `layers`. Ours counts every step of a loop, the
/// compiler one, so that ours is divided by the number of steps: all but a few operations stand inside the loops.
fn ratios(layers: usize, gradient: bool) -> (f64, f64) {
    let args = arguments(layers);
    let args: Vec<(DType, &[usize])> = args.iter().map(|(d, dims)| (*d, &dims[..])).collect();
    let mut ours = ferrotune_graph::Cost::default();
    let builder = trace("layer", &args, |g, x| {
        let loss = forward(g, x, layers);
        let results = if gradient {
            g.grad(&loss, &x.iter().collect::<Vec<_>>())
        } else {
            vec![loss]
        };
        ours = g.cost(&results.iter().collect::<Vec<_>>());
        results
    });
    let theirs = compile(&builder).cost().expect("the TPU plugin counts");
    let steps = layers as f64;
    eprintln!("ours {ours:?} over {steps} steps, the compiler's {theirs:?}");
    (
        ours.flops / steps / theirs.flops,
        ours.transcendentals / steps / theirs.transcendentals,
    )
}

#[test]
fn the_work_of_a_scanned_layer_is_what_the_compiler_counts() {
    let (flops, transcendentals) = ratios(8, false);
    assert!((flops - 1.0).abs() < 0.02, "flops: {flops}");
    assert!(
        (transcendentals - 1.0).abs() < 0.05,
        "transcendentals: {transcendentals}"
    );
}

#[test]
fn the_work_of_its_gradient_is_too_but_for_functions_that_the_compiler_repeats() {
    let (flops, transcendentals) = ratios(8, true);
    assert!((flops - 1.0).abs() < 0.02, "flops: {flops}");
    // The logistic of SwiGLU is cheap to repeat: each fusion that reads it computes it anew, and the compiler counts all.
    assert!(
        (0.5..=1.05).contains(&transcendentals),
        "transcendentals: {transcendentals}"
    );
}

#[test]
fn products_of_groups_cost_no_more_for_being_many() {
    let args: [(DType, &[usize]); 3] = [
        (DType::BF16, &[4096, 512]),
        (DType::BF16, &[64, 512, 256]),
        (DType::S32, &[64]),
    ];
    let work = 2.0 * 4096.0 * 512.0 * 256.0;
    let builder = trace("groups", &args, |g, x| {
        let y = g.ragged_dot(&x[0], &x[1], &x[2], DType::F32);
        let sizes = 2.0 * 64.0; // brought between 0 and the number of rows
        assert_eq!(g.cost(&[&y]).flops, work + sizes);
        vec![y]
    });
    let theirs = compile(&builder).cost().expect("the TPU plugin counts");
    assert!(
        (theirs.flops / work - 1.0).abs() < 0.02,
        "{theirs:?} for {work}"
    );
}
