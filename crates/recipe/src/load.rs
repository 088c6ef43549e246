//! From a file and overrides to a resolved recipe, or to everything that is wrong with them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::diagnostics::{Diagnostic, Diagnostics, Source, printable};
use crate::idle::{self, Idle};
use crate::judge::Judge;
use crate::layers::{self, Layers};
use crate::reader::Reader;
use crate::reference::tables;
use crate::resolved::{Origin, Resolved, Setting};
use crate::settings::Recipe;
use crate::spec::{Settings, Table};
use crate::{files, rules};

impl Recipe {
    /// Reads a recipe file and lays `key=value` overrides over it, the last one winning.
    ///
    /// The value of an override is TOML; where the key takes text, the quotes may be left out. Relative paths in the file
    /// start from its folder, those in overrides, and `run.dir` anywhere, from the working directory; all come out absolute.
    ///
    /// # Errors
    /// [`Diagnostics`] with every problem of the file, of the overrides and of what they point at.
    pub fn load(path: impl AsRef<Path>, overrides: &[String]) -> Result<Resolved, Diagnostics> {
        let path = path.as_ref();
        let (sources, unreadable) = layers::open(path, overrides);
        let mut problems = Vec::from_iter(unreadable);
        let tables = tables();
        let file_was_read = problems.is_empty();
        let layers = layers::collect(&sources, &tables, &mut problems);
        let (true, Some(layers)) = (file_was_read, layers) else {
            return Err(Diagnostics::new(&sources, problems));
        };
        match folders(path) {
            Ok(folders) => Loader {
                path,
                sources: &sources,
                tables: &tables,
                layers,
                folders,
            }
            .load(problems),
            Err(problem) => {
                problems.push(problem);
                Err(Diagnostics::new(&sources, problems))
            }
        }
    }
}

/// The folder of the recipe and the working directory, both absolute.
fn folders(path: &Path) -> Result<(PathBuf, PathBuf), Diagnostic> {
    let working = std::env::current_dir().map_err(|error| {
        Diagnostic::new(format!("the working directory cannot be found: {error}"))
    })?;
    let recipe = working
        .join(path)
        .parent()
        .map_or_else(|| working.clone(), Path::to_path_buf);
    Ok((recipe, working))
}

struct Loader<'s> {
    path: &'s Path,
    sources: &'s [Source],
    tables: &'s [Table],
    layers: Layers<'s>,
    folders: (PathBuf, PathBuf),
}

