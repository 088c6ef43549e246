//! What a checkpoint says of itself.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{MANIFEST, SCHEMA};
use crate::error::Error;

/// One array of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayEntry {
    /// Its name, such as `second/embed`.
    pub name: String,
    /// Its number type, as safetensors calls it.
    pub dtype: String,
    /// Its dimensions.
    pub dims: Vec<usize>,
    /// SHA-256 of its values.
    pub sha256: String,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of all of it.
    pub sha256: String,
    /// What it holds.
    pub arrays: Vec<ArrayEntry>,
}

/// What a checkpoint holds besides arrays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub(crate) schema: u32,
    /// Updates made.
    pub step: u64,
    /// Fingerprint of the parameters that do not learn, which are not in the checkpoint.
    #[serde(default)]
    pub frozen: Option<String>,
    /// Name of the loss whose gradients were being gathered, if any were: they are in the checkpoint too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accumulating: Option<String>,
    /// The caller's state.
    pub extra: serde_json::Value,
    /// The files.
    pub files: Vec<FileEntry>,
}

/// The manifest file: its contents as text, and the hash of that text.
#[derive(Serialize, Deserialize)]
struct Sealed {
    contents: String,
    sha256: String,
}

pub(super) fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

pub(super) fn corrupt(file: &Path, reason: impl Into<String>) -> Error {
    Error::Corrupt {
        file: file.to_owned(),
        reason: reason.into(),
    }
}

impl Manifest {
    /// The text of the manifest file.
    pub(super) fn seal(&self) -> String {
        let contents = serde_json::to_string(self).expect("the manifest is plain data");
        let sealed = Sealed {
            sha256: hash(contents.as_bytes()),
            contents,
        };
        serde_json::to_string_pretty(&sealed).expect("the manifest is plain data")
    }

    /// Reads the manifest alone, which is quick; the files are not looked at.
    ///
    /// # Errors
    /// As [`verify`](super::verify).
    pub fn read(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(MANIFEST);
        if !dir.is_dir() {
            return Err(Error::Absent {
                path: dir.to_owned(),
            });
        }
        if !path.exists() {
            return Err(corrupt(
                &path,
                "it is missing, so the checkpoint is not complete",
            ));
        }
        let text = fs::read(&path).map_err(Error::io("read", &path))?;
        let broken = |e: serde_json::Error| corrupt(&path, e.to_string());
        let sealed: Sealed = serde_json::from_slice(&text).map_err(broken)?;
        if hash(sealed.contents.as_bytes()) != sealed.sha256 {
            return Err(corrupt(&path, "its SHA-256 does not match"));
        }
        let contents: serde_json::Value = serde_json::from_str(&sealed.contents).map_err(broken)?;
        let found = contents.get("schema").and_then(serde_json::Value::as_u64);
        if found != Some(u64::from(SCHEMA)) {
            let found = found.map_or_else(|| "none".to_owned(), |it| it.to_string());
            let difference = format!(
                "it has schema version {found}, this program reads {SCHEMA}: finish the run with the version of ferrotune \
                 that wrote it, then start a new one from the model that it leaves"
            );
            return Err(Error::Incompatible {
                path: dir.to_owned(),
                differences: vec![difference],
            });
        }
        let manifest: Self = serde_json::from_value(contents).map_err(broken)?;
        // Whoever seals a text decides what it says, so the difference of one letter in the sealed file must show as well.
        if manifest.seal().as_bytes() != text {
            return Err(corrupt(&path, "it is not as it was written"));
        }
        Ok(manifest)
    }

    /// The same, if every file of the checkpoint is there and as large as it was; reads none of them.
    ///
    /// # Errors
    /// As [`Self::read`]; [`Error::Corrupt`].
    pub fn look(dir: &Path) -> Result<Self, Error> {
        let manifest = Self::read(dir)?;
        for file in &manifest.files {
            let path = dir.join(&file.name);
            let found = fs::metadata(&path).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => corrupt(&path, "it is missing"),
                _ => Error::io("read", &path)(error),
            })?;
            let (found, written) = (found.len(), file.bytes);
            if found != written {
                return Err(corrupt(
                    &path,
                    format!("it has {found} bytes, not {written}"),
                ));
            }
        }
        Ok(manifest)
    }
}
