//! Who finds a recipe wrong, and says where.

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnostics::{Diagnostic, Place};
use crate::layers::Layers;

/// Judges one recipe. Rules that touch a key that could not be read, or that is idle, keep silent.
#[derive(Debug)]
pub(crate) struct Judge<'a> {
    pub(crate) layers: &'a Layers<'a>,
    pub(crate) failed: &'a BTreeSet<&'static str>,
    pub(crate) idle: &'a BTreeSet<&'static str>,
    /// Every value as TOML, to quote defaults.
    pub(crate) values: &'a BTreeMap<&'static str, Option<String>>,
    pub(crate) problems: Vec<Diagnostic>,
}

impl Judge<'_> {
    /// Adds a problem if `wrong`. `about` lists the settings that take part, the one to blame first.
    pub(crate) fn refuse_if(
        &mut self,
        wrong: bool,
        title: &str,
        about: &[(&'static str, &str)],
        help: &str,
    ) {
        let silent = about
            .iter()
            .any(|(key, _)| self.failed.contains(key) || self.idle.contains(key));
        if !wrong || silent {
            return;
        }
        let mut problem = Diagnostic::new(title);
        for (key, label) in about {
            match self.place(key) {
                Some(place) => problem = problem.at(place.clone(), *label),
                None => {
                    let value = self.values.get(key).cloned().flatten();
                    let value =
                        value.map_or("unset".to_owned(), |value| format!("{value} by default"));
                    let label = if label.is_empty() {
                        String::new()
                    } else {
                        format!("; {label}")
                    };
                    problem = problem.note(format!("`{key}` is {value}{label}"));
                }
            }
        }
        self.problems.push(problem.help(help));
    }

    pub(crate) fn place(&self, key: &str) -> Option<&Place> {
        self.layers.entries.get(key).map(|entry| &entry.place)
    }
}
