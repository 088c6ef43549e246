//! `report.html`: the run at a glance, in one file that needs nothing else.
//!
//! Reads what stands in `metrics.jsonl` and `samples.jsonl`; a metric that is not there has no chart. All text of the model
//! and of the user is escaped by the template engine. No scripts, nothing is fetched.

use minijinja::{AutoEscape, Environment, Value, context};
use serde_json::Map;

use super::chart::{Chart, Line};
use super::panels::{PANELS, Panel};
use super::scale::short;
use crate::terminal::counted;

type Object = Map<String, serde_json::Value>;

/// Stretches of the run from which sample answers are shown, and how many from each.
const SHOWN_STEPS: usize = 5;
const SHOWN_SAMPLES: usize = 8;

/// The page.
pub(super) fn render(name: &str, config: &str, metrics: &[Object], samples: &[Object]) -> String {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    let template = environment
        .template_from_str(include_str!("report.html"))
        .expect("the template is part of the program");
    let run = Run { metrics };
    let context = context! {
        name,
        config,
        phases => run.phases(),
        tiles => run.tiles(),
        charts => run.charts(),
        samples => tables(samples),
    };
    template
        .render(context)
        .expect("the template takes exactly these values")
}

/// The steps whose answers are shown: the first and last of those that sampled, and some between.
pub(super) fn shown_steps(metrics: &[Object]) -> Vec<u64> {
    let sampled = metrics.iter().filter(|line| line.contains_key("reward"));
    let steps: Vec<u64> = sampled
        .filter_map(|line| line.get("step")?.as_u64())
        .collect();
    let last = steps.len().saturating_sub(1);
    let spread = (0..SHOWN_STEPS).map(|i| i * last / (SHOWN_STEPS - 1));
    spread.filter_map(|i| steps.get(i).copied()).collect()
}

struct Run<'a> {
    metrics: &'a [Object],
}

impl Run<'_> {
    /// Step and value wherever a metric is a number.
    fn points(&self, name: &str) -> Vec<(f64, f64)> {
        let point = |line: &Object| Some((line.get("step")?.as_f64()?, line.get(name)?.as_f64()?));
        self.metrics
            .iter()
            .filter_map(point)
            .filter(|(_, value)| value.is_finite())
            .collect()
    }

    fn last(&self, name: &str) -> Option<f64> {
        self.points(name).last().map(|&(_, value)| value)
    }

    fn in_warmup(&self) -> impl Iterator<Item = &Object> {
        self.metrics
            .iter()
            .filter(|line| line.get("phase").and_then(|phase| phase.as_str()) == Some("warmup"))
    }

    fn phases(&self) -> String {
        let warmup = self.in_warmup().count();
        let reinforced = self.metrics.len() - warmup;
        let steps = |n| counted(n, "step");
        match (warmup, reinforced) {
            (0, 0) => "no step yet".to_owned(),
            (0, n) => format!("{} of GRPO", steps(n)),
            (n, 0) => format!("{} of warm-up", steps(n)),
            (w, r) => format!("{} of warm-up, {} of GRPO", steps(w), steps(r)),
        }
    }

    /// The few numbers that one looks for first.
    fn tiles(&self) -> Vec<Value> {
        let after_warmup = self
            .in_warmup()
            .filter_map(|line| line.get("eval/pass@1")?.as_f64())
            .last();
        let evaluations = self.points("eval/pass@1");
        let first = match after_warmup {
            Some(value) => Some(("pass@1 after warm-up", value)),
            None if evaluations.len() > 1 => evaluations
                .first()
                .map(|&(_, value)| ("pass@1 at first", value)),
            None => None,
        };
        let seconds: f64 = self
            .points("step_time")
            .iter()
            .map(|&(_, value)| value)
            .sum();
        let mut tiles = Vec::new();
        let mut tile = |label: &str, value: Option<String>| {
            if let Some(value) = value {
                tiles.push(context! { label, value });
            }
        };
        if let Some((label, value)) = first {
            tile(label, Some(share(value)));
        }
        let last = evaluations
            .last()
            .filter(|_| evaluations.len() > 1 || first.is_none());
        tile("pass@1 at last", last.map(|&(_, value)| share(value)));
        tile("last reward", self.last("reward").map(short));
        tile("tokens", self.last("num_tokens").map(short));
        tile("time in steps", (seconds > 0.0).then(|| duration(seconds)));
        tiles
    }

    fn charts(&self) -> Vec<Value> {
        PANELS
            .iter()
            .filter_map(|panel| self.chart(panel))
            .collect()
    }

    fn chart(&self, panel: &Panel) -> Option<Value> {
        let lines: Vec<Line> = panel
            .lines
            .iter()
            .map(|&(name, metric)| Line {
                name,
                points: self.points(metric),
                style: panel.style,
            })
            .filter(|line| !line.points.is_empty())
            .collect();
        let latest = short(lines.first()?.points.last()?.1);
        let legend: Vec<_> = lines.iter().map(|line| line.name).collect();
        let mut band = Vec::new();
        if let Some((low, high)) = panel.band {
            // Only where both ends are known.
            let highs = self.points(high);
            for (step, low) in self.points(low) {
                let high = highs
                    .binary_search_by(|(at, _)| at.total_cmp(&step))
                    .map(|i| highs[i].1);
                band.extend(high.map(|high| (step, low, high)));
            }
        }
        let step = |line: Option<&Object>| line.and_then(|line| line.get("step")?.as_f64());
        let warmup_end = step(self.in_warmup().last());
        // What is measured only in reinforcement gets the whole width for it.
        let earliest = lines
            .iter()
            .map(|line| line.points[0].0)
            .fold(f64::INFINITY, f64::min);
        let first = match warmup_end {
            Some(end) if earliest > end => earliest,
            _ => step(self.metrics.first())?,
        };
        let chart = Chart {
            lines,
            band,
            steps: (first, step(self.metrics.last())?),
            warmup_end,
            at_least: panel.at_least,
            logarithmic: panel.logarithmic,
        };
        let svg = chart.svg(&format!("{} by step, last {latest}", panel.title));
        let legend = if legend.len() > 1 { legend } else { Vec::new() };
        Some(
            context! { title => panel.title, hint => panel.hint, latest, legend, svg => Value::from_safe_string(svg) },
        )
    }
}

