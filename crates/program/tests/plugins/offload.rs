//! Values that a policy offloads live in the memory of the host.

use ferrotune_graph::{DType, Graph, Policy, Residual, Tensor};

use super::{compile, trace};

const LAYERS: usize = 8;
const TOKENS: usize = 2048;
const WIDTH: usize = 1024;

fn step(g: &Graph, x: &[Tensor], policy: &Policy) -> Vec<Tensor> {
    let (carry, _) = g.scan(
        policy.clone(),
        vec![x[0].clone()],
        vec![x[1].clone()],
        LAYERS,
        |_, h, w| {
            let input = h[0].named("decoder_layer_input");
            let up = g.einsum("td,df->tf", &input, &w[0], DType::F32).named("up");
            (vec![input + up.logistic()], vec![])
        },
    );
    g.grad(&carry[0].square().sum_all(), &[&x[1]])
}

/// Temporaries on the device and on the host, in bytes.
fn temporaries(policy: &Policy) -> (i64, i64) {
    let args: [(DType, &[usize]); 2] = [
        (DType::F32, &[TOKENS, WIDTH]),
        (DType::F32, &[LAYERS, WIDTH, WIDTH]),
    ];
    let memory = compile(&trace("offload", &args, |g, x| step(g, x, policy))).memory();
    (memory.temp as i64, memory.host_temp as i64)
}

#[test]
fn offloaded_values_move_from_the_devices_memory_to_the_hosts() {
    let kept = (LAYERS * TOKENS * WIDTH * 4) as i64;
    let slack = kept / LAYERS as i64 * 3; // a few layers in flight
    let on_device = temporaries(&Policy::recompute().with("up", Residual::Device));
    let up_away = temporaries(&Policy::recompute().with("up", Residual::Offload));
    let all_away = temporaries(
        &Policy::recompute()
            .with("up", Residual::Offload)
            .with("decoder_layer_input", Residual::Offload),
    );
    eprintln!("{on_device:?} {up_away:?} {all_away:?}, one kept tensor is {kept}");
    assert_eq!(on_device.1, 0);
    assert!(
        (up_away.1 - kept).abs() <= slack,
        "one tensor is on the host: {}",
        up_away.1
    );
    assert!(
        (all_away.1 - 2 * kept).abs() <= slack,
        "two are: {}",
        all_away.1
    );
    // The device still holds the steps in flight, and reuses some of this memory for results.
    assert!(
        on_device.0 - up_away.0 > kept - slack,
        "it is gone from the device"
    );
    assert!(
        up_away.0 - all_away.0 > kept - 2 * slack,
        "and so is the other"
    );
}
