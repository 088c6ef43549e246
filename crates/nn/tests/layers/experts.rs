//! The mixture of experts, beside a plain loop over tokens and experts.

use ferrotune_graph::{DType, Graph, HostArray, Tensor};
use ferrotune_nn::{Params, Routing, mix_experts};

use crate::check::{Function, Noise, moved, slope};

pub(crate) const TOKENS: usize = 18;
pub(crate) const WIDTH: usize = 6;
const INNER: usize = 5;
pub(crate) const EXPERTS: usize = 7;
pub(crate) const CHOSEN: usize = 3;

pub(crate) fn arguments(seed: u64) -> Vec<HostArray> {
    let mut noise = Noise::new(seed);
    let mut args = vec![
        noise.array(&[TOKENS, WIDTH], -1.0, 1.0),
        noise.array(&[WIDTH, EXPERTS], -1.0, 1.0),
        noise.array(&[EXPERTS, WIDTH, INNER], -1.0, 1.0),
        noise.array(&[EXPERTS, WIDTH, INNER], -1.0, 1.0),
        noise.array(&[EXPERTS, INNER, WIDTH], -1.0, 1.0),
    ];
    // Every third token is padding.
    let counted: Vec<i32> = (0..TOKENS).map(|t| i32::from(t % 3 != 1)).collect();
    args.push(HostArray::from_slice(&[TOKENS], &counted).unwrap());
    args
}

pub(crate) fn params(x: &[Tensor]) -> Params {
    let names = ["gate_proj", "up_proj", "down_proj"];
    let named = names.iter().zip(&x[2..5]);
    Params::new(named.map(|(n, t)| ((*n).to_owned(), t.clone())))
}

fn block(x: &[Tensor], routing: Routing, replay: Option<&Tensor>) -> Vec<Tensor> {
    let params = params(x);
    let counted = x[5].gt(&x[5].scalar_like(0.0));
    let routes = routing.route(&x[0], &x[1], replay);
    let y = mix_experts(&x[0], &routes, &counted, &params);
    vec![
        y,
        routes.experts.clone(),
        routes.load(&counted),
        routes.imbalance(&counted),
    ]
}

pub(crate) struct Plain<'a>(pub(crate) &'a [HostArray]);

impl Plain<'_> {
    fn at(&self, i: usize, k: usize) -> f64 {
        f64::from(self.0[i].as_slice::<f32>()[k])
    }

    fn probabilities(&self, token: usize) -> Vec<f64> {
        let logit = |x: usize| {
            (0..WIDTH)
                .map(|d| self.at(0, token * WIDTH + d) * self.at(1, d * EXPERTS + x))
                .sum::<f64>()
        };
        let odds: Vec<f64> = (0..EXPERTS).map(|x| logit(x).exp()).collect();
        odds.iter().map(|o| o / odds.iter().sum::<f64>()).collect()
    }

    fn expert(&self, token: usize, x: usize) -> Vec<f64> {
        let inner: Vec<f64> = (0..INNER)
            .map(|f| {
                let dot = |i| {
                    (0..WIDTH)
                        .map(|d| {
                            self.at(0, token * WIDTH + d) * self.at(i, (x * WIDTH + d) * INNER + f)
                        })
                        .sum::<f64>()
                };
                let (gate, up): (f64, f64) = (dot(2), dot(3));
                gate / (1.0 + (-gate).exp()) * up
            })
            .collect();
        (0..WIDTH)
            .map(|d| {
                (0..INNER)
                    .map(|f| inner[f] * self.at(4, (x * INNER + f) * WIDTH + d))
                    .sum()
            })
            .collect()
    }

    /// The token's result for given experts.
    fn mix(&self, token: usize, experts: &[i32], normalize: bool) -> Vec<f64> {
        self.mix_some(token, experts, normalize, |_| true)
    }

    /// The same where only some of them say something.
    pub(crate) fn mix_some(
        &self,
        token: usize,
        experts: &[i32],
        normalize: bool,
        speaks: impl Fn(usize) -> bool,
    ) -> Vec<f64> {
        let p = self.probabilities(token);
        let total: f64 = if normalize {
            experts.iter().map(|x| p[*x as usize]).sum()
        } else {
            1.0
        };
        let mut y = vec![0.0; WIDTH];
        for (_, x) in experts.iter().enumerate().filter(|(j, _)| speaks(*j)) {
            for (y, e) in y.iter_mut().zip(self.expert(token, *x as usize)) {
                *y += p[*x as usize] / total * e;
            }
        }
        y
    }
}

pub(crate) fn close(found: &[f32], expected: &[f64], what: &str) {
    for (a, b) in found.iter().zip(expected) {
        assert!(
            (f64::from(*a) - b).abs() < 2e-6,
            "{what}: {a} instead of {b}"
        );
    }
}

