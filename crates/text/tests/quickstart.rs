//! The quickstart's own tokenizer, on its own problems.

use std::fs;
use std::path::PathBuf;

use ferrotune_text::{Special, Tokenizer};
use serde_json::Value;

fn quickstart() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../recipes/quickstart")
}

#[test]
fn every_problem_survives_a_round_trip() {
    let tokenizer = Tokenizer::from_dir(quickstart().join("model")).unwrap();
    let mut lines = 0;
    for file in ["train.jsonl", "heldout.jsonl", "demonstrations.jsonl"] {
        let text = fs::read_to_string(quickstart().join(file)).unwrap();
        for line in text.lines() {
            let problem: Value = serde_json::from_str(line).unwrap();
            for key in ["prompt", "answer"] {
                let words = problem[key].as_str().unwrap();
                let ids = tokenizer.encode(words, false).unwrap();
                assert!(!ids.is_empty());
                assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
                assert_eq!(tokenizer.decode(&ids, Special::Keep).unwrap(), words);
            }
            lines += 1;
        }
    }
    assert!(lines > 2200);
}

#[test]
fn it_ends_sequences_and_pads_with_different_tokens() {
    let tokenizer = Tokenizer::from_dir(quickstart().join("model")).unwrap();
    let [end] = tokenizer.eos_ids() else {
        panic!("{:?}", tokenizer.eos_ids());
    };
    let pad = tokenizer.pad_id().unwrap();
    assert_ne!(*end, pad);
    assert!((*end as usize) < tokenizer.vocab_size() && (pad as usize) < tokenizer.vocab_size());
    assert_eq!(tokenizer.decode(&[*end, pad], Special::Skip).unwrap(), "");
}
