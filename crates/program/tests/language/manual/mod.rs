//! Manual regions: every collective and every way in and out gives the values and the gradients of a program for one
//! device that is written without them.

mod collectives;
mod nested;
mod regions;
mod ring;
mod structure;

use ferrotune_graph::{DType, Graph, HostArray, Mesh, Sharding, Tensor};

use crate::check::{noise, run_on};

fn mesh(sizes: &[usize]) -> Mesh {
    let axes: Vec<(&str, usize)> = ["x", "y", "z"]
        .into_iter()
        .zip(sizes.iter().copied())
        .collect();
    Mesh::new(&axes).unwrap()
}

/// One space-separated list of axes per dimension.
fn split(dims: &[&str]) -> Sharding {
    let axes = |dim: &&str| dim.split_whitespace().map(str::to_owned).collect();
    Sharding {
        dims: dims.iter().map(axes).collect(),
    }
}

fn size(mesh: &Mesh, axes: &[&str]) -> usize {
    axes.iter().map(|a| mesh.axis_size(a).unwrap()).product()
}

/// Values of `f` and gradients of a weighted sum of them by every argument.
fn values_and_gradients(
    g: &Graph,
    x: &[Tensor],
    f: impl Fn(&[Tensor]) -> Vec<Tensor>,
) -> Vec<Tensor> {
    let inner: Vec<Tensor> = x.iter().map(|x| x * 0.9 + x * x * 0.05).collect();
    let values = f(&inner);
    let losses = values.iter().enumerate().map(|(k, y)| {
        let weights = g.constant(noise(&y.dims(), 77 + k as u64, false));
        (y.convert(DType::F64) * weights).sum_all()
    });
    let loss = losses.reduce(|a, b| a + b).unwrap() * 1.7;
    let gradients = g.grad(&loss, &x.iter().collect::<Vec<_>>());
    [values, gradients].concat()
}

fn assert_equal(what: &str, found: &[HostArray], expected: &[HostArray], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (k, (a, b)) in found.iter().zip(expected).enumerate() {
        assert_eq!(a.dims(), b.dims(), "{what}: result {k}");
        let (a, b) = (numbers(a), numbers(b));
        for (i, (a, b)) in a.iter().zip(&b).enumerate() {
            let close = (a - b).abs() <= tolerance * (1.0 + b.abs());
            assert!(
                close,
                "{what}: element {i} of result {k} is {a}, on one device {b}"
            );
        }
    }
}

fn numbers(array: &HostArray) -> Vec<f64> {
    if array.dtype() == DType::F64 {
        array.as_slice::<f64>().to_vec()
    } else {
        array.to_f32_vec().into_iter().map(f64::from).collect()
    }
}

/// Runs `regional` on a mesh and `whole` on one device, and compares values and gradients.
fn compare(
    what: &str,
    mesh: &Mesh,
    args: &[HostArray],
    regional: impl Fn(&Graph, &[Tensor]) -> Vec<Tensor>,
    whole: impl Fn(&Graph, &[Tensor]) -> Vec<Tensor>,
) {
    let found = run_on(mesh, "regional", args, |g, x| {
        values_and_gradients(g, x, |x| regional(g, x))
    });
    let expected = run_on(&Mesh::single(), "whole", args, |g, x| {
        values_and_gradients(g, x, |x| whole(g, x))
    });
    assert_equal(&format!("{what} on {mesh}"), &found, &expected, 1e-12);
}

/// `[8, …]` as one block of rows per device.
fn blocks(x: &Tensor, n: usize) -> Tensor {
    let dims = x.dims();
    x.reshape(&[&[n, dims[0] / n], &dims[1..]].concat())
}

fn rows(x: &Tensor) -> Tensor {
    let dims = x.dims();
    x.reshape(&[&[dims[0] * dims[1]], &dims[2..]].concat())
}
