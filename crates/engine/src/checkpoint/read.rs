//! From a folder to arrays.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use ferrotune_graph::HostArray;
use ferrotune_nn::ParamSpec;
use ferrotune_program::Layout;
use safetensors::SafeTensors;

use super::manifest::{ArrayEntry, FileEntry, Manifest, corrupt, hash};
use super::write::stored_dtype;
use crate::error::Error;

/// A checkpoint of which every byte was compared with the manifest.
#[derive(Debug)]
pub struct Stored {
    /// What it says of itself.
    pub manifest: Manifest,
    contents: Vec<Vec<u8>>,
}

/// Reads a checkpoint and verifies all of it.
///
/// # Errors
/// As [`verify`](super::verify).
pub fn open(dir: &Path) -> Result<Stored, Error> {
    let manifest = Manifest::read(dir)?;
    let files = manifest.files.iter();
    let contents: Result<_, Error> = files.map(|entry| verified(dir, entry)).collect();
    Ok(Stored {
        contents: contents?,
        manifest,
    })
}

fn verified(dir: &Path, entry: &FileEntry) -> Result<Vec<u8>, Error> {
    let path = dir.join(&entry.name);
    if !path.exists() {
        return Err(corrupt(&path, "it is missing"));
    }
    let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
    if bytes.len() as u64 != entry.bytes {
        let found = bytes.len();
        let reason = format!("it has {found} bytes, {} were written", entry.bytes);
        return Err(corrupt(&path, reason));
    }
    if hash(&bytes) == entry.sha256 {
        return Ok(bytes);
    }
    let stored = SafeTensors::deserialize(&bytes);
    let differs = |name: &str, sha256: &str| match &stored {
        Ok(stored) => stored
            .tensor(name)
            .is_ok_and(|it| hash(it.data()) != sha256),
        Err(_) => false,
    };
    let mut arrays = entry.arrays.iter();
    let reason = match arrays.find(|it| differs(&it.name, &it.sha256)) {
        Some(array) => format!("its array `{}` is not what was written", array.name),
        None => "its header is not what was written".to_owned(),
    };
    Err(corrupt(&path, reason))
}

impl Stored {
    /// Names of the arrays in the file `NAME.safetensors`, in the order in which they were written.
    pub(crate) fn names(&self, name: &str) -> Vec<&str> {
        let entries = self.entries(name);
        entries.map(|it| it.name.as_str()).collect()
    }

    /// Dimensions of the first array in that file, if there is one.
    pub(crate) fn dims(&self, name: &str) -> Option<&[usize]> {
        let first = self.entries(name).next()?;
        Some(&first.dims)
    }

    fn entries(&self, name: &str) -> impl Iterator<Item = &ArrayEntry> {
        let file = format!("{name}.safetensors");
        let files = self.manifest.files.iter();
        files
            .filter(move |it| it.name == file)
            .flat_map(|it| &it.arrays)
    }

    /// The arrays of a layout from the file `NAME.safetensors`. What does not fit is added to `differences`.
    ///
    /// # Errors
    /// A file that was damaged before its checksum was taken.
    pub fn arrays(
        &self,
        dir: &Path,
        name: &str,
        layout: &Layout,
        differences: &mut Vec<String>,
    ) -> Result<Vec<HostArray>, Error> {
        let file = format!("{name}.safetensors");
        let files = self.manifest.files.iter().zip(&self.contents);
        let Some((_, bytes)) = files.into_iter().find(|(entry, _)| entry.name == file) else {
            differences.push(format!("it has no file {file}"));
            return Ok(Vec::new());
        };
        arrays(&dir.join(&file), bytes, layout, differences)
    }
}

/// The files of a checkpoint as host arrays in the order of the layouts.
///
/// `frozen` is the fingerprint of the parameters that do not learn.
pub(crate) fn read(
    stored: &Stored,
    dir: &Path,
    frozen: Option<&str>,
    layouts: &[(&str, &Layout)],
) -> Result<Vec<Vec<HostArray>>, Error> {
    let mut differences = Vec::new();
    if stored.manifest.frozen.as_deref() != frozen {
        differences.push(
            "the frozen parameters are not those that it was trained with: give the same model, and freeze the same".to_owned(),
        );
    }
    let mut groups = Vec::new();
    for (name, layout) in layouts {
        groups.push(stored.arrays(dir, name, layout, &mut differences)?);
    }
    for file in &stored.manifest.files {
        let read = |(name, _): &(&str, &Layout)| file.name == format!("{name}.safetensors");
        if !layouts.iter().any(read) {
            differences.push(format!(
                "it has a file {}, the run has no such state",
                file.name
            ));
        }
    }
    if differences.is_empty() {
        return Ok(groups);
    }
    if differences.iter().any(|it| it.contains("/")) {
        differences.push(
            "to start from its weights alone, write them with `ferrotune checkpoint export` and name that folder in model.path"
                .to_owned(),
        );
    }
    Err(Error::Incompatible {
        path: dir.to_owned(),
        differences,
    })
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

impl Stored {
    /// Whether all parameters that it has are among `names`, those of a run.
    ///
    /// # Errors
    /// Those that are not, by name.
    pub fn check_params(&self, dir: &Path, names: &HashSet<&str>) -> Result<(), Error> {
        let files = &self.manifest.files;
        let params = files.iter().filter(|it| it.name == "params.safetensors");
        let stored = params.flat_map(|it| &it.arrays);
        let differences: Vec<String> = stored
            .filter(|it| !names.contains(it.name.as_str()))
            .map(|it| {
                format!(
                    "`{}` is in the checkpoint and does not learn in this run",
                    it.name
                )
            })
            .collect();
        if differences.is_empty() {
            return Ok(());
        }
        Err(Error::Incompatible {
            path: dir.to_owned(),
            differences,
        })
    }

    /// The value of a parameter, if it is one of those that learn.
    ///
    /// # Errors
    /// Another number type or other dimensions than `spec` has.
    pub fn param(&self, dir: &Path, spec: &ParamSpec) -> Result<Option<HostArray>, Error> {
        let files = self.manifest.files.iter().zip(&self.contents);
        let Some((_, bytes)) = files
            .into_iter()
            .find(|(entry, _)| entry.name == "params.safetensors")
        else {
            return Ok(None);
        };
        let path = dir.join("params.safetensors");
        let stored = SafeTensors::deserialize(bytes).map_err(|e| corrupt(&path, e.to_string()))?;
        let Ok(view) = stored.tensor(&spec.path) else {
            return Ok(None);
        };
        if view.dtype() != stored_dtype(spec.dtype) || view.shape() != spec.dims {
            let found = format!("{:?} {:?}", view.dtype(), view.shape());
            return Err(Error::Incompatible {
                path: dir.to_owned(),
                differences: vec![format!(
                    "`{}` is {found}, the model has {} {:?}",
                    spec.path, spec.dtype, spec.dims
                )],
            });
        }
        let array = HostArray::new(spec.dtype, spec.dims.clone(), view.data().to_vec());
        Ok(Some(array.map_err(ferrotune_program::Error::from)?))
    }
}
