//! Marks on the tokens of a part of the text.

// A list of one span is meant as such.
#![allow(clippy::single_range_in_vec_init)]

use std::ops::Range;

use ferrotune_text::TextError;

use crate::made::{bytes, characters, load};

#[test]
fn marks_are_on_tokens_that_reach_into_a_span() {
    let tokenizer = load(&characters("ab ", "<unk>"));
    let (ids, marks) = tokenizer.encode_marked("ab ab a", &[1..3, 6..7]).unwrap();
    assert_eq!(ids, [2, 3, 4, 2, 3, 4, 2]);
    assert_eq!(marks, [false, true, true, false, false, false, true]);
    assert_eq!(
        tokenizer.encode_marked("ab", &[1..1]).unwrap().1,
        [false, false]
    );
    assert_eq!(
        tokenizer.encode_marked("ab", &[]).unwrap().1,
        [false, false]
    );
}

#[test]
fn marks_cover_white_space_and_parts_of_characters() {
    let tokenizer = load(&bytes());
    let text = "<|im_start|>x h\n\n🦀<|im_end|>\nü";
    let start = text.find(" h").unwrap();
    let end = text.find("\nü").unwrap();
    let (ids, marks) = tokenizer.encode_marked(text, &[start..end]).unwrap();
    assert_eq!(
        ids,
        [
            257, 120, 256, 10, 10, 0xF0, 0x9F, 0xA6, 0x80, 258, 10, 0xC3, 0xBC
        ]
    );
    let expected = [
        false, false, true, true, true, true, true, true, true, true, false, false, false,
    ];
    assert_eq!(marks, expected);
}

#[test]
fn a_token_across_the_edge_of_a_span_is_marked() {
    let tokenizer = load(&bytes());
    let mark = |span| tokenizer.encode_marked(" h", &[span]).unwrap();
    assert_eq!(mark(0..1), (vec![256], vec![true]));
    assert_eq!(mark(1..2), (vec![256], vec![true]));
    assert_eq!(mark(1..1), (vec![256], vec![false]));
}

#[test]
fn spans_must_lie_on_the_text() {
    let tokenizer = load(&bytes());
    for (start, end) in [(0, 3), (1, 2), (5, 6), (2, 0)] {
        let span = Range { start, end };
        let result = tokenizer.encode_marked("ü", &[span]);
        assert!(matches!(result, Err(TextError::Span { bytes: 2, .. })));
    }
}
