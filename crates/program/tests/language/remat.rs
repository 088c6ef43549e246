//! What is kept between the forward and the backward pass: the same gradient under every policy, and exactly the bytes
//! that the policy says.

use ferrotune_graph::{DType, Graph, HostArray, Mesh, Policy, Residual, Saved, Tensor};

use crate::check::{derivative, noise, program_on, run};

const STEPS: usize = 6;
const ROWS: usize = 64;
const WIDTH: usize = 32;

/// Layers with three named tensors each, in a scan: gradients by input and weights.
fn layers(g: &Graph, x: &[Tensor], policy: &Policy) -> (Tensor, Vec<Tensor>) {
    let (carry, _) = g.scan(
        policy.clone(),
        vec![x[0].clone()],
        vec![x[1].clone()],
        STEPS,
        |_, h, w| {
            let input = h[0].named("layer_input");
            let up = g.einsum("bd,df->bf", &input, &w[0], DType::F32).named("up");
            let active = up.logistic().named("active");
            (vec![input + (active * up).tanh()], vec![])
        },
    );
    let loss = carry[0].square().sum_all();
    let gradients = g.grad(&loss, &[&x[0], &x[1]]);
    (loss, gradients)
}

fn arguments() -> Vec<HostArray> {
    let narrow = |dims: &[usize], seed| {
        let wide = noise(dims, seed, false);
        let values: Vec<f32> = wide
            .as_slice::<f64>()
            .iter()
            .map(|v| *v as f32 * 0.3)
            .collect();
        HostArray::from_slice(dims, &values).unwrap()
    };
    vec![narrow(&[ROWS, WIDTH], 1), narrow(&[STEPS, WIDTH, WIDTH], 2)]
}

/// Policies, and the names that each keeps besides the carried value.
fn policies() -> Vec<(Policy, Vec<&'static str>)> {
    let recompute = Policy::recompute;
    vec![
        (recompute(), vec![]),
        (Policy::keep_dots(), vec!["up"]),
        (recompute().with("active", Residual::Device), vec!["active"]),
        (recompute().with("up", Residual::Offload), vec!["up"]),
        (
            recompute()
                .with("up", Residual::Device)
                .with("active", Residual::Offload)
                .with("layer_input", Residual::Offload),
            vec!["up", "active"],
        ),
        (Policy::keep_dots().with("up", Residual::Recompute), vec![]),
    ]
}

#[test]
fn gradients_are_the_same_under_every_policy() {
    let mut all = policies();
    all.push((Policy::keep_all(), vec![]));
    let found: Vec<Vec<HostArray>> = all
        .iter()
        .map(|(policy, _)| run("policies", &arguments(), |g, x| layers(g, x, policy).1))
        .collect();
    for other in &found[1..] {
        for (a, b) in found[0].iter().zip(other) {
            let (a, b) = (a.as_slice::<f32>(), b.as_slice::<f32>());
            let largest = a.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
            for (a, b) in a.iter().zip(b) {
                assert!((a - b).abs() <= 1e-6 * largest, "{a} {b}"); // fusions round differently
            }
        }
    }
}

#[test]
fn a_program_keeps_what_its_policy_says_and_nothing_else() {
    for (policy, names) in policies() {
        let saved = saved_by(&policy);
        let mut found: Vec<&str> = saved.iter().map(|s| s.name.as_str()).collect();
        let mut expected: Vec<&str> = [&["layer_input"], &names[..]].concat();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{policy:?}");
        for s in &saved {
            assert_eq!(s.ty.dims, [STEPS, ROWS, WIDTH], "{s:?}");
        }
    }
    let policy = Policy::recompute().with("up", Residual::Offload);
    let offloaded = |s: &Saved| (s.name.clone(), s.offload);
    let mut found: Vec<_> = saved_by(&policy).iter().map(offloaded).collect();
    found.sort();
    assert_eq!(
        found,
        [("layer_input".to_owned(), false), ("up".to_owned(), true)]
    );
}

fn saved_by(policy: &Policy) -> Vec<Saved> {
    let mut saved = Vec::new();
    program_on(&Mesh::single(), "saved", &arguments(), |g, x| {
        let (loss, gradients) = layers(g, x, policy);
        let results: Vec<&Tensor> = std::iter::once(&loss).chain(&gradients).collect();
        saved = g.saved(&results);
        gradients
    });
    saved
}

#[test]
fn a_compiled_program_holds_the_predicted_bytes_more() {
    let temp = |policy: &Policy| {
        let (program, _) = program_on(&Mesh::single(), "bytes", &arguments(), |g, x| {
            layers(g, x, policy).1
        });
        program.memory().temp as i64
    };
    let base = temp(&Policy::recompute());
    let one = (STEPS * ROWS * WIDTH * 4) as i64;
    for (policy, names) in policies() {
        let more = temp(&policy) - base;
        // Within a step's worth of scratch, which depends on what is fused.
        let predicted = one * names.len() as i64;
        assert!(
            (more - predicted).abs() <= one / STEPS as i64,
            "{policy:?}: {more} against {predicted}"
        );
    }
}

