//! Parts of a tensor at places known only at run time.

use ferrotune_pjrt::DType;

use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::ops::list;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

fn check_starts(rank: usize, starts: &[TensorType]) -> Result<(), String> {
    if starts.len() != rank {
        return Err(format!(
            "{rank} start indices are needed, {} given",
            starts.len()
        ));
    }
    match starts
        .iter()
        .find(|t| t.rank() != 0 || t.dtype != DType::S32)
    {
        Some(t) => Err(format!("a start index must be tensor<i32>, not {t}")),
        None => Ok(()),
    }
}

/// A window of static size; starts that would leave the tensor are clamped, as XLA does.
#[derive(Debug)]
struct DynamicSlice {
    sizes: Vec<usize>,
}

impl Op for DynamicSlice {
    fn name(&self) -> &str {
        "dynamic_slice"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let x = &inputs[0];
        check_starts(x.rank(), &inputs[1..])?;
        if self.sizes.len() != x.rank() || self.sizes.iter().zip(&x.dims).any(|(s, d)| s > d) {
            return Err(format!("a window of {:?} does not fit", self.sizes));
        }
        Ok(vec![TensorType::new(x.dtype, &self.sizes)])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let starts: Vec<&Tensor> = cx.inputs[1..].iter().collect();
        let g = cx.inputs[0]
            .zeros_like()
            .dynamic_update_slice(cx.cotangent(), &starts);
        Gradient::Of(
            std::iter::once(Some(g))
                .chain(starts.iter().map(|_| None))
                .collect(),
        )
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let types: Vec<String> = site.input_types.iter().map(TensorType::to_string).collect();
        vec![out.assign(format!(
            "stablehlo.dynamic_slice {}, sizes = {} : ({}) -> {}",
            site.inputs.join(", "),
            list(&self.sizes),
            types.join(", "),
            site.output_types[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, _: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            bytes: 2.0 * outputs[0].bytes() as f64,
            ..Cost::default()
        }
    }
}

/// The tensor with a window replaced.
#[derive(Debug)]
struct DynamicUpdateSlice;

impl Op for DynamicUpdateSlice {
    fn name(&self) -> &str {
        "dynamic_update_slice"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (x, update) = (&inputs[0], &inputs[1]);
        check_starts(x.rank(), &inputs[2..])?;
        if update.dtype != x.dtype
            || update.rank() != x.rank()
            || update.dims.iter().zip(&x.dims).any(|(u, d)| u > d)
        {
            return Err("the window does not fit".to_owned());
        }
        Ok(vec![x.clone()])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let (g, update) = (cx.cotangent(), &cx.inputs[1]);
        let starts: Vec<&Tensor> = cx.inputs[2..].iter().collect();
        let kept = g.dynamic_update_slice(&update.zeros_like(), &starts);
        let replaced = g.dynamic_slice(&starts, &update.dims());
        Gradient::Of(
            [Some(kept), Some(replaced)]
                .into_iter()
                .chain(starts.iter().map(|_| None))
                .collect(),
        )
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let types: Vec<String> = site.input_types.iter().map(TensorType::to_string).collect();
        vec![out.assign(format!(
            "stablehlo.dynamic_update_slice {} : ({}) -> {}",
            site.inputs.join(", "),
            types.join(", "),
            site.output_types[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], _: &[TensorType]) -> Cost {
        Cost {
            bytes: 2.0 * inputs[1].bytes() as f64,
            ..Cost::default()
        }
    }
}

impl Tensor {
    /// The window of `sizes` that begins at `starts` (one s32 scalar per dimension; clamped to stay inside).
    #[track_caller]
    pub fn dynamic_slice(&self, starts: &[&Tensor], sizes: &[usize]) -> Tensor {
        let operands: Vec<&Tensor> = std::iter::once(self)
            .chain(starts.iter().copied())
            .collect();
        self.graph.add_one(
            DynamicSlice {
                sizes: sizes.to_vec(),
            },
            &operands,
        )
    }

    /// This tensor with `update` written at `starts` (one s32 scalar per dimension; clamped to stay inside).
    #[track_caller]
    pub fn dynamic_update_slice(&self, update: &Tensor, starts: &[&Tensor]) -> Tensor {
        let operands: Vec<&Tensor> = [self, update]
            .into_iter()
            .chain(starts.iter().copied())
            .collect();
        self.graph.add_one(DynamicUpdateSlice, &operands)
    }
}
