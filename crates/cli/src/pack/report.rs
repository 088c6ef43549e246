//! What is shown of the rows.

use ferrotune_batch::{LossWeights, Order, Pass, Place, Rows, Tiling};
use serde_json::{Value, json};

use crate::args::PackArgs;
use crate::failure::Failure;
use crate::pack::input::Lines;
use crate::terminal::{counted, print};

pub(crate) struct Report<'a> {
    pub(crate) args: &'a PackArgs,
    pub(crate) lines: &'a Lines,
    pub(crate) truncated: usize,
    pub(crate) weights: &'a LossWeights,
    pub(crate) rows: &'a Rows,
    pub(crate) orders: &'a [Order],
    pub(crate) tiling: &'a Tiling,
}

/// One row, in numbers.
struct Line {
    /// In the order in which they lie.
    places: Vec<Place>,
    padding: usize,
    /// Padding in front of the first segment.
    leading: usize,
    loss_weight: f64,
    forward: Vec<usize>,
    dkv: Vec<usize>,
}

impl Report<'_> {
    pub(crate) fn json(&self) -> Result<(), Failure> {
        let lines = self.rows();
        let [forward, dkv] = totals(&lines, self.args.context);
        let rows: Vec<Value> = lines.iter().map(|line| self.row(line)).collect();
        print(json!({
            "budget": self.rows.width(),
            "row_count": self.rows.row_count(),
            "trajectories": self.rows.places().len(),
            "tokens": self.rows.token_count(),
            "padding": self.rows.row_count() * self.rows.width() - self.rows.token_count(),
            "truncated": self.truncated,
            "trained_tokens": self.weights.trained_tokens,
            "masked_trajectories": self.weights.masked_trajectories,
            "aggregation": self.args.aggregation,
            "loss_weight": total_weight(&lines),
            "attention_pairs": self.attention_pairs(),
            "context": self.args.context,
            "order": self.args.order.name(),
            "tiles": { "forward": forward, "dkv": dkv },
            "rows": rows,
        }))
    }

    fn row(&self, line: &Line) -> Value {
        let segment = |place: &Place| {
            json!({
                "trajectory": place.trajectory,
                "line": self.lines.numbers[place.trajectory],
                "start": place.start,
                "length": place.len,
            })
        };
        json!({
            "segments": line.places.iter().map(segment).collect::<Vec<_>>(),
            "padding": line.padding,
            "leading_padding": line.leading,
            "loss_weight": line.loss_weight,
            "tiles": { "forward": line.forward, "dkv": line.dkv },
        })
    }

    /// Pairs of a query and a key, for each micro-batch one number a data shard.
    fn attention_pairs(&self) -> Vec<Vec<u64>> {
        let shards = self.args.data_shards.unwrap_or(1);
        let height = self.args.rows_per_micro_batch;
        let pairs = self.rows.attention_pairs();
        let micro_batches = pairs.chunks(height);
        let shard = |rows: &[u64]| rows.iter().sum::<u64>();
        micro_batches
            .map(|rows| rows.chunks(height / shards).map(shard).collect())
            .collect()
    }

    pub(crate) fn table(&self) -> Result<(), Failure> {
        let lines = self.rows();
        let mut table = vec![
            [
                "row",
                "padding",
                "loss weight",
                "forward tiles",
                "dkv tiles",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        for (row, line) in lines.iter().enumerate() {
            let padding = match line.leading {
                0 => line.padding.to_string(),
                leading => format!("{} ({leading} first)", line.padding),
            };
            table.push(vec![
                row.to_string(),
                padding,
                format!("{:.6}", line.loss_weight),
                spaced(&line.forward),
                spaced(&line.dkv),
            ]);
        }
        let [forward, dkv] = totals(&lines, self.args.context);
        let all = self.rows.row_count() * self.rows.width();
        table.push(vec![
            "all".to_owned(),
            (all - self.rows.token_count()).to_string(),
            format!("{:.6}", total_weight(&lines)),
            spaced(&forward),
            spaced(&dkv),
        ]);
        let segments = lines.iter().map(|line| {
            let segment = |place: &Place| format!("{}+{}", place.start, place.len);
            line.places
                .iter()
                .map(segment)
                .collect::<Vec<_>>()
                .join(" ")
        });
        let tails = std::iter::once("segments: start+length".to_owned()).chain(segments);
        print(format_args!(
            "{} of {} in {} of {}, {} truncated; {} to train on, {} without any; order {} over {}",
            counted(self.rows.places().len(), "trajectory"),
            counted(self.rows.token_count(), "token"),
            counted(self.rows.row_count(), "row"),
            self.rows.width(),
            self.truncated,
            counted(self.weights.trained_tokens, "token"),
            counted(self.weights.masked_trajectories, "trajectory"),
            self.args.order.name(),
            counted(self.args.context, "context shard"),
        ))?;
        let tails = tails.chain(std::iter::once(String::new()));
        for (line, tail) in aligned(&table).into_iter().zip(tails) {
            print(format!("{line}  {tail}").trim_end())?;
        }
        Ok(())
    }

    fn rows(&self) -> Vec<Line> {
        let mut places = vec![Vec::new(); self.rows.row_count()];
        for place in self.rows.places() {
            places[place.row].push(*place);
        }
        let numbered = places.into_iter().enumerate();
        numbered
            .map(|(row, places)| self.line(row, places))
            .collect()
    }

    fn line(&self, row: usize, mut places: Vec<Place>) -> Line {
        places.sort_by_key(|place| place.start);
        let width = self.rows.width();
        let weights = &self.rows.loss_weight()[row * width..][..width];
        let ids = self.rows.row_segment_ids(row);
        let counts = |pass| self.tiling.counts(pass, ids, &self.orders[row]);
        Line {
            padding: width - places.iter().map(|place| place.len).sum::<usize>(),
            leading: places.first().map_or(0, |place| place.start),
            places,
            loss_weight: weights.iter().map(|&weight| f64::from(weight)).sum(),
            forward: counts(Pass::Forward),
            dkv: counts(Pass::Dkv),
        }
    }
}

fn total_weight(lines: &[Line]) -> f64 {
    lines.iter().map(|line| line.loss_weight).sum()
}

/// Forward and dkv tiles of each shard in all rows.
fn totals(lines: &[Line], shards: usize) -> [Vec<usize>; 2] {
    let mut totals = [vec![0; shards], vec![0; shards]];
    for line in lines {
        for (total, tiles) in totals.iter_mut().zip([&line.forward, &line.dkv]) {
            for (total, tiles) in total.iter_mut().zip(tiles) {
                *total += tiles;
            }
        }
    }
    totals
}

fn spaced(numbers: &[usize]) -> String {
    let words: Vec<String> = numbers.iter().map(usize::to_string).collect();
    words.join(" ")
}

/// Columns to the right, two blanks apart.
fn aligned(table: &[Vec<String>]) -> Vec<String> {
    let widths: Vec<usize> = (0..table[0].len())
        .map(|column| table.iter().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, &width)| format!("{cell:>width$}"))
            .collect();
        cells.join("  ")
    };
    table.iter().map(line).collect()
}
