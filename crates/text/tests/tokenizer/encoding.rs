//! What texts and characters become, and what is refused.

use ferrotune_text::{Special, TextError};
use serde_json::json;

use crate::made::{byte_letters, bytes, characters, load, pairs};

#[test]
fn characters_there_and_back() {
    let tokenizer = load(&characters("ab+ \n", "<unk>"));
    assert_eq!(tokenizer.vocab_size(), 7);
    assert_eq!(tokenizer.encode("ab a\n", false).unwrap(), [2, 3, 5, 2, 6]);
    assert_eq!(tokenizer.encode("ab", true).unwrap(), [0, 2, 3]);
    assert_eq!(tokenizer.encode("a</s>", false).unwrap(), [2, 1]);
    assert_eq!(tokenizer.encode("", false).unwrap(), [0; 0]);
    assert_eq!(
        tokenizer.decode(&[0, 2, 5, 3, 1], Special::Keep).unwrap(),
        "<s>a b</s>"
    );
    assert_eq!(
        tokenizer.decode(&[0, 2, 5, 3, 1], Special::Skip).unwrap(),
        "a b"
    );
    assert_eq!(tokenizer.token_to_id("+"), Some(4));
    assert_eq!(tokenizer.id_to_token(4).as_deref(), Some("+"));
    assert_eq!(
        (tokenizer.token_to_id("?"), tokenizer.id_to_token(7)),
        (None, None)
    );
}

#[track_caller]
fn assert_unknown(result: Result<Vec<u32>, TextError>, expected: (&str, &str, usize)) {
    match result {
        Err(TextError::UnknownText {
            text,
            detail,
            position,
        }) => {
            assert_eq!((text.as_str(), detail.as_str(), position), expected);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unknown_character_is_named() {
    let tokenizer = load(&characters("abß", "<unk>"));
    assert_unknown(tokenizer.encode("ßab?a", false), ("?", "U+003F", 3));
    assert_unknown(
        tokenizer.encode("a<s>\u{1F980}", true),
        ("\u{1F980}", "U+1F980", 4),
    );
    assert_unknown(
        tokenizer.encode_marked("a\n", &[]).map(|(ids, _)| ids),
        ("\n", "U+000A", 1),
    );
    let message = tokenizer.encode("a?", false).unwrap_err().to_string();
    assert!(
        message.starts_with("the vocabulary has no token for \"?\" (U+003F) at character 1; "),
        "{message}"
    );
}

#[test]
fn an_unknown_token_is_used_where_there_is_one() {
    assert_eq!(
        load(&characters("ab", "</s>"))
            .encode("a?b", false)
            .unwrap(),
        [2, 1, 3]
    );
}

#[test]
fn dropped_characters_are_seen() {
    let tokenizer = load(&pairs());
    assert_eq!(
        tokenizer.encode("abab  aba<|end|>", false).unwrap(),
        [2, 2, 4, 6]
    );
    assert_unknown(tokenizer.encode("ab axb", false), ("x", "U+0078", 4));
    // The normaliser makes one character of two; the unknown one behind it keeps its place in the text as given.
    assert_eq!(tokenizer.encode("e\u{301}", false).unwrap(), [3]);
    assert_unknown(
        tokenizer.encode("e\u{301}a o\u{308}", false),
        ("o", "U+006F, read as \"ö\"", 4),
    );
}

#[test]
fn a_missing_byte_is_named_by_its_character() {
    let mut file = bytes();
    let vocab = file["model"]["vocab"].as_object_mut().unwrap();
    vocab.remove(&byte_letters()[0xBC].to_string());
    vocab.insert("spare".to_owned(), json!(0xBC));
    let tokenizer = load(&file);
    assert_eq!(tokenizer.encode("aé", false).unwrap(), [97, 0xC3, 0xA9]);
    assert_unknown(
        tokenizer.encode("éaüb", false),
        ("ü", "U+00FC, read as \"¼\"", 2),
    );
}

#[test]
fn words_without_an_unknown_token() {
    let tokenizer = load(&json!({
        "version": "1.0",
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"one": 0, "two": 1, "a": 2}, "unk_token": "<unk>"}
    }));
    assert_eq!(tokenizer.encode("one  two", false).unwrap(), [0, 1]);
    assert_unknown(
        tokenizer.encode("one aaa two", false),
        ("aaa", "U+0061 U+0061 U+0061", 4),
    );
}

#[test]
fn unigram_without_an_unknown_token() {
    let tokenizer = load(&json!({
        "version": "1.0",
        "decoder": {"type": "Fuse"},
        "model": {"type": "Unigram", "vocab": [["a", -1.0], ["b", -1.0], ["ab", -1.5]], "unk_id": null, "byte_fallback": false}
    }));
    assert_eq!(tokenizer.encode("aab", false).unwrap(), [0, 2]);
    assert_unknown(tokenizer.encode("abcb", false), ("c", "U+0063", 2));
}

#[test]
fn bytes_express_everything() {
    let tokenizer = load(&bytes());
    // Neither truncation nor padding of the file is heeded.
    assert_eq!(tokenizer.encode("a hi", false).unwrap(), [97, 256, 105]);
    let text = "<|im_start|>Grüße 🦀\u{0}\n\t  e\u{301}<|im_end|>";
    let ids = tokenizer.encode(text, true).unwrap();
    assert_eq!(
        tokenizer.decode(&ids, Special::Keep).unwrap(),
        text.replace("e\u{301}", "é")
    );
    assert_eq!(
        tokenizer.decode(&[0xC3], Special::Keep).unwrap(),
        "\u{FFFD}"
    );
}

#[test]
fn ids_outside_the_vocabulary_are_refused() {
    let tokenizer = load(&characters("ab", "<unk>"));
    match tokenizer.decode(&[2, 3, 4], Special::Keep) {
        Err(TextError::UnknownId {
            id: 4,
            index: 2,
            vocab_size: 4,
        }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn holes_in_the_vocabulary_are_ids_without_a_token() {
    let tokenizer = load(
        &json!({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 9}, "unk_token": "?"}}),
    );
    assert_eq!(tokenizer.vocab_size(), 10);
    assert!(matches!(
        tokenizer.decode(&[5], Special::Keep),
        Err(TextError::UnknownId {
            id: 5,
            index: 0,
            vocab_size: 10
        })
    ));
}
