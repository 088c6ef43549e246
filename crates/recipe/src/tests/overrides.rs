use super::*;
use crate::{ComputeDtype, Origin};

#[test]
fn the_last_override_wins_and_is_what_is_remembered() {
    let resolved = load(
        &with("[mesh]\nfsdp = 4\n"),
        &["mesh.fsdp=1", "seed=7", "mesh.fsdp=2"],
    )
    .unwrap();
    assert_eq!(resolved.recipe().mesh.fsdp, 2);
    assert_eq!(resolved.recipe().seed, 7);
    assert_eq!(resolved.origin("mesh.fsdp"), Some(&Origin::Override(3)));
    assert_eq!(resolved.origin("seed"), Some(&Origin::Override(2)));
    assert_eq!(resolved.origin("mesh.data"), Some(&Origin::Default));
    assert_eq!(resolved.origin("mesh.tensor"), None);
}

#[test]
fn text_needs_no_quotes_even_if_it_looks_like_something_else() {
    for (written, name) in [
        ("7", "7"),
        ("true", "true"),
        ("2026-01-02", "2026-01-02"),
        ("a b=c", "a b=c"),
        ("'q'", "q"),
    ] {
        let resolved = load(LEAST, &[&format!("run.name={written}")]).unwrap();
        assert_eq!(resolved.recipe().run.name, name);
    }
    let resolved = load(LEAST, &["compute_dtype=f32", "run.dir = \"out\""]).unwrap();
    assert_eq!(resolved.recipe().compute_dtype, ComputeDtype::F32);
    assert_eq!(
        resolved.recipe().run.dir,
        std::env::current_dir().unwrap().join("out")
    );
}

#[test]
fn numbers_may_be_written_as_toml_allows() {
    let overrides = [
        "rl.steps=1_000",
        "seed=0x10",
        "rl.learning_rate=3e-4",
        "rollout.temperature=1",
        "optimizer.max_grad_norm=inf",
    ];
    let resolved = load(LEAST, &overrides).unwrap();
    let recipe = resolved.recipe();
    assert_eq!((recipe.rl.steps, recipe.seed), (1000, 16));
    assert_eq!(
        (recipe.rl.learning_rate, recipe.rollout.temperature),
        (3e-4, 1.0)
    );
    assert_eq!(recipe.optimizer.max_grad_norm, f64::INFINITY);
}

#[test]
fn an_override_may_set_several_keys_of_a_table() {
    let resolved = load(LEAST, &["mesh={data=2, fsdp=2}"]).unwrap();
    assert_eq!(resolved.recipe().device_count(), 4);
}

#[test]
fn relative_paths_start_from_the_file_or_from_where_the_user_stands() {
    let folder = Folder::new();
    let text = with("[run]\ndir = \"out\"\n");
    let resolved = folder.load(&text, &[]).unwrap();
    assert_eq!(resolved.recipe().data.train, folder.path("train.jsonl"));
    assert_eq!(
        resolved.recipe().run.dir,
        std::env::current_dir().unwrap().join("out")
    );
    let resolved_default = folder.load(LEAST, &[]).unwrap();
    assert_eq!(
        resolved_default.recipe().run.dir,
        std::env::current_dir().unwrap().join("runs/r")
    );
    // The same words in an override mean a file in the working directory, and there is none.
    let refused = folder.load(&text, &["data.train=train.jsonl"]).unwrap_err();
    let looked_for = std::env::current_dir().unwrap().join("train.jsonl");
    assert!(
        refused.contains(&format!(
            "`data.train`: {} does not exist",
            looked_for.display()
        )),
        "{refused}"
    );
}

#[test]
fn an_override_that_makes_settings_of_the_file_idle_resets_them_and_says_so() {
    let text = with("demonstrations = \"demos.jsonl\"\n[warmup]\nsteps = 5\nbatch_size = 9\n");
    let resolved = load(&text, &["warmup.steps=0"]).unwrap();
    assert_eq!(resolved.recipe().warmup.batch_size, 32);
    assert_eq!(resolved.recipe().data.demonstrations, None);
    assert_eq!(
        resolved.notes(),
        [
            "`warmup.batch_size` of the recipe is left out: override 1 sets warmup.steps = 0, and there is no warm-up",
            "`data.demonstrations` of the recipe is left out: override 1 sets warmup.steps = 0, and there is no warm-up",
        ]
    );
}

#[test]
fn an_override_that_is_idle_itself_is_refused() {
    assert_eq!(
        refusal(LEAST, &["warmup.steps=0", "warmup.batch_size=9"]),
        "\
error: `warmup.batch_size` has no effect while warmup.steps is 0
 --> override 2:1:19
  |
1 | warmup.batch_size=9
  |                   ^ has no effect
  |
 ::: override 1:1:14
  |
1 | warmup.steps=0
  |              - there is no warm-up
  |
  = help: remove it, or change `warmup.steps`

1 problem in r.toml: nothing was started"
    );
}

#[test]
fn a_malformed_override_is_refused_at_its_place() {
    assert_eq!(
        refusal(LEAST, &["seed", "mesh.fsdp=two", "mesh=4", "run.name="]),
        "\
error: an override must be key=value
 --> override 1:1:1
  |
1 | seed
  | ^^^^ no `=` here
  |
  = help: write seed=VALUE

error: `mesh.fsdp` must be an integer
 --> override 2:1:11
  |
1 | mesh.fsdp=two
  |           ^^^ this is not an integer

error: `mesh` must be a table
 --> override 3:1:6
  |
1 | mesh=4
  |      ^ this is of type integer
  |
  = help: write mesh.KEY=VALUE

error: `run.name` must be a string
 --> override 4:1:10
  |
1 | run.name=
  |          ^ this is empty

4 problems in r.toml: nothing was started"
    );
}
