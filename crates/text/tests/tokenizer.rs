//! Tokenizers of every kind, made here: what they encode, what they refuse, and the files around them.

// A list of one span is meant as such.
#![allow(clippy::single_range_in_vec_init)]

use std::fs;
use std::ops::Range;
use std::path::Path;

use ferrotune_text::{Detokenizer, Special, TextError, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with these files.
fn folder(files: &[(&str, &Value)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(folder.path().join(name), content.to_string()).unwrap();
    }
    folder
}

fn open(files: &[(&str, &Value)]) -> Result<Tokenizer, TextError> {
    Tokenizer::from_dir(folder(files).path())
}

fn load(tokenizer: &Value) -> Tokenizer {
    open(&[("tokenizer.json", tokenizer)]).unwrap()
}

fn special(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
}

/// A token a character, `<s>` and `</s>` special; an unknown token if `unk` is in the vocabulary.
fn characters(alphabet: &str, unk: &str) -> Value {
    let mut vocab = json!({"<s>": 0, "</s>": 1});
    for (char, id) in alphabet.chars().zip(2..) {
        vocab[char.to_string()] = json!(id);
    }
    json!({
        "version": "1.0",
        "added_tokens": [special(0, "<s>"), special(1, "</s>")],
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?s:.)"}, "behavior": "Isolated", "invert": false},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": unk}
    })
}

/// Byte-pair encoding over characters, with no unknown token and nothing to fall back to: it drops what it does not know.
fn pairs() -> Value {
    json!({
        "version": "1.0",
        "added_tokens": [special(6, "<|end|>")],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "é": 3, "aba": 4, "o": 5}, "merges": [["a", "b"], ["ab", "a"]]}
    })
}

/// GPT-2's letters for bytes.
fn byte_letters() -> Vec<char> {
    let plain = |byte: u32| {
        (33..=126).contains(&byte) || (161..=172).contains(&byte) || (174..=255).contains(&byte)
    };
    let mut next = 256;
    let mut letter = |byte: u32| {
        let code = if plain(byte) {
            byte
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).unwrap()
    };
    (0..256).map(&mut letter).collect()
}

/// Byte-level byte-pair encoding as in Qwen and Llama 3: no unknown token, and none needed.
fn bytes() -> Value {
    let mut vocab = json!({});
    for (letter, id) in byte_letters().into_iter().zip(0..) {
        vocab[letter.to_string()] = json!(id);
    }
    vocab["Ġh"] = json!(256);
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"},
        "added_tokens": [special(257, "<|im_start|>"), special(258, "<|im_end|>")],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["Ġ", "h"]]}
    })
}

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

#[test]
fn special_tokens_of_the_folder() {
    let tokenizer = characters("ab", "<unk>");
    let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": "</s>", "unk_token": null});
    let open = |generation: &Value, model: &Value, config: &Value| {
        let files = [
            ("tokenizer.json", &tokenizer),
            ("tokenizer_config.json", config),
            ("generation_config.json", generation),
            ("config.json", model),
        ];
        open(&files)
    };
    let none = json!({});
    let eos = |generation: Value, model: Value, config: &Value| {
        open(&generation, &model, config)
            .unwrap()
            .eos_ids()
            .to_vec()
    };
    assert_eq!(
        eos(
            json!({"eos_token_id": 3}),
            json!({"eos_token_id": 2}),
            &config
        ),
        [3]
    );
    assert_eq!(
        eos(
            json!({"eos_token_id": [1, 0]}),
            json!({"eos_token_id": 2}),
            &config
        ),
        [1, 0]
    );
    assert_eq!(
        eos(
            json!({"eos_token_id": null}),
            json!({"eos_token_id": 2}),
            &config
        ),
        [1]
    );
    assert_eq!(eos(json!({}), json!({"eos_token_id": 2}), &none), [2]);
    assert_eq!(eos(json!({}), json!({}), &none), [0; 0]);

    let full = open(&none, &none, &config).unwrap();
    assert_eq!((full.bos_id(), full.pad_id()), (Some(0), Some(1)));
    let bare = open(&none, &none, &none).unwrap();
    assert_eq!(
        (bare.bos_id(), bare.pad_id(), bare.chat_template().is_none()),
        (None, None, true)
    );

    let unknown = open(&none, &none, &json!({"pad_token": "<pad>"}))
        .unwrap_err()
        .to_string();
    assert!(
        unknown.starts_with("pad_token of ")
            && unknown.contains("tokenizer_config.json is `<pad>`, which"),
        "{unknown}"
    );
    let outside = open(&json!({"eos_token_id": [1, 77]}), &none, &none)
        .unwrap_err()
        .to_string();
    assert!(
        outside.contains("generation_config.json is 77, which"),
        "{outside}"
    );
    for bad in [
        json!(-1),
        json!("1"),
        json!([1, null]),
        json!(1.5),
        json!(1_u64 << 40),
    ] {
        let error = open(&json!({"eos_token_id": bad}), &none, &none).unwrap_err();
        assert!(matches!(error, TextError::Damaged { .. }), "{error}");
        assert!(
            error.to_string().contains("which is not a token id"),
            "{error}"
        );
    }
}

