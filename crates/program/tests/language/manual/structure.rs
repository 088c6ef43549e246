//! The text of regions: which collectives it has, that dead code is gone, what is refused and how; the second plugin.

use ferrotune_graph::{DType, Graph, HostArray, Mesh, Policy, Rules, Tensor};
use ferrotune_pjrt::{Client, PinnedPlugin, Plugin};

use super::{mesh, ring::ring_attention, split};
use crate::check::{noise, program_by, program_on, rules};

fn text(
    mesh: &Mesh,
    args: &[HostArray],
    f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
) -> String {
    program_on(mesh, "text", args, f).0.text().to_owned()
}

fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

/// Rows times a weight whose rows are gathered.
fn gathered_product(g: &Graph, x: &[Tensor]) -> Tensor {
    let parts = split(&["x", ""]);
    g.manual(
        &["x"],
        &[(&x[0], parts.clone()), (&x[1], parts.clone())],
        &[parts],
        |p| vec![g.einsum("ab,bc->ac", &p[0], &p[1].all_gather(&["x"], 0), DType::F64)],
    )
    .remove(0)
}

#[test]
fn a_gathered_weight_is_one_gather_and_its_gradient_one_scatter() {
    let args = [noise(&[8, 4], 1, false), noise(&[4, 3], 2, false)];
    let forward = text(&mesh(&[4]), &args, |g, x| vec![gathered_product(g, x)]);
    assert_eq!(count(&forward, "stablehlo.all_gather"), 1, "{forward}");
    assert_eq!(count(&forward, "stablehlo.reduce_scatter"), 0, "{forward}");
    let backward = text(&mesh(&[4]), &args, |g, x| {
        g.grad(&gathered_product(g, x).sum_all(), &[&x[1]])
    });
    assert_eq!(
        count(&backward, "stablehlo.reduce_scatter"),
        1,
        "{backward}"
    );
    assert_eq!(count(&backward, "stablehlo.all_gather"), 0, "{backward}");
    assert_eq!(count(&backward, "stablehlo.all_reduce"), 0, "{backward}");
}

#[test]
fn what_no_result_needs_is_not_written() {
    let args = [noise(&[8], 1, false), noise(&[8], 2, false)];
    let written = text(&mesh(&[2]), &args, |g, x| {
        let parts = split(&["x"]);
        let inputs = [(&x[0].exp(), parts.clone()), (&x[1].tanh(), parts.clone())];
        let both = g.manual(&["x"], &inputs, &[parts.clone(), parts], |p| {
            vec![p[0].square(), p[1].all_reduce(&["x"])]
        });
        vec![both[0].clone()]
    });
    assert!(
        !written.contains("tanh") && !written.contains("all_reduce"),
        "{written}"
    );
    assert!(
        !written.contains("iota"),
        "no device asks for its index: {written}"
    );
    let unrelated = text(&mesh(&[2]), &args, |g, x| {
        let (whole, part) = (split(&[""]), split(&["x"]));
        let inputs = [(&x[0], part.clone()), (&x[1], whole)];
        let both = g.manual(&["x"], &inputs, &[part.clone(), part], |p| {
            vec![p[0].square(), p[1].slice(0, 0, 4)]
        });
        g.grad(&both[0].sum_all(), &[&x[0], &x[1]])
    });
    assert!(
        !unrelated.contains("all_reduce"),
        "zeros are not summed: {unrelated}"
    );
}

#[test]
fn a_region_over_one_device_is_written_inline() {
    for one in [mesh(&[1]), mesh(&[1, 2])] {
        let args = [noise(&[8, 4], 1, false), noise(&[4, 3], 2, false)];
        let written = text(&one, &args, |g, x| vec![gathered_product(g, x)]);
        assert!(
            !written.contains("manual_computation") && !written.contains("all_gather"),
            "{written}"
        );
    }
}

