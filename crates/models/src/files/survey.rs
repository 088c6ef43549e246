//! What a folder's weight files hold, from their headers: no values are read.

use std::path::{Path, PathBuf};

use ferrotune_pjrt::DType;

use super::element::Stored;
use super::load::compare;
use super::mapped::MappedTensors;
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::layout::Naming;

/// What a folder's weight files hold.
#[derive(Debug)]
#[non_exhaustive]
pub struct Survey {
    /// The files, and the bytes of each.
    pub files: Vec<(PathBuf, u64)>,
    /// The number types in which the model's tensors are stored, each once.
    pub stored: Vec<DType>,
    /// Tensors that hold nothing a model of this family needs, sorted by name.
    pub unused: Vec<String>,
}

/// Looks at the weights of the folder `dir` as [`load`](super::load()) would, but for their values.
///
/// # Errors
/// [`Error::NoWeights`], [`Error::Corrupt`], [`Error::Index`], [`Error::Io`]; [`Error::Weights`] with every tensor that is missing,
/// extra, or of the wrong shape or number type.
pub fn survey(dir: impl AsRef<Path>, config: &ModelConfig) -> Result<Survey> {
    let dir = dir.as_ref();
    let tensors = MappedTensors::open(dir)?;
    let naming = Naming::of(tensors.names());
    let entries = config.entries(&naming);
    let (unused, problems) = compare(&tensors, &entries, &naming, config);
    if !problems.is_empty() {
        return Err(Error::Weights {
            dir: dir.to_path_buf(),
            problems,
        });
    }
    let mut stored = Vec::new();
    for piece in entries.iter().flat_map(|entry| &entry.pieces) {
        let info = tensors.info(&piece.name);
        let dtype = info.and_then(|info| Stored::from_disk(info.dtype));
        let dtype = dtype.expect("the types were compared").dtype();
        if !stored.contains(&dtype) {
            stored.push(dtype);
        }
    }
    let files = tensors.files();
    Ok(Survey {
        files: files
            .map(|(path, size)| (path.to_path_buf(), size as u64))
            .collect(),
        stored,
        unused,
    })
}
