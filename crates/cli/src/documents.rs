//! Documents to score: a file with `{"text": "..."}` or `{"ids": [...]}` on each line.

use std::path::Path;

use anyhow::anyhow;
use ferrotune_models::Longest;
use ferrotune_text::{Tokenizer, json_line};
use serde_json::Value;

use crate::failure::{Failure, OrFail};

/// Bad lines that are shown before the rest is only counted.
const SHOWN: usize = 20;

/// What a document's ids must fit.
pub(crate) struct Limits {
    /// Ids must be below this.
    pub(crate) vocab_size: usize,
    /// Tokens of a row, if several documents share one.
    pub(crate) row: Option<usize>,
    /// The longest text that the model was made for, if its configuration says.
    pub(crate) longest: Option<Longest>,
}

/// The ids of every document. `tokenizer` is called when the first text is met.
///
/// All bad lines are refused together.
pub(crate) fn read(
    path: &Path,
    limits: &Limits,
    tokenizer: impl Fn() -> Result<Tokenizer, Failure>,
) -> Result<Vec<Vec<u32>>, Failure> {
    let bytes = crate::input_file::read(path, "the documents").or_refuse()?;
    let mut words = None;
    let mut documents = Vec::new();
    let mut bad = Vec::new();
    for (number, line) in (1..).zip(bytes.split(|&b| b == b'\n')) {
        if json_line::bare(line).is_empty() {
            continue;
        }
        let ids = match parse(line) {
            Ok(Document::Ids(ids)) => Ok(ids),
            Ok(Document::Text(text)) => {
                if words.is_none() {
                    words = Some(tokenizer()?);
                }
                let words = words.as_ref().expect("it was just loaded");
                words.encode(&text, true).map_err(|error| error.to_string())
            }
            Err(why) => Err(why),
        };
        match ids.and_then(|ids| check(ids, limits)) {
            Ok(ids) => documents.push(ids),
            Err(why) => bad.push(format!("{}:{number}: {why}", path.display())),
        }
    }
    if !bad.is_empty() {
        let rest = bad.len().saturating_sub(SHOWN);
        bad.truncate(SHOWN);
        if rest > 0 {
            bad.push(format!("and {rest} more bad lines in {}", path.display()));
        }
        return Err(Failure::Refused(
            bad.into_iter().map(|it| anyhow!(it)).collect(),
        ));
    }
    if documents.is_empty() {
        return Err(Failure::refused(anyhow!(
            "{} holds no documents: put {{\"text\": \"...\"}} or {{\"ids\": [...]}} on each line",
            path.display()
        )));
    }
    Ok(documents)
}

#[derive(Debug, PartialEq)]
enum Document {
    Text(String),
    Ids(Vec<u32>),
}

fn parse(line: &[u8]) -> Result<Document, String> {
    let Value::Object(mut object) = json_line::value(line)? else {
        return Err("must be a JSON object with \"text\" or \"ids\"".to_owned());
    };
    match (object.remove("text"), object.remove("ids")) {
        (Some(_), Some(_)) => Err("has both \"text\" and \"ids\": give one of them".to_owned()),
        (None, None) => Err("has neither \"text\" nor \"ids\"".to_owned()),
        (Some(Value::String(text)), None) => Ok(Document::Text(text)),
        (Some(_), None) => Err("\"text\" must be a text".to_owned()),
        (None, Some(Value::Array(ids))) => ids
            .iter()
            .map(id)
            .collect::<Result<_, _>>()
            .map(Document::Ids),
        (None, Some(_)) => Err("\"ids\" must be a list of token ids".to_owned()),
    }
}

fn id(value: &Value) -> Result<u32, String> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
    id.ok_or_else(|| format!("\"ids\" holds {value}, which is not a token id"))
}

fn check(ids: Vec<u32>, limits: &Limits) -> Result<Vec<u32>, String> {
    let vocab_size = limits.vocab_size;
    if ids.is_empty() {
        return Err("the document has no tokens".to_owned());
    }
    if let Some(place) = ids.iter().position(|&id| id as usize >= vocab_size) {
        return Err(format!(
            "token {place} has id {}, outside of the model's vocabulary of {vocab_size} (0 to {})",
            ids[place],
            vocab_size - 1
        ));
    }
    let tokens = ids.len();
    if let Some(longest) = limits.longest.filter(|it| tokens > it.tokens) {
        return Err(format!(
            "the document has {tokens} tokens, more than {}: cut it into shorter ones",
            longest.told("the model's config.json")
        ));
    }
    match limits.row {
        Some(row) if tokens > row => Err(format!(
            "the document has {tokens} tokens, more than a row of {row}: raise --pack to at least that, or leave it out"
        )),
        _ => Ok(ids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_text_or_a_list_of_ids() {
        assert_eq!(
            parse(br#"{"text": "a b"}"#),
            Ok(Document::Text("a b".to_owned()))
        );
        assert_eq!(
            parse(br#"{"ids": [1, 0, 7], "name": "x"}"#),
            Ok(Document::Ids(vec![1, 0, 7]))
        );
    }

    #[test]
    fn everything_else_is_refused_with_a_reason() {
        let why = |line: &str| parse(line.as_bytes()).unwrap_err();
        assert!(why("{").starts_with("not JSON"));
        assert!(why(r#"{"ids": [1], "ids": [2]}"#).contains("twice"));
        assert!(why("[1]").contains("object"));
        assert!(why("{}").contains("neither"));
        assert!(why(r#"{"text": "a", "ids": [1]}"#).contains("both"));
        assert!(why(r#"{"ids": [1.5]}"#).contains("1.5"));
        assert!(why(r#"{"ids": [-1]}"#).contains("-1"));
        assert!(why(r#"{"ids": "1"}"#).contains("list"));
        assert!(why(r#"{"text": 1}"#).contains("a text"));
    }

    #[test]
    fn ids_and_lengths_have_limits() {
        let limits = Limits {
            vocab_size: 10,
            row: Some(2),
            longest: Some(Longest {
                tokens: 3,
                key: "max_position_embeddings",
                limit: "the model was made for",
            }),
        };
        assert_eq!(check(vec![9, 0], &limits), Ok(vec![9, 0]));
        assert!(
            check(vec![0, 10], &limits)
                .unwrap_err()
                .contains("token 1 has id 10")
        );
        assert!(
            check(vec![1, 2, 3], &limits)
                .unwrap_err()
                .contains("--pack")
        );
        let long = check(vec![1, 2, 3, 4], &limits).unwrap_err();
        assert!(long.contains("max_position_embeddings = 3"), "{long}");
        assert!(check(vec![], &limits).unwrap_err().contains("no tokens"));
    }
}
