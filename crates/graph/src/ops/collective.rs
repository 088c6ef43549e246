//! Collectives: exchanges between the devices of a manual region, along mesh axes that are manual there.
//!
//! Every device holds its own operand, so a collective is a linear map of all operands together, and its derivative is the
//! transposed map: a sum over devices gives every device the sum of all cotangents, gathering and scattering sums are
//! each other's transposes, an exchange or a permutation is walked backwards. Devices are numbered row-major along the
//! given axes, in the order given. A group of one device needs no exchange.

use ferrotune_pjrt::{DType, Mesh};

use crate::emit::Emitter;
use crate::literal;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

#[derive(Debug, Clone)]
enum Kind {
    Sum,
    Max,
    Gather { dim: usize },
    ScatterSum { dim: usize },
    Exchange { split: usize, concat: usize },
    Permute { pairs: Vec<(usize, usize)> },
}

impl Kind {
    /// The transposed linear map; the largest of several values is not linear.
    fn transposed(&self) -> Option<Self> {
        match self {
            Self::Sum => Some(Self::Sum),
            Self::Max => None,
            Self::Gather { dim } => Some(Self::ScatterSum { dim: *dim }),
            Self::ScatterSum { dim } => Some(Self::Gather { dim: *dim }),
            Self::Exchange { split, concat } => Some(Self::Exchange {
                split: *concat,
                concat: *split,
            }),
            Self::Permute { pairs } => Some(Self::Permute {
                pairs: pairs.iter().map(|(from, to)| (*to, *from)).collect(),
            }),
        }
    }
}

#[derive(Debug)]
struct Collective {
    kind: Kind,
    axes: Vec<String>,
    /// Devices that exchange with each other: the product of the axes' sizes.
    group: usize,
}

