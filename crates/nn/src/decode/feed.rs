//! What stands after attention: its way back into the stream, and the gated feed-forward block.

use ferrotune_cpu::{add, lend};
use ferrotune_graph::{Attributes, DType, Kernel, KernelCall, KernelRule, Tensor, TensorType};
use ferrotune_pjrt::Attribute;

use super::{Operand, cost, eps, rows, weight, wide, widths};
use crate::by_type::{by_type, has_kernels};
use crate::gate::gate_all;
use crate::linear::{is_adapted, project};
use crate::mlp::swiglu;
use crate::norm::{normalize_rows, rms_norm};
use crate::params::Params;

/// The rest of a layer, of one new token of each row.
pub struct FeedStep<'a> {
    /// Attention's `o_proj`, as [`project`] takes it, without bias and adapter.
    pub attention: &'a Params,
    /// Weight of the norm, `[D]`.
    pub norm: &'a Tensor,
    /// What is added to the mean of squares.
    pub eps: f64,
    /// `gate_proj`, `up_proj`, `down_proj` of the block, as [`swiglu`] takes them, without biases and adapters.
    pub mlp: &'a Params,
}

const BLOCK: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

impl FeedStep<'_> {
    /// Whether the kernel covers what the layer has.
    pub fn fits(attention: &Params, mlp: &Params, dtype: DType) -> bool {
        let plain = |params: &Params, name: &str| {
            !is_adapted(params, name) && params.find(&format!("{name}_bias")).is_none()
        };
        has_kernels(dtype) && plain(attention, "o_proj") && BLOCK.iter().all(|it| plain(mlp, it))
    }

    /// # Shapes
    /// The stream `x [B,1,D]` and what attention found `[B,1,H,E]`, f32 or bf16 → the stream after the layer, `[B,1,D]`.
    #[track_caller]
    pub fn of(&self, x_b1d: &Tensor, mixed_b1he: &Tensor) -> Tensor {
        let (g, dtype) = (x_b1d.graph().clone(), x_b1d.dtype());
        let turned = self.mlp.transposed_weights();
        let mut operands = vec![x_b1d.clone(), mixed_b1he.clone(), wide(self.norm)];
        operands.push(self.attention.at("o_proj").convert(dtype));
        operands.extend(BLOCK.map(|name| self.mlp.at(name).convert(dtype)));
        let attributes = [
            ("eps", Attribute::Number(self.eps)),
            ("turned", Attribute::Flag(turned)),
        ];
        let operands: Vec<&Tensor> = operands.iter().collect();
        let portable = |given: &[Tensor]| vec![self.portable(given)];
        g.kernel(&FEED, &operands, &attributes, portable).remove(0)
    }

    fn portable(&self, given: &[Tensor]) -> Tensor {
        let [x, mixed, norm, back, block @ ..] = given else {
            panic!("the stream, attention, a norm and weights are given")
        };
        let attention = self.attention.like([("o_proj".to_owned(), back.clone())]);
        let names = BLOCK.map(str::to_owned).into_iter();
        let mlp = self.mlp.like(names.zip(block.iter().cloned()));
        let dims = mixed.dims();
        let flat = mixed.reshape(&[dims[0], 1, dims[2] * dims[3]]);
        let x = x + project(&flat, &attention, "o_proj");
        &x + swiglu(&rms_norm(&x, norm, self.eps), &mlp)
    }
}

static FEED: KernelRule = KernelRule {
    kernel: Kernel {
        name: "feed_step",
        run: by_type!(run),
    },
    infer,
    cost,
};

fn infer(inputs: &[TensorType], attributes: &Attributes) -> Result<Vec<TensorType>, String> {
    let [x, mixed, norm, back, gate, up, down] = inputs else {
        return Err("takes the stream, attention, a norm and four weights".to_owned());
    };
    let Some((_, Attribute::Flag(turned))) = attributes.iter().find(|(name, _)| *name == "turned")
    else {
        return Err("has a way in which weights lie".to_owned());
    };
    let (&[b, 1, d], &[again, 1, heads, size]) = (&x.dims[..], &mixed.dims[..]) else {
        return Err("the stream is [B,1,D], attention [B,1,H,E]".to_owned());
    };
    if !has_kernels(x.dtype) || inputs.iter().any(|it| it != norm && it.dtype != x.dtype) {
        return Err("all is f32 or bf16, the norm f32".to_owned());
    }
    let [_, inner] = widths(gate, *turned)?;
    let fits = widths(back, *turned)? == [heads * size, d]
        && widths(gate, *turned)? == [d, inner]
        && widths(up, *turned)? == [d, inner]
        && widths(down, *turned)? == [inner, d];
    if !fits || again != b || norm.dims != [d] {
        return Err("weights do not fit to the rows or to each other".to_owned());
    }
    Ok(vec![x.clone()])
}

fn run<T: Operand>(call: &mut KernelCall<'_>) -> Result<(), String> {
    let (eps, turned) = (eps(call)?, call.flag("turned")?);
    let (inputs, outputs) = call.parts();
    let (x, mixed) = (inputs[0].as_slice::<T>()?, inputs[1].as_slice::<T>()?);
    let norm = inputs[2].as_slice::<f32>()?;
    let matrix = |i: usize| weight::<T>(&inputs[i], turned);
    let stream = outputs[0].as_mut_slice::<T>()?;
    let width = norm.len();
    let count = x.len() / width.max(1);
    let mut more = lend::<T>(x.len());
    let back = matrix(3)?;
    T::products(rows(mixed, back.rows()), &mut [(back, &mut more)]);
    stream.copy_from_slice(x);
    add(stream, &more);
    normalize_rows(stream, norm, eps, &mut more);
    let inner = matrix(4)?.columns();
    let (mut gate, mut up) = (lend::<T>(count * inner), lend::<T>(count * inner));
    let mut both = [(matrix(4)?, &mut gate[..]), (matrix(5)?, &mut up[..])];
    T::products(rows(&more, width), &mut both);
    gate_all(&mut gate, &up);
    T::products(rows(&gate, inner), &mut [(matrix(6)?, &mut more)]);
    add(stream, &more);
    Ok(())
}
