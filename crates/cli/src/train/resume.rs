//! Going on with a run: its recipe must be the one that it began with, and its newest checkpoint must be sound.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use ferrotune_engine::{Error as EngineError, checkpoint};
use ferrotune_recipe::{Recipe, Resolved};
use ferrotune_rl::Error as RlError;

use crate::args::TrainArgs;
use crate::failure::{Failure, OrFail};
use crate::run_dir::RunDir;
use crate::terminal::say;

/// Compares the recipe with the one that the run began with, and finds its newest checkpoint.
///
/// A number format that the run chose for itself stays, even on another machine.
pub(crate) fn reconcile(
    resolved: &mut Resolved,
    run_dir: &RunDir,
) -> Result<Option<PathBuf>, Failure> {
    let latest = checkpoint::latest(&run_dir.checkpoints()).or_fail()?;
    if !run_dir.config().exists() {
        return match latest {
            // Stopped before its first step, so there is nothing to be true to.
            None => Ok(None),
            Some(path) => Err(Failure::refused(anyhow!(
                "{} is missing, which says with what recipe the run of {} began: restore that file, or start a new run with \
                 another run.dir",
                run_dir.config().display(),
                path.display()
            ))),
        };
    }
    let earlier = load_earlier(resolved.recipe(), run_dir)?;
    let dtype = earlier.recipe().compute_dtype;
    resolved.settle_compute_dtype(dtype, "as the run began");
    let mut differences = resolved.differences(&earlier);
    let free = Recipe::may_change();
    differences.retain(|(key, ..)| !free.contains(key));
    refuse_cut(&differences, run_dir)?;
    let changed: Vec<String> = differences
        .into_iter()
        .map(|(key, here, there)| format!("{key} is {here}, the run has {there}"))
        .collect();
    if !changed.is_empty() {
        return Err(Failure::refused(anyhow!(
            "this is not the recipe that the run in {} began with:\n  {}\n\
             put these back to go on with it, or start a new run with another run.dir",
            run_dir.path().display(),
            changed.join("\n  ")
        )));
    }
    if latest.is_none() {
        if run_dir.path().join("model").exists() {
            return Err(Failure::refused(anyhow!(
                "the run in {} is finished, and none of its checkpoints is left to go on from: start a new run with another \
                 run.dir, or remove this folder",
                run_dir.path().display()
            )));
        }
        say("note: the run has no checkpoint, so it starts again from its first step");
    }
    Ok(latest)
}

/// The recipe that the run began with. Its files may have moved, so they are looked for where the present recipe says.
fn load_earlier(recipe: &Recipe, run_dir: &RunDir) -> Result<Resolved, Failure> {
    let mut places = vec![
        format!("model.path={}", recipe.model.path.display()),
        format!("data.train={}", recipe.data.train.display()),
        format!("data.heldout={}", recipe.data.heldout.display()),
    ];
    if let Some(path) = recipe
        .data
        .demonstrations
        .as_ref()
        .filter(|_| recipe.warmup.steps > 0)
    {
        places.push(format!("data.demonstrations={}", path.display()));
    }
    Recipe::load(run_dir.config(), &places).map_err(|problems| {
        Failure::Refused(vec![
            problems.into(),
            anyhow!(
                "the recipe that the run began with, {}, cannot be used any more: put back what it lacks, or start a new run with \
                 another run.dir",
                run_dir.config().display()
            ),
        ])
    })
}

/// Refuses a recipe of the run without the settings in which it seems to differ: these are then not what the run had.
fn refuse_cut(
    differences: &[(&'static str, String, String)],
    run_dir: &RunDir,
) -> Result<(), Failure> {
    let text = std::fs::read_to_string(run_dir.config()).unwrap_or_default();
    let keys = differences.iter().map(|(key, ..)| *key);
    let lacking: Vec<&str> = keys.filter(|key| !has_row(&text, key)).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    Err(Failure::refused(anyhow!(
        "{} lacks {}: it was cut short, or written by another version; restore that file, or start a new run with another run.dir",
        run_dir.config().display(),
        lacking.join(", ")
    )))
}

/// Whether a resolved recipe says anything of a key, be it that it is unset or has no effect.
fn has_row(text: &str, key: &str) -> bool {
    let (wanted, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mut table = "";
    text.lines().any(|line| {
        if let Some(header) = line.strip_prefix('[') {
            table = header.split(']').next().unwrap_or_default();
        }
        let row = line.strip_prefix("# ").unwrap_or(line);
        table == wanted && row.split(' ').next() == Some(name)
    })
}

/// What to say of a checkpoint that cannot be used: damaged, or of another run.
pub(crate) fn failed_restore(error: RlError, path: &Path) -> Failure {
    match error {
        RlError::Engine(EngineError::Corrupt { file, reason }) => {
            let way_out = match older(path) {
                Some(older) => format!(
                    "remove the folder {} to go on from {}",
                    path.display(),
                    older.display()
                ),
                None => "there is no older one, so start a new run".to_owned(),
            };
            Failure::failed(anyhow!(
                "the newest checkpoint is damaged: {}: {reason}; {way_out}",
                file.display()
            ))
        }
        RlError::Engine(EngineError::Incompatible { .. })
        | RlError::OtherData { .. }
        | RlError::Progress { .. }
        | RlError::OrderMismatch { .. } => Failure::refused(error),
        other => Failure::failed(other),
    }
}

/// The newest complete checkpoint before this one.
fn older(path: &Path) -> Option<PathBuf> {
    let step = |path: &Path| {
        path.file_name()?
            .to_str()?
            .strip_prefix("step-")?
            .parse::<u64>()
            .ok()
    };
    let this = step(path)?;
    let entries = path.parent()?.read_dir().ok()?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|it| step(it).is_some_and(|n| n < this) && it.join("manifest.json").exists())
        .max_by_key(|it| step(it))
}

/// The command that goes on with this run, as a shell takes it.
pub(super) fn command(args: &TrainArgs) -> String {
    let quote = |word: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=,:+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.to_owned()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    let recipe = args.recipe.display().to_string();
    let words = std::iter::once(&recipe).chain(&args.overrides);
    let words: Vec<String> = words.map(|word| quote(word)).collect();
    format!("ferrotune train {} --resume", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_to_go_on_survives_a_shell() {
        let args = TrainArgs {
            recipe: "my recipe.toml".into(),
            overrides: vec!["seed=7".to_owned(), "run.name=it's".to_owned()],
            resume: false,
        };
        assert_eq!(
            command(&args),
            r"ferrotune train 'my recipe.toml' seed=7 'run.name=it'\''s' --resume"
        );
    }
}
