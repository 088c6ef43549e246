//! Checkpoints: a folder `step-N` of safetensors files, and a manifest that is written last.
//!
//! The manifest holds the size and SHA-256 of every file and of itself. A folder is written under a temporary name, synced,
//! and renamed, so that a name `step-N` always means a complete checkpoint. Absent, damaged and unfitting checkpoints are
//! three different errors; none is ever taken for a fresh start.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use ferrotune_graph::{DType, HostArray};
use ferrotune_program::{Group, Layout};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::Error;

const MANIFEST: &str = "manifest.json";
const SCHEMA: u32 = 1;

#[derive(Serialize, Deserialize)]
struct FileEntry {
    name: String,
    bytes: u64,
    sha256: String,
}

/// What a checkpoint holds besides arrays.
#[derive(Serialize, Deserialize)]
pub(crate) struct Saved {
    schema: u32,
    /// Updates made.
    pub(crate) step: u64,
    /// Fingerprint of the parameters that do not learn, which are not in the checkpoint.
    #[serde(default)]
    frozen: Option<String>,
    /// The caller's state.
    pub(crate) extra: serde_json::Value,
    files: Vec<FileEntry>,
}

/// What a checkpoint says of itself.
pub(crate) struct Head<'a> {
    /// Updates made.
    pub(crate) step: u64,
    /// Fingerprint of the parameters that do not learn.
    pub(crate) frozen: Option<&'a str>,
    /// The caller's state.
    pub(crate) extra: &'a serde_json::Value,
}

/// The manifest file: its contents as text, and the hash of that text.
#[derive(Serialize, Deserialize)]
struct Sealed {
    contents: String,
    sha256: String,
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

fn stored_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::BF16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::S32 => Dtype::I32,
        other => unreachable!("no state of the engine is {other}"),
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = File::create(path).map_err(Error::io("create", path))?;
    file.write_all(bytes).map_err(Error::io("write", path))?;
    file.sync_all().map_err(Error::io("write", path))
}

fn sync_folder(path: &Path) -> Result<(), Error> {
    File::open(path)
        .and_then(|f| f.sync_all())
        .map_err(Error::io("sync", path))
}

/// Name under which a checkpoint is made before it gets its own.
fn partial(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    dir.with_file_name(name)
}

/// Writes groups of arrays to `dir`.
pub(crate) fn write(dir: &Path, head: &Head<'_>, groups: &[(&str, &Group)]) -> Result<(), Error> {
    let made = partial(dir);
    if made.exists() {
        fs::remove_dir_all(&made).map_err(Error::io("remove", &made))?;
    }
    fs::create_dir_all(&made).map_err(Error::io("create", &made))?;
    let result = fill(&made, head, groups).and_then(|()| publish(&made, dir));
    if result.is_err() {
        // The error matters more than the left-over, which the next save removes.
        let _ = fs::remove_dir_all(&made);
    }
    result
}

fn fill(made: &Path, head: &Head<'_>, groups: &[(&str, &Group)]) -> Result<(), Error> {
    let mut files = Vec::new();
    for (name, group) in groups {
        let arrays = group.to_host()?;
        let views = group.layout().names().zip(&arrays).map(|(name, a)| {
            let view = TensorView::new(stored_dtype(a.dtype()), a.dims().to_vec(), a.bytes());
            (
                name.to_owned(),
                view.expect("an array on the host has as many bytes as its type says"),
            )
        });
        let bytes = safetensors::serialize(views.collect::<Vec<_>>(), None)
            .expect("views of whole arrays can be written");
        let name = format!("{name}.safetensors");
        write_synced(&made.join(&name), &bytes)?;
        files.push(FileEntry {
            name,
            bytes: bytes.len() as u64,
            sha256: hash(&bytes),
        });
    }
    let saved = Saved {
        schema: SCHEMA,
        step: head.step,
        frozen: head.frozen.map(str::to_owned),
        extra: head.extra.clone(),
        files,
    };
    let contents = serde_json::to_string(&saved).expect("the manifest is plain data");
    let sealed = Sealed {
        sha256: hash(contents.as_bytes()),
        contents,
    };
    let text = serde_json::to_string_pretty(&sealed).expect("the manifest is plain data");
    write_synced(&made.join(MANIFEST), text.as_bytes())?;
    sync_folder(made)
}

/// Gives a complete folder its name; a checkpoint of the same step gives way only then.
fn publish(made: &Path, dir: &Path) -> Result<(), Error> {
    let mut name = dir.file_name().unwrap_or_default().to_os_string();
    name.push(".old");
    let old = dir.with_file_name(name);
    if old.exists() {
        fs::remove_dir_all(&old).map_err(Error::io("remove", &old))?;
    }
    let replaces = dir.exists();
    if replaces {
        fs::rename(dir, &old).map_err(Error::io("rename", dir))?;
    }
    fs::rename(made, dir).map_err(Error::io("rename", made))?;
    if let Some(parent) = dir.parent() {
        sync_folder(parent)?;
    }
    if replaces {
        fs::remove_dir_all(&old).map_err(Error::io("remove", &old))
    } else {
        Ok(())
    }
}

