//! Random batches, and what rows are to hold of them, by the plainest means.

use ferrotune_batch::{
    Aggregation, Balance, Column, Element, Field, Packing, PadPosition, Rows, Trajectory, Values,
};
use proptest::prelude::*;

/// Ids and field values name their own trajectory and token, so that any mix-up shows.
pub(crate) const STRIDE: usize = 1000;

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) packing: Packing,
    pub(crate) batch: Vec<Trajectory>,
}

impl Case {
    pub(crate) fn pack(&self) -> Rows {
        let weights = Aggregation::SequenceMeanTokenMean
            .weights(&self.batch)
            .unwrap();
        self.packing.pack(&self.batch, &weights).unwrap()
    }
}

pub(crate) fn trajectory(index: usize, mask: &[bool], fields: &[Field]) -> Trajectory {
    let mask: Vec<bool> = mask
        .iter()
        .enumerate()
        .map(|(t, &on)| on && t > 0)
        .collect();
    let ids = |t: usize| ((index + 1) * STRIDE + t) as u32;
    let mut it = Trajectory::new((0..mask.len()).map(ids).collect(), mask);
    for &field in fields {
        it.fields.set_column(field, column(field, index, it.len()));
    }
    it
}

/// Values a token of the widest field.
pub(crate) const EXPERTS: usize = 3;

pub(crate) fn column(field: Field, index: usize, tokens: usize) -> Column {
    let number = |t: usize| (field as usize * 100 + index + 1) as f32 + t as f32 / 128.0;
    let tokens = 0..tokens;
    match field.element() {
        Element::F32 => Column::new(Values::F32(tokens.map(|t| -number(t)).collect())),
        Element::S32 => Column::new(Values::S32(
            tokens.map(|t| (index * STRIDE + t) as i32).collect(),
        )),
        Element::S16 => {
            let ids =
                tokens.flat_map(|t| (0..EXPERTS).map(move |n| (index * 97 + t * 5 + n) as i16));
            Column::wide(EXPERTS, Values::S16(ids.collect()))
        }
    }
}

/// Every value of a column, one list a token.
pub(crate) fn per_token(column: &Column) -> Vec<Vec<f64>> {
    let numbers: Vec<f64> = match column.values() {
        Values::F32(list) => list.iter().map(|&value| value.into()).collect(),
        Values::S32(list) => list.iter().map(|&value| value.into()).collect(),
        Values::S16(list) => list.iter().map(|&value| value.into()).collect(),
    };
    numbers
        .chunks(column.per_token())
        .map(<[f64]>::to_vec)
        .collect()
}

/// All that rows hold for each position.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Token {
    pub(crate) id: i32,
    pub(crate) segment: i32,
    pub(crate) position: i32,
    pub(crate) weight: f32,
    pub(crate) fields: Vec<Vec<f64>>,
}

pub(crate) fn tokens(rows: &Rows) -> Vec<Token> {
    let columns: Vec<Vec<Vec<f64>>> = rows.fields().map(|(_, it)| per_token(it)).collect();
    (0..rows.token_ids().len())
        .map(|at| Token {
            id: rows.token_ids()[at],
            segment: rows.segment_ids()[at],
            position: rows.positions()[at],
            weight: rows.loss_weight()[at],
            fields: columns.iter().map(|it| it[at].clone()).collect(),
        })
        .collect()
}

/// What padding must hold in such rows.
pub(crate) fn padding(rows: &Rows) -> Token {
    let of = |field: Field| match field.element() {
        Element::F32 => vec![0.0],
        Element::S32 => vec![-1.0],
        Element::S16 => vec![-1.0; EXPERTS],
    };
    Token {
        id: 0,
        segment: 0,
        position: 0,
        weight: 0.0,
        fields: rows.fields().map(|(field, _)| of(field)).collect(),
    }
}

pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let settings = (
        1usize..5,
        1usize..9,
        prop::option::of(1usize..5),
        1usize..5,
        any::<bool>(),
        1usize..4,
        prop::option::of((1usize..4, 1usize..4)),
    );
    settings.prop_flat_map(
        |(segment_align, units, max_segments, row_multiple, start, pad_units, balance)| {
            let budget = segment_align * units;
            let masks =
                prop::collection::vec(prop::collection::vec(any::<bool>(), 1..=budget), 1..24);
            (
                masks,
                prop::sample::subsequence(Field::ALL, 0..=Field::ALL.len()),
            )
                .prop_map(move |(masks, fields)| {
                    let mut packing = Packing {
                        max_segments,
                        segment_align,
                        row_multiple,
                        ..Packing::packed(budget)
                    };
                    if let Some((shards, rows_per_shard)) = balance {
                        packing.row_multiple = 1;
                        packing.balance = Some(Balance {
                            rows_per_micro_batch: shards * rows_per_shard,
                            shards,
                        });
                    }
                    if start && pad_units < units {
                        packing.pad_position = PadPosition::Start;
                        packing.pad_align = segment_align * pad_units;
                    }
                    let batch = masks
                        .iter()
                        .enumerate()
                        .map(|(i, mask)| trajectory(i, mask, &fields))
                        .collect();
                    Case { packing, batch }
                })
        },
    )
}

/// The rows as (trajectory, start) lists, after checking every array of every position.
pub(crate) fn read_back(case: &Case, rows: &Rows) -> Vec<Vec<(usize, usize)>> {
    let width = case.packing.budget;
    let weights = Aggregation::SequenceMeanTokenMean
        .weights(&case.batch)
        .unwrap();
    assert_eq!(rows.width(), width);
    let (all, padding) = (tokens(rows), padding(rows));
    assert_eq!(all.len(), rows.row_count() * width);
    let mut found = Vec::new();
    for row in all.chunks(width) {
        let (mut t, mut segments) = (0, Vec::new());
        while t < width {
            if row[t].segment == 0 {
                assert_eq!(row[t], padding);
                t += 1;
                continue;
            }
            let index = row[t].id as usize / STRIDE - 1;
            segments.push((index, t));
            let it = &case.batch[index];
            let columns: Vec<_> = it.fields.iter().map(|(_, it)| per_token(it)).collect();
            for (i, &id) in it.tokens.iter().enumerate() {
                let expected = Token {
                    id: id as i32,
                    segment: segments.len() as i32,
                    position: i as i32,
                    weight: weights.per_token[index][i],
                    fields: columns.iter().map(|it| it[i].clone()).collect(),
                };
                assert_eq!(row[t + i], expected);
            }
            t += it.len();
        }
        found.push(segments);
    }
    found
}

/// The textbook loop: for each trajectory, longest first, look at the rows from the first on.
pub(crate) fn naive_first_fit(case: &Case) -> Vec<Vec<(usize, usize)>> {
    let mut order: Vec<usize> = (0..case.batch.len()).collect();
    order.sort_by(|&a, &b| {
        case.batch[b]
            .len()
            .cmp(&case.batch[a].len())
            .then(a.cmp(&b))
    });
    let mut rows: Vec<Vec<(usize, usize)>> = Vec::new();
    'next: for i in order {
        for row in &mut rows {
            let &(last, start) = row.last().unwrap();
            let start = (start + case.batch[last].len()).div_ceil(case.packing.segment_align)
                * case.packing.segment_align;
            let full = case
                .packing
                .max_segments
                .is_some_and(|cap| row.len() >= cap);
            if !full && start + case.batch[i].len() <= case.packing.budget {
                row.push((i, start));
                continue 'next;
            }
        }
        rows.push(vec![(i, 0)]);
    }
    rows
}

pub(crate) fn rotated<T: Clone>(values: &[T], width: usize, shifts: &[usize]) -> Vec<T> {
    let mut values = values.to_vec();
    for (row, &shift) in values.chunks_mut(width).zip(shifts) {
        row.rotate_right(shift);
    }
    values
}
