//! Kernels on several devices, each of which calls with its own part.

use std::sync::Mutex;

use ferrotune_pjrt::{Arg, Attribute, Client, DType, Executable, Kernel, Mesh, Plugin};

use crate::kernels::{AFFINE, affine, call};
use crate::programs::{client, counting, module, on_both_plugins, spec, upload, values};

on_both_plugins! {
    fn every_device_calls_with_its_part(plugin) {
        let client = client(plugin, 8);
        let program = all_reduced(&client, &AFFINE, &affine(2.0, 1));
        let x = upload(&client, &counting(&[8, 5]), &program.args()[0].spec, program.mesh());
        // Twice the column sums of the rows 0..8, each shifted by 1.
        let expected: Vec<f32> = (0..8).flat_map(|_| (0..5).map(|c| 2.0 * (8 * c + 140) as f32 + 8.0)).collect();
        for _ in 0..20 {
            let results = program.run(vec![Arg::Borrowed(&x)]).expect("it runs");
            assert_eq!(values(&results[0]), expected);
        }
    }

    fn a_failure_on_one_device_does_not_leave_the_others_waiting(plugin) {
        one_device_fails(plugin);
    }
}

/// Fails where a row begins with the number in the attribute.
static PICKY: Kernel = Kernel {
    name: "picky",
    run: |call| {
        let n = call.integer("n")? as f32;
        let (inputs, outputs) = call.parts();
        let (x, y) = (
            inputs[0].as_slice::<f32>()?,
            outputs[0].as_mut_slice::<f32>()?,
        );
        y.copy_from_slice(x);
        assert!(x[0] != n, "not {n}");
        Ok(())
    },
};

fn one_device_fails(plugin: &Plugin) {
    // Runs that are under way together share a failure.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let client = client(plugin, 8);
    let n = |n| [("n", Attribute::Integer(n))];
    // Rows begin with 0, 5, 10 ..: 15 is on the fourth device.
    let program = all_reduced(&client, &PICKY, &n(15));
    let sound = all_reduced(&client, &PICKY, &n(-1));
    let x = upload(
        &client,
        &counting(&[8, 5]),
        &program.args()[0].spec,
        program.mesh(),
    );
    let before = sound.run(vec![Arg::Borrowed(&x)]).expect("it runs");
    assert_eq!(values(&before[0])[..2], [140.0, 148.0]);
    let expected = "kernel 'picky': panicked: not 15";
    for _ in 0..3 {
        let mut results = program.run(vec![Arg::Borrowed(&x)]).expect("it starts");
        let error = results[0].wait().expect_err("a device failed");
        assert!(error.to_string().contains(expected), "{error}");
        let error = results[0].to_host().expect_err("it is no result");
        assert!(error.to_string().contains(expected), "{error}");
        let moved = Arg::Moved(results.remove(0));
        let error = sound
            .run(vec![moved])
            .expect_err("the argument is no result");
        assert!(error.to_string().contains(expected), "{error}");
        // Nothing else has failed.
        assert_eq!(values(&before[0])[..2], [140.0, 148.0]);
        // The failed run may still be under way on other devices, and what runs together shares a failure.
        let after = (0..100).find_map(|_| {
            let results = sound.run(vec![Arg::Borrowed(&x)]).ok()?;
            results[0].to_host().ok()
        });
        let after = after.expect("it runs once the failed run has ended");
        assert_eq!(after.to_f32_vec()[..2], [140.0, 148.0]);
    }
    // Nobody waits for this one.
    drop(program.run(vec![Arg::Borrowed(&x)]).expect("it starts"));
    let after = program.run(vec![Arg::Borrowed(&x)]).expect("it starts");
    after[0].wait().expect_err("a device failed");
}

/// The sum over eight devices of what a kernel makes of one row each: a call and a collective.
fn all_reduced(
    client: &Client,
    kernel: &'static Kernel,
    attributes: &[(&str, Attribute)],
) -> Executable {
    let mesh = Mesh::new(&[("d", 8)]).expect("a mesh");
    let x = spec("x", DType::F32, &[8, 5], &["d", ""]);
    let local = spec("local", DType::F32, &[1, 5], &[]);
    let line = call(kernel.name, attributes, &[&local], &[&local]).replace("%a0", "%b");
    let part = "tensor<1x5xf32>";
    let body = format!(
        "%m = sdy.manual_computation(%a0) in_shardings=[<@mesh, [{{\"d\"}}, {{}}]>] out_shardings=[<@mesh, [{{\"d\"}}, {{}}]>] \
         manual_axes={{\"d\"}} (%b: {part}) {{\n{line}\n\
         %s = \"stablehlo.all_reduce\"(%r) ({{ ^bb0(%p: tensor<f32>, %q: tensor<f32>):\n\
         %t = stablehlo.add %p, %q : tensor<f32>\nstablehlo.return %t : tensor<f32> }}) \
         {{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, \
         replica_groups = dense<[[0,1,2,3,4,5,6,7]]> : tensor<1x8xi64>, use_global_device_ids}} : ({part}) -> {part}\n\
         sdy.return %s : {part} }} : (tensor<8x5xf32>) -> tensor<8x5xf32>\nreturn %m : tensor<8x5xf32>"
    );
    let mut module = module(&mesh, &[(&x, false)], &[&x], &body);
    module.kernels = vec![kernel];
    client.compile(&module).expect("it compiles")
}
