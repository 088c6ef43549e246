//! Every refusal, with its place and its words.

mod columns;
mod names;

use ferrotune_batch::{
    Aggregation, Balance, BatchError, Field, LossWeights, Packing, PackingOption, PadPosition,
    Refused, Trajectory,
};

fn refusal(packing: &Packing, batch: &[Trajectory]) -> Refused {
    let weights = Aggregation::TokenMean.weights(batch).unwrap();
    packing.pack(batch, &weights).unwrap_err()
}

fn documents(lengths: &[usize]) -> Vec<Trajectory> {
    lengths
        .iter()
        .map(|&len| Trajectory::document(vec![1; len]))
        .collect()
}

#[test]
fn all_problems_at_once_with_their_places() {
    let packing = Packing {
        vocab_size: Some(100),
        context_size: 3,
        ..Packing::packed(4)
    };
    let batch = [
        Trajectory::document(vec![1, 2, 3, 4, 5]).with(Field::Advantage, vec![1.0; 4]),
        Trajectory::document(vec![]),
        Trajectory::new(vec![1, 100], vec![true, true]).with(Field::Advantage, vec![0.0, f32::NAN]),
        Trajectory::new(vec![1, 2], vec![false]),
    ];
    let refused = refusal(&packing, &batch);
    assert_eq!(
        refused.to_string(),
        "10 problems with the batch:\n  \
         - budget 4 is not a multiple of context_size 3; nearest are 3 and 6\n  \
         - trajectory 0 has 5 tokens, more than budget 4; raise that, or shorten it with truncate\n  \
         - trajectory 0: advantage has 4 values for 5 tokens; give one value a token\n  \
         - trajectory 1 has no tokens; leave it out of the batch\n  \
         - trajectory 2: id 100 at token 1 is outside the vocabulary of 100; use the tokenizer that belongs to the model\n  \
         - trajectory 2: the loss mask asks for token 0, which nothing predicts; clear it, or use `predictable_mask`\n  \
         - trajectory 2: advantage is NaN at token 1; values must be finite\n  \
         - trajectory 3: loss_mask has one value for 2 tokens; give one value a token\n  \
         - field advantage is in 2 of 4 trajectories, and trajectory 1 lacks it; give it to all or to none\n  \
         - trajectory 3: loss_weight has one value for 2 tokens; give one value a token"
    );
}

#[test]
fn a_long_list_is_cut() {
    let text = refusal(&Packing::packed(1), &documents(&[2; 23])).to_string();
    assert!(text.starts_with("23 problems with the batch:\n"), "{text}");
    assert!(text.ends_with("trajectory 19 has 2 tokens, more than budget 1; raise that, or shorten it with truncate\n  - and 3 more"), "{text}");
}

#[test]
fn one_problem_stands_alone() {
    let refused = refusal(&Packing::packed(4), &[]);
    assert_eq!(refused.problems(), [BatchError::NoTrajectories]);
    assert_eq!(
        refused.to_string(),
        "the batch has no trajectories; give at least one"
    );
}

#[test]
fn values_that_are_no_numbers() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let batch = [Trajectory::document(vec![1, 2]).with(Field::Return, vec![0.0, value])];
        let refused = refusal(&Packing::packed(4), &batch);
        let [BatchError::NotFinite { field, token, .. }] = refused.problems() else {
            panic!("{refused}");
        };
        assert_eq!((*field, *token), ("return", 1));
    }
}

