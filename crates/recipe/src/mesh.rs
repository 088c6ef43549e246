//! From a recipe's mesh to plain data that a program builder takes: axes, and which logical axis is split over which.

use crate::settings::Recipe;

impl Recipe {
    /// The axes of the device mesh with their sizes, major first; their product is the number of devices.
    pub fn mesh_axes(&self) -> Vec<(String, usize)> {
        vec![
            ("data".to_owned(), self.mesh.data),
            ("fsdp".to_owned(), self.mesh.fsdp),
        ]
    }

    /// How many devices the run takes.
    pub fn device_count(&self) -> usize {
        self.mesh_axes().iter().map(|(_, size)| size).product()
    }
}

/// For each logical axis of parameters and activations the mesh axes that split it, major first.
///
/// Rows go to every device; weights, with their gradients and moments, are split over `fsdp` along the model dimension
/// and copied over `data`. A logical axis without mesh axes is whole on every device.
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
        rule("tokens", &[]),
        rule("layers", &[]),
        rule("embed", &["fsdp"]),
        rule("vocab", &[]),
        rule("heads", &[]),
        rule("kv_heads", &[]),
        rule("mlp", &[]),
    ]
}
