//! Stop tokens of a request, and strings.

use ferrotune_rollout::{Completion, Finish, Refusal, Request, Sampler, SamplerConfig};
use ferrotune_text::{Special, Tokenizer};

use crate::refusals::refusals;
use crate::setup::{Fixture, config, request};

/// A token is two letters: where it stands in the vocabulary, by twelves.
fn tokenizer() -> Tokenizer {
    let letter = |n: u32| char::from(b'a' + n as u8);
    let token = |id: u32| format!("\"{}{}\": {id}", letter(id / 12), letter(id % 12));
    let vocab: Vec<String> = (0..128).map(token).collect();
    let json = format!(
        r#"{{"version": "1.0", "decoder": {{"type": "Fuse"}},
            "model": {{"type": "WordLevel", "unk_token": "aa", "vocab": {{{}}}}}}}"#,
        vocab.join(", ")
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
    Tokenizer::from_dir(folder.path()).unwrap()
}

/// A sampler with a tokenizer; fewer tokens a dispatch than answers have.
fn sampler(fixture: &Fixture) -> Sampler {
    let config = SamplerConfig {
        batch: 4,
        ..config()
    };
    fixture.sampler(config).with_tokenizer(tokenizer())
}

fn cut(whole: &Completion, length: usize, finish: Finish) -> Completion {
    Completion {
        tokens: whole.tokens[..length].to_vec(),
        logprobs: whole.logprobs[..length].to_vec(),
        raw_logprobs: whole.raw_logprobs[..length].to_vec(),
        routes: None,
        finish,
    }
}

#[test]
fn a_request_may_name_its_own_stop_tokens() {
    let fixture = Fixture::load("llama");
    let sampler = sampler(&fixture);
    let requests: Vec<Request> = (0..9).map(|i| request(i, 1.0)).collect();
    let whole = fixture.answers(&sampler, &requests);
    // More tokens than any list of fixed size would hold, and only one of them met.
    let place = |i: usize| (i * 5) % 12;
    let stopped: Vec<Request> = requests
        .iter()
        .enumerate()
        .map(|(i, it)| Request {
            stop_ids: (0..60)
                .filter(|id| !whole[i].tokens.contains(id))
                .chain([whole[i].tokens[place(i)]])
                .collect(),
            ..it.clone()
        })
        .collect();
    for (i, answer) in fixture.answers(&sampler, &stopped).iter().enumerate() {
        let token = whole[i].tokens[place(i)];
        let first = whole[i].tokens.iter().position(|t| *t == token).unwrap();
        assert_eq!(*answer, cut(&whole[i], first + 1, Finish::StopToken));
    }
}

#[test]
fn an_answer_ends_with_the_token_that_completes_a_string() {
    let fixture = Fixture::load("llama");
    let (sampler, tokenizer) = (sampler(&fixture), tokenizer());
    let requests: Vec<Request> = (0..12).map(|i| request(i, 1.0)).collect();
    let whole = fixture.answers(&sampler, &requests);
    let text = |tokens: &[u32]| tokenizer.decode(tokens, Special::Keep).unwrap();
    // Six letters that begin and end within tokens, here and there in the answer, and strings that are never met.
    let string = |i: usize| text(&whole[i].tokens)[2 * (i % 8) + 1..][..6].to_owned();
    let stopped: Vec<Request> = requests
        .iter()
        .enumerate()
        .map(|(i, it)| Request {
            stop_strings: vec!["z".to_owned(), string(i), "!".repeat(100)],
            ..it.clone()
        })
        .collect();
    let answers = fixture.answers(&sampler, &stopped);
    for (i, answer) in answers.iter().enumerate() {
        let ends = |length: &usize| text(&whole[i].tokens[..*length]).contains(&string(i));
        let length = (1..=12).find(ends).unwrap();
        let expected = cut(&whole[i], length, Finish::StopString(1));
        assert_eq!(*answer, expected, "{}", string(i));
    }
    assert!(answers.iter().any(|it| it.tokens.len() == 4));
    assert!(answers.iter().any(|it| it.tokens.len() > 9));
}

#[test]
fn the_first_of_several_stops_in_the_list_is_named() {
    let fixture = Fixture::load("llama");
    let sampler = sampler(&fixture);
    let asked = request(4, 1.0);
    let whole = fixture.answers(&sampler, std::slice::from_ref(&asked));
    let text = tokenizer()
        .decode(&whole[0].tokens[..3], Special::Keep)
        .unwrap();
    let stop_strings = vec![text[1..6].to_owned(), text[..6].to_owned()];
    let both = Request {
        stop_strings: stop_strings.clone(),
        ..asked.clone()
    };
    let turned = Request {
        stop_strings: stop_strings.into_iter().rev().collect(),
        ..asked
    };
    for answer in fixture.answers(&sampler, &[both, turned]) {
        assert_eq!(answer, cut(&whole[0], 3, Finish::StopString(0)));
    }
}

#[test]
fn stops_that_cannot_be_are_refused() {
    let fixture = Fixture::load("llama");
    let sampler = sampler(&fixture);
    let good = request(2, 1.0);
    let refused = refusals(
        &fixture,
        &sampler,
        Request {
            stop_ids: vec![5, 128],
            stop_strings: vec!["a".to_owned(), String::new()],
            ..good.clone()
        },
    );
    let outside = Refusal::StopOutsideVocabulary {
        token: 128,
        vocab_size: 128,
    };
    assert_eq!(refused, [outside, Refusal::EmptyStopString]);
    let without = fixture.sampler(config());
    let refused = refusals(
        &fixture,
        &without,
        Request {
            stop_strings: vec!["a".to_owned()],
            ..good
        },
    );
    assert_eq!(refused, [Refusal::NoTokenizer]);
}
