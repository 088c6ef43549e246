//! Rules between settings. Each refusal names every setting that takes part, with its place or as a default.

use crate::choice::{LrSchedule, ModelInit, TokenOrder};
use crate::counted::counted;
use crate::judge::Judge;
use crate::settings::Recipe;

/// The most answers of one step.
const MOST_ANSWERS: usize = 1 << 20;

/// All rules that need no file.
pub(crate) fn check(recipe: &Recipe, judge: &mut Judge<'_>) {
    name_and_template(recipe, judge);
    phases(recipe, judge);
    schedules(recipe, judge);
    sampling(recipe, judge);
    rows(recipe, judge);
    pad_align(recipe, judge);
    shared_rows(recipe, judge);
    targets(recipe, judge);
    base_of_adapters(recipe, judge);
}

fn targets(recipe: &Recipe, judge: &mut Judge<'_>) {
    for (key, names) in [
        ("lora.targets", &recipe.lora.targets),
        ("model.freeze", &recipe.model.freeze),
        ("optimizer.group_norms", &recipe.optimizer.group_norms),
    ] {
        let repeated = (1..names.len()).find(|&i| names[..i].contains(&names[i]));
        if let Some(i) = repeated {
            judge.refuse_if(
                true,
                &format!("`{key}` names \"{}\" more than once", names[i]),
                &[(key, "")],
                "keep one of them",
            );
        }
    }
}

/// An adapter is of no use without the weights that it was trained beside, and a run writes adapters alone.
fn base_of_adapters(recipe: &Recipe, judge: &mut Judge<'_>) {
    for (key, used, label) in [
        ("lora.rank", recipe.lora.rank > 0, "trains adapters alone"),
        (
            "model.adapter",
            recipe.model.adapter.is_some(),
            "was trained beside other weights",
        ),
    ] {
        judge.refuse_if(
            used && recipe.model.init == ModelInit::Random,
            "adapters beside random weights could not be used: the run would write them without those weights",
            &[(key, label), ("model.init", "draws weights that are in no folder")],
            "train the weights first, without adapters, and name that run's folder `model` in `model.path`, with \
             `model.init = \"pretrained\"`",
        );
    }
}

fn name_and_template(recipe: &Recipe, judge: &mut Judge<'_>) {
    let name = &recipe.run.name;
    judge.refuse_if(
        name.contains(['/', '\\'])
            || name.chars().any(char::is_control)
            || matches!(name.as_str(), "." | ".."),
        "`run.name` must be able to name a folder",
        &[("run.name", "no slashes, no control characters, not a dot")],
        "to write elsewhere, set `run.dir`",
    );
    judge.refuse_if(
        !recipe.data.prompt_template.contains("{prompt}"),
        "`data.prompt_template` must contain {prompt}",
        &[("data.prompt_template", "the prompt goes nowhere")],
        "put {prompt} where the prompt belongs, as in \"Question: {prompt}\\nAnswer:\"",
    );
}

fn phases(recipe: &Recipe, judge: &mut Judge<'_>) {
    judge.refuse_if(
        recipe.warmup.steps == 0 && recipe.rl.steps == 0,
        "there is nothing to train",
        &[
            ("rl.steps", "no reinforcement"),
            ("warmup.steps", "no warm-up"),
        ],
        "give one of the two phases at least 1 step",
    );
    judge.refuse_if(
        recipe.warmup.steps > 0 && recipe.data.demonstrations.is_none(),
        "the warm-up has no demonstrations",
        &[
            ("warmup.steps", "learns from demonstrations"),
            ("data.demonstrations", ""),
        ],
        "set `data.demonstrations` to a JSONL file, or `warmup.steps = 0`",
    );
}

