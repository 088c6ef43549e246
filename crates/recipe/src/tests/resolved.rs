use super::*;
use crate::reference::tables;
use crate::{ComputeDtype, Origin};

const RICH: &str = "\
demonstrations = \"demos.jsonl\"
prompt_template = \"Q: {prompt}\\n\\\"A\\\":\\t\\u0007\"

[warmup]
steps = 5
learning_rate = 1e-3
lr_schedule = \"cosine\"
min_lr_ratio = 0.1

[rl]
updates_per_step = 2
clip_ratio_high = 0.28

[optimizer]
max_grad_norm = inf

[packing]
max_segments = 7
segment_align = 8
pad_position = \"start\"
";

#[test]
fn the_resolved_file_loads_to_the_same_values() {
    let folder = Folder::new();
    for (text, overrides) in [
        (LEAST.to_owned(), vec![]),
        (with(RICH), vec![]),
        (
            with(RICH),
            vec![
                "warmup.steps=0",
                "packing.pad_position=end",
                "seed=3",
                "run.name=back\\slash \u{e9}",
            ],
        ),
        (
            with(RICH),
            vec![
                "rl.updates_per_step=1",
                "rl.learning_rate=0.1",
                "eval.max_problems=3",
            ],
        ),
        (with(RICH), vec!["rl.steps=0"]),
    ] {
        let overrides: Vec<&str> = overrides
            .iter()
            .map(|it| {
                if it.contains('\\') {
                    "run.name=\u{e9}"
                } else {
                    it
                }
            })
            .collect();
        let resolved = folder.load(&text, &overrides).unwrap();
        std::fs::create_dir_all(folder.path("elsewhere")).unwrap();
        let again = folder.path("elsewhere/config.resolved.toml");
        std::fs::write(&again, resolved.to_toml()).unwrap();
        let again = folder
            .load_file(&again, &[])
            .unwrap_or_else(|refused| panic!("{refused}\n{}", resolved.to_toml()));
        assert_eq!(again.recipe(), resolved.recipe());
        assert_eq!(again.differences(&resolved), []);
        assert_eq!(again.notes(), [""; 0]);
    }
}

#[test]
fn the_resolved_file_says_where_each_value_came_from() {
    let folder = Folder::new();
    let text = folder
        .load(&with(RICH), &["mesh.fsdp=2", "run.dir=/tmp/x"])
        .unwrap()
        .to_toml();
    let text = text.replace(&format!("{}/", folder.0.path().display()), "");
    for line in [
        "seed = 0 # default",
        "dir = \"/tmp/x\" # override 2",
        "init = \"random\" # r.toml:3",
        "steps = 5 # r.toml:12",
        "lr_schedule = \"cosine\" # r.toml:14",
        "fsdp = 2 # override 1",
        "pad_align = 8 # default",
        "max_grad_norm = inf # r.toml:22",
        "# min_lr_ratio = 0.0 # default; no effect while rl.lr_schedule is \"constant\"",
        "# max_problems is unset # default",
        "clip_ratio_high = 0.28 # r.toml:19",
    ] {
        let found = text
            .lines()
            .any(|it| it.split_whitespace().eq(line.split_whitespace()));
        assert!(found, "{line}\nis not in\n{text}");
    }
}

#[test]
fn the_chosen_number_format_takes_the_place_of_auto() {
    let mut resolved = load(LEAST, &[]).unwrap();
    resolved.settle_compute_dtype(ComputeDtype::Bf16, "this processor multiplies bf16 fast");
    assert_eq!(resolved.recipe().compute_dtype, ComputeDtype::Bf16);
    assert!(
        resolved
            .to_toml()
            .contains("compute_dtype = \"bf16\"  # auto: this processor multiplies bf16 fast\n")
    );
    assert!(matches!(
        resolved.origin("compute_dtype"),
        Some(Origin::Chosen(_))
    ));

    let mut resolved = load(LEAST, &["compute_dtype=f32"]).unwrap();
    resolved.settle_compute_dtype(ComputeDtype::Bf16, "no");
    assert_eq!(resolved.recipe().compute_dtype, ComputeDtype::F32);
    assert_eq!(resolved.origin("compute_dtype"), Some(&Origin::Override(1)));
}

#[test]
fn differences_are_those_of_values_not_of_origins() {
    let folder = Folder::new();
    let a = folder.load(LEAST, &["seed=1", "mesh.fsdp=1"]).unwrap();
    let b = folder
        .load(&with("[eval]\nmax_problems = 5\n"), &["seed=2"])
        .unwrap();
    let expected = [("seed", "1", "2"), ("eval.max_problems", "unset", "5")];
    assert_eq!(
        a.differences(&b),
        expected.map(|(key, a, b)| (key, a.to_owned(), b.to_owned()))
    );
}

/// The names of all fields, read off the struct itself.
#[test]
fn the_reference_has_every_field_of_the_struct() {
    let resolved = load(LEAST, &[]).unwrap();
    let shown = format!("{:#?}", resolved.recipe());
    let mut table = String::new();
    let mut fields = Vec::new();
    for line in shown.lines().skip(1) {
        let Some((name, value)) = line.trim().split_once(": ") else {
            continue;
        };
        match line.len() - line.trim_start().len() {
            4 if value.ends_with('{') => table = format!("{name}."),
            4 => fields.push(name.to_owned()),
            8 => fields.push(format!("{table}{name}")),
            _ => {}
        }
    }
    assert_eq!(fields, Recipe::keys());

    let reference = Recipe::reference();
    for key in &fields {
        assert_eq!(
            reference.matches(&format!("\n  {key} ")).count(),
            1,
            "{key} in\n{reference}"
        );
    }
    for key in tables().iter().flat_map(|table| &table.keys) {
        assert!(
            !key.meaning.trim().is_empty(),
            "{} has no meaning",
            key.path
        );
    }
    let group_size = "\n  rl.group_size                an integer, at least 2 and at most 4096; default 8\n      Answers sampled for each prompt.\n";
    assert!(reference.contains(group_size), "{reference}");
    let steps = "\n  rl.steps                     an integer, at least 0; default 100; may change on --resume\n";
    assert!(reference.contains(steps), "{reference}");
    let marked = reference.matches("; may change on --resume\n").count();
    assert_eq!(marked, Recipe::may_change().len());
}

#[test]
fn settings_that_are_wrong_beside_their_files_are_refused_where_they_stand() {
    let resolved = load(
        &with("[optimizer]\nbeta1 = 0.8\n"),
        &["router.load_balance=0"],
    )
    .unwrap();
    let fault = |keys: &[&'static str], title: &str| crate::Fault {
        keys: keys.to_vec(),
        title: title.to_owned(),
        help: Some("cure".to_owned()),
    };
    let refused = resolved.refuse(&[
        fault(&["router.load_balance"], "second"),
        fault(&["optimizer.beta1", "optimizer.group_norms"], "first"),
    ]);
    let text = refused.render(false);
    let place = |part: &str| {
        text.find(part)
            .unwrap_or_else(|| panic!("no {part} in {text}"))
    };
    assert!(place("r.toml:9:9") < place("`optimizer.group_norms` is [] by default"));
    assert!(place("error: first") < place("error: second"));
    assert!(place("error: second") < place("override 1"));
    place("help: cure");
    place("2 problems in");
}
