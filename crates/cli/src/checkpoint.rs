//! `ferrotune checkpoint`: what the checkpoints of a run are, whether they are sound, and their weights for others.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ferrotune_engine::checkpoint::{self, Manifest};
use ferrotune_engine::{Error, Trains};
use ferrotune_graph::HostArray;
use ferrotune_models::{ModelConfig, init_params, save_adapter, save_from};
use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::DType;
use ferrotune_recipe::{ModelInit, Recipe};
use serde_json::json;

use crate::args::{CheckpointArgs, CheckpointCommand, CheckpointExportArgs, CheckpointsArgs};
use crate::failure::{Failure, OrFail};
use crate::input_file;
use crate::model_folder;
use crate::output_file;
use crate::terminal::{bytes, counted, print, say};
use crate::train::Learns;

pub(crate) fn run(command: &CheckpointCommand) -> Result<(), Failure> {
    match command {
        CheckpointCommand::List(args) => each(args, Manifest::look, "looks whole"),
        CheckpointCommand::Verify(args) => each(args, checkpoint::verify, "sound"),
        CheckpointCommand::Show(args) => show(args),
        CheckpointCommand::Export(args) => export(args),
    }
}

/// The checkpoints that a path means, oldest first; one at least.
fn found(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable = |error| input_file::refusal(path, "the checkpoints", &error);
    let there = path.metadata().map_err(unreadable).or_refuse()?;
    if checkpoint::is_one(path) {
        return Ok(vec![path.to_owned()]);
    }
    let folders = [path.join("checkpoints"), path.to_owned()];
    for folder in folders.iter().filter(|it| it.is_dir()) {
        let found = checkpoint::list(folder).or_refuse()?;
        if !found.is_empty() {
            return Ok(found.into_iter().map(|(_, path)| path).collect());
        }
    }
    let what = if there.is_dir() {
        "holds no checkpoints"
    } else {
        "is a file"
    };
    Err(Failure::refused(anyhow!(
        "{} {what}: name a run directory, its folder `checkpoints`, or one checkpoint, a folder with a manifest.json",
        path.display()
    )))
}

fn newest(path: &Path) -> Result<PathBuf, Failure> {
    let mut found = found(path)?;
    found
        .pop()
        .ok_or_else(|| Failure::refused(anyhow!("there is no checkpoint at {}", path.display())))
}

/// A line for each; those that are damaged make the command fail after the last line.
fn each(
    args: &CheckpointsArgs,
    look: fn(&Path) -> Result<Manifest, Error>,
    good: &str,
) -> Result<(), Failure> {
    let mut bad = 0;
    let found = found(&args.path)?;
    for path in &found {
        let outcome = look(path);
        bad += usize::from(outcome.is_err());
        let size = |it: &Manifest| it.files.iter().map(|file| file.bytes).sum::<u64>();
        let line = match (&outcome, args.json) {
            (Ok(it), true) => {
                let updates = it.step;
                json!({ "path": path, "updates": updates, "bytes": size(it), "error": null })
                    .to_string()
            }
            (Err(e), true) => json!({ "path": path, "error": e.to_string() }).to_string(),
            (Ok(it), false) => format!(
                "{}  {}  {}  {good}",
                path.display(),
                counted(it.step as usize, "update"),
                bytes(size(it))
            ),
            (Err(error), false) => format!("{}  {error}", path.display()),
        };
        print(line)?;
    }
    match bad {
        0 => Ok(()),
        _ => Err(Failure::failed(anyhow!(
            "{bad} of {} cannot be used",
            counted(found.len(), "checkpoint")
        ))),
    }
}