fn corrupt(file: &Path, reason: impl Into<String>) -> Error {
    Error::Corrupt {
        file: file.to_owned(),
        reason: reason.into(),
    }
}

fn read_manifest(dir: &Path) -> Result<Saved, Error> {
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
    let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
    let sealed: Sealed =
        serde_json::from_slice(&bytes).map_err(|e| corrupt(&path, e.to_string()))?;
    if hash(sealed.contents.as_bytes()) != sealed.sha256 {
        return Err(corrupt(&path, "its SHA-256 does not match"));
    }
    let saved: Saved =
        serde_json::from_str(&sealed.contents).map_err(|e| corrupt(&path, e.to_string()))?;
    if saved.schema != SCHEMA {
        let difference = format!(
            "it has schema version {}, this program reads {SCHEMA}",
            saved.schema
        );
        return Err(Error::Incompatible {
            path: dir.to_owned(),
            differences: vec![difference],
        });
    }
    Ok(saved)
}

/// Reads a checkpoint into host arrays in the order of the layouts. Every file is verified before any is used.
///
/// `frozen` is the fingerprint of the parameters that do not learn.
pub(crate) fn read(
    dir: &Path,
    frozen: Option<&str>,
    layouts: &[(&str, &Layout)],
) -> Result<(Saved, Vec<Vec<HostArray>>), Error> {
    let saved = read_manifest(dir)?;
    let mut contents: HashMap<&str, Vec<u8>> = HashMap::new();
    for entry in &saved.files {
        let path = dir.join(&entry.name);
        if !path.exists() {
            return Err(corrupt(&path, "it is missing"));
        }
        let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
        if bytes.len() as u64 != entry.bytes {
            return Err(corrupt(
                &path,
                format!("it has {} bytes, {} were written", bytes.len(), entry.bytes),
            ));
        }
        if hash(&bytes) != entry.sha256 {
            return Err(corrupt(
                &path,
                "its SHA-256 does not match what was written",
            ));
        }
        contents.insert(&entry.name, bytes);
    }
    let mut differences = Vec::new();
    if saved.frozen.as_deref() != frozen {
        differences.push(
            "the frozen parameters are not those that it was trained with: give the same model, and freeze the same".to_owned(),
        );
    }
    let mut groups = Vec::new();
    for (name, layout) in layouts {
        let file = format!("{name}.safetensors");
        match contents.get(file.as_str()) {
            Some(bytes) => groups.push(arrays(&dir.join(&file), bytes, layout, &mut differences)?),
            None => differences.push(format!("it has no file {file}")),
        }
    }
    if !differences.is_empty() {
        return Err(Error::Incompatible {
            path: dir.to_owned(),
            differences,
        });
    }
    Ok((saved, groups))
}

fn arrays(
    path: &Path,
    bytes: &[u8],
    layout: &Layout,
    differences: &mut Vec<String>,
) -> Result<Vec<HostArray>, Error> {
    let stored = SafeTensors::deserialize(bytes).map_err(|e| corrupt(path, e.to_string()))?;
    let mut arrays = Vec::new();
    for spec in layout.specs() {
        match stored.tensor(&spec.name) {
            Ok(view) if view.dtype() == stored_dtype(spec.dtype) && view.shape() == spec.dims => {
                let array = HostArray::new(spec.dtype, spec.dims.clone(), view.data().to_vec());
                arrays.push(array.map_err(ferrotune_program::Error::from)?);
            }
            Ok(view) => {
                let wanted = format!("{:?} {:?}", stored_dtype(spec.dtype), spec.dims);
                differences.push(format!(
                    "`{}` is {:?} {:?}, the run wants {wanted}",
                    spec.name,
                    view.dtype(),
                    view.shape()
                ));
            }
            Err(_) => differences.push(format!("`{}` is not in it", spec.name)),
        }
    }
    let extra = stored
        .names()
        .into_iter()
        .filter(|n| layout.position(n).is_none());
    differences.extend(extra.map(|n| format!("`{n}` is in it, the run has no such array")));
    Ok(arrays)
}

/// Step of a folder called `step-N`.
fn step_of(path: &Path) -> Option<u64> {
    path.file_name()?
        .to_str()?
        .strip_prefix("step-")?
        .parse()
        .ok()
}

/// Folders called `step-N` under `dir`, oldest first. They got that name when they were complete.
fn named(dir: &Path) -> Result<Vec<(u64, PathBuf)>, Error> {
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
    Ok(named(dir)?.pop().map(|(_, path)| path))
}

/// Removes all but the newest `count` checkpoints under `dir`; at least one always stays. Those without a manifest are not
/// counted, so that they never push out a good one.
///
/// # Errors
/// A folder that cannot be read or removed.
pub fn keep_last(dir: &Path, count: usize) -> Result<(), Error> {
    let mut found = named(dir)?;
    found.retain(|(_, path)| path.join(MANIFEST).exists());
    let surplus = found.len().saturating_sub(count.max(1));
    for (_, path) in &found[..surplus] {
        fs::remove_dir_all(path).map_err(Error::io("remove", path))?;
    }
    Ok(())
}
