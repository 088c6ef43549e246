//! Random batches, read back from the arrays alone.

use ferrotune_batch::{Aggregation, Field, Packing, PadPosition, Rows, Trajectory};
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
        let value = |t: usize| -((field as usize * 100 + index + 1) as f32) - t as f32 / 128.0;
        it.fields.set(field, (0..it.len()).map(value).collect());
    }
    it
}

fn cases() -> impl Strategy<Value = Case> {
    let settings = (
        1usize..5,
        1usize..9,
        prop::option::of(1usize..5),
        1usize..5,
        any::<bool>(),
        1usize..4,
    );
    settings.prop_flat_map(
        |(segment_align, units, max_segments, row_multiple, start, pad_units)| {
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
    assert_eq!(rows.token_ids().len(), rows.row_count() * width);
    let mut found = Vec::new();
    for row in 0..rows.row_count() {
        let at = |t: usize| row * width + t;
        let (mut t, mut segments) = (0, Vec::new());
        while t < width {
            let segment = rows.segment_ids()[at(t)];
            if segment == 0 {
                assert_eq!(
                    (
                        rows.token_ids()[at(t)],
                        rows.positions()[at(t)],
                        rows.loss_weight()[at(t)]
                    ),
                    (0, 0, 0.0)
                );
                assert!(rows.fields().all(|(_, values)| values[at(t)] == 0.0));
                t += 1;
                continue;
            }
            let index = rows.token_ids()[at(t)] as usize / STRIDE - 1;
            segments.push((index, t));
            assert_eq!(segment as usize, segments.len());
            let it = &case.batch[index];
            for (i, &id) in it.tokens.iter().enumerate() {
                assert_eq!(rows.token_ids()[at(t + i)] as u32, id);
                assert_eq!(rows.segment_ids()[at(t + i)], segment);
                assert_eq!(rows.positions()[at(t + i)] as usize, i);
                assert_eq!(rows.loss_weight()[at(t + i)], weights.per_token[index][i]);
                for &field in Field::ALL {
                    assert_eq!(
                        rows.field(field).map(|v| v[at(t + i)]),
                        it.fields.get(field).map(|v| v[i])
                    );
                }
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

fn rotated<T: Copy>(values: &[T], width: usize, shifts: &[usize]) -> Vec<T> {
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
        prop_assert_eq!(rows.row_count() % case.packing.row_multiple, 0);
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
        for (field, values) in rows.fields() {
            let expected: Vec<&[f32]> = case.batch.iter().map(|it| it.fields.get(field).unwrap()).collect();
            prop_assert_eq!(rows.unpack(values).unwrap(), expected);
        }
    }

    #[test]
    fn rows_are_first_fit_decreasing(mut case in cases()) {
        case.packing = Packing { pad_position: PadPosition::End, pad_align: ferrotune_batch::DEFAULT_PAD_ALIGN, ..case.packing };
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
        prop_assert_eq!(start.token_ids(), rotated(end.token_ids(), width, &shifts));
        prop_assert_eq!(start.segment_ids(), rotated(end.segment_ids(), width, &shifts));
        prop_assert_eq!(start.positions(), rotated(end.positions(), width, &shifts));
        prop_assert_eq!(start.loss_weight(), rotated(end.loss_weight(), width, &shifts));
        for (field, values) in end.fields() {
            prop_assert_eq!(start.field(field).unwrap(), rotated(values, width, &shifts));
        }
    }

    #[test]
    fn micro_batches_are_the_rows_in_order(case in cases(), height in 1usize..6) {
        let rows = case.pack();
        let pieces = rows.micro_batches(height).unwrap();
        prop_assert_eq!(pieces.len(), rows.row_count().div_ceil(height));
        let size = rows.row_count() * rows.width();
        let whole = |part: fn(&Rows) -> Vec<i32>| -> Vec<i32> { pieces.iter().flat_map(part).collect() };
        for (part, of_rows) in [
            (whole(|piece| piece.token_ids().to_vec()), rows.token_ids()),
            (whole(|piece| piece.segment_ids().to_vec()), rows.segment_ids()),
            (whole(|piece| piece.positions().to_vec()), rows.positions()),
        ] {
            prop_assert_eq!(&part[..size], of_rows);
            prop_assert!(part[size..].iter().all(|&value| value == 0));
        }
        let weight: Vec<f32> = pieces.iter().flat_map(|piece| piece.loss_weight().to_vec()).collect();
        prop_assert_eq!(&weight[..size], rows.loss_weight());
        let mut out = vec![Vec::new(); case.batch.len()];
        for piece in &pieces {
            prop_assert_eq!((piece.row_count(), piece.width()), (height, rows.width()));
            piece.unpack_into(piece.token_ids(), &mut out).unwrap();
            for (field, values) in piece.fields() {
                prop_assert_eq!(piece.unpack(values).unwrap(), piece.places().iter().map(|place| {
                    case.batch[place.trajectory].fields.get(field).unwrap()
                }).collect::<Vec<_>>());
            }
        }
        prop_assert_eq!(out, rows.unpack(rows.token_ids()).unwrap());
    }
}