fn show(args: &CheckpointArgs) -> Result<(), Failure> {
    let path = newest(&args.path)?;
    let manifest = Manifest::look(&path).map_err(unusable)?;
    if args.json {
        return print(serde_json::to_string_pretty(&manifest).expect("a manifest is plain data"));
    }
    print(format_args!("{}", path.display()))?;
    print(format_args!("updates  {}", manifest.step))?;
    if let Some(frozen) = &manifest.frozen {
        print(format_args!("frozen   {frozen}"))?;
    }
    if let Some(loss) = &manifest.accumulating {
        print(format_args!("gathers  gradients of {loss}"))?;
    }
    print(format_args!("state    {}", manifest.extra))?;
    for file in &manifest.files {
        let (name, size) = (&file.name, bytes(file.bytes));
        print(format_args!("{name}  {size}  {}", file.sha256))?;
        for array in &file.arrays {
            let (name, dtype, dims) = (&array.name, &array.dtype, &array.dims);
            print(format_args!(
                "  {name}  {dtype} {dims:?}  {}",
                &array.sha256[..16]
            ))?;
        }
    }
    Ok(())
}

/// One that does not fit what was asked is the user's matter, one that is damaged is not.
fn unusable(error: Error) -> Failure {
    match error {
        Error::Incompatible { .. } => Failure::refused(error),
        other => Failure::failed(other),
    }
}

/// Refuses a folder that holds something, or that could not be made once the work is done.
fn check_out(out: &Path) -> Result<(), Failure> {
    let mut entries = out.read_dir().into_iter().flatten();
    if entries.next().is_some() {
        return Err(Failure::refused(anyhow!(
            "{} is not empty: name a new folder, or remove what is in it",
            out.display()
        )));
    }
    let there = out.ancestors().find(|it| it.exists());
    let folder = there.unwrap_or(Path::new("."));
    output_file::check_folder(folder)
        .with_context(|| format!("cannot write {}: name another folder", out.display()))
        .or_refuse()
}

fn export(args: &CheckpointExportArgs) -> Result<(), Failure> {
    check_out(&args.out)?;
    let path = newest(&args.path)?;
    let run = match &args.run {
        Some(run) => run.clone(),
        None => path.join("../.."),
    };
    let config = run.join("config.resolved.toml");
    if !config.is_file() {
        return Err(Failure::refused(anyhow!(
            "{} is not there, which says of what model the weights are: name the run directory with --run",
            config.display()
        )));
    }
    let resolved = Recipe::load(&config, &[]).map_err(Failure::Recipe)?;
    let recipe = resolved.recipe();
    let model = ModelConfig::load(&recipe.model.path).or_refuse()?;
    let learns = Learns::read(recipe, &model).or_refuse()?;
    let stored = checkpoint::open(&path).map_err(unusable)?;
    let learned = |spec: &ParamSpec| stored.param(&path, spec);
    if let Trains::Adapters(lora) = &learns.trains {
        let names = learns.adapters.iter().map(|(spec, _)| spec.path.as_str());
        stored.check_params(&path, &names.collect()).or_refuse()?;
        let filled = |(spec, first)| {
            let array = learned(&spec)?.unwrap_or(first);
            Ok((spec, array))
        };
        let adapters: Result<Vec<_>, Error> = learns.adapters.into_iter().map(filled).collect();
        let adapters = adapters.or_refuse()?;
        let base = recipe.model.path.display().to_string();
        save_adapter(&args.out, &model, lora, &adapters, &base).or_fail()?;
    } else {
        let (first, dtype) = match recipe.model.init {
            ModelInit::Random => (init_params(&model, recipe.seed).or_fail()?, None),
            ModelInit::Pretrained => model_folder::weights(&recipe.model.path, &model)?,
        };
        let first: HashMap<String, HostArray> = first
            .into_iter()
            .map(|(spec, array)| (spec.path, array))
            .collect();
        let names = first.keys().map(String::as_str).collect();
        stored.check_params(&path, &names).or_refuse()?;
        let mut fetch = |spec: &ParamSpec| {
            let frozen = || Cow::Borrowed(&first[&spec.path]);
            Ok::<_, Error>(learned(spec)?.map_or_else(frozen, Cow::Owned))
        };
        let dtype = dtype.unwrap_or(DType::F32);
        let source = Some(recipe.model.path.as_path());
        save_from(&args.out, &model, dtype, source, &mut fetch).map_err(unusable)?;
    }
    let updates = counted(stored.manifest.step as usize, "update");
    say(format_args!(
        "wrote {} with the weights after {updates}",
        args.out.display()
    ));
    Ok(())
}
