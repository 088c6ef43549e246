//! The recipe's values as the algorithm takes them.

#[cfg(test)]
mod tests;

use ferrotune_batch::{Aggregation, Balance, DEFAULT_PAD_ALIGN, Packing, PadPosition};
use ferrotune_engine::{
    AdamW, Muon, Offload, OnNonFinite, Optimizer, OrderKind, Rule, Schedule, ScheduleKind, Sgd,
    ShardOverData, SpikeGuard,
};
use ferrotune_pjrt::DType;
use ferrotune_recipe as recipe;
use ferrotune_recipe::{MomentDtype, OptimizerKind, Recipe};
use ferrotune_rl::{ClipRange, Estimator, Imitation, Plan, Reinforcement};
use ferrotune_rollout::{FilterSettings, Request};

use crate::failure::{Failure, OrFail};
use crate::train::inputs::checker;

/// The whole plan.
///
/// Refuses an aggregation whose denominator does not fit.
pub(crate) fn plan(recipe: &Recipe) -> Result<Plan, Failure> {
    let (warmup, rl) = (&recipe.warmup, &recipe.rl);
    let imitation = Imitation {
        steps: warmup.steps as u64,
        batch_size: warmup.batch_size,
        schedule: Schedule {
            kind: schedule_kind(warmup.lr_schedule, warmup.lr_decay_steps),
            peak: warmup.learning_rate,
            warmup_steps: warmup.lr_warmup_steps as u64,
            total_steps: warmup.steps as u64,
            final_ratio: warmup.min_lr_ratio,
        },
    };
    let reinforcement = Reinforcement {
        steps: rl.steps as u64,
        prompts_per_step: rl.prompts_per_step,
        group_size: rl.group_size,
        updates_per_step: rl.updates_per_step,
        estimator: estimator(rl.advantage),
        aggregation: aggregation(recipe)?,
        clip: ClipRange {
            low: rl.clip_ratio_low,
            high: rl.clip_ratio_high,
        },
        schedule: Schedule {
            kind: schedule_kind(rl.lr_schedule, rl.lr_decay_steps),
            peak: rl.learning_rate,
            warmup_steps: rl.lr_warmup_steps as u64,
            total_steps: rl.steps as u64,
            final_ratio: rl.min_lr_ratio,
        },
    };
    Ok(Plan {
        seed: recipe.seed,
        warmup: (warmup.steps > 0).then_some(imitation),
        grpo: (rl.steps > 0).then_some(reinforcement),
        packing: packing(recipe),
        rows_per_micro_batch: recipe.packing.rows_per_micro_batch,
        request: Request {
            temperature: recipe.rollout.temperature,
            filters: FilterSettings {
                top_k: recipe.rollout.top_k,
                top_p: recipe.rollout.top_p,
                min_p: recipe.rollout.min_p,
            },
            stop_strings: recipe.rollout.stop_strings.clone(),
            max_new_tokens: recipe.rollout.max_new_tokens,
            ..Request::default()
        },
        checker: checker(recipe),
        evaluate_every: recipe.eval.every_steps as u64,
    })
}

/// How gradients become updates.
pub(crate) fn optimizer(recipe: &Recipe) -> Optimizer {
    let it = &recipe.optimizer;
    let adamw = AdamW {
        beta1: it.beta1,
        beta2: it.beta2,
        eps: it.eps,
        moments: match it.moments {
            MomentDtype::F32 => DType::F32,
            MomentDtype::Bf16 => DType::BF16,
        },
    };
    Optimizer {
        rule: match it.kind {
            OptimizerKind::AdamW => Rule::AdamW(adamw),
            OptimizerKind::Sgd | OptimizerKind::Nesterov => Rule::Sgd(Sgd {
                momentum: it.momentum,
                nesterov: it.kind == OptimizerKind::Nesterov,
            }),
            OptimizerKind::Muon => Rule::Muon(Muon {
                momentum: it.momentum,
                others: adamw,
            }),
        },
        weight_decay: it.weight_decay,
        max_grad_norm: it.max_grad_norm,
        on_nonfinite: match it.on_nonfinite {
            recipe::OnNonFinite::Skip => OnNonFinite::Skip,
            recipe::OnNonFinite::Stop => OnNonFinite::Stop,
        },
        spike: (it.spike_window > 0).then_some(SpikeGuard {
            window: it.spike_window,
            factor: it.spike_factor,
        }),
    }
}

/// What is split over copies of the model.
pub(crate) fn shard_over_data(recipe: &Recipe) -> ShardOverData {
    match recipe.optimizer.shard_over_data {
        recipe::ShardOverData::Nothing => ShardOverData::Nothing,
        recipe::ShardOverData::Moments => ShardOverData::Moments,
        recipe::ShardOverData::MomentsAndGradients => ShardOverData::MomentsAndGradients,
    }
}

/// What rests in the memory of the host.
pub(crate) fn offload(recipe: &Recipe) -> Offload {
    match recipe.optimizer.offload {
        recipe::Offload::Nothing => Offload::Nothing,
        recipe::Offload::Moments => Offload::Moments,
    }
}

/// How the devices that share a row share its tokens.
pub(crate) fn token_order(recipe: &Recipe) -> OrderKind {
    match recipe.mesh.order {
        recipe::TokenOrder::Contiguous => OrderKind::Contiguous,
        recipe::TokenOrder::DualChunkSwap => OrderKind::DualChunkSwap,
        recipe::TokenOrder::Balanced => OrderKind::Balanced,
    }
}

fn schedule_kind(kind: recipe::LrSchedule, decay_steps: usize) -> ScheduleKind {
    match kind {
        recipe::LrSchedule::Constant => ScheduleKind::Constant,
        recipe::LrSchedule::Cosine => ScheduleKind::Cosine,
        recipe::LrSchedule::Linear => ScheduleKind::Linear,
        recipe::LrSchedule::StableDecay => ScheduleKind::StableDecay {
            decay_steps: decay_steps as u64,
        },
    }
}

fn estimator(advantage: recipe::Advantage) -> Estimator {
    match advantage {
        recipe::Advantage::GroupNorm => Estimator::GroupNorm,
        recipe::Advantage::GroupMean => Estimator::GroupMean,
        recipe::Advantage::Rloo => Estimator::Rloo,
    }
}

fn aggregation(recipe: &Recipe) -> Result<Aggregation, Failure> {
    let rl = &recipe.rl;
    // The answers of one update, each as long as it may be.
    let answers = rl.prompts_per_step * rl.group_size / rl.updates_per_step;
    let constant = (rl.loss_aggregation == recipe::LossAggregation::TokenSum)
        .then_some(answers as f64 * recipe.rollout.max_new_tokens as f64);
    Aggregation::parse(rl.loss_aggregation.word(), constant).or_refuse()
}

fn packing(recipe: &Recipe) -> Packing {
    let packing = &recipe.packing;
    let (pad_position, pad_align) = match packing.pad_position {
        recipe::PadPosition::End => (PadPosition::End, DEFAULT_PAD_ALIGN),
        recipe::PadPosition::Start => (PadPosition::Start, packing.pad_align),
    };
    let shards = recipe.mesh.data * recipe.mesh.fsdp;
    let balanced = shards > 1 && packing.balance == recipe::RowBalance::Attention;
    Packing {
        max_segments: packing.max_segments,
        segment_align: packing.segment_align,
        pad_position,
        pad_align,
        context_size: recipe.mesh.context,
        balance: balanced.then_some(Balance {
            rows_per_micro_batch: packing.rows_per_micro_batch,
            shards,
        }),
        ..Packing::packed(packing.row_tokens)
    }
}
