//! Prompts and demonstrations in a vocabulary of characters.

use serde_json::{Map, json};

use super::*;

/// A tokenizer of the characters of `known`, with ids from 1; id 0 ends a text.
pub(crate) fn characters(known: &str) -> (tempfile::TempDir, Tokenizer) {
    let mut vocab = Map::new();
    vocab.insert("<eos>".to_owned(), json!(0));
    for (i, character) in known.chars().enumerate() {
        vocab.insert(character.to_string(), json!(i + 1));
    }
    let special = json!([{ "id": 0, "content": "<eos>", "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": false, "special": true }]);
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": special, "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": { "type": "Fuse" },
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [] }
    });
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(
        dir.path().join("tokenizer_config.json"),
        r#"{"eos_token": "<eos>"}"#,
    )
    .unwrap();
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    (dir, tokenizer)
}

fn words() -> (tempfile::TempDir, Words) {
    let (dir, tokenizer) = characters("abcQ: ");
    let template = "Q: {prompt}".to_owned();
    (
        dir,
        Words {
            tokenizer,
            template,
            vocab_size: 7,
            max_prompt_tokens: 6,
            row_tokens: 8,
        },
    )
}

fn dataset(lines: &str) -> (tempfile::TempDir, Dataset) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.jsonl");
    std::fs::write(&path, lines).unwrap();
    let dataset = Dataset::read(&path).unwrap();
    (dir, dataset)
}

#[test]
fn a_demonstration_is_prompt_completion_and_end() {
    let (_dir, words) = words();
    let (_data, dataset) = dataset("{\"prompt\": \"ab\", \"answer\": \"c\"}\n");
    assert_eq!(words.prompts(&dataset).unwrap(), [[4, 5, 6, 1, 2]]);
    let shown = words.demonstrations(&dataset).unwrap().remove(0);
    assert_eq!(shown.tokens, [4, 5, 6, 1, 2, 3, 0]);
    assert_eq!(
        shown.loss_mask,
        [false, false, false, false, false, true, true]
    );
}

#[test]
fn every_line_that_cannot_be_used_is_named() {
    let (_dir, mut words) = words();
    let lines = [("ab", "c"), ("abca", "c"), ("az", "c"), ("ab", "abc")];
    let text: String = lines
        .iter()
        .map(|(p, a)| format!("{}\n", json!({ "prompt": p, "answer": a })))
        .collect();
    let (_data, dataset) = dataset(&text);
    let problems = |result: Result<Vec<Trajectory>>| match result {
        Err(Error::Lines { problems, .. }) => problems,
        other => panic!("{other:?}"),
    };
    let found = problems(words.demonstrations(&dataset));
    assert_eq!(
        found.iter().map(|it| it.line).collect::<Vec<_>>(),
        [2, 3, 4]
    );
    assert!(
        found[0].message.contains("7 tokens, more than the 6"),
        "{}",
        found[0]
    );
    assert!(found[1].message.contains("\"z\""), "{}", found[1]);
    assert!(
        found[2].message.contains("9 tokens, but a row holds 8"),
        "{}",
        found[2]
    );

    words.vocab_size = 5;
    let found = problems(words.demonstrations(&dataset));
    assert!(
        found[0]
            .message
            .contains("outside of the model's vocabulary of 5"),
        "{}",
        found[0]
    );
}

#[test]
fn answers_that_no_model_could_give_are_counted() {
    let (_dir, words) = words();
    let text: String = ["c", "abc", "aa", "z"]
        .map(|a| format!("{}\n", json!({ "prompt": "a", "answer": a })))
        .concat();
    let (_data, dataset) = dataset(&text);
    assert_eq!(words.unreachable_answers(&dataset, 3), 2);
    assert_eq!(words.unreachable_answers(&dataset, 4), 1);
}

#[test]
fn a_tokenizer_without_an_end_is_refused() {
    let (dir, mut words) = words();
    words.vocab_size = 0;
    assert!(matches!(
        words.stop_ids(),
        Err(Error::EndOutside {
            id: 0,
            vocab_size: 0
        })
    ));
    std::fs::remove_file(dir.path().join("tokenizer_config.json")).unwrap();
    words.tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    assert!(matches!(words.stop_ids(), Err(Error::NoEnd)));
}
