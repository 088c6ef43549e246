//! The histories that scale 8-bit products: state of the forward and backward pass, which no optimizer sees.

use ferrotune_graph::DType;
use ferrotune_models::is_linear_weight;
use ferrotune_nn::{FP8_KINDS, ParamSpec};
use ferrotune_program::Leaf;

/// What stands behind the path of a weight in the name of its history.
const ENDING: &str = "_fp8";

/// A history `[L,3,n]` for each weight of linear layers, if so many magnitudes are remembered; none for 0.
pub(crate) fn leaves(specs: &[ParamSpec], remembered: usize) -> Vec<Leaf> {
    let weights = specs
        .iter()
        .filter(|spec| remembered > 0 && is_linear_weight(&spec.path, spec.dims.len()))
        .filter(|spec| !spec.path.ends_with("_lora_a") && !spec.path.ends_with("_lora_b"));
    let leaf = |spec: &ParamSpec| Leaf {
        name: format!("{}{ENDING}", spec.path),
        dtype: DType::F32,
        dims: vec![spec.dims[0], FP8_KINDS, remembered],
        axes: vec![spec.axes[0].clone(), "_".to_owned(), "_".to_owned()],
    };
    weights.map(leaf).collect()
}
