//! From parameters to the tensors of a checkpoint, one parameter after the other: there is never a second copy of the model.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::{DType, HostArray};

use super::element::{Stored, first_out_of_range, not_finite, to_disk, unravel};
use super::mapped::MappedTensors;
use crate::adapter::Lora;
use crate::config::ModelConfig;
use crate::error::{Error, Result, WeightProblem};
use crate::layout::{Entry, Naming, Piece};

/// Takes a tensor: what it is, and its bytes.
type Each<'a, E> = dyn FnMut(&Piece, Vec<u8>) -> Result<(), E> + 'a;

/// How a checkpoint of a model names and packs its tensors.
#[derive(Clone, Debug)]
pub struct HfLayout {
    entries: Vec<Entry>,
}

impl HfLayout {
    /// As `transformers` saves a text model.
    pub fn of(config: &ModelConfig) -> Self {
        Self {
            entries: config.entries(&Naming::default()),
        }
    }

    /// As the weights in the folder `source` have it.
    ///
    /// # Errors
    /// What [`load`](super::load()) says of the files.
    pub fn of_folder(config: &ModelConfig, source: &Path) -> Result<Self> {
        let tensors = MappedTensors::open(source)?;
        Ok(Self::like(config, Some(&tensors)))
    }

    /// As PEFT saves adapters.
    ///
    /// # Errors
    /// [`Error::Adapter`].
    pub fn of_adapters(config: &ModelConfig, lora: &Lora) -> Result<Self> {
        let entries = config.adapter_entries(lora, &Naming::default())?;
        Ok(Self { entries })
    }

    /// Gradients as `transformers` has them in memory.
    pub(super) fn in_memory(config: &ModelConfig) -> Self {
        Self {
            entries: config.entries(&Naming::in_memory()),
        }
    }

    pub(super) fn like(config: &ModelConfig, source: Option<&MappedTensors>) -> Self {
        let naming = source.map(|it| Naming::of(it.names())).unwrap_or_default();
        let mut entries = config.entries(&naming);
        // A tied model may have the embedding under a second name.
        let head = naming.head();
        if config.tie_word_embeddings && source.is_some_and(|it| it.info(&head).is_some()) {
            let mut twin = entries[0].clone();
            twin.pieces[0].name = head;
            entries.insert(1, twin);
        }
        Self { entries }
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Hands every tensor, in `dtype` (f32, bf16 or f16), to `each`: name, then values in the checkpoint's order.
    ///
    /// `fetch` gives the f32 array of a parameter of [`ModelConfig::params`] (or [`ModelConfig::adapter_params`]). Each is asked
    /// for once, or twice where a tied head has a name of its own, and dropped before the next. Held beside it is one tensor, and
    /// those that have rows of parameters that are still to come.
    ///
    /// # Errors
    /// [`Error::SaveDtype`]; [`Error::Unfit`] with every array that is of the wrong shape or number type, not finite, or out of
    /// the range of `dtype`: after the first of them `each` hears of nothing more; what `fetch` and `each` say.
    pub fn stream<'a, E: From<Error>>(
        &self,
        dtype: DType,
        fetch: &mut dyn FnMut(&ParamSpec) -> Result<Cow<'a, HostArray>, E>,
        each: &mut dyn FnMut(&str, HostArray) -> Result<(), E>,
    ) -> Result<(), E> {
        let stored = Stored::from_dtype(dtype).ok_or(Error::SaveDtype { dtype })?;
        let mut array = |tensor: &Piece, bytes| {
            let array = HostArray::new(dtype, tensor.dims.clone(), bytes);
            each(
                &tensor.name,
                array.expect("a tensor has the bytes of its shape"),
            )
        };
        let problems = self.tensors(stored, true, fetch, &mut array)?;
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Unfit { problems }.into())
    }

    /// The bytes of every tensor, until the first problem. Only with `judged` are values looked at.
    pub(super) fn tensors<'a, E>(
        &self,
        stored: Stored,
        judged: bool,
        fetch: &mut dyn FnMut(&ParamSpec) -> Result<Cow<'a, HostArray>, E>,
        each: &mut Each<'_, E>,
    ) -> Result<Vec<WeightProblem>, E> {
        let mut missing: HashMap<&str, usize> = HashMap::new();
        for piece in self.entries.iter().flat_map(|entry| &entry.pieces) {
            *missing.entry(&piece.name).or_default() += 1;
        }
        let mut begun: HashMap<&str, Vec<u8>> = HashMap::new();
        let mut problems = Vec::new();
        for entry in &self.entries {
            let array = fetch(&entry.spec)?;
            problems.extend(problem(&entry.spec, &array, judged.then_some(stored)));
            if !problems.is_empty() {
                continue;
            }
            let length: usize = entry.piece_dims().iter().product();
            let values = array.as_slice::<f32>();
            for (piece, values) in entry.pieces.iter().zip(values.chunks_exact(length)) {
                let size = piece.dims.iter().product::<usize>() * stored.size();
                let name = piece.name.as_str();
                let mut bytes = begun.remove(name).unwrap_or_else(|| vec![0; size]);
                to_disk(values, stored, piece, entry.transposed, &mut bytes);
                let left = missing.get_mut(name).expect("all pieces were counted");
                *left -= 1;
                if *left == 0 {
                    each(piece, bytes)?;
                } else {
                    begun.insert(name, bytes);
                }
            }
        }
        Ok(problems)
    }
}

/// What is wrong with the array of a parameter; its values are looked at if it is to be `stored`.
fn problem(spec: &ParamSpec, array: &HostArray, stored: Option<Stored>) -> Option<WeightProblem> {
    let name = spec.path.clone();
    if array.dims() != spec.dims {
        return Some(WeightProblem::Shape {
            name,
            expected: spec.dims.clone(),
            found: array.dims().to_vec(),
        });
    }
    if array.dtype() != DType::F32 {
        return Some(WeightProblem::Dtype {
            name,
            found: array.dtype().to_string(),
            expected: "f32",
        });
    }
    let (stored, values) = (stored?, array.as_slice::<f32>());
    if let Some((count, first)) = not_finite(values.iter().copied()) {
        return Some(WeightProblem::NotFinite {
            name,
            count,
            first: unravel(first, &spec.dims),
        });
    }
    let value = first_out_of_range(values, stored)?;
    Some(WeightProblem::OutOfRange {
        name,
        value,
        dtype: stored.dtype(),
    })
}
