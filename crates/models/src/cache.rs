//! What decoding keeps of the tokens that were read.

use ferrotune_graph::{DType, Tensor};

use crate::config::ModelConfig;

/// What decoding keeps of the tokens that were read: one tensor per entry of [`ModelConfig::cache`], in that order.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The tensors. After a prefill of `T` tokens, a dimension of slots has the size `T`.
    pub tensors: Vec<Tensor>,
}

/// One tensor of a cache. Dimension 0 is the layer, dimension 1 the row.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheEntry {
    /// Name, such as `keys`.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub dims: Vec<usize>,
    /// Which dimension is the ring of slots, one for each token that a row can look back on. `None` for a state of fixed
    /// size, which is zero before the first token.
    pub slots: Option<usize>,
}

impl ModelConfig {
    /// What a cache of `rows` rows holds that look back on `slots` tokens at most, themselves included.
    pub fn cache(&self, rows: usize, slots: usize, compute: DType) -> Vec<CacheEntry> {
        let layers = self.num_hidden_layers;
        let (heads, size) = (self.num_key_value_heads, self.head_dim);
        let entry = |name: &str| CacheEntry {
            name: name.to_owned(),
            dtype: compute,
            dims: vec![layers, rows, heads, slots, size],
            slots: Some(3),
        };
        vec![entry("keys"), entry("values")]
    }
}
