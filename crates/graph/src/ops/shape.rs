//! Operations that rearrange dimensions: broadcast, reshape, transpose.

use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::ops::list;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Dimension `i` of the operand becomes dimension `map[i]` of the result; other dimensions repeat it.
#[derive(Debug)]
struct Broadcast {
    dims: Vec<usize>,
    map: Vec<usize>,
}

impl Op for Broadcast {
    fn name(&self) -> &str {
        "broadcast"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let x = &inputs[0];
        if self.map.len() != x.rank()
            || !self.map.windows(2).all(|w| w[0] < w[1])
            || self.map.iter().any(|d| *d >= self.dims.len())
        {
            return Err(format!("the dimension map {:?} does not fit", self.map));
        }
        for (i, to) in self.map.iter().enumerate() {
            if x.dims[i] != self.dims[*to] && x.dims[i] != 1 {
                return Err(format!(
                    "dimension {i} of size {} cannot become size {}",
                    x.dims[i], self.dims[*to]
                ));
            }
        }
        Ok(vec![TensorType::new(x.dtype, &self.dims)])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let x_dims = cx.inputs[0].dims();
        let repeated: Vec<usize> = (0..self.dims.len())
            .filter(|d| match self.map.iter().position(|to| to == d) {
                Some(i) => x_dims[i] != self.dims[*d],
                None => true,
            })
            .collect();
        Gradient::one(cx.cotangent().sum(&repeated).reshape(&x_dims))
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let (from, to) = (&site.input_types[0], &site.output_types[0]);
        vec![out.assign(format!(
            "stablehlo.broadcast_in_dim {}, dims = {} : ({from}) -> {to}",
            site.inputs[0],
            list(&self.map)
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::movement(inputs, outputs)
    }
}

#[derive(Debug)]
struct Reshape {
    dims: Vec<usize>,
}

impl Op for Reshape {
    fn name(&self) -> &str {
        "reshape"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let to = TensorType::new(inputs[0].dtype, &self.dims);
        to.check_size()?;
        if to.elements() != inputs[0].elements() {
            return Err(format!(
                "{} elements cannot become {to}",
                inputs[0].elements()
            ));
        }
        Ok(vec![to])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        Gradient::one(cx.cotangent().reshape(&cx.inputs[0].dims()))
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let name = out.assign(format!(
            "stablehlo.reshape {} : ({}) -> {}",
            site.inputs[0], site.input_types[0], site.output_types[0]
        ));
        out.is_view(&name, &site.inputs[0], &site.input_types[0], 0);
        vec![name]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::movement(inputs, outputs)
    }
}

/// Dimension `i` of the result is dimension `permutation[i]` of the operand.
#[derive(Debug)]
struct Transpose {
    permutation: Vec<usize>,
}

impl Op for Transpose {
    fn name(&self) -> &str {
        "transpose"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let mut sorted = self.permutation.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..inputs[0].rank()) {
            return Err(format!(
                "{:?} is not a permutation of the dimensions",
                self.permutation
            ));
        }
        let dims: Vec<usize> = self
            .permutation
            .iter()
            .map(|d| inputs[0].dims[*d])
            .collect();
        Ok(vec![TensorType::new(inputs[0].dtype, &dims)])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let mut inverse = vec![0; self.permutation.len()];
        for (to, from) in self.permutation.iter().enumerate() {
            inverse[*from] = to;
        }
        Gradient::one(cx.cotangent().transpose(&inverse))
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let (from, to) = (&site.input_types[0], &site.output_types[0]);
        vec![out.assign(format!(
            "stablehlo.transpose {}, dims = {} : ({from}) -> {to}",
            site.inputs[0],
            list(&self.permutation)
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::movement(inputs, outputs)
    }
}

impl Tensor {
    /// Repeats the tensor: dimension `i` becomes dimension `map[i]` of `dims`.
    ///
    /// # Panics
    /// When the map does not name one dimension of `dims` for each of this tensor's, ascending, or a size is neither 1
    /// nor that of its dimension in `dims`.
    #[track_caller]
    pub fn broadcast_in_dim(&self, dims: &[usize], map: &[usize]) -> Tensor {
        if self.dims() == dims && map.iter().copied().eq(0..dims.len()) {
            return self.clone();
        }
        let from = self.dims();
        let ascending = map.windows(2).all(|w| w[0] < w[1]);
        assert!(
            map.len() == from.len() && ascending && map.iter().all(|to| *to < dims.len()),
            "the dimension map {map:?} does not fit: dimensions {from:?} broadcast to {dims:?}"
        );
        // XLA repeats a dimension only from size 1 that is dropped: remove those that grow, so that the text stays plain.
        let kept: Vec<usize> = (0..from.len())
            .filter(|i| from[*i] == dims[map[*i]])
            .collect();
        let squeezed = if kept.len() == from.len() {
            self.clone()
        } else {
            assert!(
                (0..from.len()).all(|i| kept.contains(&i) || from[i] == 1),
                "dimensions {from:?} cannot be broadcast to {dims:?} by {map:?}"
            );
            self.reshape(&kept.iter().map(|i| from[*i]).collect::<Vec<_>>())
        };
        let map = kept.iter().map(|i| map[*i]).collect();
        self.graph.add_one(
            Broadcast {
                dims: dims.to_vec(),
                map,
            },
            &[&squeezed],
        )
    }

    /// Repeats the tensor to `dims`, aligned at the last dimension as numpy does.
    #[track_caller]
    pub fn broadcast_to(&self, dims: &[usize]) -> Tensor {
        let rank = self.rank();
        assert!(
            rank <= dims.len(),
            "dimensions {:?} cannot be broadcast to {dims:?}",
            self.dims()
        );
        let map: Vec<usize> = (dims.len() - rank..dims.len()).collect();
        self.broadcast_in_dim(dims, &map)
    }

    /// Both tensors with the dimensions that numpy's rules give to them together.
    #[track_caller]
    pub(crate) fn broadcast_together(a: &Tensor, b: &Tensor) -> (Tensor, Tensor) {
        let (da, db) = (a.dims(), b.dims());
        if da == db {
            return (a.clone(), b.clone());
        }
        let rank = da.len().max(db.len());
        let at = |dims: &[usize], i: usize| {
            if i + dims.len() >= rank {
                dims[i + dims.len() - rank]
            } else {
                1
            }
        };
        let mut dims = Vec::with_capacity(rank);
        for i in 0..rank {
            dims.push(match (at(&da, i), at(&db, i)) {
                (x, y) if x == y || y == 1 => x,
                (1, y) => y,
                _ => panic!(
                    "broadcast of {} and {}: dimensions {da:?} and {db:?} do not fit together",
                    a.ty(),
                    b.ty()
                ),
            });
        }
        (a.broadcast_to(&dims), b.broadcast_to(&dims))
    }

    /// The same elements, row-major, in other dimensions.
    #[track_caller]
    pub fn reshape(&self, dims: &[usize]) -> Tensor {
        if self.dims() == dims {
            return self.clone();
        }
        self.graph.add_one(
            Reshape {
                dims: dims.to_vec(),
            },
            &[self],
        )
    }

    /// Adds a dimension of size 1 at `axis`.
    #[track_caller]
    pub fn expand(&self, axis: usize) -> Tensor {
        let mut dims = self.dims();
        assert!(
            axis <= dims.len(),
            "axis {axis} of a tensor with dimensions {dims:?}"
        );
        dims.insert(axis, 1);
        self.reshape(&dims)
    }

    /// Reorders dimensions: dimension `i` of the result is dimension `permutation[i]` of this tensor.
    #[track_caller]
    pub fn transpose(&self, permutation: &[usize]) -> Tensor {
        if permutation.len() == self.rank() && permutation.iter().copied().eq(0..self.rank()) {
            return self.clone();
        }
        self.graph.add_one(
            Transpose {
                permutation: permutation.to_vec(),
            },
            &[self],
        )
    }
}
