//! Every collective, along every kind of axes, gives the values and gradients of sums and moves of blocks.

use ferrotune_graph::{DType, HostArray, Mesh, Tensor};

use super::{assert_equal, blocks, compare, mesh, rows, size, split};
use crate::check::{noise, run_on};

/// Meshes, the axes that are manual on them, and those that collectives work along.
fn cases() -> Vec<(Mesh, Vec<&'static str>, Vec<&'static str>)> {
    vec![
        (mesh(&[1]), vec!["x"], vec!["x"]),
        (mesh(&[2]), vec!["x"], vec!["x"]),
        (mesh(&[4]), vec!["x"], vec!["x"]),
        (mesh(&[2, 2]), vec!["x", "y"], vec!["x"]),
        (mesh(&[2, 2]), vec!["x", "y"], vec!["y"]),
        (mesh(&[2, 2]), vec!["x", "y"], vec!["x", "y"]),
        (mesh(&[2, 2]), vec!["y", "x"], vec!["y", "x"]),
        (mesh(&[1, 4]), vec!["y", "x"], vec!["y", "x"]),
        (mesh(&[2, 2]), vec!["x"], vec!["x"]),
        (mesh(&[2, 2]), vec!["y"], vec!["y"]),
        (mesh(&[2, 1]), vec!["x"], vec!["x"]),
        (mesh(&[1, 2]), vec!["x"], vec!["x"]),
        (mesh(&[2, 2, 2]), vec!["x", "y", "z"], vec!["y"]),
        (mesh(&[2, 2, 2]), vec!["x", "y", "z"], vec!["z", "x"]),
        (mesh(&[2, 2, 2]), vec!["x", "z"], vec!["x", "z"]),
        (mesh(&[2, 2, 2]), vec!["y", "z"], vec!["z"]),
        (mesh(&[2, 2, 2]), vec!["y"], vec!["y"]),
    ]
}

#[test]
fn a_sum_over_devices() {
    for (mesh, manual, axes) in cases() {
        let n = size(&mesh, &axes);
        compare(
            &format!("all_reduce over {axes:?} of {manual:?}"),
            &mesh,
            &[noise(&[8, 8], 1, false)],
            |g, x| {
                let along = axes.join(" ");
                g.manual(
                    &manual,
                    &[(&x[0], split(&[&along, ""]))],
                    &[split(&["", ""]), split(&[&along, ""])],
                    |x| {
                        let sum = x[0].tanh().all_reduce(&axes);
                        vec![sum.square(), &x[0] * sum]
                    },
                )
            },
            |_, x| {
                let parts = blocks(&x[0], n);
                let sum = parts.tanh().sum(&[0]);
                vec![sum.square(), rows(&(parts * sum))]
            },
        );
    }
}

#[test]
fn gathered_parts() {
    for (mesh, manual, axes) in cases() {
        let n = size(&mesh, &axes);
        compare(
            &format!("all_gather over {axes:?} of {manual:?}"),
            &mesh,
            &[noise(&[8, 8], 1, false), noise(&[8, 3], 2, false)],
            |g, x| {
                let along = axes.join(" ");
                g.manual(
                    &manual,
                    &[(&x[0], split(&["", &along])), (&x[1], split(&[&along, ""]))],
                    &[split(&["", ""]), split(&["", &along])],
                    |x| {
                        let w = x[0].tanh().all_gather(&axes, 1);
                        let device = g.axis_index(&axes).convert(DType::F64) + 1.0;
                        let whole = x[1].all_gather(&axes, 0);
                        vec![
                            w.square(),
                            g.einsum("ab,bc->ac", &w, &whole, DType::F64) * device,
                        ]
                    },
                )
            },
            |g, x| {
                let w = x[0].tanh();
                let y = g.einsum("ab,bc->ac", &w, &x[1], DType::F64);
                let all: Vec<Tensor> = (1..=n).map(|i| &y * i as f64).collect();
                vec![
                    w.square(),
                    Tensor::concatenate(&all.iter().collect::<Vec<_>>(), 1),
                ]
            },
        );
    }
}

#[test]
fn scattered_sums() {
    for (mesh, manual, axes) in cases() {
        let n = size(&mesh, &axes);
        compare(
            &format!("reduce_scatter over {axes:?} of {manual:?}"),
            &mesh,
            &[noise(&[8, 8], 1, false)],
            |g, x| {
                let along = axes.join(" ");
                g.manual(
                    &manual,
                    &[(&x[0], split(&[&along, ""]))],
                    &[split(&["", &along])],
                    |x| vec![x[0].tanh().reduce_scatter(&axes, 1).square()],
                )
            },
            |_, x| vec![blocks(&x[0], n).tanh().sum(&[0]).square()],
        );
    }
}

