//! Derivatives against finite differences, in f64, with the head in the middle of a graph.

use ferrotune_graph::{DType, Tensor};
use ferrotune_nn::{HeadMode, PartialLoss, TokenScores};

use crate::case::{Case, Numbers, values};
use crate::oracle::forms;

/// A loss that is no sum over tokens of what the head returns; for the single pass, a function of one that is.
fn loss(case: &Case, args: &[Tensor]) -> Tensor {
    let inner = |x: &Tensor| x * 0.9 + x * x * 0.05;
    let mut args = args.to_vec();
    args[0] = inner(&args[0]);
    args[1] = inner(&args[1]);
    let sum = |scores: &TokenScores, g: &Tensor, h: &Tensor| {
        let tokens = scores.logprob.square() * g + (&scores.entropy * 0.5).exp() * h;
        tokens.sum_all()
    };
    if case.settings.mode == HeadMode::SinglePass {
        let loss = case.single_pass(&args, |scores, extra| PartialLoss {
            loss: sum(scores, &extra[0], &extra[1]),
            others: vec![],
        });
        return loss.loss.square() * 1.7;
    }
    let scores = case.scores(&args);
    sum(&scores, &args[4], &args[5]) * 1.7 + scores.logprob.sum_all().exp()
}

#[test]
fn derivatives_are_finite_differences() {
    let mut n = Numbers::new([1, 3, 2, 5]);
    n.mask[1] = false;
    for form in forms() {
        for tied in [false, true] {
            let case = Case {
                temperature: 0.7,
                tied,
                compute: DType::F64,
                ..form.clone()
            };
            let value = case.compile(&n, |_, args| vec![loss(&case, args)]);
            let gradient = case.compile(&n, |g, args| {
                let loss = loss(&case, args);
                g.grad(&loss, &[&args[0], &args[1]])
            });
            let gradients = case.call(&gradient, &n);
            let at = |n: &Numbers| values(&case.call(&value, n)[0])[0];
            let step = 1e-5;
            let check = |name: &str, k: usize, found: f64, moved: &dyn Fn(f64) -> Numbers| {
                let expected = (at(&moved(step)) - at(&moved(-step))) / (2.0 * step);
                assert!(
                    (found - expected).abs() <= 1e-7 * (1.0 + expected.abs()),
                    "{:?} tied={tied}: {name} {k} is {found}, finite differences say {expected}",
                    case.settings
                );
            };
            for (k, found) in values(&gradients[0]).into_iter().enumerate() {
                let moved = |by| {
                    let mut n = n.clone();
                    n.x[k] += by;
                    n
                };
                check("dx", k, found, &moved);
            }
            for (k, found) in values(&gradients[1]).into_iter().enumerate() {
                let own = if tied {
                    k % n.model * n.vocab + k / n.model
                } else {
                    k
                };
                let moved = |by| {
                    let mut n = n.clone();
                    n.w[own] += by;
                    n
                };
                check("dw", k, found, &moved);
            }
        }
    }
}
