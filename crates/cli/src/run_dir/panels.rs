//! Which charts a report has, from which metrics, in which order.

use super::chart::Style;

/// What a chart shows.
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) hint: &'static str,
    /// Legend and metric of each line.
    pub(super) lines: &'static [(&'static str, &'static str)],
    /// The metrics between which is filled.
    pub(super) band: Option<(&'static str, &'static str)>,
    pub(super) at_least: Option<(f64, f64)>,
    pub(super) logarithmic: bool,
    pub(super) style: Style,
}

const PLAIN: Panel = Panel {
    title: "",
    hint: "",
    lines: &[],
    band: None,
    at_least: None,
    logarithmic: false,
    style: Style::Noisy,
};

pub(super) const PANELS: &[Panel] = &[
    Panel {
        title: "Held-out pass@1",
        hint: "share of held-out problems solved greedily",
        lines: &[("pass@1", "eval/pass@1")],
        at_least: Some((0.0, 1.0)),
        style: Style::Marked,
        ..PLAIN
    },
    Panel {
        title: "Reward",
        hint: "mean over the answers of a step",
        lines: &[("reward", "reward")],
        at_least: Some((0.0, 1.0)),
        ..PLAIN
    },
    Panel {
        title: "Entropy",
        hint: "mean over answer tokens, in nats",
        lines: &[("entropy", "entropy")],
        at_least: Some((0.0, 0.0)),
        ..PLAIN
    },
    Panel {
        title: "Gradient norm",
        hint: "before clipping, logarithmic",
        lines: &[("norm", "grad_norm")],
        logarithmic: true,
        ..PLAIN
    },
    Panel {
        title: "Answer length",
        hint: "tokens: mean, and shortest to longest",
        lines: &[("mean", "completions/mean_length")],
        band: Some(("completions/min_length", "completions/max_length")),
        at_least: Some((0.0, 0.0)),
        ..PLAIN
    },
    Panel {
        title: "Loss",
        hint: "of each phase its own",
        lines: &[("loss", "loss")],
        ..PLAIN
    },
    Panel {
        title: "Groups without signal",
        hint: "share of groups in which all rewards are the same",
        lines: &[("share", "frac_reward_zero_std")],
        at_least: Some((0.0, 1.0)),
        ..PLAIN
    },
    Panel {
        title: "Shares of answers and tokens",
        hint: "at the length limit; by the probability ratio",
        lines: &[
            ("answers cut off", "completions/clipped_ratio"),
            ("tokens clipped", "clip_ratio/region_mean"),
        ],
        at_least: Some((0.0, 0.0)),
        ..PLAIN
    },
    Panel {
        title: "Trainer against sampler",
        hint: "absolute difference of log-probs, logarithmic",
        lines: &[
            ("largest", "sampling/sampling_logp_difference/max"),
            ("mean", "sampling/sampling_logp_difference/mean"),
        ],
        logarithmic: true,
        ..PLAIN
    },
    Panel {
        title: "Learning rate",
        hint: "at each step",
        lines: &[("rate", "learning_rate")],
        style: Style::Exact,
        at_least: Some((0.0, 0.0)),
        ..PLAIN
    },
    Panel {
        title: "Step time",
        hint: "seconds",
        lines: &[("seconds", "step_time")],
        at_least: Some((0.0, 0.0)),
        ..PLAIN
    },
];
