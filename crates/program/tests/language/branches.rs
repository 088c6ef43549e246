//! Branches that are chosen at run time, and functions with a derivative of their own.

use ferrotune_graph::{DType, Graph, Policy, Tensor};

use crate::check::{derivative, noise, program_on, run};

/// Either of two functions of both arguments; what only one branch reads is among them.
fn branch(g: &Graph, x: &[Tensor], threshold: f64) -> Tensor {
    let predicate = x[0].sum_all().gt(&g.scalar(threshold, DType::F64));
    let result = g.cond(
        &predicate,
        || vec![(&x[0] * &x[1]).tanh(), x[0].exp()],
        || vec![&x[0] * 3.0, x[2].square()],
    );
    &result[0] * &result[1]
}

#[test]
fn both_branches_of_a_cond_are_differentiated() {
    let args = [
        noise(&[3], 1, false),
        noise(&[3], 2, false),
        noise(&[3], 3, false),
    ];
    for threshold in [-100.0, 100.0] {
        derivative("cond", &args, |g, x| branch(g, x, threshold));
    }
}

#[test]
fn a_cond_in_a_loop_is_differentiated_at_each_step() {
    let args = [noise(&[3], 4, false), noise(&[4, 3], 5, false)];
    derivative("cond_in_scan", &args, |g, x| {
        let (carry, ys) = g.scan(
            Policy::recompute(),
            vec![x[0].clone()],
            vec![x[1].clone()],
            4,
            |i, c, s| {
                let odd = i
                    .remainder(&g.scalar(2.0, DType::S32))
                    .eq(&g.scalar(1.0, DType::S32));
                let next = g.cond(
                    &odd,
                    || vec![(&c[0] * &s[0]).tanh()],
                    || vec![&c[0] + &x[0]],
                );
                (next.clone(), next)
            },
        );
        &carry[0] * &ys[0]
    });
}

#[test]
fn the_branch_that_is_read_decides() {
    let args = [
        noise(&[3], 6, true),
        noise(&[3], 7, true),
        noise(&[3], 8, true),
    ];
    for (threshold, taken) in [(-100.0, true), (100.0, false)] {
        let out = run("cond_value", &args, |g, x| vec![branch(g, x, threshold)]);
        for (i, found) in out[0].as_slice::<f64>().iter().enumerate() {
            let [a, b, c] = [0, 1, 2].map(|k| args[k].as_slice::<f64>()[i]);
            let expected = if taken {
                (a * b).tanh() * a.exp()
            } else {
                3.0 * a * c * c
            };
            assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        }
    }
}

#[test]
fn a_result_of_a_cond_that_nobody_reads_is_not_written() {
    let args = [noise(&[3], 6, true)];
    let (program, _) = program_on(
        &ferrotune_graph::Mesh::single(),
        "cond_dead",
        &args,
        |g, x| {
            let yes = x[0].sum_all().gt(&g.scalar(0.0, DType::F64));
            let both = g.cond(
                &yes,
                || vec![x[0].tanh(), x[0].exp()],
                || vec![x[0].sin(), x[0].clone()],
            );
            vec![both[1].clone()]
        },
    );
    assert!(
        !program.text().contains("tanh") && !program.text().contains("sine"),
        "{}",
        program.text()
    );
}

#[test]
#[should_panic(expected = "the same types")]
fn branches_of_different_types_are_refused() {
    run("cond_types", &[noise(&[3], 9, false)], |g, x| {
        let yes = x[0].sum_all().gt(&g.scalar(0.0, DType::F64));
        g.cond(&yes, || vec![x[0].clone()], || vec![x[0].sum_all()])
    });
}

/// xʸ⁄² by a loop that halves, with the derivative given: the loop itself has none.
fn square_root(g: &Graph, x: &Tensor) -> Tensor {
    let result = g.custom_vjp(
        &[x],
        |x| {
            let state = g.while_loop(
                vec![x[0].clone(), g.scalar(0.0, DType::S32)],
                |s| s[1].lt(&g.scalar(40.0, DType::S32)),
                |s| vec![(&s[0] + &x[0] / &s[0]) * 0.5, &s[1] + 1.0],
            );
            (vec![state[0].clone()], vec![state[0].clone()])
        },
        |residuals, cotangents| vec![Some(&cotangents[0] * 0.5 / &residuals[0])],
    );
    result[0].clone()
}

