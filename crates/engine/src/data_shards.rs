//! Devices that have the same weights and other rows.
//!
//! Along mesh axes that split rows and no weights, nothing has to travel between updates: every *data shard*, one place along
//! these axes with all devices that share its rows, gathers the gradient of its own rows, as if they were a micro-batch of their
//! own. The update adds the shards' gradients up, once.

use ferrotune_graph::{Graph, HostArray, Mesh, Rules, Sharding, Tensor};
use ferrotune_nn::Combine;
use ferrotune_program::Layout;

use crate::error::Error;
use crate::loss::Metric;

/// How far arrays of the optimizer are split over devices that have the same weights. Fewer bytes on each of them are paid with
/// exchanges: of the weights after every update, and for gradients of every micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShardOverData {
    /// Not at all: what the optimizer keeps lies where its parameter lies.
    #[default]
    Nothing,
    /// What the optimizer keeps of a parameter. Each device updates its part of it, and parameters are gathered.
    Moments,
    /// Also the accumulated gradient, so that gradients are reduced in every micro-batch.
    MomentsAndGradients,
}

/// The axes that split rows and no weights; those of one device are left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataShards {
    axes: Vec<String>,
    count: usize,
}

/// Gradients of rows, and the terms of their loss.
pub(crate) struct Gathered {
    /// Of each parameter; those of data shards are stacked along a new first dimension.
    pub(crate) gradients: Vec<Tensor>,
    /// The next histories of 8-bit products, the same on all shards.
    pub(crate) scaling: Vec<Tensor>,
    /// The loss, then the loss's own metrics.
    pub(crate) metrics: Vec<Metric>,
}

impl DataShards {
    /// By the rules, for weights that lie as these layouts say.
    pub(crate) fn of(mesh: &Mesh, rules: &Rules, weights: &[&Layout]) -> Self {
        let specs = || weights.iter().flat_map(|layout| layout.specs());
        let splits_weights = |axis: &String| {
            specs().any(|spec| spec.sharding.dims.iter().flatten().any(|it| it == axis))
        };
        let size = |axis: &String| mesh.axis_size(axis).unwrap_or(1);
        let rows = rules.over("batch").iter();
        let axes: Vec<String> = rows
            .filter(|axis| size(axis) > 1 && !splits_weights(axis))
            .cloned()
            .collect();
        let count = axes.iter().map(size).product();
        Self { axes, count }
    }

    pub(crate) fn axes(&self) -> &[String] {
        &self.axes
    }

    /// Where the gradients that the shards gather lie.
    pub(crate) fn accumulators(&self, params: &Layout) -> Layout {
        if self.axes.is_empty() {
            params.clone()
        } else {
            params.stacked(self.count, &self.axes)
        }
    }

    /// Lets every shard gather the gradients of its own rows; `f` gets them with `dim`, the one that is split over shards. The
    /// layouts are those of the gradients and of the histories that it returns.
    #[track_caller]
    pub(crate) fn gather(
        &self,
        g: &Graph,
        [params, scaling]: [&Layout; 2],
        (rows, dim): (&[Tensor], usize),
        f: impl FnOnce(&[Tensor]) -> Gathered,
    ) -> Gathered {
        if self.axes.is_empty() {
            return f(rows);
        }
        let along = |rank: usize, dim: usize| {
            let mut sharding = Sharding::replicated(rank);
            sharding.dims[dim] = self.axes.clone();
            sharding
        };
        let inputs: Vec<(&Tensor, Sharding)> =
            rows.iter().map(|t| (t, along(t.rank(), dim))).collect();
        let gradients = params
            .specs()
            .iter()
            .map(|spec| along(spec.dims.len() + 1, 0));
        let histories = scaling.specs().iter();
        let same = histories
            .map(|spec| spec.dims.len())
            .chain([1])
            .map(Sharding::replicated);
        let outputs: Vec<Sharding> = gradients.chain(same).collect();
        let axes: Vec<&str> = self.axes.iter().map(String::as_str).collect();
        let mut kinds = Vec::new();
        let mut found = g.manual(&axes, &inputs, &outputs, |rows| {
            let own = f(rows);
            let stacked = |t: &Tensor| t.reshape(&[&[1], &t.dims()[..]].concat());
            let values: Vec<Tensor> = own.metrics.iter().map(|m| m.value.reshape(&[1])).collect();
            kinds = own
                .metrics
                .iter()
                .map(|m| (m.name.clone(), m.combine))
                .collect();
            let total = combined(&values, &kinds, &axes);
            let gradients = own.gradients.iter().map(stacked);
            gradients.chain(own.scaling).chain([total]).collect()
        });
        let values = found.pop().expect("the metrics come last");
        let scaling = found.split_off(params.len());
        let metrics = kinds
            .into_iter()
            .enumerate()
            .map(|(at, (name, combine))| Metric {
                name,
                value: values.slice(0, at, at + 1).reshape(&[]),
                combine,
            });
        Gathered {
            metrics: metrics.collect(),
            gradients: found,
            scaling,
        }
    }

