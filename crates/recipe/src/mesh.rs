//! From a recipe's mesh to plain data that a program builder takes: axes, and which logical axis is split over which.

use crate::settings::Recipe;

impl Recipe {
    /// The axes of the device mesh with their sizes, major first; their product is the number of devices.
    pub fn mesh_axes(&self) -> Vec<(String, usize)> {
        vec![
            ("data".to_owned(), self.mesh.data),
            ("fsdp".to_owned(), self.mesh.fsdp),
            ("context".to_owned(), self.mesh.context),
        ]
    }

    /// How many devices the run takes.
    pub fn device_count(&self) -> usize {
        self.mesh_axes().iter().map(|(_, size)| size).product()
    }
}

/// For each logical axis of parameters and activations the mesh axes that split it, major first.
///
/// Rows go to every device along `data` and `fsdp`, and their tokens to those along `context`; weights, with their gradients and
/// moments, are split over `fsdp` and `context` along the model dimension and copied over `data`. A logical axis without mesh
/// axes is whole on every device.
pub fn sharding_rules(recipe: &Recipe) -> Vec<(String, Vec<String>)> {
    let axes = recipe.mesh_axes();
    let rule = |logical: &str, over: &[&str]| {
        debug_assert!(
            over.iter()
                .all(|name| axes.iter().any(|(axis, _)| axis == name))
        );
        (
            logical.to_owned(),
            over.iter().map(|axis| (*axis).to_owned()).collect(),
        )
    };
    vec![
        rule("batch", &["data", "fsdp"]),
        rule("tokens", &["context"]),
        rule("layers", &[]),
        rule("embed", &["fsdp", "context"]),
        rule("vocab", &[]),
        rule("heads", &[]),
        rule("kv_heads", &[]),
        rule("mlp", &[]),
    ]
}

/// The same for sampling, where a row has one new token at a time: each device has rows of its own, which no other shares.
pub fn sampling_rules(recipe: &Recipe) -> Vec<(String, Vec<String>)> {
    let mut rules = sharding_rules(recipe);
    for (logical, over) in &mut rules {
        match logical.as_str() {
            "batch" => over.push("context".to_owned()),
            "tokens" => over.clear(),
            _ => {}
        }
    }
    rules
}