#[test]
fn shardings_are_open_where_axes_are_automatic_and_closed_elsewhere() {
    let args = [noise(&[8, 4], 1, false), noise(&[4, 3], 2, false)];
    let fully = text(&mesh(&[2]), &args, |g, x| vec![gathered_product(g, x)]);
    assert!(
        fully.contains("in_shardings=[<@mesh, [{\"x\"}, {}]>, <@mesh, [{\"x\"}, {}]>]"),
        "{fully}"
    );
    let partly = text(&mesh(&[2, 1, 2]), &args, |g, x| {
        vec![gathered_product(g, x)]
    });
    assert!(
        partly.contains("out_shardings=[<@mesh, [{\"x\", ?}, {?}]>] manual_axes={\"x\", \"y\"}"),
        "{partly}"
    );
}

#[test]
fn an_automatic_axis_splits_the_memory_of_a_region() {
    let large = [noise(&[512, 512], 1, false)];
    let temporary = |mesh: &Mesh| {
        let (program, _) = program_on(mesh, "memory", &large, |g, x| {
            let x = x[0].shard(&["_", "split2"]).exp();
            let parts = split(&["x", ""]);
            let y = g.manual(&["x"], &[(&x, parts.clone())], &[parts], |p| {
                let (c, _) = g.scan(
                    Policy::recompute(),
                    vec![p[0].clone()],
                    vec![],
                    3,
                    |_, c, _| (vec![(&c[0] * 2.0).tanh()], vec![]),
                );
                c
            });
            vec![y[0].sum_all()]
        });
        program.memory().temp
    };
    let (one, two) = (temporary(&mesh(&[2, 1])), temporary(&mesh(&[2, 2])));
    assert!(
        two < one * 2 / 3,
        "{two} bytes on four devices, {one} on two"
    );
}

#[test]
fn every_collective_has_a_channel_of_its_own() {
    let written = text(&mesh(&[2]), &[noise(&[8], 1, false)], |g, x| {
        let parts = split(&["x"]);
        g.manual(&["x"], &[(&x[0], parts.clone())], &[parts], |p| {
            vec![&p[0] * p[0].all_reduce(&["x"]) + p[0].collective_permute("x", &[(0, 1)])]
        })
    });
    assert!(
        written.contains("handle = 1,") && written.contains("handle = 2,"),
        "{written}"
    );
}

#[test]
fn the_second_plugin_compiles_regions() {
    let plugin = Plugin::pinned(PinnedPlugin::Second, &mut |line| eprintln!("{line}"))
        .expect("the second CPU plugin");
    let client = Client::cpu(&plugin, 8).expect("a CPU client");
    let square = [
        noise(&[8, 8], 1, false),
        noise(&[8, 8], 2, false),
        noise(&[8, 8], 3, false),
    ];
    let gradient = |g: &Graph, x: &[Tensor], y: &[Tensor]| {
        let loss = y
            .iter()
            .map(|y| y.square().sum_all())
            .reduce(|a, b| a + b)
            .unwrap();
        g.grad(&loss, &x.iter().collect::<Vec<_>>())
    };
    for (mesh, manual) in [
        (mesh(&[4]), vec!["x"]),
        (mesh(&[2, 2]), vec!["x", "y"]),
        (mesh(&[2, 2]), vec!["x"]),
        (mesh(&[2, 2, 2]), vec!["y", "z"]),
    ] {
        program_by(&client, &mesh, "ring", &square, |g, x| {
            let n = mesh.axis_size(manual[0]).unwrap();
            let y = ring_attention(g, manual[0], n, x);
            gradient(g, x, &[y])
        });
        program_by(&client, &mesh, "all", &square, |g, x| {
            let along = manual.join(" ");
            let inputs = [(&x[0], split(&[&along, ""])), (&x[1], split(&["", ""]))];
            let y = g.manual(
                &manual,
                &inputs,
                &[split(&["", &along]), split(&["", ""])],
                |p| {
                    let h = g.einsum("ab,bc->ac", &p[0], &(&p[1] * &x[2]), DType::F64);
                    let h = h.all_gather(&manual, 0)
                        * (g.axis_index(&manual).convert(DType::F64) + 1.0);
                    let top = h.max_keep(&[0, 1]).all_reduce_max(&manual).stop_gradient();
                    let h = (h - top)
                        .reduce_scatter(&manual, 0)
                        .all_to_all(&manual, 1, 0);
                    vec![
                        h.clone(),
                        h.sum(&[0, 1]).all_reduce(&manual).broadcast_to(&[2, 2]),
                    ]
                },
            );
            gradient(g, x, &y)
        });
    }
}

