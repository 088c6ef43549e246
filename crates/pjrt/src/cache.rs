//! The user's cache directory, and writing into it so that nobody sees half a file.
//!
//! ```text
//! plugins/PACKAGE-VERSION/LIBRARY.so   fetched plugins
//! digests/KEY                          SHA-256 of plugin files, with the size and time they were computed for
//! compiled/KEY                         compiled programs
//! ```

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

/// The environment variable that moves the cache, the only switch there is.
pub(crate) const VARIABLE: &str = "FERROTUNE_CACHE";

/// Where the cache is, if the environment says: `FERROTUNE_CACHE`, else `ferrotune` in `XDG_CACHE_HOME` or `HOME/.cache`.
pub(crate) fn directory() -> Option<PathBuf> {
    let variable = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let chosen = variable(VARIABLE)
        .or_else(|| variable("XDG_CACHE_HOME").map(|path| path.join("ferrotune")))
        .or_else(|| variable("HOME").map(|path| path.join(".cache").join("ferrotune")))?;
    std::path::absolute(chosen).ok()
}

/// Writes a file whole or not at all: a reader sees the old file, the new one, or none.
pub(crate) fn write_atomically(path: &Path, parts: &[&[u8]]) -> std::io::Result<()> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let directory = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    // Unique among processes and threads, and in the same directory, since a rename must not cross file systems.
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let temporary = directory.join(format!(".tmp-{}-{number}", process::id()));
    let write = || {
        let mut file = fs::File::create_new(&temporary)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        drop(file);
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        // Nothing more can be done about a file that will not go.
        let _ = fs::remove_file(&temporary);
    })
}

#[cfg(test)]
mod tests;
