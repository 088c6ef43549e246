//! The committed recipe keeps to the rules, also with the overrides that its first lines promise.

use std::path::Path;

use super::*;

#[test]
fn the_quickstart_loads_as_it_is_and_with_the_usual_overrides() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/quickstart.toml");
    for overrides in [
        &[][..],
        &["seed=7", "run.dir=out"],
        &["mesh.fsdp=2"],
        &["mesh.data=2"],
        &["rl.steps=20"],
    ] {
        let overrides: Vec<String> = overrides.iter().map(|it| (*it).to_owned()).collect();
        let resolved =
            Recipe::load(&file, &overrides).unwrap_or_else(|refused| panic!("{refused}"));
        assert_eq!(resolved.notes(), [""; 0], "nothing in it is idle");
        assert_eq!(resolved.recipe().run.name, "quickstart");
    }
}

/// Its model is fetched, so another folder stands for it here.
#[test]
fn the_recipe_for_a_real_model_loads_and_names_the_command_that_fetches_it() {
    let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    let file = recipes.join("smollm2-sums.toml");
    let model = recipes.join("quickstart/model");
    let other = |path: &Path| format!("model.path={}", path.display());
    let overrides = [other(&model), "model.init=random".to_owned()];
    let resolved = Recipe::load(&file, &overrides).unwrap_or_else(|refused| panic!("{refused}"));
    assert_eq!(resolved.notes(), [""; 0], "nothing in it is idle");

    let refused = Recipe::load(&file, &[other(&recipes.join("absent"))]).unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.contains("run `python3 tools/fetch_smollm2.py` first"),
        "{refused}"
    );
}
