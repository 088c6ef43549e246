//! Which checkpoints are there, and which stay.

use std::fs;
use std::path::{Path, PathBuf};

use super::{MANIFEST, Manifest};
use crate::error::Error;

/// Which checkpoints stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The newest so many; at least one always stays.
    pub last: usize,
    /// Also those whose step is a multiple of this; 0 for none.
    pub every: u64,
}

/// Step of a folder called `step-N`.
fn step_of(path: &Path) -> Option<u64> {
    path.file_name()?
        .to_str()?
        .strip_prefix("step-")?
        .parse()
        .ok()
}

/// Whether a folder is a checkpoint: it has a manifest, whatever it is called, or the name of one that may have lost it.
pub fn is_one(dir: &Path) -> bool {
    let named = dir.file_name().and_then(|name| name.to_str());
    dir.is_dir() && (dir.join(MANIFEST).exists() || named.is_some_and(|it| it.starts_with("step-")))
}

/// Folders called `step-N` under `dir` with their steps, oldest first. They got that name when they were complete.
///
/// # Errors
/// A folder that cannot be read.
pub fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>, Error> {
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io("read", dir))? {
        let path = entry.map_err(Error::io("read", dir))?.path();
        if let Some(step) = step_of(&path) {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The newest checkpoint under `dir`, if there is one. One that lost its manifest counts: reading it says that it is damaged,
/// where passing it over would go back in silence.
///
/// # Errors
/// A folder that cannot be read.
pub fn latest(dir: &Path) -> Result<Option<PathBuf>, Error> {
    Ok(list(dir)?.pop().map(|(_, path)| path))
}

/// Whether the manifest is sound and every file has its size.
fn looks_whole(path: &Path) -> bool {
    let has_size =
        |name: &str, bytes| fs::metadata(path.join(name)).is_ok_and(|it| it.len() == bytes);
    Manifest::read(path)
        .is_ok_and(|it| it.files.iter().all(|file| has_size(&file.name, file.bytes)))
}

/// Removes the checkpoints under `dir` that the rules do not keep. One without a sound manifest, or with a file of another
/// size, is neither counted nor removed, so that it never pushes out a good one.
///
/// # Errors
/// A folder that cannot be read or removed.
pub fn prune(dir: &Path, keep: Keep) -> Result<(), Error> {
    let mut found = list(dir)?;
    found.retain(|(_, path)| looks_whole(path));
    let surplus = found.len().saturating_sub(keep.last.max(1));
    for (step, path) in &found[..surplus] {
        if keep.every > 0 && step.is_multiple_of(keep.every) {
            continue;
        }
        remove(path)?;
    }
    Ok(())
}

/// Takes the name away first, so that a removal that is cut short leaves no half of a checkpoint under it.
fn remove(path: &Path) -> Result<(), Error> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".old");
    let old = path.with_file_name(name);
    if old.exists() {
        fs::remove_dir_all(&old).map_err(Error::io("remove", &old))?;
    }
    fs::rename(path, &old).map_err(Error::io("rename", path))?;
    fs::remove_dir_all(&old).map_err(Error::io("remove", &old))
}
