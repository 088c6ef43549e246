//! Files that the user names on the command line: read, or refused with what to do.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Error, anyhow};

/// The bytes of a file; `what` says what it should hold, as in "the prompts".
pub(crate) fn read(path: &Path, what: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| refusal(path, what, &error))
}

/// Why a file or folder cannot be read, and what to do.
pub(crate) fn refusal(path: &Path, what: &str, error: &std::io::Error) -> Error {
    let path = path.display();
    match error.kind() {
        ErrorKind::NotFound => {
            anyhow!("cannot read {what}: {path} does not exist; check the name")
        }
        ErrorKind::NotADirectory => {
            anyhow!("cannot read {what}: a part of {path} is a file, not a folder; check the name")
        }
        ErrorKind::IsADirectory => {
            anyhow!("cannot read {what}: {path} is a folder; name a file in it")
        }
        ErrorKind::PermissionDenied => anyhow!(
            "cannot read {what}: you may not read {path}; change its permissions, or name a copy"
        ),
        _ => anyhow!("cannot read {what} {path}: {error}"),
    }
}
