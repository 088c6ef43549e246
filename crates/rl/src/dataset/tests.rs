//! Good files, and every kind of bad line.

use super::*;
use crate::error::LineProblem;

/// Reads a file with this content; returns it with the folder that keeps it alive.
fn read(content: &[u8]) -> (tempfile::TempDir, Result<Dataset>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.jsonl");
    std::fs::write(&path, content).unwrap();
    let dataset = Dataset::read(&path);
    (dir, dataset)
}

fn good(content: &[u8]) -> Dataset {
    read(content).1.unwrap()
}

fn problems(content: &[u8]) -> Vec<String> {
    match read(content).1 {
        Err(Error::Lines {
            problems, count, ..
        }) => {
            assert_eq!(count, problems.len());
            problems
                .iter()
                .map(|LineProblem { line, message }| format!("{line}: {message}"))
                .collect()
        }
        other => panic!("expected bad lines, got {other:?}"),
    }
}

#[test]
fn reads_problems_and_keeps_the_other_fields() {
    let text = b"\xef\xbb\xbf{\"prompt\":\"1+1\",\"level\":3,\"answer\":\"2\",\"tags\":[\"sum\"]}\r\n\n  \n{\"answer\":\" x \",\"prompt\":\"\xc3\xa9\"}";
    let data = good(text);
    let [first, second] = data.problems() else {
        panic!("{data:?}")
    };
    assert_eq!(
        (first.line, first.prompt.as_str(), first.answer.as_str()),
        (1, "1+1", "2")
    );
    assert_eq!(
        serde_json::to_string(&first.extra).unwrap(),
        r#"{"level":3,"tags":["sum"]}"#
    );
    assert_eq!(
        (second.line, second.prompt.as_str(), second.answer.as_str()),
        (4, "é", " x ")
    );
    assert!(second.extra.is_empty());
    // The same problem, even under the same id, may be there twice.
    good(b"{\"id\":1,\"prompt\":\"a\",\"answer\":\"b\"}\n{\"id\":1,\"prompt\":\"a\",\"answer\":\"b\"}\n");
}

#[test]
fn every_bad_line_is_listed_with_its_number() {
    let text = b"{\"prompt\":\"a\",\"answer\":\"b\"}
{\"prompt\":\"a\",
{\"prompt\":\"a\"}

{\"question\":\"a\"}
{\"prompt\":[1],\"answer\":7}
[]
{\"prompt\":\"  \",\"answer\":null}
{\"prompt\":\"a\",\"answer\":\"\xff\"}
{\"prompt\":\"a\",\"answer\":\"b\"} tail
";
    assert_eq!(
        problems(text),
        [
            "2: not JSON at column 14: EOF while parsing a value",
            "3: has no \"answer\"",
            "5: has no \"prompt\"",
            "5: has no \"answer\"",
            "6: \"prompt\" must be a text, found a list",
            "6: \"answer\" must be a text, found 7",
            "7: must be a JSON object, found a list",
            "8: \"prompt\" is blank",
            "8: \"answer\" must be a text, found null",
            "9: not UTF-8 text at byte 25",
            "10: not JSON at column 29: trailing characters",
        ]
    );
}

#[test]
fn a_long_list_is_cut_and_counted() {
    let (dir, result) = read("oops\n".repeat(50).as_bytes());
    let error = result.unwrap_err();
    let text = error.to_string();
    let path = dir.path().join("data.jsonl");
    assert!(
        text.starts_with(&format!(
            "the data set {} has 50 bad line(s):",
            path.display()
        )),
        "{text}"
    );
    assert!(
        text.contains(&format!("\n  {}:20: not JSON", path.display())) && !text.contains(":21:"),
        "{text}"
    );
    assert!(text.ends_with("\n  and 30 more"), "{text}");
}

#[test]
fn absent_and_empty_files_are_named() {
    assert!(matches!(read(b"").1, Err(Error::Empty { .. })));
    assert!(matches!(read(b"\n \n").1, Err(Error::Empty { .. })));
    let error = Dataset::read("no-such.jsonl").unwrap_err().to_string();
    assert!(
        error.starts_with("cannot read the data set no-such.jsonl: "),
        "{error}"
    );
}

#[test]
fn deep_nesting_is_an_error_and_not_a_crash() {
    let deep = "[".repeat(1_000_000);
    assert_eq!(
        problems(deep.as_bytes()),
        ["1: not JSON at column 128: recursion limit exceeded"]
    );
}

#[test]
fn overlap_of_training_and_held_out_problems_is_found() {
    let train = good(b"{\"prompt\":\"a\",\"answer\":\"1\"}\n{\"prompt\":\"b\",\"answer\":\"1\"}");
    let apart = good(b"{\"prompt\":\"c\",\"answer\":\"1\"}");
    check_disjoint(&train, &apart).unwrap();
    // Another answer does not make it another problem.
    let heldout =
        good(b"{\"prompt\":\"c\",\"answer\":\"1\"}\n{\"prompt\":\" b\\n\",\"answer\":\"2\"}");
    let error = check_disjoint(&train, &heldout).unwrap_err();
    let Error::Overlap {
        problems, count, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!((problems.len(), *count, problems[0].line), (1, 1, 2));
    assert!(problems[0].message.ends_with("data.jsonl:2"), "{error}");
}

#[test]
fn answers_that_no_checker_could_accept_are_found_before_a_run() {
    let data =
        good(b"{\"prompt\":\"a\",\"answer\":\"7\"}\n{\"prompt\":\"b\",\"answer\":\"seven\"}");
    data.check_answers(Checker::Exact).unwrap();
    let Error::Lines {
        problems, count, ..
    } = data.check_answers(Checker::Number).unwrap_err()
    else {
        panic!()
    };
    assert_eq!((count, problems[0].line), (1, 2));
    assert_eq!(
        problems[0].message,
        "answer \"seven\" has no number, which the checker \"number\" needs"
    );
}
