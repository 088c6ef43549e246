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
