//! The programs: ready, begin, admit, decode.
//!
//! The slots of a row's cache are a ring. All rows of a device write the same slot at one step, and the next one at the next
//! step; what differs is how far a row looks back. A prompt is put into the slots before the one that is written next, so a
//! row may begin at any time, and no row ever moves.
//!
//! All work on rows is done by each device for its own rows, in a region that is manual over the whole mesh: one token a step
//! leaves nothing else worth splitting, and devices need not wait for each other.
//!
//! Letters: `D` devices, `B` rows, `A` prompts of an admission, `P` prompt columns, `S` cache slots, `C` columns per dispatch,
//! `L` layers, `V` vocabulary. Inside of the region `B` and `A` are those of one device.

mod admit;
mod decode;

use ferrotune_graph::{DType, Graph, Policy, Rules, Tensor};
use ferrotune_models::{Decoder, Forward, ModelConfig};
use ferrotune_nn::{LOGICAL_AXES, Params, QueryOrder};
use ferrotune_program::{Builder, Layout};

use crate::config::SamplerConfig;
use crate::error::{Error, Result};
use crate::layouts::Layouts;

/// What the programs are traced from.
pub(crate) struct Blueprint<'a> {
    pub(crate) model: &'a ModelConfig,
    pub(crate) config: &'a SamplerConfig,
    pub(crate) layouts: Layouts,
}

/// The tensors of the state of one device's rows.
struct State {
    /// s32 `[B]`
    token: Tensor,
    /// s32 `[B]`
    position: Tensor,
    /// s32 `[B]`
    generated: Tensor,
    /// Boolean `[B]`
    done: Tensor,
    /// s32 scalar.
    slot: Tensor,
}

impl State {
    fn of(tensors: Vec<Tensor>) -> Self {
        let [token, position, generated, done, slot] = array(tensors);
        Self {
            token,
            position,
            generated,
            done,
            slot: slot.reshape(&[]),
        }
    }

    fn into_tensors(self) -> Vec<Tensor> {
        let slot = self.slot.reshape(&[1]);
        vec![self.token, self.position, self.generated, self.done, slot]
    }
}

fn array<const N: usize>(tensors: Vec<Tensor>) -> [Tensor; N] {
    let count = tensors.len();
    let found = <[Tensor; N]>::try_from(tensors);
    found.unwrap_or_else(|_| panic!("a group of {N} tensors has {count}"))
}

impl<'a> Blueprint<'a> {
    pub(crate) fn new(
        rules: &Rules,
        model: &'a ModelConfig,
        weights: &[&Layout],
        config: &'a SamplerConfig,
    ) -> Result<Self> {
        let mesh = weights[0].mesh();
        let rows = rules
            .place("batch", &[config.batch], &["batch"], mesh)
            .map_err(|source| Error::Batch {
                batch: config.batch,
                source,
            })?;
        let split = |axis: &str| {
            if axis == "batch" {
                rows.dims[0].clone()
            } else {
                Vec::new()
            }
        };
        let rules = Rules::new(LOGICAL_AXES.map(|axis| (axis, split(axis))));
        let layouts = Layouts::new(&rules, model, weights, config)?;
        Ok(Self {
            model,
            config,
            layouts,
        })
    }

    fn builder(&self, name: &str) -> Builder {
        // Inside of the region nothing is split any more.
        let rules = Rules::unsharded(&LOGICAL_AXES);
        Builder::new(name, self.layouts.ready.mesh(), &rules)
    }

