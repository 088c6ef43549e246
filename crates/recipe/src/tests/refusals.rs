use super::*;

#[test]
fn everything_that_is_wrong_is_said_at_once_with_place_and_cure() {
    let text = "\
seed = -3
compute_dtype = \"bf61\"

[model]
path = \"modle\"

[data]
train = \"trian.jsonl\"
heldot = \"heldout.jsonl\"

[rl]
group_size = 1
steps = \"100\"
epsilon = 0.2

[mesh]
data = 2

[packing]
rows_per_micro_batch = 5
row_tokens = 100

[tensors]
x = 1
";
    assert_eq!(
        refusal(text, &["mesh.fsdp=3"]),
        r#"error: `seed` must be at least 0
 --> r.toml:1:8
  |
1 | seed = -3
  |        ^^ this is negative
  |
  = help: Every random draw of the run follows from this number.

error: `compute_dtype` must be "auto", "f32" or "bf16"
 --> r.toml:2:17
  |
2 | compute_dtype = "bf61"
  |                 ^^^^^^ no such choice
  |
  = help: did you mean "bf16"?

error: `model.path`: modle does not exist
 --> r.toml:5:8
  |
5 | path = "modle"
  |        ^^^^^^^ here
  |
  = help: did you mean model?

error: `data.heldout` is missing
 --> r.toml:7:1
  |
7 | [data]
  | ^^^^^^ has no `heldout`
  |
  = help: add `heldout = ...` under [data]: a path (a string)

error: `data.train`: trian.jsonl does not exist
 --> r.toml:8:9
  |
8 | train = "trian.jsonl"
  |         ^^^^^^^^^^^^^ here
  |
  = help: did you mean train.jsonl?

error: unknown key `data.heldot`
 --> r.toml:9:1
  |
9 | heldot = "heldout.jsonl"
  | ^^^^^^ no such key
  |
  = help: did you mean `data.heldout`?

error: `rl.group_size` must be at least 2
  --> r.toml:12:14
   |
12 | group_size = 1
   |              ^ must be at least 2
   |
   = help: an answer is judged against the others of its group; alone, its advantage is always zero

error: `rl.steps` must be an integer
  --> r.toml:13:9
   |
13 | steps = "100"
   |         ^^^^^ this is a string
   |
   = help: write 100 without the quotes

error: unknown key `rl.epsilon`
  --> r.toml:14:1
   |
14 | epsilon = 0.2
   | ^^^^^^^ no such key
   |
   = help: did you mean `rl.clip_ratio_low`?

error: the mesh does not divide the rows of a micro-batch
  --> r.toml:20:24
   |
17 | data = 2
   |        - data is 2
...
20 | rows_per_micro_batch = 5
   |                        ^ must be a multiple of data * fsdp = 6
   |
  ::: override 1:1:11
   |
 1 | mesh.fsdp=3
   |           - fsdp is 3
   |
   = help: try `packing.rows_per_micro_batch` = 6

error: the longest prompt with the longest answer does not fit a row
  --> r.toml:21:14
   |
21 | row_tokens = 100
   |              ^^^ must be at least 512
   |
   = note: `rollout.max_prompt_tokens` is 256 by default; up to 256 tokens of prompt
   = note: `rollout.max_new_tokens` is 256 by default; up to 256 tokens of answer
   = help: raise `packing.row_tokens` to 512, or shorten prompts or answers

error: unknown table `tensors`
  --> r.toml:23:2
   |
23 | [tensors]
   |  ^^^^^^^ no such table
   |
   = help: the top level has seed, compute_dtype, fp8_history, run, model, data, warmup, rl, lora, router, optimizer, head, rollout, packing, mesh, eval, checkpoint, reward

12 problems in r.toml: nothing was started"#
    );
}

