//! `ferrotune pack`: trajectories in a file to rows, loss weights, and the attention tiles of every context shard.
//!
//! Nothing runs on a device: this shows what a trainer with these settings would compute.

mod input;
mod report;

use std::path::Path;

use anyhow::anyhow;
use ferrotune_batch::{
    Aggregation, Balance, BatchError, LossWeights, Packing, PackingOption, Padding, Rows, Tiling,
    Trajectory, truncate,
};

use crate::args::PackArgs;
use crate::failure::{Failure, OrFail};
use crate::machine;
use crate::terminal::counted;
use input::Lines;
use report::Report;

pub(crate) fn run(args: &PackArgs) -> Result<(), Failure> {
    let mut lines = input::read(&args.trajectories)?;
    let mode = Aggregation::parse(&args.aggregation, args.constant);
    let truncated = match args.truncate {
        true => truncate(&mut lines.trajectories, args.budget),
        false => 0,
    };
    let (rows, weights) = lay_out(args, &lines, mode)?;
    let mut tiling = Tiling::new(args.blocks, args.dkv_blocks);
    if args.skip_padding {
        tiling.padding = Padding::Skipped;
    }
    let orders = rows.orders(args.order, args.context, &tiling).or_refuse()?;
    let report = Report {
        args,
        lines: &lines,
        truncated,
        weights: &weights,
        rows: &rows,
        orders: &orders,
        tiling: &tiling,
    };
    match args.json {
        true => report.json(),
        false => report.table(),
    }
}

/// Refuses rows that are more than the machine has free: of each place an id, a document, a position and a weight, and of each
/// shard its tiles in three passes.
fn check_memory(args: &PackArgs, lines: &Lines) -> Result<(), Failure> {
    let tokens: usize = lines.trajectories.iter().map(Trajectory::len).sum();
    let rows = tokens.div_ceil(args.budget);
    let filled = rows.next_multiple_of(args.rows_per_micro_batch);
    let of_row = 16.0 * args.budget as f64 + 24.0 * args.context as f64;
    machine::check_free(
        &format!(
            "{} of {}",
            counted(filled, "row"),
            counted(args.budget, "token")
        ),
        filled as f64 * of_row,
        "lower --budget, --rows-per-micro-batch or --context",
    )
}

/// The rows, or everything that is wrong with the flags and the lines.
fn lay_out(
    args: &PackArgs,
    lines: &Lines,
    mode: Result<Aggregation, BatchError>,
) -> Result<(Rows, LossWeights), Failure> {
    let packing = packing(args);
    let mut problems: Vec<BatchError> = Vec::new();
    if packing.context_size > 0 && args.budget.is_multiple_of(args.context) {
        problems.extend(args.order.check(args.budget, args.context).err());
    }
    // Weights of any mode show the same faults of lines.
    let weights = match mode {
        Ok(mode) => mode.weights(&lines.trajectories),
        Err(problem) => {
            problems.push(problem);
            Aggregation::TokenMean.weights(&lines.trajectories)
        }
    };
    let weights = weights.or_refuse()?;
    if problems.is_empty() && packing.problems().is_empty() {
        check_memory(args, lines)?;
    }
    let packed = packing.pack(&lines.trajectories, &weights);
    match packed {
        Ok(rows) if problems.is_empty() && lines.bad.is_empty() => Ok((rows, weights)),
        packed => {
            let more = packed.err().map_or(Vec::new(), |it| it.problems().to_vec());
            // The flags are told first.
            let (of_lines, of_flags): (Vec<_>, Vec<_>) =
                more.into_iter().partition(|it| it.trajectory().is_some());
            problems.splice(0..0, of_flags);
            Err(refusal(&args.trajectories, lines, problems, &of_lines))
        }
    }
}

fn packing(args: &PackArgs) -> Packing {
    Packing {
        max_segments: args.max_segments,
        segment_align: args.align,
        row_multiple: args.rows_per_micro_batch,
        context_size: args.context,
        pad_position: args.pad,
        pad_align: args.pad_align,
        balance: args.data_shards.map(|shards| Balance {
            rows_per_micro_batch: args.rows_per_micro_batch,
            shards,
        }),
        ..Packing::packed(args.budget)
    }
}

/// The flag that sets an option.
pub(crate) fn flag(option: PackingOption) -> &'static str {
    match option {
        PackingOption::Budget => "--budget",
        PackingOption::MaxSegments => "--max-segments",
        PackingOption::SegmentAlign => "--align",
        PackingOption::ContextSize => "--context",
        PackingOption::PadPosition => "--pad",
        PackingOption::PadAlign => "--pad-align",
        PackingOption::RowMultiple | PackingOption::RowsPerMicroBatch => "--rows-per-micro-batch",
        PackingOption::DataShards => "--data-shards",
        PackingOption::Truncate => "--truncate",
        PackingOption::Constant => "--constant",
    }
}

/// Problems that are shown before the rest is only counted.
const SHOWN: usize = 50;

fn refusal(
    path: &Path,
    lines: &Lines,
    of_flags: Vec<BatchError>,
    of_lines: &[BatchError],
) -> Failure {
    // An empty batch is told by the reader, unless bad lines are why it is empty.
    let no_lines = |it: &BatchError| *it == BatchError::NoTrajectories && !lines.bad.is_empty();
    let flags = of_flags.into_iter().filter(|it| !no_lines(it));
    let mut shown: Vec<_> = flags.map(|it| anyhow!(it.told(flag))).collect();
    let mut placed = lines.bad.clone();
    for problem in of_lines {
        let trajectory = problem.trajectory().unwrap_or(0);
        placed.push((lines.numbers[trajectory], problem.told(flag)));
    }
    placed.sort_by_key(|(number, _)| *number);
    let rest = placed.len().saturating_sub(SHOWN);
    let texts = placed
        .iter()
        .take(SHOWN)
        .map(|(number, why)| anyhow!("{}:{number}: {why}", path.display()));
    shown.extend(texts);
    if rest > 0 {
        shown.push(anyhow!("and {rest} more problems in {}", path.display()));
    }
    Failure::Refused(shown)
}
