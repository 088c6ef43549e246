//! What the command line reads.

use clap::CommandFactory;

use super::*;

#[test]
fn the_command_line_is_consistent() {
    Args::command().debug_assert();
}

#[test]
fn a_mesh_is_a_list_of_axes() {
    let mesh = |given: &[&str]| {
        let words = "ferrotune bench head --topology tpu7x:4x4x8".split(' ');
        let words = words.chain(given.iter().copied());
        match Args::try_parse_from(words).map(|it| it.command) {
            Ok(Command::Bench(BenchCommand::Head(args))) => Ok(args.mesh),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    };
    let axes = |it: &[(&str, usize)]| {
        let owned = it.iter().map(|(name, size)| ((*name).to_owned(), *size));
        Ok(owned.collect::<Vec<_>>())
    };
    let default = [("fsdp", 32), ("context", 4), ("expert", 2)];
    assert_eq!(mesh(&[]), axes(&default));
    assert_eq!(
        mesh(&["--mesh", "context=4,fsdp=2"]),
        axes(&[("context", 4), ("fsdp", 2)])
    );
    for (given, part) in [
        ("fsdp=0", "size of fsdp must be a whole number from 1"),
        ("fsdp=2,context=x", "size of context must be"),
        (
            "data=2",
            "no axis `data`; the axes are fsdp, context, expert",
        ),
        ("fsdp", "axis=size, such as fsdp=32"),
    ] {
        let why = mesh(&["--mesh", given]).unwrap_err();
        assert!(why.contains(part), "{given}: {why}");
    }
}

#[test]
fn overrides_and_flags_may_come_in_any_order() {
    let parse = |words: &[&str]| match Args::try_parse_from(words).unwrap().command {
        Command::Train(args) => (args.overrides, args.resume),
        other => panic!("{other:?}"),
    };
    let expected = (vec!["seed=7".to_owned(), "mesh.fsdp=2".to_owned()], true);
    assert_eq!(
        parse(&[
            "ferrotune",
            "train",
            "a.toml",
            "seed=7",
            "mesh.fsdp=2",
            "--resume"
        ]),
        expected
    );
    assert_eq!(
        parse(&[
            "ferrotune",
            "train",
            "--resume",
            "a.toml",
            "seed=7",
            "mesh.fsdp=2"
        ]),
        expected
    );
    assert_eq!(
        parse(&[
            "ferrotune",
            "train",
            "a.toml",
            "seed=7",
            "--resume",
            "mesh.fsdp=2"
        ]),
        expected
    );
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    for words in [
        ["--max-new", "0"],
        ["--n", "-1"],
        ["--temperature", "NaN"],
        ["--temperature", "1e-9"],
        ["--temperature", "-1"],
        ["--temperature", "-0.5"],
        ["--temperature", "inf"],
        ["--max-new", "-3"],
        ["--max-new", "1.5"],
        ["--max-new", "99999999999999999999"],
        ["--seed", "-1"],
        ["--top-p", "-0.5"],
        ["--top-k", "-1"],
        ["--top-p", "0"],
        ["--top-p", "NaN"],
        ["--min-p", "1.5"],
        ["--stop", ""],
    ] {
        let line = [
            "ferrotune",
            "sample",
            "dir",
            "--prompt",
            "x",
            words[0],
            words[1],
        ];
        let error = Args::try_parse_from(line).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{words:?}");
        // The value is judged, and not taken for another flag.
        let text = error.to_string();
        assert!(
            text.contains("must be ") || text.contains("value is required"),
            "{words:?}: {text}"
        );
    }
}

#[test]
fn filters_are_judged_alike_wherever_they_are_given() {
    let says = |line: [&str; 4], words: [&str; 2]| {
        let error = Args::try_parse_from(line.into_iter().chain(words)).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{words:?}");
        error.to_string()
    };
    for words in [
        ["--top-k", "-1"],
        ["--top-k", "2.5"],
        ["--top-p", "0"],
        ["--top-p", "1.1"],
        ["--min-p", "-0.1"],
        ["--min-p", "NaN"],
    ] {
        let text = says(["ferrotune", "score", "dir", "docs.jsonl"], words);
        assert!(text.contains("must be "), "{words:?}: {text}");
        let sampling = says(["ferrotune", "sample", "dir", "--prompt=x"], words);
        assert_eq!(text, sampling, "{words:?}");
    }
    // Nothing can be divided by 0, which means greedy decoding elsewhere.
    for temperature in ["0", "-1", "1e-9", "inf"] {
        let words = ["--temperature", temperature];
        let text = says(["ferrotune", "score", "dir", "docs.jsonl"], words);
        assert!(
            text.contains("must be a finite number of at least 0.001"),
            "{text}"
        );
    }
}

#[test]
fn both_ways_to_give_a_prompt_are_named() {
    let text = |words: &[&str]| Args::try_parse_from(words).unwrap_err().to_string();
    let none = text(&["ferrotune", "sample", "dir"]);
    assert!(
        none.contains("--prompt <TEXT>|--prompts <FILE.jsonl>"),
        "{none}"
    );
    let both = text(&[
        "ferrotune",
        "sample",
        "dir",
        "--prompt",
        "a",
        "--prompts",
        "b",
    ]);
    assert!(both.contains("cannot be used with"), "{both}");
}