#[test]
fn costs_are_summed_over_devices_and_exchanged_bytes_are_those_of_one() {
    let g = Graph::new("cost", mesh(&[4]), rules());
    let x = g.input("x", DType::F32, &[8, 16], &["_", "_"]);
    let w = g.input("w", DType::F32, &[16, 16], &["_", "_"]);
    let (c, _) = g.scan(Policy::recompute(), vec![x], vec![], 5, |_, c, _| {
        let next = g.manual(
            &["x"],
            &[(&c[0], split(&["x", ""])), (&w, split(&["x", ""]))],
            &[split(&["x", ""])],
            |p| vec![g.einsum("ab,bc->ac", &p[0], &p[1].all_gather(&["x"], 0), DType::F32)],
        );
        (next, vec![])
    });
    let cost = g.cost(&[&c[0]]);
    assert_eq!(cost.flops, 5.0 * 2.0 * 8.0 * 16.0 * 16.0);
    assert_eq!(cost.collective_bytes, 5.0 * 0.75 * 16.0 * 16.0 * 4.0);
    let bytes = |f: &dyn Fn(&Tensor) -> Tensor| {
        let y = g.manual(
            &["x"],
            &[(&w, split(&["x", ""]))],
            &[split(&["", ""])],
            |p| vec![f(&p[0])],
        );
        g.cost(&[&y[0]]).collective_bytes / (4.0 * 16.0 * 4.0)
    };
    assert_eq!(bytes(&|w| w.all_reduce(&["x"])), 1.5);
    assert_eq!(bytes(&|w| w.all_reduce_max(&["x"])), 1.5);
    assert_eq!(bytes(&|w| w.reduce_scatter(&["x"], 0)), 0.75);
    assert_eq!(bytes(&|w| w.all_to_all(&["x"], 0, 1)), 0.75);
    assert_eq!(bytes(&|w| w.collective_permute("x", &[(0, 1)])), 1.0);
    assert_eq!(bytes(&|w| w.collective_permute("x", &[])), 0.0);
}

/// Traces a region over `axes` of a mesh of 2 × 2 with an input of `[4, 6]`.
fn traced(axes: &[&str], dims: &[&str], f: impl FnOnce(&Graph, &Tensor) -> Tensor) {
    let g = Graph::new("refused", mesh(&[2, 2]), rules());
    let x = g.input("x", DType::F32, &[4, 6], &["_", "_"]);
    g.manual(axes, &[(&x, split(dims))], &[split(dims)], |p| {
        vec![f(&g, &p[0])]
    });
}

macro_rules! refused {
    ($($name:ident: $message:literal => $call:expr;)*) => { $(
        #[test]
        #[should_panic(expected = $message)]
        fn $name() {
            $call;
        }
    )* };
}