#[test]
fn weights_of_another_batch() {
    let batch = documents(&[3, 2]);
    let refuse = |per_token: Vec<Vec<f32>>| {
        let weights = LossWeights {
            per_token,
            trained_tokens: 0,
            masked_trajectories: 0,
        };
        Packing::packed(4)
            .pack(&batch, &weights)
            .unwrap_err()
            .problems()
            .to_vec()
    };
    assert_eq!(
        refuse(vec![vec![0.0; 3]]),
        [BatchError::WeightCount {
            weights: 1,
            trajectories: 2
        }]
    );
    let short = BatchError::FieldLength {
        trajectory: 1,
        field: "loss_weight",
        values: 3,
        tokens: 2,
        per_token: 1,
    };
    assert_eq!(refuse(vec![vec![0.0; 3], vec![0.0; 3]]), [short]);
    let outside = BatchError::WeightOutsideMask {
        trajectory: 1,
        token: 0,
        weight: 0.5,
    };
    assert_eq!(refuse(vec![vec![0.0; 3], vec![0.5, 0.5]]), [outside]);
    let infinite = BatchError::NotFinite {
        trajectory: 0,
        field: "loss_weight",
        token: 2,
        value: f32::INFINITY,
    };
    assert_eq!(
        refuse(vec![vec![0.0, 0.0, f32::INFINITY], vec![0.0; 2]]),
        [infinite]
    );
}

fn settings(packing: Packing) -> Vec<String> {
    let problems: Vec<String> = packing
        .problems()
        .iter()
        .map(BatchError::to_string)
        .collect();
    // A bad setting is refused when packing, too.
    if !problems.is_empty() {
        assert_eq!(
            refusal(&packing, &documents(&[1])).problems()[..problems.len()],
            packing.problems()
        );
    }
    problems
}

#[test]
fn good_settings_have_no_problems() {
    assert!(settings(Packing::packed(8)).is_empty());
    assert!(settings(Packing::padded(8)).is_empty());
    let all = Packing {
        max_segments: Some(2),
        segment_align: 4,
        row_multiple: 2,
        context_size: 2,
        pad_position: PadPosition::Start,
        pad_align: 8,
        ..Packing::packed(16)
    };
    assert!(settings(all).is_empty());
}

#[test]
fn zeros() {
    let zero = Packing {
        max_segments: Some(0),
        segment_align: 0,
        row_multiple: 0,
        context_size: 0,
        ..Packing::packed(0)
    };
    let options = [
        PackingOption::Budget,
        PackingOption::MaxSegments,
        PackingOption::SegmentAlign,
        PackingOption::RowMultiple,
        PackingOption::ContextSize,
    ];
    assert_eq!(
        zero.problems(),
        options.map(|option| BatchError::Zero { option })
    );
    settings(zero);
}

#[test]
fn alignment_must_divide_the_budget() {
    assert_eq!(
        settings(Packing {
            segment_align: 4,
            ..Packing::packed(10)
        }),
        ["budget 10 is not a multiple of segment_align 4; nearest are 8 and 12"]
    );
}

#[test]
fn pad_align_must_be_a_multiple_and_below_the_budget() {
    let start = |segment_align, pad_align| {
        settings(Packing {
            pad_position: PadPosition::Start,
            segment_align,
            pad_align,
            ..Packing::packed(16)
        })
    };
    assert_eq!(
        start(4, 6),
        ["pad_align 6 is not a positive multiple of segment_align 4"]
    );
    assert_eq!(
        start(1, 0),
        ["pad_align 0 is not a positive multiple of segment_align 1"]
    );
    let above = "is not below budget 16, so no row could move; lower it, or use pad_position end";
    assert_eq!(start(1, 16), [format!("pad_align 16 {above}")]);
    assert_eq!(start(1, 4096), [format!("pad_align 4096 {above}")]);
    assert!(start(1, 15).is_empty());
}

#[test]
fn options_without_effect() {
    assert_eq!(
        settings(Packing {
            pad_align: 4,
            ..Packing::packed(16)
        }),
        ["pad_align 4 has no effect with pad_position end; remove one of them"]
    );
    let padded = Packing {
        max_segments: Some(2),
        segment_align: 4,
        pad_position: PadPosition::Start,
        pad_align: 8,
        ..Packing::padded(16)
    };
    let with = "has no effect with the padded assembler; remove one of them";
    assert_eq!(
        settings(padded),
        [
            format!("pad_position start {with}"),
            format!("max_segments 2 {with}"),
            format!("segment_align 4 {with}")
        ]
    );
}

