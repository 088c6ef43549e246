//! Whether adapters were made for the model that they are used with, as far as names can tell.

use std::path::{Component, Path};

use super::adapter::AdapterWeights;

impl AdapterWeights {
    /// What to tell the user where `adapter_config.json` names another model than the folder `model`; `None` where it names this
    /// one, or none.
    ///
    /// Shapes do not tell models apart that differ only in what they were trained on. A path that leads somewhere is compared as a
    /// place; one that leads nowhere, or a name on a hub, by its last part.
    pub fn other_base(&self, model: &Path) -> Option<String> {
        let base = self.base.as_deref()?;
        (!is_same(base, model)).then(|| {
            format!(
                "the adapters were made for the model {base} (base_model_name_or_path in adapter_config.json), but are used with {}: \
                 beside another model they compute nothing meaningful, though the shapes may fit",
                model.display()
            )
        })
    }
}

fn is_same(base: &str, model: &Path) -> bool {
    let place = model.canonicalize();
    let model = place.as_deref().unwrap_or(model);
    if let Ok(base) = Path::new(base).canonicalize()
        && base.join(crate::config::CONFIG_FILE).exists()
    {
        return base == model;
    }
    // The cache of the hub: `models--OWNER--NAME/snapshots/REVISION`.
    let cached = format!("models--{}", base.replace('/', "--"));
    let parts = names(model);
    parts.iter().any(|part| *part == cached.to_lowercase())
        || ends_alike(&names(Path::new(base)), &parts)
}

/// The parts of a path, in lower case: names on hubs have no case.
fn names(path: &Path) -> Vec<String> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy().to_lowercase()),
        _ => None,
    });
    parts.collect()
}

/// Whether two paths have the same last part; where that says nothing, as in `RUN/model`, the same two.
fn ends_alike(one: &[String], other: &[String]) -> bool {
    let (mut one, mut other) = (one.iter().rev(), other.iter().rev());
    match (one.next(), other.next()) {
        (Some(a), Some(b)) if a == b && a == "model" => match (one.next(), other.next()) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        },
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(root: &Path, name: &str) -> std::path::PathBuf {
        let path = root.join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("config.json"), "{}").unwrap();
        path
    }

    #[test]
    fn a_base_that_is_there_is_compared_as_a_place() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (
            folder(root.path(), "a/model"),
            folder(root.path(), "b/model"),
        );
        let text = |path: &Path| path.display().to_string();
        assert!(is_same(&text(&one), &one));
        assert!(is_same(&text(&root.path().join("b/../a/model")), &one));
        assert!(!is_same(&text(&one), &two));
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&one, &link).unwrap();
        assert!(is_same(&text(&one), &link) && is_same(&text(&link), &one));
    }

    #[test]
    fn a_base_that_is_elsewhere_is_compared_by_name() {
        for (base, model, same) in [
            ("Qwen/Qwen3-0.6B", "/data/qwen3-0.6b", true),
            ("Qwen/Qwen3-0.6B/", "qwen3-0.6B/", true),
            ("Qwen/Qwen3-0.6B-Base", "/data/Qwen3-0.6B", false),
            ("/gone/Qwen3-0.6B", "/data/Qwen3-0.6B", true),
            (
                "Qwen/Qwen3-0.6B",
                "/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de2",
                true,
            ),
            (
                "Qwen/Qwen3-1.7B",
                "/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de2",
                false,
            ),
            ("/gone/runs/a/model", "/data/a/model", true),
            ("/gone/runs/a/model", "/data/b/model", false),
            ("model", "/data/b/model", true),
        ] {
            assert_eq!(is_same(base, Path::new(model)), same, "{base} {model}");
        }
    }
}
