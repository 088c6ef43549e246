//! Values and gradients against JAX: `tests/fixtures/jax/reference.json`, written by the script beside it.
//!
//! Both sides compute in f32, each sum in its own order. The longest sums have 20 terms, so that a difference of a few
//! units in the last place, 1e-7 of the largest term, is expected: results may differ by 1e-6 of the largest number in
//! their array.

use std::sync::OnceLock;

use ferrotune_graph::{DType, Graph, HostArray, Policy, Tensor};
use serde_json::Value;

use crate::check::run;

fn array(json: &Value) -> HostArray {
    let list = |key: &str| json[key].as_array().unwrap().iter();
    let dims: Vec<usize> = list("dims").map(|d| d.as_u64().unwrap() as usize).collect();
    if json["dtype"] == "f32" {
        let values: Vec<f32> = list("values").map(|v| v.as_f64().unwrap() as f32).collect();
        HostArray::from_slice(&dims, &values).unwrap()
    } else {
        let values: Vec<i32> = list("values").map(|v| v.as_i64().unwrap() as i32).collect();
        HostArray::from_slice(&dims, &values).unwrap()
    }
}

/// The arrays of one kind of a case of the file.
fn arrays(name: &str, kind: &str) -> Vec<HostArray> {
    static REFERENCE: OnceLock<Value> = OnceLock::new();
    let file = REFERENCE.get_or_init(|| {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/jax/reference.json"
        );
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    });
    file[name][kind]
        .as_array()
        .unwrap()
        .iter()
        .map(array)
        .collect()
}

fn compare(what: &str, found: &HostArray, expected: &HostArray) {
    assert_eq!(
        (found.dtype(), found.dims()),
        (expected.dtype(), expected.dims()),
        "{what}"
    );
    let (found, expected) = (found.to_f32_vec(), expected.to_f32_vec());
    let largest = expected.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    for (i, (x, y)) in found.iter().zip(&expected).enumerate() {
        assert!(
            (x - y).abs() <= 1e-6 * largest,
            "{what}, element {i}: {x}, in JAX {y}"
        );
    }
}

/// Runs a case and compares its results and the gradients of its floating-point arguments.
fn agrees(name: &str, f: impl Fn(&Graph, &[Tensor]) -> Vec<Tensor>) {
    let arguments = arrays(name, "arguments");
    let cotangents = arrays(name, "cotangents");
    let count = arguments.len();
    let all = [&arguments[..], &cotangents[..]].concat();
    let found = run(name, &all, |g, x| {
        let (x, weights) = x.split_at(count);
        let results = f(g, x);
        let floats = results.iter().filter(|y| y.dtype().is_float());
        let seeds: Vec<(&Tensor, &Tensor)> = floats.zip(weights).collect();
        let wrt: Vec<&Tensor> = x.iter().filter(|x| x.dtype().is_float()).collect();
        let gradients = if seeds.is_empty() {
            vec![]
        } else {
            g.vjp(&seeds, &wrt)
        };
        results.iter().cloned().chain(gradients).collect()
    });
    let expected = [arrays(name, "results"), arrays(name, "gradients")].concat();
    assert_eq!(found.len(), expected.len(), "{name}");
    for (i, (x, y)) in found.iter().zip(&expected).enumerate() {
        compare(&format!("{name}, result {i}"), x, y);
    }
}

#[test]
fn indexing() {
    agrees("take", |_, x| vec![x[0].take(&x[1])]);
    agrees("scatter_add", |_, x| {
        vec![x[0].scatter_add_rows(&x[1], &x[2])]
    });
    agrees("take_along", |_, x| vec![x[0].take_along(1, &x[1])]);
    agrees("label_pick", |_, x| vec![x[0].take_along(1, &x[1])]);
    agrees("label_pick", |_, x| vec![x[0].pick_last(&x[1])]);
}

#[test]
fn order() {
    let sorted = |x: &[Tensor], descending| {
        let (keys, values) = x[0].sort_by_key(&[&x[1]], 1, descending);
        vec![keys, values[0].clone()]
    };
    agrees("sort", |_, x| sorted(x, false));
    agrees("sort_descending", |_, x| sorted(x, true));
    agrees("top_k", |_, x| {
        let (values, places) = x[0].top_k(3);
        vec![values, places]
    });
    agrees("arg_extremes", |_, x| vec![x[0].argmax(1), x[0].argmin(1)]);
}

#[test]
fn running_values() {
    agrees("cumulative_sum", |_, x| vec![x[0].cumulative_sum(1)]);
    agrees("cumulative_max", |_, x| vec![x[0].cumulative_max(1)]);
    agrees("cumulative_min", |_, x| vec![x[0].cumulative_min(1)]);
    agrees("cumulative_max_reverse", |_, x| {
        vec![x[0].reverse(1).cumulative_max(1).reverse(1)]
    });
}

#[test]
fn triangular_systems() {
    for (name, lower, unit) in [
        ("solve_lower_unit", true, true),
        ("solve_lower", true, false),
        ("solve_upper", false, false),
    ] {
        agrees(name, |_, x| vec![x[0].solve_triangular(&x[1], lower, unit)]);
    }
}

#[test]
fn products_in_groups() {
    agrees("ragged_dot", |g, x| {
        vec![g.ragged_dot(&x[0], &x[1], &x[2], DType::F32)]
    });
}

#[test]
fn scans() {
    let step = |g: &Graph, w: &Tensor, carry: &[Tensor], x: &[Tensor]| {
        let h = (g.einsum("a,ab->b", &carry[0], w, DType::F32) + &x[0]).tanh();
        let y = h.square() * &x[0];
        (vec![h], vec![y])
    };
    let scan = |g: &Graph, x: &[Tensor], reverse: bool| {
        let (carry, inputs) = (vec![x[1].clone()], vec![x[2].clone()]);
        let body = |_: &Tensor, c: &[Tensor], s: &[Tensor]| step(g, &x[0], c, s);
        let (carry, ys) = if reverse {
            g.scan_reverse(Policy::recompute(), carry, inputs, 4, body)
        } else {
            g.scan(Policy::recompute(), carry, inputs, 4, body)
        };
        vec![carry[0].clone(), ys[0].clone()]
    };
    agrees("scan", |g, x| scan(g, x, false));
    agrees("scan_reverse", |g, x| scan(g, x, true));
}

#[test]
fn branches() {
    for name in ["cond_true", "cond_false"] {
        agrees(name, |g, x| {
            let yes = x[0].gt(&x[0].scalar_like(0.0));
            let product = || vec![g.einsum("ab,bc->ac", &x[1], &x[2], DType::F32).tanh()];
            g.cond(&yes, product, || vec![x[1].square()])
        });
    }
}
