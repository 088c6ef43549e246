//! The cost of calling a program that only hands its arrays back, all of them moved in.

use std::time::{Duration, Instant};

use ferrotune_graph::{DType, HostArray};
use ferrotune_program::{Argument, Builder, Group, Layout, Leaf};
use serde_json::{Value, json};

use super::median;
use crate::args::BenchDispatchArgs;
use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::terminal::{print, say};

/// A small model with stacked layers, and one with every layer's arrays apart and their moments.
const ARRAYS: [usize; 2] = [15, 300];

/// Calls before those that count.
const WARM_UP: usize = 20;

pub(crate) fn run(args: &BenchDispatchArgs) -> Result<(), Failure> {
    let device = Device::single()?;
    say(device.describe());
    let mut results = Vec::new();
    for arrays in ARRAYS {
        let (call, done) = measure(&device, arrays, args.calls)?;
        if args.json {
            results.push(
                json!({ "arrays": arrays, "call_us": micros(call), "done_us": micros(done) }),
            );
        } else {
            print(format_args!(
                "{arrays:4} arrays: the call returns after {:.1} us, all arrays are there after {:.1} us (median of {})",
                micros(call),
                micros(done),
                args.calls
            ))?;
        }
    }
    if args.json {
        print(
            json!({ "plugin": device.client.plugin().name(), "calls": args.calls, "dispatch": Value::Array(results) }),
        )?;
    }
    Ok(())
}

fn micros(seconds: f64) -> f64 {
    (seconds * 1e7).round() / 10.0
}

/// Median seconds until a call returns, and until its results are there.
fn measure(device: &Device, arrays: usize, calls: usize) -> Result<(f64, f64), Failure> {
    let leaves: Vec<Leaf> = (0..arrays)
        .map(|i| Leaf::new(&format!("a{i}"), DType::F32, &[128], &["_"]))
        .collect();
    let layout = Layout::new(&device.mesh, &device.rules, &leaves).or_fail()?;
    let mut builder = Builder::new("empty", &device.mesh, &device.rules);
    let inputs = builder.input("arrays", &layout);
    builder.output_replacing(&layout, &inputs, &inputs);
    let program = builder.compile(&device.client).or_fail()?;
    let host = vec![HostArray::zeros(DType::F32, &[128]); arrays];
    let mut group = Group::upload(&device.client, &layout, &host).or_fail()?;
    let (mut returned, mut done): (Vec<Duration>, Vec<Duration>) = (Vec::new(), Vec::new());
    for call in 0..WARM_UP + calls {
        let begun = Instant::now();
        let mut results = program.call(vec![Argument::Moved(group)]).or_fail()?;
        let after_call = begun.elapsed();
        group = results.remove(0);
        group.wait().or_fail()?;
        if call >= WARM_UP {
            returned.push(after_call);
            done.push(begun.elapsed());
        }
    }
    Ok((median(&returned), median(&done)))
}
