//! The template filter `tojson`, as Hugging Face has it: Python's `json.dumps` with `ensure_ascii=False`.
//!
//! Unlike the engine's own filter it escapes nothing for HTML, keeps the order of keys, and takes `ensure_ascii`, `indent`,
//! `separators` and `sort_keys`.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde_json::{Number, Value as Json};

/// `value | tojson(...)`.
pub(crate) fn tojson(value: Value, options: Kwargs) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(invalid("an undefined value cannot be written as JSON"));
    }
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(it) if it.is_none() => None,
        Some(it) => Some(match it.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(
                usize::try_from(it).map_err(|_| invalid("indent is neither a count nor a text"))?,
            ),
        }),
    };
    let (item, key) = match options.get::<Option<Vec<String>>>("separators")? {
        Some(given) => <[String; 2]>::try_from(given)
            .map_err(|_| invalid("separators are not two texts"))?
            .into(),
        None => (
            if indent.is_some() { "," } else { ", " }.to_owned(),
            ": ".to_owned(),
        ),
    };
    let writer = Writer {
        indent,
        item,
        key,
        ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let json = serde_json::to_value(&value).map_err(|error| invalid(&error.to_string()))?;
    let mut out = String::new();
    writer.value(&json, 0, &mut out);
    Ok(out)
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {message}"))
}

struct Writer {
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sorted: bool,
}

impl Writer {
    fn value(&self, json: &Json, depth: usize, out: &mut String) {
        match json {
            Json::Null => out.push_str("null"),
            Json::Bool(it) => out.push_str(if *it { "true" } else { "false" }),
            Json::Number(it) => out.push_str(&number(it)),
            Json::String(it) => self.string(it, out),
            Json::Array(items) => self.list(items.iter(), ['[', ']'], depth, out, |item, out| {
                self.value(item, depth + 1, out);
            }),
            Json::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sorted {
                    entries.sort_by_key(|&(key, _)| key);
                }
                self.list(
                    entries.into_iter(),
                    ['{', '}'],
                    depth,
                    out,
                    |(key, value), out| {
                        self.string(key, out);
                        out.push_str(&self.key);
                        self.value(value, depth + 1, out);
                    },
                );
            }
        }
    }

    fn list<T>(
        &self,
        items: impl ExactSizeIterator<Item = T>,
        [open, close]: [char; 2],
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(T, &mut String),
    ) {
        out.push(open);
        let empty = items.len() == 0;
        for (i, item) in items.enumerate() {
            if i > 0 {
                out.push_str(&self.item);
            }
            self.line(depth + 1, out);
            write(item, out);
        }
        if !empty {
            self.line(depth, out);
        }
        out.push(close);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for char in text.chars() {
            match char {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                char if char < ' ' || (self.ascii && char > '~') => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                char => out.push(char),
            }
        }
        out.push('"');
    }
}

/// A number as Python's `repr` writes it: `1.0`, `1e-05`, `1e+16`.
fn number(number: &Number) -> String {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else {
        return number.to_string();
    };
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{float:?}"),
    }
}
