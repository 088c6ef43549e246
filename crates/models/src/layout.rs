//! The parameter tree of each family beside the names of the same values in a Hugging Face checkpoint: one table for both.
//!
//! Shape legend: `L` layers, `D` model, `H` query heads, `K` key/value heads, `h` head size, `F` feed-forward, `V` vocabulary.
//! On disk a matrix is `[out, in]` and each layer has its own tensor; in the tree it is `[in, out]` and layers are stacked.
//! No bytes are moved here: that is `files`.

use ferrotune_nn::{Init, ParamSpec};
use ferrotune_pjrt::DType;

use crate::config::ModelConfig;

/// On-disk name of the head, which a tied model has no need of.
pub(crate) const HEAD: &str = "lm_head.weight";
/// On-disk name of the embedding.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";

/// One parameter of the tree, and where its values are on disk.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) spec: ParamSpec,
    /// Name on disk: one for a parameter outside the layers, one for each layer inside.
    pub(crate) names: Vec<String>,
    /// Whether the disk has the last two dimensions the other way round.
    pub(crate) transposed: bool,
}

impl Entry {
    /// Dimensions of one tensor in the tree's order: without the layer dimension.
    pub(crate) fn piece_dims(&self) -> &[usize] {
        if self.is_stacked() {
            &self.spec.dims[1..]
        } else {
            &self.spec.dims
        }
    }

    /// Dimensions of one tensor on disk.
    pub(crate) fn disk_dims(&self) -> Vec<usize> {
        let mut dims = self.piece_dims().to_vec();
        if self.transposed {
            dims.reverse();
        }
        dims
    }

    fn is_stacked(&self) -> bool {
        self.spec.axes[0] == "layers"
    }
}

impl ModelConfig {
    /// The parameter tree, in a fixed order; all f32.
    ///
    /// # Shapes
    /// `embed` `[V,D]`; `layers/…` `[L,…]`, matrices `[L,in,out]`, norms `[L,D]` or `[L,h]`; `final_norm` `[D]`; `lm_head` `[D,V]`
    /// where the head is not tied.
    pub fn params(&self) -> Vec<ParamSpec> {
        self.entries().into_iter().map(|entry| entry.spec).collect()
    }

    /// Number of values in all parameters.
    pub fn param_count(&self) -> u64 {
        // Saturating: the sizes come from a file that may say anything.
        let values = |spec: &ParamSpec| {
            spec.dims
                .iter()
                .fold(1u64, |count, &n| count.saturating_mul(n as u64))
        };
        self.params()
            .iter()
            .map(values)
            .fold(0, u64::saturating_add)
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        let (d, f, v) = (self.hidden_size, self.intermediate_size, self.vocab_size);
        let (q, kv) = (
            self.num_attention_heads * self.head_dim,
            self.num_key_value_heads * self.head_dim,
        );
        let table = Table { config: self };
        let mut entries = vec![
            Entry {
                transposed: false,
                ..table.top("embed", &[(v, "vocab"), (d, "embed")], EMBEDDING)
            },
            table.norm("input_norm", d, "input_layernorm"),
            table.matrix(
                "attn/q_proj",
                (d, "embed"),
                (q, "heads"),
                "self_attn.q_proj",
            ),
            table.matrix(
                "attn/k_proj",
                (d, "embed"),
                (kv, "kv_heads"),
                "self_attn.k_proj",
            ),
            table.matrix(
                "attn/v_proj",
                (d, "embed"),
                (kv, "kv_heads"),
                "self_attn.v_proj",
            ),
            table.matrix(
                "attn/o_proj",
                (q, "heads"),
                (d, "embed"),
                "self_attn.o_proj",
            ),
        ];
        if self.family.qk_norm() {
            entries.push(table.norm("attn/q_norm", self.head_dim, "self_attn.q_norm"));
            entries.push(table.norm("attn/k_norm", self.head_dim, "self_attn.k_norm"));
        }
        entries.extend([
            table.norm("post_attn_norm", d, "post_attention_layernorm"),
            table.matrix("mlp/gate_proj", (d, "embed"), (f, "mlp"), "mlp.gate_proj"),
            table.matrix("mlp/up_proj", (d, "embed"), (f, "mlp"), "mlp.up_proj"),
            table.matrix("mlp/down_proj", (f, "mlp"), (d, "embed"), "mlp.down_proj"),
            table.top("final_norm", &[(d, "_")], "model.norm.weight"),
        ]);
        if !self.tie_word_embeddings {
            entries.push(table.top("lm_head", &[(d, "embed"), (v, "vocab")], HEAD));
        }
        entries
    }
}

/// Builds rows of the table.
struct Table<'a> {
    config: &'a ModelConfig,
}

impl Table<'_> {
    /// A parameter outside the layers; transposed on disk if it is a matrix.
    fn top(&self, path: &str, dims: &[(usize, &str)], name: &str) -> Entry {
        let init = if dims.len() == 1 {
            Init::Ones
        } else {
            Init::Normal {
                std: self.config.initializer_range,
            }
        };
        let spec = ParamSpec {
            path: path.to_owned(),
            dims: dims.iter().map(|&(size, _)| size).collect(),
            dtype: DType::F32,
            axes: dims.iter().map(|&(_, axis)| axis.to_owned()).collect(),
            init,
        };
        Entry {
            transposed: dims.len() == 2,
            spec,
            names: vec![name.to_owned()],
        }
    }

    /// A norm of every layer.
    fn norm(&self, path: &str, size: usize, name: &str) -> Entry {
        self.stacked(self.top(path, &[(size, "_")], name))
    }

    /// A matrix of every layer, `[in, out]`.
    fn matrix(&self, path: &str, from: (usize, &str), to: (usize, &str), name: &str) -> Entry {
        self.stacked(self.top(path, &[from, to], name))
    }

    fn stacked(&self, one: Entry) -> Entry {
        let layers = self.config.num_hidden_layers;
        let mut spec = one.spec;
        spec.path = format!("layers/{}", spec.path);
        spec.dims.insert(0, layers);
        spec.axes.insert(0, "layers".to_owned());
        let names = (0..layers)
            .map(|layer| format!("model.layers.{layer}.{}.weight", one.names[0]))
            .collect();
        Entry {
            spec,
            names,
            transposed: one.transposed,
        }
    }
}
