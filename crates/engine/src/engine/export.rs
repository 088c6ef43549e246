//! Weights for others: the tensors of a checkpoint of Hugging Face, one after the other.

use std::borrow::Cow;
use std::path::Path;

use ferrotune_graph::{DType, HostArray};
use ferrotune_models::{HfLayout, save_from};

use super::Engine;
use crate::error::Error;

impl Engine {
    /// A copy of one parameter on the host, f32.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a path that the model has not got; [`Error::StateLost`], or the failure of the step that makes it.
    pub fn param_to_host(&self, path: &str) -> Result<HostArray, Error> {
        let groups = self.weights()?;
        let array = groups.iter().find_map(|group| group.get(path));
        let array = array.ok_or_else(|| Error::Parameter {
            path: path.to_owned(),
            reason: "the model has no such parameter".to_owned(),
        })?;
        Ok(array.to_host().map_err(ferrotune_program::Error::from)?)
    }

    /// Hands the current weights to `each` as tensors of a layout (all of the model, or its adapters): name, then values in
    /// `dtype` (f32, bf16 or f16). One parameter at a time is copied to the host, so there is never a second copy of the model.
    ///
    /// # Errors
    /// What [`HfLayout::stream`] refuses, what `each` says, [`Error::StateLost`], or the failure of the step that makes them.
    pub fn weights_for(
        &self,
        layout: &HfLayout,
        dtype: DType,
        each: &mut dyn FnMut(&str, HostArray) -> Result<(), Error>,
    ) -> Result<(), Error> {
        layout.stream(
            dtype,
            &mut |spec| Ok(Cow::Owned(self.param_to_host(&spec.path)?)),
            each,
        )
    }

    /// Writes the model to a folder as [`ferrotune_models::save`] does, one parameter at a time.
    ///
    /// # Errors
    /// What that refuses, [`Error::StateLost`], or the failure of the step that makes them.
    pub fn save_model(&self, dir: &Path, dtype: DType, source: Option<&Path>) -> Result<(), Error> {
        save_from(dir, &self.model, dtype, source, &mut |spec| {
            Ok(Cow::Owned(self.param_to_host(&spec.path)?))
        })
    }
}
