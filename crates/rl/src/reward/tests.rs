//! What counts as the same answer.

use super::*;

fn score(checker: Checker, wanted: &str, answer: &str) -> f32 {
    let problem = Problem {
        line: 1,
        prompt: "p".into(),
        answer: wanted.into(),
        extra: Default::default(),
    };
    checker.score(&problem, answer)
}

#[test]
fn exact_ignores_white_space_at_the_ends_only() {
    assert_eq!(score(Checker::Exact, "42", " 42\n"), 1.0);
    assert_eq!(score(Checker::Exact, " a b ", "a b"), 1.0);
    for wrong in ["4 2", "42.", "042", "", "A B"] {
        assert_eq!(score(Checker::Exact, "42", wrong), 0.0, "{wrong:?}");
    }
    assert_eq!(score(Checker::Exact, "a b", "a  b"), 0.0);
}

#[test]
fn number_takes_the_last_one_in_any_spelling() {
    for (wanted, answer) in [
        ("42", "6 * 7 is 42."),
        ("42", "**42**"),
        ("42", "042"),
        ("42", "42.00"),
        ("42", "+42"),
        ("-7", "x = -7"),
        ("-7", "(\u{2212}7)"),
        ("0", "-0.0"),
        ("0", "0"),
        ("1000", "$1,000.00 in all"),
        ("1234567", "1,234,567"),
        ("12.5", "12.50%"),
        ("0.5", ".5"),
        ("5", "it is...5"),
        ("1.5", "1.1.5"),
        ("5", "10-5"),
        ("3", "1,2,3"),
        ("2345", "1,2345"),
        ("#### 18", "so 9 * 2 = 18"),
        (
            "123456789012345678901234567890",
            "123,456,789,012,345,678,901,234,567,890",
        ),
        ("7", "version 7 é"),
    ] {
        assert_eq!(
            score(Checker::Number, wanted, answer),
            1.0,
            "{wanted} {answer:?}"
        );
    }
}

#[test]
fn number_refuses_everything_else() {
    for (wanted, answer) in [
        ("42", "42 or 43"),
        ("42", "-42"),
        ("42", "no idea"),
        ("42", ""),
        ("42", "4 2"),
        ("42", "420"),
        ("42", "42.5"),
        ("5", "0.5"),
        ("0.5", "5"),
        ("0.05", "0.5"),
        ("none", "none"),
        (
            "123456789012345678901234567890",
            "123456789012345678901234567891",
        ),
    ] {
        assert_eq!(
            score(Checker::Number, wanted, answer),
            0.0,
            "{wanted} {answer:?}"
        );
    }
}