impl Loader<'_> {
    fn load(mut self, mut problems: Vec<Diagnostic>) -> Result<Resolved, Diagnostics> {
        let mut notes = Vec::new();
        // An override that makes settings of the file idle sends them back to their defaults, which may change what
        // else is idle; each round drops at least one setting, so this ends.
        let (recipe, failed, idle, found) = loop {
            let mut reader = Reader::new(&self.layers, &self.folders.0, &self.folders.1);
            let mut recipe = Recipe::read(&mut reader);
            let (failed, found) = (reader.failed, reader.problems);
            self.derive(&mut recipe);
            let idle: Vec<Idle> = idle::find(&recipe)
                .into_iter()
                .filter(|idle| !failed.contains(idle.switch))
                .collect();
            if !self.drop_overruled(&idle, &mut notes) {
                break (recipe, failed, idle, found);
            }
        };
        problems.extend(found);
        problems.extend(idle.iter().filter_map(|idle| self.refuse_idle(idle)));

        let values = values(&recipe);
        let idle_keys: BTreeSet<_> = idle.iter().flat_map(|idle| idle.keys).copied().collect();
        let mut judge = Judge {
            layers: &self.layers,
            failed: &failed,
            idle: &idle_keys,
            values: &values,
            problems: Vec::new(),
        };
        rules::check(&recipe, &mut judge);
        files::check(&recipe, &mut judge);
        problems.extend(judge.problems);
        if !problems.is_empty() {
            return Err(Diagnostics::new(self.sources, problems));
        }
        let entries = self.layers.entries.iter();
        let places = entries.map(|(key, entry)| (key.clone(), entry.place.clone()));
        Ok(Resolved::new(
            recipe,
            self.settings(&values, &idle),
            notes,
            self.tables,
            (self.sources, places.collect()),
        ))
    }

    /// Fills in the defaults that hang on other settings.
    fn derive(&self, recipe: &mut Recipe) {
        let silent = |key| !self.layers.entries.contains_key(key);
        if silent("run.name") {
            let stem = self
                .path
                .file_stem()
                .map(|stem| stem.to_string_lossy().into_owned());
            recipe.run.name = stem.map_or_else(|| "run".to_owned(), |stem| printable(&stem));
        }
        if silent("run.dir") {
            recipe.run.dir = self.folders.1.join("runs").join(&recipe.run.name);
        }
        if silent("packing.pad_align") {
            recipe.packing.pad_align = recipe.packing.segment_align;
        }
    }

    /// Drops settings of the file that an override has made idle. True if there were any.
    fn drop_overruled(&mut self, idle: &[Idle], notes: &mut Vec<String>) -> bool {
        let from = |layers: &Layers<'_>, key: &str| {
            layers.entries.get(key).map(|entry| entry.place.source)
        };
        let mut any = false;
        for Idle {
            switch,
            value,
            because,
            keys,
        } in idle
        {
            let Some(number @ 1..) = from(&self.layers, switch) else {
                continue;
            };
            for key in keys.iter() {
                if from(&self.layers, key) == Some(0) {
                    self.layers.entries.remove(*key);
                    any = true;
                    notes.push(format!(
                        "`{key}` of the recipe is left out: override {number} sets {switch} = {value}, and {because}"
                    ));
                }
            }
        }
        any
    }

    /// One problem for all explicit settings that one switch makes idle.
    fn refuse_idle(&self, idle: &Idle) -> Option<Diagnostic> {
        let Idle {
            switch,
            value,
            because,
            keys,
        } = idle;
        let explicit: Vec<_> = keys
            .iter()
            .filter_map(|key| Some((key, &self.layers.entries.get(*key)?.place)))
            .collect();
        let (first, _) = explicit.first()?;
        let title = match explicit.len() {
            1 => format!("`{first}` has no effect while {switch} is {value}"),
            n => format!("{n} settings have no effect while {switch} is {value}"),
        };
        let mut problem = Diagnostic::new(title);
        for (_, place) in &explicit {
            problem = problem.at((*place).clone(), "has no effect");
        }
        problem = match self.layers.entries.get(*switch) {
            Some(entry) => problem.at(entry.place.clone(), *because),
            None => problem.note(format!("`{switch}` is {value} by default: {because}")),
        };
        let it = if explicit.len() == 1 { "it" } else { "them" };
        Some(problem.help(format!("remove {it}, or change `{switch}`")))
    }

    fn settings(
        &self,
        values: &BTreeMap<&'static str, Option<String>>,
        idle: &[Idle],
    ) -> Vec<Setting> {
        let keys = self.tables.iter().flat_map(|table| &table.keys);
        keys.map(|key| Setting {
            key: key.path,
            value: values.get(key.path).cloned().flatten(),
            origin: match self.layers.entries.get(key.path) {
                None => Origin::Default,
                Some(entry) if entry.place.source == 0 => {
                    let before = &self.sources[0].text.as_bytes()[..entry.place.span.start];
                    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
                    Origin::File {
                        path: self.path.to_path_buf(),
                        line,
                    }
                }
                Some(entry) => Origin::Override(entry.place.source),
            },
            idle: idle
                .iter()
                .find(|idle| idle.keys.contains(&key.path))
                .map(|idle| format!("no effect while {} is {}", idle.switch, idle.value)),
        })
        .collect()
    }
}

/// Every key with its value as TOML.
pub(crate) fn values(recipe: &Recipe) -> BTreeMap<&'static str, Option<String>> {
    let mut values = Vec::new();
    recipe.write(&mut values);
    values.into_iter().collect()
}
