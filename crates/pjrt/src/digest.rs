//! SHA-256 of files, remembered: a plugin has 200 MB, and every start needs its hash.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use sha2::{Digest, Sha256};

use crate::{Error, Result, cache};

/// The SHA-256 of a file, in hexadecimal; read from the cache when size and modification time are what they were.
pub(crate) fn of_file_remembered(path: &Path) -> Result<String> {
    let metadata = fs::metadata(path).map_err(Error::io("read", path))?;
    let modified = metadata
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let (Some(modified), Some(record)) = (modified, record_path(path)) else {
        return of_file(path);
    };
    let stamp = format!("{} {}", metadata.len(), modified.as_nanos());
    if let Ok(text) = fs::read_to_string(&record)
        && let Some((digest, rest)) = text.trim_end().split_once(' ')
        && digest.len() == 64
        && rest == stamp
    {
        return Ok(digest.to_owned());
    }
    let digest = of_file(path)?;
    // A cache that cannot be written costs time, not correctness.
    let _ = cache::write_atomically(&record, &[format!("{digest} {stamp}\n").as_bytes()]);
    Ok(digest)
}

fn record_path(path: &Path) -> Option<PathBuf> {
    let key = hex(&Sha256::digest(path.as_os_str().as_encoded_bytes()));
    Some(cache::directory()?.join("digests").join(key))
}

/// The SHA-256 of a file, in hexadecimal.
pub(crate) fn of_file(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file.read(&mut chunk).map_err(Error::io("read", path))? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(&chunk[..n]),
        }
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
