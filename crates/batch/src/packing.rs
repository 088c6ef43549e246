//! The assemblers: trajectories and their loss weights to rows.
//!
//! Everything that can be refused is refused before a row is laid out, all at once. Not here: the loss weights, and the
//! choice of micro-batches.

use std::str::FromStr;

use crate::error::{BatchError, Refused};
use crate::field::Field;
use crate::fit::{Slot, first_fit_decreasing};
use crate::rows::{Place, Rows};
use crate::trajectory::{Trajectory, check_values};
use crate::weights::LossWeights;

/// What a row may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Assembler {
    /// Several trajectories a row, first-fit decreasing.
    #[default]
    Packed,
    /// One trajectory a row, in the order given, padded at its end.
    Padded,
}

/// On which side of a row its padding goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PadPosition {
    /// Behind the last segment.
    #[default]
    End,
    /// The row as for [`PadPosition::End`], moved right by its trailing padding rounded down to `pad_align`, so that every
    /// segment keeps its place relative to attention tiles and to its alignment.
    Start,
}

impl FromStr for Assembler {
    type Err = BatchError;

    fn from_str(name: &str) -> Result<Assembler, BatchError> {
        match name {
            "packed" => Ok(Assembler::Packed),
            "padded" => Ok(Assembler::Padded),
            _ => Err(unknown("assembler", name, "packed, padded")),
        }
    }
}

impl FromStr for PadPosition {
    type Err = BatchError;

    fn from_str(name: &str) -> Result<PadPosition, BatchError> {
        match name {
            "end" => Ok(PadPosition::End),
            "start" => Ok(PadPosition::Start),
            _ => Err(unknown("pad_position", name, "end, start")),
        }
    }
}

fn unknown(what: &'static str, given: &str, known: &'static str) -> BatchError {
    BatchError::UnknownName {
        what,
        given: given.to_owned(),
        known,
    }
}

/// The default of [`Packing::pad_align`]: as large as any attention block in use.
pub const DEFAULT_PAD_ALIGN: usize = 4096;

/// The settings of an assembler. [`Packing::packed`] and [`Packing::padded`] give the defaults; change what differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packing {
    /// What a row may hold.
    pub assembler: Assembler,
    /// Tokens that a row holds: the `T` of `[B,T]`.
    pub budget: usize,
    /// Most segments in a row; no limit by default.
    pub max_segments: Option<usize>,
    /// Every segment starts at a multiple of this; 1 by default.
    pub segment_align: usize,
    /// The number of rows is rounded up to a multiple of this by empty rows; 1 by default.
    pub row_multiple: usize,
    /// Devices that a row is cut over; they must divide the budget. 1 by default.
    pub context_size: usize,
    /// On which side of a row its padding goes.
    pub pad_position: PadPosition,
    /// What the move of [`PadPosition::Start`] is rounded down to.
    pub pad_align: usize,
    /// Token ids must be below this, if it is given.
    pub vocab_size: Option<u32>,
}

impl Packing {
    /// Several trajectories a row of `budget` tokens.
    pub fn packed(budget: usize) -> Packing {
        Packing {
            assembler: Assembler::Packed,
            budget,
            max_segments: None,
            segment_align: 1,
            row_multiple: 1,
            context_size: 1,
            pad_position: PadPosition::End,
            pad_align: DEFAULT_PAD_ALIGN,
            vocab_size: None,
        }
    }

    /// One trajectory a row of `budget` tokens.
    pub fn padded(budget: usize) -> Packing {
        Packing {
            assembler: Assembler::Padded,
            ..Packing::packed(budget)
        }
    }

    /// Lays the trajectories out. The same input gives the same rows.
    ///
    /// # Shapes
    ///
    /// `[B,T]` with `T` the budget and `B` a multiple of `row_multiple`.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the settings, the trajectories and the weights, in that order.
    pub fn pack(&self, batch: &[Trajectory], weights: &LossWeights) -> Result<Rows, Refused> {
        let mut problems = self.problems();
        self.check_batch(batch, &mut problems);
        check_fields(batch, &mut problems);
        check_weights(batch, weights, &mut problems);
        Refused::unless_empty(problems)?;

        let (slots, used) = self.slots(batch);
        let rows = used
            .checked_next_multiple_of(self.row_multiple)
            .unwrap_or(usize::MAX);
        if rows
            .checked_mul(self.budget)
            .is_none_or(|positions| positions as u64 > 1 << 32)
        {
            return Err(BatchError::TooLarge {
                rows,
                budget: self.budget,
            }
            .into());
        }
        let shifts = self.shifts(batch, &slots, used);
        let places = slots.iter().enumerate().map(|(trajectory, slot)| Place {
            trajectory,
            row: slot.row,
            segment: slot.order + 1,
            start: slot.start + shifts[slot.row],
            len: batch[trajectory].len(),
        });
        Ok(Rows::lay_out(
            rows,
            self.budget,
            places.collect(),
            batch,
            weights,
        ))
    }

