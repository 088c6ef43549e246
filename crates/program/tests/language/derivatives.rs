//! Every differentiable operation against finite differences, in the middle of a graph.

use ferrotune_graph::{DType, HostArray, Precision, Tensor};

use crate::check::{derivative, noise};

fn ids(values: &[i32]) -> HostArray {
    HostArray::from_slice(&[values.len()], values).unwrap()
}

#[test]
fn of_unary_operations() {
    let x = [noise(&[5], 1, false)];
    let positive = [noise(&[5], 2, true)];
    derivative("negate", &x, |_, x| x[0].negate());
    derivative("abs", &x, |_, x| x[0].abs());
    derivative("exp", &x, |_, x| x[0].exp());
    derivative("expm1", &x, |_, x| x[0].expm1());
    derivative("tanh", &x, |_, x| x[0].tanh());
    derivative("logistic", &x, |_, x| x[0].logistic());
    derivative("silu", &x, |_, x| x[0].silu());
    derivative("square", &x, |_, x| x[0].square());
    derivative("sin", &x, |_, x| x[0].sin());
    derivative("cos", &x, |_, x| x[0].cos());
    derivative("tan", &x, |_, x| x[0].tan());
    derivative("erf", &x, |_, x| x[0].erf());
    derivative("cbrt", &x, |_, x| x[0].cbrt());
    derivative("ln", &positive, |_, x| x[0].ln());
    derivative("ln_1p", &positive, |_, x| x[0].ln_1p());
    derivative("sqrt", &positive, |_, x| x[0].sqrt());
    derivative("rsqrt", &positive, |_, x| x[0].rsqrt());
}

#[test]
fn of_binary_operations() {
    let ab = [noise(&[2, 3], 3, false), noise(&[2, 3], 4, false)];
    let positive = [noise(&[2, 3], 5, true), noise(&[2, 3], 6, true)];
    derivative("plus", &ab, |_, x| &x[0] + &x[1]);
    derivative("minus", &ab, |_, x| &x[0] - &x[1]);
    derivative("times", &ab, |_, x| &x[0] * &x[1]);
    derivative("over", &ab, |_, x| &x[0] / &x[1]);
    derivative("maximum", &ab, |_, x| x[0].maximum(&x[1]));
    derivative("minimum", &ab, |_, x| x[0].minimum(&x[1]));
    derivative("pow", &positive, |_, x| x[0].pow(&x[1]));
    derivative("atan2", &ab, |_, x| x[0].atan2(&x[1]));
    derivative("remainder", &ab, |_, x| (&x[0] * 5.0).remainder(&x[1]));
}

#[test]
fn of_broadcast_operands() {
    let ab = [noise(&[2, 1, 3], 7, false), noise(&[4, 1], 8, false)];
    derivative("broadcast_times", &ab, |_, x| &x[0] * &x[1]);
    derivative("broadcast_in_dim", &[noise(&[2, 1], 9, false)], |_, x| {
        x[0].broadcast_in_dim(&[2, 5, 3], &[0, 2])
    });
}

#[test]
fn of_choices() {
    let ab = [noise(&[6], 10, false), noise(&[6], 11, false)];
    derivative("select", &ab, |_, x| {
        x[0].gt(&x[1].scalar_like(0.1))
            .select(&x[0], &x[1].square())
    });
    derivative("clamp", &ab[..1], |_, x| x[0].clamp(-0.5, 0.6));
}

#[test]
fn of_shapes_and_slices() {
    let x = [noise(&[2, 3, 4], 12, false)];
    derivative("reshape", &x, |_, x| x[0].reshape(&[6, 4]));
    derivative("transpose", &x, |_, x| x[0].transpose(&[2, 0, 1]));
    derivative("slice", &x, |_, x| x[0].slice(2, 1, 3));
    derivative("pad", &x, |_, x| x[0].pad(1, 2, 1, 5.0));
    derivative("reverse", &x, |_, x| x[0].reverse(2));
    let ab = [noise(&[2, 3], 13, false), noise(&[2, 2], 14, false)];
    derivative("concatenate", &ab, |_, x| {
        Tensor::concatenate(&[&x[0], &x[1], &x[0]], 1)
    });
}

