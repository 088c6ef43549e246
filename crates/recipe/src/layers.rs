//! The texts that settings come from, laid over each other: the recipe file, then the overrides in their order.
//!
//! Gives each known key its winning value and that value's place. Types are checked later, by the reader.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::diagnostics::{Diagnostic, Place, Source};
use crate::setting::quote;
use crate::spec::{Key, Table};
use crate::suggest;

/// A recipe is written by hand; what is larger is another file.
const LARGEST_FILE: u64 = 1 << 20;

/// The value that a key ends up with.
#[derive(Debug, Clone)]
pub(crate) struct Entry<'s> {
    pub(crate) value: DeValue<'s>,
    pub(crate) place: Place,
}

/// All explicit settings.
#[derive(Debug, Default)]
pub(crate) struct Layers<'s> {
    pub(crate) entries: BTreeMap<String, Entry<'s>>,
    /// Where each table is first opened, to point at when a key in it is missing.
    pub(crate) headers: BTreeMap<String, Place>,
}

/// Reads the file and names the overrides. The first source is always the file, even when it cannot be read.
pub(crate) fn open(path: &Path, overrides: &[String]) -> (Vec<Source>, Option<Diagnostic>) {
    let name = path.display().to_string();
    let (text, problem) = match read_text(path) {
        Ok(text) => (text, None),
        Err(why) => {
            let near = crate::files::neighbour(path)
                .map(|near| format!("did you mean {}?", near.display()));
            (
                String::new(),
                Some(
                    Diagnostic::new(format!("cannot read the recipe {name}: {why}"))
                        .help_if_any(near),
                ),
            )
        }
    };
    let mut sources = vec![Source {
        name: crate::diagnostics::printable(&name),
        text,
    }];
    for (i, text) in overrides.iter().enumerate() {
        sources.push(Source {
            name: format!("override {}", i + 1),
            text: text.clone(),
        });
    }
    (sources, problem)
}

fn read_text(path: &Path) -> Result<String, String> {
    let why = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => "it does not exist".to_owned(),
        ErrorKind::IsADirectory => "it is a folder; name the TOML file in it".to_owned(),
        ErrorKind::PermissionDenied => "you may not read it; change its permissions".to_owned(),
        _ => error.to_string(),
    };
    let file = std::fs::File::open(path).map_err(why)?;
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(why)?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err("it is larger than 1 MiB, so it is no recipe".to_owned());
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..good]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count()
            + 1;
        format!("line {line} is not UTF-8 text")
    })
}

/// Lays the sources over each other. What no key can take is added to `problems`; `None` if the file is not TOML at all.
pub(crate) fn collect<'s>(
    sources: &'s [Source],
    tables: &[Table],
    problems: &mut Vec<Diagnostic>,
) -> Option<Layers<'s>> {
    let mut collector = Collector {
        tables,
        problems,
        layers: Layers::default(),
    };
    let mut file_is_toml = true;
    for (index, source) in sources.iter().enumerate() {
        if index == 0 {
            file_is_toml = collector.document(index, &source.text);
        } else {
            collector.one_override(index, &source.text);
        }
    }
    file_is_toml.then_some(collector.layers)
}

struct Collector<'c, 's> {
    tables: &'c [Table],
    problems: &'c mut Vec<Diagnostic>,
    layers: Layers<'s>,
}