#[test]
fn types_are_strict() {
    for (line, error) in [
        ("seed = 1.0", "must be an integer"),
        ("seed = [1]", "must be an integer"),
        ("seed = 2026-01-01", "must be an integer"),
        ("seed = true", "must be an integer"),
        (
            "seed = 99999999999999999999",
            "must be at most 9223372036854775807",
        ),
        (
            "seed = 9223372036854775808",
            "must be at most 9223372036854775807",
        ),
        ("[seed]", "must be an integer"),
        (
            "compute_dtype = 32",
            "must be \"auto\", \"f32\" or \"bf16\"",
        ),
        ("[run]\nname = 3", "must be a string"),
        ("[run]\ndir = [\"a\"]", "must be a path"),
        ("[run]\ndir = \"\"", "must be a path"),
        ("[run]\ndir = \"a\\u0000b\"", "must be a path"),
        ("[rollout]\ntemperature = \"hot\"", "must be a number"),
        ("[rollout]\ntemperature = nan", "must be a number"),
        ("[rollout]\ntemperature = inf", "must be at most 1000"),
        ("[rollout]\ntemperature = 0", "must be at least 0.001"),
        ("[optimizer]\nbeta1 = 1.0", "must be below 1"),
        ("[optimizer]\nmax_grad_norm = 0.0", "must be above 0"),
        (
            "[optimizer]\nkind = \"adam\"",
            "must be \"adamw\", \"sgd\", \"nesterov\" or \"muon\"",
        ),
        (
            "[rl]\nprompts_per_step = 5000000000000000000",
            "must be at most 65536",
        ),
        ("[mesh]\nfsdp = 0", "must be at least 1"),
        ("[mesh.fsdp]\nx = 1", "must be an integer"),
        ("[[mesh]]\nfsdp = 1", "must be a table"),
        ("mesh = 2", "must be a table"),
        ("[rl.extra]\nx = 1", "unknown table `rl.extra`"),
        ("[rl]\nextra.x = 1", "unknown table `rl.extra`"),
        ("\"mesh.fsdp\" = 2", "unknown key"),
    ] {
        // Before the tables of LEAST, since some of these lines belong to the top level.
        let text = format!("{line}\n{LEAST}");
        let refused = refusal(&text, &[]);
        assert!(
            refused.contains(error),
            "{line} should say {error:?}:\n{refused}"
        );
        assert!(
            refused.contains("\n1 problem in "),
            "{line} should be the only problem:\n{refused}"
        );
    }
}

#[test]
fn a_number_in_quotes_or_with_a_point_comes_with_its_cure() {
    assert!(refusal(&with("[rl]\nsteps = 1e3"), &[]).contains("help: write 1000"));
    assert!(
        refusal(&with("[rl]\nsteps = \" 5 \""), &[]).contains("help: write 5 without the quotes")
    );
    assert!(refusal(&with("[run]\nname = 5"), &[]).contains("help: put it in quotes"));
}

#[test]
fn a_near_miss_with_a_bare_word_is_a_near_miss() {
    let refused = refusal(&with(""), &["mesh.ordr=balanced"]);
    assert!(
        refused.contains("unknown key `mesh.ordr`") && refused.contains("mesh.order"),
        "{refused}"
    );
    assert!(!refused.contains("TOML"), "{refused}");
}

#[test]
fn a_file_that_is_not_toml_says_where() {
    let refused = refusal("seed = \n[mesh\nfsdp = 2\n", &[]);
    assert!(
        refused.contains("error: this is not TOML\n --> r.toml:1:8"),
        "{refused}"
    );
    assert!(refused.contains(" --> r.toml:2:6"), "{refused}");
    assert!(
        !refused.contains("missing"),
        "what follows from broken text is noise:\n{refused}"
    );
    let refused = refusal("seed = 1\nseed = 2\n", &[]);
    assert!(refused.contains("duplicate key"), "{refused}");
}

