//! The modes against each other, in both types of products.

use ferrotune_graph::{DType, Platform};
use ferrotune_nn::{EntropyUse, HeadMode};

use crate::case::{Case, Numbers, distance, relative, ulps};
use crate::oracle::{forms, oracle};

fn numbers() -> Numbers {
    Numbers::new([2, 12, 16, 120])
}

/// Whoever uses the entropy, and how: nobody, a report, the loss.
const USES: [EntropyUse; 3] = [
    EntropyUse::Unread,
    EntropyUse::Reported,
    EntropyUse::Differentiated,
];

#[test]
fn fused_is_local_to_the_last_digit_on_the_same_chunks() {
    let n = numbers();
    for chunk in [4, 5, 8, usize::MAX] {
        for temperature in [1.0, 0.7] {
            for entropy in USES {
                let of = |mode| {
                    let case = Case {
                        temperature,
                        entropy,
                        platform: Platform::Gpu,
                        ..Case::new(mode, chunk, usize::MAX)
                    };
                    case.run(&n)
                };
                let (fused, local) = (of(HeadMode::Fused), of(HeadMode::Local));
                let what = format!("chunk {chunk}, T {temperature}, entropy {entropy:?}");
                assert!(ulps(&fused.logprob, &local.logprob) <= 1, "{what}");
                assert!(ulps(&fused.entropy, &local.entropy) <= 8, "{what}");
                // With a cotangent of the entropy the same terms are added in another order.
                let rounding = match entropy {
                    EntropyUse::Differentiated => 2e-7,
                    _ => 3e-8,
                };
                assert!(relative(&fused.dx, &local.dx) <= rounding, "{what}: dx");
                assert!(relative(&fused.dw, &local.dw) <= rounding, "{what}: dw");
            }
        }
    }
}

#[test]
fn kernels_are_the_operations_that_stand_for_them_but_for_rounding() {
    let n = numbers();
    for mode in [HeadMode::Fused, HeadMode::SinglePass] {
        for entropy in USES {
            let of = |platform| {
                let case = Case {
                    temperature: 0.7,
                    entropy,
                    platform,
                    ..Case::new(mode, 8, 50)
                };
                case.run(&n)
            };
            let (kernels, operations) = (of(Platform::Cpu), of(Platform::Gpu));
            let what = format!("{mode:?}, entropy {entropy:?}");
            assert!(ulps(&kernels.logprob, &operations.logprob) <= 2, "{what}");
            assert!(ulps(&kernels.entropy, &operations.entropy) <= 8, "{what}");
            assert_eq!(kernels.hit, operations.hit, "{what}");
            let apart = [
                relative(&kernels.dx, &operations.dx),
                relative(&kernels.dw, &operations.dw),
            ];
            assert!(apart.iter().all(|it| *it <= 1e-6), "{what}: {apart:?}");
        }
    }
}

#[test]
fn every_mode_is_off_in_f32() {
    let n = numbers();
    for temperature in [1.0, 0.7] {
        for entropy in USES {
            let with = |form: &Case| Case {
                temperature,
                entropy,
                ..form.clone()
            };
            let off = with(&forms()[0]).run(&n);
            for form in &forms()[1..] {
                let found = with(form).run(&n);
                let what = format!("{:?}, T {temperature}, entropy {entropy:?}", form.settings);
                assert!(relative(&found.logprob, &off.logprob) <= 1e-6, "{what}");
                assert!(relative(&found.entropy, &off.entropy) <= 1e-6, "{what}");
                assert_eq!(found.hit, off.hit, "{what}");
                assert!(relative(&found.dx, &off.dx) <= 1e-6, "{what}");
                assert!(relative(&found.dw, &off.dw) <= 1e-6, "{what}");
            }
        }
    }
}

#[test]
fn every_mode_is_off_in_bf16_but_for_the_rounding_of_gradients() {
    let n = numbers();
    let expected = oracle(&n, 0.7, true);
    for form in forms() {
        let case = Case {
            temperature: 0.7,
            compute: DType::BF16,
            ..form
        };
        let off = Case {
            settings: forms()[0].settings,
            ..case.clone()
        };
        let (found, off) = (case.run(&n), off.run(&n));
        let what = format!("{:?}", case.settings);
        // The logits are equal, sums over them are in f32.
        assert!(distance(&found.logprob, &off.logprob) <= 2e-6, "{what}");
        assert!(distance(&found.entropy, &off.entropy) <= 2e-6, "{what}");
        // Gradients are rounded to eight bits, here once and there after every chunk.
        assert!(relative(&found.dx, &off.dx) <= 1.0 / 128.0, "{what}");
        assert!(relative(&found.dw, &off.dw) <= 1.0 / 128.0, "{what}");
        assert!(relative(&found.dw, &expected.dw) <= 1.0 / 64.0, "{what}");
    }
}

#[test]
fn an_entropy_that_is_only_reported_has_no_gradient() {
    let n = numbers();
    let expected = oracle(&n, 1.0, false);
    for form in forms() {
        let case = Case {
            entropy: EntropyUse::Reported,
            ..form
        };
        let program = case.compile(&n, |g, args| {
            let scores = case.scores(args);
            let loss = (&args[4] * &scores.logprob + &args[5] * &scores.entropy).sum_all();
            g.grad(&loss, &[&args[0]])
        });
        let dx = crate::case::values(&case.call(&program, &n)[0]);
        assert!(relative(&dx, &expected.dx) < 2e-6, "{:?}", case.settings);
    }
}
