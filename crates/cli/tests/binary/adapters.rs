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
    // The last checkpoint gives the same folder.
    tiny.run("checkpoint export out last").well();
    let bytes = |folder: &str, name: &str| std::fs::read(tiny.path(folder).join(name)).unwrap();
    let (about, weights) = ("adapter_config.json", "adapter_model.safetensors");
    assert_eq!(files(&tiny.path("last")), [about, weights]);
    for name in [about, weights] {
        assert!(bytes("last", name) == bytes("out/adapter", name), "{name}");
    }

    // Not as what another run trains, which would be the weights it began with.
    for (from, run, name) in [
        ("base", "out", "`embed`"),
        ("out", "base", "q_proj_lora_a`"),
    ] {
        tiny.run(&format!("checkpoint export {from} wrong --run {run}"))
            .refused(2, &["does not fit this run", name]);
    }

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
fn adapters_of_another_base_are_warned_of() {
    let tiny = Tiny::new();
    for base in ["one", "two"] {
        tiny.run(&format!(
            "train recipe.toml run.dir={base} rl.steps=0 warmup.steps=1"
        ))
        .well();
    }
    let lora = "lora.rank=2 warmup.steps=1 rl.steps=0 eval.max_problems=1";
    let pretrained =
        |base: &str| format!("train recipe.toml model.path={base}/model model.init=pretrained");
    tiny.run(&format!("{} run.dir=out {lora}", pretrained("one")))
        .well();
    tiny.write("docs.jsonl", "{\"text\": \"12 =21\"}\n");
    let more = "warmup.steps=1 rl.steps=0 eval.max_problems=1 model.adapter=out/adapter";
    for (base, warned) in [("one", false), ("two", true)] {
        for words in [
            format!("sample {base}/model --adapter out/adapter --prompt 12 --max-new 1"),
            format!("score {base}/model docs.jsonl --adapter out/adapter"),
            format!("{} run.dir=on-{base} {more}", pretrained(base)),
        ] {
            let err = tiny.run(&words).well().err;
            assert_eq!(
                err.contains("warning: the adapters were made for"),
                warned,
                "{words}: {err}"
            );
            assert_eq!(
                err.contains("base_model_name_or_path"),
                warned,
                "{words}: {err}"
            );
        }
    }
}

#[test]
fn settings_that_the_model_cannot_have_are_shown_where_they_stand() {
    let tiny = Tiny::new();
    // Of what the settings ask is judged before weights are read.
    tiny.write("model/model.safetensors", "");
    let recipe = tiny.read("recipe.toml").replace("random", "pretrained");
    let first = recipe.lines().count() + 1;
    let lora = "[lora]\nexperts = \"each\"\nrank = 33\ntargets = [\"q_proj\", \"wq\"]\n[router]\nload_balance = 0.5\n";
    tiny.write("recipe.toml", &format!("{recipe}{lora}"));
    tiny.run("train recipe.toml").refused(
        2,
        &[
            "no experts to adapt",
            "leave `lora.experts` out",
            &format!("recipe.toml:{}:11", first + 1),
            "no linear layer \"wq\"",
            &format!("recipe.toml:{}:11", first + 3),
            "has no experts",
            &format!("recipe.toml:{}:16", first + 5),
            "3 problems in recipe.toml",
        ],
    );
    tiny.write("recipe.toml", &recipe);
    tiny.run("train recipe.toml lora.rank=2 lora.targets=[\"q_proj\",\"q_proj\"]")
        .refused(
            2,
            &[
                "override 2",
                "`lora.targets` names \"q_proj\" more than once",
            ],
        );
    tiny.run("train recipe.toml model.freeze=[\"*/rooter\",\"*embed*\",\"nothing\"]")
        .refused(
            2,
            &["override 1", "\"*/rooter\"", "\"nothing\"", "2 problems"],
        );
    tiny.run("train recipe.toml model.freeze=[\"*\"]")
        .refused(2, &["override 1", "freezes every parameter"]);
    tiny.run("train recipe.toml rollout.max_new_tokens=60 packing.row_tokens=128")
        .refused(2, &["override 1", "max_position_embeddings = 64"]);
    tiny.run("train recipe.toml mesh.fsdp=3 packing.rows_per_micro_batch=3")
        .refused(2, &["override 1", "mesh.fsdp"]);
}

#[test]
fn settings_of_adapters_that_cannot_be_are_refused_before_anything_starts() {
    let tiny = Tiny::new();
    tiny.run("train recipe.toml lora.rank=2")
        .refused(2, &["override 1", "init = \"random\"", "random weights"]);
    tiny.write("model/model.safetensors", "");
    tiny.run(
        "train recipe.toml model.init=pretrained lora.rank=2 lora.targets=[\"q_proj\",\"wq\"]",
    )
    .refused(2, &["\"wq\"", "q_proj, k_proj"]);
    tiny.run("train recipe.toml lora.targets=[\"q_proj\"]")
        .refused(2, &["lora.targets", "lora.rank"]);
    tiny.run("train recipe.toml model.freeze=[\"*/rooter\"]")
        .refused(2, &["*/rooter", "layers/attn/q_proj"]);
    tiny.run("train recipe.toml router.load_balance=0.01")
        .refused(2, &["no experts", "leave `router.load_balance` out"]);
    tiny.run("train recipe.toml router.capacity_factor=1.25")
        .refused(2, &["no experts", "leave `router.capacity_factor` out"]);
    for factor in ["0", "-1", "nan"] {
        tiny.run(&format!(
            "train recipe.toml router.capacity_factor={factor}"
        ))
        .refused(2, &["router.capacity_factor", "must be"]);
    }
    tiny.run("train recipe.toml model.adapter=nowhere")
        .refused(2, &["model.adapter", "does not exist"]);
    tiny.run("score model docs.jsonl --adapter nowhere --grad g.safetensors")
        .refused(2, &["--grad"]);
}
