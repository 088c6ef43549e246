//! What `sample` continues: prompts and chats from a file, and lines of it that cannot be used.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::tiny::{Tiny, objects};

/// A tiny world with a trained model in `out/model`.
fn trained() -> Tiny {
    let tiny = Tiny::new();
    tiny.run("train recipe.toml run.dir=out warmup.steps=1 rl.steps=0")
        .well();
    tiny
}

/// Puts a chat template into the model's folder.
fn with_template(tiny: &Tiny) {
    let path = "out/model/tokenizer_config.json";
    let mut config: serde_json::Value = serde_json::from_str(&tiny.read(path)).unwrap();
    let template = "{% for m in messages %}{{ m.role[0] | replace('u', 'a') | replace('s', 'b') }}{{ m.content }} {% endfor %}\
                    {% if add_generation_prompt %}={% endif %}";
    config["chat_template"] = template.into();
    tiny.write(path, &config.to_string());
}

#[test]
fn every_line_of_a_file_is_continued_in_order() {
    let tiny = trained();
    with_template(&tiny);
    tiny.write(
        "prompts.jsonl",
        "\u{feff}{\"prompt\": \"12\"}\n\n{\"messages\": [{\"role\": \"system\", \"content\": \"0\"}, \
         {\"role\": \"user\", \"content\": \"7\"}]}\r\n",
    );
    let words = "sample out/model --prompts prompts.jsonl --max-new 3 --temperature 0 --json";
    let lines = objects(&tiny.run(&format!("{words} --n 2")).well().out);
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0], lines[1]);
    assert_eq!(lines[2], lines[3]);
    let tokenizer: serde_json::Value =
        serde_json::from_str(&tiny.read("out/model/tokenizer.json")).unwrap();
    let ids = |text: &str| -> Vec<u64> {
        let id = |c: char| tokenizer["model"]["vocab"][c.to_string()].as_u64().unwrap();
        text.chars().map(id).collect()
    };
    assert_eq!(lines[0]["prompt_ids"], serde_json::json!(ids("12")));
    assert_eq!(lines[2]["prompt_ids"], serde_json::json!(ids("b0 a7 =")));
    for line in &lines {
        let count = line["ids"].as_array().unwrap().len();
        assert_eq!(line["logprobs"].as_array().unwrap().len(), count);
        let finish = if count == 3 && line["ids"][2] != 1 {
            "length"
        } else {
            "stop"
        };
        assert_eq!(line["finish"], finish);
        assert!(line["text"].is_string());
    }
    // Prompts of a file are what a user says, where --chat says so.
    let chat = tiny.run("sample out/model --prompt 7 --chat --max-new 1 --json");
    assert_eq!(
        objects(&chat.well().out)[0]["prompt_ids"],
        serde_json::json!(ids("a7 ="))
    );
}

#[test]
fn every_bad_line_is_refused_with_its_place() {
    let tiny = trained();
    let words = "sample out/model --prompts bad.jsonl";
    tiny.write(
        "bad.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}]}\n",
    );
    tiny.run(words)
        .refused(2, &["bad.jsonl:1: ", "no chat template"]);
    tiny.run("sample out/model --prompt 1 --chat")
        .refused(2, &["no chat template"]);
    with_template(&tiny);
    tiny.run(words).well();

    let message = |text: &str| format!("{{\"messages\": [{text}]}}");
    let lines = [
        "{\"prompt\": \"1\"}".to_owned(),
        "not json".to_owned(),
        "{\"prompt\": 3}".to_owned(),
        "[]".to_owned(),
        "{\"prompt\": \"1\", \"messages\": []}".to_owned(),
        message(""),
        message("{\"role\": \"usr\", \"content\": \"1\"}"),
        message(
            "{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"user\", \"content\": \" \"}",
        ),
        message("{\"role\": \"user\"}"),
        message("{\"role\": \"user\", \"content\": 7}"),
        message("\"hello\""),
        "{\"messages\": \"hello\"}".to_owned(),
        "{\"prompt\": \"z\"}".to_owned(),
    ];
    tiny.write("bad.jsonl", &lines.join("\n"));
    tiny.run(words).refused(
        2,
        &[
            "bad.jsonl:2: not JSON",
            "bad.jsonl:3: \"prompt\" must be a text",
            "bad.jsonl:4: must be an object",
            "bad.jsonl:5: must be an object with either",
            "bad.jsonl:6: \"messages\" is empty",
            "bad.jsonl:7: message 1 has the unknown role \"usr\"",
            "did you mean \"user\"?",
            "bad.jsonl:8: message 2 of the user is empty",
            "bad.jsonl:9: message 1 has no \"content\"",
            "bad.jsonl:10: message 1 must have a text",
            "bad.jsonl:11: message 1 must be an object",
            "bad.jsonl:12: \"messages\" must be a list",
            "bad.jsonl:13: ",
        ],
    );
    std::fs::write(
        tiny.path("bad.jsonl"),
        b"{\"prompt\": \"1\"}\n{\"prompt\": \"\xff\"}\n",
    )
    .unwrap();
    tiny.run(words)
        .refused(2, &["bad.jsonl:2: not UTF-8 text at byte 13"]);
    tiny.write("bad.jsonl", "\n");
    tiny.run(words).refused(2, &["bad.jsonl holds no prompts"]);
    tiny.write("bad.jsonl", &"x\n".repeat(50));
    tiny.run(words)
        .refused(2, &["bad.jsonl:20: ", "and 30 more bad lines"]);
}

