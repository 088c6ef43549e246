//! Writing weights: a Hugging Face folder, or gradients under the same names.
//!
//! One file, names sorted, as `transformers` writes a model that fits into one. Sharded writing is not here.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::Path;

use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::{DType, HostArray};
use safetensors::tensor::{Metadata, TensorInfo};

use super::atomic;
use super::element::{Stored, first_out_of_range, not_finite, to_disk, unravel};
use super::mapped::SINGLE_FILE;
use crate::config::{CONFIG_FILE, ModelConfig};
use crate::error::{Error, Result, WeightProblem};
use crate::layout::Entry;

/// Files of a model folder that say how to use the model, and that training leaves as they are.
const COMPANIONS: &[&str] = &[
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

/// Writes a Hugging Face folder: `model.safetensors` in `dtype` (f32, bf16 or f16), `config.json`, and copies of the tokenizer and
/// generation files of `companions_from`.
///
/// Each file is complete under its name or not there; `config.json` comes last, so a new folder that has one is whole.
/// `params` are the f32 arrays of [`ModelConfig::params`], in any order.
///
/// # Errors
/// [`Error::SaveDtype`], [`Error::Io`]; [`Error::Arrays`] with every array that is missing, extra, of the wrong shape or number type,
/// not finite, or out of the range of `dtype`.
pub fn save(
    dir: impl AsRef<Path>,
    config: &ModelConfig,
    params: &[(ParamSpec, HostArray)],
    dtype: DType,
    companions_from: Option<&Path>,
) -> Result<()> {
    let dir = dir.as_ref();
    let path = dir.join(SINGLE_FILE);
    let stored = Stored::from_dtype(dtype).ok_or(Error::SaveDtype { dtype })?;
    let entries = config.entries();
    let arrays = arrays_by_path(&path, &entries, params)?;
    let problems = values_that_cannot_be_stored(&entries, &arrays, stored);
    if !problems.is_empty() {
        return Err(Error::Arrays { path, problems });
    }
    std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    write_tensors(&path, &entries, &arrays, stored)?;
    if let Some(source) = companions_from {
        copy_companions(source, dir)?;
    }
    atomic::write(&dir.join(CONFIG_FILE), |file| {
        file.write_all(config.to_json(dtype).as_bytes())
    })
}

/// Writes arrays that have the shapes of the parameters (gradients) to the file `path`, in f32, by the names and shapes that the
/// checkpoint has on disk: layers apart, matrices `[out, in]`.
///
/// Values that are not finite are written as they are.
///
/// # Errors
/// [`Error::Io`]; [`Error::Arrays`] with every array that is missing, extra, or of the wrong shape or number type.
pub fn export_gradients(
    path: impl AsRef<Path>,
    config: &ModelConfig,
    gradients: &[(ParamSpec, HostArray)],
) -> Result<()> {
    let entries = config.entries();
    let arrays = arrays_by_path(path.as_ref(), &entries, gradients)?;
    write_tensors(path.as_ref(), &entries, &arrays, Stored::F32)
}

type Arrays<'a> = HashMap<&'a str, &'a HostArray>;

/// The arrays by path, if they are exactly those of the model.
fn arrays_by_path<'a>(
    path: &Path,
    entries: &[Entry],
    params: &'a [(ParamSpec, HostArray)],
) -> Result<Arrays<'a>> {
    let mut problems = Vec::new();
    let mut arrays = Arrays::new();
    for (spec, array) in params {
        let wanted = entries.iter().any(|entry| entry.spec.path == spec.path);
        if !wanted || arrays.insert(&spec.path, array).is_some() {
            problems.push(WeightProblem::Extra {
                name: spec.path.clone(),
                found: array.dims().to_vec(),
            });
        }
    }
    for Entry { spec, .. } in entries {
        let (name, expected) = (spec.path.clone(), spec.dims.clone());
        match arrays.get(spec.path.as_str()) {
            None => problems.push(WeightProblem::Missing { name, expected }),
            Some(array) if array.dims() != spec.dims => {
                problems.push(WeightProblem::Shape {
                    name,
                    expected,
                    found: array.dims().to_vec(),
                });
            }
            Some(array) if array.dtype() != DType::F32 => {
                problems.push(WeightProblem::Dtype {
                    name,
                    found: array.dtype().to_string(),
                    expected: "f32",
                });
            }
            Some(_) => {}
        }
    }
    if problems.is_empty() {
        Ok(arrays)
    } else {
        Err(Error::Arrays {
            path: path.to_path_buf(),
            problems,
        })
    }
}

