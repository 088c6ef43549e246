//! Text to token ids and back, for the tokenizer of a Hugging Face folder.
//!
//! The crate that does the work is not visible from outside. Its pipeline is run step by step here, so that a piece of text
//! that its model drops or cannot express is seen.

use std::ops::Range;
use std::path::Path;

use tokenizers::tokenizer::normalizer;
use tokenizers::{Model, NormalizedString, OffsetType, PreTokenizedString, PreTokenizer, Token};

use crate::chat::ChatTemplate;
use crate::error::TextError;
use crate::files::{self, JsonFile};

/// What to do with special tokens when decoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// Write them out.
    Keep,
    /// Leave them out.
    Skip,
}

/// A tokenizer with the special tokens and the chat template of its model.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocab_size: usize,
    bos_id: Option<u32>,
    pad_id: Option<u32>,
    eos_ids: Vec<u32>,
    chat_template: Option<ChatTemplate>,
}

impl Tokenizer {
    /// Reads the tokenizer files of a model folder.
    ///
    /// End-of-sequence ids come from `generation_config.json` (one id or a list), else from the `eos_token` of
    /// `tokenizer_config.json`, else from `config.json`.
    ///
    /// # Errors
    ///
    /// A missing `tokenizer.json`; a file that is damaged; a special token that the vocabulary lacks.
    pub fn from_dir(folder: impl AsRef<Path>) -> Result<Tokenizer, TextError> {
        let folder = folder.as_ref();
        let path = folder.join("tokenizer.json");
        let Some(bytes) = files::read(&path)? else {
            return Err(TextError::NoTokenizer {
                folder: folder.to_owned(),
            });
        };
        let mut tokenizer =
            Tokenizer::from_json(&bytes).map_err(|message| TextError::Damaged { path, message })?;
        let config = JsonFile::open(folder.join("tokenizer_config.json"))?;
        tokenizer.bos_id = tokenizer.special_id(&config, "bos_token")?;
        tokenizer.pad_id = tokenizer.special_id(&config, "pad_token")?;
        tokenizer.eos_ids = tokenizer.read_eos_ids(folder, &config)?;
        if let Some(source) = files::chat_template(folder, &config)? {
            tokenizer.chat_template =
                Some(ChatTemplate::new(&source)?.with_variables(config.special_tokens()));
        }
        Ok(tokenizer)
    }

    /// A tokenizer from the bytes of a `tokenizer.json`, without special ids or template. The error says what is wrong.
    fn from_json(bytes: &[u8]) -> Result<Tokenizer, String> {
        // Parsed first by itself, since the crate panics on some files that are not JSON.
        let json: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let mut inner =
            tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
        // The crate numbers added tokens by their order, with no more than a log line if the file says otherwise.
        for token in json["added_tokens"].as_array().into_iter().flatten() {
            let found = token["content"]
                .as_str()
                .and_then(|content| inner.token_to_id(content));
            if found.map(u64::from) != token["id"].as_u64() {
                let (content, id) = (&token["content"], &token["id"]);
                return Err(format!(
                    "added token {content} has id {id}, which does not follow the vocabulary"
                ));
            }
        }
        inner
            .with_truncation(None)
            .map_err(|error| error.to_string())?;
        inner.with_padding(None);
        let largest = inner
            .get_vocab(true)
            .into_values()
            .max()
            .ok_or("its vocabulary is empty")?;
        Ok(Tokenizer {
            inner,
            vocab_size: largest as usize + 1,
            bos_id: None,
            pad_id: None,
            eos_ids: Vec::new(),
            chat_template: None,
        })
    }

    fn special_id(&self, config: &JsonFile, key: &'static str) -> Result<Option<u32>, TextError> {
        let Some((_, token)) = config.special_tokens().find(|&(name, _)| name == key) else {
            return Ok(None);
        };
        let unknown = || TextError::UnknownSpecial {
            path: config.path.clone(),
            key,
            token: format!("`{token}`"),
        };
        self.token_to_id(token).map(Some).ok_or_else(unknown)
    }

    fn read_eos_ids(&self, folder: &Path, config: &JsonFile) -> Result<Vec<u32>, TextError> {
        let key = "eos_token_id";
        let generation = JsonFile::open(folder.join("generation_config.json"))?;
        let model = JsonFile::open(folder.join("config.json"))?;
        let (ids, path) = if let Some(ids) = generation.ids(key)? {
            (ids, generation.path)
        } else if let Some(id) = self.special_id(config, "eos_token")? {
            (vec![id], config.path.clone())
        } else {
            (model.ids(key)?.unwrap_or_default(), model.path)
        };
        match ids.iter().find(|&&id| self.id_to_token(id).is_none()) {
            Some(id) => Err(TextError::UnknownSpecial {
                path,
                key,
                token: id.to_string(),
            }),
            None => Ok(ids),
        }
    }

