//! Reading weights: every tensor that the model needs, under the names of its family, as stacked f32 arrays.
//!
//! Tensors are read one after another from mapped files, so that only the result grows with the model.

use std::collections::HashSet;
use std::path::Path;

use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::{DType, HostArray};

use super::element::{Stored, from_disk, not_finite, unravel};
use super::mapped::MappedTensors;
use crate::config::ModelConfig;
use crate::error::{Error, Result, WeightProblem};
use crate::layout::{EMBEDDING, Entry, HEAD};
use crate::memory;

/// Weights read from a folder.
#[derive(Debug)]
#[non_exhaustive]
pub struct Weights {
    /// One f32 array for each of [`ModelConfig::params`], in that order.
    pub params: Vec<(ParamSpec, HostArray)>,
    /// The number type on disk, if it was the same for all tensors.
    pub stored: Option<DType>,
    /// Tensors in the files that hold nothing a model of this family needs: to be shown to the user once.
    pub unused: Vec<String>,
}

/// Reads the weights of the folder `dir`: `model.safetensors`, or the files of `model.safetensors.index.json`.
///
/// Sources are f32, bf16 or f16, all exact in f32. A tied model may have a head on disk as well, if it is the same as the embedding,
/// byte for byte. Rotary tables of old Llama checkpoints are left unread.
///
/// # Errors
/// [`Error::NoWeights`], [`Error::Corrupt`], [`Error::Index`], [`Error::Io`], [`Error::Memory`]; [`Error::Weights`] with every tensor that is missing,
/// extra, of the wrong shape or number type, or not finite.
pub fn load(dir: impl AsRef<Path>, config: &ModelConfig) -> Result<Weights> {
    let dir = dir.as_ref();
    let tensors = MappedTensors::open(dir)?;
    let entries = config.entries();
    let refuse = |problems| Error::Weights {
        dir: dir.to_path_buf(),
        problems,
    };
    let (unused, problems) = compare(&tensors, &entries, config);
    if !problems.is_empty() {
        return Err(refuse(problems));
    }
    let mut params = Vec::with_capacity(entries.len());
    let mut problems = Vec::new();
    for entry in &entries {
        let array = read(&tensors, entry, &mut problems)?;
        params.push((entry.spec.clone(), array));
    }
    if !problems.is_empty() {
        return Err(refuse(problems));
    }
    Ok(Weights {
        params,
        stored: stored_type(&tensors, &entries),
        unused,
    })
}

/// Names that hold no weights, and everything that is not as the model needs it.
fn compare(
    tensors: &MappedTensors,
    entries: &[Entry],
    config: &ModelConfig,
) -> (Vec<String>, Vec<WeightProblem>) {
    let mut problems = Vec::new();
    let mut known = HashSet::new();
    for entry in entries {
        let expected = entry.disk_dims();
        for name in &entry.names {
            known.insert(name.as_str());
            let name = name.clone();
            let Some(info) = tensors.info(&name) else {
                problems.push(WeightProblem::Missing {
                    name,
                    expected: expected.clone(),
                });
                continue;
            };
            if info.shape != expected {
                let (expected, found) = (expected.clone(), info.shape.clone());
                problems.push(WeightProblem::Shape {
                    name: name.clone(),
                    expected,
                    found,
                });
            }
            if Stored::from_disk(info.dtype).is_none() {
                problems.push(WeightProblem::Dtype {
                    name,
                    found: info.dtype.to_string(),
                    expected: Stored::NAMES,
                });
            }
        }
    }
    let mut unused = Vec::new();
    for (name, info) in tensors.iter().filter(|(name, _)| !known.contains(name)) {
        if name.ends_with(".rotary_emb.inv_freq") {
            unused.push(name.to_owned());
        } else if name == HEAD && config.tie_word_embeddings {
            if !same(tensors, HEAD, EMBEDDING) {
                problems.push(WeightProblem::TiedHeadDiffers {
                    name: name.to_owned(),
                    embedding: EMBEDDING.to_owned(),
                });
            }
        } else {
            problems.push(WeightProblem::Extra {
                name: name.to_owned(),
                found: info.shape.clone(),
            });
        }
    }
    (unused, problems)
}

/// Whether two tensors have the same type, shape and bytes.
fn same(tensors: &MappedTensors, left: &str, right: &str) -> bool {
    let (Some(a), Some(b)) = (tensors.info(left), tensors.info(right)) else {
        return false;
    };
    a.dtype == b.dtype && a.shape == b.shape && tensors.bytes(left) == tensors.bytes(right)
}

/// Reads the tensors of one parameter, which were compared before, and stacks them.
fn read(
    tensors: &MappedTensors,
    entry: &Entry,
    problems: &mut Vec<WeightProblem>,
) -> Result<HostArray> {
    let disk_dims = entry.disk_dims();
    let mut bytes = memory::zeros(&entry.spec)?;
    let (values, _) = bytes.as_chunks_mut();
    let pieces = values.chunks_exact_mut(entry.piece_dims().iter().product());
    for (name, piece) in entry.names.iter().zip(pieces) {
        let (Some(info), Some(source)) = (tensors.info(name), tensors.bytes(name)) else {
            unreachable!("the names were compared before");
        };
        let stored = Stored::from_disk(info.dtype).expect("the types were compared before");
        from_disk(source, stored, &disk_dims, entry.transposed, piece);
        if let Some((count, first)) = not_finite(piece.iter().map(|v| f32::from_ne_bytes(*v))) {
            let mut first = unravel(first, entry.piece_dims());
            if entry.transposed {
                first.reverse();
            }
            problems.push(WeightProblem::NotFinite {
                name: name.clone(),
                count,
                first,
            });
        }
    }
    Ok(memory::array(&entry.spec, bytes))
}

fn stored_type(tensors: &MappedTensors, entries: &[Entry]) -> Option<DType> {
    let mut types = entries
        .iter()
        .flat_map(|entry| &entry.names)
        .map(|name| tensors.info(name).map(|info| info.dtype));
    let first = types.next()??;
    types
        .all(|dtype| dtype == Some(first))
        .then(|| Stored::from_disk(first).map(Stored::dtype))?
}
