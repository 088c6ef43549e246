//! Room for one parameter: asked for politely, since its size comes from a file that may say anything.

use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::{DType, HostArray};

use crate::error::{Error, Result};

/// Zeroed bytes for the f32 values of `spec`.
///
/// # Errors
/// [`Error::Memory`] if there is no room.
pub(crate) fn zeros(spec: &ParamSpec) -> Result<Vec<u8>> {
    let refuse = || Error::Memory {
        name: spec.path.clone(),
        dims: spec.dims.clone(),
    };
    let size = spec
        .dims
        .iter()
        .try_fold(DType::F32.bytes(), |size, &n| size.checked_mul(n))
        .ok_or_else(refuse)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| refuse())?;
    bytes.resize(size, 0);
    Ok(bytes)
}

/// The array of the bytes that [`zeros`] gave.
pub(crate) fn array(spec: &ParamSpec, bytes: Vec<u8>) -> HostArray {
    HostArray::new(DType::F32, spec.dims.clone(), bytes)
        .expect("the bytes were made for these dimensions")
}