#[test]
fn of_reductions() {
    let x = [noise(&[3, 4, 2], 15, false)];
    derivative("sum", &x, |_, x| x[0].sum(&[0, 2]));
    derivative("max", &x, |_, x| x[0].max(&[1]));
    derivative("min", &x, |_, x| x[0].min(&[0, 1]));
    derivative("mean_keep", &x, |_, x| x[0].mean_keep(&[1]));
    derivative("cumulative_sum", &x, |_, x| x[0].cumulative_sum(1));
    for axis in 0..3 {
        derivative("cumulative_max", &x, |_, x| x[0].cumulative_max(axis));
        derivative("cumulative_min", &x, |_, x| x[0].cumulative_min(axis));
    }
    derivative("running_max_from_the_end", &x, |_, x| {
        x[0].reverse(1).cumulative_max(1).reverse(1)
    });
}

#[test]
fn of_contractions() {
    let cases: [(&str, &[usize], &[usize]); 7] = [
        ("ab,bc->ac", &[2, 3], &[3, 4]),
        ("ab,cb->ca", &[2, 3], &[4, 3]),
        ("btd,df->btf", &[2, 2, 3], &[3, 2]),
        ("bqhd,bkhd->bhqk", &[2, 3, 2, 2], &[2, 2, 2, 2]),
        ("bhqk,bkhd->bqhd", &[2, 2, 3, 2], &[2, 2, 2, 2]),
        ("ab,ab->", &[2, 3], &[2, 3]),
        ("a,b->ab", &[3], &[2]),
    ];
    for (k, (spec, a, b)) in cases.into_iter().enumerate() {
        derivative(
            &format!("einsum_{k}"),
            &[noise(a, 16, false), noise(b, 17, false)],
            |g, x| g.einsum(spec, &x[0], &x[1], DType::F64),
        );
        derivative(
            &format!("einsum_highest_{k}"),
            &[noise(a, 16, false), noise(b, 17, false)],
            |g, x| g.einsum_with(spec, &x[0], &x[1], DType::F64, Precision::Highest),
        );
    }
}

#[test]
fn of_rows_by_index() {
    let table = [noise(&[4, 3], 18, false)];
    derivative("take", &table, |g, x| {
        x[0].take(&g.constant(ids(&[3, 0, 3, 1])))
    });
    derivative("take_grid", &table, |g, x| {
        x[0].take(&g.constant(ids(&[3, 0, 3, 1])).reshape(&[2, 2]))
    });
    let both = [noise(&[4, 3], 19, false), noise(&[5, 3], 20, false)];
    derivative("scatter_add_rows", &both, |g, x| {
        x[0].scatter_add_rows(&g.constant(ids(&[1, 1, 0, 3, 1])), &x[1])
    });
    let grid = [noise(&[2, 3, 2], 25, false), noise(&[2, 4, 2], 26, false)];
    let wanted = HostArray::from_slice(&[2, 4], &[2, 0, 2, 1, 1, 1, 0, 1]).unwrap();
    derivative("take_along", &grid[..1], |g, x| {
        x[0].take_along(1, &g.constant(wanted.clone()))
    });
    derivative("take_label", &table, |g, x| {
        x[0].take_along(1, &g.constant(ids(&[2, 0, 1, 1])))
    });
    derivative("scatter_add_along", &grid, |g, x| {
        x[0].scatter_add_along(1, &g.constant(wanted.clone()), &x[1])
    });
    derivative("permute_rows", &table, |g, x| {
        let [order, back] = [[2, 0, 3, 1], [1, 3, 0, 2]].map(|o| g.constant(ids(&o)));
        x[0].permute_rows(&order, &back)
    });
    derivative("pick_last", &table, |g, x| {
        x[0].pick_last(&g.constant(ids(&[2, 0, 1, 1])))
    });
}

#[test]
fn of_sorted_and_largest_elements() {
    let both = [noise(&[2, 5, 2], 27, false), noise(&[2, 5, 2], 28, false)];
    for axis in 0..3 {
        for descending in [false, true] {
            derivative("sort_by_key", &both, |_, x| {
                let (keys, values) = x[0].sort_by_key(&[&x[1]], axis, descending);
                keys.square() + &values[0] * &keys
            });
            derivative("sorted_values", &both, |_, x| {
                x[0].sort_by_key(&[&x[1], &x[0].exp()], axis, descending)
                    .1
                    .remove(1)
            });
        }
    }
    let x = [noise(&[2, 3, 5], 29, false)];
    derivative("top_k", &x, |_, x| x[0].top_k(3).0);
}

