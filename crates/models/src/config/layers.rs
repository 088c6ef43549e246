//! Which layers a model has: how each mixes tokens, how each feeds forward, and the pattern in which they repeat.

use serde_json::Value;

use super::family::Family;
use super::fields::{Fields, brief};

/// One kind of decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerKind {
    /// How tokens are mixed.
    pub mixer: Mixer,
    /// What each token goes through by itself.
    pub feed: Feed,
}

/// How a layer mixes the tokens of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mixer {
    /// Softmax attention over all earlier tokens: `full_attention`.
    Attention,
    /// The gated delta rule: `linear_attention`.
    Delta,
}

/// A layer's feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feed {
    /// One gated block for all tokens.
    Dense,
    /// Experts, of which each token goes to a few.
    Experts,
}

/// Layers that follow each other and are traced once: a block of kinds, repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// First part of the paths of its parameters.
    pub name: &'static str,
    /// The kinds of one block.
    pub block: Vec<LayerKind>,
    /// How often the block repeats.
    pub repeats: usize,
    /// Number of its first layer.
    pub first: usize,
}

impl Stack {
    /// The prefix of the parameters at one place of the block: the place is left out where there is only one.
    pub fn prefix(&self, place: usize) -> String {
        if self.block.len() == 1 {
            self.name.to_owned()
        } else {
            format!("{}/{place}", self.name)
        }
    }

    /// Numbers of the layers at one place of the block.
    pub(crate) fn layers(&self, place: usize) -> impl Iterator<Item = usize> {
        let (first, step) = (self.first + place, self.block.len());
        (0..self.repeats).map(move |repeat| first + repeat * step)
    }
}

/// Cuts layers into a few leading ones, a block that repeats to the end, and what its last repeat has of it, such that the
/// fewest are traced.
pub(crate) fn stacks(kinds: &[LayerKind]) -> Vec<Stack> {
    let total = kinds.len();
    // (traced, first layer of the block, its length): longer searches would find no pattern that models have.
    let mut best = (total, 0, total.max(1));
    for first in 0..total.min(LONGEST) {
        for length in 1..=(total - first).min(LONGEST) {
            let rest = &kinds[first..];
            let traced = first + length + rest.len() % length;
            let repeats = rest.iter().zip(&rest[length..]).all(|(a, b)| a == b);
            if repeats && traced < best.0 {
                best = (traced, first, length);
            }
        }
    }
    let (_, first, length) = best;
    let repeats = (total - first) / length;
    let end = first + repeats * length;
    let stack = |name, from: usize, block: &[LayerKind], repeats| Stack {
        name,
        block: block.to_vec(),
        repeats,
        first: from,
    };
    let cut = [
        stack("first_layers", 0, &kinds[..first], 1),
        stack("layers", first, &kinds[first..first + length], repeats),
        stack("last_layers", end, &kinds[end..], 1),
    ];
    let empty = |stack: &Stack| stack.block.is_empty();
    cut.into_iter().filter(|stack| !empty(stack)).collect()
}

/// Longest block, and most leading layers, that are looked for.
const LONGEST: usize = 16;

/// Keys that decide which layers have experts.
pub(crate) const SPARSE_KEYS: [&str; 3] = [
    "mlp_only_layers",
    "decoder_sparse_step",
    "num_hidden_layers",
];

/// Reads the kind of every layer.
pub(crate) fn read(fields: &mut Fields<'_>, family: Family, count: usize) -> Vec<LayerKind> {
    let mixers = read_mixers(fields, family, count);
    let sparse = read_sparse(fields, family, count);
    let kind = |(mixer, feed)| LayerKind { mixer, feed };
    mixers.into_iter().zip(sparse).map(kind).collect()
}

fn read_mixers(fields: &mut Fields<'_>, family: Family, count: usize) -> Vec<Mixer> {
    let period = fields.size("full_attention_interval").unwrap_or(4);
    let by_period = |layer: usize| {
        if family.is_hybrid() && !(layer + 1).is_multiple_of(period) {
            Mixer::Delta
        } else {
            Mixer::Attention
        }
    };
    let default = (0..count).map(by_period).collect();
    let Some(value) = fields.get("layer_types") else {
        return default;
    };
    let mixer = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Some(Mixer::Attention),
        Some("linear_attention") if family.is_hybrid() => Some(Mixer::Delta),
        _ => None,
    };
    let listed = value
        .as_array()
        .and_then(|kinds| kinds.iter().map(mixer).collect::<Option<Vec<_>>>());
    match listed {
        None => {
            let supported = if family.is_hybrid() {
                "\"full_attention\" or \"linear_attention\""
            } else {
                "\"full_attention\""
            };
            let text = format!(
                "layer_types {} is not supported, only {supported} for every layer",
                brief(value)
            );
            fields.problem_of("layer_types", text);
            default
        }
        Some(mixers) if mixers.len() != count => {
            fields.refuse_if(true, &["layer_types", "num_hidden_layers"], || {
                let listed = mixers.len();
                format!("layer_types names {listed} layers, but num_hidden_layers is {count}")
            });
            default
        }
        Some(mixers) => mixers,
    }
}

fn read_sparse(fields: &mut Fields<'_>, family: Family, count: usize) -> Vec<Feed> {
    if !family.has_experts() {
        return vec![Feed::Dense; count];
    }
    if family.only_experts() {
        return vec![Feed::Experts; count];
    }
    let step = fields.size("decoder_sparse_step").unwrap_or(1);
    let dense = match fields.get("mlp_only_layers") {
        None => Vec::new(),
        Some(value) => {
            let below = if fields.have_failed(&["num_hidden_layers"]) {
                u64::MAX
            } else {
                count as u64
            };
            let layer = |v: &Value| v.as_u64().filter(|n| *n < below);
            let listed = value
                .as_array()
                .and_then(|list| list.iter().map(layer).collect::<Option<Vec<_>>>());
            listed.unwrap_or_else(|| {
                let limit = match below {
                    u64::MAX => "numbers of layers".to_owned(),
                    count => format!("layers below {count}"),
                };
                let text = format!(
                    "mlp_only_layers must be a list of {limit}, found {}",
                    brief(value)
                );
                fields.problem_of("mlp_only_layers", text);
                Vec::new()
            })
        }
    };
    let feed = |layer: usize| {
        if dense.contains(&(layer as u64)) || !(layer + 1).is_multiple_of(step) {
            Feed::Dense
        } else {
            Feed::Experts
        }
    };
    (0..count).map(feed).collect()
}
