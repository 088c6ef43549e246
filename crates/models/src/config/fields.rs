//! Typed reading of one JSON object, collecting every problem instead of stopping at the first.
//!
//! A key whose value is `null` counts as absent, as it does in `transformers`. What cannot be read has a harmless value in its
//! place, which no message may name: rules between keys keep silent where one of them has failed already.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The keys of a configuration, and what was found wrong with them so far.
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    problems: Vec<String>,
    /// Keys of which a problem was reported: their values are not those of the file.
    failed: BTreeSet<String>,
}

/// Largest dimension accepted: token ids and indices are 32-bit on the device.
pub(crate) const MAX_SIZE: u64 = i32::MAX as u64;

impl<'a> Fields<'a> {
    pub(crate) fn new(object: &'a Map<String, Value>) -> Self {
        Self {
            object,
            problems: Vec::new(),
            failed: BTreeSet::new(),
        }
    }

    /// Adds a problem of one key, unless one was reported before: a key may be read in several places.
    pub(crate) fn problem_of(&mut self, key: &str, text: impl Into<String>) {
        if self.failed.insert(key.to_owned()) {
            self.problem(text);
        }
    }

    /// Adds a problem between keys if `wrong`, and marks the first as failed. Silent where one of them has failed before.
    pub(crate) fn refuse_if(&mut self, wrong: bool, keys: &[&str], text: impl FnOnce() -> String) {
        if wrong && !self.have_failed(keys) {
            self.problem_of(keys[0], text());
        }
    }

    /// Marks a key that follows from others, one of which has failed.
    pub(crate) fn fail_with(&mut self, key: &str, others: &[&str]) {
        if self.have_failed(others) {
            self.failed.insert(key.to_owned());
        }
    }

    /// Whether a problem was reported of one of `keys`.
    pub(crate) fn have_failed(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.failed.contains(*key))
    }

    /// How many problems there are so far.
    pub(crate) fn problem_count(&self) -> usize {
        self.problems.len()
    }

    /// A key and its value for a message, which says so where the file has none.
    pub(crate) fn named(&self, key: &str, value: usize) -> String {
        let origin = if self.get(key).is_none() {
            " by default"
        } else {
            ""
        };
        format!("{key} ({value}{origin})")
    }

    pub(crate) fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    pub(crate) fn into_problems(self) -> Vec<String> {
        self.problems
    }

    /// The value of `key`, unless absent or null.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// Whether `key` is there, be it null.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.object.contains_key(key)
    }

    fn wrong_type(&mut self, key: &str, wanted: &str, found: &Value) {
        self.problem_of(
            key,
            format!("{key} must be {wanted}, found {}", brief(found)),
        );
    }

    /// A positive size, if there.
    pub(crate) fn size(&mut self, key: &str) -> Option<usize> {
        self.size_up_to(key, MAX_SIZE)
    }

    fn size_up_to(&mut self, key: &str, most: u64) -> Option<usize> {
        let value = self.get(key)?;
        match value.as_u64() {
            Some(n) if (1..=most).contains(&n) => Some(n as usize),
            _ => {
                self.wrong_type(key, &format!("a whole number from 1 to {most}"), value);
                // Already reported: a harmless value lets the other checks go on.
                Some(1)
            }
        }
    }

    /// A positive size that must be there.
    pub(crate) fn required_size(&mut self, key: &str) -> usize {
        self.required_size_up_to(key, MAX_SIZE)
    }

    /// A positive size of at most `most` that must be there.
    pub(crate) fn required_size_up_to(&mut self, key: &str, most: u64) -> usize {
        if self.get(key).is_none() {
            self.problem_of(key, format!("{key} is missing"));
        }
        self.size_up_to(key, most).unwrap_or(1)
    }

    /// A finite number, if there.
    pub(crate) fn number(&mut self, key: &str) -> Option<f64> {
        let value = self.get(key)?;
        let number = value.as_f64().filter(|n| n.is_finite());
        if number.is_none() {
            self.wrong_type(key, "a finite number", value);
        }
        number
    }

    /// A finite number above zero, or `default` where absent.
    pub(crate) fn positive(&mut self, key: &str, default: f64) -> f64 {
        match self.number(key) {
            Some(n) if n <= 0.0 => {
                self.problem_of(key, format!("{key} must be above 0, found {n}"));
                default
            }
            Some(n) => n,
            None => default,
        }
    }

    /// A boolean, or `false` where absent.
    pub(crate) fn flag(&mut self, key: &str) -> bool {
        self.flag_or(key, false)
    }

    /// A boolean, or `default` where absent.
    pub(crate) fn flag_or(&mut self, key: &str, default: bool) -> bool {
        let Some(value) = self.get(key) else {
            return default;
        };
        value.as_bool().unwrap_or_else(|| {
            self.wrong_type(key, "true or false", value);
            default
        })
    }

    /// A text, if there.
    pub(crate) fn text(&mut self, key: &str) -> Option<&'a str> {
        let value = self.get(key)?;
        let text = value.as_str();
        if text.is_none() {
            self.wrong_type(key, "a text", value);
        }
        text
    }

    /// A nested object, if there.
    pub(crate) fn object(&mut self, key: &str) -> Option<&'a Map<String, Value>> {
        let value = self.get(key)?;
        let object = value.as_object();
        if object.is_none() {
            self.wrong_type(key, "an object", value);
        }
        object
    }
}

/// A value as it may stand in a message: long ones are cut.
pub(crate) fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