#[test]
fn of_triangular_systems() {
    // 19 unknowns are a block of 16 and more; 3 are less than a block.
    for (n, lower, unit) in [
        (19, true, true),
        (3, false, true),
        (3, true, false),
        (5, false, false),
    ] {
        let args = [noise(&[2, n, n], 30, false), noise(&[2, n, 2], 31, false)];
        derivative("solve_triangular", &args, |_, x| {
            (&x[0] * 0.3).solve_triangular(&x[1], lower, unit)
        });
    }
}

#[test]
fn of_products_in_groups() {
    let args = [noise(&[7, 3], 32, false), noise(&[4, 3, 2], 33, false)];
    let sizes = ids(&[2, 0, 3, 1]);
    derivative("ragged_dot", &args, |g, x| {
        g.ragged_dot(&x[0], &x[1], &g.constant(sizes.clone()), DType::F64)
    });
    let args = [noise(&[7, 3], 34, false), noise(&[7, 2], 35, false)];
    derivative("ragged_outer", &args, |g, x| {
        g.ragged_outer(&x[0], &x[1], &g.constant(sizes.clone()), DType::F64)
    });
    // The derivative of the derivative by the rows is the product with the matrices transposed.
    let args = [noise(&[7, 2], 36, false), noise(&[4, 3, 2], 37, false)];
    derivative("ragged_dot_transposed", &args, |g, x| {
        let rows = g.full(1.0, DType::F64, &[7, 3]);
        let y = g.ragged_dot(&rows, &x[1], &g.constant(sizes.clone()), DType::F64);
        g.vjp(&[(&y, &x[0])], &[&rows]).remove(0)
    });
}

#[test]
fn of_dynamic_windows() {
    let both = [noise(&[4, 3], 21, false), noise(&[2, 2], 22, false)];
    derivative("dynamic_slice", &both[..1], |g, x| {
        let (i, j) = (g.scalar(1.0, DType::S32), g.scalar(1.0, DType::S32));
        x[0].dynamic_slice(&[&i, &j], &[2, 2])
    });
    derivative("dynamic_update_slice", &both, |g, x| {
        let (i, j) = (g.scalar(2.0, DType::S32), g.scalar(1.0, DType::S32));
        x[0].dynamic_update_slice(&x[1], &[&i, &j])
    });
}

#[test]
fn through_identities_and_conversions() {
    let x = [noise(&[4], 23, false)];
    derivative("named", &x, |_, x| x[0].named("here").square());
    derivative("barrier", &x, |g, x| {
        g.barrier(&[&x[0], &x[0].exp()])
            .iter()
            .fold(x[0].clone(), |a, b| a * b)
    });
    derivative("convert", &x, |_, x| x[0].convert(DType::F64).tanh());
    derivative("shard", &x, |_, x| x[0].shard(&["split"]).tanh());
}

#[test]
fn a_stopped_gradient_is_zero_and_the_rest_flows() {
    let x = noise(&[3], 24, false);
    let out = crate::check::run("stop", std::slice::from_ref(&x), |g, x| {
        let y = (&x[0] * x[0].stop_gradient()).sum_all();
        g.grad(&y, &[&x[0]])
    });
    assert_eq!(out[0], x);
}

#[test]
fn behind_a_stopped_gradient_stands_what_has_none() {
    let x = noise(&[3], 25, true);
    let out = crate::check::run("stop_while", std::slice::from_ref(&x), |g, x| {
        let limit = g.scalar(50.0, DType::F64);
        let state = vec![x[0].stop_gradient()];
        let scale = g.while_loop(state, |s| s[0].sum_all().lt(&limit), |s| vec![&s[0] * 2.0]);
        let y = (&x[0] * &scale[0]).sum_all();
        vec![g.grad(&y, &[&x[0]]).remove(0), scale[0].clone()]
    });
    assert_eq!(out[0], out[1]);
}
