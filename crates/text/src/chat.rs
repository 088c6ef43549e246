//! Chat templates: a conversation to text, and which of the text the assistant wrote.
//!
//! Jinja as Hugging Face sets it up: blocks trimmed, Python's string and list methods, `tojson`, `raise_exception`,
//! `strftime_now`, loop controls, `{% generation %}` blocks. Left out: templates that load other templates.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, State, Value};
use serde_json::{Map, Value as Json, json};

use crate::clock;
use crate::error::TextError;
use crate::json::tojson;

/// A message of a conversation; add keys (`tool_calls`, `reasoning_content`, …) as the template reads them.
pub fn message(role: &str, content: &str) -> Json {
    json!({ "role": role, "content": content })
}

/// What a template renders.
#[derive(Clone, Debug)]
pub struct Conversation<'a> {
    /// JSON objects with at least `role` and `content`.
    pub messages: &'a [Json],
    /// Tools on offer, as JSON schemas.
    pub tools: Option<&'a [Json]>,
    /// Whether to end with the header of an assistant message that is yet to be written.
    pub add_generation_prompt: bool,
    /// More variables for the template (`enable_thinking`, `documents`, …).
    pub variables: Map<String, Json>,
}

impl<'a> Conversation<'a> {
    /// Messages alone.
    pub fn new(messages: &'a [Json]) -> Conversation<'a> {
        Conversation {
            messages,
            tools: None,
            add_generation_prompt: false,
            variables: Map::new(),
        }
    }

    /// The same, ending with the header of an assistant message that is yet to be written.
    pub fn prompt(messages: &'a [Json]) -> Conversation<'a> {
        Conversation {
            add_generation_prompt: true,
            ..Conversation::new(messages)
        }
    }
}

/// A rendered conversation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// The bytes inside `{% generation %}` blocks, in order; `None` if the template has no such block, so cannot say.
    pub assistant: Option<Vec<Range<usize>>>,
}

/// A chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    has_generation: bool,
    variables: BTreeMap<String, String>,
    /// Seconds since 1970, where the date is fixed.
    now: Option<u64>,
}

impl ChatTemplate {
    /// A template from its source.
    ///
    /// # Errors
    ///
    /// [`TextError::TemplateSyntax`], with the line.
    pub fn new(source: &str) -> Result<ChatTemplate, TextError> {
        let unix = source.replace("\r\n", "\n");
        let source = mark_generation(&unix);
        let template = ChatTemplate {
            has_generation: source != unix,
            source,
            variables: BTreeMap::new(),
            now: None,
        };
        let checked = template
            .environment(Markers::unlike(""))
            .template_from_named_str(NAME, &template.source)
            .map(|_| ());
        checked.map_err(|error| TextError::TemplateSyntax {
            message: describe(&error),
        })?;
        Ok(template)
    }

    /// The same template with variables set: the special tokens (`bos_token`, `eos_token`, …) that templates write out.
    pub fn with_variables<'a>(
        mut self,
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> ChatTemplate {
        self.variables.extend(
            variables
                .into_iter()
                .map(|(name, text)| (name.to_owned(), text.to_owned())),
        );
        self
    }

    /// The same template with the date fixed, in seconds since 1970-01-01 UTC; else templates that ask get today's.
    pub fn with_now(mut self, seconds: u64) -> ChatTemplate {
        self.now = Some(seconds);
        self
    }

    /// Renders a conversation.
    ///
    /// # Errors
    ///
    /// [`TextError::TemplateRefused`] if the template raises, [`TextError::TemplateFailed`] if it cannot run.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<Rendered, TextError> {
        let mut context = Map::new();
        context.extend(
            self.variables
                .iter()
                .map(|(name, text)| (name.clone(), json!(text))),
        );
        context.insert("documents".to_owned(), Json::Null);
        context.extend(conversation.variables.clone());
        context.insert("messages".to_owned(), json!(conversation.messages));
        context.insert("tools".to_owned(), json!(conversation.tools));
        context.insert(
            "add_generation_prompt".to_owned(),
            json!(conversation.add_generation_prompt),
        );
        let context = Json::Object(context);

