//! The tokenizer files of a Hugging Face folder: which there are, and the facts they hold besides the vocabulary.
//!
//! Only `tokenizer.json` must be there. What is absent is absent; what is there and damaged is an error.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::TextError;

/// The files of a model folder that belong to its tokenizer: copy those that are there to carry it along.
pub const TOKENIZER_FILES: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];

/// The bytes of a file, or `None` if there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, TextError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// A JSON object and where it came from; empty if there is no such file.
pub(crate) struct JsonFile {
    pub(crate) path: PathBuf,
    keys: Value,
}

impl JsonFile {
    pub(crate) fn open(path: PathBuf) -> Result<JsonFile, TextError> {
        let Some(bytes) = read(&path)? else {
            return Ok(JsonFile {
                path,
                keys: Value::Null,
            });
        };
        let message = match serde_json::from_slice(&bytes) {
            Ok(keys @ Value::Object(_)) => return Ok(JsonFile { path, keys }),
            Ok(_) => "it holds no JSON object".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(TextError::Damaged { path, message })
    }

    /// The value of a key; `None` if it is absent or null.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    /// The special tokens by key: `"bos_token": "<s>"` or `"bos_token": {"content": "<s>", …}`.
    pub(crate) fn special_tokens(&self) -> impl Iterator<Item = (&str, &str)> {
        let keys = self.keys.as_object().into_iter().flatten();
        keys.filter(|(key, _)| key.ends_with("_token"))
            .filter_map(|(key, value)| {
                let text = value.as_str().or_else(|| value.get("content")?.as_str());
                Some((key.as_str(), text?))
            })
    }

    /// The ids of a key that holds one or a list of them.
    pub(crate) fn ids(&self, key: &'static str) -> Result<Option<Vec<u32>>, TextError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let values = value
            .as_array()
            .map_or(std::slice::from_ref(value), Vec::as_slice);
        let id = |value: &Value| {
            value
                .as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| TextError::Damaged {
                    path: self.path.clone(),
                    message: format!("{key} holds {value}, which is not a token id"),
                })
        };
        values.iter().map(id).collect::<Result<_, _>>().map(Some)
    }

    pub(crate) fn damaged(&self, message: &str) -> TextError {
        TextError::Damaged {
            path: self.path.clone(),
            message: message.to_owned(),
        }
    }
}

/// The source of the folder's chat template: its own file, or a key of `tokenizer_config.json` that holds one template or
/// a list of named ones, of which `default` is taken.
pub(crate) fn chat_template(folder: &Path, config: &JsonFile) -> Result<Option<String>, TextError> {
    let path = folder.join("chat_template.jinja");
    if let Some(bytes) = read(&path)? {
        let source = String::from_utf8(bytes);
        return source.map(Some).map_err(|error| TextError::Damaged {
            path,
            message: error.to_string(),
        });
    }
    match config.get("chat_template") {
        None => Ok(None),
        Some(Value::String(source)) => Ok(Some(source.clone())),
        Some(Value::Array(named)) => {
            let default = named.iter().find(|it| it["name"] == "default");
            let source = default.and_then(|it| it["template"].as_str());
            let missing =
                || config.damaged("chat_template is a list without a template named `default`");
            source
                .map(|source| Some(source.to_owned()))
                .ok_or_else(missing)
        }
        Some(_) => Err(config.damaged("chat_template is neither a text nor a list of named texts")),
    }
}
