//! Loops: values, derivatives under every policy, loops in loops, loops that end by themselves.

use ferrotune_graph::{DType, Graph, HostArray, Policy, Residual, Tensor};

use crate::check::{derivative, noise, run};

/// A recurrence with a captured matrix, an input per step and an output per step.
fn recurrence(g: &Graph, x: &[Tensor], policy: Policy, reverse: bool) -> Tensor {
    let (w, h0, xs) = (&x[0], &x[1], &x[2]);
    let body = |index: &Tensor, carry: &[Tensor], slices: &[Tensor]| {
        let mixed = g.einsum("a,ab->b", &carry[0], w, DType::F64).named("mixed");
        let h = (mixed + &slices[0] + index.convert(DType::F64) * 0.1).tanh();
        let y = h.square() * &slices[0];
        (vec![h], vec![y])
    };
    let (carry, ys) = if reverse {
        g.scan_reverse(policy, vec![h0.clone()], vec![xs.clone()], 4, body)
    } else {
        g.scan(policy, vec![h0.clone()], vec![xs.clone()], 4, body)
    };
    ys[0].clone() * carry[0].expand(0)
}

fn arguments() -> Vec<HostArray> {
    vec![
        noise(&[3, 3], 1, false),
        noise(&[3], 2, false),
        noise(&[4, 3], 3, false),
    ]
}

#[test]
fn scan_is_differentiated_under_every_policy() {
    derivative("scan", &arguments(), |g, x| {
        recurrence(g, x, Policy::recompute(), false)
    });
    derivative("scan_dots", &arguments(), |g, x| {
        recurrence(g, x, Policy::keep_dots(), false)
    });
    derivative("scan_named", &arguments(), |g, x| {
        recurrence(
            g,
            x,
            Policy::recompute().with("mixed", Residual::Device),
            false,
        )
    });
    derivative("scan_reverse", &arguments(), |g, x| {
        recurrence(g, x, Policy::recompute(), true)
    });
}

