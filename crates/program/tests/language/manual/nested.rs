//! Regions in regions: the inner one takes the parts of the outer one apart, and both may exchange.

use ferrotune_graph::{DType, Tensor};

use super::{blocks, compare, mesh, rows, split};
use crate::check::noise;

/// Sums over two devices of `[4, …]`, two parts for each: `[2, …]`.
fn pairs(parts: &Tensor) -> Tensor {
    let dims = parts.dims();
    parts.reshape(&[&[2, 2], &dims[1..]].concat()).sum(&[1])
}

#[test]
fn a_region_in_a_region_splits_parts_further_and_exchanges_over_both() {
    for mesh in [mesh(&[2, 2]), mesh(&[2, 2, 2]), mesh(&[2, 2, 1])] {
        compare(
            "a region over y in one over x",
            &mesh,
            &[noise(&[8, 4], 1, false), noise(&[4, 3], 2, false)],
            |g, x| {
                let whole = split(&["", ""]);
                let outputs = [split(&["x", ""]), whole.clone()];
                g.manual(&["x"], &[(&x[0], split(&["x", ""]))], &outputs, |p| {
                    // A constraint along an automatic axis, as layers have them.
                    let given = p[0].shard(&["split2", "_"]);
                    let outputs = [split(&["y", ""]), whole.clone()];
                    let inner = g.manual(&["y"], &[(&given, split(&["y", ""]))], &outputs, |q| {
                        let h = g.einsum("ab,bc->ac", &q[0], &x[1], DType::F64).tanh();
                        let device = g.axis_index(&["x", "y"]).convert(DType::F64);
                        let everywhere = h.sum_keep(&[0]).all_reduce(&["x", "y"]);
                        vec![&h * device + everywhere, h.all_reduce(&["y"]).square()]
                    });
                    vec![inner[0].clone(), inner[1].all_reduce(&["x"])]
                })
            },
            |g, x| {
                let h = g.einsum("ab,bc->ac", &x[0], &x[1], DType::F64).tanh();
                let parts = blocks(&h, 4);
                let device = g.iota(DType::F64, &[4, 1, 1], 0);
                vec![
                    rows(&(&parts * device)) + h.sum_keep(&[0]),
                    pairs(&parts).square().sum(&[0]),
                ]
            },
        );
    }
}

/// What a step of training does: each device of the outer region has a gradient of its own, by a weight that all share.
#[test]
fn gradients_inside_of_the_outer_region_add_up_to_that_of_the_whole() {
    for mesh in [mesh(&[2, 2]), mesh(&[2, 1]), mesh(&[1, 2])] {
        let n = mesh.axes()[0].1;
        compare(
            "a gradient for each device along x",
            &mesh,
            &[noise(&[8, 4], 1, false), noise(&[4, 3], 2, false)],
            |g, x| {
                let stacked = split(&["x", "", ""]);
                let own = g.manual(&["x"], &[(&x[0], split(&["x", ""]))], &[stacked], |p| {
                    let rows = split(&["y", ""]);
                    let h = g.manual(
                        &["y"],
                        &[(&p[0], rows.clone())],
                        std::slice::from_ref(&rows),
                        |q| vec![g.einsum("ab,bc->ac", &q[0], &x[1], DType::F64).tanh()],
                    );
                    let loss = h[0].square().sum_all();
                    let gradient = g.grad(&loss, &[&x[1]]).remove(0);
                    vec![gradient.reshape(&[1, 4, 3])]
                });
                assert_eq!(own[0].dims(), [n, 4, 3]);
                vec![own[0].sum(&[0])]
            },
            |g, x| {
                let h = g.einsum("ab,bc->ac", &x[0], &x[1], DType::F64).tanh();
                g.grad(&h.square().sum_all(), &[&x[1]])
            },
        );
    }
}
