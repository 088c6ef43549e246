//! What the options of packing and aggregation are called, and the problems that name them.

use crate::error::BatchError;

/// An option that a problem names. A front end has names of its own, see [`BatchError::told`](crate::BatchError::told).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PackingOption {
    /// [`Packing::budget`](crate::Packing::budget).
    Budget,
    /// [`Packing::max_segments`](crate::Packing::max_segments).
    MaxSegments,
    /// [`Packing::segment_align`](crate::Packing::segment_align).
    SegmentAlign,
    /// [`Packing::row_multiple`](crate::Packing::row_multiple).
    RowMultiple,
    /// [`Packing::context_size`](crate::Packing::context_size).
    ContextSize,
    /// [`Packing::pad_position`](crate::Packing::pad_position).
    PadPosition,
    /// [`Packing::pad_align`](crate::Packing::pad_align).
    PadAlign,
    /// [`Balance::rows_per_micro_batch`](crate::Balance::rows_per_micro_batch), and that of
    /// [`Rows::micro_batches`](crate::Rows::micro_batches).
    RowsPerMicroBatch,
    /// [`Balance::shards`](crate::Balance::shards).
    DataShards,
    /// [`truncate`](crate::truncate).
    Truncate,
    /// The constant of [`Aggregation::TokenSum`](crate::Aggregation::TokenSum).
    Constant,
}

impl PackingOption {
    /// As it is called here.
    pub fn name(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::MaxSegments => "max_segments",
            Self::SegmentAlign => "segment_align",
            Self::RowMultiple => "row_multiple",
            Self::ContextSize => "context_size",
            Self::PadPosition => "pad_position",
            Self::PadAlign => "pad_align",
            Self::RowsPerMicroBatch => "rows_per_micro_batch",
            Self::DataShards => "data_shards",
            Self::Truncate => "truncate",
            Self::Constant => "constant",
        }
    }
}

/// What makes an option idle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// [`Assembler::Padded`](crate::Assembler::Padded).
    Padded,
    /// [`PadPosition::End`](crate::PadPosition::End).
    PaddingAtTheEnd,
    /// Any aggregation but token-sum.
    OtherAggregation,
}

impl BatchError {
    /// The text in which options have these names.
    pub fn told(&self, name: impl Fn(PackingOption) -> &'static str) -> String {
        let budget_is = |budget: usize| format!("{} {budget}", name(PackingOption::Budget));
        match self {
            Self::TooLong {
                trajectory,
                tokens,
                budget,
            } => format!(
                "trajectory {trajectory} has {tokens} tokens, more than {}; raise that, or shorten it with {}",
                budget_is(*budget),
                name(PackingOption::Truncate)
            ),
            Self::Zero { option } => format!("{} is 0; it must be at least 1", name(*option)),
            Self::Indivisible {
                budget,
                option,
                value,
                twice,
                below,
                above,
            } => format!(
                "{} is not a multiple of {}{} {value}; {}",
                budget_is(*budget),
                if *twice { "twice " } else { "" },
                name(*option),
                nearest(*below, *above)
            ),
            Self::UnevenRows {
                rows,
                shards,
                below,
                above,
            } => format!(
                "{} {rows} is not a multiple of {} {shards}; {}",
                name(PackingOption::RowsPerMicroBatch),
                name(PackingOption::DataShards),
                nearest(*below, *above)
            ),
            Self::RowMultiple { row_multiple, rows } => format!(
                "{} {row_multiple} does not divide the {rows} rows of a micro-batch; leave it at 1, or make it a divisor",
                name(PackingOption::RowMultiple)
            ),
            Self::PadAlign {
                pad_align,
                segment_align,
            } => format!(
                "{} {pad_align} is not a positive multiple of {} {segment_align}",
                name(PackingOption::PadAlign),
                name(PackingOption::SegmentAlign)
            ),
            Self::PadAlignTooLarge { pad_align, budget } => format!(
                "{} {pad_align} is not below {}, so no row could move; lower it, or use {} end",
                name(PackingOption::PadAlign),
                budget_is(*budget),
                name(PackingOption::PadPosition)
            ),
            Self::NoEffect {
                option,
                value,
                with,
            } => {
                let with = match with {
                    Idle::Padded => "the padded assembler".to_owned(),
                    Idle::PaddingAtTheEnd => format!("{} end", name(PackingOption::PadPosition)),
                    Idle::OtherAggregation => "an aggregation other than token-sum".to_owned(),
                };
                format!(
                    "{} {value} has no effect with {with}; remove one of them",
                    name(*option)
                )
            }
            Self::ConstantMissing => format!(
                "aggregation token-sum needs a number to divide by; give {}",
                name(PackingOption::Constant)
            ),
            Self::Constant { constant } => format!(
                "{} {constant} of aggregation token-sum must be positive, and 1 over it must fit a 32-bit float",
                name(PackingOption::Constant)
            ),
            Self::TooLarge { rows, budget } => format!(
                "{rows} rows of {budget} tokens are more than the limit of 2^32 positions; lower {} or {}",
                name(PackingOption::Budget),
                name(PackingOption::RowMultiple)
            ),
            other => other.to_string(),
        }
    }
}

/// The multiples on both sides of what is none; 0 is no size.
fn nearest(below: usize, above: usize) -> String {
    match below {
        0 => format!("the nearest is {above}"),
        _ => format!("nearest are {below} and {above}"),
    }
}
