//! The same numbers as transformers, alone and packed.

use std::collections::HashMap;

use ferrotune_batch::{Aggregation, Packing, Trajectory};
use ferrotune_engine::{HeadMode, HeadSettings, Loss};
use ferrotune_models::export_gradients;
use safetensors::SafeTensors;

use crate::setup::{config, engine, engine_on, fixture, rows};

/// Float and integer tensors of a safetensors file.
struct Reference(HashMap<String, (Vec<usize>, Vec<u8>)>);

impl Reference {
    fn read(path: &std::path::Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        Self(
            tensors
                .iter()
                .map(|(name, view)| {
                    (
                        name.to_owned(),
                        (view.shape().to_vec(), view.data().to_vec()),
                    )
                })
                .collect(),
        )
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.0[name]
            .1
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    fn token_rows(&self, name: &str) -> Vec<Vec<u32>> {
        let (shape, bytes) = &self.0[name];
        let ids: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        ids.chunks(shape[1]).map(<[u32]>::to_vec).collect()
    }

    fn documents(&self) -> Vec<(Vec<u32>, Vec<f32>)> {
        let ids = (0..).map_while(|i| {
            self.0
                .contains_key(&format!("doc{i}.input_ids"))
                .then_some(i)
        });
        let read = |i| {
            let scores = format!("doc{i}.logprobs");
            let scores = if self.0.contains_key(&scores) {
                self.floats(&scores)
            } else {
                Vec::new()
            };
            (
                self.token_rows(&format!("doc{i}.input_ids")).remove(0),
                scores,
            )
        };
        ids.map(read).collect()
    }
}

fn close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let worst = found
        .iter()
        .zip(expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(worst <= tolerance, "{what} differ by up to {worst}");
}

/// Gradients that transformers has right only in float64: see `make_hf_float64.py`.
fn float64(family: &str) -> HashMap<String, Vec<f32>> {
    match std::fs::read_to_string(fixture(family).join("float64.json")) {
        Ok(text) => serde_json::from_str(&text).unwrap(),
        Err(_) => HashMap::new(),
    }
}

fn check_family(family: &str) {
    let reference = Reference::read(&fixture(family).join("reference.safetensors"));
    let docs: Vec<Trajectory> = reference
        .token_rows("input_ids")
        .into_iter()
        .map(Trajectory::document)
        .collect();
    let width = docs[0].len();
    let weights = Aggregation::TokenMean.weights(&docs).unwrap();
    let batch = Packing::padded(width).pack(&docs, &weights).unwrap();
    let mut engine = engine(family);

    let scores = engine.score(&batch).unwrap();
    let logprobs: Vec<f32> = batch
        .unpack(&scores.logprob)
        .unwrap()
        .iter()
        .flat_map(|d| d[1..].to_vec())
        .collect();
    let entropies: Vec<f32> = batch
        .unpack(&scores.entropy)
        .unwrap()
        .iter()
        .flat_map(|d| d[1..].to_vec())
        .collect();
    close(&logprobs, &reference.floats("logprobs"), 2e-5, "log-probs");
    close(&entropies, &reference.floats("entropy"), 2e-5, "entropies");

    engine
        .forward_backward(&batch, &Loss::cross_entropy())
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gradients.safetensors");
    export_gradients(&file, engine.model(), &engine.gradients_to_host().unwrap()).unwrap();
    let gradients = Reference::read(&file);
    let exact = float64(family);
    let expected: Vec<&String> = reference
        .0
        .keys()
        .filter(|k| k.starts_with("grad."))
        .collect();
    assert_eq!(
        expected.len(),
        gradients.0.len(),
        "every parameter has a gradient"
    );
    for name in expected {
        let short = &name["grad.".len()..];
        let a = match exact.get(short) {
            Some(values) => values.clone(),
            None => reference.floats(name),
        };
        let b = gradients.floats(short);
        let norm =
            |x: &mut dyn Iterator<Item = f32>| x.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let error = norm(&mut a.iter().zip(&b).map(|(x, y)| x - y)) / norm(&mut a.iter().copied());
        assert!(error <= 1e-4, "{family} {name}: relative error {error}");
    }
}

fn check_packed(family: &str) {
    let reference = Reference::read(&fixture(family).join("reference.safetensors"));
    let documents = reference.documents();
    let docs: Vec<Trajectory> = documents
        .iter()
        .map(|(ids, _)| Trajectory::document(ids.clone()))
        .collect();
    let total: usize = docs.iter().map(Trajectory::len).sum();
    let mut engine = engine(family);
    // All in one row without and with padding behind, and spread over rows.
    for budget in [total, total + 13, 48] {
        let batch = rows(&docs, budget, 1);
        let scores = batch
            .unpack(&engine.score(&batch).unwrap().logprob)
            .unwrap();
        for ((_, expected), found) in documents.iter().zip(&scores) {
            assert_eq!(
                found[0], 0.0,
                "nothing predicts the first token of a document"
            );
            close(
                &found[1..],
                expected,
                2e-5,
                &format!("{family}: log-probs of a document packed into {budget}"),
            );
        }
    }
}

#[test]
fn llama_has_the_numbers_of_transformers() {
    check_family("llama");
    check_packed("llama");
}

#[test]
fn qwen2_has_the_numbers_of_transformers() {
    check_family("qwen2");
    check_packed("qwen2");
}

#[test]
fn qwen3_has_the_numbers_of_transformers() {
    check_family("qwen3");
    check_packed("qwen3");
}

#[test]
fn qwen3_moe_has_the_numbers_of_transformers() {
    check_family("qwen3_moe");
    check_packed("qwen3_moe");
}

#[test]
fn qwen3_next_has_the_numbers_of_transformers() {
    check_family("qwen3_next");
    check_packed("qwen3_next");
}

#[test]
fn qwen3_5_has_the_numbers_of_transformers() {
    check_family("qwen3_5_text");
    check_packed("qwen3_5_text");
}

#[test]
fn qwen3_5_moe_has_the_numbers_of_transformers() {
    check_family("qwen3_5_moe_text");
    check_packed("qwen3_5_moe_text");
}

#[test]
fn a_chunked_head_changes_nothing() {
    let docs = crate::setup::documents(&[40, 23, 9]);
    let batch = rows(&docs, 40, 1);
    let whole = engine("llama").score(&batch).unwrap();
    for (mode, chunk) in [
        (HeadMode::Off, 1),
        (HeadMode::Local, 7),
        (HeadMode::Fused, 1),
        (HeadMode::Fused, 40),
        (HeadMode::SinglePass, 7),
    ] {
        let head = HeadSettings {
            mode,
            token_chunk: chunk,
            vocab_chunk: 50,
        };
        let settings = ferrotune_engine::EngineConfig { head, ..config() };
        let mut chunked = engine_on("llama", 1, 1, settings);
        let scores = chunked.score(&batch).unwrap();
        close(&scores.logprob, &whole.logprob, 2e-6, "log-probs");
        close(&scores.entropy, &whole.entropy, 2e-6, "entropies");
    }
}

#[test]
fn temperature_divides_the_logits() {
    let docs = crate::setup::documents(&[20]);
    let batch = rows(&docs, 20, 1);
    let hot = engine_on(
        "qwen3",
        1,
        1,
        ferrotune_engine::EngineConfig {
            temperature: 1e4,
            ..config()
        },
    )
    .score(&batch)
    .unwrap();
    close(
        &hot.logprob[1..],
        &[-(128_f32.ln()); 19],
        1e-3,
        "log-probs at a very high temperature",
    );
}

#[test]
fn changing_a_document_leaves_its_neighbours_bit_equal() {
    let mut docs = crate::setup::documents(&[15, 22, 11]);
    let mut engine = engine("qwen3");
    let before = rows(&docs, 60, 1);
    let before = before
        .unpack(&engine.score(&before).unwrap().logprob)
        .unwrap();
    for token in &mut docs[1].tokens {
        *token = (*token + 1) % 128;
    }
    let after = rows(&docs, 60, 1);
    let after = after
        .unpack(&engine.score(&after).unwrap().logprob)
        .unwrap();
    assert_eq!((&before[0], &before[2]), (&after[0], &after[2]));
    assert_ne!(before[1], after[1]);
}
