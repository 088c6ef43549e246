//! Regions among other things: automatic axes, scans inside and outside, captures, integer inputs.

use ferrotune_graph::{DType, Graph, HostArray, Mesh, Policy, Tensor};

use super::{assert_equal, blocks, compare, mesh, rows, size, split, values_and_gradients};
use crate::check::{derivative_on, noise, run_on};

/// Rules of [`crate::check::rules`] place `split` along x and `split2` along y.
#[test]
fn automatic_axes_go_on_splitting_inside_a_region() {
    let (a, b) = (mesh(&[2, 2]), mesh(&[2, 2, 2]));
    for (mesh, manual) in [
        (a.clone(), vec!["x"]),
        (b.clone(), vec!["x"]),
        (b, vec!["x", "z"]),
    ] {
        let n = size(&mesh, &manual);
        let along = manual.join(" ");
        compare(
            &format!("manual {manual:?} with y automatic"),
            &mesh,
            &[noise(&[8, 8], 1, false), noise(&[8, 8], 2, false)],
            |g, x| {
                let (x, w) = (x[0].shard(&["_", "split2"]), x[1].shard(&["split2", "_"]));
                g.manual(
                    &manual,
                    &[(&x, split(&[&along, ""]))],
                    &[
                        split(&[&along, ""]),
                        split(&["", ""]),
                        split(&["", &along]),
                        split(&["", &along]),
                        split(&["", &along]),
                    ],
                    |x| {
                        let h = g.einsum("ab,bc->ac", &x[0], &w, DType::F64).tanh();
                        let h = h.shard(&["_", "split2"]);
                        let ring: Vec<(usize, usize)> = vec![(0, 1), (1, 0)];
                        vec![
                            h.collective_permute("x", &ring)
                                * g.axis_index(&manual).convert(DType::F64),
                            h.all_reduce(&manual).square(),
                            h.all_to_all(&manual, 1, 0).square(),
                            h.reduce_scatter(&manual, 1).square(),
                            h.all_gather(&manual, 0).reduce_scatter(&manual, 1).square(),
                        ]
                    },
                )
            },
            |g, x| {
                let h = g.einsum("ab,bc->ac", &x[0], &x[1], DType::F64).tanh();
                let parts = blocks(&h, n);
                let half = n / 2;
                let swapped =
                    Tensor::concatenate(&[&parts.slice(0, half, n), &parts.slice(0, 0, half)], 0);
                let device = g.iota(DType::F64, &[n, 1, 1], 0);
                vec![
                    rows(&(swapped * device)),
                    parts.sum(&[0]).square(),
                    h.square(),
                    parts.sum(&[0]).square(),
                    (h * n as f64).square(),
                ]
            },
        );
    }
}

