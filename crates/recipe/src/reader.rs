//! Takes typed values out of the layers, and notes what cannot be taken without stopping.

use std::collections::BTreeSet;
use std::path::Path;

use crate::diagnostics::{Diagnostic, Place};
use crate::layers::Layers;
use crate::setting::{Mismatch, Setting};
use crate::spec::{Base, Key, Preset, Spec};

/// Reads one recipe.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    layers: &'a Layers<'a>,
    /// The folder of the recipe, absolute.
    recipe_folder: &'a Path,
    working_directory: &'a Path,
    /// Keys whose value is not to be trusted.
    pub(crate) failed: BTreeSet<&'static str>,
    pub(crate) problems: Vec<Diagnostic>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(
        layers: &'a Layers<'a>,
        recipe_folder: &'a Path,
        working_directory: &'a Path,
    ) -> Self {
        Self {
            layers,
            recipe_folder,
            working_directory,
            failed: BTreeSet::new(),
            problems: Vec::new(),
        }
    }

    pub(crate) fn take<T: Setting>(&mut self, path: &'static str, spec: Spec<T>) -> T {
        let Some(entry) = self.layers.entries.get(path) else {
            return match spec.preset {
                Preset::Value(value) => value,
                Preset::Derived(_) => T::blank(),
                Preset::Required => {
                    self.missing::<T>(path);
                    T::blank()
                }
            };
        };
        let from_file = entry.place.source == 0;
        let base = match spec.base {
            Base::Recipe if from_file => self.recipe_folder,
            _ => self.working_directory,
        };
        let value = match T::read(&entry.value, base) {
            Ok(value) => value,
            Err(mut mismatch) => {
                if let Some(number) = mismatch.number {
                    if let Some(range) = spec.range.filter(|it| !it.contains(number)) {
                        mismatch.must_be = range.broken_by(number);
                    }
                    mismatch.cure = meaning(path);
                }
                self.mismatch(path, &entry.place, mismatch);
                return T::blank();
            }
        };
        if let (Some(range), Some(number)) = (&spec.range, value.number())
            && !range.contains(number)
        {
            self.failed.insert(path);
            let limit = range.broken_by(number);
            self.problems.push(
                Diagnostic::new(format!("`{path}` must be {limit}"))
                    .at(entry.place.clone(), format!("must be {limit}"))
                    .help_if_any(range.because.map(str::to_owned)),
            );
            // Rules go on with a harmless value: the real one might overflow their arithmetic.
            return T::blank();
        }
        value
    }

    fn mismatch(&mut self, path: &'static str, place: &Place, mismatch: Mismatch) {
        self.failed.insert(path);
        self.problems.push(
            Diagnostic::new(format!("`{path}` must be {}", mismatch.must_be))
                .at(place.clone(), mismatch.found)
                .help_if_any(mismatch.cure),
        );
    }

    fn missing<T: Setting>(&mut self, path: &'static str) {
        self.failed.insert(path);
        let (table, name) = path.rsplit_once('.').unwrap_or(("", path));
        let mut problem = Diagnostic::new(format!("`{path}` is missing"));
        if let Some(header) = self.layers.headers.get(table) {
            problem = problem.at(header.clone(), format!("has no `{name}`"));
        }
        let place = if table.is_empty() {
            String::new()
        } else {
            format!(" under [{table}]")
        };
        self.problems
            .push(problem.help(format!("add `{name} = ...`{place}: {}", T::kind())));
    }
}

/// What a setting means, in one line.
fn meaning(path: &str) -> Option<String> {
    let tables = crate::reference::tables();
    let mut keys = tables.iter().flat_map(|table| &table.keys);
    let key = keys.find(|key| key.path == path)?;
    Some(crate::reference::sentence(key.meaning))
}

/// The row of the reference for one key.
pub(crate) fn key<T: Setting>(path: &'static str, spec: Spec<T>, meaning: &'static str) -> Key {
    let preset = match spec.preset {
        Preset::Required => Preset::Required,
        Preset::Value(value) => Preset::Value(value.write()),
        Preset::Derived(from) => Preset::Derived(from),
    };
    Key {
        path,
        kind: T::kind(),
        base: spec.base,
        range: spec.range,
        preset,
        may_change: spec.may_change,
        meaning,
    }
}