#[test]
fn chat_templates_of_the_folder() {
    let tokenizer = characters("ab", "<unk>");
    let render = |config: &Value, file: Option<&str>| {
        let folder = folder(&[
            ("tokenizer.json", &tokenizer),
            ("tokenizer_config.json", config),
        ]);
        if let Some(source) = file {
            fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
        }
        let tokenizer = Tokenizer::from_dir(folder.path())?;
        let template = tokenizer.chat_template().unwrap();
        Ok::<_, TextError>(
            template
                .render(&ferrotune_text::Conversation::new(&[]))
                .unwrap()
                .text,
        )
    };
    let key = json!({"chat_template": "key {{ bos_token }}", "bos_token": "<s>"});
    assert_eq!(render(&key, None).unwrap(), "key <s>");
    assert_eq!(
        render(&key, Some("file {{ bos_token }}")).unwrap(),
        "file <s>"
    );
    let named = json!({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]});
    assert_eq!(render(&named, None).unwrap(), "d");
    for bad in [
        json!({"chat_template": [{"name": "rag", "template": "r"}]}),
        json!({"chat_template": 5}),
    ] {
        assert!(matches!(render(&bad, None), Err(TextError::Damaged { .. })));
    }
    assert!(matches!(
        render(&json!({}), Some("{% if")),
        Err(TextError::TemplateSyntax { .. })
    ));
}

#[test]
fn missing_and_damaged_files_name_themselves() {
    let empty = tempfile::tempdir().unwrap();
    let missing = Tokenizer::from_dir(empty.path()).unwrap_err().to_string();
    assert!(
        missing.starts_with(&format!(
            "there is no tokenizer.json in {}; copy it",
            empty.path().display()
        )),
        "{missing}"
    );
    let nowhere = Tokenizer::from_dir(empty.path().join("nowhere")).unwrap_err();
    assert!(matches!(nowhere, TextError::NoTokenizer { .. }));

    let good = characters("ab", "<unk>").to_string();
    let damaged = |name: &str, content: &[u8]| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tokenizer.json"), &good).unwrap();
        fs::write(folder.path().join(name), content).unwrap();
        match Tokenizer::from_dir(folder.path()) {
            Err(error @ TextError::Damaged { .. }) => {
                assert!(error.to_string().contains(name), "{error}");
            }
            other => panic!("{name}: {other:?}"),
        }
    };
    for content in [
        &b"{\"version\""[..],
        b"",
        b"[]",
        b"\xff\xfe",
        &good.as_bytes()[..good.len() / 2],
    ] {
        for name in [
            "tokenizer.json",
            "tokenizer_config.json",
            "generation_config.json",
            "config.json",
        ] {
            damaged(name, content);
        }
    }
    damaged(
        "tokenizer.json",
        json!({"version": "1.0", "model": {"type": "WordLevel", "vocab": {}, "unk_token": "?"}})
            .to_string()
            .as_bytes(),
    );
    let mut misnumbered = pairs();
    misnumbered["added_tokens"][0]["id"] = json!(9);
    damaged("tokenizer.json", misnumbered.to_string().as_bytes());
    damaged("chat_template.jinja", b"\xff");
}

