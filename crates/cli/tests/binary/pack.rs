//! Packing: the published tiles, what is printed, and every bad line at once.

use serde_json::{Value, json};

use crate::tiny::Tiny;

fn trajectory(tokens: usize) -> String {
    json!({ "tokens": vec![1; tokens] }).to_string()
}

/// What `pack` says of one long trajectory on four context shards.
fn long(tiny: &Tiny, words: &str) -> Value {
    let common = "--budget 65536 --context 4 --blocks 1024x4096 --dkv-blocks 2048x2048 --json";
    let done = tiny
        .run(&format!("pack long.jsonl {common} {words}"))
        .well();
    serde_json::from_str(&done.out).unwrap()
}

#[test]
fn tiles_of_a_long_trajectory() {
    let tiny = Tiny::new();
    tiny.write("long.jsonl", &trajectory(60_948));
    let end = long(&tiny, "--order dual_chunk_swap");
    let tiles = json!({ "forward": [80, 136, 136, 136], "dkv": [74, 132, 132, 132] });
    assert_eq!(end["tiles"], tiles);
    assert_eq!(end["rows"][0]["tiles"], tiles);
    assert_eq!(end["rows"][0]["padding"], 4588);
    let start = long(
        &tiny,
        "--order dual_chunk_swap --pad start --pad-align 4096",
    );
    assert_eq!(
        start["tiles"],
        json!({ "forward": [125, 120, 120, 120], "dkv": [122, 116, 116, 116] })
    );
    let segment = json!({ "trajectory": 0, "line": 1, "start": 4096, "length": 60_948 });
    assert_eq!(start["rows"][0]["segments"], json!([segment]));
    for pad in ["end", "start"] {
        let even = long(&tiny, &format!("--order balanced --pad {pad}"));
        for (pass, most) in [("forward", 122), ("dkv", 118)] {
            let tiles = even["tiles"][pass].as_array().unwrap();
            let tiles: Vec<u64> = tiles.iter().map(|it| it.as_u64().unwrap()).collect();
            assert_eq!(tiles.len(), 4);
            assert!(tiles.iter().all(|&tiles| tiles <= most), "{pad}: {tiles:?}");
        }
    }
}

#[test]
fn rows_weights_and_work() {
    let tiny = Tiny::new();
    let lines = [
        json!({ "tokens": [5, 6, 7, 8, 9], "loss_mask": [0, 0, 1, 1, 1], "advantage": [0, 0, 1, 1, 1.5] }),
        json!({ "tokens": [1, 2, 3], "loss_mask": [0, 0, 0], "advantage": [0, 0, 0] }),
        json!({ "tokens": [1, 2, 3, 4, 5, 6], "loss_mask": [0, 1, 0, 0, 0, 0], "advantage": [0, 2, 0, 0, 0, 0] }),
    ];
    tiny.write(
        "some.jsonl",
        &lines.map(|line| line.to_string()).join("\n\n"),
    );
    let words = "--budget 8 --rows-per-micro-batch 4 --data-shards 2 --align 2";
    let done = tiny.run(&format!("pack some.jsonl {words} --json")).well();
    let said: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(said["row_count"], 4);
    assert_eq!(
        (&said["tokens"], &said["padding"]),
        (&json!(14), &json!(18))
    );
    assert_eq!(said["trained_tokens"], 4);
    assert_eq!(said["masked_trajectories"], 1);
    assert_eq!(said["loss_weight"], 1.0);
    let pairs = said["attention_pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 1);
    let mut pairs: Vec<u64> = pairs[0]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_u64().unwrap())
        .collect();
    pairs.sort_unstable();
    // 6 tokens have 21 pairs, 5 have 15 and 3 have 6.
    assert_eq!(pairs, [21, 21]);
    let table = tiny.run(&format!("pack some.jsonl {words}")).well().out;
    for part in [
        "3 trajectories of 14 tokens in 4 rows of 8",
        "forward tiles",
        "0+6",
        "0+5",
        "1.000000",
    ] {
        assert!(table.contains(part), "no {part:?} in\n{table}");
    }
}

#[test]
fn everything_wrong_is_told_with_its_place() {
    let tiny = Tiny::new();
    tiny.write(
        "bad.jsonl",
        "{\"tokens\":[1,2],\"advantages\":[1,2]}\n\nnot json\n{\"tokens\":[1,2,3,4,5,6,7,8,9]}\n\
         {\"tokens\":[1,2],\"value\":[0,0,0]}\n{\"tokens\":[1,2],\"loss_mask\":[1,1]}\n",
    );
    let done = tiny.run("pack bad.jsonl --budget 8 --align 3 --pad-align 5 --context 3");
    done.refused(
        2,
        &[
            "--budget 8 is not a multiple of --align 3",
            "--budget 8 is not a multiple of --context 3",
            "--pad-align 5 has no effect with --pad end",
            "bad.jsonl:1: unknown key \"advantages\"; did you mean \"advantage\"?",
            "bad.jsonl:3: not JSON",
            "bad.jsonl:4: trajectory 0 has 9 tokens, more than --budget 8; raise that, or shorten it with --truncate",
            "bad.jsonl:5: trajectory 1: value has 3 values for 2 tokens",
            "bad.jsonl:4: field value is in 1 of 3 trajectories",
            "bad.jsonl:6: trajectory 2: the loss mask asks for token 0",
            "bad.jsonl:4: loss_mask is in 1 of 3 trajectories",
        ],
    );
    tiny.write("good.jsonl", "{\"tokens\":[1,2,3]}");
    for (words, part) in [
        (
            "good.jsonl --budget 2",
            "good.jsonl:1: trajectory 0 has 3 tokens",
        ),
        ("absent.jsonl --budget 2", "absent.jsonl"),
        (
            "good.jsonl --budget 12 --context 4 --order dual_chunk_swap",
            "twice --context 4",
        ),
        (
            "good.jsonl --budget 12 --order striped",
            "known: contiguous, dual_chunk_swap, balanced",
        ),
        ("good.jsonl --budget 12 --pad middle", "known: end, start"),
        ("good.jsonl --budget 12 --blocks 12", "as in 1024x4096"),
        (
            "good.jsonl --budget 12 --pad start",
            "--pad-align 4096 is not below --budget 12",
        ),
        (
            "good.jsonl --budget 12 --aggregation mean",
            "unknown aggregation `mean`",
        ),
        // What the user wrote stays as it is, be it the name of an option.
        (
            "good.jsonl --budget 12 --aggregation context_size",
            "unknown aggregation `context_size`",
        ),
        (
            "good.jsonl --budget 12 --constant 3",
            "--constant 3 has no effect",
        ),
        (
            "good.jsonl --budget 12 --aggregation token-sum",
            "give --constant",
        ),
        (
            "good.jsonl --budget 12 --rows-per-micro-batch 3 --data-shards 2",
            "--rows-per-micro-batch 3 is not a multiple of --data-shards 2; nearest are 2 and 4",
        ),
        ("good.jsonl", "--budget"),
    ] {
        tiny.run(&format!("pack {words}")).refused(2, &[part]);
    }
    let cut = tiny
        .run("pack good.jsonl --budget 2 --truncate --json")
        .well();
    assert!(cut.out.contains("\"truncated\":1"), "{}", cut.out);
    tiny.write("empty.jsonl", "\n");
    tiny.run("pack empty.jsonl --budget 2")
        .refused(2, &["holds no trajectories"]);
}
