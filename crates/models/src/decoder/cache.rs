//! What decoding keeps of the tokens before: of attention keys and values, of the delta rule its state and the last inputs of
//! its convolution.

use ferrotune_graph::{DType, Tensor};

use crate::config::{Mixer, ModelConfig};

/// What decoding keeps of every row, in the order of [`ModelConfig::cache`].
#[derive(Clone, Debug)]
pub struct Cache {
    /// The tensors; dimension 1 of each is the row.
    pub tensors: Vec<Tensor>,
}

/// One tensor of a [`Cache`].
#[derive(Clone, Debug, PartialEq)]
pub struct CacheEntry {
    /// Its name: the stack, the place in the block, and what it is.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its dimensions: repeats of the stack, rows, and more.
    pub dims: Vec<usize>,
    /// The dimension of the slots, one for each token; `None` for what has one size however many tokens there were.
    pub slots: Option<usize>,
}

impl ModelConfig {
    /// The tensors of a cache for `rows` rows of at most `slots` tokens each: two for each layer of each block.
    ///
    /// # Shapes
    /// Attention: keys and values, `[L,B,K,S,E]` in the compute type. The delta rule: its state f32 `[L,B,K,R,E,V]` (here `K`
    /// key heads, `R` value heads of each, `E` and `V` their sizes) and inputs of the convolution `[L,B,W−1,C]` in the compute
    /// type.
    pub fn cache(&self, rows: usize, slots: usize, compute: DType) -> Vec<CacheEntry> {
        let mut entries = Vec::new();
        for stack in self.stacks() {
            for (place, kind) in stack.block.iter().enumerate() {
                let entry = |name: &str, dtype, sizes: &[usize], slots| CacheEntry {
                    name: format!("{}/{name}", stack.prefix(place)),
                    dtype,
                    dims: [&[stack.repeats, rows], sizes].concat(),
                    slots,
                };
                entries.extend(match kind.mixer {
                    Mixer::Attention => {
                        let sizes = [self.num_key_value_heads, slots, self.head_dim];
                        ["keys", "values"].map(|name| entry(name, compute, &sizes, Some(3)))
                    }
                    Mixer::Delta => {
                        let s = self.delta.expect("a hybrid has the rule's sizes");
                        let shared = s.value_heads / s.key_heads;
                        let state = [s.key_heads, shared, s.key_dim, s.value_dim];
                        [
                            entry("state", DType::F32, &state, None),
                            entry("taps", compute, &[s.taps - 1, s.channels()], None),
                        ]
                    }
                });
            }
        }
        entries
    }
}
