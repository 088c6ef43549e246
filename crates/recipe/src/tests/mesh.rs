use super::*;
use crate::{Recipe, sampling_rules, sharding_rules};

/// The mesh axes that split a logical axis, major first.
fn over(rules: &[(String, Vec<String>)], logical: &str) -> String {
    let found = rules.iter().find(|(name, _)| name == logical);
    found.unwrap().1.join(" ")
}

#[test]
fn rows_go_to_all_devices_and_weights_are_split_over_fsdp() {
    let resolved = load(&with("[mesh]\ndata = 2\nfsdp = 2\n"), &[]).unwrap();
    assert_eq!(
        resolved.recipe().mesh_axes(),
        [
            ("data".to_owned(), 2),
            ("fsdp".to_owned(), 2),
            ("context".to_owned(), 1)
        ]
    );
    assert_eq!(resolved.recipe().device_count(), 4);

    let rules = sharding_rules(resolved.recipe());
    assert_eq!(over(&rules, "batch"), "data fsdp");
    assert_eq!(over(&rules, "tokens"), "context");
    assert_eq!(over(&rules, "embed"), "fsdp context");
    for whole in ["layers", "vocab", "heads", "kv_heads", "mlp"] {
        assert_eq!(over(&rules, whole), "", "{whole}");
    }
    assert_eq!(rules.len(), 8);
}

#[test]
fn the_sampler_has_rows_of_its_own_on_every_device() {
    let resolved = load(&with("[mesh]\ndata = 2\ncontext = 2\n"), &[]).unwrap();
    let recipe: &Recipe = resolved.recipe();
    let (rules, training) = (sampling_rules(recipe), sharding_rules(recipe));
    assert_eq!(over(&rules, "batch"), "data fsdp context");
    assert_eq!(over(&rules, "tokens"), "");
    // Weights are those of training.
    assert_eq!(over(&rules, "embed"), over(&training, "embed"));
}