/// The sample answers of each step, a table each.
fn tables(samples: &[Object]) -> Vec<Value> {
    let mut tables: Vec<(u64, Vec<Value>)> = Vec::new();
    for sample in samples {
        let Some(step) = sample.get("step").and_then(|step| step.as_u64()) else {
            continue;
        };
        if tables.last().is_none_or(|(at, _)| *at != step) {
            tables.push((step, Vec::new()));
        }
        if let Some((_, rows)) = tables.last_mut()
            && rows.len() < SHOWN_SAMPLES
        {
            rows.push(row(sample));
        }
    }
    tables
        .into_iter()
        .map(|(step, rows)| context! { step, rows })
        .collect()
}

fn row(sample: &Object) -> Value {
    let text = |name: &str| {
        sample
            .get(name)
            .and_then(|text| text.as_str())
            .unwrap_or_default()
    };
    let number = |name: &str| sample.get(name).and_then(|number| number.as_f64());
    let advantage = number("advantage");
    let logprobs: Vec<f64> = match sample.get("logprobs").and_then(|list| list.as_array()) {
        Some(list) => list.iter().filter_map(|number| number.as_f64()).collect(),
        None => Vec::new(),
    };
    let mean = (!logprobs.is_empty()).then(|| logprobs.iter().sum::<f64>() / logprobs.len() as f64);
    context! {
        prompt => text("prompt"),
        answer => text("answer"),
        expected => text("expected"),
        reward => number("reward").map(short),
        advantage => advantage.map(signed),
        side => advantage.map_or("", |a| if a > 0.0 { "up" } else if a < 0.0 { "down" } else { "" }),
        logprob => mean.map(signed),
        tokens => logprobs.len(),
    }
}

fn share(value: f64) -> String {
    format!("{value:.3}")
}

/// With a sign, and a true minus.
fn signed(value: f64) -> String {
    let sign = if value > 0.0 {
        "+"
    } else if value < 0.0 {
        "\u{2212}"
    } else {
        ""
    };
    format!("{sign}{:.2}", value.abs())
}

fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}
