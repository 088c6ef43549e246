//! A recipe in which every value remembers where it came from, and its form as a file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::choice::ComputeDtype;
use crate::diagnostics::{Diagnostic, Diagnostics, Place, Source, printable};
use crate::settings::Recipe;
use crate::spec::Table;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The recipe file.
    File {
        /// As it was given.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// The override of this number, counted from 1.
    Override(usize),
    /// Nobody set it.
    Default,
    /// The program chose, where the recipe left it the choice; the text says why.
    Chosen(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line } => {
                write!(f, "{}:{line}", printable(&path.display().to_string()))
            }
            Origin::Override(number) => write!(f, "override {number}"),
            Origin::Default => f.write_str("default"),
            Origin::Chosen(why) => f.write_str(&printable(why).replace('\n', " ")),
        }
    }
}

/// One value of a resolved recipe.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) key: &'static str,
    /// As TOML; `None` if unset.
    pub(crate) value: Option<String>,
    pub(crate) origin: Origin,
    /// Why it has no effect, if so.
    pub(crate) idle: Option<String>,
}

/// What is wrong with settings beside what they point at, such as a layer that the model does not have: found by those who read
/// these files, after the recipe itself was found sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Dotted keys of the settings that take part, the one to blame first.
    pub keys: Vec<&'static str>,
    /// What is wrong, in one line.
    pub title: String,
    /// How to mend it, where the title does not say.
    pub help: Option<String>,
}

/// A complete recipe without faults, and the history of its values.
#[derive(Debug, Clone)]
pub struct Resolved {
    recipe: Recipe,
    settings: Vec<Setting>,
    notes: Vec<String>,
    /// The tables in the order of the reference.
    tables: Vec<&'static str>,
    sources: Vec<Source>,
    /// Where each explicit setting stands.
    places: BTreeMap<String, Place>,
}

impl Resolved {
    pub(crate) fn new(
        recipe: Recipe,
        settings: Vec<Setting>,
        notes: Vec<String>,
        tables: &[Table],
        (sources, places): (&[Source], BTreeMap<String, Place>),
    ) -> Self {
        Self {
            sources: sources.to_vec(),
            places,
            recipe,
            settings,
            notes,
            tables: tables.iter().map(|table| table.name).collect(),
        }
    }

    /// The values.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Where the value of a dotted key came from; `None` if there is no such key.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.settings
            .iter()
            .find(|setting| setting.key == key)
            .map(|setting| &setting.origin)
    }

    /// The refusal of settings, each shown where it stands, or as a default.
    pub fn refuse(&self, faults: &[Fault]) -> Diagnostics {
        let problems = faults.iter().map(|fault| {
            let mut problem = Diagnostic::new(&fault.title);
            for key in &fault.keys {
                problem = match self.places.get(*key) {
                    Some(place) => problem.at(place.clone(), ""),
                    None => problem.note(format!("`{key}` is {}", self.default_of(key))),
                };
            }
            problem.help_if_any(fault.help.clone())
        });
        Diagnostics::new(&self.sources, problems.collect())
    }

    fn default_of(&self, key: &str) -> String {
        let setting = self.settings.iter().find(|setting| setting.key == key);
        let value = setting.and_then(|setting| setting.value.as_ref());
        value.map_or("unset".to_owned(), |value| format!("{value} by default"))
    }

    /// What the user should hear before the run: settings of the file that an override has switched off.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Puts the number format that the program chose in the place of `auto`, so that the file says what really ran.
    ///
    /// Does nothing unless the recipe says `auto`.
    pub fn settle_compute_dtype(&mut self, dtype: ComputeDtype, why: &str) {
        if self.recipe.compute_dtype != ComputeDtype::Auto {
            return;
        }
        self.recipe.compute_dtype = dtype;
        for setting in self
            .settings
            .iter_mut()
            .filter(|setting| setting.key == "compute_dtype")
        {
            setting.value = Some(format!("\"{dtype}\""));
            setting.origin = Origin::Chosen(format!("auto: {why}"));
        }
    }

    /// The text of `config.resolved.toml`: every value and where it came from.
    ///
    /// It is a recipe itself and loads to the same values. What is unset or has no effect is there as a comment.
    pub fn to_toml(&self) -> String {
        let mut out = String::from(
            "# Every setting of the run and where it came from. This file is a recipe itself.\n",
        );
        for table in &self.tables {
            out.push('\n');
            if !table.is_empty() {
                out.push_str(&format!("[{table}]\n"));
            }
            let rows: Vec<_> = self
                .settings
                .iter()
                .filter(|it| table_of(it.key) == *table)
                .map(row)
                .collect();
            let width = rows
                .iter()
                .map(|(left, _)| left.chars().count())
                .filter(|&width| width <= 48)
                .max()
                .unwrap_or(0);
            for (left, right) in rows {
                out.push_str(&format!("{left:width$}  # {right}\n"));
            }
        }
        out
    }

    /// The settings in which two runs differ: key, value here, value there, as TOML (or `unset`).
    ///
    /// Where a run may go on although a setting has changed is for the caller to say.
    pub fn differences(&self, other: &Resolved) -> Vec<(&'static str, String, String)> {
        let value = |setting: &Setting| setting.value.clone().unwrap_or_else(|| "unset".to_owned());
        let pairs = self.settings.iter().zip(&other.settings);
        pairs
            .filter(|(a, b)| a.value != b.value)
            .map(|(a, b)| (a.key, value(a), value(b)))
            .collect()
    }
}

fn table_of(key: &str) -> &str {
    key.rsplit_once('.').map_or("", |(table, _)| table)
}

/// A line of the file, without and after the comment sign.
fn row(setting: &Setting) -> (String, String) {
    let name = setting.key.rsplit('.').next().unwrap_or(setting.key);
    match (&setting.value, &setting.idle) {
        (None, _) => (format!("# {name} is unset"), setting.origin.to_string()),
        (Some(value), Some(why)) => (
            format!("# {name} = {value}"),
            format!("{}; {why}", setting.origin),
        ),
        (Some(value), None) => (format!("{name} = {value}"), setting.origin.to_string()),
    }
}
