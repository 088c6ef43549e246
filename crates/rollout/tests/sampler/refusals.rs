//! What cannot be served is refused, with the place and the cure, before anything runs.

use ferrotune_graph::{DType, HostArray, Mesh, Rules};
use ferrotune_models::RotaryScaling;
use ferrotune_program::Group;
use ferrotune_rollout::{Error, FilterSettings, Refusal, Request, Sampler, SamplerConfig};

use crate::setup::{Fixture, client, config, request};

/// Why the third of three requests is refused.
pub(crate) fn refusals(fixture: &Fixture, sampler: &Sampler, bad: Request) -> Vec<Refusal> {
    let requests = [request(0, 1.0), request(1, 1.0), bad];
    let e = sampler
        .generate(&fixture.ready(sampler), &requests, &mut |_, _| {
            panic!("nothing is run")
        })
        .unwrap_err();
    let Error::Requests { refused } = e else {
        panic!("{e}")
    };
    assert!(refused.iter().all(|(request, _)| *request == 2));
    refused.into_iter().map(|(_, why)| why).collect()
}

#[test]
fn bad_requests_are_refused_with_the_reason() {
    let fixture = Fixture::load("llama");
    let sampler = fixture.sampler(config());
    let good = request(2, 1.0);
    let refuse = |bad: Request| refusals(&fixture, &sampler, bad);

    let prompt = vec![];
    let refused = refuse(Request {
        prompt,
        ..good.clone()
    });
    assert_eq!(refused, [Refusal::EmptyPrompt]);
    let prompt = vec![1; 8];
    let refused = refuse(Request {
        prompt,
        ..good.clone()
    });
    let (length, limit) = (8, 7);
    assert_eq!(refused, [Refusal::PromptTooLong { length, limit }]);
    for token in [128, u32::MAX] {
        let prompt = vec![1, token];
        let refused = refuse(Request {
            prompt,
            ..good.clone()
        });
        let expected = Refusal::OutsideVocabulary {
            position: 1,
            token,
            vocab_size: 128,
        };
        assert_eq!(refused, [expected]);
    }
    for temperature in [
        -1.0,
        f64::NAN,
        f64::INFINITY,
        1e-4,
        f64::MIN_POSITIVE,
        -f64::MIN_POSITIVE,
    ] {
        let refused = refuse(Request {
            temperature,
            ..good.clone()
        });
        assert!(
            matches!(refused[..], [Refusal::Temperature { .. }]),
            "{temperature}: {refused:?}"
        );
    }
    for asked in [0, 13, usize::MAX] {
        let refused = refuse(Request {
            max_new_tokens: asked,
            ..good.clone()
        });
        assert_eq!(refused, [Refusal::NewTokens { asked, limit: 12 }]);
    }
    for top_p in [0.0, -0.5, 1.1, f64::NAN] {
        let filters = FilterSettings {
            top_p,
            ..good.filters
        };
        let refused = refuse(Request {
            filters,
            ..good.clone()
        });
        assert!(matches!(refused[..], [Refusal::TopP { .. }]), "{top_p}");
    }
    for min_p in [-0.1, 1.1, f64::NAN] {
        let filters = FilterSettings {
            min_p,
            ..good.filters
        };
        let refused = refuse(Request {
            filters,
            ..good.clone()
        });
        assert!(matches!(refused[..], [Refusal::MinP { .. }]), "{min_p}");
    }
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let fixture = Fixture::load("llama");
    let sampler = fixture.sampler(config());
    let good = request(0, 1.0);
    let requests = [
        Request {
            prompt: vec![1, 2, 3, 4, 5, 6, 7, 8],
            temperature: -2.0,
            ..good.clone()
        },
        good.clone(),
        Request {
            max_new_tokens: 13,
            ..good
        },
    ];
    let e = sampler
        .generate(&fixture.ready(&sampler), &requests, &mut |_, _| ())
        .unwrap_err();
    let text = e.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("request 0: ") && lines[0].contains("8 tokens"));
    assert!(lines[1].starts_with("request 0: ") && lines[1].contains("-2"));
    assert!(lines[2].starts_with("request 2: ") && lines[2].contains("13"));
    let many = vec![requests[2].clone(); 50];
    let e = sampler
        .generate(&fixture.ready(&sampler), &many, &mut |_, _| ())
        .unwrap_err();
    assert!(e.to_string().ends_with("and 30 more"), "{e}");
}

#[test]
fn negative_zero_is_greedy() {
    let fixture = Fixture::load("llama");
    let sampler = fixture.sampler(config());
    let answers = fixture.answers(
        &sampler,
        &[
            request(3, 0.0),
            Request {
                temperature: -0.0,
                ..request(3, 0.0)
            },
        ],
    );
    assert_eq!(answers[0].tokens, answers[1].tokens);
}