impl<'s> Collector<'_, 's> {
    /// False if the text is not TOML.
    fn document(&mut self, source: usize, text: &'s str) -> bool {
        let (table, errors) = DeTable::parse_recoverable(text);
        if errors.is_empty() {
            self.walk(source, "", table.get_ref());
            return true;
        }
        for error in &errors {
            let span = error.span().unwrap_or(0..0);
            let place = Place {
                source,
                span: visible(text, span),
            };
            self.problems
                .push(Diagnostic::new("this is not TOML").at(place, error.message()));
        }
        false
    }

    /// `key=value`, where the value is TOML, or bare text if that is what the key takes.
    fn one_override(&mut self, source: usize, text: &'s str) {
        let Some((key, value)) = text.split_once('=') else {
            let place = Place {
                source,
                span: 0..text.len(),
            };
            let help = format!("write {}=VALUE", text.trim());
            self.problems.push(
                Diagnostic::new("an override must be key=value")
                    .at(place, "no `=` here")
                    .help(help),
            );
            return;
        };
        let textual = self
            .key(key.trim())
            .is_some_and(|key| key.kind.is_textual());
        if textual && !value.trim_start().starts_with(['"', '\'']) {
            let span = key.len() + 1..text.len();
            let value = DeValue::String(value.trim().into());
            self.layers.entries.insert(
                key.trim().to_owned(),
                Entry {
                    value,
                    place: Place { source, span },
                },
            );
        } else {
            let before = self.problems.len();
            if self.document(source, text) {
                return;
            }
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            if self.key(key.trim()).is_none() && key.trim().chars().all(plain) {
                // Words that no key takes: how to quote them would be the next mistake.
                self.problems.truncate(before);
                let span = visible(text, 0..key.len());
                self.unknown("key", key.trim(), Place { source, span });
            } else if let Some(kind) = self.key(key.trim()).map(|key| key.kind) {
                let span = visible(text, key.len() + 1..text.len());
                let problem = Diagnostic::new(format!("`{}` must be {kind}", key.trim()));
                self.problems.truncate(before);
                self.problems
                    .push(problem.at(Place { source, span }, format!("this is not {kind}")));
            }
        }
    }

    fn key(&self, path: &str) -> Option<&Key> {
        self.tables
            .iter()
            .flat_map(|table| &table.keys)
            .find(|key| key.path == path)
    }

    fn unknown(&mut self, what: &str, path: &str, place: Place) {
        self.problems.push(
            Diagnostic::new(format!("unknown {what} `{path}`"))
                .at(place, format!("no such {what}"))
                .help(suggest::for_key(path, self.tables)),
        );
    }

    fn walk(&mut self, source: usize, prefix: &str, table: &DeTable<'s>) {
        for (name, value) in table {
            let name_text = match name.get_ref() {
                // A quoted name may hold dots; it must not pass for a path of several.
                odd if !odd
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')) =>
                {
                    quote(odd)
                }
                plain => plain.to_string(),
            };
            let path = if prefix.is_empty() {
                name_text
            } else {
                format!("{prefix}.{name_text}")
            };
            let place = Place {
                source,
                span: value.span(),
            };
            if self.key(&path).is_some() {
                self.layers.entries.insert(
                    path,
                    Entry {
                        value: value.get_ref().clone(),
                        place,
                    },
                );
            } else if self.tables.iter().any(|table| table.name == path) {
                match value.get_ref() {
                    DeValue::Table(inner) => {
                        self.layers.headers.entry(path.clone()).or_insert(place);
                        self.walk(source, &path, inner);
                    }
                    other => {
                        let help = match source {
                            0 => format!("write [{path}] on a line of its own and its keys below"),
                            _ => format!("write {path}.KEY=VALUE"),
                        };
                        let label = format!("this is of type {}", other.type_str());
                        let problem = Diagnostic::new(format!("`{path}` must be a table"));
                        self.problems.push(problem.at(place, label).help(help));
                    }
                }
            } else {
                let what = if value.get_ref().is_table() {
                    "table"
                } else {
                    "key"
                };
                let place = Place {
                    source,
                    span: name.span(),
                };
                self.unknown(what, &path, place);
            }
        }
    }
}

/// A parser's span may be empty or lie beyond the end; a caret needs a character to stand under.
fn visible(text: &str, span: Range<usize>) -> Range<usize> {
    let start = span.start.min(text.len());
    start..span.end.clamp(start, text.len())
}
