//! Attention over one row of several documents: only the tiles where they meet, beside all of them with a mask.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use ferrotune_graph::{DType, Graph, HostArray, Tensor};
use ferrotune_nn::{Places, Sequence, attend, attend_tiled, causal_mask};
use ferrotune_program::{Argument, Builder, Group, Layout, Leaf, Program};
use serde_json::{Value, json};

use super::median;
use crate::args::BenchAttentionArgs;
use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::machine;
use crate::terminal::{counted, print, say};

/// How the programs differ.
#[derive(Clone, Copy)]
struct Case {
    tiled: bool,
    backward: bool,
}

const CASES: [(&str, Case); 4] = [
    (
        "tiled_forward",
        Case {
            tiled: true,
            backward: false,
        },
    ),
    (
        "tiled_both",
        Case {
            tiled: true,
            backward: true,
        },
    ),
    (
        "dense_forward",
        Case {
            tiled: false,
            backward: false,
        },
    ),
    (
        "dense_both",
        Case {
            tiled: false,
            backward: true,
        },
    ),
];

pub(crate) fn run(args: &BenchAttentionArgs) -> Result<(), Failure> {
    check(args)?;
    let device = Device::single()?;
    say(device.describe());
    let cases: Vec<(&str, Case)> = CASES
        .into_iter()
        .filter(|(_, case)| case.tiled || !args.tiled_only)
        .collect();
    let layout = layout(&device, args)?;
    let mut programs = Vec::new();
    for (name, case) in &cases {
        programs.push((*name, compile(&device, args, &layout, *case)?));
    }
    let mut results = Vec::new();
    for documents in &args.documents {
        let arrays = arrays(args, *documents)?;
        let group = Group::upload(&device.client, &layout, &arrays).or_fail()?;
        let tiles = active(args, *documents, args.sizes().forward);
        let mut result = json!({
            "documents": documents,
            "tiles_forward": tiles,
            "tiles_backward": active(args, *documents, args.sizes().backward),
        });
        for (name, program) in &programs {
            result[format!("{name}_ms")] = json!(measure(program, &group, args.runs)?);
        }
        if !args.json {
            let times: Vec<String> = programs
                .iter()
                .map(|(name, _)| {
                    format!(
                        "{name} {:.1} ms",
                        result[format!("{name}_ms")].as_f64().unwrap_or(f64::NAN)
                    )
                })
                .collect();
            print(format_args!(
                "{}, {} forward: {}",
                counted(*documents, "document"),
                counted(tiles, "tile"),
                times.join(", ")
            ))?;
        }
        results.push(result);
    }
    if args.json {
        print(json!({
            "plugin": device.client.plugin().name(), "tokens": args.tokens, "heads": args.heads, "kv_heads": args.kv_heads(),
            "head_size": args.head_size, "dtype": args.compute_dtype.dtype().to_string(), "runs": args.runs,
            "attention": Value::Array(results),
        }))?;
    }
    Ok(())
}

/// Refuses sizes that do not fit each other, or the memory that is free.
fn check(args: &BenchAttentionArgs) -> Result<(), Failure> {
    let BenchAttentionArgs {
        tokens,
        heads,
        group,
        head_size,
        ..
    } = *args;
    if !heads.is_multiple_of(group) {
        return Err(Failure::refused(anyhow!(
            "--heads {heads} does not divide by --group {group}: every key head is shared by as many query heads"
        )));
    }
    if let Some(documents) = args.documents.iter().find(|it| **it > tokens) {
        return Err(Failure::refused(anyhow!(
            "{} cannot share {}, as each has one at least: raise --tokens, or lower --documents",
            counted(*documents, "document"),
            counted(tokens, "token")
        )));
    }
    let kv_heads = args.kv_heads();
    let [t, h, k, e] = [tokens, heads, kv_heads, head_size].map(|it| it as f64);
    // On the host and on the device, and what is read of each.
    let row = 2.0 * 4.0 * t * (e * (h + 2.0 * k) + 2.0);
    // All pairs of tokens.
    let (scores, cure) = match args.tiled_only {
        true => (0.0, "lower --tokens, --heads or --head-size"),
        false => (
            4.0 * h * t * t,
            "lower --tokens, --heads or --head-size, or leave the dense form out with --tiled-only",
        ),
    };
    machine::check_free(
        &format!(
            "{} of {} and {} of {head_size}",
            counted(tokens, "token"),
            counted(heads, "query head"),
            counted(kv_heads, "key head")
        ),
        row + scores,
        cure,
    )
}

