//! Rewards: whether an answer is right.
//!
//! Fixed rules only. Nothing here is learned, slow, or able to fail.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::dataset::Problem;

/// A rule that compares an answer with the one in the data set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checker {
    /// The texts are equal, apart from white space at both ends.
    #[default]
    Exact,
    /// The last number in the answer is the last number in the data set's answer.
    ///
    /// A number is digits with an optional sign, optional commas between groups of three, and an optional decimal part. `1,000`,
    /// `1000.0` and `+1000` are the same. Exponents and fractions are not understood: `1/2` ends in the number 2.
    Number,
}

impl Checker {
    /// 1 for a right answer, 0 for any other.
    pub fn score(self, problem: &Problem, answer: &str) -> f32 {
        let right = match self {
            Self::Exact => answer.trim() == problem.answer.trim(),
            Self::Number => {
                let wanted = last_number(&problem.answer);
                wanted.is_some() && last_number(answer) == wanted
            }
        };
        f32::from(u8::from(right))
    }

    /// Why no answer to this problem could ever be right; `None` where one could.
    pub(crate) fn refusal(self, problem: &Problem) -> Option<String> {
        (self == Self::Number && last_number(&problem.answer).is_none()).then(|| {
            format!(
                "answer {:?} has no number, which the checker \"number\" needs",
                problem.answer
            )
        })
    }
}

/// A number in one spelling, so that equal numbers are equal texts, however many digits they have.
#[derive(Debug, PartialEq, Eq)]
struct Number {
    negative: bool,
    /// Without leading zeros.
    whole: String,
    /// Without trailing zeros.
    fraction: String,
}

/// The last number in a text.
fn last_number(text: &str) -> Option<Number> {
    let bytes = text.as_bytes();
    let end = bytes.iter().rposition(u8::is_ascii_digit)? + 1;
    let start = start_of_number(bytes, end);
    let digits: String = text[start..end].chars().filter(|&c| c != ',').collect();
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    let (whole, fraction) = (
        whole.trim_start_matches('0').to_owned(),
        fraction.trim_end_matches('0').to_owned(),
    );
    // There is no negative zero.
    let negative = has_minus(&text[..start]) && !(whole.is_empty() && fraction.is_empty());
    Some(Number {
        negative,
        whole,
        fraction,
    })
}

/// Where the number that ends at `end` begins. Works backwards: its last digits are a fraction if a point stands before them.
fn start_of_number(bytes: &[u8], end: usize) -> usize {
    let digits_before = |end: usize| {
        bytes[..end]
            .iter()
            .rev()
            .take_while(|b| b.is_ascii_digit())
            .count()
    };
    let mut start = end - digits_before(end);
    if start > 0 && bytes[start - 1] == b'.' {
        let whole = digits_before(start - 1);
        if whole == 0 {
            // ".5" is one half, but in "is...5" and "item.5" the point is none of the number's.
            let before = bytes[..start - 1].last();
            let own = !before.is_some_and(|b| *b == b'.' || b.is_ascii_alphabetic());
            return if own { start - 1 } else { start };
        }
        start -= 1 + whole;
    } else if end - start != 3 {
        return start;
    }
    // "1,234,567": a comma counts if three digits follow it and one to three stand before it.
    let mut group = bytes[start..end]
        .iter()
        .take_while(|b| b.is_ascii_digit())
        .count();
    while group == 3 && start > 0 && bytes[start - 1] == b',' {
        group = digits_before(start - 1);
        if !(1..=3).contains(&group) {
            break;
        }
        start -= 1 + group;
    }
    start
}

/// Whether a text ends in a minus that is a sign: not one between two terms, as in `10-5` or `x-5`.
fn has_minus(before: &str) -> bool {
    let mut characters = before.chars().rev();
    matches!(characters.next(), Some('-' | '\u{2212}'))
        && !characters
            .next()
            .is_some_and(|c| c.is_alphanumeric() || c == ')')
}
