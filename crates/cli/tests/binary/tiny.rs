//! A tiny world: a model of a few thousand parameters with a tokenizer of characters, problems, demonstrations, a recipe.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Map, Value, json};

/// A folder with everything, deleted when dropped.
pub(crate) struct Tiny {
    folder: tempfile::TempDir,
}

/// The recipe; `{extra}` is a place for more tables.
const RECIPE: &str = r#"
seed = 3
[model]
path = "model"
init = "random"
[data]
train = "train.jsonl"
heldout = "heldout.jsonl"
demonstrations = "demonstrations.jsonl"
[warmup]
steps = 4
batch_size = 6
learning_rate = 1e-2
[rl]
steps = 4
prompts_per_step = 4
group_size = 4
updates_per_step = 2
learning_rate = 1e-3
[rollout]
max_prompt_tokens = 8
max_new_tokens = 6
tokens_per_dispatch = 3
[packing]
row_tokens = 32
rows_per_micro_batch = 2
[eval]
every_steps = 2
[checkpoint]
every_steps = 3
"#;

const CHARACTERS: &str = "0123456789 =+abc";

impl Tiny {
    pub(crate) fn new() -> Self {
        let tiny = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        tiny.write("recipe.toml", RECIPE);
        let reverse = |n: usize| format!("{n:02}").chars().rev().collect::<String>();
        let problem = |n: usize| json!({ "prompt": format!("{n:02} ="), "answer": reverse(n) });

        tiny.write("train.jsonl", &lines((20..80).map(problem)));
        tiny.write("heldout.jsonl", &lines((80..90).map(problem)));
        tiny.write("demonstrations.jsonl", &lines((0..16).map(problem)));
        tiny.write_model("model");
        tiny
    }

    /// A Qwen3 model folder without weights.
    fn write_model(&self, name: &str) {
        let config = json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 24, "hidden_size": 32,
            "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 8, "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0, "tie_word_embeddings": true, "initializer_range": 0.08, "attention_bias": false,
            "eos_token_id": 1, "bos_token_id": null, "pad_token_id": 0, "torch_dtype": "float32"
        });
        self.write(&format!("{name}/config.json"), &config.to_string());
        let special = |id: u32, content: &str| {
            json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true })
        };
        let mut vocab = Map::new();
        vocab.insert("<pad>".to_owned(), json!(0));
        vocab.insert("<eos>".to_owned(), json!(1));
        for (i, character) in CHARACTERS.chars().enumerate() {
            vocab.insert(character.to_string(), json!(i + 2));
        }
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [special(0, "<pad>"), special(1, "<eos>")],
            "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": { "type": "Fuse" },
            "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                       "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [] }
        });
        self.write(&format!("{name}/tokenizer.json"), &tokenizer.to_string());
        let config = json!({ "eos_token": "<eos>", "pad_token": "<pad>", "tokenizer_class": "PreTrainedTokenizerFast" });
        self.write(
            &format!("{name}/tokenizer_config.json"),
            &config.to_string(),
        );
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        let path = self.path(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The binary in this folder with these words, separated by spaces.
    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferrotune"));
        command
            .args(words.split_whitespace())
            .current_dir(self.folder.path());
        command
    }

    pub(crate) fn run(&self, words: &str) -> Done {
        Done::of(words, self.command(words).output().unwrap())
    }

    /// The lines of a JSONL file.
    pub(crate) fn objects(&self, name: &str) -> Vec<Map<String, Value>> {
        objects(&self.read(name))
    }

    /// The metrics of a run, without those that are wall-clock times.
    pub(crate) fn metrics(&self, run: &str) -> Vec<Map<String, Value>> {
        let mut metrics = self.objects(&format!("{run}/metrics.jsonl"));
        for line in &mut metrics {
            let time = line.remove("step_time").expect("every step has its time");
            assert!(time.as_f64().unwrap() > 0.0);
            line.remove("checkpoint/copy_seconds");
        }
        metrics
    }
}

/// What a command left.
#[derive(Debug)]
pub(crate) struct Done {
    words: String,
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    pub(crate) fn of(words: &str, output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self {
            words: words.to_owned(),
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// It must have succeeded.
    #[track_caller]
    pub(crate) fn well(self) -> Self {
        assert_eq!(self.code, Some(0), "ferrotune {}\n{}", self.words, self.err);
        self
    }

    /// It must have ended with this code and an error that says all of `parts`, and without a panic.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "ferrotune {}\n{}{}",
            self.words,
            self.out,
            self.err
        );
        assert!(
            self.err.contains("error: "),
            "ferrotune {}\n{}",
            self.words,
            self.err
        );
        for part in parts {
            assert!(
                self.err.contains(part),
                "ferrotune {}: no {part:?} in\n{}",
                self.words,
                self.err
            );
        }
        assert!(!self.err.contains("has a fault"), "{}", self.err);
        self
    }
}

fn lines(objects: impl Iterator<Item = Value>) -> String {
    objects.map(|it| format!("{it}\n")).collect()
}

pub(crate) fn objects(text: &str) -> Vec<Map<String, Value>> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

/// Every file below a folder, sorted, relative to it.
pub(crate) fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(at) = open.pop() {
        for entry in at.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(folder).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}