#[test]
fn settings_that_contradict_the_model_are_refused() {
    let fixture = Fixture::load("llama");
    let refuse = |config| {
        Sampler::new(
            client(),
            &fixture.rules,
            &fixture.config,
            &[fixture.weights.layout()],
            config,
        )
        .unwrap_err()
    };
    for (name, bad) in [
        (
            "batch",
            SamplerConfig {
                batch: 0,
                ..config()
            },
        ),
        (
            "max_prompt_tokens",
            SamplerConfig {
                max_prompt_tokens: 0,
                ..config()
            },
        ),
        (
            "max_new_tokens",
            SamplerConfig {
                max_new_tokens: 0,
                ..config()
            },
        ),
        (
            "tokens_per_dispatch",
            SamplerConfig {
                tokens_per_dispatch: 0,
                ..config()
            },
        ),
    ] {
        let e = refuse(bad);
        assert!(
            matches!(e, Error::Zero { setting } if setting == name),
            "{e}"
        );
    }
    let e = refuse(SamplerConfig {
        stop_ids: vec![0, 128],
        ..config()
    });
    assert!(
        matches!(
            e,
            Error::SettingOutsideVocabulary {
                setting: "stop_ids",
                token: 128,
                vocab_size: 128
            }
        ),
        "{e}"
    );
    let e = refuse(SamplerConfig {
        pad_id: u32::MAX,
        ..config()
    });
    assert!(
        matches!(
            e,
            Error::SettingOutsideVocabulary {
                setting: "pad_id",
                ..
            }
        ),
        "{e}"
    );
    let e = refuse(SamplerConfig {
        compute: DType::S32,
        ..config()
    });
    assert!(matches!(e, Error::Compute { dtype: DType::S32 }), "{e}");
    let e = refuse(SamplerConfig {
        routes: true,
        ..config()
    });
    assert!(matches!(e, Error::Routes { .. }), "{e}");
    let mut scaled = fixture.config.clone();
    scaled.rotary.scaling = RotaryScaling::LongRope {
        short: vec![1.0; scaled.rotary.dims / 2],
        attention: 1.0,
        original: 18.0,
    };
    let weights = [fixture.weights.layout()];
    let e = Sampler::new(client(), &fixture.rules, &scaled, &weights, config()).unwrap_err();
    assert!(
        matches!(
            e,
            Error::TooLong {
                tokens: 19,
                longest: 18
            }
        ),
        "{e}"
    );
    for bad in [
        SamplerConfig {
            max_new_tokens: usize::MAX,
            ..config()
        },
        SamplerConfig {
            max_prompt_tokens: usize::MAX,
            ..config()
        },
        SamplerConfig {
            batch: usize::MAX,
            ..config()
        },
    ] {
        assert!(matches!(refuse(bad), Error::TooLarge { .. }));
    }
}

#[test]
fn rows_that_the_mesh_does_not_divide_are_refused() {
    let fixture = Fixture::on(&Mesh::new(&[("fsdp", 2)]).unwrap(), "llama");
    let of = |rules: &Rules| {
        Sampler::new(
            client(),
            rules,
            &fixture.config,
            &[fixture.weights.layout()],
            SamplerConfig {
                batch: 7,
                ..config()
            },
        )
    };
    let e = of(&fixture.rules).unwrap_err();
    assert!(
        matches!(e, Error::Batch { batch: 7, .. }) && e.to_string().contains("multiple of 2"),
        "{e}"
    );
    let e = of(&Rules::unsharded(&["rows"])).unwrap_err();
    assert!(
        matches!(e, Error::Batch { .. }) && e.to_string().contains("`batch`"),
        "{e}"
    );
}

#[test]
fn other_weights_are_refused() {
    let llama = Fixture::load("llama");
    let qwen3 = Fixture::load("qwen3");
    let e = Sampler::new(
        client(),
        &llama.rules,
        &llama.config,
        &[qwen3.weights.layout()],
        config(),
    )
    .unwrap_err();
    assert!(matches!(e, Error::Weights { .. }), "{e}");
    let half = llama.weights.layout().with_dtype(DType::BF16);
    let e = Sampler::new(client(), &llama.rules, &llama.config, &[&half], config()).unwrap_err();
    assert!(
        e.to_string().contains("`embed`") && e.to_string().contains("bf16"),
        "{e}"
    );

    let sampler = llama.sampler(config());
    let refuse = |weights: &Group| {
        let Err(e) = sampler.weights(&[weights]) else {
            panic!("weights of another layout are refused")
        };
        e
    };
    let e = refuse(&qwen3.weights);
    assert!(matches!(e, Error::Weights { .. }), "{e}");
    let half = SamplerConfig {
        compute: DType::BF16,
        ..config()
    };
    let others = llama.sampler(half);
    let e = sampler
        .generate(&llama.ready(&others), &[request(0, 1.0)], &mut |_, _| ())
        .unwrap_err();
    assert!(matches!(e, Error::Weights { .. }), "{e}");
    let elsewhere = Fixture::on(&Mesh::new(&[("fsdp", 2)]).unwrap(), "llama");
    let e = refuse(&elsewhere.weights);
    assert!(matches!(e, Error::Weights { .. }), "{e}");
}

#[test]
fn weights_that_are_not_finite_are_an_error_not_an_answer() {
    for bad in [f32::NAN, f32::INFINITY] {
        let fixture = Fixture::altered(&Mesh::single(), "llama", |spec, values| {
            let mut numbers = values.as_slice::<f32>().to_vec();
            if spec.path == "final_norm" {
                numbers[5] = bad;
            }
            HostArray::from_slice(values.dims(), &numbers).unwrap()
        });
        let sampler = fixture.sampler(config());
        let asked = [request(0, 1.0), request(1, 0.0)];
        let e = sampler
            .generate(&fixture.ready(&sampler), &asked, &mut |_, _| ())
            .unwrap_err();
        assert!(
            matches!(
                e,
                Error::NotFinite {
                    request: 0,
                    position: 0
                }
            ),
            "{e}"
        );
    }
}
