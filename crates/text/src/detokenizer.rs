//! Text of tokens as they come.

use crate::error::TextError;
use crate::tokenizer::{Special, Tokenizer};

/// Turns tokens into text one by one.
///
/// What is written depends on the tokens before: a letter may take several tokens, and some tokenizers put a space only
/// between words. So a few tokens are decoded again with each new one, and text that ends within a letter is held back.
#[derive(Clone, Debug)]
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    special: Special,
    /// The latest tokens; all text before the first of them has been given out, …
    recent: Vec<u32>,
    /// … and that of so many of them, …
    behind: usize,
    /// … and so many bytes of the text of the others.
    given: usize,
}

impl<'t> Detokenizer<'t> {
    /// Before the first token.
    pub fn new(tokenizer: &'t Tokenizer, special: Special) -> Self {
        Self {
            tokenizer,
            special,
            recent: Vec::new(),
            behind: 0,
            given: 0,
        }
    }

    /// The text that one more token adds; without a letter at its end of which bytes are missing.
    ///
    /// An id that the tokenizer does not have, of which a model may have some, is U+FFFD.
    ///
    /// # Errors
    /// A tokenizer that fails.
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        if self.tokenizer.id_to_token(id).is_none() {
            let mut text = self.finish()?;
            text.push(char::REPLACEMENT_CHARACTER);
            return Ok(text);
        }
        self.recent.push(id);
        let text = self.ahead()?;
        let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let new = whole.get(self.given..).unwrap_or_default().to_owned();
        if whole.len() == text.len() && !text.is_empty() {
            self.recent.drain(..self.behind);
            self.behind = self.recent.len();
            self.given = 0;
        } else {
            self.given = self.given.max(whole.len());
        }
        Ok(new)
    }

    /// The text that is held back; what follows is decoded as after a new beginning.
    ///
    /// # Errors
    /// A tokenizer that fails.
    pub fn finish(&mut self) -> Result<String, TextError> {
        let text = self.ahead()?;
        let text = text.get(self.given..).unwrap_or_default().to_owned();
        self.recent.clear();
        (self.behind, self.given) = (0, 0);
        Ok(text)
    }

    /// The text of the recent tokens beyond those that are behind.
    fn ahead(&self) -> Result<String, TextError> {
        let decode = |ids: &[u32]| self.tokenizer.decode(ids, self.special);
        let before = decode(&self.recent[..self.behind])?;
        let whole = decode(&self.recent)?;
        Ok(whole.get(before.len()..).unwrap_or_default().to_owned())
    }
}
