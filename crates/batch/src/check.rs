//! What can be told of settings, trajectories and weights before a row is laid out.

use crate::balance::Balance;
use crate::error::BatchError;
use crate::field::Field;
use crate::option::{Idle, PackingOption};
use crate::packing::{Assembler, DEFAULT_PAD_ALIGN, Packing, PadPosition};
use crate::trajectory::{Trajectory, check_weights};
use crate::weights::LossWeights;

impl Packing {
    /// What is wrong with the settings themselves, so that it can be told before there is a batch.
    pub fn problems(&self) -> Vec<BatchError> {
        let mut problems = Vec::new();
        let sizes = [
            (PackingOption::Budget, self.budget),
            (PackingOption::MaxSegments, self.max_segments.unwrap_or(1)),
            (PackingOption::SegmentAlign, self.segment_align),
            (PackingOption::RowMultiple, self.row_multiple),
            (PackingOption::ContextSize, self.context_size),
        ];
        for (option, _) in sizes.into_iter().filter(|&(_, size)| size == 0) {
            problems.push(BatchError::Zero { option });
        }
        for (option, divisor) in [
            (PackingOption::SegmentAlign, self.segment_align),
            (PackingOption::ContextSize, self.context_size),
        ] {
            let budget = self.budget;
            if divisor > 0 && !budget.is_multiple_of(divisor) {
                let below = budget - budget % divisor;
                let above = below.saturating_add(divisor);
                problems.push(BatchError::Indivisible {
                    budget,
                    option,
                    value: divisor,
                    twice: false,
                    below,
                    above,
                });
            }
        }
        self.check_padding(&mut problems);
        self.check_balance(&mut problems);
        problems
    }

    fn check_balance(&self, problems: &mut Vec<BatchError>) {
        let Some(Balance {
            rows_per_micro_batch: rows,
            shards,
        }) = self.balance
        else {
            return;
        };
        for (option, size) in [
            (PackingOption::RowsPerMicroBatch, rows),
            (PackingOption::DataShards, shards),
        ] {
            if size == 0 {
                problems.push(BatchError::Zero { option });
            }
        }
        if shards > 0 && !rows.is_multiple_of(shards) {
            let below = rows - rows % shards;
            problems.push(BatchError::UnevenRows {
                rows,
                shards,
                below,
                above: below.saturating_add(shards),
            });
        }
        let row_multiple = self.row_multiple;
        if row_multiple > 0 && rows > 0 && !rows.is_multiple_of(row_multiple) {
            problems.push(BatchError::RowMultiple { row_multiple, rows });
        }
    }

    fn check_padding(&self, problems: &mut Vec<BatchError>) {
        let &Packing {
            pad_align,
            segment_align,
            budget,
            ..
        } = self;
        let mut no_effect = |option, value: &dyn ToString, with| {
            let value = value.to_string();
            problems.push(BatchError::NoEffect {
                option,
                value,
                with,
            });
        };
        if self.assembler == Assembler::Padded {
            if self.pad_position == PadPosition::Start {
                no_effect(PackingOption::PadPosition, &"start", Idle::Padded);
            }
            if let Some(cap) = self.max_segments {
                no_effect(PackingOption::MaxSegments, &cap, Idle::Padded);
            }
            if segment_align > 1 {
                no_effect(PackingOption::SegmentAlign, &segment_align, Idle::Padded);
            }
        }
        if self.pad_position == PadPosition::End {
            if pad_align != DEFAULT_PAD_ALIGN {
                no_effect(PackingOption::PadAlign, &pad_align, Idle::PaddingAtTheEnd);
            }
            return;
        }
        if pad_align == 0 || segment_align > 0 && !pad_align.is_multiple_of(segment_align) {
            problems.push(BatchError::PadAlign {
                pad_align,
                segment_align,
            });
        }
        if pad_align >= budget {
            problems.push(BatchError::PadAlignTooLarge { pad_align, budget });
        }
    }

    pub(crate) fn check_batch(&self, batch: &[Trajectory], problems: &mut Vec<BatchError>) {
        if batch.is_empty() {
            problems.push(BatchError::NoTrajectories);
        }
        // Ids and positions travel as 32-bit signed integers.
        let signed = i32::MAX as u32;
        let vocab_size = self.vocab_size.map_or(signed, |size| size.min(signed));
        for (trajectory, it) in batch.iter().enumerate() {
            let tokens = it.len();
            if tokens > self.budget.min(i32::MAX as usize) {
                problems.push(BatchError::TooLong {
                    trajectory,
                    tokens,
                    budget: self.budget,
                });
            }
            it.check(trajectory, vocab_size, problems);
        }
    }
}

pub(crate) fn check_fields(batch: &[Trajectory], problems: &mut Vec<BatchError>) {
    let total = batch.len();
    for &field in Field::ALL {
        let present = batch
            .iter()
            .filter(|trajectory| trajectory.fields.column(field).is_some())
            .count();
        let missing = batch
            .iter()
            .position(|trajectory| trajectory.fields.column(field).is_none());
        if let (Some(missing), 1..) = (missing, present) {
            problems.push(BatchError::FieldMissing {
                field: field.name(),
                present,
                total,
                missing,
            });
        }
        check_widths(batch, field, problems);
    }
}

fn check_widths(batch: &[Trajectory], field: Field, problems: &mut Vec<BatchError>) {
    let columns = batch.iter().enumerate().filter_map(|(trajectory, it)| {
        let column = it.fields.column(field)?;
        Some((trajectory, column.per_token()))
    });
    let mut columns = columns.peekable();
    let Some(&(first, expected)) = columns.peek() else {
        return;
    };
    for (trajectory, per_token) in columns.filter(|&(_, per_token)| per_token != expected) {
        problems.push(BatchError::FieldWidth {
            trajectory,
            field: field.name(),
            per_token,
            first,
            expected,
        });
    }
}

pub(crate) fn check_loss_weights(
    batch: &[Trajectory],
    weights: &LossWeights,
    problems: &mut Vec<BatchError>,
) {
    if weights.per_token.len() != batch.len() {
        let (weights, trajectories) = (weights.per_token.len(), batch.len());
        problems.push(BatchError::WeightCount {
            weights,
            trajectories,
        });
        return;
    }
    for (trajectory, (it, values)) in batch.iter().zip(&weights.per_token).enumerate() {
        let tokens = it.len();
        check_weights(trajectory, values, tokens, problems);
        let outside = values
            .iter()
            .zip(&it.loss_mask)
            .position(|(&weight, &on)| weight != 0.0 && !on);
        if let Some(token) = outside {
            problems.push(BatchError::WeightOutsideMask {
                trajectory,
                token,
                weight: values[token],
            });
        }
    }
}