    /// What is wrong with the settings themselves, so that it can be told before there is a batch.
    pub fn problems(&self) -> Vec<BatchError> {
        let mut problems = Vec::new();
        let sizes = [
            ("budget", self.budget),
            ("max_segments", self.max_segments.unwrap_or(1)),
            ("segment_align", self.segment_align),
            ("row_multiple", self.row_multiple),
            ("context_size", self.context_size),
        ];
        for (option, _) in sizes.into_iter().filter(|&(_, size)| size == 0) {
            problems.push(BatchError::Zero { option });
        }
        for (option, divisor) in [
            ("segment_align", self.segment_align),
            ("context_size", self.context_size),
        ] {
            let budget = self.budget;
            if divisor > 0 && !budget.is_multiple_of(divisor) {
                let below = budget - budget % divisor;
                let above = below.saturating_add(divisor);
                problems.push(BatchError::Indivisible {
                    budget,
                    option,
                    divisor,
                    below,
                    above,
                });
            }
        }
        self.check_padding(&mut problems);
        problems
    }

    fn check_padding(&self, problems: &mut Vec<BatchError>) {
        let &Packing {
            pad_align,
            segment_align,
            budget,
            ..
        } = self;
        let mut no_effect =
            |option: String, with| problems.push(BatchError::NoEffect { option, with });
        if self.assembler == Assembler::Padded {
            if self.pad_position == PadPosition::Start {
                no_effect("pad_position start".into(), "the padded assembler");
            }
            if let Some(cap) = self.max_segments {
                no_effect(format!("max_segments {cap}"), "the padded assembler");
            }
            if segment_align > 1 {
                no_effect(
                    format!("segment_align {segment_align}"),
                    "the padded assembler",
                );
            }
        }
        if self.pad_position == PadPosition::End {
            if pad_align != DEFAULT_PAD_ALIGN {
                no_effect(format!("pad_align {pad_align}"), "pad_position end");
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

    fn check_batch(&self, batch: &[Trajectory], problems: &mut Vec<BatchError>) {
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

    /// A slot for each trajectory and the number of rows used.
    fn slots(&self, batch: &[Trajectory]) -> (Vec<Slot>, usize) {
        match self.assembler {
            Assembler::Packed => {
                let lengths: Vec<usize> = batch.iter().map(Trajectory::len).collect();
                let cap = self.max_segments.unwrap_or(usize::MAX);
                first_fit_decreasing(&lengths, self.budget, self.segment_align, cap)
            }
            Assembler::Padded => {
                let slots = (0..batch.len()).map(|row| Slot {
                    row,
                    order: 0,
                    start: 0,
                });
                (slots.collect(), batch.len())
            }
        }
    }

    /// How far to the right each row moves.
    fn shifts(&self, batch: &[Trajectory], slots: &[Slot], rows: usize) -> Vec<usize> {
        let mut shifts = vec![0; rows];
        if self.pad_position == PadPosition::End {
            return shifts;
        }
        let mut ends = vec![0; rows];
        for (slot, trajectory) in slots.iter().zip(batch) {
            ends[slot.row] = ends[slot.row].max(slot.start + trajectory.len());
        }
        for (shift, end) in shifts.iter_mut().zip(ends) {
            let trailing = self.budget - end;
            *shift = trailing - trailing % self.pad_align;
        }
        shifts
    }
}

fn check_fields(batch: &[Trajectory], problems: &mut Vec<BatchError>) {
    let total = batch.len();
    for &field in Field::ALL {
        let present = batch
            .iter()
            .filter(|trajectory| trajectory.fields.get(field).is_some())
            .count();
        let missing = batch
            .iter()
            .position(|trajectory| trajectory.fields.get(field).is_none());
        if let (Some(missing), 1..) = (missing, present) {
            problems.push(BatchError::FieldMissing {
                field: field.name(),
                present,
                total,
                missing,
            });
        }
    }
}

fn check_weights(batch: &[Trajectory], weights: &LossWeights, problems: &mut Vec<BatchError>) {
    if weights.per_token.len() != batch.len() {
        let (weights, trajectories) = (weights.per_token.len(), batch.len());
        problems.push(BatchError::WeightCount {
            weights,
            trajectories,
        });
        return;
    }
    let field = "loss_weight";
    for (trajectory, (it, values)) in batch.iter().zip(&weights.per_token).enumerate() {
        let tokens = it.len();
        check_values(trajectory, field, values, tokens, problems);
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