fn schedules(recipe: &Recipe, judge: &mut Judge<'_>) {
    let (warmup, rl) = (&recipe.warmup, &recipe.rl);
    let phases = [
        (
            ("warmup.lr_warmup_steps", warmup.lr_warmup_steps),
            ("warmup.steps", warmup.steps),
            ("warmup.lr_schedule", warmup.lr_schedule),
            ("warmup.lr_decay_steps", warmup.lr_decay_steps),
        ),
        (
            ("rl.lr_warmup_steps", rl.lr_warmup_steps),
            ("rl.steps", rl.steps),
            ("rl.lr_schedule", rl.lr_schedule),
            ("rl.lr_decay_steps", rl.lr_decay_steps),
        ),
    ];
    for ((rise_key, rise), (steps_key, steps), (schedule_key, schedule), (fall_key, fall)) in phases
    {
        let total = format!("{} in all", counted(steps, "step"));
        judge.refuse_if(
            rise > steps,
            "the learning rate would never reach its full value",
            &[
                (rise_key, &format!("must be at most {steps}")),
                (steps_key, &total),
            ],
            &format!("lower `{rise_key}` or raise `{steps_key}`"),
        );
        judge.refuse_if(
            rise == steps && schedule != LrSchedule::Constant,
            "the learning rate would rise to the last step and never fall",
            &[
                (schedule_key, "has no step left"),
                (rise_key, &format!("must be below {steps}")),
                (steps_key, &total),
            ],
            &format!("lower `{rise_key}`, or write `{schedule_key} = \"constant\"`"),
        );
        judge.refuse_if(
            schedule == LrSchedule::StableDecay && rise < steps && rise + fall > steps,
            "the learning rate would fall before it has risen",
            &[
                (
                    fall_key,
                    &format!("must be at most {}", steps.saturating_sub(rise)),
                ),
                (rise_key, &format!("rises over {}", counted(rise, "step"))),
                (steps_key, &total),
            ],
            &format!("lower `{fall_key}`"),
        );
    }
}

fn sampling(recipe: &Recipe, judge: &mut Judge<'_>) {
    let (rl, rollout) = (&recipe.rl, &recipe.rollout);
    let answers = rl.prompts_per_step * rl.group_size;
    judge.refuse_if(
        answers > MOST_ANSWERS,
        "a step samples more answers than a machine can hold",
        &[
            (
                "rl.prompts_per_step",
                &format!("times the group size this makes {answers}"),
            ),
            ("rl.group_size", &format!("{} answers each", rl.group_size)),
        ],
        &format!("at most {MOST_ANSWERS} answers a step"),
    );
    judge.refuse_if(
        !answers.is_multiple_of(rl.updates_per_step),
        "the answers of a step do not divide into its updates",
        &[
            (
                "rl.updates_per_step",
                &format!("must divide {answers}, the answers of a step"),
            ),
            (
                "rl.prompts_per_step",
                &counted(rl.prompts_per_step, "prompt"),
            ),
            ("rl.group_size", &format!("{} answers each", rl.group_size)),
        ],
        &near_values("rl.updates_per_step", rl.updates_per_step, |n| {
            answers.is_multiple_of(n)
        }),
    );
    let filters = [
        ("rollout.top_k", rollout.top_k > 0),
        ("rollout.top_p", rollout.top_p < 1.0),
        ("rollout.min_p", rollout.min_p > 0.0),
    ];
    for (key, used) in filters {
        judge.refuse_if(
            used && rollout.temperature != 1.0,
            "the policy ratio would be taken against a distribution that the trainer does not have",
            &[
                (key, "draws from a part of the vocabulary, so the ratio uses the model's own log-probs"),
                ("rollout.temperature", "must be 1, where these are known"),
            ],
            &format!("set `rollout.temperature = 1`, or leave out `{key}`"),
        );
    }
    judge.refuse_if(
        rollout.tokens_per_dispatch > rollout.max_new_tokens,
        "a dispatch decodes more tokens than an answer may have",
        &[
            (
                "rollout.tokens_per_dispatch",
                &format!("must be at most {}", rollout.max_new_tokens),
            ),
            ("rollout.max_new_tokens", "the longest answer"),
        ],
        "lower `rollout.tokens_per_dispatch`",
    );
}