refused! {
    an_axis_that_the_mesh_has_not: "names the axis `q`, which is not an axis of the mesh; there are: x, y"
        => traced(&["q"], &["", ""], |_, x| x.clone());
    an_axis_where_there_is_none: "which is not an axis of the mesh; there is none" => {
        let g = Graph::new("refused", Mesh::single(), Rules::default());
        g.manual(&["x"], &[], &[], |_| vec![])
    };
    an_axis_named_twice: "names the axis `x` twice" => traced(&["x", "x"], &["", ""], |_, x| x.clone());
    an_axis_that_splits_two_dimensions: "uses axis 'x' more than once" => traced(&["x"], &["x", "x"], |_, x| x.clone());
    an_automatic_axis_in_a_sharding: "the sharding of input 0 of `manual` names the axis `y`, which is not"
        => traced(&["x"], &["y", ""], |_, x| x.clone());
    a_dimension_that_does_not_divide: "input 0 of `manual`, tensor<4x6xf32> split as"
        => traced(&["x", "y"], &["", "x y"], |_, x| x.clone());
    a_sharding_of_another_rank: "the sharding has 1 dimensions but the array has 2"
        => traced(&["x"], &["x"], |_, x| x.clone());
    a_result_of_another_rank: "output 0 of `manual`" => traced(&["x"], &["x", ""], |_, x| x.sum(&[1]));
    a_collective_over_an_automatic_axis: "`all_reduce` names the axis `y`, which is not manual here; there are: x"
        => traced(&["x"], &["", ""], |_, x| x.all_reduce(&["y"]));
    a_collective_over_an_axis_twice: "`all_gather` names the axis `x` twice"
        => traced(&["x"], &["", ""], |_, x| x.all_gather(&["x", "x"], 0));
    a_collective_along_no_dimension: "there is no dimension 2"
        => traced(&["x"], &["", ""], |_, x| x.all_gather(&["x"], 2));
    a_scatter_that_does_not_divide: "dimension 1 of size 6 cannot be split among 4 devices along x, y"
        => traced(&["x", "y"], &["", ""], |_, x| x.reduce_scatter(&["x", "y"], 1));
    a_target_twice: "1 is the target of two pairs"
        => traced(&["x"], &["", ""], |_, x| x.collective_permute("x", &[(0, 1), (1, 1)]));
    a_source_twice: "0 is the source of two pairs"
        => traced(&["x"], &["", ""], |_, x| x.collective_permute("x", &[(0, 1), (0, 0)]));
    a_pair_beyond_the_axis: "pair (0, 2) along axis `x` of size 2"
        => traced(&["x"], &["", ""], |_, x| x.collective_permute("x", &[(0, 2)]));
    a_region_along_an_axis_that_is_manual_already: "names the axis `x`, which is manual here already"
        => traced(&["x"], &["", ""], |g, x| g.manual(&["y", "x"], &[(x, split(&["", ""]))], &[split(&["", ""])], |p| p.to_vec()).remove(0));
    a_constraint_along_a_manual_axis: "would split along the axis `x`, which is manual here"
        => traced(&["x"], &["", ""], |_, x| x.shard_as(&split(&["x", ""])));
    a_constraint_that_does_not_divide: "tensor<3x6xf32> split as"
        => traced(&["x"], &["", ""], |_, x| x.slice(0, 0, 3).shard_as(&split(&["y", ""])));
    a_sum_of_booleans: "takes numbers, not booleans" => traced(&["x"], &["", ""], |_, x| x.is_finite().all_reduce(&["x"]));
    another_number_of_results: "returns one tensor per output sharding" => {
        let g = Graph::new("refused", mesh(&[2]), Rules::default());
        g.manual(&["x"], &[], &[], |_| vec![g.scalar(1.0, DType::F32)])
    };
    the_derivative_of_the_largest: "call stop_gradient on it" => {
        let g = Graph::new("refused", mesh(&[2]), rules());
        let x = g.input("x", DType::F32, &[4], &["_"]);
        let y = g.manual(&["x"], &[(&x, split(&["x"]))], &[split(&[""])], |p| vec![p[0].all_reduce_max(&["x"])]);
        g.grad(&y[0].sum_all(), &[&x])
    };
    a_collective_outside_of_a_region: "`all_reduce` stands outside of any manual region" => {
        let g = Graph::new("refused", mesh(&[2]), rules());
        g.scalar(1.0, DType::F32).all_reduce(&["x"])
    };
    a_tensor_that_leaves_its_region: "used after the body was closed" => {
        let g = Graph::new("refused", mesh(&[2]), rules());
        let x = g.input("x", DType::F32, &[4], &["_"]);
        let mut inner = None;
        g.manual(&["x"], &[(&x, split(&["x"]))], &[split(&["x"])], |p| {
            inner = Some(p[0].exp());
            p.to_vec()
        });
        inner.unwrap().exp()
    };
}
