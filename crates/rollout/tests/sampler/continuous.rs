//! Rows are refilled while others go on, and nothing of it shows in the answers, to the last bit.

use ferrotune_graph::{DType, Mesh};
use ferrotune_rollout::{Completion, Request, SamplerConfig};

use crate::setup::{Fixture, assert_same, config, narrow, request, request_of_any_length};

fn mixed(count: u64) -> Vec<Request> {
    (0..count)
        .map(|i| request_of_any_length(i, [1.0, 0.0, 0.8][i as usize % 3]))
        .collect()
}

#[test]
fn a_finished_row_is_refilled_while_the_other_goes_on() {
    let fixture = Fixture::load("llama");
    let sampler = fixture.sampler(SamplerConfig {
        batch: 2,
        tokens_per_dispatch: 12,
        ..config()
    });
    let requests: Vec<Request> = (0..7)
        .map(|i| Request {
            max_new_tokens: if i == 0 { 12 } else { 2 },
            ..request(i, 1.0)
        })
        .collect();
    let mut finished = Vec::new();
    sampler
        .generate(&fixture.ready(&sampler), &requests, &mut |done, _| {
            finished.push(done)
        })
        .unwrap();
    // Six answers of two tokens beside one of twelve: the last of them ends with it.
    assert_eq!(finished, [1, 2, 3, 4, 5, 7]);
}

#[test]
fn neighbours_and_the_time_of_beginning_do_not_change_a_bit() {
    for compute in [DType::F32, DType::BF16] {
        let fixture = Fixture::load("qwen3");
        let config = SamplerConfig {
            compute,
            ..narrow()
        };
        let sampler = fixture.sampler(config);
        let requests = mixed(30);
        let together = fixture.answers(&sampler, &requests);
        let backwards: Vec<Request> = requests.iter().rev().cloned().collect();
        let backwards = fixture.answers(&sampler, &backwards);
        for (i, request) in requests.iter().enumerate().step_by(4) {
            let alone = fixture.answers(&sampler, std::slice::from_ref(request));
            assert_eq!(alone[0], together[i], "{compute}, request {i}");
            let other = &backwards[requests.len() - 1 - i];
            assert_eq!(alone[0], *other, "{compute}, request {i}, in another order");
        }
    }
}

#[test]
fn equal_prompts_are_answered_like_others() {
    // They are read once for several rows.
    let fixture = Fixture::load("llama");
    let sampler = fixture.sampler(SamplerConfig {
        batch: 8,
        ..config()
    });
    let requests: Vec<Request> = (0..30)
        .map(|i| Request {
            prompt: request(i / 5, 1.0).prompt,
            ..request_of_any_length(i, 1.0)
        })
        .collect();
    let together = fixture.answers(&sampler, &requests);
    for (i, request) in requests.iter().enumerate().step_by(3) {
        let alone = fixture.answers(&sampler, std::slice::from_ref(request));
        assert_eq!(alone[0], together[i], "request {i}");
    }
}

#[test]
fn every_device_refills_its_own_rows() {
    let requests = mixed(40);
    let single = Fixture::load("llama");
    let expected: Vec<Completion> = single.answers(&single.sampler(config()), &requests);
    let mesh = Mesh::new(&[("data", 2), ("fsdp", 2)]).unwrap();
    let fixture = Fixture::on(&mesh, "llama");
    for batch in [4, 8] {
        let config = SamplerConfig { batch, ..config() };
        let answers = fixture.answers(&fixture.sampler(config), &requests);
        for (a, b) in answers.iter().zip(&expected) {
            assert_same(a, b, &format!("{batch} rows on four devices"));
        }
    }
}
