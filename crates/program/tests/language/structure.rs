//! What reaches XLA: no dead code, loop-invariant code outside, the same text for the same program.

use ferrotune_graph::{
    DType, Graph, HostArray, Mesh, Module, Output, Platform, Policy, Rules, Sharding, Tensor,
};
use ferrotune_program::{Argument, Error, Group};

use crate::check::{client, noise, program_on};

fn lower(f: impl FnOnce(&Graph, &Tensor) -> Tensor) -> Module {
    let g = Graph::new("shape", Mesh::single(), Rules::default());
    let x = g.input("x", DType::F32, &[4], &["_"]);
    let y = f(&g, &x);
    let sharding = Sharding::replicated(y.rank());
    g.lower(
        Platform::Cpu,
        &[Output {
            name: "y".into(),
            tensor: y,
            sharding,
            replaces: None,
        }],
        &[],
    )
    .module
}

#[test]
fn dead_code_does_not_reach_the_text() {
    let module = lower(|_, x| {
        let _ = x.tanh();
        x.exp()
    });
    assert!(
        !module.text.contains("tanh") && module.text.contains("exponential"),
        "{}",
        module.text
    );
}

#[test]
fn dead_results_and_carries_of_a_scan_do_not_reach_the_text() {
    let module = lower(|g, x| {
        let (_, ys) = g.scan(
            Policy::recompute(),
            vec![x.clone(), x.clone()],
            vec![],
            3,
            |i, c, _| {
                let y = i.convert(DType::F32) * 2.0;
                (vec![c[0].tanh(), c[1].logistic()], vec![y, c[1].exp()])
            },
        );
        ys[1].clone()
    });
    assert!(
        !module.text.contains("tanh"),
        "a carry that nobody reads is gone: {}",
        module.text
    );
    assert!(
        module.text.contains("logistic"),
        "a carry that a result reads stays: {}",
        module.text
    );
}

#[test]
fn loop_invariant_code_is_written_before_the_loop() {
    let module = lower(|g, x| {
        let (c, _) = g.scan(
            Policy::recompute(),
            vec![x.clone()],
            vec![],
            3,
            |_, c, _| (vec![&c[0] + x.tanh()], vec![]),
        );
        c[0].clone()
    });
    let (tanh, loop_) = (
        module.text.find("tanh").unwrap(),
        module.text.find("while").unwrap(),
    );
    assert!(tanh < loop_, "{}", module.text);
}

#[test]
fn a_forward_scan_is_written_once_however_it_is_used() {
    let module = lower(|g, x| {
        let (c, _) = g.scan(
            Policy::recompute(),
            vec![x.clone()],
            vec![],
            3,
            |_, c, _| (vec![c[0].tanh()], vec![]),
        );
        let loss = c[0].square().sum_all();
        g.grad(&loss, &[x]).remove(0) * loss
    });
    assert_eq!(
        module.text.matches("stablehlo.while").count(),
        2,
        "one loop forward, one back: {}",
        module.text
    );
}

#[test]
fn tracing_twice_gives_the_same_text() {
    let trace = || lower(|g, x| g.grad(&x.tanh().sum_all(), &[x]).remove(0)).text;
    assert_eq!(trace(), trace());
}

#[test]
fn lines_carry_the_scope_they_were_traced_in() {
    let module = lower(|g, x| g.scope("layers", || g.scope("mlp", || x.exp())));
    assert!(
        module
            .text
            .contains("exponential %arg0 : tensor<4xf32> loc(\"layers/mlp\")"),
        "{}",
        module.text
    );
}

