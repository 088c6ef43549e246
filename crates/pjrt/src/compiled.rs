//! Compiled programs on disk, keyed by everything that the machine code depends on.
//!
//! A cache only: a missing, damaged or unwritable entry costs a compilation, never an error.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use sha2::{Digest, Sha256};

use crate::{cache, digest::hex, environment::XLA_FLAGS};

/// Where libtpu finds flags of its own.
const TPU_FLAGS: &str = "LIBTPU_INIT_ARGS";

/// First bytes of an entry; the number changes with the format, and so does the key.
const MAGIC: &[u8; 16] = b"ferrotune-xla-1\n";
const DIGEST_BYTES: usize = 32;

/// Entries beyond this are dropped, the longest unused first.
const LIMIT_BYTES: u64 = 2 << 30;

/// Unfinished files older than this belong to processes that are gone.
const ABANDONED: Duration = Duration::from_secs(3600);

/// What a compiled program depends on.
pub(crate) struct Key<'a> {
    pub(crate) text: &'a str,
    pub(crate) options: &'a [u8],
    pub(crate) plugin_sha256: &'a str,
    /// The platform's name, or that of a topology.
    pub(crate) target: &'a str,
    pub(crate) device_count: usize,
}

/// The place of one entry, if there is a cache to be used.
pub(crate) struct Entry(Option<PathBuf>);

impl Entry {
    pub(crate) fn of(key: &Key<'_>) -> Entry {
        // XLA's own flags change the program it makes. Dumps are written while compiling: whoever asks for them wants that done.
        let flags = [XLA_FLAGS, TPU_FLAGS].map(|name| env::var(name).unwrap_or_default());
        let flags = flags.join("\n");
        if flags.contains("dump") {
            return Entry(None);
        }
        let name = key.digest(&flags, &host_cpu());
        Entry(cache::directory().map(|root| root.join("compiled").join(name)))
    }

    /// The serialized program, if the entry is there and undamaged.
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        let path = self.0.as_ref()?;
        let bytes = fs::read(path).ok()?;
        match unwrap(bytes) {
            Some(program) => {
                // The time of last use decides what is dropped first. A read-only cache keeps its order.
                let _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
                Some(program)
            }
            None => {
                self.discard();
                None
            }
        }
    }

    pub(crate) fn write(&self, program: &[u8]) {
        let Some(path) = &self.0 else { return };
        let parts: [&[u8]; 3] = [MAGIC, &Sha256::digest(program), program];
        if cache::write_atomically(path, &parts).is_ok()
            && let Some(folder) = path.parent()
        {
            prune(folder, LIMIT_BYTES);
        }
    }

    /// Removes an entry that the plugin cannot load.
    pub(crate) fn discard(&self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

impl Key<'_> {
    fn digest(&self, xla_flags: &str, host_cpu: &str) -> String {
        // XLA's CPU code is generated for the very processor it is compiled on.
        let host = if self.target == "cpu" { host_cpu } else { "" };
        let devices = (self.device_count as u64).to_le_bytes();
        let parts: [&[u8]; 8] = [
            MAGIC,
            self.text.as_bytes(),
            self.options,
            self.plugin_sha256.as_bytes(),
            self.target.as_bytes(),
            &devices,
            xla_flags.as_bytes(),
            host.as_bytes(),
        ];
        let mut hash = Sha256::new();
        for part in parts {
            // Lengths keep neighbours apart.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hex(&hash.finalize())
    }
}

/// The payload of an entry, if its hash is right.
fn unwrap(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let (head, rest) = bytes.split_at_checked(MAGIC.len() + DIGEST_BYTES)?;
    let (magic, digest) = head.split_at(MAGIC.len());
    if magic != MAGIC || digest != Sha256::digest(rest).as_slice() {
        return None;
    }
    bytes.drain(..MAGIC.len() + DIGEST_BYTES);
    Some(bytes)
}

/// Drops the longest unused entries until the folder is within the limit; the newest always stays.
fn prune(folder: &Path, limit: u64) {
    let mut entries = entries(folder);
    entries.sort_by_key(|entry| entry.modified);
    let now = SystemTime::now();
    let mut total: u64 = entries.iter().map(|entry| entry.bytes).sum();
    let newest = entries.len().saturating_sub(1);
    for (index, entry) in entries.iter().enumerate() {
        let age = now.duration_since(entry.modified).unwrap_or_default();
        let abandoned = entry.unfinished && age > ABANDONED;
        let oversize = total > limit && !entry.unfinished && index < newest;
        if (abandoned || oversize) && fs::remove_file(&entry.path).is_ok() {
            total -= entry.bytes;
        }
    }
}

struct Listed {
    path: PathBuf,
    modified: SystemTime,
    bytes: u64,
    unfinished: bool,
}

fn entries(folder: &Path) -> Vec<Listed> {
    let Ok(listing) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let listed = listing.filter_map(|entry| {
        let entry = entry.ok()?;
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        Some(Listed {
            path: entry.path(),
            modified: metadata.modified().ok()?,
            bytes: metadata.len(),
            unfinished: entry.file_name().as_encoded_bytes().starts_with(b"."),
        })
    });
    listed.collect()
}

/// Number and total bytes of the finished entries.
pub(crate) fn inventory(root: &Path) -> (usize, u64) {
    let finished = entries(&root.join("compiled"))
        .into_iter()
        .filter(|entry| !entry.unfinished);
    finished.fold((0, 0), |(count, bytes), entry| {
        (count + 1, bytes + entry.bytes)
    })
}

/// The processor's model and feature flags.
fn host_cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = |name| {
        text.lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_default()
    };
    format!(
        "{}\n{}\n{}",
        std::env::consts::ARCH,
        line("model name"),
        line("flags")
    )
}

#[cfg(test)]
mod tests;