#[test]
fn a_folder_in_the_place_of_a_file_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("tokenizer.json")).unwrap();
    assert!(matches!(
        Tokenizer::from_dir(folder.path()),
        Err(TextError::Read { .. })
    ));
}

/// Every damaged copy of a tokenizer file loads or is refused; none panics.
fn survives(good: &str, folder: &Path, damage: impl Fn(&mut Vec<u8>)) {
    let mut bytes = good.as_bytes().to_vec();
    damage(&mut bytes);
    fs::write(folder.join("tokenizer.json"), bytes).unwrap();
    if let Ok(tokenizer) = Tokenizer::from_dir(folder) {
        let _ = tokenizer.encode("ab é <s> h\n", true);
        let _ = tokenizer.decode(&[0, 1, 2, 3, 4, 5], Special::Skip);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damage_never_panics(kind in 0..3, at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let good = [characters("ab", "<unk>"), pairs(), bytes()][kind as usize].to_string();
        let folder = tempfile::tempdir().unwrap();
        survives(&good, folder.path(), |bytes| {
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] = byte }
        });
    }

    #[test]
    fn every_text_survives_bytes(text in "[^éöü]{0,24}") {
        let tokenizer = load(&bytes());
        // Normalisation composes characters, so compare what has been through it once.
        let once = tokenizer.decode(&tokenizer.encode(&text, false).unwrap(), Special::Keep).unwrap();
        let twice = tokenizer.decode(&tokenizer.encode(&once, false).unwrap(), Special::Keep).unwrap();
        prop_assert_eq!(&once, &twice);
        if text.is_ascii() {
            prop_assert_eq!(once, text);
        }
    }

    #[test]
    fn marked_ids_are_the_encoded_ids(text in "[ab ]{0,12}", start in 0usize..13, len in 0usize..13) {
        let tokenizer = load(&characters("ab ", "<unk>"));
        let start = start.min(text.len());
        let end = (start + len).min(text.len());
        let (ids, marks) = tokenizer.encode_marked(&text, std::slice::from_ref(&(start..end))).unwrap();
        prop_assert_eq!(&ids, &tokenizer.encode(&text, false).unwrap());
        prop_assert_eq!(marks, (0..text.len()).map(|t| start <= t && t < end).collect::<Vec<_>>());
        prop_assert_eq!(tokenizer.decode(&ids, Special::Keep).unwrap(), text);
    }
}

#[test]
fn text_of_tokens_one_by_one_is_the_text_of_all() {
    let (by_bytes, marks) = (load(&bytes()), load(&characters("abc é€", "a")));
    for (tokenizer, text) in [
        (&by_bytes, "Grüße, 😀 und \u{fffd}€ \n\u{0}é"),
        (&marks, "a b  c é€"),
    ] {
        let ids = tokenizer.encode(text, false).unwrap();
        let mut detokenizer = Detokenizer::new(tokenizer, Special::Keep);
        let mut found = String::new();
        for (n, &id) in ids.iter().enumerate() {
            found.push_str(&detokenizer.push(id).unwrap());
            let so_far = tokenizer.decode(&ids[..=n], Special::Keep).unwrap();
            assert_eq!(found, so_far.trim_end_matches('\u{fffd}'), "after {n}");
        }
        found.push_str(&detokenizer.finish().unwrap());
        assert_eq!(found, text);
    }
    // Half a letter is held back, and given out when it stays half; an id without a token is a mark.
    let ids = by_bytes.encode("😀", false).unwrap();
    let mut detokenizer = Detokenizer::new(&by_bytes, Special::Keep);
    assert_eq!(detokenizer.push(ids[0]).unwrap(), "");
    assert_eq!(detokenizer.finish().unwrap(), "\u{fffd}");
    assert_eq!(detokenizer.push(ids[0]).unwrap(), "");
    assert_eq!(detokenizer.push(99_999).unwrap(), "\u{fffd}\u{fffd}");
}
