//! Tokenizers of every kind, made here, and folders that hold them.

use std::fs;

use ferrotune_text::{TextError, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with these files.
pub(crate) fn folder(files: &[(&str, &Value)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(folder.path().join(name), content.to_string()).unwrap();
    }
    folder
}

pub(crate) fn open(files: &[(&str, &Value)]) -> Result<Tokenizer, TextError> {
    Tokenizer::from_dir(folder(files).path())
}

pub(crate) fn load(tokenizer: &Value) -> Tokenizer {
    open(&[("tokenizer.json", tokenizer)]).unwrap()
}

pub(crate) fn special(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
}

/// A token a character, `<s>` and `</s>` special; an unknown token if `unk` is in the vocabulary.
pub(crate) fn characters(alphabet: &str, unk: &str) -> Value {
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
pub(crate) fn pairs() -> Value {
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
pub(crate) fn byte_letters() -> Vec<char> {
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
pub(crate) fn bytes() -> Value {
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
