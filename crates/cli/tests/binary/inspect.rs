//! `ferrotune inspect`.

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::tiny::Tiny;

/// A tiny world with the model folder that `transformers` wrote for a family, as `fixture`.
fn with_fixture(family: &str) -> Tiny {
    let tiny = Tiny::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/hf");
    std::fs::create_dir(tiny.path("fixture")).unwrap();
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        let to = tiny.path("fixture").join(name);
        std::fs::copy(source.join(family).join(name), to).unwrap();
    }
    tiny
}

fn object(tiny: &Tiny, words: &str) -> Value {
    serde_json::from_str(&tiny.run(&format!("inspect {words} --json")).well().out).unwrap()
}

#[test]
fn every_family_is_described() {
    for (family, layers) in [
        ("llama", "2 of attention + dense"),
        ("qwen3", "2 of attention + dense"),
        ("qwen3_moe", "2 of attention + experts"),
        (
            "qwen3_next",
            "3 of delta rule + experts, 1 of attention + experts",
        ),
        (
            "qwen3_5_text",
            "3 of delta rule + dense, 1 of attention + dense",
        ),
    ] {
        let tiny = with_fixture(family);
        let shown = tiny.run("inspect fixture").well().out;
        for part in [
            family,
            layers,
            "f32 in 1 file",
            "model.safetensors",
            "0 tensors",
            "longest     512 tokens",
            "none: there is no tokenizer.json",
        ] {
            assert!(shown.contains(part), "{family}: no {part:?} in\n{shown}");
        }
        let found = object(&tiny, "fixture");
        assert_eq!(found["family"], family);
        let bytes = std::fs::read(tiny.path("fixture/model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let values = file
            .tensors()
            .into_iter()
            .map(|(_, it)| it.data().len() / 4);
        assert_eq!(found["parameters"], values.sum::<usize>());
        let sparse = layers.contains("experts");
        assert_eq!(found["parameters"] != found["active_parameters"], sparse);
        assert_eq!(found["weights"]["dtypes"], json!(["f32"]));
        assert_eq!(found["tokenizer"], Value::Null);
    }
}

#[test]
fn a_folder_with_a_configuration_alone_says_what_is_absent() {
    let tiny = Tiny::new();
    let config = tiny.read("model/config.json");
    tiny.write("bare/config.json", &config);
    let shown = tiny.run("inspect bare").well().out;
    for part in [
        "weights     none",
        "tokenizer   none",
        "the head is the embedding",
        "base 10000",
    ] {
        assert!(shown.contains(part), "no {part:?} in\n{shown}");
    }
    let found = object(&tiny, "bare");
    assert_eq!(
        (&found["weights"], &found["chat_template"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(found["rotary"]["dims"], 8);
}

#[test]
fn tokens_that_end_a_text_come_from_the_generation_settings() {
    let tiny = Tiny::new();
    let found = object(&tiny, "model");
    assert_eq!(found["tokenizer"]["eos_ids"], json!([1]));
    tiny.write("model/generation_config.json", "{\"eos_token_id\": [1, 0]}");
    tiny.write(
        "model/chat_template.jinja",
        "{% if messages[0].role != 'system' %}[system Be brief.]{% endif %}\
         {% for m in messages %}[{{ m.role }} {{ m.content }}]{% endfor %}",
    );
    let shown = tiny.run("inspect model").well().out;
    for part in [
        "vocabulary of 18",
        "<eos> (1) ends a text",
        "<pad> (0) ends a text",
        "<pad> (0) pads a text",
        "\"Be brief.\"",
    ] {
        assert!(shown.contains(part), "no {part:?} in\n{shown}");
    }
    let found = object(&tiny, "model");
    assert_eq!(found["tokenizer"]["eos_ids"], json!([1, 0]));
    assert_eq!(found["tokenizer"]["special_tokens"]["1"], "<eos>");
    assert_eq!(found["chat_template"]["system_message"], "Be brief.");
}

#[test]
fn everything_wrong_is_told_at_once() {
    let tiny = with_fixture("qwen3_moe");
    tiny.run("inspect absent").refused(2, &["absent"]);
    let config = tiny.read("fixture/config.json");
    let narrow = config.replace("\"hidden_size\": 64", "\"hidden_size\": 32");
    tiny.write("fixture/config.json", &narrow);
    tiny.write("fixture/tokenizer.json", "{");
    let parts = [
        "model.layers.1.mlp.experts.3.up_proj.weight has shape [32, 64], expected [32, 32]",
        "model.norm.weight has shape [64], expected [32]",
        "tokenizer.json is damaged",
    ];
    tiny.run("inspect fixture").refused(2, &parts);
    let strange = config
        .replace("\"silu\"", "\"gelu\"")
        .replace("\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9");
    tiny.write("fixture/config.json", &strange);
    let parts = [
        "hidden_act",
        "num_experts_per_tok (9)",
        "tokenizer.json is damaged",
    ];
    assert_eq!(
        tiny.run("inspect fixture --json").refused(2, &parts).out,
        ""
    );
}
