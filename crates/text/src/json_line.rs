//! Files with one JSON value on each line.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A line without its end, and without the mark that some editors put before UTF-8 text. Nothing is left of one that is blank.
pub fn bare(line: &[u8]) -> &[u8] {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    line.trim_ascii_end()
}

/// The value of a line. An object that has a key twice is refused, since one of its two values would be left out without a word.
///
/// # Errors
/// What is wrong with the line, in words that go behind its place.
pub fn value(line: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(bare(line))
        .map_err(|e| format!("not UTF-8 text at byte {}", e.valid_up_to() + 1))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = OnceEach.deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| {
        // The library counts lines within the text it is given, which is always one.
        let place = format!(" at line {} column {}", error.line(), error.column());
        let message = error.to_string();
        let message = message.strip_suffix(&place).unwrap_or(&message);
        match error.is_data() {
            true => message.to_owned(),
            false => format!("not JSON at column {}: {message}", error.column()),
        }
    })
}

/// A value in which every object has each of its keys once.
struct OnceEach;

impl<'de> DeserializeSeed<'de> for OnceEach {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for OnceEach {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut found = Vec::new();
        while let Some(item) = items.next_element_seed(OnceEach)? {
            found.push(item);
        }
        Ok(Value::Array(found))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut found = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(OnceEach)?;
            if found.contains_key(&key) {
                return Err(A::Error::custom(format_args!(
                    "the key {key:?} is there twice: keep one of them"
                )));
            }
            found.insert(key, value);
        }
        Ok(Value::Object(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_that_the_library_reads() {
        let text = r#"{"a":[1,-2,1.5e300,18446744073709551615,"\u00e9\n",null,true,[],{}],"b":{"a":{"c":0.1}}}"#;
        let whole: Value = serde_json::from_str(text).unwrap();
        assert_eq!(value(text.as_bytes()), Ok(whole.clone()));
        for line in [format!("\u{feff}{text}"), format!("{text} \r\n")] {
            assert_eq!(value(line.as_bytes()), Ok(whole.clone()), "{line:?}");
        }
        assert!(bare("\u{feff} \r\n".as_bytes()).is_empty());
    }

    #[test]
    fn what_is_none_is_told_with_its_place() {
        for (line, why) in [
            (
                &b"{"[..],
                "not JSON at column 1: EOF while parsing an object",
            ),
            (b"{} {}", "not JSON at column 4: trailing characters"),
            (b"{\"a\": \xff}", "not UTF-8 text at byte 7"),
            (
                b"{\"a\":1,\"a\":1}",
                "the key \"a\" is there twice: keep one of them",
            ),
            (
                b"[{\"b\":{\"a b\":1,\"c\":2,\"a b\":3}}]",
                "the key \"a b\" is there twice: keep one of them",
            ),
        ] {
            assert_eq!(value(line).unwrap_err(), why);
        }
        // The same key may be in two objects.
        assert!(value(b"[{\"a\":1},{\"a\":{\"a\":2}}]").is_ok());
        let deep = "[".repeat(200);
        assert!(
            value(deep.as_bytes())
                .unwrap_err()
                .contains("recursion limit")
        );
    }
}
