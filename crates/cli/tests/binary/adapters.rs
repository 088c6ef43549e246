//! Adapters from recipe to folder, and back into every command.

use crate::tiny::{Tiny, files, objects};

const SHORT: &str = "warmup.steps=2 rl.steps=1 eval.max_problems=2 checkpoint.every_steps=2";

#[test]
fn adapters_are_trained_scored_sampled_and_trained_on() {
    let tiny = Tiny::new();
    tiny.run("train recipe.toml run.dir=base rl.steps=0 warmup.steps=2")
        .well();
    let base = "train recipe.toml model.path=base/model model.init=pretrained";
    let lora =
        format!("{base} run.dir=out lora.rank=2 lora.targets=[\"q_proj\",\"down_proj\"] {SHORT}");
    let done = tiny.run(&lora).well();
    assert!(
        done.err
            .contains("adapters of rank 2 and alpha 4 on q_proj, down_proj"),
        "{}",
        done.err
    );
    assert_eq!(
        files(&tiny.path("out/adapter")),
        ["adapter_config.json", "adapter_model.safetensors"]
    );
    assert!(!tiny.path("out/model").exists(), "the base is where it was");

    tiny.write("docs.jsonl", "{\"text\": \"12 =21\"}\n");
    let score = |more: &str| {
        objects(
            &tiny
                .run(&format!("score base/model docs.jsonl{more}"))
                .well()
                .out,
        )
    };
    let (plain, adapted) = (score(""), score(" --adapter out/adapter"));
    assert_ne!(plain[0]["logprobs"], adapted[0]["logprobs"]);
    let sample =
        "sample base/model --adapter out/adapter --prompt 12 --max-new 3 --temperature 0 --json";
    let answer = objects(&tiny.run(sample).well().out);
    // What the sampler says of its own tokens is what scoring finds.
    let ids: Vec<u64> = ["prompt_ids", "ids"]
        .iter()
        .flat_map(|key| answer[0][*key].as_array().unwrap().clone())
        .map(|id| id.as_u64().unwrap())
        .collect();
    tiny.write("docs.jsonl", &format!("{{\"ids\": {ids:?}}}\n"));
    let scored = score(" --adapter out/adapter");
    let scored = scored[0]["logprobs"].as_array().unwrap();
    let said = answer[0]["logprobs"].as_array().unwrap();
    for (a, b) in said.iter().zip(&scored[scored.len() - said.len()..]) {
        assert!((a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-4);
    }

    // On from the folder, and from a checkpoint in the middle.
    let on = format!("{base} run.dir=on model.adapter=out/adapter {SHORT}");
    tiny.run(&on).well();
    let whole = tiny.metrics("on");
    std::fs::remove_dir_all(tiny.path("on/checkpoints/step-3")).unwrap();
    tiny.run(&format!("{on} --resume")).well();
    assert_eq!(tiny.metrics("on"), whole);
}

#[test]
fn settings_of_adapters_that_cannot_be_are_refused_before_anything_starts() {
    let tiny = Tiny::new();
    tiny.run("train recipe.toml lora.rank=2 lora.targets=[\"q_proj\",\"wq\"]")
        .refused(2, &["\"wq\"", "q_proj, k_proj"]);
    tiny.run("train recipe.toml lora.targets=[\"q_proj\"]")
        .refused(2, &["lora.targets", "lora.rank"]);
    tiny.run("train recipe.toml model.freeze=[\"*/rooter\"]")
        .refused(2, &["*/rooter", "layers/attn/q_proj"]);
    tiny.run("train recipe.toml router.load_balance=0.01")
        .refused(2, &["no experts"]);
    tiny.run("train recipe.toml model.adapter=nowhere")
        .refused(2, &["model.adapter", "does not exist"]);
    tiny.run("score model docs.jsonl --adapter nowhere --grad g.safetensors")
        .refused(2, &["--grad"]);
}
