//! The same program on 1, 2, 4 and 8 devices gives the same numbers.

use ferrotune_graph::{DType, Mesh, Policy, Tensor};
use ferrotune_program::{Argument, Builder, Group, Layout, Leaf};

use crate::check::{client, noise, rules, run_on};

fn meshes() -> Vec<Mesh> {
    [(1, 1), (2, 1), (1, 4), (2, 2), (4, 2)]
        .iter()
        .map(|(x, y)| Mesh::new(&[("x", *x), ("y", *y)]).unwrap())
        .collect()
}

/// A scanned two-layer network and its gradient, with sharded activations.
fn network(x: &[Tensor]) -> Vec<Tensor> {
    let g = x[0].graph().clone();
    let (h, w) = (x[0].shard(&["both", "_"]), &x[1]);
    let (carry, _) = g.scan(
        Policy::recompute(),
        vec![h],
        vec![w.clone()],
        2,
        |_, h, w| {
            let next = g.einsum("bd,df->bf", &h[0], &w[0], DType::F64).tanh() + &h[0];
            (vec![next.shard(&["both", "_"])], vec![])
        },
    );
    let loss = carry[0].square().sum_all();
    let d = g.grad(&loss, &[&x[0], &x[1]]);
    vec![loss, d[0].clone(), d[1].clone()]
}

#[test]
fn values_and_gradients_do_not_depend_on_the_mesh() {
    let args = [noise(&[8, 4], 1, false), noise(&[2, 4, 4], 2, false)];
    let results: Vec<Vec<Vec<f64>>> = meshes()
        .iter()
        .map(|mesh| {
            run_on(mesh, "network", &args, |_, x| network(x))
                .iter()
                .map(|a| a.as_slice::<f64>().to_vec())
                .collect()
        })
        .collect();
    for other in &results[1..] {
        for (a, b) in results[0].iter().flatten().zip(other.iter().flatten()) {
            assert!((a - b).abs() <= 1e-12 * (1.0 + a.abs()), "{a} {b}");
        }
    }
}

#[test]
fn sharded_state_is_updated_in_place_on_every_device() {
    for mesh in meshes() {
        let layout = Layout::new(
            &mesh,
            &rules(),
            &[Leaf::new("w", DType::F64, &[8, 4], &["split", "split2"])],
        )
        .unwrap();
        let mut builder = Builder::new("double", &mesh, &rules());
        let w = builder.input("w", &layout);
        let doubled = [&w[0] * 2.0];
        builder.output_replacing(&layout, &doubled, &w);
        let program = builder.compile(client()).unwrap();
        assert_eq!(
            program.memory().alias as usize,
            layout.bytes() / mesh.device_count(),
            "each device's part is aliased"
        );
        let host = noise(&[8, 4], 3, false);
        let mut group = Group::upload(client(), &layout, std::slice::from_ref(&host)).unwrap();
        for _ in 0..3 {
            group = program
                .call(vec![Argument::Moved(group)])
                .unwrap()
                .remove(0);
        }
        let found = group.to_host().unwrap().remove(0);
        let expected: Vec<f64> = host.as_slice::<f64>().iter().map(|v| v * 8.0).collect();
        assert_eq!(found.as_slice::<f64>(), expected);
    }
}

#[test]
fn what_cannot_be_placed_is_named() {
    let mesh = Mesh::new(&[("x", 2), ("y", 1)]).unwrap();
    let odd = Layout::new(
        &mesh,
        &rules(),
        &[Leaf::new("layers/w", DType::F32, &[3, 4], &["split", "_"])],
    )
    .unwrap_err();
    assert!(odd.to_string().contains("layers/w"), "{odd}");
    let unknown = Layout::new(
        &mesh,
        &rules(),
        &[Leaf::new("w", DType::F32, &[4], &["spilt"])],
    )
    .unwrap_err();
    assert!(
        unknown.to_string().contains("spilt") && unknown.to_string().contains("split2"),
        "{unknown}"
    );
}
