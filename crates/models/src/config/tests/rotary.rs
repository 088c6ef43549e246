//! Frequencies and amplitudes against those of transformers, and what cannot be one.

use super::*;

#[test]
fn frequencies_and_amplitudes_are_those_of_transformers() {
    let text = include_str!("../../../../../tests/fixtures/rotary/rotary.json");
    let cases: Vec<Value> = serde_json::from_str(text).unwrap();
    assert_eq!(cases.len(), 27);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let rotary = ModelConfig::parse(&case["config"].to_string(), name)
            .unwrap()
            .rotary;
        let near = |ours: f64, theirs: &Value| (ours / theirs.as_f64().unwrap() - 1.0).abs() < 1e-6;
        assert!(near(rotary.amplitude(), &case["amplitude"]), "{name}");
        let theirs = case["frequencies"].as_array().unwrap();
        let ours = rotary.frequencies();
        assert_eq!(ours.len(), theirs.len(), "{name}");
        assert_eq!(rotary.dims, 2 * theirs.len(), "{name}");
        for (i, (ours, theirs)) in ours.into_iter().zip(theirs).enumerate() {
            assert!(near(ours.into(), theirs), "{name} {i}: {ours} {theirs}");
        }
    }
}

#[test]
fn the_same_scaling_may_stand_in_both_places_but_not_another() {
    let linear = |factor: f64| json!({"rope_type": "linear", "factor": factor});
    let both = |one, other| {
        edited(
            "llama",
            json!({"rope_parameters": one, "rope_scaling": other}),
        )
    };
    let same = ModelConfig::parse(&both(linear(2.0), linear(2.0)), "").unwrap();
    assert_eq!(same.rotary.scaling, RotaryScaling::Linear { factor: 2.0 });
    assert_eq!(
        problems(&both(linear(2.0), linear(3.0))),
        ["rope_parameters and rope_scaling differ: keep one"]
    );
}

#[test]
fn every_number_of_a_scaling_is_judged() {
    let found = |scaling: Value| problems(&edited("llama", json!({"rope_scaling": scaling})));
    assert_eq!(
        found(json!({"rope_type": "linear"})),
        ["rope_scaling.factor is missing"]
    );
    assert_eq!(
        found(json!({"rope_type": "linear", "factor": "two"})),
        ["rope_scaling.factor must be a number above 0, found \"two\""]
    );
    let crossed = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0});
    assert_eq!(
        found(crossed),
        ["rope_scaling.low_freq_factor (4) must be below high_freq_factor (4)"]
    );
    let yarn = json!({"rope_type": "yarn", "factor": -1, "beta_fast": 0, "beta_slow": [], "attention_factor": 0,
        "truncate": 1});
    let yarn = found(yarn);
    for name in ["factor", "beta_fast", "beta_slow", "attention_factor"] {
        let start = format!("rope_scaling.{name} must be a number above 0, found ");
        assert!(yarn.iter().any(|p| p.starts_with(&start)), "{yarn:?}");
    }
    assert!(yarn.contains(&"rope_scaling.truncate must be true or false, found 1".to_owned()));
    let unknown = edited(
        "llama",
        json!({"max_position_embeddings": null, "rope_scaling": {"rope_type": "yarn", "factor": 2}}),
    );
    assert_eq!(
        problems(&unknown),
        ["rope_scaling.original_max_position_embeddings is missing"]
    );
}

#[test]
fn the_factors_of_longrope_are_those_of_texts_as_long_as_the_first_training() {
    let scaling = |short: Value| {
        json!({"rope_scaling": {"rope_type": "longrope", "short_factor": short, "long_factor": vec![2.0; 8],
            "original_max_position_embeddings": 40}})
    };
    let config = ModelConfig::parse(&edited("llama", scaling(json!(vec![1.5; 8]))), "").unwrap();
    let longest = config.longest().unwrap();
    assert_eq!(longest.tokens, 40);
    assert_eq!(longest.key, "original_max_position_embeddings");
    let told = longest.told("m/config.json");
    for part in [
        "ferrotune takes",
        "longrope",
        "original_max_position_embeddings = 40 in m/config.json",
    ] {
        assert!(told.contains(part), "{told}");
    }
    assert!((f64::from(config.rotary.frequencies()[0]) - 1.0 / 1.5).abs() < 1e-7);
    let plain = ModelConfig::parse(&edited("llama", json!({})), "").unwrap();
    assert_eq!(
        plain.longest().map(|it| it.tokens),
        plain.max_position_embeddings
    );
    for wrong in [
        json!(vec![1.5; 7]),
        json!([1, 1, 1, 1, 1, 1, 1, 0]),
        json!(2.0),
        Value::Null,
    ] {
        assert_eq!(
            problems(&edited("llama", scaling(wrong))),
            ["rope_scaling.short_factor must be a list of 8 numbers above 0"]
        );
    }
}

#[test]
fn the_length_of_the_first_training_is_a_number_of_tokens() {
    let key = "original_max_position_embeddings";
    let longrope =
        json!({"rope_type": "longrope", "short_factor": vec![1.0; 8], "long_factor": vec![1.0; 8]});
    let with = |mut scaling: Value, inside: Value, top: Value| {
        scaling[key] = inside;
        edited("llama", json!({"rope_scaling": scaling, key: top}))
    };
    let yarn = json!({"rope_type": "yarn", "factor": 2.0});
    for scaling in [&longrope, &yarn] {
        for wrong in [json!(1.5), json!(0), json!(-3), json!("x"), json!(1e20)] {
            let whole = format!("{key} must be a whole number from 1 to 2147483647, found {wrong}");
            assert_eq!(
                problems(&with(scaling.clone(), wrong.clone(), Value::Null)),
                [format!("rope_scaling.{whole}")]
            );
            assert_eq!(
                problems(&with(scaling.clone(), Value::Null, wrong)),
                [whole]
            );
        }
    }
    for (inside, top) in [(json!(1), Value::Null), (Value::Null, json!(1))] {
        let found = problems(&with(longrope.clone(), inside, top));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("must be at least 2 for longrope"),
            "{found:?}"
        );
    }
    // Beyond the longest text, that is the limit.
    let longer = ModelConfig::parse(&with(longrope, json!(1_000_000), Value::Null), "").unwrap();
    assert_eq!(longer.longest().unwrap().key, "max_position_embeddings");
}

#[test]
fn settings_whose_frequencies_are_not_numbers_are_refused() {
    for theta in [1.0, 1e-300] {
        let yarn = json!({"rope_type": "yarn", "factor": 2.0, "rope_theta": theta});
        let found = problems(&edited("llama", json!({"rope_parameters": yarn})));
        assert!(found[0].contains("not finite"), "{theta}: {found:?}");
    }
}

#[test]
fn the_part_that_turns_is_even_and_not_empty() {
    let part = |part: f64| json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": part}});
    let turning = |part: Value| {
        let text = edited("qwen3_5_text", part);
        ModelConfig::parse(&text, "").map(|config| config.rotary.dims)
    };
    assert_eq!(turning(part(0.5)).unwrap(), 8);
    assert_eq!(turning(part(1.0)).unwrap(), 16);
    // 16 times 0.2 is 3 whole dimensions.
    for refused in [0.2, 0.05] {
        let found = problems(&edited("qwen3_5_text", part(refused)));
        assert!(found[0].contains("must be an even number"), "{found:?}");
    }
}