#[test]
fn groups_of_another_layout_are_refused_with_the_difference() {
    let (program, _) = program_on(
        &Mesh::single(),
        "layouts",
        &[noise(&[4], 1, false)],
        |_, x| vec![x[0].exp()],
    );
    let (_, other) = program_on(
        &Mesh::single(),
        "other",
        &[noise(&[5], 1, false)],
        |_, x| vec![x[0].exp()],
    );
    let group = Group::upload(client(), &other, &[noise(&[5], 1, false)]).unwrap();
    let error = program.call(vec![Argument::Borrowed(&group)]).unwrap_err();
    assert!(
        matches!(error, Error::Layout { .. }) && error.to_string().contains("[5]"),
        "{error}"
    );
    assert!(matches!(
        program.call(vec![]).unwrap_err(),
        Error::Count { .. }
    ));
}

#[test]
fn cost_counts_matmuls_exactly_and_loops_by_their_steps() {
    let g = Graph::new("cost", Mesh::single(), Rules::default());
    let x = g.input("x", DType::F32, &[8, 16], &["_", "_"]);
    let w = g.input("w", DType::F32, &[16, 16], &["_", "_"]);
    let (c, _) = g.scan(Policy::recompute(), vec![x], vec![], 5, |_, c, _| {
        (vec![g.einsum("ab,bc->ac", &c[0], &w, DType::F32)], vec![])
    });
    assert_eq!(g.cost(&[&c[0]]).flops, 5.0 * 2.0 * 8.0 * 16.0 * 16.0);
}

#[test]
fn cost_counts_element_wise_work_as_xla_does() {
    let g = Graph::new("cost", Mesh::single(), Rules::default());
    let x = g.input("x", DType::F32, &[8, 16], &["_", "_"]);
    let of = |y: Tensor| (g.cost(&[&y]).flops, g.cost(&[&y]).transcendentals);
    let n = 8.0 * 16.0;
    assert_eq!(of(x.erf()), (0.0, n));
    assert_eq!(of(x.pow(&x)), (0.0, n));
    assert_eq!(of(x.atan2(&x)), (0.0, n));
    assert_eq!(of(x.tan()), (0.0, n));
    assert_eq!(of(&x + &x), (n, 0.0));
    assert_eq!(of(x.convert(DType::BF16)), (n, 0.0));
    assert_eq!(of(x.gt(&x)), (n, 0.0));
    assert_eq!(of(x.sum(&[1])), (n - 8.0, 0.0));
    assert_eq!(of(x.transpose(&[1, 0])), (0.0, 0.0));
    assert_eq!(of(x.sort_by_key(&[], 1, false).0), (4.0 * n, 0.0));
    let ids = g.iota(DType::S32, &[5], 0);
    let rows = x.slice(0, 0, 5);
    assert_eq!(of(x.scatter_add_rows(&ids, &rows)), (5.0 * 16.0, 0.0));
}

#[test]
#[should_panic(expected = "element types f32 and bf16 are mixed")]
fn element_types_are_not_mixed_silently() {
    lower(|_, x| x + x.convert(DType::BF16));
}

#[test]
fn a_constant_array_keeps_its_bits() {
    let values = [1.5_f32, -0.0, f32::MIN_POSITIVE, 3.4e38];
    let out = crate::check::run(
        "blob",
        &[HostArray::from_slice(&[4], &values).unwrap()],
        |g, x| {
            let c = g.constant(HostArray::from_slice(&[4], &values).unwrap());
            vec![
                c.bitcast(DType::U32)
                    .eq(&x[0].bitcast(DType::U32))
                    .convert(DType::S32),
            ]
        },
    );
    assert_eq!(out[0].as_slice::<i32>(), [1; 4]);
}

#[test]
fn the_compiler_names_the_place_of_what_it_refuses() {
    let mut module = lower(|g, x| g.scope("layers", || g.scope("attn/q_proj", || x.tanh())));
    // No traced program contains this: the compiler must say where it stands.
    let from = "stablehlo.tanh %arg0 : tensor<4xf32>";
    let to = "stablehlo.slice %arg0 [0:9] : (tensor<4xf32>) -> tensor<4xf32>";
    module.text = module.text.replace(from, to);
    let error = client().compile(&module).unwrap_err().to_string();
    assert!(error.contains("layers/attn/q_proj"), "{error}");
}