#[test]
fn scan_walks_forward_and_stacks_in_order() {
    let xs = HostArray::from_slice(&[4], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    let out = run("scan_value", &[xs], |g, x| {
        let step = |index: &Tensor, carry: &[Tensor], slice: &[Tensor]| {
            let sum = &carry[0] + &slice[0];
            (vec![sum.clone()], vec![sum * index.convert(DType::F64)])
        };
        let (a, b) = g.scan(
            Policy::recompute(),
            vec![g.scalar(10.0, DType::F64)],
            vec![x[0].clone()],
            4,
            step,
        );
        let (c, d) = g.scan_reverse(
            Policy::recompute(),
            vec![g.scalar(10.0, DType::F64)],
            vec![x[0].clone()],
            4,
            step,
        );
        vec![a[0].clone(), b[0].clone(), c[0].clone(), d[0].clone()]
    });
    assert_eq!(out[0].as_slice::<f64>(), [20.0]);
    assert_eq!(out[1].as_slice::<f64>(), [0.0, 13.0, 32.0, 60.0]);
    assert_eq!(out[2].as_slice::<f64>(), [20.0]);
    assert_eq!(out[3].as_slice::<f64>(), [0.0, 19.0, 34.0, 42.0]);
}

#[test]
fn a_scan_in_a_scan_with_outer_captures_is_differentiated() {
    derivative("nested", &arguments(), |g, x| {
        let (w, h0, xs) = (&x[0], &x[1], &x[2]);
        let outer = g.scan(
            Policy::keep_dots(),
            vec![h0.clone()],
            vec![xs.clone()],
            4,
            |_, carry, slices| {
                let gate = slices[0].tanh();
                let inner = g.scan(
                    Policy::recompute(),
                    vec![carry[0].clone()],
                    vec![w.clone()],
                    3,
                    |_, c, row| {
                        let mixed = g.einsum("a,ab->b", &c[0], w, DType::F64);
                        (vec![(mixed * &gate + &row[0] * h0).tanh()], vec![])
                    },
                );
                (inner.0, vec![gate])
            },
        );
        outer.0[0].clone() * outer.1[0].sum(&[0])
    });
}

#[test]
fn derivatives_can_be_taken_inside_a_body() {
    // The sum over steps of d(loss_step)/dw, as an accumulation over micro-batches would form it.
    let out = run(
        "grad_in_scan",
        &[noise(&[3], 4, false), noise(&[4, 3], 5, false)],
        |g, x| {
            let (w, xs) = (&x[0], &x[1]);
            let loss = |w: &Tensor, x: &Tensor| (w * x).tanh().sum_all();
            let inside = g.scan(
                Policy::recompute(),
                vec![w.zeros_like()],
                vec![xs.clone()],
                4,
                |_, acc, x| {
                    let d = g.grad(&loss(w, &x[0]), &[w]);
                    (vec![&acc[0] + &d[0]], vec![])
                },
            );
            let whole = g.grad(&(w * xs).tanh().sum_all(), &[w]);
            vec![inside.0[0].clone(), whole[0].clone()]
        },
    );
    for (a, b) in out[0]
        .as_slice::<f64>()
        .iter()
        .zip(out[1].as_slice::<f64>())
    {
        assert!((a - b).abs() < 1e-12, "{a} {b}");
    }
}

#[test]
fn a_while_loop_runs_until_its_condition_fails() {
    let out = run(
        "collatz",
        &[HostArray::from_slice(&[], &[27_i32]).unwrap()],
        |g, x| {
            let limit = g.scalar(1.0, DType::S32);
            g.while_loop(
                vec![x[0].clone(), g.scalar(0.0, DType::S32)],
                |s| s[0].gt(&limit),
                |s| {
                    let two = g.scalar(2.0, DType::S32);
                    let even = s[0].remainder(&two).eq(&g.scalar(0.0, DType::S32));
                    let next = even.select(&(&s[0] / &two), &(&s[0] * 3.0 + 1.0));
                    vec![next, &s[1] + 1.0]
                },
            )
        },
    );
    assert_eq!(out[1].as_slice::<i32>(), [111]);
}

#[test]
#[should_panic(expected = "use scan")]
fn a_while_loop_refuses_differentiation_with_its_reason() {
    run("while_grad", &[noise(&[2], 6, false)], |g, x| {
        let y = g.while_loop(
            vec![x[0].clone()],
            |s| s[0].sum_all().lt(&g.scalar(5.0, DType::F64)),
            |s| vec![&s[0] * 2.0],
        );
        g.grad(&y[0].sum_all(), &[&x[0]])
    });
}

#[test]
#[should_panic(expected = "`absent`")]
fn a_policy_that_names_no_tensor_is_refused() {
    run("absent", &arguments(), |g, x| {
        vec![recurrence(
            g,
            x,
            Policy::recompute().with("absent", Residual::Device),
            false,
        )]
    });
}

#[test]
#[should_panic(expected = "after the body was closed")]
fn a_tensor_does_not_leave_its_body() {
    run("escape", &[noise(&[2], 7, false)], |g, x| {
        let mut leaked = None;
        g.scan(
            Policy::recompute(),
            vec![x[0].clone()],
            vec![],
            2,
            |_, c, _| {
                leaked = Some(c[0].exp());
                (vec![c[0].clone()], vec![])
            },
        );
        vec![leaked.unwrap() * 2.0]
    });
}

#[test]
#[should_panic(expected = "by way of a value computed outside")]
fn a_derivative_inside_of_a_body_does_not_lose_what_was_computed_outside() {
    run("lost_path", &[noise(&[3], 8, false)], |g, x| {
        let w = x[0].square();
        let policy = Policy::recompute();
        let (sum, _) = g.scan(policy, vec![x[0].zeros_like()], vec![], 2, |_, sum, _| {
            let d = g.grad(&w.square().sum_all(), &[&x[0]]);
            (vec![&sum[0] + &d[0]], vec![])
        });
        sum
    });
}

#[test]
#[should_panic(expected = "a tensor of a body is used outside of it")]
fn a_tensor_of_a_body_is_no_result_of_the_program() {
    let mut leaked = None;
    run("leaked_result", &[noise(&[2], 9, false)], |g, x| {
        let carry = vec![x[0].clone()];
        g.scan(Policy::recompute(), carry, vec![], 2, |_, c, _| {
            leaked = Some(c[0].exp());
            (vec![c[0].clone()], vec![])
        });
        vec![leaked.take().unwrap()]
    });
}

#[test]
#[should_panic(expected = "a tensor of program `other` is used in program `this`")]
fn a_tensor_of_another_program_has_no_cost_here() {
    use ferrotune_graph::{Mesh, Rules};
    let [this, other] =
        ["this", "other"].map(|n| Graph::new(n, Mesh::single(), Rules::unsharded(&[])));
    let x = other.input("x", DType::F32, &[2], &["_"]);
    this.cost(&[&x]);
}

#[test]
fn each_carry_input_output_and_capture_of_a_scan_has_its_own_place() {
    let args: Vec<HostArray> = (0..6)
        .map(|i| {
            noise(
                if (2..=3).contains(&i) { &[4, 3] } else { &[3] },
                20 + i,
                false,
            )
        })
        .collect();
    for reverse in [false, true] {
        derivative("places", &args, |g, x| {
            // Captures that are not differentiated stand before, between and behind those that are.
            let fixed: Vec<Tensor> = (0..3)
                .map(|i| g.constant(noise(&[3], 30 + i, false)).exp())
                .collect();
            let body = |_: &Tensor, c: &[Tensor], s: &[Tensor]| {
                let a = (&c[1] * &s[1] * &fixed[0] + &x[4] * &fixed[1]).tanh();
                let b = (&c[2] - &s[2] * &x[5] * &fixed[2] + &c[1] * 0.3).tanh();
                let fixed = &c[0] * &s[0] * 0.9;
                // The first output and the first carry are read by nobody that is differentiated.
                let outputs = vec![a.exp(), &a * &s[2], a.square() - &b, &b * &x[4]];
                (vec![fixed, a, b], outputs)
            };
            let still = g.constant(noise(&[3], 50, false)).exp();
            let carry = vec![still, x[0].clone(), x[1].clone()];
            let still = g.constant(noise(&[4, 3], 51, false)).exp();
            let stacked = vec![still, x[2].clone(), x[3].clone()];
            let policy = Policy::recompute();
            let (carry, ys) = if reverse {
                g.scan_reverse(policy, carry, stacked, 4, body)
            } else {
                g.scan(policy, carry, stacked, 4, body)
            };
            let weigh = |k: usize| &ys[k] * g.constant(noise(&[4, 3], 40 + k as u64, false));
            &carry[1] * 0.7 + &carry[2] * 1.9 + (weigh(1) + weigh(3)).sum(&[0]) + weigh(2).sum(&[0])
        });
    }
}