#[test]
fn a_region_in_a_scan_and_a_scan_in_a_region() {
    for (mesh, manual) in [
        (mesh(&[2]), vec!["x"]),
        (mesh(&[2, 2]), vec!["x", "y"]),
        (mesh(&[2, 2]), vec!["x"]),
        (mesh(&[2, 2, 2]), vec!["z", "x"]),
    ] {
        let along = manual.join(" ");
        let args = [
            noise(&[8, 4], 1, false),
            noise(&[3, 4, 4], 2, false),
            noise(&[4], 3, false),
        ];
        let step = |h: &Tensor, w: &Tensor, bias: &Tensor, sum: &dyn Fn(&Tensor) -> Tensor| {
            let g = h.graph();
            let next = (g.einsum("ab,bc->ac", h, w, DType::F64) + bias).tanh();
            let mean = sum(&next) / 8.0;
            next + mean
        };
        let whole = |g: &Graph, x: &[Tensor]| {
            let (h, _) = g.scan(
                Policy::recompute(),
                vec![x[0].clone()],
                vec![x[1].clone()],
                3,
                |_, h, w| {
                    (
                        vec![step(&h[0], &w[0], &x[2], &|h| h.sum_keep(&[0]))],
                        vec![],
                    )
                },
            );
            h
        };
        for policy in [Policy::recompute(), Policy::keep_dots()] {
            compare(
                &format!("scan outside of manual {manual:?}"),
                &mesh,
                &args,
                |g, x| {
                    let (h, _) = g.scan(
                        policy.clone(),
                        vec![x[0].clone()],
                        vec![x[1].clone()],
                        3,
                        |_, h, w| {
                            let next = g.manual(
                                &manual,
                                &[(&h[0], split(&[&along, ""])), (&w[0], split(&["", ""]))],
                                &[split(&[&along, ""])],
                                |p| {
                                    vec![step(&p[0], &p[1], &x[2], &|h| {
                                        h.sum_keep(&[0]).all_reduce(&manual)
                                    })]
                                },
                            );
                            (next, vec![])
                        },
                    );
                    h
                },
                whole,
            );
            compare(
                &format!("scan inside of manual {manual:?}"),
                &mesh,
                &args,
                |g, x| {
                    g.manual(
                        &manual,
                        &[(&x[0], split(&[&along, ""])), (&x[1], split(&["", "", ""]))],
                        &[split(&[&along, ""])],
                        |p| {
                            let (h, _) = g.scan(
                                policy.clone(),
                                vec![p[0].clone()],
                                vec![p[1].clone()],
                                3,
                                |_, h, w| {
                                    let sum = |h: &Tensor| h.sum_keep(&[0]).all_reduce(&manual);
                                    (vec![step(&h[0], &w[0], &x[2], &sum)], vec![])
                                },
                            );
                            h
                        },
                    )
                },
                whole,
            );
        }
    }
}

#[test]
fn captures_and_copies_get_the_sum_of_all_cotangents() {
    for (mesh, manual) in [
        (mesh(&[4]), vec!["x"]),
        (mesh(&[2, 2]), vec!["x", "y"]),
        (mesh(&[2, 2]), vec!["y"]),
    ] {
        let first = manual[0];
        compare(
            &format!("copies over {manual:?}"),
            &mesh,
            &[
                noise(&[8, 3], 1, false),
                noise(&[3], 2, false),
                noise(&[3], 3, false),
            ],
            |g, x| {
                // `outer` is used on both sides; the input `x[2]` enters as copies.
                let outer = x[1].exp();
                let mut found = g.manual(
                    &manual,
                    &[(&x[0], split(&[first, ""])), (&x[2], split(&[""]))],
                    &[split(&[first, ""]), split(&[""])],
                    |p| {
                        let h = &p[0] * &outer + &p[1];
                        // Devices along the other axes hold equal values, and one of them is taken.
                        vec![h.square(), &p[1] * &outer]
                    },
                );
                found.push(outer.square());
                found
            },
            |_, x| {
                let outer = x[1].exp();
                vec![
                    (&x[0] * &outer + &x[2]).square(),
                    &x[2] * &outer,
                    outer.square(),
                ]
            },
        );
    }
}

#[test]
fn an_integer_input_picks_on_every_device() {
    let ids = HostArray::from_slice(&[8], &[3_i32, 0, 2, 2, 1, 3, 0, 1]).unwrap();
    let table = noise(&[4, 3], 1, false);
    let mesh = mesh(&[2, 2]);
    let run = |mesh: &Mesh, regional: bool| {
        run_on(mesh, "ids", std::slice::from_ref(&table), |g, x| {
            let ids = g.constant(ids.clone()) + 0.0;
            values_and_gradients(g, x, |x| {
                if regional {
                    g.manual(
                        &["x", "y"],
                        &[(&x[0], split(&["", ""])), (&ids, split(&["x y"]))],
                        &[split(&["x y", ""]), split(&["x y"])],
                        |p| vec![p[0].take(&p[1]).tanh(), &p[1] * 2.0],
                    )
                } else {
                    vec![x[0].take(&ids).tanh(), &ids * 2.0]
                }
            })
        })
    };
    let (found, expected) = (run(&mesh, true), run(&Mesh::single(), false));
    assert_eq!(found[1].as_slice::<i32>(), expected[1].as_slice::<i32>());
    assert_equal(
        "integer input",
        &[found[0].clone(), found[2].clone()],
        &[expected[0].clone(), expected[2].clone()],
        1e-12,
    );
}