#[test]
fn a_loop_of_unknown_length_is_differentiated_by_a_given_rule() {
    let args = [noise(&[3], 10, true)];
    derivative("newton", &args, |g, x| square_root(g, &x[0]).tanh());
    derivative("newton_in_scan", &args, |g, x| {
        let (carry, _) = g.scan(
            Policy::recompute(),
            vec![x[0].clone()],
            vec![],
            3,
            |_, c, _| (vec![square_root(g, &c[0]) + &x[0]], vec![]),
        );
        carry[0].clone()
    });
    derivative("newton_in_block", &args, |g, x| {
        g.remat(&Policy::keep_all(), || vec![square_root(g, &x[0].exp())])
            .remove(0)
    });
}

#[test]
fn a_given_rule_replaces_the_derived_one() {
    let x = noise(&[3], 11, false);
    let out = run("custom", std::slice::from_ref(&x), |g, x| {
        let outside = g.scalar(7.0, DType::F64) + g.scalar(1.0, DType::F64);
        let y = g.custom_vjp(
            &[&x[0], &x[0]],
            |x| {
                (
                    vec![x[0].square(), x[1].convert(DType::S32)],
                    vec![x[0].clone()],
                )
            },
            |residuals, cotangents| {
                assert_eq!(cotangents.len(), 1, "integers have no cotangent");
                vec![Some(&cotangents[0] * &residuals[0] * &outside), None]
            },
        );
        g.grad(&y[0].sum_all(), &[&x[0]])
    });
    for (found, x) in out[0].as_slice::<f64>().iter().zip(x.as_slice::<f64>()) {
        assert_eq!(*found, 8.0 * x);
    }
}

#[test]
fn residuals_that_nobody_reads_are_not_written() {
    let (program, _) = program_on(
        &ferrotune_graph::Mesh::single(),
        "unread",
        &[noise(&[3], 12, true)],
        |g, x| {
            g.custom_vjp(
                &[&x[0]],
                |x| (vec![x[0].exp()], vec![x[0].tanh()]),
                |r, d| vec![Some(&r[0] * &d[0])],
            )
        },
    );
    assert!(!program.text().contains("tanh"), "{}", program.text());
}

#[test]
fn a_kept_residual_is_not_computed_again() {
    let (program, _) = program_on(
        &ferrotune_graph::Mesh::single(),
        "kept",
        &[noise(&[3], 13, true)],
        |g, x| {
            let policy = Policy::recompute().with("y", ferrotune_graph::Residual::Device);
            let (carry, _) = g.scan(policy, vec![x[0].clone()], vec![], 3, |_, c, _| {
                let y = g.custom_vjp(
                    &[&c[0]],
                    |x| {
                        let y = x[0].exp();
                        (vec![y.clone()], vec![y])
                    },
                    |r, d| vec![Some(&r[0] * &d[0])],
                );
                (vec![y[0].named("y") * 0.1], vec![])
            });
            g.grad(&carry[0].sum_all(), &[&x[0]])
        },
    );
    assert_eq!(
        program.text().matches("exponential").count(),
        1,
        "{}",
        program.text()
    );
}

#[test]
#[should_panic(expected = "pass it as one")]
fn differentiating_by_what_a_given_rule_does_not_know_is_refused() {
    run("hidden_input", &[noise(&[3], 14, true)], |g, x| {
        let y = g.custom_vjp(
            &[&x[0]],
            |a| (vec![&a[0] * &x[0]], vec![]),
            |_, d| vec![Some(d[0].clone())],
        );
        g.grad(&y[0].sum_all(), &[&x[0]])
    });
}

#[test]
#[should_panic(expected = "stands for an input of type tensor<3xf64>")]
fn a_cotangent_of_another_type_is_refused() {
    run("wrong_type", &[noise(&[3], 15, true)], |g, x| {
        g.custom_vjp(
            &[&x[0]],
            |a| (vec![a[0].sum_all()], vec![]),
            |_, d| vec![Some(d[0].clone())],
        )
    });
}
