//! Trajectories with six fields to micro-batches, then to orders and tile lists. One core, no device.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use ferrotune_batch::{
    Aggregation, Blocks, Field, OrderKind, OrderedRows, Packing, Pass, Rows, TileLists, Tiling,
    Trajectory,
};
use serde_json::{Value, json};

use super::median;
use crate::args::BenchPackArgs;
use crate::failure::{Failure, OrFail};
use crate::machine;
use crate::pack::flag;
use crate::terminal::{counted, print};

/// Rows of a micro-batch.
const ROWS: usize = 8;

/// The fields of every trajectory.
const FIELDS: [Field; 6] = [
    Field::Advantage,
    Field::OldLogprob,
    Field::RefLogprob,
    Field::SamplerLogprob,
    Field::Value,
    Field::Return,
];

pub(crate) fn run(args: &BenchPackArgs) -> Result<(), Failure> {
    let order = OrderKind::Balanced.check(args.budget, args.context);
    order
        .map_err(|problem| anyhow!(problem.told(flag)))
        .or_refuse()?;
    check_memory(args)?;
    // Half as many tokens first: memory is linear if the bytes a token do not grow.
    let half = measure(args, args.tokens / 2)?;
    let whole = measure(args, args.tokens)?;
    if args.json {
        return print(json!({
            "tokens_per_second": whole.per_second(&whole.pack),
            "ordered_tokens_per_second": whole.per_second(&whole.order),
            "tokens": whole.tokens,
            "trajectories": whole.trajectories,
            "rows": whole.rows,
            "budget": args.budget,
            "fields": FIELDS.map(Field::name),
            "context": args.context,
            "pack_ms": milliseconds(&whole.pack),
            "order_ms": milliseconds(&whole.order),
            "peak_bytes_per_token": whole.bytes_per_token(),
            "peak_bytes_per_token_of_half": half.bytes_per_token(),
        }));
    }
    print(format_args!(
        "trajectories to micro-batches  {:.1} M tokens/s ({:.1} ms for {} in {})",
        whole.per_second(&whole.pack) / 1e6,
        milliseconds(&whole.pack),
        counted(whole.tokens, "token"),
        counted(whole.rows, "row")
    ))?;
    print(format_args!(
        "orders and tile lists          {:.1} M tokens/s ({:.1} ms)",
        whole.per_second(&whole.order) / 1e6,
        milliseconds(&whole.order)
    ))?;
    print(format_args!(
        "peak memory                    {} bytes a token, {} with half as many tokens",
        whole.bytes_per_token(),
        half.bytes_per_token()
    ))
}

/// Refuses sizes of which what is always held is more than the machine has free: trajectories, rows, and micro-batches, the last
/// of which is filled up with empty rows.
fn check_memory(args: &BenchPackArgs) -> Result<(), Failure> {
    let (tokens, budget) = (args.tokens, args.budget);
    let rows = tokens.div_ceil(budget);
    let filled = rows.next_multiple_of(ROWS);
    // An id and the fields, with ids of documents, positions and loss weights in rows.
    let [trajectory, row] = [1, 4].map(|more| 4.0 * (more + FIELDS.len()) as f64);
    let needed = trajectory * tokens as f64 + row * (rows + filled) as f64 * budget as f64;
    machine::check_free(
        &format!(
            "{} in {} of {budget}, in micro-batches of {ROWS} rows,",
            counted(tokens, "token"),
            counted(rows, "row")
        ),
        needed,
        "lower --tokens or --budget",
    )
}

struct Measured {
    tokens: usize,
    trajectories: usize,
    rows: usize,
    /// From trajectories to micro-batches.
    pack: Vec<Duration>,
    /// From rows to ordered rows and the lists of all passes.
    order: Vec<Duration>,
    /// What packing held beyond the trajectories.
    peak: Option<u64>,
}

impl Measured {
    fn per_second(&self, durations: &[Duration]) -> f64 {
        (self.tokens as f64 / median(durations)).round()
    }

    fn bytes_per_token(&self) -> Value {
        let per_token = |peak: u64| (peak as f64 / self.tokens as f64 * 10.0).round() / 10.0;
        json!(self.peak.map(per_token))
    }
}

fn milliseconds(durations: &[Duration]) -> f64 {
    (median(durations) * 1e5).round() / 1e2
}

fn measure(args: &BenchPackArgs, tokens: usize) -> Result<Measured, Failure> {
    let batch = trajectories(tokens, args.budget);
    let known = machine::forget_peak();
    let before = machine::resident();
    let mut measured = Measured {
        tokens: batch.iter().map(Trajectory::len).sum(),
        trajectories: batch.len(),
        rows: 0,
        pack: Vec::new(),
        order: Vec::new(),
        peak: None,
    };
    for _ in 0..args.repeats {
        let start = Instant::now();
        let (rows, pieces) = pack(&batch, args.budget)?;
        measured.pack.push(start.elapsed());
        measured.rows = rows.row_count();
        drop(pieces);
        let start = Instant::now();
        drop(order(&rows, args.context)?);
        measured.order.push(start.elapsed());
    }
    let peak = machine::peak_resident().filter(|_| known);
    measured.peak = peak
        .zip(before)
        .map(|(peak, before)| peak.saturating_sub(before));
    Ok(measured)
}

fn pack(batch: &[Trajectory], budget: usize) -> Result<(Rows, Vec<Rows>), Failure> {
    let weights = Aggregation::TokenMean.weights(batch).or_fail()?;
    let rows = Packing::packed(budget).pack(batch, &weights).or_refuse()?;
    let pieces = rows.micro_batches(ROWS).or_refuse()?;
    Ok((rows, pieces))
}

fn order(rows: &Rows, context: usize) -> Result<(OrderedRows, [TileLists; 3]), Failure> {
    let blocks = |queries, keys| Blocks { queries, keys };
    let tiling = Tiling::new(blocks(1024, 4096), blocks(2048, 2048));
    let orders = rows
        .orders(OrderKind::Balanced, context, &tiling)
        .or_fail()?;
    let mut lists = Vec::new();
    for pass in Pass::ALL {
        lists.push(rows.tile_lists(pass, &tiling, &orders, None).or_fail()?);
    }
    let lists = lists.try_into().expect("there are three passes");
    Ok((rows.in_order(orders).or_fail()?, lists))
}

/// Trajectories of all lengths up to a quarter of a row.
fn trajectories(tokens: usize, budget: usize) -> Vec<Trajectory> {
    let longest = (budget / 4).max(2);
    let mut left = tokens.max(2);
    let mut batch = Vec::new();
    let mut state = 1_u64;
    while left > 0 {
        // Knuth's multiplier; the upper bits are random enough.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let length = (1 + (state >> 33) as usize % longest).min(left);
        left -= length;
        let ids = (0..length).map(|t| (t % 1000) as u32).collect();
        let mut trajectory = Trajectory::document(ids);
        for (n, field) in (1..).zip(FIELDS) {
            trajectory.fields.set(field, vec![-0.5 * n as f32; length]);
        }
        batch.push(trajectory);
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trajectories_are_as_many_tokens_as_asked_for() {
        let batch = trajectories(10_000, 1024);
        assert_eq!(batch.iter().map(Trajectory::len).sum::<usize>(), 10_000);
        assert!(batch.iter().all(|it| it.fields.iter().count() == 6));
        assert!(batch.len() > 40, "{}", batch.len());
    }
}
