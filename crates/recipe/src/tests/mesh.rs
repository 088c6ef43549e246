use super::*;
use crate::sharding_rules;

#[test]
fn rows_go_to_all_devices_and_weights_are_split_over_fsdp() {
    let resolved = load(&with("[mesh]\ndata = 2\nfsdp = 2\n"), &[]).unwrap();
    assert_eq!(
        resolved.recipe().mesh_axes(),
        [("data".to_owned(), 2), ("fsdp".to_owned(), 2)]
    );
    assert_eq!(resolved.recipe().device_count(), 4);

    let rules = sharding_rules(resolved.recipe());
    let axes_of = |logical: &str| {
        rules
            .iter()
            .find(|(name, _)| name == logical)
            .map(|(_, axes)| axes.join(" "))
    };
    assert_eq!(axes_of("batch").unwrap(), "data fsdp");
    assert_eq!(axes_of("embed").unwrap(), "fsdp");
    for whole in ["tokens", "layers", "vocab", "heads", "kv_heads", "mlp"] {
        assert_eq!(axes_of(whole).unwrap(), "", "{whole}");
    }
    assert_eq!(rules.len(), 8);
}
