//! Problems with known answers, from a file of JSON lines.
//!
//! Every bad line is reported, with its number. Prompts are kept as text: templates and tokens are not known here.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ferrotune_text::json_line;
use serde_json::{Map, Value};

use crate::error::{Error, LineProblems, Result};
use crate::reward::Checker;

/// One problem of a data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Line in the file, from 1.
    pub line: usize,
    /// What the model is asked.
    pub prompt: String,
    /// What a right answer is compared with.
    pub answer: String,
    /// The other fields of the line, as they are.
    pub extra: Map<String, Value>,
}

/// The problems of one file.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    path: PathBuf,
    problems: Vec<Problem>,
}

impl Dataset {
    /// Reads a file with one object on each line: `{"prompt": "...", "answer": "...", ...}`. Blank lines are skipped.
    ///
    /// # Errors
    /// [`Error::Read`]; [`Error::Lines`] with every line that is not UTF-8, not a JSON object, has a key twice, or no text under
    /// `prompt` or `answer`; [`Error::Empty`].
    pub fn read(path: impl AsRef<Path>) -> Result<Dataset> {
        Dataset::read_fields(path, "prompt", "answer")
    }

    /// As [`Dataset::read`], with prompt and answer under other names.
    ///
    /// # Errors
    /// As [`Dataset::read`].
    pub fn read_fields(path: impl AsRef<Path>, prompt: &str, answer: &str) -> Result<Dataset> {
        let path = path.as_ref().to_path_buf();
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(source) => return Err(Error::Read { path, source }),
        };
        let mut problems = Vec::new();
        let mut bad = LineProblems::default();
        for (line, bytes) in (1..).zip(bytes.split(|&b| b == b'\n')) {
            if json_line::bare(bytes).is_empty() {
                continue;
            }
            match read_line(line, bytes, [prompt, answer]) {
                Ok(problem) => problems.push(problem),
                Err(messages) => messages
                    .into_iter()
                    .for_each(|message| bad.push(line, message)),
            }
        }
        if bad.count > 0 {
            return Err(Error::Lines {
                path,
                problems: bad.first,
                count: bad.count,
            });
        }
        if problems.is_empty() {
            return Err(Error::Empty { path });
        }
        Ok(Dataset { path, problems })
    }

    /// The file that was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The problems, in the order of the file; there is at least one.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Checks that every problem has an answer with which `checker` can do something.
    ///
    /// # Errors
    /// [`Error::Lines`] with every problem for which no answer could ever be right.
    pub fn check_answers(&self, checker: Checker) -> Result<()> {
        let mut bad = LineProblems::default();
        for problem in &self.problems {
            if let Some(message) = checker.refusal(problem) {
                bad.push(problem.line, message);
            }
        }
        if bad.count == 0 {
            return Ok(());
        }
        Err(Error::Lines {
            path: self.path.clone(),
            problems: bad.first,
            count: bad.count,
        })
    }
}

/// Checks that no held-out prompt is among those for training, white space at both ends apart.
///
/// # Errors
/// [`Error::Overlap`] with every prompt that is in both.
pub fn check_disjoint(train: &Dataset, heldout: &Dataset) -> Result<()> {
    let lines: HashMap<&str, usize> = train
        .problems
        .iter()
        .map(|p| (p.prompt.trim(), p.line))
        .collect();
    let mut bad = LineProblems::default();
    for problem in &heldout.problems {
        if let Some(line) = lines.get(problem.prompt.trim()) {
            bad.push(
                problem.line,
                format!("also at {}:{line}", train.path.display()),
            );
        }
    }
    if bad.count == 0 {
        return Ok(());
    }
    Err(Error::Overlap {
        train: train.path.clone(),
        heldout: heldout.path.clone(),
        problems: bad.first,
        count: bad.count,
    })
}

/// One line, or everything that is wrong with it.
fn read_line(
    line: usize,
    bytes: &[u8],
    [prompt, answer]: [&str; 2],
) -> Result<Problem, Vec<String>> {
    let value = json_line::value(bytes).map_err(|why| vec![why])?;
    let Value::Object(mut extra) = value else {
        return Err(vec![format!(
            "must be a JSON object, found {}",
            kind(&value)
        )]);
    };
    let mut messages = Vec::new();
    let mut take = |name: &str| match extra.shift_remove(name) {
        Some(Value::String(text)) if !text.trim().is_empty() => text,
        other => {
            messages.push(match other {
                None => format!("has no \"{name}\""),
                Some(Value::String(_)) => format!("\"{name}\" is blank"),
                Some(value) => format!("\"{name}\" must be a text, found {}", kind(&value)),
            });
            String::new()
        }
    };
    let (prompt, answer) = (take(prompt), take(answer));
    if messages.is_empty() {
        Ok(Problem {
            line,
            prompt,
            answer,
            extra,
        })
    } else {
        Err(messages)
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(_) => "a text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