#[test]
fn what_is_named_wrongly_is_refused_with_what_to_do() {
    let tiny = trained();
    for (words, parts) in [
        (
            "sample out/model --prompts absent.jsonl",
            ["absent.jsonl does not exist", "check the name"],
        ),
        (
            "sample out/model --prompts out",
            ["out is a folder", "name a file"],
        ),
        (
            "score out/model absent.jsonl",
            ["absent.jsonl does not exist", "check the name"],
        ),
        ("score out/model out", ["out is a folder", "name a file"]),
        (
            "pack absent.jsonl --budget 8",
            ["absent.jsonl does not exist", "check the name"],
        ),
        (
            "inspect recipe.toml",
            ["recipe.toml is a file", "name the folder"],
        ),
        (
            "inspect absent",
            ["absent does not exist", "check the name"],
        ),
        ("inspect out", ["out holds no config.json", "name a folder"]),
        (
            "sample recipe.toml --prompt 1",
            ["recipe.toml is a file", "name the folder"],
        ),
        (
            "sample out --prompt 1",
            ["out holds no config.json", "name a folder"],
        ),
        (
            "score out train.jsonl",
            ["out holds no config.json", "name a folder"],
        ),
        (
            "sample out/model --prompt 1 --adapter out/model",
            ["holds no adapter_config.json", "adapters"],
        ),
        (
            "sample out/model --prompt 1 --adapter recipe.toml",
            ["recipe.toml is a file", "adapters"],
        ),
    ] {
        tiny.run(words).refused(2, &parts);
    }
}

#[test]
fn answers_come_as_they_are_made_however_many_are_asked_for() {
    let tiny = trained();
    // As many requests as these would not fit into memory.
    let words = "sample out/model --prompt 12 --max-new 1 --n 1000000000";
    let mut child = tiny
        .command(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let lines: Vec<_> = out.lines().take(40).collect();
    assert_eq!(lines.len(), 40);
    assert_eq!(child.wait().unwrap().code(), Some(0), "nobody reads on");
}

#[test]
fn what_is_longer_than_the_model_takes_is_told_with_what_can_be_done() {
    let tiny = Tiny::new();
    // Nothing here reads weights.
    let sample = |words: &str| tiny.run(&format!("sample model {words}"));
    let (made, long) = (
        "max_position_embeddings = 64 in model/config.json",
        "1".repeat(64),
    );
    sample("--prompt 12 --max-new 63").refused(2, &[made, "lower --max-new to 62"]);
    let full =
        sample(&format!("--prompt {long}")).refused(2, &[made, "no room", "shorten the prompt"]);
    assert!(!full.err.contains("--max-new"), "{}", full.err);
    let mut config: serde_json::Value =
        serde_json::from_str(&tiny.read("model/config.json")).unwrap();
    config["rope_scaling"] = serde_json::json!({"rope_type": "longrope", "short_factor": [1, 1, 1, 1],
        "long_factor": [1, 1, 1, 1], "original_max_position_embeddings": 40});
    tiny.write("model/config.json", &config.to_string());
    let limit = [
        "ferrotune takes",
        "longrope",
        "original_max_position_embeddings = 40",
    ];
    sample("--prompt 12 --max-new 63").refused(2, &limit);
    tiny.write("docs.jsonl", &format!("{{\"text\": \"{long}\"}}\n"));
    tiny.run("score model docs.jsonl").refused(2, &limit);
    tiny.run("train recipe.toml rollout.max_new_tokens=40 packing.row_tokens=48")
        .refused(2, &limit);
}