fn rows(recipe: &Recipe, judge: &mut Judge<'_>) {
    let (packing, rollout, mesh) = (&recipe.packing, &recipe.rollout, &recipe.mesh);
    let longest = rollout.max_prompt_tokens + rollout.max_new_tokens;
    let needed = longest.next_multiple_of(packing.segment_align.max(1));
    let mut about = vec![
        ("packing.row_tokens", format!("must be at least {needed}")),
        (
            "rollout.max_prompt_tokens",
            format!(
                "up to {} of prompt",
                counted(rollout.max_prompt_tokens, "token")
            ),
        ),
        (
            "rollout.max_new_tokens",
            format!(
                "up to {} of answer",
                counted(rollout.max_new_tokens, "token")
            ),
        ),
    ];
    if needed > longest {
        about.push((
            "packing.segment_align",
            format!("{longest} rounded up to a multiple of this is {needed}"),
        ));
    }
    judge.refuse_if(
        packing.row_tokens < needed,
        "the longest prompt with the longest answer does not fit a row",
        &about
            .iter()
            .map(|(key, label)| (*key, label.as_str()))
            .collect::<Vec<_>>(),
        &format!("raise `packing.row_tokens` to {needed}, or shorten prompts or answers"),
    );
    judge.refuse_if(
        packing.row_tokens >= needed && !packing.row_tokens.is_multiple_of(packing.segment_align),
        "the alignment of sequences does not divide the row",
        &[
            (
                "packing.segment_align",
                &format!("must divide {}", packing.row_tokens),
            ),
            ("packing.row_tokens", &counted(packing.row_tokens, "token")),
        ],
        &near_values("packing.row_tokens", packing.row_tokens, |n| {
            n.is_multiple_of(packing.segment_align)
        }),
    );
    let devices = mesh.data * mesh.fsdp;
    judge.refuse_if(
        !packing.rows_per_micro_batch.is_multiple_of(devices),
        "the mesh does not divide the rows of a micro-batch",
        &[
            (
                "packing.rows_per_micro_batch",
                &format!("must be a multiple of data * fsdp = {devices}"),
            ),
            ("mesh.data", &format!("data is {}", mesh.data)),
            ("mesh.fsdp", &format!("fsdp is {}", mesh.fsdp)),
        ],
        &near_values(
            "packing.rows_per_micro_batch",
            packing.rows_per_micro_batch,
            |n| n.is_multiple_of(devices),
        ),
    );
}

fn shared_rows(recipe: &Recipe, judge: &mut Judge<'_>) {
    let (mesh, tokens) = (&recipe.mesh, recipe.packing.row_tokens);
    let (of_each, why) = match mesh.order {
        TokenOrder::DualChunkSwap => (2, "2 * context"),
        TokenOrder::Contiguous | TokenOrder::Balanced => (1, "context"),
    };
    let parts = of_each * mesh.context;
    judge.refuse_if(
        mesh.context > 1 && !tokens.is_multiple_of(parts),
        "the devices that share a row cannot cut it into equal parts",
        &[
            (
                "packing.row_tokens",
                &format!("must be a multiple of {why} = {parts}"),
            ),
            ("mesh.context", &format!("context is {}", mesh.context)),
            ("mesh.order", "says into how many parts"),
        ],
        &format!(
            "{}, or {}",
            near_values("packing.row_tokens", tokens, |n| n.is_multiple_of(parts)),
            near_values("mesh.context", mesh.context, |n| {
                tokens.is_multiple_of(of_each * n)
            })
        ),
    );
}

fn pad_align(recipe: &Recipe, judge: &mut Judge<'_>) {
    let packing = &recipe.packing;
    judge.refuse_if(
        !packing.pad_align.is_multiple_of(packing.segment_align),
        "padding at the start would break the alignment of sequences",
        &[
            (
                "packing.pad_align",
                &format!("must be a multiple of {}", packing.segment_align),
            ),
            (
                "packing.segment_align",
                "every sequence starts at a multiple of this",
            ),
        ],
        &near_values("packing.pad_align", packing.pad_align, |n| {
            n.is_multiple_of(packing.segment_align)
        }),
    );
    judge.refuse_if(
        packing.pad_align >= packing.row_tokens,
        "padding at the start would never be as long as its alignment",
        &[
            (
                "packing.pad_align",
                &format!("must be below {}", packing.row_tokens),
            ),
            ("packing.row_tokens", "the whole row"),
        ],
        "lower `packing.pad_align`",
    );
}

/// "try a or b": the nearest values on both sides of a wrong one that would do.
fn near_values(key: &str, wrong: usize, good: impl Fn(usize) -> bool) -> String {
    // Bounded, since a user may write a number for which nothing near will do.
    const FAR: usize = 100_000;
    let below = (wrong.saturating_sub(FAR).max(1)..wrong)
        .rev()
        .find(|&n| good(n));
    let above = (wrong + 1..=wrong + FAR).find(|&n| good(n));
    match (below, above) {
        (Some(below), Some(above)) => format!("try `{key}` = {below} or {above}"),
        (Some(one), None) | (None, Some(one)) => format!("try `{key}` = {one}"),
        (None, None) => format!("change `{key}`"),
    }
}
