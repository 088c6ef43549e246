//! Files that a recipe points at: are they there. What is in them is for their readers to judge.

use std::path::{Path, PathBuf};

use crate::choice::ModelInit;
use crate::diagnostics::Diagnostic;
use crate::judge::Judge;
use crate::settings::Recipe;

/// Refuses paths that lead nowhere.
pub(crate) fn check(recipe: &Recipe, judge: &mut Judge<'_>) {
    let data = &recipe.data;
    let demonstrations = data.demonstrations.as_deref();
    for (key, path) in [
        ("data.train", Some(data.train.as_path())),
        ("data.heldout", Some(data.heldout.as_path())),
        ("data.demonstrations", demonstrations),
    ] {
        if let Some(path) = path {
            refuse(judge, key, data_file(path));
        }
    }
    let folder = model_folder(&recipe.model.path, recipe.model.init);
    let folder = folder.map_err(|(what, cure)| match &recipe.model.made_by {
        Some(command) => (what, Some(format!("run `{command}` first"))),
        None => (what, cure),
    });
    refuse(judge, "model.path", folder);
    if let Some(path) = &recipe.model.adapter {
        refuse(judge, "model.adapter", adapter_folder(path));
    }
    let same = matches!((data.train.canonicalize(), data.heldout.canonicalize()), (Ok(a), Ok(b)) if a == b);
    judge.refuse_if(
        same,
        "the held-out problems are the training problems",
        &[
            ("data.heldout", "the same file"),
            ("data.train", "trained on"),
        ],
        "a result on problems that were trained on says nothing: point `data.heldout` at others",
    );
}

fn refuse(judge: &mut Judge<'_>, key: &'static str, verdict: Verdict) {
    if judge.failed.contains(key) || judge.idle.contains(key) {
        return;
    }
    if let (Err((what, help)), Some(place)) = (verdict, judge.place(key)) {
        let problem = Diagnostic::new(format!("`{key}`: {what}"))
            .at(place.clone(), "here")
            .help_if_any(help);
        judge.problems.push(problem);
    }
}

/// A refusal and, if there is one, its cure.
type Verdict = Result<(), (String, Option<String>)>;

fn data_file(path: &Path) -> Verdict {
    match path.metadata() {
        Ok(is) if is.is_dir() => Err((format!("{} is a folder, not a file", path.display()), None)),
        Ok(_) => Ok(()),
        Err(error) => Err(unreachable_path(path, &error)),
    }
}

fn model_folder(path: &Path, init: ModelInit) -> Verdict {
    match path.metadata() {
        Ok(is) if !is.is_dir() => {
            return Err((
                format!("{} is not a folder", path.display()),
                Some("name the folder, not a file in it".into()),
            ));
        }
        Ok(_) => {}
        Err(error) => return Err(unreachable_path(path, &error)),
    }
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    let mut lacking: Vec<_> = ["config.json", "tokenizer.json"]
        .into_iter()
        .filter(|name| !path.join(name).exists())
        .collect();
    let unweighted =
        init == ModelInit::Pretrained && !weights.iter().any(|name| path.join(name).exists());
    if unweighted {
        lacking.push(weights[0]);
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let cure = match lacking[..] {
        ["model.safetensors"] => "to start from random weights, set `model.init = \"random\"`",
        ["tokenizer.json"] => {
            "copy it there from the model's Hugging Face folder; save a slow tokenizer as a fast one first"
        }
        _ => "this must be a model folder as Hugging Face writes it",
    };
    Err((
        format!("{} has no {}", path.display(), lacking.join(", no ")),
        Some(cure.to_owned()),
    ))
}

fn adapter_folder(path: &Path) -> Verdict {
    path.metadata().map_err(|e| unreachable_path(path, &e))?;
    let needed = ["adapter_config.json", "adapter_model.safetensors"];
    let lacking: Vec<_> = needed
        .into_iter()
        .filter(|name| !path.join(name).is_file())
        .collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let cure = "this must be a folder of adapters as PEFT writes it";
    Err((
        format!("{} has no {}", path.display(), lacking.join(", no ")),
        Some(cure.to_owned()),
    ))
}

fn unreachable_path(path: &Path, error: &std::io::Error) -> (String, Option<String>) {
    let near = neighbour(path).map(|near| format!("did you mean {}?", near.display()));
    match error.kind() {
        std::io::ErrorKind::NotFound => (format!("{} does not exist", path.display()), near),
        _ => (format!("cannot look at {}: {error}", path.display()), None),
    }
}

/// A file beside `path` whose name differs by a slip or two.
pub(crate) fn neighbour(path: &Path) -> Option<PathBuf> {
    // A folder may be large or slow; a suggestion is not worth reading all of it.
    const MOST: usize = 10_000;
    let name = path.file_name()?.to_str()?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let entries = folder.unwrap_or(Path::new(".")).read_dir().ok()?;
    let names: Vec<String> = entries
        .take(MOST)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|it| it != name)
        .collect();
    let near = crate::suggest::nearest(name, names.iter().map(String::as_str))?;
    Some(path.with_file_name(near))
}
