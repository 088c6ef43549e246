//! Every setting of a recipe reaches the plan.

use super::*;

const EVERYTHING: &str = r#"
seed = 11
[model]
path = "model"
init = "random"
[data]
train = "train.jsonl"
heldout = "heldout.jsonl"
demonstrations = "demonstrations.jsonl"
[warmup]
steps = 7
batch_size = 5
learning_rate = 0.5
lr_schedule = "cosine"
lr_warmup_steps = 2
min_lr_ratio = 0.25
[rl]
steps = 9
prompts_per_step = 6
group_size = 4
advantage = "rloo"
loss_aggregation = "token-sum"
updates_per_step = 3
clip_ratio_low = 0.1
clip_ratio_high = 0.3
learning_rate = 0.125
lr_schedule = "linear"
lr_warmup_steps = 3
min_lr_ratio = 0.75
[rollout]
temperature = 0.5
max_prompt_tokens = 10
max_new_tokens = 20
[packing]
row_tokens = 64
rows_per_micro_batch = 2
max_segments = 3
segment_align = 2
pad_position = "start"
pad_align = 4
[eval]
every_steps = 6
"#;

fn plan_of(text: &str) -> Plan {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("model")).unwrap();
    for name in [
        "recipe.toml",
        "train.jsonl",
        "heldout.jsonl",
        "demonstrations.jsonl",
        "model/config.json",
        "model/tokenizer.json",
    ] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let resolved =
        Recipe::load(dir.path().join("recipe.toml"), &[]).unwrap_or_else(|e| panic!("{e}"));
    plan(resolved.recipe()).unwrap_or_else(|e| panic!("{e:?}"))
}

#[test]
fn every_setting_reaches_it() {
    let plan = plan_of(EVERYTHING);
    assert_eq!(
        (
            plan.seed,
            plan.rows_per_micro_batch,
            plan.request.max_new_tokens,
            plan.evaluate_every
        ),
        (11, 2, 20, 6)
    );
    let warmup = plan.warmup.unwrap();
    assert_eq!((warmup.steps, warmup.batch_size), (7, 5));
    let schedule = Schedule {
        kind: ScheduleKind::Cosine,
        peak: 0.5,
        warmup_steps: 2,
        total_steps: 7,
        final_ratio: 0.25,
    };
    assert_eq!(warmup.schedule, schedule);

    let grpo = plan.grpo.unwrap();
    assert_eq!(
        (
            grpo.steps,
            grpo.prompts_per_step,
            grpo.group_size,
            grpo.updates_per_step
        ),
        (9, 6, 4, 3)
    );
    assert_eq!(grpo.estimator, Estimator::Rloo);
    // 6 * 4 answers in 3 updates, of 20 tokens each.
    assert_eq!(grpo.aggregation, Aggregation::TokenSum { constant: 160.0 });
    assert_eq!(
        grpo.clip,
        ClipRange {
            low: 0.1,
            high: 0.3
        }
    );
    assert_eq!(plan.request.temperature, 0.5);
    let schedule = Schedule {
        kind: ScheduleKind::Linear,
        peak: 0.125,
        warmup_steps: 3,
        total_steps: 9,
        final_ratio: 0.75,
    };
    assert_eq!(grpo.schedule, schedule);

    let expected = Packing {
        max_segments: Some(3),
        segment_align: 2,
        pad_position: PadPosition::Start,
        pad_align: 4,
        ..Packing::packed(64)
    };
    assert_eq!(plan.packing, expected);
    assert_eq!(plan.packing.problems(), []);
}

#[test]
fn padding_at_the_end_has_no_alignment_of_its_own() {
    let text = EVERYTHING
        .replace("pad_position = \"start\"", "")
        .replace("pad_align = 4", "");
    assert_eq!(plan_of(&text).packing.problems(), []);
}

#[test]
fn every_aggregation_of_a_recipe_is_one_of_the_batch() {
    for word in ferrotune_recipe::LossAggregation::WORDS {
        let text = EVERYTHING.replace("token-sum", word);
        assert_eq!(plan_of(&text).grpo.unwrap().aggregation.name(), *word);
    }
}

#[test]
fn rows_are_balanced_over_all_devices() {
    let with = |mesh: &str, balance: &str| {
        let text = EVERYTHING.replace("pad_align = 4", &format!("pad_align = 4\n{balance}"));
        plan_of(&format!("{text}\n[mesh]\n{mesh}\n"))
            .packing
            .balance
    };
    let both = Balance {
        rows_per_micro_batch: 2,
        shards: 2,
    };
    assert_eq!(with("fsdp = 2", ""), Some(both));
    assert_eq!(with("data = 2", "balance = \"attention\""), Some(both));
    assert_eq!(with("fsdp = 2", "balance = \"off\""), None);
    assert_eq!(with("fsdp = 1", ""), None);
}
