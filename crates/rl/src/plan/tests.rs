//! Which step belongs to which phase, and after which the held-out problems are answered.

use ferrotune_engine::{Schedule, ScheduleKind};

use super::*;

fn plan(warmup: u64, grpo: u64, evaluate_every: u64) -> Plan {
    let schedule = Schedule {
        kind: ScheduleKind::Constant,
        peak: 1.0,
        warmup_steps: 0,
        total_steps: 1,
        final_ratio: 0.0,
    };
    let imitation = Imitation {
        steps: warmup,
        batch_size: 1,
        schedule,
    };
    let reinforcement = Reinforcement {
        steps: grpo,
        prompts_per_step: 1,
        group_size: 2,
        updates_per_step: 1,
        estimator: Estimator::GroupNorm,
        aggregation: Aggregation::TokenMean,
        clip: ClipRange {
            low: 0.2,
            high: 0.2,
        },
        schedule,
    };
    Plan {
        seed: 0,
        warmup: (warmup > 0).then_some(imitation),
        grpo: (grpo > 0).then_some(reinforcement),
        packing: Packing::packed(8),
        rows_per_micro_batch: 1,
        request: Request::default(),
        checker: Checker::Exact,
        evaluate_every,
    }
}

fn evaluated(plan: &Plan) -> Vec<u64> {
    (1..=plan.total_steps())
        .filter(|&step| plan.evaluates_after(step))
        .collect()
}

#[test]
fn the_ends_of_the_phases_are_measured() {
    assert_eq!(evaluated(&plan(3, 5, 0)), [3, 8]);
    assert_eq!(evaluated(&plan(0, 5, 0)), [5]);
    assert_eq!(evaluated(&plan(3, 0, 0)), [3]);
}

#[test]
fn steps_of_reinforcement_are_counted_from_its_first() {
    assert_eq!(evaluated(&plan(3, 5, 2)), [3, 5, 7, 8]);
    assert_eq!(evaluated(&plan(0, 4, 2)), [2, 4]);
}

#[test]
fn phases_follow_each_other() {
    let plan = plan(2, 2, 0);
    let phases: Vec<Phase> = (1..=4).map(|step| plan.phase(step)).collect();
    assert_eq!(
        phases,
        [Phase::Warmup, Phase::Warmup, Phase::Grpo, Phase::Grpo]
    );
}

#[test]
fn an_update_has_no_more_micro_batches_than_its_sequences_need_with_a_row_each() {
    let mut plan = plan(1, 1, 0);
    plan.rows_per_micro_batch = 4;
    let warmup = plan.warmup.as_mut().unwrap();
    warmup.batch_size = 9;
    let grpo = plan.grpo.as_mut().unwrap();
    (
        grpo.prompts_per_step,
        grpo.group_size,
        grpo.updates_per_step,
    ) = (8, 4, 2);
    assert_eq!(plan.most_micro_batches(Phase::Warmup), 3);
    assert_eq!(plan.most_micro_batches(Phase::Grpo), 4);
}