#[test]
fn a_kept_result_is_not_computed_again() {
    let count = |policy: &Policy, what: &str| {
        let (program, _) = program_on(&Mesh::single(), "again", &arguments(), |g, x| {
            layers(g, x, policy).1
        });
        program.text().matches(what).count()
    };
    assert_eq!(
        count(&Policy::recompute(), "stablehlo.dot_general"),
        4,
        "one forward, one again, two back"
    );
    assert_eq!(count(&Policy::keep_dots(), "stablehlo.dot_general"), 3);
    assert_eq!(count(&Policy::keep_dots(), "stablehlo.logistic"), 2);
    // The rule of the logistic reads its own result, so the kept copy must serve there too.
    let both = Policy::keep_dots().with("active", Residual::Device);
    assert_eq!(count(&both, "stablehlo.logistic"), 1);
    assert_eq!(count(&Policy::keep_all(), "stablehlo.tanh"), 1);
}

#[test]
fn a_block_is_differentiated_and_computed_again() {
    let args = [noise(&[3, 4], 3, false), noise(&[4, 4], 4, false)];
    let block = |g: &Graph, x: &[Tensor], policy: &Policy| {
        let result = g.remat(policy, || {
            let product = g
                .einsum("ab,bc->ac", &x[0], &x[1], DType::F64)
                .named("product");
            vec![product.tanh() * &x[0], product.exp()]
        });
        &result[0] * &result[1] + &x[0]
    };
    for policy in [Policy::recompute(), Policy::keep_dots(), Policy::keep_all()] {
        derivative("block", &args, |g, x| block(g, x, &policy));
    }
    let dots = |policy: &Policy| {
        let (program, _) = program_on(&Mesh::single(), "block_text", &args, |g, x| {
            let y = block(g, x, policy).sum_all();
            g.grad(&y, &[&x[0], &x[1]])
        });
        let text = program.text();
        (
            text.matches("dot_general").count(),
            text.matches("optimization_barrier").count(),
        )
    };
    assert_eq!(
        dots(&Policy::recompute()),
        (4, 1),
        "a barrier keeps XLA from merging the repetition away"
    );
    assert_eq!(dots(&Policy::keep_dots()), (3, 1));
}

#[test]
fn blocks_stand_in_loops_and_loops_in_blocks() {
    let args = [noise(&[3], 5, false), noise(&[4, 3], 6, false)];
    derivative("block_in_scan", &args, |g, x| {
        let (carry, _) = g.scan(
            Policy::recompute(),
            vec![x[0].clone()],
            vec![x[1].clone()],
            4,
            |_, c, s| {
                let next = g.remat(&Policy::recompute(), || {
                    vec![(&c[0] * &s[0]).tanh() + &x[0]]
                });
                (next, vec![])
            },
        );
        carry[0].clone()
    });
    derivative("scan_in_block", &args, |g, x| {
        let result = g.remat(&Policy::keep_all(), || {
            g.scan(
                Policy::keep_all(),
                vec![x[0].clone()],
                vec![x[1].clone()],
                4,
                |_, c, s| (vec![(&c[0] * &s[0]).tanh() + &x[0]], vec![]),
            )
            .0
        });
        result[0].exp()
    });
}

#[test]
#[should_panic(
    expected = "tensors of different types bear that name: tensor<3xf64> and tensor<1xf64>"
)]
fn a_name_with_two_meanings_is_refused() {
    let policy = Policy::recompute().with("thing", Residual::Device);
    run("two_meanings", &[noise(&[3], 7, false)], |g, x| {
        g.remat(&policy, || {
            let a = x[0].exp().named("thing");
            vec![a * x[0].slice(0, 0, 1).tanh().named("thing").broadcast_to(&[3])]
        })
    });
}

#[test]
#[should_panic(expected = "names there: up")]
fn a_name_that_no_tensor_of_a_block_bears_is_refused() {
    let policy = Policy::recompute().with("down", Residual::Device);
    run("no_name", &[noise(&[3], 7, false)], |g, x| {
        g.remat(&policy, || vec![x[0].exp().named("up")])
    });
}

#[test]
#[should_panic(expected = "so it must be kept")]
fn a_carried_value_cannot_be_computed_again() {
    let policy = Policy::recompute().with("layer_input", Residual::Recompute);
    saved_by(&policy);
}

#[test]
#[should_panic(expected = "not computed in the body")]
fn what_a_body_reads_from_outside_is_not_its_to_keep() {
    let policy = Policy::recompute().with("outer", Residual::Offload);
    run("outer", &[noise(&[3], 8, false)], |g, x| {
        g.remat(&policy, || vec![x[0].named("outer").exp()])
    });
}

#[test]
#[should_panic(expected = "decides differently")]
fn two_names_of_one_tensor_are_decided_alike() {
    let policy = Policy::recompute()
        .with("a", Residual::Device)
        .with("b", Residual::Recompute);
    run("two_names", &[noise(&[3], 8, false)], |g, x| {
        g.remat(&policy, || vec![x[0].exp().named("a").named("b").sin()])
    });
}
