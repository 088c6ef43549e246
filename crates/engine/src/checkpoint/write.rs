//! From arrays to a folder.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use ferrotune_graph::{DType, HostArray};
use ferrotune_program::Group;
use safetensors::tensor::{Dtype, TensorView};

use super::manifest::{ArrayEntry, FileEntry, Manifest, hash};
use super::{MANIFEST, SCHEMA};
use crate::error::Error;

/// State on the host, as it was at one moment.
pub(crate) struct Copied {
    /// Updates made.
    pub(crate) step: u64,
    /// Fingerprint of the parameters that do not learn.
    pub(crate) frozen: Option<String>,
    /// Name of the loss whose gradients are gathered, if any are.
    pub(crate) accumulating: Option<String>,
    /// The caller's state.
    pub(crate) extra: serde_json::Value,
    /// Files by name without ending, each with its arrays by name.
    pub(crate) files: Vec<(&'static str, Vec<(String, HostArray)>)>,
}

/// The arrays of a group with their names.
pub(crate) fn copy(group: &Group) -> Result<Vec<(String, HostArray)>, Error> {
    let names = group.layout().names().map(str::to_owned);
    Ok(names.zip(group.to_host()?).collect())
}

pub(super) fn stored_dtype(dtype: DType) -> Dtype {
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

/// The folder's name with something behind it.
fn beside(dir: &Path, ending: &str) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_os_string();
    name.push(ending);
    dir.with_file_name(name)
}

/// Writes a checkpoint to `dir` and returns its size. On an error what was there before is untouched.
pub(crate) fn write(dir: &Path, state: &Copied) -> Result<u64, Error> {
    let made = beside(dir, ".partial");
    if made.exists() {
        fs::remove_dir_all(&made).map_err(Error::io("remove", &made))?;
    }
    fs::create_dir_all(&made).map_err(Error::io("create", &made))?;
    let result = fill(&made, state).and_then(|bytes| publish(&made, dir).map(|()| bytes));
    if result.is_err() {
        // The error matters more than the left-over, which the next save removes.
        let _ = fs::remove_dir_all(&made);
    }
    result
}

fn fill(made: &Path, state: &Copied) -> Result<u64, Error> {
    let mut files = Vec::new();
    for (name, arrays) in &state.files {
        files.push(file(made, &format!("{name}.safetensors"), arrays)?);
    }
    let bytes = files.iter().map(|file| file.bytes).sum();
    let manifest = Manifest {
        schema: SCHEMA,
        step: state.step,
        frozen: state.frozen.clone(),
        accumulating: state.accumulating.clone(),
        extra: state.extra.clone(),
        files,
    };
    write_synced(&made.join(MANIFEST), manifest.seal().as_bytes())?;
    sync_folder(made)?;
    Ok(bytes)
}

fn file(made: &Path, name: &str, arrays: &[(String, HostArray)]) -> Result<FileEntry, Error> {
    let views: Vec<_> = arrays.iter().map(|(n, a)| (n.as_str(), view(a))).collect();
    let bytes = safetensors::serialize(views, None).expect("views of whole arrays can be written");
    write_synced(&made.join(name), &bytes)?;
    let entry = |(name, a): &(String, HostArray)| ArrayEntry {
        name: name.clone(),
        dtype: format!("{:?}", stored_dtype(a.dtype())),
        dims: a.dims().to_vec(),
        sha256: hash(a.bytes()),
    };
    Ok(FileEntry {
        name: name.to_owned(),
        bytes: bytes.len() as u64,
        sha256: hash(&bytes),
        arrays: arrays.iter().map(entry).collect(),
    })
}

/// Gives a complete folder its name; a checkpoint of the same step gives way only then.
fn publish(made: &Path, dir: &Path) -> Result<(), Error> {
    let old = beside(dir, ".old");
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

fn view(a: &HostArray) -> TensorView<'_> {
    TensorView::new(stored_dtype(a.dtype()), a.dims().to_vec(), a.bytes())
        .expect("an array on the host has as many bytes as its type says")
}
