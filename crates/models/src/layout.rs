//! The parameter tree of each family beside the names of the same values in a Hugging Face checkpoint: one table for both.
//!
//! Shape legend: `L` repeats of a stack, `D` model, `H` query heads, `K` key/value heads, `h` head size, `F` feed-forward,
//! `V` vocabulary, `X` experts. On disk a matrix is `[out, in]` and each layer has its own tensor; in the tree it is
//! `[in, out]` and layers are stacked. No bytes are moved here: that is `files`.

mod delta;
mod naming;
mod table;

use std::ops::Range;

use ferrotune_nn::ParamSpec;

use self::delta::delta;
pub(crate) use self::naming::{ADAPTER_PREFIX, Naming};
use self::table::Table;
use crate::config::{Feed, LayerKind, Mixer, ModelConfig};

/// One parameter of the tree, and where its values are on disk.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) spec: ParamSpec,
    /// Where the values of each layer (and each expert) are, in the tree's order.
    pub(crate) pieces: Vec<Piece>,
    /// How many dimensions of the tree count pieces: none, layers, or layers and experts.
    pub(crate) leading: usize,
    /// Whether a piece is a matrix that the disk has the other way round.
    pub(crate) transposed: bool,
}

/// Rows of one tensor on disk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    /// The tensor's name.
    pub(crate) name: String,
    /// Its dimensions.
    pub(crate) dims: Vec<usize>,
    /// Which of its rows, in the tree's order. A row is what lies along the last dimension of a matrix; a vector's values
    /// are rows by themselves.
    pub(crate) rows: Vec<Range<usize>>,
}

impl Piece {
    /// Values of one row.
    pub(crate) fn columns(&self) -> usize {
        if self.dims.len() > 1 {
            self.dims[self.dims.len() - 1]
        } else {
            1
        }
    }

    /// Its rows.
    pub(crate) fn height(&self) -> usize {
        self.rows.iter().map(|run| run.len()).sum()
    }

    /// The disk's row that is the piece's row `row`.
    pub(crate) fn disk_row(&self, mut row: usize) -> usize {
        for run in &self.rows {
            if row < run.len() {
                return run.start + row;
            }
            row -= run.len();
        }
        row
    }
}

/// Rows that lie together.
pub(crate) fn one_run(run: Range<usize>) -> Vec<Range<usize>> {
    std::iter::once(run).collect()
}

impl Entry {
    /// Dimensions of one piece in the tree's order.
    pub(crate) fn piece_dims(&self) -> &[usize] {
        &self.spec.dims[self.leading..]
    }
}

impl ModelConfig {
    /// The parameter tree, in a fixed order; all f32.
    ///
    /// # Shapes
    /// `embed` `[V,D]`; `final_norm` `[D]`; `lm_head` `[D,V]` where the head is not tied. Between them the layers, stacked
    /// as [`ModelConfig::stacks`] says, each parameter under its stack's prefix: matrices `[L,in,out]`, norms and biases
    /// `[L,size]`, experts `[L,X,in,out]`.
    pub fn params(&self) -> Vec<ParamSpec> {
        let entries = self.entries(&Naming::default());
        entries.into_iter().map(|entry| entry.spec).collect()
    }

    /// Number of values in all parameters.
    pub fn param_count(&self) -> u64 {
        self.params()
            .iter()
            .map(values)
            .fold(0, u64::saturating_add)
    }

    /// Number of values that one token meets: all but the experts that it does not go to.
    pub fn active_param_count(&self) -> u64 {
        let active = |spec: &ParamSpec| match self.experts {
            Some(sizes) if spec.path.contains("/experts/") => {
                values(spec) / sizes.count as u64 * sizes.top_k as u64
            }
            _ => values(spec),
        };
        self.params()
            .iter()
            .map(active)
            .fold(0, u64::saturating_add)
    }

    pub(crate) fn entries(&self, naming: &Naming) -> Vec<Entry> {
        let (d, v) = (self.hidden_size, self.vocab_size);
        let top = Table::top(self, naming);
        let mut entries =
            vec![top.plain("embed", &[(v, "vocab"), (d, "embed")], &naming.embedding())];
        for stack in self.stacks() {
            for (place, kind) in stack.block.iter().enumerate() {
                let layers: Vec<usize> = stack.layers(place).collect();
                let table = Table::of_layers(self, naming, stack.prefix(place), layers);
                entries.extend(layer(&table, *kind));
            }
        }
        entries.push(top.norm("final_norm", d, &naming.final_norm()));
        if !self.tie_word_embeddings {
            entries.push(top.matrix("lm_head", (d, "embed"), (v, "vocab"), &naming.head()));
        }
        entries
    }
}

