//! Strings that end an answer, looked for in its text as it grows.

use ferrotune_text::{Detokenizer, Special, TextError, Tokenizer};

/// The end of an answer's text, and the strings that would end it.
pub(crate) struct StopStrings<'a> {
    detokenizer: Detokenizer<'a>,
    strings: &'a [String],
    /// As much of the text as the beginning of a string may reach back.
    end: String,
}

impl<'a> StopStrings<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, strings: &'a [String]) -> Self {
        Self {
            detokenizer: Detokenizer::new(tokenizer, Special::Keep),
            strings,
            end: String::new(),
        }
    }

    /// One more token; which string it completes, the first of several.
    pub(crate) fn push(&mut self, token: u32) -> Result<Option<usize>, TextError> {
        self.end.push_str(&self.detokenizer.push(token)?);
        let is_there = |string: &String| self.end.contains(string.as_str());
        if let Some(found) = self.strings.iter().position(is_there) {
            return Ok(Some(found));
        }
        let longest = self.strings.iter().map(String::len).max().unwrap_or(0);
        let cut = self.end.len().saturating_sub(longest);
        self.end.drain(..self.end.floor_char_boundary(cut));
        Ok(None)
    }
}
