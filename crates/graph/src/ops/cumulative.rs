//! Running sums along an axis.

use crate::arena::Arena;
use crate::emit::Emitter;
use crate::op::{Cost, Gradient, Op, Site, VjpContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Element `i` of the result is the sum of elements `0..=i` along the axis.
#[derive(Debug)]
struct CumulativeSum {
    axis: usize,
}

impl Op for CumulativeSum {
    fn name(&self) -> &str {
        "cumulative_sum"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if self.axis >= inputs[0].rank() {
            return Err(format!("axis {} of {}", self.axis, inputs[0]));
        }
        Ok(inputs.to_vec())
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        // Element i reaches every result from i on, so its cotangent is the sum from i to the end.
        Gradient::one(
            cx.cotangent()
                .reverse(self.axis)
                .cumulative_sum(self.axis)
                .reverse(self.axis),
        )
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let ty = &site.output_types[0];
        let scalar = TensorType::new(ty.dtype, &[]);
        let size = ty.dims[self.axis];
        let zero = out.assign(format!(
            "stablehlo.constant dense<{}> : {scalar}",
            crate::literal::splat(0.0, ty.dtype)
        ));
        let padding: Vec<String> = (0..ty.rank())
            .map(|d| {
                if d == self.axis {
                    format!("[{}, 0]", size.saturating_sub(1))
                } else {
                    "[0, 0]".to_owned()
                }
            })
            .collect();
        let window: Vec<String> = (0..ty.rank())
            .map(|d| {
                if d == self.axis {
                    size.max(1).to_string()
                } else {
                    "1".to_owned()
                }
            })
            .collect();
        vec![out.assign(format!(
            "\"stablehlo.reduce_window\"({}, {zero}) <{{padding = dense<[{}]> : tensor<{}x2xi64>, window_dimensions = array<i64: {}>}}> \
             ({{ ^bb0(%x: {scalar}, %y: {scalar}): %s = stablehlo.add %x, %y : {scalar} stablehlo.return %s : {scalar} }}) : ({ty}, {scalar}) -> {ty}",
            site.inputs[0],
            padding.join(", "),
            ty.rank(),
            window.join(", ")
        ))]
    }

    fn cost(&self, _: &Arena, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::elementwise(1.0, inputs, outputs)
    }
}

impl Tensor {
    /// Inclusive running sum along `axis`.
    #[track_caller]
    pub fn cumulative_sum(&self, axis: usize) -> Tensor {
        self.graph.add_one(CumulativeSum { axis }, &[self])
    }
}
