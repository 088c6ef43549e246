//! The lines of a file of trajectories.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::anyhow;
use ferrotune_batch::{Column, Element, Field, Trajectory, Values, predictable_mask};
use ferrotune_recipe::nearest;
use ferrotune_text::json_line;
use serde_json::{Map, Value};

use crate::failure::{Failure, OrFail};

/// What a file holds.
#[derive(Default)]
pub(crate) struct Lines {
    pub(crate) trajectories: Vec<Trajectory>,
    /// The line of each trajectory, from 1.
    pub(crate) numbers: Vec<usize>,
    /// Lines that are no trajectory, and why.
    pub(crate) bad: Vec<(usize, String)>,
}

/// Reads line by line, so that no more than the trajectories is held.
///
/// Refuses a file that cannot be read or has no lines; bad lines are collected.
pub(crate) fn read(path: &Path) -> Result<Lines, Failure> {
    let cannot = |error| crate::input_file::refusal(path, "the trajectories", &error);
    let mut file = BufReader::new(File::open(path).map_err(cannot).or_refuse()?);
    let mut lines = Lines::default();
    let mut without_mask = Vec::new();
    let mut text = Vec::new();
    for number in 1.. {
        text.clear();
        if file
            .read_until(b'\n', &mut text)
            .map_err(cannot)
            .or_refuse()?
            == 0
        {
            break;
        }
        if json_line::bare(&text).is_empty() {
            continue;
        }
        match parse(&text) {
            Ok((trajectory, mask_given)) => {
                if !mask_given {
                    without_mask.push(number);
                }
                lines.trajectories.push(trajectory);
                lines.numbers.push(number);
            }
            Err(problems) => lines
                .bad
                .extend(problems.into_iter().map(|why| (number, why))),
        }
    }
    let (total, without) = (lines.trajectories.len(), without_mask.len());
    if let Some(&number) = without_mask.first().filter(|_| without < total) {
        let with = total - without;
        lines.bad.push((
            number,
            format!("loss_mask is in {with} of {total} trajectories, and this one lacks it; give it to all or to none"),
        ));
    }
    if total == 0 && lines.bad.is_empty() {
        return Err(Failure::refused(anyhow!(
            "{} holds no trajectories: put {{\"tokens\": [...]}} on each line",
            path.display()
        )));
    }
    Ok(lines)
}

/// The trajectory, and whether its loss mask is its own; or all that is wrong with the line.
fn parse(line: &[u8]) -> Result<(Trajectory, bool), Vec<String>> {
    let value = json_line::value(line).map_err(|why| vec![why])?;
    let Value::Object(mut object) = value else {
        return Err(vec!["must be a JSON object with \"tokens\"".to_owned()]);
    };
    let mut problems = Vec::new();
    let tokens = match object.remove("tokens") {
        Some(value) => whole_numbers("tokens", &value, u32::MAX.into()),
        None => Err("has no \"tokens\"".to_owned()),
    };
    let tokens: Vec<u32> = told(tokens, &mut problems).unwrap_or_default();
    let mask = object.remove("loss_mask");
    let mask_given = mask.is_some();
    let mask = mask.map_or_else(
        || Ok(predictable_mask(tokens.len())),
        |value| loss_mask(&value),
    );
    let mask = told(mask, &mut problems).unwrap_or_default();
    let mut trajectory = Trajectory::new(tokens, mask);
    for &field in Field::ALL {
        let value = object.remove(field.name());
        let column = value.map(|value| column(field, &value));
        if let Some(column) = column.and_then(|it| told(it, &mut problems)) {
            trajectory.fields.set_column(field, column);
        }
    }
    problems.extend(unknown_keys(&object));
    match problems.is_empty() {
        true => Ok((trajectory, mask_given)),
        false => Err(problems),
    }
}

/// The value, or a problem more.
fn told<T>(result: Result<T, String>, problems: &mut Vec<String>) -> Option<T> {
    result.map_err(|why| problems.push(why)).ok()
}

fn unknown_keys(rest: &Map<String, Value>) -> Vec<String> {
    let known = || {
        let fields = Field::ALL.iter().map(|field| field.name());
        ["tokens", "loss_mask"].into_iter().chain(fields)
    };
    let cure = |key: &str| match nearest(key, known()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!("known: {}", known().collect::<Vec<_>>().join(", ")),
    };
    rest.keys()
        .map(|key| format!("unknown key {key:?}; {}", cure(key)))
        .collect()
}

fn list<'v>(name: &str, value: &'v Value) -> Result<&'v [Value], String> {
    match value {
        Value::Array(list) => Ok(list),
        _ => Err(format!("\"{name}\" must be a list of one entry a token")),
    }
}

/// Whole numbers up to `most`, of a type that holds them.
fn whole_numbers<T: TryFrom<i64>>(name: &str, value: &Value, most: i64) -> Result<Vec<T>, String> {
    let number = |value: &Value| {
        let number = value.as_i64().filter(|&number| number <= most);
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| {
            format!("\"{name}\" holds {value}, which is not a whole number that it can hold")
        })
    };
    list(name, value)?.iter().map(number).collect()
}

fn loss_mask(value: &Value) -> Result<Vec<bool>, String> {
    let on = |value: &Value| match (value.as_bool(), value.as_u64()) {
        (Some(on), _) => Ok(on),
        (None, Some(0)) => Ok(false),
        (None, Some(1)) => Ok(true),
        _ => Err(format!(
            "\"loss_mask\" holds {value}, which is none of 0, 1, false and true"
        )),
    };
    list("loss_mask", value)?.iter().map(on).collect()
}

