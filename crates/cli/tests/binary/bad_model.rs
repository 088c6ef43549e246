//! Model folders that cannot be used.

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::tiny::Tiny;

/// A tiny world with a trained model in `out/model`.
fn trained() -> Tiny {
    let tiny = Tiny::new();
    tiny.run("train recipe.toml run.dir=out warmup.steps=1 rl.steps=0")
        .well();
    tiny.write("docs.jsonl", "{\"ids\": [3, 4, 5]}\n");
    tiny
}

/// Rewrites the weights, each through `change`.
fn rewrite(path: &Path, change: impl Fn(&str, &mut Vec<usize>, &mut Vec<u8>)) {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = Vec::new();
    for (name, view) in file.tensors() {
        let (mut shape, mut data) = (view.shape().to_vec(), view.data().to_vec());
        change(&name, &mut shape, &mut data);
        tensors.push((name, view.dtype(), shape, data));
    }
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (
            name.clone(),
            TensorView::new(*dtype, shape.clone(), data).unwrap(),
        )
    });
    let bytes = safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap();
    std::fs::write(path, bytes).unwrap();
}

#[track_caller]
fn refused_everywhere(tiny: &Tiny, parts: &[&str]) {
    tiny.run("score out/model docs.jsonl").refused(2, parts);
    tiny.run("sample out/model --prompt 12").refused(2, parts);
    tiny.run("train recipe.toml model.path=out/model model.init=pretrained run.dir=next")
        .refused(2, parts);
}

