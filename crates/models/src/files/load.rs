//! Reading weights: every tensor that the model needs, under the names of its family, as stacked f32 arrays.
//!
//! Tensors are read one after another from mapped files, so that only the result grows with the model: what was read is let go of at once.

use std::collections::HashSet;
use std::path::Path;

use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::{DType, HostArray};

use super::element::{Stored, from_disk, not_finite, unravel};
use super::mapped::{MappedTensors, WINDOW};
use crate::config::ModelConfig;
use crate::error::{Error, Result, WeightProblem};
use crate::layout::{Entry, Naming, Piece};
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
/// Sources are f32, bf16 or f16, all exact in f32. Experts may be apart or one tensor; the decoder may be part of a larger model. A tied
/// model may have a head on disk as well, if it is the same as the embedding, byte for byte. Rotary tables of old Llama checkpoints
/// and tensors of other parts (images, prediction of several tokens) are left unread.
///
/// # Errors
/// [`Error::NoWeights`], [`Error::Corrupt`], [`Error::Index`], [`Error::Io`], [`Error::Memory`]; [`Error::Weights`] with every tensor that is missing,
/// extra, of the wrong shape or number type, or not finite.
pub fn load(dir: impl AsRef<Path>, config: &ModelConfig) -> Result<Weights> {
    let dir = dir.as_ref();
    let tensors = MappedTensors::open(dir)?;
    let naming = Naming::of(tensors.names());
    let entries = config.entries(&naming);
    let refuse = |problems| Error::Weights {
        dir: dir.to_path_buf(),
        problems,
    };
    let (unused, problems) = compare(&tensors, &entries, &naming, config);
    if !problems.is_empty() {
        return Err(refuse(problems));
    }
    Ok(Weights {
        params: read_all(&tensors, &entries, refuse)?,
        stored: stored_type(&tensors, &entries),
        unused,
    })
}

/// Names that hold nothing for this model, and everything that is not as it needs it.
pub(super) fn compare(
    tensors: &MappedTensors,
    entries: &[Entry],
    naming: &Naming,
    config: &ModelConfig,
) -> (Vec<String>, Vec<WeightProblem>) {
    let (known, mut problems) = compare_pieces(tensors, entries);
    let mut unused = Vec::new();
    for (name, info) in tensors.iter().filter(|(name, _)| !known.contains(name)) {
        if Naming::is_other_part(name) {
            unused.push(name.to_owned());
        } else if name == naming.head() && config.tie_word_embeddings {
            if !tensors.same(name, &naming.embedding()) {
                problems.push(WeightProblem::TiedHeadDiffers {
                    name: name.to_owned(),
                    embedding: naming.embedding(),
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

/// The names that parameters need, and what is wrong with those tensors.
pub(super) fn compare_pieces<'e>(
    tensors: &MappedTensors,
    entries: &'e [Entry],
) -> (HashSet<&'e str>, Vec<WeightProblem>) {
    let (mut known, mut problems) = (HashSet::new(), Vec::new());
    for piece in entries.iter().flat_map(|entry| &entry.pieces) {
        // Several parameters may be parts of one tensor.
        if known.insert(piece.name.as_str()) {
            compare_piece(tensors, piece, &mut problems);
        }
    }
    (known, problems)
}

fn compare_piece(tensors: &MappedTensors, piece: &Piece, problems: &mut Vec<WeightProblem>) {
    let (name, expected) = (piece.name.clone(), piece.dims.clone());
    let Some(info) = tensors.info(&name) else {
        problems.push(WeightProblem::Missing { name, expected });
        return;
    };
    if info.shape != expected {
        problems.push(WeightProblem::Shape {
            name: name.clone(),
            expected,
            found: info.shape.clone(),
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

/// Reads every parameter; `refuse` makes the error of values that are not finite.
pub(super) fn read_all(
    tensors: &MappedTensors,
    entries: &[Entry],
    refuse: impl Fn(Vec<WeightProblem>) -> Error,
) -> Result<Vec<(ParamSpec, HostArray)>> {
    let mut problems = Vec::new();
    let mut one = |entry: &Entry| {
        let array = read(tensors, entry, &mut problems)?;
        Ok((entry.spec.clone(), array))
    };
    let params = entries.iter().map(&mut one).collect::<Result<Vec<_>>>()?;
    if problems.is_empty() {
        Ok(params)
    } else {
        Err(refuse(problems))
    }
}

/// Reads the pieces of one parameter, which were compared before, and stacks them.
fn read(
    tensors: &MappedTensors,
    entry: &Entry,
    problems: &mut Vec<WeightProblem>,
) -> Result<HostArray> {
    let mut bytes = memory::zeros(&entry.spec)?;
    let (values, _) = bytes.as_chunks_mut();
    let slots = values.chunks_exact_mut(entry.piece_dims().iter().product());
    for (piece, slot) in entry.pieces.iter().zip(slots) {
        let name = &piece.name;
        let (Some(info), Some(source)) = (tensors.info(name), tensors.bytes(name)) else {
            unreachable!("the names were compared before");
        };
        let stored = Stored::from_disk(info.dtype).expect("the types were compared before");
        let mut held = 0..0;
        from_disk(source, stored, piece, entry.transposed, slot, |bytes| {
            if held.is_empty() {
                held.start = bytes.start;
            }
            held.end = bytes.end;
            if held.len() >= WINDOW {
                tensors.let_go(name, std::mem::take(&mut held));
            }
        });
        tensors.let_go(name, held);
        if let Some((count, first)) = not_finite(slot.iter().map(|v| f32::from_ne_bytes(*v))) {
            problems.push(WeightProblem::NotFinite {
                name: name.clone(),
                count,
                first: place_on_disk(entry, piece, first),
            });
        }
    }
    Ok(memory::array(&entry.spec, bytes))
}

/// The index on disk of the value at `offset` of a piece in the tree's order.
fn place_on_disk(entry: &Entry, piece: &Piece, offset: usize) -> Vec<usize> {
    let (columns, height) = (piece.columns(), piece.height());
    let (row, column) = if entry.transposed {
        (offset % height, offset / height)
    } else {
        (offset / columns, offset % columns)
    };
    unravel(piece.disk_row(row) * columns + column, &piece.dims)
}

fn stored_type(tensors: &MappedTensors, entries: &[Entry]) -> Option<DType> {
    let mut types = entries
        .iter()
        .flat_map(|entry| &entry.pieces)
        .map(|piece| tensors.info(&piece.name).map(|info| info.dtype));
    let first = types.next()??;
    types
        .all(|dtype| dtype == Some(first))
        .then(|| Stored::from_disk(first).map(Stored::dtype))?
}
