//! Writing weights: a Hugging Face folder, or gradients under the same names.
//!
//! Names, packing, and the cut into files are those of the folder that the model came from; without one, those of a text model
//! that `transformers` saves in one file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::{DType, HostArray};

use super::atomic;
use super::element::Stored;
use super::mapped::{MappedTensors, SINGLE_FILE};
use super::stream::HfLayout;
use super::write::{Outputs, Sink};
use crate::config::{CONFIG_FILE, ModelConfig};
use crate::error::{Error, Result, WeightProblem};
use crate::layout::{Entry, Piece};

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
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
];

/// Writes a Hugging Face folder: weights in `dtype` (f32, bf16 or f16), `config.json`, and copies of the tokenizer and generation
/// files of `source`, the folder that the model came from.
///
/// Tensors get the names and the packing that they have in `source`, and lie in files of the same names. Tensors of other parts of
/// the model (images, prediction of several tokens) are copied from there unchanged.
///
/// Each file is complete under its name or not there, and the index of several files comes after them; `config.json` comes last, so a
/// new folder that has one is whole. `params` are the f32 arrays of [`ModelConfig::params`], in any order.
///
/// # Errors
/// [`Error::SaveDtype`], [`Error::Io`]; what [`load`](super::load()) says of the files of `source`; [`Error::Arrays`] with every array
/// that is missing, extra, of the wrong shape or number type, not finite, or out of the range of `dtype`.
pub fn save(
    dir: impl AsRef<Path>,
    config: &ModelConfig,
    params: &[(ParamSpec, HostArray)],
    dtype: DType,
    source: Option<&Path>,
) -> Result<()> {
    let dir = dir.as_ref();
    let layout = HfLayout::of(config);
    let arrays = arrays_by_path(&dir.join(SINGLE_FILE), layout.entries(), params)?;
    save_from(dir, config, dtype, source, &mut |spec: &ParamSpec| {
        Ok(Cow::Borrowed(arrays[spec.path.as_str()]))
    })
}

/// The same from parameters that are asked for one after the other, so that never more than one is held: see
/// [`HfLayout::stream`].
///
/// # Errors
/// As [`save`], and what `fetch` says. What was there before stays then.
pub fn save_from<'a, E: From<Error>>(
    dir: &Path,
    config: &ModelConfig,
    dtype: DType,
    source: Option<&Path>,
    fetch: &mut dyn FnMut(&ParamSpec) -> Result<Cow<'a, HostArray>, E>,
) -> Result<(), E> {
    let stored = Stored::from_dtype(dtype).ok_or(Error::SaveDtype { dtype })?;
    let old = match source.map(MappedTensors::open) {
        Some(Ok(tensors)) => Some(tensors),
        None | Some(Err(Error::NoWeights { .. })) => None,
        Some(Err(error)) => return Err(error.into()),
    };
    let layout = HfLayout::like(config, old.as_ref());
    std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    let mut outputs = Outputs::of(layout.entries(), stored);
    if let Some(old) = &old {
        outputs.carry(old);
    }
    let path = dir.join(SINGLE_FILE);
    outputs.write_folder(dir, old.as_ref(), &mut |sink| {
        feed(&path, &layout, (stored, true), fetch, sink)
    })?;
    if let Some(source) = source {
        copy_companions(source, dir)?;
    }
    Ok(atomic::write(&dir.join(CONFIG_FILE), |file| {
        file.write_all(config.to_json(dtype).as_bytes())
    })?)
}

/// Hands the tensors of a layout to a file, and refuses what cannot be in it.
pub(super) fn feed<'a, E: From<Error>>(
    path: &Path,
    layout: &HfLayout,
    (stored, judged): (Stored, bool),
    fetch: &mut dyn FnMut(&ParamSpec) -> Result<Cow<'a, HostArray>, E>,
    sink: &mut Sink<'_>,
) -> Result<(), E> {
    let mut each = |tensor: &Piece, bytes: Vec<u8>| Ok(sink(&tensor.name, &bytes)?);
    let problems = layout.tensors(stored, judged, fetch, &mut each)?;
    if problems.is_empty() {
        return Ok(());
    }
    let path = path.to_path_buf();
    Err(Error::Arrays { path, problems }.into())
}

/// Writes arrays that have the shapes of the parameters (gradients) to the file `path`, in f32, by the names and shapes that the
/// parameters have in `transformers`: layers apart, matrices `[out, in]`, the experts of a layer in one tensor.
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
    let path = path.as_ref();
    let layout = HfLayout::in_memory(config);
    let arrays = arrays_by_path(path, layout.entries(), gradients)?;
    write_arrays(path, &layout, &arrays, false)
}

/// Writes one file of f32 tensors; values are looked at if `judged`.
pub(super) fn write_arrays(
    path: &Path,
    layout: &HfLayout,
    arrays: &Arrays<'_>,
    judged: bool,
) -> Result<()> {
    let mut fetch = |spec: &ParamSpec| Ok(Cow::Borrowed(arrays[spec.path.as_str()]));
    Outputs::of(layout.entries(), Stored::F32).write_file(path, &mut |sink| {
        feed(path, layout, (Stored::F32, judged), &mut fetch, sink)
    })
}

/// Arrays by the paths of their parameters.
pub(super) type Arrays<'a> = HashMap<&'a str, &'a HostArray>;

/// The arrays by path, if they are exactly those of the model.
pub(super) fn arrays_by_path<'a>(
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
