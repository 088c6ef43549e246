//! Checkpoints: a folder `step-N` of safetensors files, and a manifest that is written last.
//!
//! The manifest holds the size and SHA-256 of every file, the number type, dimensions and SHA-256 of every array in it, and its
//! own SHA-256. A folder is written under a temporary name, synced, and renamed, so that a name `step-N` always means a
//! complete checkpoint. Absent, damaged and unfitting checkpoints are three different errors; none is ever taken for a fresh
//! start.

mod background;
mod keep;
mod manifest;
mod read;
mod write;

use std::path::Path;

pub(crate) use background::Writer;
pub use background::Written;
pub use keep::{Keep, is_one, latest, list, prune};
pub use manifest::{ArrayEntry, FileEntry, Manifest};
pub(crate) use read::read;
pub use read::{Stored, open};
pub(crate) use write::{Copied, copy, write};

use crate::error::Error;

const MANIFEST: &str = "manifest.json";
const SCHEMA: u32 = 2;

/// Reads every file of a checkpoint and compares it with the manifest, which is returned.
///
/// # Errors
/// [`Error::Absent`], [`Error::Corrupt`] with the file and, where it is known, the array; [`Error::Incompatible`] for one of
/// another version.
pub fn verify(dir: &Path) -> Result<Manifest, Error> {
    Ok(open(dir)?.manifest)
}
