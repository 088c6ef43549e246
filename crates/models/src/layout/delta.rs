//! The parameters of the gated delta rule, which two families pack in different ways.

use std::ops::Range;

use ferrotune_nn::Init;

use super::{Entry, table::Table};
use crate::config::{DeltaSizes, Family};

/// Rows of the packed projections of `qwen3_next`, which go by key head: `[q | k | v of its value heads | z of them]`, and
/// `[b of its value heads | a of them]`.
struct ByHead {
    sizes: DeltaSizes,
    /// Value heads of one key head.
    values: usize,
}

impl ByHead {
    /// The run `[offset, offset + length)` of every key head's `height` rows.
    fn runs(&self, height: usize, offset: usize, length: usize) -> Vec<Range<usize>> {
        let begins = (0..self.sizes.key_heads).map(|head| head * height + offset);
        begins.map(|begin| begin..begin + length).collect()
    }

    fn qkvz_height(&self) -> usize {
        2 * self.sizes.key_dim + 2 * self.values * self.sizes.value_dim
    }

    /// All queries, all keys, all values.
    fn qkv(&self) -> Vec<Range<usize>> {
        let (height, key) = (self.qkvz_height(), self.sizes.key_dim);
        let value = self.values * self.sizes.value_dim;
        let parts = [(0, key), (key, key), (2 * key, value)];
        let runs = parts.map(|(offset, length)| self.runs(height, offset, length));
        runs.concat()
    }

    fn z(&self) -> Vec<Range<usize>> {
        let value = self.values * self.sizes.value_dim;
        self.runs(self.qkvz_height(), 2 * self.sizes.key_dim + value, value)
    }
}

/// Logarithms of decays, fresh.
const DECAYS: Init = Init::LogUniform {
    low: 0.01,
    high: 16.0,
};

pub(super) fn delta(table: &Table<'_>) -> Vec<Entry> {
    let sizes = table.config.delta.expect("a hybrid has the rule's sizes");
    let (d, values) = ((table.config.hidden_size, "embed"), sizes.values());
    let qkv = (sizes.channels(), "_");
    let (z, per_head) = ((values, "heads"), (sizes.value_heads, "_"));
    let mut entries = if table.config.family == Family::Qwen3Next {
        let packed = ByHead {
            sizes,
            values: sizes.value_heads / sizes.key_heads,
        };
        let (r, n) = (packed.values, sizes.value_heads);
        let ba = |offset| packed.runs(2 * r, offset, r);
        let (qkvz, both) = (
            "linear_attn.in_proj_qkvz.weight",
            "linear_attn.in_proj_ba.weight",
        );
        let height = qkv.0 + values;
        vec![
            table.rows_of_matrix("delta/in_proj_qkv", d, (qkv, packed.qkv()), qkvz, height),
            table.rows_of_matrix("delta/in_proj_z", d, (z, packed.z()), qkvz, height),
            table.rows_of_matrix("delta/in_proj_b", d, (per_head, ba(0)), both, 2 * n),
            table.rows_of_matrix("delta/in_proj_a", d, (per_head, ba(r)), both, 2 * n),
        ]
    } else {
        let matrix = |name: &str, to| {
            let (path, disk) = (
                format!("delta/{name}"),
                format!("linear_attn.{name}.weight"),
            );
            table.matrix(&path, d, to, &disk)
        };
        vec![
            matrix("in_proj_qkv", qkv),
            matrix("in_proj_z", z),
            matrix("in_proj_b", per_head),
            matrix("in_proj_a", per_head),
        ]
    };
    let name = "linear_attn.conv1d.weight";
    entries.push(table.taps("delta/taps", sizes.taps, sizes.channels(), name));
    let vector =
        |path: &str, side, name: &str, init| table.plain(path, &[side], name).starting(init);
    entries.extend([
        // Source of the initial values: `modeling_qwen3_next.py` in transformers.
        vector("delta/decay_log", per_head, "linear_attn.A_log", DECAYS),
        vector(
            "delta/decay_bias",
            per_head,
            "linear_attn.dt_bias",
            Init::Ones,
        ),
        vector(
            "delta/norm",
            (sizes.value_dim, "_"),
            "linear_attn.norm.weight",
            Init::Ones,
        ),
        table.matrix("delta/out_proj", z, d, "linear_attn.out_proj.weight"),
    ]);
    entries
}