    /// The largest over shards, inside of [`Self::gather`].
    pub(crate) fn largest(&self, of_shard: &[Tensor]) -> Vec<Tensor> {
        if self.axes.is_empty() {
            return of_shard.to_vec();
        }
        let axes: Vec<&str> = self.axes.iter().map(String::as_str).collect();
        let largest = of_shard.iter().map(|t| t.all_reduce_max(&axes));
        largest.collect()
    }

    /// The sum over shards of an f32 array that was copied to the host.
    pub(crate) fn on_host(&self, array: HostArray) -> Result<HostArray, Error> {
        if self.axes.is_empty() {
            return Ok(array);
        }
        summed(&array)
    }

    /// As what the shards here go on from, on the host, gradients of a parameter of so many dimensions that those of another
    /// mesh have gathered: the same where they are as many, otherwise their sum, which the first shard gets.
    pub(crate) fn regathered(&self, array: HostArray, rank: usize) -> Result<HostArray, Error> {
        let count = |dims: &[usize]| (dims.len() > rank).then_some(dims[0]);
        let (before, here) = (count(array.dims()), self.shards());
        if before == here {
            return Ok(array);
        }
        let sum = if before.is_some() {
            summed(&array)?
        } else {
            array
        };
        let Some(shards) = here else {
            return Ok(sum);
        };
        let mut values = sum.as_slice::<f32>().to_vec();
        values.resize(values.len() * shards, 0.0);
        let dims = [&[shards], sum.dims()].concat();
        Ok(HostArray::from_slice(&dims, &values).map_err(ferrotune_program::Error::from)?)
    }

    /// How many there are, if gradients are stacked.
    fn shards(&self) -> Option<usize> {
        (!self.axes.is_empty()).then_some(self.count)
    }

    /// The sum over shards.
    pub(crate) fn reduced(&self, gradients: &[Tensor]) -> Vec<Tensor> {
        if self.axes.is_empty() {
            return gradients.to_vec();
        }
        gradients.iter().map(|t| t.sum(&[0])).collect()
    }
}

/// The sum over the first dimension of an f32 array.
fn summed(array: &HostArray) -> Result<HostArray, Error> {
    let (values, dims) = (array.as_slice::<f32>(), &array.dims()[1..]);
    let mut sums = vec![0.0; dims.iter().product()];
    for shard in values.chunks(sums.len().max(1)) {
        sums.iter_mut().zip(shard).for_each(|(sum, v)| *sum += v);
    }
    Ok(HostArray::from_slice(dims, &sums).map_err(ferrotune_program::Error::from)?)
}

/// The shards' values `[1]` put together, `[k]`.
fn combined(values: &[Tensor], kinds: &[(String, Combine)], axes: &[&str]) -> Tensor {
    let all = Tensor::concatenate(&values.iter().collect::<Vec<_>>(), 0);
    let sums = all.all_reduce(axes);
    let largest = all.all_reduce_max(axes);
    let smallest = -(-&all).all_reduce_max(axes);
    let own = kinds.iter().enumerate().map(|(at, (_, combine))| {
        let of = match combine {
            Combine::Sum => &sums,
            Combine::Max => &largest,
            Combine::Min => &smallest,
        };
        of.slice(0, at, at + 1)
    });
    Tensor::concatenate(&own.collect::<Vec<_>>().iter().collect::<Vec<_>>(), 0)
}