    /// The ids of `text`. With `add_special`, those that the tokenizer itself puts around a text (a beginning-of-sequence
    /// token, say) are added; special tokens that are written in the text are recognised either way.
    ///
    /// # Errors
    ///
    /// [`TextError::UnknownText`] for text that the vocabulary cannot express and for which it has no unknown token.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        let failed = |error: tokenizers::Error| failed("encode", &*error);
        let encoding = self
            .pieces(text)?
            .into_encoding(None, 0, OffsetType::None)
            .map_err(failed)?;
        let encoding = self
            .inner
            .post_process(encoding, None, add_special)
            .map_err(failed)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of `text`, and for each whether it lies in, or reaches into, one of the byte ranges `spans`. Nothing is added
    /// around the text.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode`], and [`TextError::Span`].
    pub fn encode_marked(
        &self,
        text: &str,
        spans: &[Range<usize>],
    ) -> Result<(Vec<u32>, Vec<bool>), TextError> {
        if let Some(span) = spans
            .iter()
            .find(|span| text.get(span.start..span.end).is_none())
        {
            return Err(TextError::Span {
                start: span.start,
                end: span.end,
                bytes: text.len(),
            });
        }
        // Offsets are read before post-processing, which may trim white space off them.
        let encoding = self.pieces(text)?.into_encoding(None, 0, OffsetType::Byte);
        let encoding = encoding.map_err(|error| failed("encode", &*error))?;
        let marked = |&(start, end): &(usize, usize)| {
            spans
                .iter()
                .any(|span| start < span.end && span.start < end.max(start + 1) && !span.is_empty())
        };
        Ok((
            encoding.get_ids().to_vec(),
            encoding.get_offsets().iter().map(marked).collect(),
        ))
    }

    /// The text, normalised, split, and with the tokens of each split.
    fn pieces(&self, text: &str) -> Result<PreTokenizedString, TextError> {
        let added = self.inner.get_added_vocabulary();
        let mut pieces = added.extract_and_normalize(self.inner.get_normalizer(), text);
        if let Some(splitter) = self.inner.get_pre_tokenizer() {
            splitter
                .pre_tokenize(&mut pieces)
                .map_err(|error| failed("encode", &*error))?;
        }
        let tokenized =
            pieces.tokenize(|piece| Ok(self.tokens(piece).map_err(|lost| lost.in_text(text))?));
        tokenized.map_err(|error| match error.downcast::<TextError>() {
            Ok(unknown) => *unknown,
            Err(other) => failed("encode", &*other),
        })?;
        Ok(pieces)
    }

    /// The tokens of one split, which must cover all of it.
    fn tokens(&self, piece: &NormalizedString) -> Result<Vec<Token>, Lost> {
        let model = self.inner.get_model();
        let text = piece.get();
        let covered = |tokens: &[Token]| {
            tokens
                .iter()
                .map(|token| token.offsets.1 - token.offsets.0)
                .sum::<usize>()
        };
        match model.tokenize(text) {
            Ok(tokens) if covered(&tokens) >= text.len() => return Ok(tokens),
            _ => {}
        }
        // Something was dropped, or there is no token for the whole: the first character that has none alone is to blame.
        let has_token = |text: &str| covered(&model.tokenize(text).unwrap_or_default()) > 0;
        let mut chars = text
            .char_indices()
            .map(|(start, char)| start..start + char.len_utf8());
        let blamed = chars
            .find(|range| !has_token(&text[range.clone()]))
            .unwrap_or(0..text.len());
        let original = piece.convert_offsets(normalizer::Range::Normalized(blamed.clone()));
        let original = original.unwrap_or(0..piece.len_original());
        Err(Lost {
            text: piece
                .get_original()
                .get(original.clone())
                .unwrap_or(text)
                .to_owned(),
            read_as: text[blamed].to_owned(),
            start: piece.offsets_original().0 + original.start,
        })
    }

    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    ///
    /// [`TextError::UnknownId`].
    pub fn decode(&self, ids: &[u32], special: Special) -> Result<String, TextError> {
        if let Some(index) = ids.iter().position(|&id| self.id_to_token(id).is_none()) {
            return Err(TextError::UnknownId {
                id: ids[index],
                index,
                vocab_size: self.vocab_size,
            });
        }
        self.inner
            .decode(ids, special == Special::Skip)
            .map_err(|error| failed("decode", &*error))
    }

    /// One more than the largest id. A model's embedding may have more rows than this, never fewer.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The token of an id, as the vocabulary spells it.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token, as the vocabulary spells it.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The ids that end a sequence; none if no file says.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The id that begins a sequence.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    /// The id for padding. It may equal an end-of-sequence id: padding is told by masks, never by this.
    pub fn pad_id(&self) -> Option<u32> {
        self.pad_id
    }

    /// The model's chat template.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat_template.as_ref()
    }
}

/// Text that has no token, and where it starts in the text as given.
struct Lost {
    text: String,
    /// What normalisation made of it: a composed character, a letter that stands for a byte.
    read_as: String,
    start: usize,
}

impl Lost {
    fn in_text(self, text: &str) -> TextError {
        let code_points = self
            .text
            .chars()
            .map(|char| format!("U+{:04X}", char as u32));
        let mut detail = code_points.collect::<Vec<_>>().join(" ");
        if self.read_as != self.text {
            detail = format!("{detail}, read as {:?}", self.read_as);
        }
        TextError::UnknownText {
            detail,
            text: self.text,
            position: text.get(..self.start).unwrap_or_default().chars().count(),
        }
    }
}

fn failed(action: &'static str, error: &dyn std::error::Error) -> TextError {
    TextError::Tokenizer {
        action,
        message: error.to_string(),
    }
}