#[test]
fn rows_beyond_reason() {
    for row_multiple in [1 << 40, usize::MAX] {
        let packing = Packing {
            row_multiple,
            ..Packing::packed(16)
        };
        assert_eq!(
            refusal(&packing, &documents(&[1])).problems(),
            [BatchError::TooLarge {
                rows: row_multiple,
                budget: 16
            }]
        );
    }
    let rows = Packing::packed(16).pack(
        &documents(&[1]),
        &Aggregation::TokenMean.weights(&documents(&[1])).unwrap(),
    );
    let error = rows.unwrap().micro_batches(usize::MAX).unwrap_err();
    assert_eq!(
        error.problems(),
        [BatchError::TooLarge {
            rows: usize::MAX,
            budget: 16
        }]
    );
}

#[test]
fn ids_that_do_not_fit_32_signed_bits() {
    let refused = refusal(
        &Packing::packed(4),
        &[Trajectory::document(vec![0, 1 << 31])],
    );
    assert!(matches!(
        refused.problems(),
        [BatchError::TokenOutsideVocabulary { token: 1, .. }]
    ));
}

#[test]
fn a_balance_that_cannot_be() {
    let balanced = |rows_per_micro_batch, shards, row_multiple| {
        settings(Packing {
            balance: Some(Balance {
                rows_per_micro_batch,
                shards,
            }),
            row_multiple,
            ..Packing::packed(16)
        })
    };
    assert!(balanced(6, 3, 2).is_empty());
    assert_eq!(
        balanced(7, 3, 1),
        ["rows_per_micro_batch 7 is not a multiple of data_shards 3; nearest are 6 and 9"]
    );
    assert_eq!(
        balanced(6, 3, 4),
        [
            "row_multiple 4 does not divide the 6 rows of a micro-batch; leave it at 1, or make it a divisor"
        ]
    );
    assert_eq!(
        balanced(0, 0, 1),
        [
            "rows_per_micro_batch is 0; it must be at least 1",
            "data_shards is 0; it must be at least 1"
        ]
    );
}

#[test]
fn a_front_end_names_options_as_it_calls_them() {
    let packing = Packing {
        segment_align: 3,
        pad_align: 5,
        ..Packing::packed(2)
    };
    let refused = refusal(&packing, &documents(&[4]));
    let flag = |option| match option {
        PackingOption::Budget => "--budget",
        PackingOption::SegmentAlign => "--align",
        PackingOption::Truncate => "--truncate",
        PackingOption::PadPosition => "--pad",
        PackingOption::PadAlign => "--pad-align",
        other => panic!("{other:?}"),
    };
    let told = refused.problems().iter().map(|it| it.told(flag));
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            "--budget 2 is not a multiple of --align 3; the nearest is 3",
            "--pad-align 5 has no effect with --pad end; remove one of them",
            "trajectory 0 has 4 tokens, more than --budget 2; raise that, or shorten it with --truncate",
        ]
    );
}

#[test]
fn problems_say_whose_they_are() {
    let of = |packing: Packing, batch: &[Trajectory]| -> Vec<Option<usize>> {
        let refused = refusal(&packing, batch);
        refused
            .problems()
            .iter()
            .map(|it| it.trajectory())
            .collect()
    };
    let empty = Trajectory::document(vec![]);
    assert_eq!(
        of(Packing::packed(1), &[documents(&[2])[0].clone(), empty]),
        [Some(0), Some(1)]
    );
    let with = documents(&[1])[0].clone().with(Field::Value, vec![0.0]);
    assert_eq!(
        of(
            Packing {
                context_size: 3,
                ..Packing::packed(1)
            },
            &[with, documents(&[1])[0].clone()]
        ),
        [None, Some(1)]
    );
}
