//! Rows and weights written out by hand.

use ferrotune_batch::{
    Aggregation, BatchError, Column, Field, Packing, PackingOption, PadPosition, Place, Rows,
    Trajectory, Values,
};
use ferrotune_batch::{predictable_mask, truncate};

fn documents(lengths: &[usize]) -> Vec<Trajectory> {
    let mut id = 0;
    let mut tokens = |len: usize| {
        (0..len)
            .map(|_| {
                id += 1;
                id
            })
            .collect()
    };
    lengths
        .iter()
        .map(|&len| Trajectory::document(tokens(len)))
        .collect()
}

fn pack(packing: &Packing, batch: &[Trajectory]) -> Rows {
    let weights = Aggregation::TokenMean.weights(batch).unwrap();
    packing.pack(batch, &weights).unwrap()
}

#[test]
fn packed_rows_in_full() {
    let fives = vec![0.5, 1.5, 2.5, 3.5, 4.5];
    let batch = [
        Trajectory::new(
            vec![10, 11, 12, 13, 14],
            vec![false, false, true, false, true],
        )
        .with(Field::Advantage, fives)
        .with(Field::OldLogprob, vec![-0.1; 5]),
        Trajectory::from_prompt(&[20], &[21, 22])
            .with_constant(Field::Advantage, 9.0)
            .with_tail(Field::OldLogprob, &[-3.0, -4.0]),
        Trajectory::from_prompt(&[30, 31], &[32, 33, 34, 35, 36])
            .with_constant(Field::Advantage, -1.0)
            .with_tail(Field::OldLogprob, &[-5.0; 5]),
    ];
    let weights = Aggregation::SequenceMeanTokenMean.weights(&batch).unwrap();
    let rows = Packing {
        segment_align: 2,
        row_multiple: 3,
        ..Packing::packed(12)
    }
    .pack(&batch, &weights)
    .unwrap();
    assert_eq!(
        (rows.row_count(), rows.width(), rows.token_count()),
        (3, 12, 15)
    );
    let row = |first: [i32; 12], second: [i32; 12]| [first, second, [0; 12]].concat();
    assert_eq!(
        rows.token_ids(),
        row(
            [30, 31, 32, 33, 34, 35, 36, 0, 20, 21, 22, 0],
            [10, 11, 12, 13, 14, 0, 0, 0, 0, 0, 0, 0]
        )
    );
    assert_eq!(
        rows.segment_ids(),
        row(
            [1, 1, 1, 1, 1, 1, 1, 0, 2, 2, 2, 0],
            [1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
        )
    );
    assert_eq!(
        rows.positions(),
        row(
            [0, 1, 2, 3, 4, 5, 6, 0, 0, 1, 2, 0],
            [0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0]
        )
    );
    let row = |first: [f32; 12], second: [f32; 12]| [first, second, [0.0; 12]].concat();
    let (a, b, c) = ((1.0 / 6.0) as f32, (1.0 / 6.0) as f32, (1.0 / 15.0) as f32);
    assert_eq!(
        rows.loss_weight(),
        row(
            [0., 0., c, c, c, c, c, 0., 0., b, b, 0.],
            [0., 0., a, 0., a, 0., 0., 0., 0., 0., 0., 0.]
        )
    );
    assert_eq!(
        rows.field(Field::Advantage).unwrap(),
        row(
            [0., 0., -1., -1., -1., -1., -1., 0., 0., 9., 9., 0.],
            [0.5, 1.5, 2.5, 3.5, 4.5, 0., 0., 0., 0., 0., 0., 0.]
        )
    );
    assert_eq!(
        rows.field(Field::OldLogprob).unwrap(),
        row(
            [0., 0., -5., -5., -5., -5., -5., 0., 0., -3., -4., 0.],
            [-0.1, -0.1, -0.1, -0.1, -0.1, 0., 0., 0., 0., 0., 0., 0.]
        )
    );
    assert_eq!(rows.field(Field::RefLogprob), None);
    assert_eq!(
        rows.fields()
            .map(|(field, _)| field.name())
            .collect::<Vec<_>>(),
        ["advantage", "old_logprob"]
    );
    assert_eq!(
        rows.places(),
        [
            Place {
                trajectory: 0,
                row: 1,
                segment: 1,
                start: 0,
                len: 5
            },
            Place {
                trajectory: 1,
                row: 0,
                segment: 2,
                start: 8,
                len: 3
            },
            Place {
                trajectory: 2,
                row: 0,
                segment: 1,
                start: 0,
                len: 7
            },
        ]
    );
}

#[test]
fn two_items_of_four_in_sixteen() {
    let rows = pack(&Packing::packed(16), &documents(&[4, 4]));
    assert_eq!(
        rows.segment_ids(),
        [1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(
        rows.positions(),
        [0, 1, 2, 3, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn two_bins_when_two_do_not_fit() {
    assert_eq!(
        pack(&Packing::packed(12), &documents(&[10, 8])).row_count(),
        2
    );
    assert_eq!(
        pack(
            &Packing {
                max_segments: Some(1),
                ..Packing::packed(12)
            },
            &documents(&[2, 2])
        )
        .row_count(),
        2
    );
}

#[test]
fn padded_keeps_one_a_row_and_the_order() {
    let rows = pack(
        &Packing {
            row_multiple: 2,
            ..Packing::padded(4)
        },
        &documents(&[1, 3, 2]),
    );
    assert_eq!(
        rows.token_ids(),
        [1, 0, 0, 0, 2, 3, 4, 0, 5, 6, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(
        rows.segment_ids(),
        [1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(
        rows.positions(),
        [0, 0, 0, 0, 0, 1, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn start_moves_by_the_trailing_padding_rounded_down() {
    let at = |pad_align| {
        let packing = Packing {
            pad_position: PadPosition::Start,
            pad_align,
            ..Packing::packed(16)
        };
        pack(&packing, &documents(&[5, 4])).segment_ids().to_vec()
    };
    assert_eq!(at(4), [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0]);
    assert_eq!(at(8), [1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(at(1), [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
}

#[test]
fn micro_batches_have_one_shape() {
    let batch: Vec<_> = documents(&[3, 3, 3])
        .into_iter()
        .map(|t| t.with(Field::Advantage, vec![1.0; 3]))
        .collect();
    let rows = pack(&Packing::packed(3), &batch);
    let pieces = rows.micro_batches(2).unwrap();
    assert_eq!(pieces.len(), 2);
    assert!(
        pieces
            .iter()
            .all(|piece| (piece.row_count(), piece.width()) == (2, 3))
    );
    assert_eq!(pieces[1].token_ids(), [7, 8, 9, 0, 0, 0]);
    assert_eq!(
        pieces[1].field(Field::Advantage).unwrap(),
        [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    );
    assert_eq!(
        pieces[1].places(),
        [Place {
            trajectory: 2,
            row: 0,
            segment: 1,
            start: 0,
            len: 3
        }]
    );
    assert_eq!(
        rows.micro_batches(0).unwrap_err().problems(),
        [BatchError::Zero {
            option: PackingOption::RowsPerMicroBatch
        }]
    );
}

#[test]
fn empty_rows_and_fields_set_later() {
    let mut rows = Rows::empty(2, 3, &[Field::Advantage]);
    assert_eq!(rows.token_count(), 0);
    assert_eq!(rows.field(Field::Advantage).unwrap(), [0.0; 6]);
    assert_eq!(rows.unpack(&[0; 6]).unwrap(), Vec::<Vec<i32>>::new());
    rows.set_field(Field::RefLogprob, vec![-1.0; 6]).unwrap();
    assert_eq!(rows.field(Field::RefLogprob).unwrap(), [-1.0; 6]);
    let wrong = BatchError::RowValues {
        values: 5,
        rows: 2,
        width: 3,
    };
    assert_eq!(
        rows.set_field(Field::RefLogprob, vec![0.0; 5]),
        Err(wrong.clone())
    );
    assert_eq!(rows.unpack(&[0; 5]), Err(wrong));
}

#[test]
fn unpack_into_refuses_a_short_list() {
    let rows = pack(&Packing::packed(4), &documents(&[2, 2, 2]));
    let mut out = vec![Vec::new(); 2];
    let room = BatchError::NoRoom {
        trajectory: 2,
        room: 2,
    };
    assert_eq!(rows.unpack_into(&[7; 8], &mut out), Err(room));
    assert_eq!(out, [vec![], vec![]]);
}

#[test]
fn truncation_is_counted_and_marked() {
    let mut batch = documents(&[5, 3]);
    batch[0] = batch[0]
        .clone()
        .with(Field::Advantage, vec![1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(truncate(&mut batch, 3), 1);
    assert_eq!((batch[0].truncated, batch[1].truncated), (true, false));
    assert_eq!(batch[0].tokens, [1, 2, 3]);
    assert_eq!(batch[0].loss_mask, [false, true, true]);
    assert_eq!(
        batch[0].fields.get(Field::Advantage).unwrap(),
        [1.0, 2.0, 3.0]
    );
    assert_eq!(truncate(&mut batch, 3), 0);
}

#[test]
fn truncation_does_not_hide_a_field_of_another_length() {
    let mut batch = vec![Trajectory::document(vec![1; 5]).with(Field::Advantage, vec![0.0; 7])];
    truncate(&mut batch, 4);
    assert_eq!(batch[0].fields.get(Field::Advantage).unwrap().len(), 7);
}

#[test]
fn field_names_are_unique_and_found() {
    for (i, &field) in Field::ALL.iter().enumerate() {
        assert_eq!(field as usize, i);
        assert_eq!(Field::from_name(field.name()), Some(field));
    }
    assert_eq!(Field::from_name("advantages"), None);
    assert_eq!(predictable_mask(3), [false, true, true]);
    assert_eq!(predictable_mask(0), [false; 0]);
}

#[test]
fn experts_and_versions_move_with_their_tokens() {
    let batch = [
        // The sampler routed three of four tokens, and replays none at the second.
        Trajectory::document(vec![1, 2, 3, 4])
            .with_expert_ids(2, &[5, 6, -1, -1, 7, 8])
            .with_policy_version(9),
        Trajectory::document(vec![5, 6])
            .with_expert_ids(2, &[1, 2, 3, 4])
            .with_policy_version(0),
    ];
    let packing = Packing {
        pad_position: PadPosition::Start,
        pad_align: 1,
        ..Packing::packed(7)
    };
    let rows = pack(&packing, &batch);
    let experts = rows.column(Field::ExpertIds).unwrap();
    assert_eq!(experts.per_token(), 2);
    assert_eq!(
        experts.s16().unwrap(),
        [-1, -1, 5, 6, -1, -1, 7, 8, -1, -1, 1, 2, 3, 4]
    );
    let versions = rows.column(Field::PolicyVersion).unwrap();
    assert_eq!(versions.s32().unwrap(), [-1, 9, 9, 9, 9, 0, 0]);
    assert_eq!((versions.f32(), experts.s32()), (None, None));
    let empty = rows.empty_like(1);
    assert_eq!(
        empty.column(Field::ExpertIds).unwrap().s16().unwrap(),
        [-1; 14]
    );
    assert_eq!(empty.row_count(), 1);
}

#[test]
fn wide_fields_are_truncated_with_their_tokens() {
    let mut batch = vec![Trajectory::document(vec![1; 3]).with_expert_ids(2, &[1, 2, 3, 4, 5, 6])];
    truncate(&mut batch, 2);
    let experts = batch[0].fields.column(Field::ExpertIds).unwrap();
    assert_eq!(*experts, Column::wide(2, Values::S16(vec![1, 2, 3, 4])));
    assert!(batch[0].fields.remove(Field::ExpertIds).is_some());
    assert!(batch[0].fields.column(Field::ExpertIds).is_none());
}