fn column(field: Field, value: &Value) -> Result<Column, String> {
    let name = field.name();
    match field.element() {
        Element::F32 => {
            let number = |value: &Value| match value.as_f64() {
                Some(number) => Ok(number as f32),
                None => Err(format!("\"{name}\" holds {value}, which is not a number")),
            };
            let numbers = list(name, value)?.iter().map(number);
            numbers
                .collect::<Result<_, _>>()
                .map(Values::F32)
                .map(Column::new)
        }
        Element::S32 => {
            whole_numbers(name, value, i32::MAX.into()).map(|it| Column::new(Values::S32(it)))
        }
        Element::S16 => ids(name, value),
    }
}

/// A list of ids for each token, or of a list for each layer; all equally long.
fn ids(name: &str, value: &Value) -> Result<Column, String> {
    let uneven = || format!("\"{name}\" must hold a list of equally many ids for each token");
    let mut ids: Vec<i16> = Vec::new();
    let mut per_token = None;
    for token in list(name, value)? {
        let before = ids.len();
        for entry in token.as_array().ok_or_else(uneven)? {
            match entry {
                Value::Array(_) => ids.extend(whole_numbers::<i16>(name, entry, i16::MAX.into())?),
                _ => {
                    let one = Value::Array(vec![entry.clone()]);
                    ids.extend(whole_numbers::<i16>(name, &one, i16::MAX.into())?);
                }
            }
        }
        let count = ids.len() - before;
        if count == 0 || *per_token.get_or_insert(count) != count {
            return Err(uneven());
        }
    }
    Ok(Column::wide(per_token.unwrap_or(1), Values::S16(ids)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(line: &str) -> Vec<String> {
        parse(line.as_bytes()).map(|_| ()).unwrap_err()
    }

    #[test]
    fn a_line_may_have_every_field() {
        let line =
            br#"{"tokens":[5,6],"loss_mask":[0,true],"advantage":[0,1.5],"policy_version":[3,4],
            "expert_ids":[[[1,2],[3,-1]],[[4,5],[6,7]]],"return":[0,-1]}"#;
        let (trajectory, mask_given) = parse(line).unwrap();
        assert!(mask_given);
        assert_eq!(trajectory.tokens, [5, 6]);
        assert_eq!(trajectory.loss_mask, [false, true]);
        assert_eq!(trajectory.fields.get(Field::Advantage).unwrap(), [0.0, 1.5]);
        assert_eq!(trajectory.fields.get(Field::Return).unwrap(), [0.0, -1.0]);
        let column = |field| trajectory.fields.column(field).unwrap();
        assert_eq!(column(Field::PolicyVersion).s32().unwrap(), [3, 4]);
        assert_eq!(column(Field::ExpertIds).per_token(), 4);
        assert_eq!(
            column(Field::ExpertIds).s16().unwrap(),
            [1, 2, 3, -1, 4, 5, 6, 7]
        );
        let (trajectory, mask_given) = parse(br#"{"tokens":[5,6,7]}"#).unwrap();
        assert_eq!(
            (trajectory.loss_mask, mask_given),
            (vec![false, true, true], false)
        );
    }

    #[test]
    fn all_that_is_wrong_with_a_line_is_told() {
        assert_eq!(
            why(r#"{"token":[1],"advantages":[1],"loss_mask":[2],"value":"x","colour":1}"#),
            [
                "has no \"tokens\"",
                "\"loss_mask\" holds 2, which is none of 0, 1, false and true",
                "\"value\" must be a list of one entry a token",
                "unknown key \"token\"; did you mean \"tokens\"?",
                "unknown key \"advantages\"; did you mean \"advantage\"?",
                "unknown key \"colour\"; known: tokens, loss_mask, advantage, old_logprob, ref_logprob, \
                 sampler_logprob, value, return, policy_version, expert_ids",
            ]
        );
    }

    #[test]
    fn values_of_another_kind() {
        assert_eq!(
            why("{"),
            ["not JSON at column 1: EOF while parsing an object"]
        );
        assert_eq!(why("[1]"), ["must be a JSON object with \"tokens\""]);
        for (line, part) in [
            (
                r#"{"tokens":[1],"tokens":[2]}"#,
                "\"tokens\" is there twice",
            ),
            (r#"{"tokens":7}"#, "\"tokens\" must be a list"),
            (r#"{"tokens":[-1]}"#, "holds -1"),
            (r#"{"tokens":[1.5]}"#, "holds 1.5"),
            (r#"{"tokens":[4294967296]}"#, "holds 4294967296"),
            (r#"{"tokens":[1],"advantage":[null]}"#, "holds null"),
            (r#"{"tokens":[1],"policy_version":[0.5]}"#, "holds 0.5"),
            (r#"{"tokens":[1],"expert_ids":[40000]}"#, "equally many"),
            (r#"{"tokens":[1],"expert_ids":[[40000]]}"#, "holds 40000"),
            (
                r#"{"tokens":[1,2],"expert_ids":[[1],[1,2]]}"#,
                "equally many",
            ),
            (r#"{"tokens":[1],"expert_ids":[[]]}"#, "equally many"),
        ] {
            assert!(why(line)[0].contains(part), "{line}: {:?}", why(line));
        }
    }
}
