//! What can be wrong with tokenizer files, templates, texts and ids.

use std::path::PathBuf;

/// A problem with words, with its place and its cure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// There is no `tokenizer.json`.
    #[error(
        "there is no tokenizer.json in {}; copy it there from the model's Hugging Face folder \
         (save a slow tokenizer as a fast one first)", .folder.display()
    )]
    NoTokenizer {
        /// The model folder.
        folder: PathBuf,
    },
    /// A file that cannot be read.
    #[error("cannot read {}: {source}; check that it is a readable file", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that is cut short, damaged, or of another kind.
    #[error("{} is damaged or not what its name says: {message}; fetch it again", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A special token that the vocabulary does not have.
    #[error("{key} of {} is {token}, which tokenizer.json does not have; add it there, or take the key away", .path.display())]
    UnknownSpecial {
        /// The file.
        path: PathBuf,
        /// Its key.
        key: &'static str,
        /// The token or id as given.
        token: String,
    },
    /// Text that no token stands for.
    #[error(
        "the vocabulary has no token for {text:?} ({detail}) at character {position}; \
         remove it from the text, or use a tokenizer with an unknown token or byte fallback"
    )]
    UnknownText {
        /// The character, or the word where the vocabulary is of words.
        text: String,
        /// Its code points, as `U+00DF`, and what the tokenizer made of it where that differs.
        detail: String,
        /// How many characters of the text precede it.
        position: usize,
    },
    /// An id that no token has.
    #[error(
        "token id {id} at index {index} is outside the vocabulary of {vocab_size}; use the tokenizer that belongs to the model"
    )]
    UnknownId {
        /// The id.
        id: u32,
        /// Where it is in the list.
        index: usize,
        /// One more than the largest id there is.
        vocab_size: usize,
    },
    /// The tokenizer itself failed.
    #[error("the tokenizer failed to {action} the text: {message}")]
    Tokenizer {
        /// `encode` or `decode`.
        action: &'static str,
        /// What it said.
        message: String,
    },
    /// A chat template that is not one.
    #[error("the chat template does not parse: {message}")]
    TemplateSyntax {
        /// What and where.
        message: String,
    },
    /// The template refused the conversation.
    #[error("the chat template refuses the conversation: {message}")]
    TemplateRefused {
        /// The template's own words.
        message: String,
    },
    /// The template failed while it ran.
    #[error("the chat template failed: {message}")]
    TemplateFailed {
        /// What and where.
        message: String,
    },
    /// Assistant spans that do not lie on the text.
    #[error(
        "the span {start}..{end} does not lie on character boundaries of a text of {bytes} bytes"
    )]
    Span {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// The text's length.
        bytes: usize,
    },
}
