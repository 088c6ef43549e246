//! A folder with all that a recipe may point at, and the recipes that are tried in it.

mod mesh;
mod overrides;
mod quickstart;
mod refusals;
mod resolved;
mod robustness;
mod rules;

use std::path::{Path, PathBuf};

use crate::{Recipe, Resolved};

/// The least that a recipe must say.
const LEAST: &str = "\
[model]
path = \"model\"
init = \"random\"

[data]
train = \"train.jsonl\"
heldout = \"heldout.jsonl\"
";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(folder.path("model")).unwrap();
        for file in [
            "model/config.json",
            "model/tokenizer.json",
            "train.jsonl",
            "heldout.jsonl",
            "demos.jsonl",
        ] {
            std::fs::write(folder.path(file), "").unwrap();
        }
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `r.toml` of this text, with these overrides: the recipe, or the error text with the folder's name taken out.
    fn load(&self, text: &str, overrides: &[&str]) -> Result<Resolved, String> {
        std::fs::write(self.path("r.toml"), text).unwrap();
        self.load_file(&self.path("r.toml"), overrides)
    }

    fn load_file(&self, path: &Path, overrides: &[&str]) -> Result<Resolved, String> {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        Recipe::load(path, &overrides).map_err(|refused| {
            // One file name must stay recognisable in messages; the folder differs from run to run.
            refused
                .to_string()
                .replace(&format!("{}/", self.0.path().display()), "")
        })
    }
}

/// [`LEAST`] and more.
fn with(more: &str) -> String {
    format!("{LEAST}{more}")
}

fn load(text: &str, overrides: &[&str]) -> Result<Resolved, String> {
    Folder::new().load(text, overrides)
}

fn refusal(text: &str, overrides: &[&str]) -> String {
    load(text, overrides).expect_err("this recipe should be refused")
}
