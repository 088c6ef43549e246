//! Random batches, read back from the arrays alone.

use ferrotune_batch::{
    Aggregation, Balance, Blocks, Column, Element, Field, OrderKind, Packing, PadPosition, Padding,
    Rows, Tiling, Trajectory, Values,
};
use proptest::prelude::*;

/// Ids and field values name their own trajectory and token, so that any mix-up shows.
const STRIDE: usize = 1000;

#[derive(Clone, Debug)]
struct Case {
    packing: Packing,
    batch: Vec<Trajectory>,
}

impl Case {
    fn pack(&self) -> Rows {
        let weights = Aggregation::SequenceMeanTokenMean
            .weights(&self.batch)
            .unwrap();
        self.packing.pack(&self.batch, &weights).unwrap()
    }
}

fn trajectory(index: usize, mask: &[bool], fields: &[Field]) -> Trajectory {
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
const EXPERTS: usize = 3;

fn column(field: Field, index: usize, tokens: usize) -> Column {
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
fn per_token(column: &Column) -> Vec<Vec<f64>> {
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
struct Token {
    id: i32,
    segment: i32,
    position: i32,
    weight: f32,
    fields: Vec<Vec<f64>>,
}

fn tokens(rows: &Rows) -> Vec<Token> {
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
fn padding(rows: &Rows) -> Token {
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

fn cases() -> impl Strategy<Value = Case> {
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
fn read_back(case: &Case, rows: &Rows) -> Vec<Vec<(usize, usize)>> {
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
fn naive_first_fit(case: &Case) -> Vec<Vec<(usize, usize)>> {
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

fn rotated<T: Clone>(values: &[T], width: usize, shifts: &[usize]) -> Vec<T> {
    let mut values = values.to_vec();
    for (row, &shift) in values.chunks_mut(width).zip(shifts) {
        row.rotate_right(shift);
    }
    values
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_token_arrives_once_and_whole(case in cases()) {
        let rows = case.pack();
        let found = read_back(&case, &rows);
        let mut seen: Vec<usize> = found.iter().flatten().map(|&(index, _)| index).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..case.batch.len()).collect::<Vec<_>>());
        let multiple = case.packing.balance.map_or(case.packing.row_multiple, |it| it.rows_per_micro_batch);
        prop_assert_eq!(rows.row_count() % multiple, 0);
        for (row, segments) in found.iter().enumerate() {
            prop_assert!(case.packing.max_segments.is_none_or(|cap| segments.len() <= cap));
            for &(index, start) in segments {
                prop_assert_eq!(start % case.packing.segment_align, 0);
                let place = rows.places()[index];
                prop_assert_eq!((place.trajectory, place.row, place.start), (index, row, start));
                prop_assert_eq!(place.len, case.batch[index].len());
            }
        }
        prop_assert_eq!(rows.token_count(), case.batch.iter().map(Trajectory::len).sum::<usize>());
    }

    #[test]
    fn unpacking_inverts_packing(case in cases()) {
        let rows = case.pack();
        let ids: Vec<u32> = rows.token_ids().iter().map(|&id| id as u32).collect();
        let tokens: Vec<Vec<u32>> = case.batch.iter().map(|it| it.tokens.clone()).collect();
        prop_assert_eq!(rows.unpack(&ids).unwrap(), tokens);
        for (field, column) in rows.fields() {
            let expected: Vec<_> = case.batch.iter().map(|it| per_token(it.fields.column(field).unwrap())).collect();
            let values: Vec<usize> = (0..rows.token_ids().len()).collect();
            let found = per_token(column);
            let found: Vec<Vec<_>> = rows.unpack(&values).unwrap().iter()
                .map(|at| at.iter().map(|&at| found[at].clone()).collect())
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn rows_are_first_fit_decreasing(mut case in cases()) {
        case.packing = Packing {
            pad_position: PadPosition::End,
            pad_align: ferrotune_batch::DEFAULT_PAD_ALIGN,
            balance: None,
            ..case.packing
        };
        let mut expected = naive_first_fit(&case);
        let used = expected.len();
        expected.resize(used.next_multiple_of(case.packing.row_multiple), Vec::new());
        prop_assert_eq!(read_back(&case, &case.pack()), expected);
        prop_assert_eq!(case.pack(), case.pack());
    }

    #[test]
    fn start_is_end_rotated_right(case in cases()) {
        let start = case.pack();
        let mut end_case = case.clone();
        end_case.packing.pad_position = PadPosition::End;
        end_case.packing.pad_align = ferrotune_batch::DEFAULT_PAD_ALIGN;
        let end = end_case.pack();
        let width = case.packing.budget;
        let shift = |row: &[i32]| {
            let last = row.iter().rposition(|&segment| segment != 0).map_or(0, |t| t + 1);
            let moves = case.packing.pad_position == PadPosition::Start && last > 0;
            if moves { (width - last) / case.packing.pad_align * case.packing.pad_align } else { 0 }
        };
        let shifts: Vec<usize> = end.segment_ids().chunks(width).map(shift).collect();
        prop_assert_eq!(tokens(&start), rotated(&tokens(&end), width, &shifts));
    }

    #[test]
    fn balance_only_makes_the_slowest_shards_faster(case in cases()) {
        let Some(balance) = case.packing.balance else {
            return Ok(());
        };
        let mut plain = case.clone();
        plain.packing.balance = None;
        plain.packing.row_multiple = balance.rows_per_micro_batch;
        let (balanced, plain) = (case.pack(), plain.pack());
        prop_assert_eq!(balanced.row_count(), plain.row_count());
        let slowest = |rows: &Rows| balance.slowest(&rows.attention_pairs());
        prop_assert!(slowest(&balanced) <= slowest(&plain));
        // Worked out from the pieces that shards really get.
        let per_shard = balance.rows_per_micro_batch / balance.shards;
        let pieces = balanced.micro_batches(per_shard).unwrap();
        let work: Vec<u64> = pieces.iter()
            .map(|piece| piece.positions().iter().zip(piece.segment_ids()))
            .map(|tokens| tokens.map(|(&at, &id)| if id > 0 { at as u64 + 1 } else { 0 }).sum())
            .collect();
        let most = work.chunks(balance.shards).map(|shards| *shards.iter().max().unwrap());
        prop_assert_eq!(slowest(&balanced), most.sum::<u64>());
    }

    #[test]
    fn a_token_keeps_all_it_has_through_every_order(case in cases(), shards in 1usize..5, kind in 0usize..3) {
        let rows = case.pack();
        let kind = OrderKind::ALL[kind];
        let chunks = if kind == OrderKind::DualChunkSwap { 2 * shards } else { shards };
        let tiling = Tiling {
            padding: Padding::Skipped,
            ..Tiling::new(Blocks { queries: 2, keys: 3 }, Blocks { queries: 1, keys: 4 })
        };
        let orders = match rows.orders(kind, shards, &tiling) {
            Ok(orders) => orders,
            Err(refused) => {
                prop_assert!(!rows.width().is_multiple_of(chunks), "{}", refused);
                return Ok(());
            }
        };
        prop_assert!(rows.width().is_multiple_of(chunks));
        let ordered = rows.in_order(orders).unwrap();
        let (natural, width) = (tokens(&rows), rows.width());
        let (permutation, inverse) = (ordered.permutation(), ordered.inverse());
        let columns: Vec<_> = rows.fields().map(|(field, _)| per_token(ordered.column(field).unwrap())).collect();
        for at in 0..natural.len() {
            let base = at / width * width;
            let from = base + permutation[at] as usize;
            prop_assert_eq!(base + inverse[from] as usize, at);
            prop_assert_eq!(ordered.token_ids()[at], natural[from].id);
            prop_assert_eq!(ordered.segment_ids()[at], natural[from].segment);
            prop_assert_eq!(ordered.positions()[at], natural[from].position);
            prop_assert_eq!(ordered.loss_weight()[at], natural[from].weight);
            for (n, column) in columns.iter().enumerate() {
                prop_assert_eq!(&column[at], &natural[from].fields[n]);
            }
        }
        prop_assert_eq!(&ordered.to_natural(ordered.token_ids()).unwrap(), rows.token_ids());
        prop_assert_eq!(ordered.restore(), rows);
    }

    #[test]
    fn micro_batches_are_the_rows_in_order(case in cases(), height in 1usize..6) {
        let rows = case.pack();
        let pieces = rows.micro_batches(height).unwrap();
        prop_assert_eq!(pieces.len(), rows.row_count().div_ceil(height));
        let size = rows.row_count() * rows.width();
        let mut out = vec![Vec::new(); case.batch.len()];
        for piece in &pieces {
            prop_assert_eq!((piece.row_count(), piece.width()), (height, rows.width()));
            piece.unpack_into(piece.token_ids(), &mut out).unwrap();
        }
        let all: Vec<Token> = pieces.iter().flat_map(tokens).collect();
        prop_assert_eq!(&all[..size], tokens(&rows));
        prop_assert!(all[size..].iter().all(|token| *token == padding(&rows)));
        prop_assert_eq!(out, rows.unpack(rows.token_ids()).unwrap());
    }
}

#[test]
fn rows_are_the_same_on_every_thread() {
    let batch: Vec<Trajectory> = (0..200)
        .map(|i| trajectory(i, &vec![true; 1 + i * 37 % 64], Field::ALL))
        .collect();
    let packing = Packing {
        balance: Some(Balance {
            rows_per_micro_batch: 8,
            shards: 4,
        }),
        ..Packing::packed(64)
    };
    let case = Case { packing, batch };
    let tiling = Tiling::new(
        Blocks {
            queries: 2,
            keys: 4,
        },
        Blocks {
            queries: 4,
            keys: 4,
        },
    );
    let whole = || {
        let rows = case.pack();
        let orders = rows.orders(OrderKind::Balanced, 2, &tiling).unwrap();
        rows.in_order(orders).unwrap()
    };
    let alone = whole();
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..3).map(|_| scope.spawn(whole)).collect();
        for other in others {
            assert_eq!(other.join().unwrap(), alone);
        }
    });
}
