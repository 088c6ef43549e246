//! What a single setting is: a type that can be read from TOML, a default, a permitted range.
//!
//! Knows nothing of any particular key: those are in `settings.rs`.

use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::DeValue;

/// A type that a key of a recipe may have.
pub(crate) trait Setting: Sized + Clone {
    /// What the reference and the error texts call it.
    fn kind() -> Kind;
    /// Stands in for a value that could not be read; never leaves the loader.
    fn blank() -> Self;
    /// Reads a TOML value; relative paths start from `base`.
    fn read(value: &DeValue<'_>, base: &Path) -> Result<Self, Mismatch>;
    /// The value as TOML on one line; `None` for a setting that is unset.
    fn write(&self) -> Option<String>;
    /// The value on the axis of its [`Range`], for those that have one.
    fn number(&self) -> Option<f64> {
        None
    }
}

/// The types of settings, as the user knows them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Integer,
    Number,
    Text,
    Path,
    /// A list of strings.
    Texts,
    /// Words with their meanings.
    Choice(&'static [(&'static str, &'static str)]),
}

impl Kind {
    /// Whether an override such as `run.name=first try` may leave out the quotes.
    pub(crate) fn is_textual(self) -> bool {
        matches!(self, Kind::Text | Kind::Path | Kind::Choice(_))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Integer => f.write_str("an integer"),
            Kind::Number => f.write_str("a number"),
            Kind::Text => f.write_str("a string"),
            Kind::Path => f.write_str("a path (a string)"),
            Kind::Texts => f.write_str("a list of strings"),
            Kind::Choice(words) => {
                let quoted: Vec<_> = words
                    .iter()
                    .map(|(word, _)| format!("\"{word}\""))
                    .collect();
                match quoted.as_slice() {
                    [only] => f.write_str(only),
                    [first @ .., last] => write!(f, "{} or {last}", first.join(", ")),
                    [] => Ok(()),
                }
            }
        }
    }
}

/// Why a TOML value is not a setting: what to write at the caret, and the cure.
#[derive(Debug)]
pub(crate) struct Mismatch {
    pub(crate) must_be: String,
    pub(crate) found: String,
    pub(crate) cure: Option<String>,
    /// The number, where it is one that no setting of the type can be: the setting's own range says more of it.
    pub(crate) number: Option<f64>,
}

impl Mismatch {
    pub(crate) fn wrong_type<T: Setting>(value: &DeValue<'_>) -> Self {
        let found = match value.type_str() {
            kind @ ("integer" | "array") => format!("this is an {kind}"),
            kind => format!("this is a {kind}"),
        };
        let cure = match (T::kind(), value) {
            (Kind::Integer | Kind::Number, DeValue::String(text))
                if text.trim().parse::<f64>().is_ok() =>
            {
                Some(format!("write {} without the quotes", text.trim()))
            }
            (
                Kind::Text | Kind::Path,
                DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_),
            ) => Some("put it in quotes".to_owned()),
            (Kind::Integer, DeValue::Float(float)) => match float.as_str().parse::<f64>() {
                Ok(whole) if whole.fract() == 0.0 && whole.abs() < 1e15 => {
                    Some(format!("write {whole:.0}"))
                }
                _ => None,
            },
            _ => None,
        };
        Self {
            must_be: T::kind().to_string(),
            found,
            cure,
            number: None,
        }
    }

    pub(crate) fn unknown_word(word: &str, words: &[&'static str]) -> Self {
        let cure = crate::suggest::nearest(word, words.iter().copied())
            .map(|near| format!("did you mean \"{near}\"?"));
        let list: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
        let must_be = match list.as_slice() {
            [only] => format!("{only}, the only choice"),
            [first @ .., last] => format!("{} or {last}", first.join(", ")),
            [] => String::new(),
        };
        Self {
            must_be,
            found: "no such choice".to_owned(),
            cure,
            number: None,
        }
    }
}

fn integer(value: &DeValue<'_>) -> Option<i128> {
    let integer = value.as_integer()?;
    i128::from_str_radix(integer.as_str(), integer.radix()).ok()
}

