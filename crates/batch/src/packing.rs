//! The assemblers: trajectories and their loss weights to rows.
//!
//! Everything that can be refused is refused before a row is laid out, all at once. Not here: the loss weights, and the
//! choice of micro-batches.

use std::str::FromStr;

use crate::balance::{Balance, lightest_with_room};
use crate::check::{check_fields, check_loss_weights};
use crate::error::{BatchError, Refused};
use crate::fit::{Slot, first_fit_decreasing};
use crate::rows::{Place, Rows};
use crate::trajectory::Trajectory;
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
    /// Evens the attention work of data shards; by default rows stand in the order in which they were opened.
    pub balance: Option<Balance>,
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
            balance: None,
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
        check_loss_weights(batch, weights, &mut problems);
        Refused::unless_empty(problems)?;

        let lengths: Vec<usize> = batch.iter().map(Trajectory::len).collect();
        let (slots, used) = self.slots(&lengths);
        let rows = self.row_count(used)?;
        let slots = match self.balance {
            None => slots,
            Some(balance) => balance.apply(slots, self.spread(&lengths, rows), &lengths, rows),
        };
        let shifts = self.shifts(&lengths, &slots, rows);
        let places = slots.iter().enumerate().map(|(trajectory, slot)| Place {
            trajectory,
            row: slot.row,
            segment: slot.order + 1,
            start: slot.start + shifts[slot.row],
            len: lengths[trajectory],
        });
        Ok(Rows::lay_out(
            rows,
            self.budget,
            places.collect(),
            batch,
            weights,
        ))
    }

    /// A slot for each trajectory and the number of rows used.
    fn slots(&self, lengths: &[usize]) -> (Vec<Slot>, usize) {
        match self.assembler {
            Assembler::Packed => {
                let cap = self.max_segments.unwrap_or(usize::MAX);
                first_fit_decreasing(lengths, self.budget, self.segment_align, cap)
            }
            Assembler::Padded => {
                let slots = (0..lengths.len()).map(|row| Slot {
                    row,
                    order: 0,
                    start: 0,
                });
                (slots.collect(), lengths.len())
            }
        }
    }

    /// The same trajectories over all rows that there will be, evenly, if they fit so and may share rows.
    fn spread(&self, lengths: &[usize], rows: usize) -> Option<Vec<Slot>> {
        let cap = self.max_segments.unwrap_or(usize::MAX);
        match self.assembler {
            Assembler::Packed => {
                lightest_with_room(lengths, rows, self.budget, self.segment_align, cap)
            }
            Assembler::Padded => None,
        }
    }

    /// The rows in use and the empty ones that fill up the last multiple.
    fn row_count(&self, used: usize) -> Result<usize, BatchError> {
        let multiple = match self.balance {
            Some(balance) => balance.rows_per_micro_batch,
            None => self.row_multiple,
        };
        let rows = used
            .checked_next_multiple_of(multiple)
            .unwrap_or(usize::MAX);
        match rows.checked_mul(self.budget) {
            Some(positions) if positions as u64 <= 1 << 32 => Ok(rows),
            _ => Err(BatchError::TooLarge {
                rows,
                budget: self.budget,
            }),
        }
    }

    /// How far to the right each row moves.
    fn shifts(&self, lengths: &[usize], slots: &[Slot], rows: usize) -> Vec<usize> {
        let mut shifts = vec![0; rows];
        if self.pad_position == PadPosition::End {
            return shifts;
        }
        let mut ends = vec![0; rows];
        for (slot, length) in slots.iter().zip(lengths) {
            ends[slot.row] = ends[slot.row].max(slot.start + length);
        }
        for (shift, end) in shifts.iter_mut().zip(ends) {
            let trailing = self.budget - end;
            *shift = trailing - trailing % self.pad_align;
        }
        shifts
    }
}
