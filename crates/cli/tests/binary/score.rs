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
