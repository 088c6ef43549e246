//! An answer depends on its request alone: not on its place, its neighbours, the cut into dispatches, or the mesh.

use ferrotune_graph::Mesh;
use ferrotune_rollout::{Request, SamplerConfig};

use crate::setup::{Fixture, assert_same, config, request};

/// Sampled and greedy requests of all lengths.
fn mixed(count: u64) -> Vec<Request> {
    (0..count)
        .map(|i| request(i, [1.0, 0.0, 0.8, 1.3][i as usize % 4]))
        .collect()
}

#[test]
fn place_and_neighbours_do_not_matter() {
    let fixture = Fixture::load("qwen3");
    let sampler = fixture.sampler(config());
    let requests = mixed(8);
    let alone: Vec<_> = requests
        .iter()
        .map(|r| fixture.answers(&sampler, std::slice::from_ref(r)).remove(0))
        .collect();
    let reversed: Vec<Request> = requests.iter().rev().cloned().collect();
    let answers = fixture.answers(&sampler, &reversed);
    for (i, answer) in answers.iter().rev().enumerate() {
        assert_same(
            answer,
            &alone[i],
            "alone in the first row, and among others in another row",
        );
    }
}

#[test]
fn equal_requests_have_equal_answers_and_other_seeds_other_ones() {
    let fixture = Fixture::load("llama");
    let sampler = fixture.sampler(config());
    let first = request(4, 1.0);
    // The two halves of a seed both count.
    let seeds = [
        first.seed,
        first.seed,
        first.seed ^ 1,
        first.seed ^ (1 << 40),
    ];
    let requests = seeds.map(|seed| Request {
        seed,
        ..first.clone()
    });
    let answers = fixture.answers(&sampler, &requests);
    assert_same(&answers[0], &answers[1], "the same request twice");
    assert_ne!(answers[0].tokens, answers[2].tokens);
    assert_ne!(answers[0].tokens, answers[3].tokens);
    assert_ne!(answers[2].tokens, answers[3].tokens);
}

#[test]
fn noise_is_that_of_the_seed_and_the_place_in_the_answer() {
    // Where all tokens are equally likely, the noise alone decides, whatever the prompt.
    let fixture = Fixture::flat("llama");
    let requests: Vec<Request> = (0..8)
        .map(|i| Request {
            seed: i / 4,
            ..request(i, 1.0)
        })
        .collect();
    let answers = fixture.answers(&fixture.sampler(config()), &requests);
    for same in answers.chunks(4) {
        assert!(same.iter().all(|it| it.tokens == same[0].tokens));
    }
    assert_ne!(answers[0].tokens, answers[4].tokens);
}

#[test]
fn noise_differs_from_token_to_token() {
    // With the noise of one token for all, a flat distribution would repeat one token.
    let fixture = Fixture::load("llama");
    let hot = fixture
        .answers(&fixture.sampler(config()), &[request(2, 1e6)])
        .remove(0);
    let mut distinct = hot.tokens.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > 8, "{:?}", hot.tokens);
}

#[test]
fn the_cut_into_dispatches_does_not_matter() {
    let fixture = Fixture::load("qwen3");
    let requests = mixed(8);
    let answers_by = |tokens_per_dispatch| {
        fixture.answers(
            &fixture.sampler(SamplerConfig {
                tokens_per_dispatch,
                ..config()
            }),
            &requests,
        )
    };
    let expected = answers_by(12);
    for tokens_per_dispatch in [1, 5, 100] {
        for (a, b) in answers_by(tokens_per_dispatch).iter().zip(&expected) {
            assert_same(a, b, &format!("{tokens_per_dispatch} tokens per dispatch"));
        }
    }
}

#[test]
fn the_width_of_the_batch_and_of_the_prompts_does_not_matter() {
    let fixture = Fixture::load("llama");
    let requests = mixed(11);
    let expected = fixture.answers(&fixture.sampler(config()), &requests);
    let other = SamplerConfig {
        batch: 3,
        max_prompt_tokens: 19,
        max_new_tokens: 20,
        pad_id: 77,
        ..config()
    };
    for (a, b) in fixture
        .answers(&fixture.sampler(other), &requests)
        .iter()
        .zip(&expected)
    {
        assert_same(
            a,
            b,
            "three rows at a time, longer prompts allowed, another padding",
        );
    }
}

#[test]
fn the_mesh_does_not_matter() {
    let requests = mixed(11);
    let single = Fixture::load("qwen3");
    let expected = single.answers(&single.sampler(config()), &requests);
    for axes in [
        [("data", 1), ("fsdp", 2)],
        [("data", 2), ("fsdp", 1)],
        [("data", 2), ("fsdp", 2)],
        [("data", 1), ("fsdp", 4)],
    ] {
        let fixture = Fixture::on(&Mesh::new(&axes).unwrap(), "qwen3");
        for (a, b) in fixture
            .answers(&fixture.sampler(config()), &requests)
            .iter()
            .zip(&expected)
        {
            assert_same(a, b, &format!("mesh {axes:?}"));
        }
    }
}
