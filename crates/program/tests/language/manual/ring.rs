//! Attention on a ring.

use ferrotune_graph::{DType, Graph, Policy, Tensor};

use super::{compare, mesh, size, split};
use crate::check::noise;

/// Softmax attention whose keys and values travel around a ring, one block a step; running maximum and sum.
pub(super) fn ring_attention(g: &Graph, axis: &str, n: usize, x: &[Tensor]) -> Tensor {
    let parts = split(&[axis, ""]);
    let inputs = [
        (&x[0], parts.clone()),
        (&x[1], parts.clone()),
        (&x[2], parts.clone()),
    ];
    let ring: Vec<(usize, usize)> = (0..n).map(|i| (i, (i + 1) % n)).collect();
    g.manual(&[axis], &inputs, &[parts], |x| {
        let q = &x[0];
        let rows = q.dim(0);
        let carry = vec![
            x[1].clone(),
            x[2].clone(),
            g.full(-1e30, DType::F64, &[rows, 1]),
            g.full(0.0, DType::F64, &[rows, 1]),
            q.zeros_like(),
        ];
        let (last, _) = g.scan(Policy::recompute(), carry, vec![], n, |_, c, _| {
            let scores = g.einsum("qd,kd->qk", q, &c[0], DType::F64);
            let top = scores.max_keep(&[1]).maximum(&c[2]).stop_gradient();
            let (p, old) = ((scores - &top).exp(), (&c[2] - &top).exp());
            let sum = &c[3] * &old + p.sum_keep(&[1]);
            let out = &c[4] * &old + g.einsum("qk,kd->qd", &p, &c[1], DType::F64);
            let next = |t: &Tensor| t.collective_permute(axis, &ring);
            (vec![next(&c[0]), next(&c[1]), top, sum, out], vec![])
        });
        vec![&last[4] / &last[3]]
    })
    .remove(0)
}

#[test]
fn a_ring_of_keys_and_values_is_attention() {
    let args = [
        noise(&[8, 4], 1, false),
        noise(&[8, 4], 2, false),
        noise(&[8, 4], 3, false),
    ];
    for (mesh, axis) in [
        (mesh(&[2]), "x"),
        (mesh(&[4]), "x"),
        (mesh(&[2, 4]), "y"),
        (mesh(&[1]), "x"),
    ] {
        let n = size(&mesh, &[axis]);
        compare(
            "ring attention",
            &mesh,
            &args,
            |g, x| vec![ring_attention(g, axis, n, x)],
            |g, x| {
                let scores = g.einsum("qd,kd->qk", &x[0], &x[1], DType::F64);
                let p = scores.exp();
                let y = g.einsum("qk,kd->qd", &p, &x[2], DType::F64);
                vec![y / p.sum_keep(&[1])]
            },
        );
    }
}
