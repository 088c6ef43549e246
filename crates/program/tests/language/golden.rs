//! The text of a handful of programs, kept beside the tests, so that a change of the emitter is seen.
//!
//! `UPDATE_GOLDEN=1 cargo test -p ferrotune-program golden` writes them anew; read the difference before keeping it.

use std::path::PathBuf;

use ferrotune_graph::{DType, Graph, Mesh, Output, Platform, Policy, Tensor};

use crate::check::rules;

/// Traces `f` of `x [4,8]` and `w [2,8,8]` for a mesh of 2 × 2 and compares its text with the kept one.
fn golden(name: &str, f: impl FnOnce(&Graph, &Tensor, &Tensor) -> Vec<(Tensor, Option<Tensor>)>) {
    let mesh = Mesh::new(&[("x", 2), ("y", 2)]).unwrap();
    let g = Graph::new(name, mesh.clone(), rules());
    let x = g.input("x", DType::F32, &[4, 8], &["split", "_"]);
    let w = g.input("w", DType::F32, &[2, 8, 8], &["_", "split2", "_"]);
    let results = f(&g, &x, &w);
    let outputs = results
        .into_iter()
        .enumerate()
        .map(|(i, (tensor, replaces))| {
            let axes = vec!["_"; tensor.rank()];
            let same = |t: &Tensor| {
                if t.rank() == 2 {
                    vec!["split", "_"]
                } else {
                    vec!["_", "split2", "_"]
                }
            };
            let axes = replaces.as_ref().map_or(axes, same);
            let sharding = rules()
                .place("result", &tensor.dims(), &axes, &mesh)
                .unwrap();
            Output {
                name: i.to_string(),
                tensor,
                sharding,
                replaces,
            }
        });
    let text = g
        .lower(Platform::Cpu, &outputs.collect::<Vec<_>>(), &[])
        .module
        .text;
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/language/golden")
        .join(format!("{name}.mlir"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, kept,
        "the text of `{name}` has changed; see the head of this file"
    );
}

fn layers(g: &Graph, x: &Tensor, w: &Tensor) -> Tensor {
    let (carry, _) = g.scan(
        Policy::keep_dots(),
        vec![x.clone()],
        vec![w.clone()],
        2,
        |_, h, w| {
            let product = g.scope("layer", || g.einsum("bd,df->bf", &h[0], &w[0], DType::F32));
            (vec![product.tanh().shard(&["split", "_"])], vec![])
        },
    );
    carry[0].clone()
}

#[test]
fn a_product_and_its_gradient() {
    golden("product", |g, x, w| {
        let w = w.slice(0, 0, 1).reshape(&[8, 8]);
        let y = g.einsum(
            "bd,df->bf",
            &x.convert(DType::BF16),
            &w.convert(DType::BF16),
            DType::BF16,
        );
        let loss = y.convert(DType::F32).square().sum_all();
        vec![(g.grad(&loss, &[x]).remove(0), Some(x.clone()))]
    });
}

#[test]
fn a_scan_of_layers() {
    golden("scan", |g, x, w| vec![(layers(g, x, w), None)]);
}

#[test]
fn a_scan_of_layers_and_its_gradient() {
    golden("scan_gradient", |g, x, w| {
        let loss = layers(g, x, w).square().sum_all();
        let gradients = g.grad(&loss, &[x, w]);
        vec![
            (loss, None),
            (gradients[0].clone(), None),
            (gradients[1].clone(), Some(w.clone())),
        ]
    });
}

#[test]
fn a_while_loop_with_captures() {
    golden("while", |g, x, _| {
        let limit = x.sum_all();
        let state = g.while_loop(
            vec![g.scalar(1.0, DType::F32), x.clone()],
            |s| s[0].lt(&limit),
            |s| vec![&s[0] * 2.0, &s[1] + x],
        );
        vec![(state[1].clone(), None)]
    });
}

#[test]
fn rows_by_index_and_their_gradient() {
    golden("rows", |g, x, _| {
        let ids = g.iota(DType::S32, &[3], 0);
        let rows = x.take(&ids);
        vec![(g.grad(&(&rows * &rows).sum_all(), &[x]).remove(0), None)]
    });
}
