//! The largest elements of the last axis and where they are.

use ferrotune_pjrt::DType;

use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

#[derive(Debug)]
struct TopK {
    k: usize,
}

impl Op for TopK {
    fn name(&self) -> &str {
        "top_k"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let mut ty = inputs[0].clone();
        if ty.dtype == DType::Pred {
            return Err("takes numbers, not truth values".to_owned());
        }
        match ty.dims.last_mut() {
            Some(last) if self.k <= *last => *last = self.k,
            _ => return Err(format!("the last axis has no {} elements", self.k)),
        }
        let places = ty.with_dtype(DType::S32);
        Ok(vec![ty, places])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        // By comparison with each of the k places, which fuses into one pass and needs no scatter: k is small.
        let (g, dims) = (cx.cotangent(), cx.inputs[0].dims());
        let last = dims.len() - 1;
        let grid = [&dims[..last], &[self.k, dims[last]]].concat();
        let place = cx.graph.iota(DType::S32, &grid, last + 1);
        let hit = place.eq(&cx.outputs[1].expand(last + 1));
        let spread = g.expand(last + 1).broadcast_to(&grid);
        Gradient::one(hit.select(&spread, &g.scalar_like(0.0)).sum(&[last]))
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let (from, to) = (&site.input_types[0], &site.output_types);
        out.assign_many(
            2,
            format!(
                "chlo.top_k({}, k = {}) : {from} -> ({}, {})",
                site.inputs[0], self.k, to[0], to[1]
            ),
        )
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let depth = (self.k.max(2) as f64).log2().ceil();
        Cost {
            flops: inputs[0].elements() as f64 * depth,
            ..Cost::movement(inputs, outputs)
        }
    }
}

impl Tensor {
    /// The `k` largest elements of the last axis, largest first, and their places: `[…,V]` → `[…,K]`, s32 `[…,K]`.
    ///
    /// Of equal elements the first comes first. The order is the total one of IEEE 754: −0 below 0, a NaN above infinity
    /// (a NaN with its sign bit set, below negative infinity).
    ///
    /// # Panics
    /// When the last axis has fewer elements, or the elements are truth values.
    #[track_caller]
    pub fn top_k(&self, k: usize) -> (Tensor, Tensor) {
        let mut found = self.graph.add(TopK { k }, &[self]);
        let places = found.remove(1);
        (found.remove(0), places)
    }
}