#[test]
fn a_recipe_that_cannot_be_read_is_an_error_with_a_suggestion() {
    let folder = Folder::new();
    std::fs::write(folder.path("quickstart.toml"), LEAST).unwrap();
    assert_eq!(
        folder
            .load_file(&folder.path("quikstart.toml"), &[])
            .unwrap_err(),
        "\
error: cannot read the recipe quikstart.toml: it does not exist
--> quikstart.toml
 = help: did you mean quickstart.toml?

1 problem in quikstart.toml: nothing was started"
    );
    let refused = folder
        .load_file(&folder.path("model"), &["seed"])
        .unwrap_err();
    assert!(
        refused.contains("cannot read the recipe")
            && refused.contains("an override must be key=value"),
        "{refused}"
    );
    std::fs::write(folder.path("binary.toml"), b"seed = 1\n\xff\n").unwrap();
    let refused = folder
        .load_file(&folder.path("binary.toml"), &[])
        .unwrap_err();
    assert!(refused.contains("line 2 is not UTF-8 text"), "{refused}");
    std::fs::write(folder.path("large.toml"), vec![b'#'; (1 << 20) + 1]).unwrap();
    let refused = folder
        .load_file(&folder.path("large.toml"), &[])
        .unwrap_err();
    assert!(refused.contains("larger than 1 MiB"), "{refused}");
}

#[test]
fn files_must_be_there_and_be_what_they_are_taken_for() {
    let folder = Folder::new();
    let refused = |text: &str, overrides: &[&str]| folder.load(text, overrides).unwrap_err();

    let pretrained = LEAST.replace("random", "pretrained");
    let text = refused(&pretrained, &[]);
    assert!(
        text.contains("`model.path`: model has no model.safetensors\n"),
        "{text}"
    );
    assert!(
        text.contains("help: to start from random weights, set `model.init = \"random\"`"),
        "{text}"
    );
    std::fs::write(folder.path("model/model.safetensors.index.json"), "").unwrap();
    assert!(
        folder.load(&pretrained, &[]).is_ok(),
        "weights in parts are weights"
    );

    let text = refused(&LEAST.replace("\"model\"", "\"train.jsonl\""), &[]);
    assert!(
        text.contains("`model.path`: train.jsonl is not a folder"),
        "{text}"
    );
    let text = refused(&LEAST.replace("\"train.jsonl\"", "\"model\""), &[]);
    assert!(
        text.contains("`data.train`: model is a folder, not a file"),
        "{text}"
    );
    let text = refused(
        &LEAST.replace("\"heldout.jsonl\"", "\"model/../train.jsonl\""),
        &[],
    );
    assert!(
        text.contains("the held-out problems are the training problems"),
        "{text}"
    );
    std::fs::remove_file(folder.path("model/tokenizer.json")).unwrap();
    let text = refused(LEAST, &[]);
    assert!(
        text.contains("model has no tokenizer.json") && text.contains("save a slow tokenizer"),
        "{text}"
    );
    std::fs::remove_file(folder.path("model/config.json")).unwrap();
    let text = refused(LEAST, &[]);
    assert!(
        text.contains("model has no config.json, no tokenizer.json"),
        "{text}"
    );
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let refused = refusal(
        "\"\\u001b[31mred\" = 1\n",
        &["rl.\u{1b}[2Jx=1", "seed=\u{1b}[2J"],
    );
    assert!(!refused.contains('\u{1b}'), "{refused:?}");

    let folder = Folder::new();
    std::fs::write(folder.path("r.toml"), "\"\\u001b[31mred\" = 1\n").unwrap();
    let refused = Recipe::load(folder.path("\u{7}.toml"), &["a\u{7}=1".to_owned()]).unwrap_err();
    assert!(
        refused
            .iter()
            .all(|problem| !problem.title().contains(char::is_control))
    );
}

#[test]
fn colour_is_added_only_on_request() {
    let folder = Folder::new();
    std::fs::write(folder.path("r.toml"), "seed = -1").unwrap();
    let refused = Recipe::load(folder.path("r.toml"), &[]).unwrap_err();
    assert!(refused.render(true).contains('\u{1b}'));
    assert!(!refused.render(false).contains('\u{1b}'));
    assert_eq!(
        refused.iter().next().unwrap().title(),
        "`seed` must be at least 0"
    );
}