/// Whether layers read a parameter in f32 whatever the compute type: norms, biases and other vectors, routers, taps of a
/// convolution. The others meet activations in products, and are converted to the compute type first.
///
/// `rank` counts the dimension of the layers, which every path with a `/` has.
pub fn is_read_in_f32(path: &str, rank: usize) -> bool {
    let matrix = rank > 1 + usize::from(path.contains('/'));
    !matrix || path.ends_with("/router") || path.ends_with("/taps")
}

/// Whether a parameter holds the weights of linear layers, one matrix for each: those that
/// [`project`](ferrotune_nn::project) reads.
pub fn is_linear_weight(path: &str, rank: usize) -> bool {
    rank == 3 && path.contains('/') && !is_read_in_f32(path, rank)
}

/// Values of a parameter; saturating, since the sizes come from a file that may say anything.
fn values(spec: &ParamSpec) -> u64 {
    let sizes = spec.dims.iter();
    sizes.fold(1u64, |count, &n| count.saturating_mul(n as u64))
}

fn layer(table: &Table<'_>, kind: LayerKind) -> Vec<Entry> {
    let d = table.config.hidden_size;
    let mut entries = vec![table.norm("input_norm", d, "input_layernorm.weight")];
    entries.extend(match kind.mixer {
        Mixer::Attention => attention(table),
        Mixer::Delta => delta(table),
    });
    entries.push(table.norm("post_attn_norm", d, "post_attention_layernorm.weight"));
    match kind.feed {
        Feed::Dense => {
            let width = (table.config.intermediate_size, "mlp");
            entries.extend(feed_forward(table, "mlp", "mlp", width));
        }
        Feed::Experts => entries.extend(experts(table)),
    }
    entries
}

fn attention(table: &Table<'_>) -> Vec<Entry> {
    let config = table.config;
    let (d, e) = ((config.hidden_size, "embed"), config.head_dim);
    let q = config.num_attention_heads * e;
    let kv = (config.num_key_value_heads * e, "kv_heads");
    // Gated attention: the same projection gives each head its query and its gate.
    let gates = if config.family.is_hybrid() { 2 } else { 1 };
    let mut entries = Vec::new();
    for (name, to) in [
        ("q_proj", (gates * q, "heads")),
        ("k_proj", kv),
        ("v_proj", kv),
    ] {
        let (path, disk) = (format!("attn/{name}"), format!("self_attn.{name}"));
        entries.extend(table.linear(&path, d, to, &disk, config.qkv_bias));
    }
    let (path, disk) = ("attn/o_proj", "self_attn.o_proj");
    entries.extend(table.linear(path, (q, "heads"), d, disk, config.output_bias));
    if config.family.qk_norm() {
        for name in ["q_norm", "k_norm"] {
            let (path, disk) = (format!("attn/{name}"), format!("self_attn.{name}.weight"));
            entries.push(table.norm(&path, e, &disk));
        }
    }
    entries
}

fn feed_forward(table: &Table<'_>, path: &str, disk: &str, width: (usize, &str)) -> Vec<Entry> {
    let d = (table.config.hidden_size, "embed");
    let sides = [
        ("gate_proj", d, width),
        ("up_proj", d, width),
        ("down_proj", width, d),
    ];
    let linear = |(name, from, to): (&str, (usize, &str), (usize, &str))| {
        let (path, disk) = (format!("{path}/{name}"), format!("{disk}.{name}"));
        table.linear(&path, from, to, &disk, table.config.mlp_bias)
    };
    sides.into_iter().flat_map(linear).collect()
}

fn experts(table: &Table<'_>) -> Vec<Entry> {
    let d = (table.config.hidden_size, "embed");
    let sizes = table
        .config
        .experts
        .expect("a layer with experts has their sizes");
    let router = (sizes.count, "_");
    let mut entries = vec![table.matrix("mlp/router", d, router, "mlp.gate.weight")];
    entries.extend(table.experts(sizes.count, sizes.width));
    if let Some(width) = sizes.shared {
        let (path, disk) = ("mlp/shared_expert", "mlp.shared_expert");
        entries.extend(feed_forward(table, path, disk, (width, "mlp")));
        let name = "mlp.shared_expert_gate.weight";
        entries.push(table.matrix("mlp/shared_expert_gate", d, (1, "_"), name));
    }
    entries
}
