//! The gate of a feed-forward block.

use ferrotune_cpu::{Number, Threads, gate_back, gate_with_silu};
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
            let operands = [&kept[0], &kept[1], &d[0]];
            let found = g.kernel(&GATED_BACK, &operands, &[], slopes);
            found.into_iter().map(Some).collect()
        },
    );
    found[0].clone()
}

/// Of the gate and of what it lets through; for both and the slope of the result.
fn slopes(given: &[Tensor]) -> Vec<Tensor> {
    let [gate, up, d] = [0, 1, 2].map(|i| given[i].convert(DType::F32));
    let open = gate.logistic();
    let silu = &gate * &open;
    // The derivative of silu: σ + x·σ·(1 − σ).
    let slope = &open + &silu * (open.scalar_like(1.0) - &open);
    let back = |it: Tensor| it.convert(given[0].dtype());
    vec![back(&d * up * slope), back(d * silu)]
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

static GATED_BACK: KernelRule = KernelRule {
    kernel: Kernel {
        name: "gated_back",
        run: by_type!(run_back),
    },
    infer: |inputs: &[TensorType], _: &Attributes| match inputs {
        [gate, up, d] if gate == up && gate == d => Ok(vec![gate.clone(); 2]),
        _ => Err("takes a gate and a slope for each number".to_owned()),
    },
    cost: |inputs, outputs| Cost {
        flops: 12.0 * inputs[0].elements() as f64,
        ..Cost::movement(inputs, outputs)
    },
};

/// Numbers that one thread takes at a time.
const PART: usize = 1 << 14;

fn run_back<T: Number + Element>(call: &mut KernelCall<'_>) -> Result<(), String> {
    let (inputs, outputs) = call.parts();
    let (gate, up, d) = (
        inputs[0].as_slice::<T>()?,
        inputs[1].as_slice::<T>()?,
        inputs[2].as_slice::<T>()?,
    );
    let [d_gate, d_up] = outputs else {
        return Err("has two results".to_owned());
    };
    let (d_gate, d_up) = (d_gate.as_mut_slice::<T>()?, d_up.as_mut_slice::<T>()?);
    let parts = d_gate.chunks_mut(PART).zip(d_up.chunks_mut(PART));
    Threads::All.for_each_chunk(&mut parts.collect::<Vec<_>>(), 1, |part, slopes| {
        let (d_gate, d_up) = &mut slopes[0];
        let [gate, up, d] = [gate, up, d].map(|all| &all[part * PART..][..d_gate.len()]);
        gate_back(gate, up, d, d_gate, d_up);
    });
    Ok(())
}

/// `gate = silu(gate) ⊙ up`, divided among threads.
pub(crate) fn gate_all<T: Number>(gate: &mut [T], up: &[T]) {
    Threads::All.for_each_share(gate, 1, |first, gate| {
        gate_with_silu(gate, &up[first..][..gate.len()]);
    });
}
