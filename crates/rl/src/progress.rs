//! What a checkpoint must hold beside weights and moments, as data.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::order::DataOrder;

/// Where a run stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Progress {
    /// Of this struct.
    pub(crate) schema: u32,
    /// Steps done.
    pub(crate) completed: u64,
    /// Tokens learned from.
    pub(crate) num_tokens: u64,
    /// Updates without a finite gradient since the last with one.
    pub(crate) failed_updates: u32,
    /// Place in the demonstrations, if there is a warm-up.
    pub(crate) demonstrations: Option<DataOrder>,
    /// Place in the problems.
    pub(crate) problems: DataOrder,
    /// Of the data that all of this is about.
    pub(crate) data: Fingerprint,
}

/// SHA-256 of what is read of each data set, after the tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fingerprint {
    /// Problems for training.
    pub(crate) train: String,
    /// Held-out problems.
    pub(crate) heldout: String,
    /// Demonstrations.
    pub(crate) demonstrations: String,
}

impl Progress {
    pub(crate) const SCHEMA: u32 = 1;

    /// From the form in which [`serde_json`] wrote it, or what is wrong with that.
    pub(crate) fn read(value: Value) -> Result<Self, String> {
        let schema = value.get("schema").and_then(Value::as_u64);
        if schema != Some(u64::from(Self::SCHEMA)) {
            let found = schema.map_or_else(|| "none".to_owned(), |it| it.to_string());
            return Err(format!(
                "its state has schema {found}, this program reads {}",
                Self::SCHEMA
            ));
        }
        serde_json::from_value(value).map_err(|error| format!("its state cannot be read: {error}"))
    }
}

impl Fingerprint {
    /// Names of the data sets that are not the same.
    pub(crate) fn differences(&self, other: &Fingerprint) -> Vec<&'static str> {
        let pairs = [
            ("data.train", &self.train, &other.train),
            ("data.heldout", &self.heldout, &other.heldout),
            (
                "data.demonstrations",
                &self.demonstrations,
                &other.demonstrations,
            ),
        ];
        let differ = pairs.into_iter().filter(|(_, a, b)| a != b);
        differ.map(|(name, ..)| name).collect()
    }
}