impl Op for Collective {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Sum => "all_reduce",
            Kind::Max => "all_reduce_max",
            Kind::Gather { .. } => "all_gather",
            Kind::ScatterSum { .. } => "reduce_scatter",
            Kind::Exchange { .. } => "all_to_all",
            Kind::Permute { .. } => "collective_permute",
        }
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let mut ty = inputs[0].clone();
        let sums = !matches!(
            self.kind,
            Kind::Gather { .. } | Kind::Exchange { .. } | Kind::Permute { .. }
        );
        if sums && ty.dtype == DType::Pred {
            return Err("takes numbers, not booleans".to_owned());
        }
        let exists = |dim: usize| {
            if dim < inputs[0].rank() {
                Ok(())
            } else {
                Err(format!("there is no dimension {dim}"))
            }
        };
        let filled = |dim: usize| match inputs[0].dims[dim] {
            0 => Err(format!("dimension {dim} is empty")),
            _ => Ok(()),
        };
        // Sizes that cannot be counted are refused when the node is added.
        let grown = |size: usize| size.saturating_mul(self.group);
        let split = |dim: usize, size: usize| {
            if size.is_multiple_of(self.group) {
                Ok(size / self.group)
            } else {
                Err(format!(
                    "dimension {dim} of size {size} cannot be split among {} devices along {}",
                    self.group,
                    self.axes.join(", ")
                ))
            }
        };
        match self.kind {
            Kind::Sum | Kind::Max | Kind::Permute { .. } => {}
            Kind::Gather { dim } => {
                exists(dim)?;
                filled(dim)?;
                ty.dims[dim] = grown(ty.dims[dim]);
            }
            Kind::ScatterSum { dim } => {
                exists(dim)?;
                filled(dim)?;
                ty.dims[dim] = split(dim, ty.dims[dim])?;
            }
            Kind::Exchange { split: dim, concat } => {
                exists(dim)?;
                exists(concat)?;
                ty.dims[dim] = split(dim, ty.dims[dim])?;
                ty.dims[concat] = grown(ty.dims[concat]);
            }
        }
        Ok(vec![ty])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let Some(kind) = self.kind.transposed() else {
            return Gradient::Refused(
                "the device that holds the largest value is not known to the others; \
                 where the maximum cancels, as in a softmax, call stop_gradient on it or on its operand",
            );
        };
        let transposed = Self {
            kind,
            axes: self.axes.clone(),
            group: self.group,
        };
        Gradient::one(cx.graph.add_one(transposed, &[cx.cotangent()]))
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let (x, from, to) = (&site.inputs[0], &site.input_types[0], &site.output_types[0]);
        if let Kind::Permute { pairs } = &self.kind
            && pairs.is_empty()
        {
            let zero = literal::splat(0.0, to.dtype);
            return vec![out.assign(format!("stablehlo.constant dense<{zero}> : {to}"))];
        }
        if self.group == 1 {
            return vec![x.clone()];
        }
        let groups = device_groups(&out.arena().mesh, &self.axes);
        let (attributes, sums) = match &self.kind {
            Kind::Sum => ("use_global_device_ids".to_owned(), Some("add")),
            Kind::Max => ("use_global_device_ids".to_owned(), Some("maximum")),
            Kind::Gather { dim } => (
                format!("all_gather_dim = {dim} : i64, use_global_device_ids"),
                None,
            ),
            Kind::ScatterSum { dim } => (
                format!("scatter_dimension = {dim} : i64, use_global_device_ids"),
                Some("add"),
            ),
            Kind::Exchange { split, concat } => (
                format!(
                    "split_dimension = {split} : i64, concat_dimension = {concat} : i64, split_count = {} : i64",
                    self.group
                ),
                None,
            ),
            Kind::Permute { .. } => (String::new(), None),
        };
        let who = match &self.kind {
            Kind::Permute { pairs } => {
                let all = groups
                    .iter()
                    .flat_map(|ring| pairs.iter().map(|(s, t)| vec![ring[*s], ring[*t]]));
                matrix("source_target_pairs", &all.collect::<Vec<_>>())
            }
            _ => matrix("replica_groups", &groups),
        };
        let channel = out.channel();
        let attributes: Vec<String> = [attributes, channel, who]
            .into_iter()
            .filter(|a| !a.is_empty())
            .collect();
        let reducer = sums.map_or(String::new(), |f| reducer(out, f, to.dtype));
        let operation = match self.kind {
            Kind::Max => "all_reduce",
            _ => self.name(),
        };
        vec![out.assign(format!(
            "\"stablehlo.{operation}\"({x}) <{{{}}}>{reducer} : ({from}) -> {to}",
            attributes.join(", ")
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let others = (self.group - 1) as f64 / self.group as f64;
        let (read, written) = (inputs[0].bytes() as f64, outputs[0].bytes() as f64);
        let (sent, added) = match &self.kind {
            Kind::Sum | Kind::Max => (2.0 * others * read, others * inputs[0].elements() as f64),
            Kind::Gather { .. } => (others * written, 0.0),
            Kind::ScatterSum { .. } => (others * read, others * inputs[0].elements() as f64),
            Kind::Exchange { .. } => (others * read, 0.0),
            Kind::Permute { pairs } => {
                let moves = pairs.iter().any(|(from, to)| from != to);
                (if moves { read } else { 0.0 }, 0.0)
            }
        };
        Cost {
            flops: added,
            collective_bytes: sent,
            ..Cost::movement(inputs, outputs)
        }
    }
}

/// Device numbers of every group along `axes`; the devices of a group differ in these coordinates only, and stand in
/// row-major order of them. Devices are numbered row-major over the mesh.
fn device_groups(mesh: &Mesh, axes: &[String]) -> Vec<Vec<usize>> {
    let mut stride = mesh.device_count();
    let strides: Vec<(&str, usize, usize)> = mesh
        .axes()
        .iter()
        .map(|(name, size)| {
            stride /= size;
            (name.as_str(), *size, stride)
        })
        .collect();
    let walk = |starts: Vec<usize>, (_, size, stride): &(&str, usize, usize)| {
        let steps = |start: usize| (0..*size).map(move |i| start + i * stride);
        starts.into_iter().flat_map(steps).collect::<Vec<usize>>()
    };
    let inside = axes
        .iter()
        .filter_map(|a| strides.iter().find(|(name, ..)| name == a))
        .fold(vec![0], walk);
    let outside = strides
        .iter()
        .filter(|(name, ..)| axes.iter().all(|a| a != name))
        .fold(vec![0], walk);
    outside
        .into_iter()
        .map(|start| inside.iter().map(|offset| start + offset).collect())
        .collect()
}

/// `replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`
fn matrix(name: &str, rows: &[Vec<usize>]) -> String {
    let shown: Vec<String> = rows.iter().map(|row| crate::ops::list(row)).collect();
    let (height, width) = (rows.len(), rows[0].len());
    format!(
        "{name} = dense<[{}]> : tensor<{height}x{width}xi64>",
        shown.join(", ")
    )
}

/// The function that joins two values.
fn reducer(out: &mut Emitter<'_>, operation: &str, dtype: DType) -> String {
    let scalar = TensorType::new(dtype, &[]);
    let (a, b, both) = (out.fresh(), out.fresh(), out.fresh());
    format!(
        " ({{ ^bb0({a}: {scalar}, {b}: {scalar}): {both} = stablehlo.{operation} {a}, {b} : {scalar} \
         stablehlo.return {both} : {scalar} }})"
    )
}

impl Tensor {
    #[track_caller]
    fn collective(&self, kind: Kind, axes: &[&str]) -> Tensor {
        let mut op = Collective {
            kind,
            axes: axes.iter().map(|a| (*a).to_owned()).collect(),
            group: 1,
        };
        op.group = self.graph.manual_devices(op.name(), axes);
        self.graph.add_one(op, &[self])
    }

    /// The sum over the devices along `axes`, on each of them.
    ///
    /// # Panics
    /// Outside of a manual region, when an axis is not manual there or is named twice, or for booleans.
    #[track_caller]
    pub fn all_reduce(&self, axes: &[&str]) -> Tensor {
        self.collective(Kind::Sum, axes)
    }

    /// The largest over the devices along `axes`, on each of them. It has no derivative: use
    /// [`stop_gradient`](Self::stop_gradient) on the result or on its operand.
    ///
    /// # Panics
    /// As [`Self::all_reduce`].
    #[track_caller]
    pub fn all_reduce_max(&self, axes: &[&str]) -> Tensor {
        self.collective(Kind::Max, axes)
    }

    /// The parts of all devices along `axes`, joined along `dim`, which grows by their number; on each device.
    ///
    /// # Panics
    /// Outside of a manual region, when an axis is not manual there or is named twice, without dimension `dim`,
    /// or when it is empty.
    #[track_caller]
    pub fn all_gather(&self, axes: &[&str], dim: usize) -> Tensor {
        self.collective(Kind::Gather { dim }, axes)
    }

    /// This device's part, along `dim`, of the sum over the devices along `axes`.
    ///
    /// # Panics
    /// As [`Self::all_gather`], for booleans, and when the number of devices does not divide the dimension.
    #[track_caller]
    pub fn reduce_scatter(&self, axes: &[&str], dim: usize) -> Tensor {
        self.collective(Kind::ScatterSum { dim }, axes)
    }

    /// Splits `split_dim` into one part per device along `axes`, sends part *j* to device *j*, and joins what arrives
    /// along `concat_dim` in the order of the senders.
    ///
    /// # Panics
    /// As [`Self::all_gather`], and when the number of devices does not divide `split_dim`.
    #[track_caller]
    pub fn all_to_all(&self, axes: &[&str], split_dim: usize, concat_dim: usize) -> Tensor {
        let kind = Kind::Exchange {
            split: split_dim,
            concat: concat_dim,
        };
        self.collective(kind, axes)
    }

    /// Sends the tensor from device to device along one axis: `pairs` are (source, target) indices on it. A device that
    /// is no target gets zeros.
    ///
    /// # Panics
    /// Outside of a manual region, when the axis is not manual there, when an index is not below the size of the axis,
    /// or when an index is the source or the target of two pairs.
    #[track_caller]
    pub fn collective_permute(&self, axis: &str, pairs: &[(usize, usize)]) -> Tensor {
        let size = self.graph.manual_devices("collective_permute", &[axis]);
        let (mut sources, mut targets) = (vec![false; size], vec![false; size]);
        for (source, target) in pairs {
            assert!(
                *source < size && *target < size,
                "`collective_permute`: pair ({source}, {target}) along axis `{axis}` of size {size}"
            );
            assert!(
                !std::mem::replace(&mut sources[*source], true),
                "`collective_permute`: {source} is the source of two pairs"
            );
            assert!(
                !std::mem::replace(&mut targets[*target], true),
                "`collective_permute`: {target} is the target of two pairs"
            );
        }
        let kind = Kind::Permute {
            pairs: pairs.to_vec(),
        };
        self.collective(kind, &[axis])
    }
}
