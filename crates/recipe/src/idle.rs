//! When a setting can have no effect because of another.
//!
//! Such a setting is refused, unless it stands in the file and an override is what made it idle: then the user plainly
//! wants the override, the setting goes back to its default, and the run says so.

use crate::settings::{Optimizer, Recipe};
use crate::{HeadMode, LrSchedule, OptimizerKind, PadPosition};

/// Keys that do nothing while `switch` is as it is.
#[derive(Debug)]
pub(crate) struct Idle {
    pub(crate) switch: &'static str,
    /// The value of the switch, in TOML.
    pub(crate) value: String,
    /// What follows from it, as in "…, so this has no effect".
    pub(crate) because: &'static str,
    pub(crate) keys: &'static [&'static str],
}

/// Every idle key of a recipe, each with one reason.
pub(crate) fn find(recipe: &Recipe) -> Vec<Idle> {
    let mut found = Vec::new();
    let mut idle = |switch, value: &dyn ToString, because, keys| {
        found.push(Idle {
            switch,
            value: value.to_string(),
            because,
            keys,
        });
    };
    if recipe.warmup.steps == 0 {
        idle("warmup.steps", &0, "there is no warm-up", WARMUP);
    } else {
        let keys = (&["warmup.min_lr_ratio"][..], &["warmup.lr_decay_steps"][..]);
        falls(
            recipe.warmup.lr_schedule,
            "warmup.lr_schedule",
            keys,
            &mut idle,
        );
    }
    if recipe.rl.steps == 0 {
        idle("rl.steps", &0, "nothing is learned by reinforcement", RL);
    } else {
        let keys = (&["rl.min_lr_ratio"][..], &["rl.lr_decay_steps"][..]);
        falls(recipe.rl.lr_schedule, "rl.lr_schedule", keys, &mut idle);
    }
    optimizer(&recipe.optimizer, &mut idle);
    if recipe.model.adapter.is_some() {
        let folder = "a folder of adapters";
        let says = "the folder says what the adapters are";
        idle("model.adapter", &folder, says, LORA);
    } else if recipe.lora.rank == 0 {
        idle("lora.rank", &0, "there are no adapters", &LORA[1..]);
    }
    if recipe.model.adapter.is_some() || recipe.lora.rank > 0 {
        let (switch, value): (_, &dyn ToString) = if recipe.lora.rank > 0 {
            ("lora.rank", &recipe.lora.rank)
        } else {
            ("model.adapter", &"a folder of adapters")
        };
        let because = "all weights but the adapters' are frozen";
        idle(switch, value, because, &["model.freeze"]);
    }
    if recipe.packing.pad_position == PadPosition::End {
        idle(
            "packing.pad_position",
            &"\"end\"",
            "padding stays where it is",
            &["packing.pad_align"],
        );
    }
    match recipe.head.mode {
        HeadMode::Off => idle(
            "head.mode",
            &"\"off\"",
            "all logits are computed at once",
            &["head.token_chunk", "head.vocab_chunk"],
        ),
        HeadMode::Local => idle(
            "head.mode",
            &"\"local\"",
            "the vocabulary is not cut",
            &["head.vocab_chunk"],
        ),
        HeadMode::Fused | HeadMode::SinglePass => {}
    }
    if recipe.mesh.data * recipe.mesh.fsdp == 1 {
        idle(
            "mesh.data",
            &1,
            "one device has all rows",
            &["packing.balance"],
        );
    }
    if recipe.mesh.context == 1 {
        let because = "every device has whole rows";
        idle("mesh.context", &1, because, &["mesh.order"]);
    }
    if recipe.mesh.data == 1 {
        let because = "there is one copy of the model";
        idle("mesh.data", &1, because, &["optimizer.shard_over_data"]);
    }
    found
}

/// Keeps a switch, its value, what follows from it, and the keys that do nothing.
type Note<'a> = dyn FnMut(&'static str, &dyn ToString, &'static str, &'static [&'static str]) + 'a;

/// What does nothing under a schedule: the ratio of one that does not fall, the steps of a fall that is not late.
fn falls(
    schedule: LrSchedule,
    switch: &'static str,
    (ratio, steps): (&'static [&'static str], &'static [&'static str]),
    idle: &mut Note<'_>,
) {
    let word = format!("\"{schedule}\"");
    if schedule == LrSchedule::Constant {
        idle(switch, &word, "the learning rate does not fall", ratio);
    }
    if schedule != LrSchedule::StableDecay {
        idle(switch, &word, "there is no late fall", steps);
    }
}

/// What the update rule does not read.
fn optimizer(settings: &Optimizer, idle: &mut Note<'_>) {
    let word = format!("\"{}\"", settings.kind);
    match settings.kind {
        OptimizerKind::AdamW => {
            let because = "its momentum is set by beta1";
            idle("optimizer.kind", &word, because, &["optimizer.momentum"]);
        }
        OptimizerKind::Sgd | OptimizerKind::Nesterov => {
            let because = "it has no moments but the momentum";
            idle("optimizer.kind", &word, because, MOMENTS);
        }
        OptimizerKind::Muon => {}
    }
    if settings.spike_window == 0 {
        let because = "no update is skipped for its size";
        idle(
            "optimizer.spike_window",
            &0,
            because,
            &["optimizer.spike_factor"],
        );
    }
}

const MOMENTS: &[&str] = &[
    "optimizer.beta1",
    "optimizer.beta2",
    "optimizer.eps",
    "optimizer.moments",
];

const LORA: &[&str] = &["lora.rank", "lora.alpha", "lora.targets", "lora.experts"];

const WARMUP: &[&str] = &[
    "warmup.batch_size",
    "warmup.learning_rate",
    "warmup.lr_schedule",
    "warmup.lr_warmup_steps",
    "warmup.lr_decay_steps",
    "warmup.min_lr_ratio",
    "data.demonstrations",
];

const RL: &[&str] = &[
    "rl.prompts_per_step",
    "rl.group_size",
    "rl.advantage",
    "rl.loss_aggregation",
    "rl.updates_per_step",
    "rl.clip_ratio_low",
    "rl.clip_ratio_high",
    "rl.learning_rate",
    "rl.lr_schedule",
    "rl.lr_warmup_steps",
    "rl.lr_decay_steps",
    "rl.min_lr_ratio",
    "router.routes",
    "rollout.temperature",
    "rollout.top_k",
    "rollout.top_p",
    "rollout.min_p",
    "eval.every_steps",
];
