//! `score` against values that transformers computed.

use std::path::PathBuf;

use safetensors::SafeTensors;

use crate::tiny::{Tiny, objects};

fn folder(family: &str) -> PathBuf {
    [
        env!("CARGO_MANIFEST_DIR"),
        "../../tests/fixtures/hf",
        family,
    ]
    .iter()
    .collect()
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let view = file.tensor(name).unwrap();
    view.data()
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

fn ids(file: &SafeTensors<'_>, name: &str) -> Vec<Vec<i32>> {
    let view = file.tensor(name).unwrap();
    let ids: Vec<i32> = view
        .data()
        .chunks_exact(4)
        .map(|b| i32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    ids.chunks(view.shape()[1]).map(<[i32]>::to_vec).collect()
}

#[track_caller]
fn assert_near(found: &serde_json::Value, expected: &[f32], what: &str) {
    let found: Vec<f64> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_f64().unwrap())
        .collect();
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(
            (a - f64::from(*b)).abs() <= 2e-5,
            "{what}: {a} instead of {b} at {i}"
        );
    }
}

fn check(family: &str) {
    let tiny = Tiny::new();
    let model = folder(family);
    let model = model.display();
    let bytes = std::fs::read(folder(family).join("reference.safetensors")).unwrap();
    let reference = SafeTensors::deserialize(&bytes).unwrap();

    // Two full rows: log-probs, entropies and the gradient of their mean.
    let rows = ids(&reference, "input_ids");
    let text: String = rows
        .iter()
        .map(|ids| format!("{{\"ids\": {ids:?}}}\n"))
        .collect();
    tiny.write("rows.jsonl", &text);
    let done = tiny
        .run(&format!("score {model} rows.jsonl --grad grad.safetensors"))
        .well();
    let scored = objects(&done.out);
    let predicted = rows[0].len() - 1;
    for name in ["logprobs", "entropy"] {
        let all = floats(&reference, name);
        for (row, expected) in all.chunks(predicted).enumerate() {
            assert_near(
                &scored[row][name],
                expected,
                &format!("{family} {name} of row {row}"),
            );
        }
    }
    let bytes = std::fs::read(tiny.path("grad.safetensors")).unwrap();
    let gradients = SafeTensors::deserialize(&bytes).unwrap();
    let names: Vec<&str> = reference
        .names()
        .into_iter()
        .filter_map(|it| it.strip_prefix("grad."))
        .collect();
    assert_eq!(
        names.len(),
        gradients.len(),
        "{family}: one gradient a parameter"
    );
    for name in names {
        let expected = floats(&reference, &format!("grad.{name}"));
        assert_eq!(
            gradients.tensor(name).unwrap().shape(),
            reference.tensor(&format!("grad.{name}")).unwrap().shape()
        );
        let found = floats(&gradients, name);
        let norm = |values: &mut dyn Iterator<Item = f32>| {
            values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt()
        };
        let error = norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
        let size = norm(&mut expected.iter().copied());
        assert!(
            error <= 1e-4 * size,
            "{family}: the gradient of {name} is off by {}",
            error / size
        );
    }

    // Documents alone, and packed with others.
    let mut documents: Vec<String> = reference
        .names()
        .into_iter()
        .filter(|it| it.ends_with(".input_ids"))
        .map(str::to_owned)
        .collect();
    documents.sort();
    let text: String = documents
        .iter()
        .map(|it| format!("{{\"ids\": {:?}}}\n", ids(&reference, it)[0]))
        .collect();
    tiny.write("docs.jsonl", &format!("{text}{{\"ids\": [7]}}\n"));
    for words in ["", "--pack 53", "--pack 38", "--pack 200"] {
        let scored = objects(
            &tiny
                .run(&format!("score {model} docs.jsonl {words}"))
                .well()
                .out,
        );
        assert_eq!(scored.len(), documents.len() + 1);
        for (line, document) in scored.iter().zip(&documents) {
            let expected = floats(&reference, &document.replace("input_ids", "logprobs"));
            assert_near(
                &line["logprobs"],
                &expected,
                &format!("{family} {document} {words}"),
            );
            assert_eq!(line["entropy"].as_array().unwrap().len(), expected.len());
        }
        assert_eq!(scored.last().unwrap()["logprobs"], serde_json::json!([]));
    }
}

#[test]
fn llama_as_transformers() {
    check("llama");
}

#[test]
fn qwen3_as_transformers() {
    check("qwen3");
}

