//! The gate of a feed-forward block.

use ferrotune_cpu::{Number, Threads, gate_with_silu};
use ferrotune_graph::{
    Attributes, Cost, DType, Kernel, KernelCall, KernelRule, Tensor, TensorType,
};
use ferrotune_pjrt::Element;

use crate::by_type::{by_type, has_kernels};

/// `silu(gate) ⊙ up`, in their element type.
///
/// # Shapes
/// Two of the same type → the same.
#[track_caller]
pub(crate) fn gated(gate: &Tensor, up: &Tensor) -> Tensor {
    if !has_kernels(gate.dtype()) {
        return gate.silu() * up;
    }
    let g = gate.graph().clone();
    let found = g.custom_vjp(
        &[gate, up],
        |given| {
            let operands = [&given[0], &given[1]];
            let out = g.kernel(&GATED, &operands, &[], |it| vec![it[0].silu() * &it[1]]);
            (out, given.to_vec())
        },
        |kept, d| {
            let [gate, up, d] = [&kept[0], &kept[1], &d[0]].map(|it| it.convert(DType::F32));
            let open = gate.logistic();
            let silu = &gate * &open;
            // The derivative of silu: σ + x·σ·(1 − σ).
            let slope = &open + &silu * (open.scalar_like(1.0) - &open);
            let back = |it: Tensor| Some(it.convert(kept[0].dtype()));
            vec![back(&d * up * slope), back(d * silu)]
        },
    );
    found[0].clone()
}

static GATED: KernelRule = KernelRule {
    kernel: Kernel {
        name: "gated",
        run: by_type!(run),
    },
    infer: |inputs: &[TensorType], _: &Attributes| match inputs {
        [gate, up] if gate == up => Ok(vec![gate.clone()]),
        _ => Err("takes a gate for each number".to_owned()),
    },
    cost: |inputs, outputs| Cost {
        flops: 5.0 * inputs[0].elements() as f64,
        ..Cost::movement(inputs, outputs)
    },
};

fn run<T: Number + Element>(call: &mut KernelCall<'_>) -> Result<(), String> {
    let (inputs, outputs) = call.parts();
    let out = outputs[0].as_mut_slice::<T>()?;
    out.copy_from_slice(inputs[0].as_slice::<T>()?);
    gate_all(out, inputs[1].as_slice::<T>()?);
    Ok(())
}

/// `gate = silu(gate) ⊙ up`, divided among threads.
pub(crate) fn gate_all<T: Number>(gate: &mut [T], up: &[T]) {
    Threads::All.for_each_share(gate, 1, |first, gate| {
        gate_with_silu(gate, &up[first..][..gate.len()]);
    });
}