        let markers = Markers::unlike(&format!("{}{context}", self.source));
        let refused = Arc::new(Mutex::new(None));
        let mut environment = self.environment(markers);
        let words = Arc::clone(&refused);
        environment.add_function(
            "raise_exception",
            move |message: String| -> Result<String, Error> {
                let error = Error::new(ErrorKind::InvalidOperation, message.clone());
                *words
                    .lock()
                    .unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(message);
                Err(error)
            },
        );
        let value = Value::from(Serde(&context));
        let text = environment
            .render_named_str(NAME, &self.source, value)
            .map_err(|error| {
                match refused
                    .lock()
                    .unwrap_or_else(|poisoned| poisoned.into_inner())
                    .take()
                {
                    Some(message) => TextError::TemplateRefused { message },
                    None => TextError::TemplateFailed {
                        message: describe(&error),
                    },
                }
            })?;
        let (text, spans) = markers.take_out(&text);
        Ok(Rendered {
            text,
            assistant: self.has_generation.then_some(spans),
        })
    }

    fn environment(&self, markers: Markers) -> Environment<'_> {
        let mut environment = Environment::new();
        if let Ok(syntax) = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
        {
            environment.set_syntax(syntax);
        }
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_filter(GENERATION, move |_: &State<'_, '_>, body: String| {
            markers.around(&body)
        });
        let now = self.now;
        environment.add_function("strftime_now", move |format: String| {
            clock::strftime(&format, now.unwrap_or_else(clock::now)).map_err(|directive| {
                let message = format!("strftime_now does not know {directive} in {format:?}");
                Error::new(ErrorKind::InvalidOperation, message)
            })
        });
        environment
    }
}

/// What messages call the template.
const NAME: &str = "chat template";

/// The filter that stands for a generation block.
const GENERATION: &str = "ferrotune_generation";

/// Turns `{% generation %}…{% endgeneration %}` into a filter block, which keeps the white-space rules of its tags.
fn mark_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(close) = rest.find("%}") {
        // The nearest opening: one further back may be text inside a string or a comment.
        let Some(open) = rest[..close].rfind("{%") else {
            out.push_str(&rest[..close + 2]);
            rest = &rest[close + 2..];
            continue;
        };
        out.push_str(&rest[..open + 2]);
        let tag = &rest[open + 2..close];
        let name =
            tag.trim_matches(|char: char| char.is_whitespace() || char == '-' || char == '+');
        match name {
            "generation" => out.push_str(&tag.replace(name, &format!("filter {GENERATION}"))),
            "endgeneration" => out.push_str(&tag.replace(name, "endfilter")),
            _ => out.push_str(tag),
        }
        out.push_str("%}");
        rest = &rest[close + 2..];
    }
    out.push_str(rest);
    out
}

/// A pair of characters that stand around what a generation block wrote, until its place is known.
#[derive(Clone, Copy)]
struct Markers {
    open: char,
    close: char,
}

impl Markers {
    /// Private-use characters that `text` does not hold.
    fn unlike(text: &str) -> Markers {
        let mut free = ('\u{F0000}'..='\u{FFFFD}').filter(|&char| !text.contains(char));
        match (free.next(), free.next()) {
            (Some(open), Some(close)) => Markers { open, close },
            // A text that holds all 65,534 of them has no spans to lose.
            _ => Markers {
                open: '\u{10FFFE}',
                close: '\u{10FFFF}',
            },
        }
    }

    fn around(self, body: &str) -> String {
        format!("{}{body}{}", self.open, self.close)
    }

    /// The text without markers, and where they stood.
    fn take_out(self, marked: &str) -> (String, Vec<Range<usize>>) {
        let (mut text, mut spans, mut start) = (String::with_capacity(marked.len()), Vec::new(), 0);
        for char in marked.chars() {
            if char == self.open {
                start = text.len();
            } else if char == self.close {
                spans.push(start..text.len());
            } else {
                text.push(char);
            }
        }
        (text, spans)
    }
}

/// The engine's words, with those of the errors that caused it.
fn describe(error: &Error) -> String {
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}