#[test]
fn filters_and_temperature_are_those_of_a_sampler() {
    let tiny = Tiny::new();
    let model = folder("qwen3");
    let line = |ids: &[i32]| format!("{{\"ids\": {ids:?}}}\n");
    let documents = [
        line(&[5, 6, 7, 8, 9, 10, 11, 12]),
        line(&[7]),
        line(&[50, 3, 90]),
    ];
    tiny.write("docs.jsonl", &documents.concat());
    let score = |words: &str| {
        let words = format!("score {} docs.jsonl {words}", model.display());
        objects(&tiny.run(&words).well().out)
    };
    let numbers = |of: &serde_json::Value| -> Vec<f64> {
        let of = of.as_array().unwrap().iter();
        of.map(|it| it.as_f64().unwrap_or(f64::NEG_INFINITY))
            .collect()
    };

    let plain = score("");
    let mut keys: Vec<&String> = plain[0].keys().collect();
    keys.sort();
    assert_eq!(keys, ["entropy", "logprobs"]);
    assert_eq!(score("--top-k 0 --top-p 1 --min-p 0"), plain);

    // Only the most likely token is kept, so what it keeps is that token's probability.
    let one = score("--top-k 1");
    let near = score("--min-p 0.6");
    let (mut kept, mut dropped) = (0, 0);
    for ((plain, one), near) in plain.iter().zip(&one).zip(&near) {
        assert_eq!(one["logprobs"], plain["logprobs"]);
        assert_eq!(one["entropy"], plain["entropy"]);
        let logprobs = numbers(&plain["logprobs"]);
        let [peaks, masses, found] =
            [&one["kept"], &near["kept"], &near["sampling_logprobs"]].map(numbers);
        assert_eq!(
            [peaks.len(), masses.len(), found.len()],
            [logprobs.len(); 3]
        );
        for (i, logprob) in logprobs.iter().enumerate() {
            if *logprob >= (0.6 * peaks[i]).ln() {
                kept += 1;
                let expected = logprob - masses[i].ln();
                assert!((found[i] - expected).abs() < 1e-5, "{i}: {near:?}");
            } else {
                dropped += 1;
                assert!(near["sampling_logprobs"][i].is_null(), "{i}: {near:?}");
            }
        }
    }
    assert!(kept > 1 && dropped > 1, "{kept} {dropped}");

    let words = "--temperature 2 --top-k 50 --top-p 0.8 --min-p 0.1";
    let (alone, packed) = (score(words), score(&format!("{words} --pack 12")));
    for (alone, packed) in alone.iter().zip(&packed) {
        for name in ["logprobs", "entropy", "kept", "sampling_logprobs"] {
            let (a, b) = (numbers(&alone[name]), numbers(&packed[name]));
            assert_eq!(a.len(), b.len());
            let same = |(a, b): (&f64, &f64)| a == b || (a - b).abs() < 1e-5;
            assert!(a.iter().zip(&b).all(same), "{name}: {a:?} {b:?}");
        }
    }
    // Far above all differences between logits, every token is as likely as any other.
    for entropy in numbers(&score("--temperature 1e4")[0]["entropy"]) {
        assert!((entropy - 128_f64.ln()).abs() < 1e-5, "{entropy}");
    }
}

#[test]
fn a_gradient_is_of_the_mean_over_all_tokens_however_they_are_packed() {
    let tiny = Tiny::new();
    let model = folder("qwen3");
    let documents = [
        vec![5, 6, 7, 8, 9, 10, 11, 12],
        vec![90, 3],
        vec![50, 51, 52],
    ];
    let line = |ids: &Vec<i32>| format!("{{\"ids\": {ids:?}}}\n");
    let gradient = |text: &str, words: &str| {
        tiny.write("docs.jsonl", text);
        tiny.run(&format!(
            "score {} docs.jsonl --grad grad.safetensors {words}",
            model.display()
        ))
        .well();
        let bytes = std::fs::read(tiny.path("grad.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut names: Vec<&str> = file.names().into_iter().collect();
        names.sort_unstable();
        names
            .into_iter()
            .flat_map(|name| floats(&file, name))
            .map(f64::from)
            .collect::<Vec<_>>()
    };
    let together: String = documents.iter().map(line).collect();
    let whole = gradient(&together, "");
    let size = whole.iter().map(|v| v * v).sum::<f64>().sqrt();
    let assert_same = |other: &[f64], what: &str| {
        let off = whole
            .iter()
            .zip(other)
            .map(|(a, b)| (a - b).powi(2))
            .sum::<f64>()
            .sqrt();
        assert!(off <= 1e-6 * size, "{what}: off by {}", off / size);
    };
    assert_same(&gradient(&together, "--pack 13"), "in one row");
    assert_same(&gradient(&together, "--pack 8"), "in two rows");
    // Seven, one and two predicted tokens.
    let mut sum = vec![0.0; whole.len()];
    for (ids, tokens) in documents.iter().zip([7.0, 1.0, 2.0]) {
        let part = gradient(&line(ids), "");
        sum.iter_mut()
            .zip(part)
            .for_each(|(sum, d)| *sum += d * tokens / 10.0);
    }
    assert_same(&sum, "one by one");
}