fn layout(device: &Device, args: &BenchAttentionArgs) -> Result<Layout, Failure> {
    let (t, h, k, e) = (args.tokens, args.heads, args.kv_heads(), args.head_size);
    let whole =
        |name: &str, dtype, dims: &[usize]| Leaf::new(name, dtype, dims, &vec!["_"; dims.len()]);
    let leaves = [
        whole("q", DType::F32, &[1, t, h, e]),
        whole("k", DType::F32, &[1, k, t, e]),
        whole("v", DType::F32, &[1, k, t, e]),
        whole("segment_ids", DType::S32, &[1, t]),
        whole("positions", DType::S32, &[1, t]),
    ];
    Layout::new(&device.mesh, &device.rules, &leaves).or_fail()
}

fn compile(
    device: &Device,
    args: &BenchAttentionArgs,
    layout: &Layout,
    case: Case,
) -> Result<Program, Failure> {
    let mut builder = Builder::new("attention", &device.mesh, &device.rules);
    let x = builder.input("row", layout);
    let g: Graph = builder.graph().clone();
    let operands: Vec<Tensor> = x[..3]
        .iter()
        .map(|t| t.convert(args.compute_dtype.dtype()))
        .collect();
    let [q, k, v] = &operands[..] else {
        unreachable!("three arrays are floating-point")
    };
    let out = if case.tiled {
        let places = Places::in_order(&x[3]);
        attend_tiled(q, k, v, &places, &places, args.sizes())
    } else {
        let seq = Sequence {
            segment_ids: x[3].clone(),
            positions: x[4].clone(),
        };
        attend(q, k, v, &causal_mask(&seq))
    };
    let results = if case.backward {
        // A cotangent that is different everywhere, so that nothing is simplified away.
        g.vjp(&[(&out, q)], &operands.iter().collect::<Vec<_>>())
    } else {
        vec![out]
    };
    let leaf = |(i, t): (usize, &Tensor)| {
        Leaf::new(&i.to_string(), t.dtype(), &t.dims(), &vec!["_"; t.rank()])
    };
    let leaves: Vec<Leaf> = results.iter().enumerate().map(leaf).collect();
    builder.output(
        &Layout::new(&device.mesh, &device.rules, &leaves).or_fail()?,
        &results,
    );
    builder.compile(&device.client).or_fail()
}

/// Document of each token: documents of equal length, as nearly as the row allows.
fn segments(tokens: usize, documents: usize) -> Vec<i32> {
    (0..tokens)
        .map(|t| (t * documents / tokens) as i32 + 1)
        .collect()
}

fn arrays(args: &BenchAttentionArgs, documents: usize) -> Result<Vec<HostArray>, Failure> {
    let (t, h, k, e) = (args.tokens, args.heads, args.kv_heads(), args.head_size);
    let wave = |dims: &[usize], speed: f32| {
        let count = dims.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|i| (i as f32 * speed).sin()).collect();
        HostArray::from_slice(dims, &values).or_fail()
    };
    let segment_ids = segments(t, documents);
    let mut positions = vec![0; t];
    for i in 1..t {
        positions[i] = if segment_ids[i] == segment_ids[i - 1] {
            positions[i - 1] + 1
        } else {
            0
        };
    }
    Ok(vec![
        wave(&[1, t, h, e], 0.37)?,
        wave(&[1, k, t, e], 0.53)?,
        wave(&[1, k, t, e], 0.71)?,
        HostArray::from_slice(&[1, t], &segment_ids).or_fail()?,
        HostArray::from_slice(&[1, t], &positions).or_fail()?,
    ])
}

/// Tiles in which a query may read a key.
fn active(args: &BenchAttentionArgs, documents: usize, (queries, keys): (usize, usize)) -> usize {
    let segments = segments(args.tokens, documents);
    let last = |block: &[i32]| block.last().copied().unwrap_or(0);
    let pairs = segments.chunks(queries).enumerate().flat_map(|(i, q)| {
        segments
            .chunks(keys)
            .enumerate()
            .map(move |(j, k)| (i, q, j, k))
    });
    pairs
        .filter(|(i, q, j, k)| {
            q[0] <= last(k) && k[0] <= last(q) && i * queries + q.len() > j * keys
        })
        .count()
}

/// Median milliseconds of a call.
fn measure(program: &Program, group: &Group, runs: usize) -> Result<f64, Failure> {
    let mut times: Vec<Duration> = Vec::new();
    for run in 0..=runs {
        let begun = Instant::now();
        let results = program.call(vec![Argument::Borrowed(group)]).or_fail()?;
        results[0].wait().or_fail()?;
        if run > 0 {
            times.push(begun.elapsed());
        }
    }
    Ok((median(&times) * 1e5).round() / 100.0)
}
