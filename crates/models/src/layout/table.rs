//! Rows of the table, by the kind of parameter.

use std::ops::Range;

use ferrotune_nn::{Init, ParamSpec};
use ferrotune_pjrt::DType;

use super::{Entry, Naming, Piece, one_run};
use crate::config::ModelConfig;

/// A size and its logical axis.
pub(super) type Side<'a> = (usize, &'a str);

/// Builds rows of the table: of some layers that are stacked, or of what stands outside of the layers.
pub(super) struct Table<'a> {
    pub(super) config: &'a ModelConfig,
    naming: &'a Naming,
    /// Prefix of the paths and numbers of the layers; `None` outside of the layers.
    stack: Option<(String, Vec<usize>)>,
}

impl<'a> Table<'a> {
    pub(super) fn top(config: &'a ModelConfig, naming: &'a Naming) -> Self {
        Self {
            config,
            naming,
            stack: None,
        }
    }

    pub(super) fn of_layers(
        config: &'a ModelConfig,
        naming: &'a Naming,
        prefix: String,
        layers: Vec<usize>,
    ) -> Self {
        Self {
            config,
            naming,
            stack: Some((prefix, layers)),
        }
    }

    /// A parameter that the disk has as it is.
    pub(super) fn plain(&self, path: &str, sides: &[Side<'_>], name: &str) -> Entry {
        let dims: Vec<usize> = sides.iter().map(|side| side.0).collect();
        let whole = 0..dims[0];
        self.entry(path, sides, name, dims, one_run(whole), false)
    }

    /// A norm: starts without effect.
    pub(super) fn norm(&self, path: &str, size: usize, name: &str) -> Entry {
        let one = self.plain(path, &[(size, "_")], name);
        // Norms that scale by 1 + w start at 0.
        let init = if self.config.family.is_hybrid() {
            Init::Zeros
        } else {
            Init::Ones
        };
        one.starting(init)
    }

    /// A matrix `[in, out]`, the other way round on disk.
    pub(super) fn matrix(&self, path: &str, from: Side<'_>, to: Side<'_>, name: &str) -> Entry {
        self.rows_of_matrix(path, from, (to, one_run(0..to.0)), name, to.0)
    }

    /// A matrix `[in, out]` made of some rows of a larger one on disk, which has `height` rows.
    pub(super) fn rows_of_matrix(
        &self,
        path: &str,
        from: Side<'_>,
        (to, rows): (Side<'_>, Vec<Range<usize>>),
        name: &str,
        height: usize,
    ) -> Entry {
        self.entry(path, &[from, to], name, vec![height, from.0], rows, true)
    }

    /// A matrix whose name on disk ends in `.weight`, and its bias.
    pub(super) fn linear(
        &self,
        path: &str,
        from: Side<'_>,
        to: Side<'_>,
        name: &str,
        bias: bool,
    ) -> Vec<Entry> {
        let weight = self.matrix(path, from, to, &format!("{name}.weight"));
        let bias = bias.then(|| {
            let one = self.plain(&format!("{path}_bias"), &[to], &format!("{name}.bias"));
            one.starting(Init::Zeros)
        });
        std::iter::once(weight).chain(bias).collect()
    }

    /// Taps of a depthwise convolution: `[taps, channels]`, on disk `[channels, 1, taps]`.
    pub(super) fn taps(&self, path: &str, taps: usize, channels: usize, name: &str) -> Entry {
        let (sides, dims) = ([(taps, "_"), (channels, "_")], vec![channels, 1, taps]);
        let whole = 0..channels;
        self.entry(path, &sides, name, dims, one_run(whole), true)
    }

    /// The matrices of all experts, `[X, in, out]` each.
    pub(super) fn experts(&self, count: usize, width: usize) -> [Entry; 3] {
        let (d, f) = ((self.config.hidden_size, "embed"), (width, "mlp"));
        [
            self.expert("gate_proj", count, d, f, 0),
            self.expert("up_proj", count, d, f, width),
            self.expert("down_proj", count, f, d, 0),
        ]
    }

    /// One matrix of all experts; where gate and up are one tensor, its rows begin at `offset` of each expert's.
    fn expert(
        &self,
        name: &str,
        count: usize,
        from: Side<'_>,
        to: Side<'_>,
        offset: usize,
    ) -> Entry {
        let sides = [(count, "_"), from, to];
        let spec = self.spec(&format!("mlp/experts/{name}"), &sides);
        let (fused, height) = if name == "down_proj" {
            ("mlp.experts.down_proj", to.0)
        } else {
            ("mlp.experts.gate_up_proj", 2 * to.0)
        };
        let piece = |layer: &usize, expert: usize| {
            if self.naming.fused_experts {
                let begin = expert * height + offset;
                Piece {
                    name: self.naming.of_layer(*layer, fused),
                    dims: vec![count, height, from.0],
                    rows: one_run(begin..begin + to.0),
                }
            } else {
                let name = format!("mlp.experts.{expert}.{name}.weight");
                Piece {
                    name: self.naming.of_layer(*layer, &name),
                    dims: vec![to.0, from.0],
                    rows: one_run(0..to.0),
                }
            }
        };
        let (_, layers) = self.stack.as_ref().expect("experts are in layers");
        let pieces = layers
            .iter()
            .flat_map(|layer| (0..count).map(move |expert| piece(layer, expert)));
        Entry {
            spec,
            pieces: pieces.collect(),
            leading: 2,
            transposed: true,
        }
    }

    fn entry(
        &self,
        path: &str,
        sides: &[Side<'_>],
        name: &str,
        dims: Vec<usize>,
        rows: Vec<Range<usize>>,
        transposed: bool,
    ) -> Entry {
        let names: Vec<String> = match &self.stack {
            None => vec![name.to_owned()],
            Some((_, layers)) => {
                let named = layers.iter().map(|l| self.naming.of_layer(*l, name));
                named.collect()
            }
        };
        let piece = |name| Piece {
            name,
            dims: dims.clone(),
            rows: rows.clone(),
        };
        Entry {
            spec: self.spec(path, sides),
            pieces: names.into_iter().map(piece).collect(),
            leading: usize::from(self.stack.is_some()),
            transposed,
        }
    }

    fn spec(&self, path: &str, sides: &[Side<'_>]) -> ParamSpec {
        let std = self.config.initializer_range;
        let mut spec = ParamSpec {
            path: path.to_owned(),
            dims: sides.iter().map(|side| side.0).collect(),
            dtype: DType::F32,
            axes: sides.iter().map(|side| side.1.to_owned()).collect(),
            init: Init::Normal { std },
        };
        if let Some((prefix, layers)) = &self.stack {
            spec.path = format!("{prefix}/{path}");
            spec.dims.insert(0, layers.len());
            spec.axes.insert(0, "layers".to_owned());
        }
        spec
    }
}

impl Entry {
    /// The same with other initial values.
    pub(super) fn starting(mut self, init: Init) -> Self {
        self.spec.init = init;
        self
    }
}
