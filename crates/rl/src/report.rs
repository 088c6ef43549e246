//! From what the device reports of the updates of a step to named metrics.
//!
//! | name | of the step |
//! |---|---|
//! | `loss`, `grad_norm` | mean over its updates; the norm before clipping |
//! | `grad_norm/PATTERN` | the same of the parameters that fit a pattern, where one is asked for |
//! | `learning_rate` | the one of all its updates |
//! | `skipped_updates` | updates that changed nothing, since their gradient was not finite or a spike |
//! | `load_balance` | mean over its updates, where its weight is not 0 |
//! | `experts/dropped/LAYER` | sum over its updates of the experts' choices that found no place, where experts have a capacity |
//! | `entropy`, `approx_kl` | mean over trained tokens; `approx_kl` is k3 against the old policy |
//! | `clip_ratio/{low,high,region}_mean` | share of trained tokens held at the lower, the upper, either bound |
//! | `clip_ratio/low_min`, `clip_ratio/high_max` | least and largest share among its updates |
//! | `sampling/sampling_logp_difference/{mean,max}` | trainer against sampler over the tokens of the *first* update, when both have the same weights |
//!
//! Names are TRL's where it has one. Everything is in f64; a mean over nothing is not a number.

use ferrotune_engine::{DROPPED, UpdateReport};
use serde_json::{Map, Value};

use crate::loss::metric;

/// The engine's name for it.
const BALANCE: &str = "load_balance";

/// The mean; of nothing, NaN.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Number, mean, least and largest of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) count: usize,
    sum: f64,
    /// NaN if there is none.
    pub(crate) min: f64,
    /// NaN if there is none.
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }
}

impl FromIterator<f64> for Spread {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let none = Spread {
            count: 0,
            sum: 0.0,
            min: f64::NAN,
            max: f64::NAN,
        };
        values.into_iter().fold(none, |it, value| Spread {
            count: it.count + 1,
            sum: it.sum + value,
            min: it.min.min(value),
            max: it.max.max(value),
        })
    }
}

/// Metrics of a step of supervised learning.
pub(crate) fn imitation(reports: &[UpdateReport], rate: f64) -> Map<String, Value> {
    let mut metrics = common(reports, rate);
    put(
        &mut metrics,
        "entropy",
        share(reports, "entropy_sum", "token_count"),
    );
    metrics
}

/// Metrics of a step of reinforcement, apart from its answers'.
pub(crate) fn policy(reports: &[UpdateReport], rate: f64) -> Map<String, Value> {
    let of_tokens = |name| share(reports, name, metric::TOKENS);
    let each = |name| {
        reports
            .iter()
            .map(move |it| it.metrics[name] / it.metrics[metric::TOKENS])
            .collect::<Spread>()
    };
    let first = &reports[..reports.len().min(1)];
    let mut metrics = common(reports, rate);
    let (low, high) = (
        of_tokens(metric::CLIPPED_LOW),
        of_tokens(metric::CLIPPED_HIGH),
    );
    let named = [
        ("entropy", of_tokens(metric::ENTROPY)),
        ("approx_kl", of_tokens(metric::KL)),
        ("clip_ratio/low_mean", low),
        ("clip_ratio/low_min", each(metric::CLIPPED_LOW).min),
        ("clip_ratio/high_mean", high),
        ("clip_ratio/high_max", each(metric::CLIPPED_HIGH).max),
        ("clip_ratio/region_mean", low + high),
        (
            "sampling/sampling_logp_difference/mean",
            share(first, metric::DIFFERENCE, metric::TOKENS),
        ),
        (
            "sampling/sampling_logp_difference/max",
            first
                .iter()
                .map(|it| it.metrics[metric::LARGEST_DIFFERENCE])
                .collect::<Spread>()
                .max,
        ),
    ];
    for (name, value) in named {
        put(&mut metrics, name, value);
    }
    metrics
}

fn common(reports: &[UpdateReport], rate: f64) -> Map<String, Value> {
    let of_updates =
        |value: fn(&UpdateReport) -> f64| mean(&reports.iter().map(value).collect::<Vec<_>>());
    let mut metrics = Map::new();
    put(&mut metrics, "loss", of_updates(|it| it.metrics["loss"]));
    put(&mut metrics, "grad_norm", of_updates(|it| it.grad_norm));
    for pattern in reports.iter().take(1).flat_map(|it| it.group_norms.keys()) {
        let norms: Vec<f64> = reports.iter().map(|it| it.group_norms[pattern]).collect();
        put(&mut metrics, &format!("grad_norm/{pattern}"), mean(&norms));
    }
    if reports.iter().any(|it| it.metrics.contains_key(BALANCE)) {
        put(&mut metrics, BALANCE, of_updates(|it| it.metrics[BALANCE]));
    }
    let names = reports.iter().take(1).flat_map(|it| it.metrics.keys());
    for name in names.filter(|name| name.starts_with(DROPPED)) {
        let choices: f64 = reports.iter().map(|it| it.metrics[name]).sum();
        metrics.insert(name.clone(), (choices as u64).into());
    }
    put(&mut metrics, "learning_rate", rate);
    let skipped = reports.iter().filter(|it| it.skipped.is_some()).count();
    metrics.insert("skipped_updates".to_owned(), skipped.into());
    metrics
}