#[test]
fn exchanged_parts() {
    for (mesh, manual, axes) in cases() {
        let n = size(&mesh, &axes);
        compare(
            &format!("all_to_all over {axes:?} of {manual:?}"),
            &mesh,
            &[noise(&[8, 8, 3], 1, false)],
            |g, x| {
                let along = axes.join(" ");
                g.manual(
                    &manual,
                    &[(&x[0], split(&[&along, "", ""]))],
                    &[split(&["", &along, ""]), split(&[&along, "", ""])],
                    |x| {
                        let h = x[0].tanh();
                        vec![
                            h.all_to_all(&axes, 1, 0).square(),
                            h.all_to_all(&axes, 1, 1).square(),
                        ]
                    },
                )
            },
            |_, x| {
                let h = x[0].tanh();
                // [sender, row, receiver, column]
                let parts = h.reshape(&[n, 8 / n, n, 8 / n, 3]);
                let swapped = parts.transpose(&[2, 1, 0, 3, 4]).reshape(&[8, 8, 3]);
                vec![h.square(), swapped.square()]
            },
        );
    }
}

#[test]
fn parts_sent_along_an_axis() {
    for (mesh, manual, axes) in cases() {
        let axis = axes[0];
        let n = size(&mesh, &[axis]);
        let ring: Vec<(usize, usize)> = (0..n).map(|i| (i, (i + 1) % n)).collect();
        let shift = &ring[..n - 1];
        compare(
            &format!("collective_permute over {axis} of {manual:?}"),
            &mesh,
            &[noise(&[8, 3], 1, false)],
            |g, x| {
                g.manual(
                    &manual,
                    &[(&x[0], split(&[axis, ""]))],
                    &[split(&[axis, ""]), split(&[axis, ""])],
                    |x| {
                        let h = x[0].tanh();
                        vec![
                            h.collective_permute(axis, &ring).square(),
                            (h.collective_permute(axis, shift) + 0.5).square(),
                        ]
                    },
                )
            },
            |_, x| {
                let parts = blocks(&x[0].tanh(), n);
                let last = parts.slice(0, n - 1, n);
                let others = parts.slice(0, 0, n - 1);
                let ring = Tensor::concatenate(&[&last, &others], 0);
                let shifted = Tensor::concatenate(&[&last.zeros_like(), &others], 0);
                vec![rows(&ring.square()), rows(&(shifted + 0.5).square())]
            },
        );
    }
}

/// In f32 to rounding, and in bf16 with sums that are exact.
#[test]
fn narrow_numbers_are_exchanged() {
    let mesh = mesh(&[2, 2]);
    let run = |mesh: &Mesh, regional: bool, dtype: DType, args: &[HostArray]| {
        run_on(mesh, "narrow", args, |g, x| {
            let axes = ["x", "y"];
            let f = |x: &Tensor| {
                if !regional {
                    return vec![x.square(), blocks(x, 4).sum(&[0])];
                }
                let parts = split(&["x y", ""]);
                let results = [parts.clone(), split(&["", "x y"])];
                g.manual(&axes, &[(x, parts)], &results, |p| {
                    let whole = p[0].all_gather(&axes, 0).all_to_all(&axes, 0, 1);
                    let mine = whole.all_to_all(&axes, 1, 0).reduce_scatter(&axes, 0) * 0.25;
                    vec![
                        mine.square(),
                        p[0].all_reduce(&axes).reduce_scatter(&axes, 1) * 0.25,
                    ]
                })
            };
            let narrow = x[0].convert(dtype);
            let y = f(&narrow);
            let loss = y.iter().map(|y| y.sum_all()).reduce(|a, b| a + b).unwrap();
            let d = g.grad(&loss, &[&x[0]]);
            y.iter().chain(&d).map(|t| t.convert(DType::F64)).collect()
        })
    };
    let counted: Vec<f64> = (0..64).map(|i| f64::from(i % 5 - 2)).collect();
    let exact = [HostArray::from_slice(&[8, 8], &counted).unwrap()];
    let noisy = [noise(&[8, 8], 1, false)];
    for (dtype, args, tolerance) in [(DType::F32, &noisy, 1e-6), (DType::BF16, &exact, 0.0)] {
        let found = run(&mesh, true, dtype, args);
        let expected = run(&Mesh::single(), false, dtype, args);
        assert_equal(&format!("{dtype}"), &found, &expected, tolerance);
    }
}