    /// Runs `f` on every device, on its parts of the groups.
    fn on_rows(
        &self,
        g: &Graph,
        groups: &[(&[Tensor], &Layout)],
        results: &[&Layout],
        f: impl FnOnce(Vec<Vec<Tensor>>) -> Vec<Vec<Tensor>>,
    ) -> Vec<Vec<Tensor>> {
        let mesh = g.mesh();
        let axes: Vec<&str> = mesh.axes().iter().map(|(name, _)| name.as_str()).collect();
        let placed = |(tensors, layout): &(&'_ [Tensor], &Layout)| -> Vec<_> {
            let shardings = layout.specs().iter().map(|spec| spec.sharding.clone());
            tensors.iter().cloned().zip(shardings).collect()
        };
        let inputs: Vec<_> = groups.iter().flat_map(placed).collect();
        let inputs: Vec<_> = inputs.iter().map(|(t, s)| (t, s.clone())).collect();
        let specs = results.iter().flat_map(|layout| layout.specs());
        let outputs: Vec<_> = specs.map(|spec| spec.sharding.clone()).collect();
        let found = g.manual(&axes, &inputs, &outputs, |parts| {
            f(cut(parts, groups.iter().map(|(group, _)| group.len()))).concat()
        });
        cut(&found, results.iter().map(|layout| layout.len()))
    }

    fn params(&self, tensors: Vec<Tensor>) -> Params {
        let names = self.layouts.ready.names().map(str::to_owned);
        let params = Params::new(names.zip(tensors)).with_adapter_scale(self.config.adapter_scale);
        if self.config.turns_weights() {
            params.with_transposed_weights()
        } else {
            params
        }
    }

    fn decoder<'p>(&'p self, params: &'p Params) -> Decoder<'p> {
        Decoder {
            config: self.model,
            params,
            compute: self.config.compute,
            policy: Policy::recompute(),
            queries: QueryOrder::AsRows,
            capacity_factor: None,
        }
    }

    /// The experts that tokens went to, s32 `[…,N,J]`, where answers name them.
    fn routes(&self, forward: &Forward) -> Option<Tensor> {
        let routed = forward.routed.as_ref();
        let routed = routed.filter(|_| self.config.routes);
        routed.map(|it| it.experts.clone())
    }

    /// weights → weights as the layers read them.
    pub(crate) fn ready(&self) -> Builder {
        let mut builder = self.builder("ready");
        let given = self.layouts.weights.iter().enumerate();
        let given = given.map(|(i, layout)| builder.input(&format!("weights/{i}"), layout));
        let weights: Vec<Tensor> = given.flatten().collect();
        let specs = self.layouts.ready.specs();
        let ready = weights.iter().zip(specs).map(|(tensor, spec)| {
            let tensor = tensor.convert(spec.dtype);
            let tensor = if self.config.turns(&spec.name, tensor.rank()) {
                turn(&tensor)
            } else {
                tensor
            };
            tensor.shard(&vec!["_"; tensor.rank()])
        });
        builder.output(&self.layouts.ready, &ready.collect::<Vec<_>>());
        builder
    }

    /// () → (an empty cache, the state of rows without requests).
    pub(crate) fn begin(&self) -> Builder {
        let mut builder = self.builder("begin");
        let g = builder.graph().clone();
        let blank = |layout: &Layout| -> Vec<Tensor> {
            let specs = layout.specs().iter();
            // A row without a request has finished.
            let zero = |dtype| if dtype == DType::Pred { 1.0 } else { 0.0 };
            specs
                .map(|it| g.full(zero(it.dtype), it.dtype, &it.dims))
                .collect()
        };
        builder.output(&self.layouts.cache, &blank(&self.layouts.cache));
        builder.output(&self.layouts.state, &blank(&self.layouts.state));
        builder
    }
}

/// The last two dimensions exchanged.
fn turn(matrices: &Tensor) -> Tensor {
    let rank = matrices.rank();
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    matrices.transpose(&order)
}

/// Consecutive parts of the given lengths.
fn cut(tensors: &[Tensor], lengths: impl Iterator<Item = usize>) -> Vec<Vec<Tensor>> {
    let mut rest = tensors.iter().cloned();
    lengths
        .map(|length| rest.by_ref().take(length).collect())
        .collect()
}
