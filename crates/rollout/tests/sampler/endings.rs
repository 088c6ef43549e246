//! Stop tokens, limits, short prompts, more requests than rows.

use ferrotune_rollout::{Completion, Finish, Request, SamplerConfig};

use crate::setup::{Fixture, assert_same, config, request};

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
fn an_answer_ends_with_its_first_stop_token() {
    let fixture = Fixture::load("llama");
    let requests: Vec<Request> = (0..8).map(|i| request(i, 1.0)).collect();
    let whole = fixture.answers(&fixture.sampler(config()), &requests);
    // Tokens that some rows meet early, late, first, last, or never.
    let stop_ids = vec![
        whole[0].tokens[0],
        whole[1].tokens[4],
        whole[2].tokens[7],
        whole[3].tokens[11],
    ];
    let stopped = fixture.answers(
        &fixture.sampler(SamplerConfig {
            stop_ids: stop_ids.clone(),
            ..config()
        }),
        &requests,
    );
    let mut endings = [0, 0];
    for (whole, stopped) in whole.iter().zip(&stopped) {
        let expected = match whole.tokens.iter().position(|t| stop_ids.contains(t)) {
            Some(at) => cut(whole, at + 1, Finish::StopToken),
            None => cut(whole, 12, Finish::Length),
        };
        endings[usize::from(expected.finish == Finish::StopToken)] += 1;
        assert_same(stopped, &expected, "cut at the first stop token");
    }
    assert!(
        endings[0] > 0 && endings[1] >= 4,
        "both endings are met: {endings:?}"
    );
}

#[test]
fn each_request_has_its_own_limit() {
    let fixture = Fixture::load("llama");
    let sampler = fixture.sampler(config());
    let requests: Vec<Request> = (0..8).map(|i| request(i, 1.0)).collect();
    let whole = fixture.answers(&sampler, &requests);
    let limits = [1, 2, 5, 6, 10, 11, 12, 3];
    let short: Vec<Request> = requests
        .iter()
        .zip(limits)
        .map(|(r, max_new_tokens)| Request {
            max_new_tokens,
            ..r.clone()
        })
        .collect();
    for ((answer, whole), limit) in fixture
        .answers(&sampler, &short)
        .iter()
        .zip(&whole)
        .zip(limits)
    {
        assert_same(
            answer,
            &cut(whole, limit, Finish::Length),
            &format!("at most {limit} tokens"),
        );
    }
}

#[test]
fn a_stop_token_in_the_last_place_is_a_stop() {
    let fixture = Fixture::load("llama");
    let asked = request(5, 0.0);
    let token = fixture
        .answers(&fixture.sampler(config()), std::slice::from_ref(&asked))
        .remove(0)
        .tokens[0];
    let sampler = fixture.sampler(SamplerConfig {
        stop_ids: vec![token],
        ..config()
    });
    let answer = fixture
        .answers(
            &sampler,
            &[Request {
                max_new_tokens: 1,
                ..asked
            }],
        )
        .remove(0);
    assert_eq!(
        (answer.tokens, answer.finish),
        (vec![token], Finish::StopToken)
    );
}

#[test]
fn a_sampler_for_single_tokens_works() {
    let fixture = Fixture::load("qwen3");
    let asked = Request {
        prompt: vec![9],
        ..request(1, 0.0)
    };
    let expected = fixture
        .answers(&fixture.sampler(config()), std::slice::from_ref(&asked))
        .remove(0);
    let narrow = fixture.sampler(SamplerConfig {
        batch: 1,
        max_prompt_tokens: 1,
        ..config()
    });
    assert_same(
        &fixture.answers(&narrow, std::slice::from_ref(&asked))[0],
        &expected,
        "prompts of one token only",
    );
    let one = SamplerConfig {
        batch: 1,
        max_prompt_tokens: 1,
        max_new_tokens: 1,
        tokens_per_dispatch: 1,
        ..config()
    };
    let answer = fixture
        .answers(
            &fixture.sampler(one),
            &[Request {
                max_new_tokens: 1,
                ..asked
            }],
        )
        .remove(0);
    assert_same(
        &answer,
        &cut(&expected, 1, Finish::Length),
        "one token in, one token out",
    );
}

#[test]
fn many_requests_are_answered_in_order_and_counted() {
    let fixture = Fixture::load("llama");
    let sampler = fixture.sampler(config());
    let requests: Vec<Request> = (0..21).map(|i| request(i, 1.0)).collect();
    let mut progress = Vec::new();
    let answers = sampler
        .generate(&fixture.ready(&sampler), &requests, &mut |done, total| {
            progress.push((done, total))
        })
        .unwrap();
    assert_eq!(answers.len(), 21);
    for (i, answer) in answers.iter().enumerate() {
        assert_same(
            answer,
            &fixture.answers(&sampler, &requests[i..=i])[0],
            &format!("request {i}"),
        );
    }
    assert!(
        progress.is_sorted() && progress.iter().all(|(_, total)| *total == 21),
        "{progress:?}"
    );
    assert_eq!(progress.last(), Some(&(21, 21)));
}

#[test]
fn no_requests_have_no_answers() {
    let fixture = Fixture::load("llama");
    assert!(fixture.answers(&fixture.sampler(config()), &[]).is_empty());
}
