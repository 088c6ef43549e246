//! The words: tokenizer, chat template, token masks.
//!
//! A [`Tokenizer`] reads the tokenizer files of a Hugging Face model folder. A [`ChatTemplate`] renders a
//! [`Conversation`] as Hugging Face's template engine does, and says which bytes of the text the assistant wrote;
//! [`Tokenizer::encode_marked`] turns those into a mask over tokens.
//!
//! A [`Detokenizer`] gives the text of tokens as they come.
//!
//! Notable: text that the vocabulary cannot express is an error that names the character, never dropped; an id outside the
//! vocabulary is an error, never skipped; truncation and padding settings inside `tokenizer.json` are ignored, since they
//! would cut text without a word. Left out: training a tokenizer, slow (Python) tokenizers, downloads.
//!
//! # Example
//!
//! ```
//! use ferrotune_text::{ChatTemplate, Conversation, message};
//!
//! let template = ChatTemplate::new(
//!     "{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
//! )?;
//! let messages = [message("assistant", "hello")];
//! let rendered = template.render(&Conversation::new(&messages))?;
//! assert_eq!(rendered.text, "<assistant>hello");
//! assert_eq!(rendered.assistant, Some(vec![11..16]));
//! # Ok::<(), ferrotune_text::TextError>(())
//! ```
#![forbid(unsafe_code)]

mod chat;
mod clock;
mod detokenizer;
mod error;
mod files;
mod json;
pub mod json_line;
mod tokenizer;

pub use chat::{ChatTemplate, Conversation, Rendered, message};
pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use files::TOKENIZER_FILES;
pub use tokenizer::{Special, Tokenizer};