#[test]
fn weights_that_are_cut_short_or_of_a_wrong_shape_or_not_numbers() {
    let tiny = trained();
    let path = tiny.path("out/model/model.safetensors");
    let sound = std::fs::read(&path).unwrap();
    tiny.run("score out/model docs.jsonl").well();

    std::fs::write(&path, &sound[..sound.len() - 100]).unwrap();
    refused_everywhere(&tiny, &["model.safetensors", "download it again"]);
    std::fs::write(&path, &sound[..4]).unwrap();
    refused_everywhere(&tiny, &["model.safetensors"]);

    std::fs::write(&path, &sound).unwrap();
    rewrite(&path, |name, shape, data| {
        if name == "model.norm.weight" {
            shape[0] -= 1;
            data.truncate(data.len() - 4);
        }
    });
    refused_everywhere(&tiny, &["model.norm.weight", "[31]", "[32]"]);

    std::fs::write(&path, &sound).unwrap();
    rewrite(&path, |name, _, data| {
        if name.ends_with("1.mlp.up_proj.weight") {
            data[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
        }
    });
    refused_everywhere(&tiny, &["1.mlp.up_proj.weight", "NaN"]);

    std::fs::remove_file(&path).unwrap();
    tiny.run("score out/model docs.jsonl")
        .refused(2, &["no weights"]);
}

#[test]
fn configurations_and_tokenizers() {
    let tiny = trained();
    let config = tiny.read("out/model/config.json");
    tiny.write("out/model/config.json", "{");
    refused_everywhere(&tiny, &["config.json", "JSON"]);
    tiny.write("out/model/config.json", &config.replace("qwen3", "mamba"));
    refused_everywhere(&tiny, &["config.json", "mamba"]);
    tiny.write("out/model/config.json", &config);
    tiny.run("score absent docs.jsonl").refused(2, &["absent"]);

    // A model that is smaller than its tokenizer.
    tiny.write(
        "model/config.json",
        &tiny
            .read("model/config.json")
            .replace("\"vocab_size\":24", "\"vocab_size\":9"),
    );
    tiny.run("train recipe.toml run.dir=next").refused(
        2,
        &["train.jsonl:", "outside of the model's vocabulary of 9"],
    );

    let tokenizer = tiny.read("out/model/tokenizer.json");
    tiny.write(
        "out/model/tokenizer.json",
        &tokenizer[..tokenizer.len() / 2],
    );
    tiny.run("sample out/model --prompt 12")
        .refused(2, &["tokenizer.json", "damaged"]);
    std::fs::remove_file(tiny.path("out/model/tokenizer.json")).unwrap();
    tiny.run("sample out/model --prompt 12")
        .refused(2, &["tokenizer.json"]);
    // Ids need no tokenizer.
    tiny.run("score out/model docs.jsonl").well();
}

#[test]
fn documents() {
    let tiny = trained();
    let refused = |text: &str, words: &str, parts: &[&str]| {
        tiny.write("bad.jsonl", text);
        tiny.run(&format!("score out/model bad.jsonl {words}"))
            .refused(2, parts);
    };
    let bad = "{\"ids\": [1, 24]}\nnot json\n{}\n{\"ids\": []}\n{\"text\": \"12 z\"}\n";
    let parts = [
        "bad.jsonl:1: token 1 has id 24",
        "bad.jsonl:2: not JSON",
        "bad.jsonl:3: has neither",
        "bad.jsonl:4: ",
        "bad.jsonl:5: ",
    ];
    refused(bad, "", &parts);
    refused("", "", &["holds no documents"]);
    refused(
        "{\"ids\": [1, 2, 3, 4]}\n",
        "--pack 3",
        &["bad.jsonl:1", "4 tokens", "--pack"],
    );
    refused(
        "{\"ids\": [1]}\n",
        "--grad out.safetensors",
        &["nothing to differentiate"],
    );
    refused(
        "{\"ids\": [1, 2]}\n",
        "--grad nowhere/out.safetensors",
        &["cannot write nowhere/out.safetensors", "No such file"],
    );
    refused("{\"ids\": [1, 2]}\n", "--pack 0", &["--pack"]);
    tiny.run("score out/model absent.jsonl")
        .refused(2, &["absent.jsonl"]);
}

#[test]
fn texts_longer_than_the_model_was_made_for() {
    let tiny = trained();
    // Of 64 tokens: one that is just as long, and two that are longer.
    let ids = |count: usize| format!("{{\"ids\": {:?}}}\n", vec![5; count]);
    tiny.write("long.jsonl", &[ids(64), ids(65), ids(70)].concat());
    let parts = [
        "long.jsonl:2: the document has 65 tokens",
        "long.jsonl:3: the document has 70 tokens",
        "max_position_embeddings = 64",
    ];
    for words in ["", "--pack 128"] {
        let done = tiny.run(&format!("score out/model long.jsonl {words}"));
        assert!(!done.refused(2, &parts).err.contains("long.jsonl:1"));
    }
    tiny.write("long.jsonl", &ids(64).repeat(2));
    tiny.run("score out/model long.jsonl --pack 128").well();

    let parts = [
        "max_position_embeddings = 64",
        "out/model/config.json",
        "--max-new",
    ];
    tiny.run("sample out/model --prompt 12 --max-new 63")
        .refused(2, &parts);
    tiny.run("sample out/model --prompt 12 --max-new 62").well();
    tiny.run("sample out/model --prompt 12").well();
    let prompt = "1".repeat(64);
    let done = tiny.run(&format!("sample out/model --prompt {prompt}"));
    done.refused(2, &["64 tokens of prompt", "max_position_embeddings = 64"]);

    let prompt = "1".repeat(61);
    let demonstration = format!("{{\"prompt\": \"{prompt}\", \"answer\": \"1234\"}}\n");
    tiny.write("demonstrations.jsonl", &demonstration);
    let parts = [
        "61 tokens of prompt and 6 of answer",
        "rollout.max_prompt_tokens=61",
        "override 2",
        "1 demonstration of up to 66 tokens",
        "model/config.json",
    ];
    let words =
        "train recipe.toml run.dir=next rollout.max_prompt_tokens=61 packing.row_tokens=128";
    tiny.run(words).refused(2, &parts);
}