fn values_that_cannot_be_stored(
    entries: &[Entry],
    arrays: &Arrays<'_>,
    stored: Stored,
) -> Vec<WeightProblem> {
    let mut problems = Vec::new();
    for Entry { spec, .. } in entries {
        let values = arrays[spec.path.as_str()].as_slice::<f32>();
        if let Some((count, first)) = not_finite(values.iter().copied()) {
            problems.push(WeightProblem::NotFinite {
                name: spec.path.clone(),
                count,
                first: unravel(first, &spec.dims),
            });
        } else if let Some(value) = first_out_of_range(values, stored) {
            problems.push(WeightProblem::OutOfRange {
                name: spec.path.clone(),
                value,
                dtype: stored.dtype(),
            });
        }
    }
    problems
}

/// One tensor to be written: its row of the table, and which layer of it.
struct Piece<'a> {
    entry: &'a Entry,
    layer: usize,
}

/// Streams the file: only one tensor is converted at a time.
fn write_tensors(
    path: &Path,
    entries: &[Entry],
    arrays: &Arrays<'_>,
    stored: Stored,
) -> Result<()> {
    let pieces: BTreeMap<&str, Piece<'_>> = entries
        .iter()
        .flat_map(|entry| {
            entry
                .names
                .iter()
                .enumerate()
                .map(move |(layer, name)| (name.as_str(), Piece { entry, layer }))
        })
        .collect();
    let header = header(&pieces, stored);
    atomic::write(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for Piece { entry, layer } in pieces.values() {
            let dims = entry.piece_dims();
            let length: usize = dims.iter().product();
            let values =
                &arrays[entry.spec.path.as_str()].as_slice::<f32>()[layer * length..][..length];
            file.write_all(&to_disk(values, stored, dims, entry.transposed))?;
        }
        Ok(())
    })
}

/// The header as JSON, padded so that the data begins at a multiple of eight bytes.
fn header(pieces: &BTreeMap<&str, Piece<'_>>, stored: Stored) -> Vec<u8> {
    let mut end = 0;
    let tensors = pieces
        .iter()
        .map(|(name, piece)| {
            let start = end;
            end += piece.entry.piece_dims().iter().product::<usize>() * stored.size();
            let info = TensorInfo {
                dtype: stored.disk(),
                shape: piece.entry.disk_dims(),
                data_offsets: (start, end),
            };
            ((*name).to_owned(), info)
        })
        .collect();
    // `transformers` refuses a file that does not name its framework.
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata =
        Metadata::new(Some(format), tensors).expect("offsets follow each other and fit the shapes");
    let mut header = serde_json::to_vec(&metadata).expect("names, numbers and lists are JSON");
    header.resize(header.len().next_multiple_of(8), b' ');
    header
}

fn copy_companions(source: &Path, target: &Path) -> Result<()> {
    for name in COMPANIONS {
        let (from, to) = (source.join(name), target.join(name));
        if !from.is_file() || is_same_file(&from, &to) {
            continue;
        }
        let bytes = std::fs::read(&from).map_err(Error::io("read", &from))?;
        atomic::write(&to, |file| file.write_all(&bytes))?;
    }
    Ok(())
}

fn is_same_file(left: &Path, right: &Path) -> bool {
    matches!((left.canonicalize(), right.canonicalize()), (Ok(left), Ok(right)) if left == right)
}