macro_rules! integers {
    ($($ty:ty),*) => { $(
        impl Setting for $ty {
            fn kind() -> Kind {
                Kind::Integer
            }
            fn blank() -> Self {
                0
            }
            fn read(value: &DeValue<'_>, _: &Path) -> Result<Self, Mismatch> {
                let number = integer(value).ok_or_else(|| Mismatch::wrong_type::<Self>(value))?;
                // TOML promises 64 signed bits; what is larger could not be written back.
                match Self::try_from(number) {
                    Ok(fits) if i64::try_from(number).is_ok() => Ok(fits),
                    _ if number < 0 => Err(Mismatch {
                        must_be: "at least 0".into(), found: "this is negative".into(), cure: None,
                        number: Some(number as f64),
                    }),
                    _ => Err(Mismatch {
                        must_be: format!("at most {}", i64::MAX), found: "this is too large".into(), cure: None,
                        number: Some(number as f64),
                    }),
                }
            }
            fn write(&self) -> Option<String> {
                Some(self.to_string())
            }
            fn number(&self) -> Option<f64> {
                Some(*self as f64)
            }
        }
    )* };
}
integers!(u64, usize);

impl Setting for f64 {
    fn kind() -> Kind {
        Kind::Number
    }
    fn blank() -> Self {
        0.0
    }
    fn read(value: &DeValue<'_>, _: &Path) -> Result<Self, Mismatch> {
        let wrong = || Mismatch::wrong_type::<Self>(value);
        match value {
            DeValue::Float(float) => float.as_str().parse().map_err(|_| wrong()),
            // `temperature = 1` is as good as `temperature = 1.0`.
            DeValue::Integer(_) => integer(value).map(|whole| whole as f64).ok_or_else(wrong),
            _ => Err(wrong()),
        }
    }
    fn write(&self) -> Option<String> {
        // `{:?}` is the shortest text that reads back as the same number, and always valid TOML.
        Some(format!("{self:?}"))
    }
    fn number(&self) -> Option<f64> {
        Some(*self)
    }
}

impl Setting for String {
    fn kind() -> Kind {
        Kind::Text
    }
    fn blank() -> Self {
        String::new()
    }
    fn read(value: &DeValue<'_>, _: &Path) -> Result<Self, Mismatch> {
        let text = value
            .as_str()
            .ok_or_else(|| Mismatch::wrong_type::<Self>(value))?;
        if text.is_empty() {
            return Err(Mismatch {
                must_be: "a string".into(),
                found: "this is empty".into(),
                cure: None,
                number: None,
            });
        }
        Ok(text.to_owned())
    }
    fn write(&self) -> Option<String> {
        Some(quote(self))
    }
}

impl Setting for PathBuf {
    fn kind() -> Kind {
        Kind::Path
    }
    fn blank() -> Self {
        PathBuf::new()
    }
    fn read(value: &DeValue<'_>, base: &Path) -> Result<Self, Mismatch> {
        let text = value
            .as_str()
            .ok_or_else(|| Mismatch::wrong_type::<Self>(value))?;
        let refuse = |found: &str| Mismatch {
            must_be: "a path".into(),
            found: found.into(),
            cure: None,
            number: None,
        };
        if text.is_empty() {
            return Err(refuse("this is empty"));
        }
        if text.contains('\0') {
            return Err(refuse("this holds a zero byte, which no path may"));
        }
        let joined = base.join(text);
        if joined.to_str().is_none() {
            return Err(refuse(
                "the folder that this starts from has a name that is not UTF-8",
            ));
        }
        // `.` parts go, so that the same file has one spelling; `..` stays, since it may cross a symbolic link.
        Ok(joined.components().collect())
    }
    fn write(&self) -> Option<String> {
        self.to_str().map(quote)
    }
}

impl Setting for Vec<String> {
    fn kind() -> Kind {
        Kind::Texts
    }
    fn blank() -> Self {
        Vec::new()
    }
    fn read(value: &DeValue<'_>, base: &Path) -> Result<Self, Mismatch> {
        let list = value
            .as_array()
            .ok_or_else(|| Mismatch::wrong_type::<Self>(value))?;
        let texts = list.iter().map(|it| String::read(it.get_ref(), base));
        texts.collect::<Result<_, _>>().map_err(|wrong| Mismatch {
            found: format!("of one element: {}", wrong.found),
            must_be: "a list of strings, none empty".into(),
            cure: wrong.cure,
            number: None,
        })
    }
    fn write(&self) -> Option<String> {
        let quoted: Vec<String> = self.iter().map(|it| quote(it)).collect();
        Some(format!("[{}]", quoted.join(", ")))
    }
}

impl<T: Setting> Setting for Option<T> {
    fn kind() -> Kind {
        T::kind()
    }
    fn blank() -> Self {
        None
    }
    fn read(value: &DeValue<'_>, base: &Path) -> Result<Self, Mismatch> {
        T::read(value, base).map(Some)
    }
    fn write(&self) -> Option<String> {
        self.as_ref().and_then(T::write)
    }
    fn number(&self) -> Option<f64> {
        self.as_ref().and_then(T::number)
    }
}

/// A TOML basic string: one line, whatever the text holds.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
