//! The reference: every key with type, range, default and meaning, as text.
//!
//! Written from the same table that the reader uses, so it cannot say anything else.

use crate::setting::Kind;
use crate::settings::Recipe;
use crate::spec::{Base, Key, Preset, Settings, Table};

impl Recipe {
    /// All keys, types, ranges, defaults and meanings, as text for the terminal.
    pub fn reference() -> String {
        let mut out = String::new();
        for table in tables() {
            write_table(&table, &mut out);
        }
        out
    }

    /// Every dotted key, in the order of the reference.
    pub fn keys() -> Vec<&'static str> {
        tables()
            .iter()
            .flat_map(|table| &table.keys)
            .map(|key| key.path)
            .collect()
    }

    /// Dotted keys of the settings with which a run may go on that began with others.
    pub fn may_change() -> Vec<&'static str> {
        let tables = tables();
        let keys = tables.iter().flat_map(|table| &table.keys);
        keys.filter(|key| key.may_change)
            .map(|key| key.path)
            .collect()
    }
}

/// Every table with its keys.
pub(crate) fn tables() -> Vec<Table> {
    let mut tables = Vec::new();
    Recipe::describe(&mut tables);
    tables
}

fn write_table(table: &Table, out: &mut String) {
    if !table.name.is_empty() {
        out.push_str(&format!("\n[{}]  ", table.name));
    }
    out.push_str(&format!("{}\n\n", sentence(table.meaning)));
    for key in &table.keys {
        write_key(key, out);
    }
}

fn write_key(key: &Key, out: &mut String) {
    let kind = match key.kind {
        Kind::Choice(_) => "one of the words below".to_owned(),
        Kind::Path if key.base == Base::Recipe => "a path, relative to the recipe".to_owned(),
        Kind::Path => "a path".to_owned(),
        kind => kind.to_string(),
    };
    let range = key
        .range
        .map_or(String::new(), |range| format!(", {range}"));
    let default = match &key.preset {
        Preset::Required => "required".to_owned(),
        Preset::Derived(from) => format!("default: {from}"),
        Preset::Value(None) => "unset by default".to_owned(),
        Preset::Value(Some(value)) => format!("default {value}"),
    };
    let change = match key.may_change {
        true => "; may change on --resume",
        false => "",
    };
    out.push_str(&format!(
        "  {:27}  {kind}{range}; {default}{change}\n",
        key.path
    ));
    out.push_str(&format!("      {}\n", sentence(key.meaning)));
    if let Kind::Choice(words) = key.kind {
        for (word, meaning) in words {
            let word = format!("\"{word}\"");
            out.push_str(&format!("      {word:12}  {}\n", sentence(meaning)));
        }
    }
}

/// A doc comment as one line.
pub(crate) fn sentence(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}