/// Quotient of two sums over all updates.
fn share(reports: &[UpdateReport], part: &str, whole: &str) -> f64 {
    let sum = |name: &str| reports.iter().map(|it| it.metrics[name]).sum::<f64>();
    sum(part) / sum(whole)
}

/// A number that is not finite becomes `null`, since JSON has none.
fn put(metrics: &mut Map<String, Value>, name: &str, value: f64) {
    metrics.insert(name.to_owned(), value.into());
}

#[cfg(test)]
mod tests {
    use ferrotune_engine::Skipped;

    use super::*;

    fn update(loss: f64, numbers: [f64; 7]) -> UpdateReport {
        let names = [
            metric::TOKENS,
            metric::ENTROPY,
            metric::CLIPPED_LOW,
            metric::CLIPPED_HIGH,
            metric::KL,
            metric::DIFFERENCE,
            metric::LARGEST_DIFFERENCE,
        ];
        let named = names
            .into_iter()
            .zip(numbers)
            .map(|(name, value)| (name.to_owned(), value));
        UpdateReport {
            step: 1,
            grad_norm: 2.0 * loss,
            group_norms: [("*/attn/*".to_owned(), 0.5 * loss)].into(),
            skipped: (loss > 2.0).then_some(Skipped::NotFinite),
            metrics: named.chain([("loss".to_owned(), loss)]).collect(),
        }
    }

    #[test]
    fn means_are_over_tokens_and_differences_of_the_first_update() {
        let reports = [
            update(1.0, [10.0, 5.0, 1.0, 0.0, 0.0, 0.02, 0.01]),
            update(3.0, [30.0, 3.0, 0.0, 6.0, 4.0, 9.0, 8.0]),
        ];
        let metrics = policy(&reports, 0.5);
        let expected = [
            ("loss", 2.0),
            ("grad_norm", 4.0),
            ("grad_norm/*/attn/*", 1.0),
            ("learning_rate", 0.5),
            ("skipped_updates", 1.0),
            ("entropy", 0.2),
            ("approx_kl", 0.1),
            ("clip_ratio/low_mean", 0.025),
            ("clip_ratio/low_min", 0.0),
            ("clip_ratio/high_mean", 0.15),
            ("clip_ratio/high_max", 0.2),
            ("clip_ratio/region_mean", 0.175),
            ("sampling/sampling_logp_difference/mean", 0.002),
            ("sampling/sampling_logp_difference/max", 0.01),
        ];
        assert_eq!(metrics.len(), expected.len());
        for (name, value) in expected {
            let found = metrics[name].as_f64().unwrap();
            assert!(
                (found - value).abs() < 1e-12,
                "{name}: {found} instead of {value}"
            );
        }
    }

    #[test]
    fn what_experts_did_is_reported_where_the_engine_says_it() {
        let with = |balance: f64, choices: f64| {
            let mut report = update(1.0, [1.0; 7]);
            let named = [(BALANCE, balance), ("experts/dropped/3", choices)];
            let named = named.map(|(name, value)| (name.to_owned(), value));
            report.metrics.extend(named);
            report
        };
        let reports = [with(2.0, 5.0), with(3.0, 11.0)];
        for metrics in [policy(&reports, 0.5), imitation_of(&reports)] {
            assert_eq!(metrics[BALANCE], 2.5);
            assert_eq!(metrics["experts/dropped/3"], 16);
        }
    }

    fn imitation_of(reports: &[UpdateReport]) -> Map<String, Value> {
        let mut reports = reports.to_vec();
        for report in &mut reports {
            let named = ["entropy_sum", "token_count"].map(|name| (name.to_owned(), 1.0));
            report.metrics.extend(named);
        }
        imitation(&reports, 0.5)
    }

    #[test]
    fn a_mean_over_nothing_is_null() {
        let metrics = policy(&[update(0.0, [0.0; 7])], 0.0);
        assert_eq!(metrics["entropy"], Value::Null);
        assert_eq!(metrics["loss"], 0.0);
        let none: Spread = [].into_iter().collect();
        assert!(none.mean().is_nan() && none.min.is_nan() && none.max.is_nan());
    }
}