#[test]
fn every_token_gets_the_weighted_answers_of_its_experts() {
    for normalize in [true, false] {
        let args = arguments(1);
        let routing = Routing {
            top_k: CHOSEN,
            normalize,
        };
        let found = Function::new("experts", &args, |_, x| block(x, routing, None)).run(&args);
        let plain = Plain(&args);
        let mut load = [0; EXPERTS];
        for token in 0..TOKENS {
            let p = plain.probabilities(token);
            let mut best: Vec<i32> = (0..EXPERTS as i32).collect();
            best.sort_by(|a, b| p[*b as usize].total_cmp(&p[*a as usize]));
            let experts = &found[1].as_slice::<i32>()[token * CHOSEN..][..CHOSEN];
            assert_eq!(experts, &best[..CHOSEN]);
            let counted = token % 3 != 1;
            experts
                .iter()
                .filter(|_| counted)
                .for_each(|x| load[*x as usize] += 1);
            let expected = if counted {
                plain.mix(token, experts, normalize)
            } else {
                vec![0.0; WIDTH]
            };
            close(
                &found[0].as_slice::<f32>()[token * WIDTH..][..WIDTH],
                &expected,
                "token",
            );
        }
        assert_eq!(found[2].as_slice::<i32>(), load);
        let counted: Vec<usize> = (0..TOKENS).filter(|t| t % 3 != 1).collect();
        let tokens = counted.len() as f64;
        let mean = |x: usize| {
            counted
                .iter()
                .map(|t| plain.probabilities(*t)[x])
                .sum::<f64>()
                / tokens
        };
        let imbalance: f64 = (0..EXPERTS)
            .map(|x| f64::from(load[x]) / tokens * mean(x))
            .sum::<f64>()
            * EXPERTS as f64;
        close(found[3].as_slice::<f32>(), &[imbalance], "imbalance");
    }
}

#[test]
fn replayed_experts_replace_the_routers_choice_where_they_are_given() {
    let mut args = arguments(2);
    let given: Vec<i32> = (0..TOKENS * CHOSEN)
        .map(|i| {
            if (i / CHOSEN).is_multiple_of(2) {
                (i % EXPERTS) as i32
            } else {
                -1
            }
        })
        .collect();
    args.push(HostArray::from_slice(&[TOKENS, CHOSEN], &given).unwrap());
    let routing = Routing {
        top_k: CHOSEN,
        normalize: true,
    };
    let found = Function::new("replay", &args, |_, x| block(x, routing, Some(&x[6]))).run(&args);
    let plain = Plain(&args);
    for token in (0..TOKENS).filter(|t| t % 3 != 1) {
        let experts = &found[1].as_slice::<i32>()[token * CHOSEN..][..CHOSEN];
        if token.is_multiple_of(2) {
            assert_eq!(experts, &given[token * CHOSEN..][..CHOSEN]);
        }
        let expected = plain.mix(token, experts, true);
        close(
            &found[0].as_slice::<f32>()[token * WIDTH..][..WIDTH],
            &expected,
            "token",
        );
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let args = arguments(3);
    let routing = Routing {
        top_k: CHOSEN,
        normalize: true,
    };
    let loss = |g: &Graph, x: &[Tensor]| {
        let results = block(x, routing, None);
        let weights = Noise::new(9).array(&[TOKENS, WIDTH], -1.0, 1.0);
        (&results[0] * g.constant(weights)).sum_all() * 1.7 + &results[3] * 0.3
    };
    let value = Function::new("experts_loss", &args, |g, x| vec![loss(g, x)]);
    let slopes = Function::new("experts_grad", &args, |g, x| {
        g.grad(&loss(g, x), &x[..5].iter().collect::<Vec<_>>())
    });
    let at = |args: &[HostArray]| f64::from(value.run(args)[0].as_slice::<f32>()[0]);
    let mut noise = Noise::new(4);
    for (i, gradient) in slopes.run(&args).iter().enumerate() {
        assert_eq!(gradient.dtype(), DType::F32);
        let direction = noise.array(args[i].dims(), -1.0, 1.0);
        let at_moved = |by: f32| {
            let mut changed = args.clone();
            changed[i] = moved(&args[i], &direction, by);
            at(&changed)
        };
        let step = 2e-3; // small, so that no token changes its experts
        let expected = (at_moved(step) - at_moved(-step)) / (2.0 * f64::from(step));
        let slope = slope(gradient, &direction);
        assert!(
            (slope - expected).abs() < 5e-3 * (1.0 + expected.abs()),
            "input {i}: {slope}, differences say {expected}"
        );
    }
}