/// A softmax over a dimension that is split, with the shift that cancels.
#[test]
fn the_largest_over_devices_shifts_a_softmax() {
    compare(
        "softmax over devices",
        &mesh(&[2, 2]),
        &[noise(&[3, 8], 1, false)],
        |g, x| {
            let parts = split(&["", "x y"]);
            g.manual(
                &["x", "y"],
                &[(&x[0], parts.clone())],
                &[parts, split(&["", ""])],
                |x| {
                    let top = x[0]
                        .max_keep(&[1])
                        .all_reduce_max(&["x", "y"])
                        .stop_gradient();
                    let p = (&x[0] - &top).exp();
                    let sum = p.sum_keep(&[1]).all_reduce(&["x", "y"]);
                    vec![p / sum, top]
                },
            )
        },
        |_, x| {
            let p = x[0].exp();
            vec![&p / p.sum_keep(&[1]), x[0].max_keep(&[1]).stop_gradient()]
        },
    );
}

#[test]
fn finite_differences_through_a_region() {
    let args = [
        noise(&[4, 4], 1, false),
        noise(&[4, 2], 2, false),
        noise(&[2], 3, false),
    ];
    for (mesh, axes) in [
        (mesh(&[2]), ["x"].as_slice()),
        (mesh(&[2, 2]), &["x", "y"]),
        (mesh(&[2, 2]), &["y"]),
    ] {
        let along = axes.join(" ");
        derivative_on(&mesh, "regions", &args, |g, x| {
            g.manual(
                axes,
                &[(&x[0], split(&[&along, ""])), (&x[1], split(&[&along, ""]))],
                &[split(&["", ""])],
                |p| {
                    let w = p[1].all_gather(axes, 0);
                    let h = (g.einsum("ab,bc->ac", &p[0], &w, DType::F64) * &x[2]).tanh();
                    let moved = h.collective_permute(axes[0], &[(0, 1)]);
                    let mean = (h.square() + moved).all_reduce(axes) / 4.0;
                    let exchanged = p[0]
                        .all_to_all(axes, 1, 0)
                        .sin()
                        .sum_keep(&[0, 1])
                        .all_reduce(axes);
                    vec![mean * exchanged]
                },
            )
            .remove(0)
        });
    }
}

#[test]
fn the_derivative_of_a_region_is_differentiated_again() {
    let args = [noise(&[4, 2], 1, false), noise(&[2], 2, false)];
    derivative_on(&mesh(&[2]), "twice", &args, |g, x| {
        let inputs = [(&x[0], split(&["x", ""])), (&x[1], split(&[""]))];
        let y = g.manual(&["x"], &inputs, &[split(&["x", ""]), split(&[""])], |p| {
            let mean = (&p[0] * &p[1]).sin().sum(&[0]).all_reduce(&["x"]) / 4.0;
            vec![&p[0] * &mean, mean * &p[1]]
        });
        let loss = y[0].square().sum_all() + y[1].sum_all();
        g.grad(&loss, &[&x[1]]).remove(0)
    });
}

#[test]
fn a_derivative_inside_of_a_region_is_that_of_the_sum_over_devices() {
    let local = |h: &Tensor, total: &Tensor| (h.tanh() * total).sum_all();
    compare(
        "gradient inside",
        &mesh(&[4]),
        &[noise(&[8, 3], 1, false)],
        |g, x| {
            let parts = split(&["x", ""]);
            g.manual(&["x"], &[(&x[0], parts.clone())], &[parts], |p| {
                let total = p[0].square().sum(&[0]).all_reduce(&["x"]);
                g.grad(&local(&p[0], &total), &[&p[0]])
            })
        },
        |g, x| {
            let total = x[0].square().sum(&[0]);
            g.grad(&local(&x[0], &total), &[&x[0]])
        },
    );
}
