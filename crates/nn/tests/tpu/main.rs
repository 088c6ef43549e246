//! Layers compiled for a slice of TPUs, without one: what they hold there. Needs the TPU plugin, which is fetched once.

mod attention;

use ferrotune_graph::{DType, Mesh, Rules};
use ferrotune_nn::{EntropyUse, Head, HeadMode, HeadSettings, HeadSizes};
use ferrotune_pjrt::{Compilation, Plugin, Topology};
use ferrotune_program::{Builder, Layout, Leaf};

const WIDTH: usize = 4096;
const VOCAB: usize = 248_320;

/// Tokens on each device.
const TOKENS: usize = 16_384;

/// Log-probs of the targets, and gradients by bf16 hidden states and weights, on 256 devices.
fn compile(settings: HeadSettings) -> Compilation {
    let plugin = Plugin::tpu(&mut |line| eprintln!("{line}"))
        .expect("the TPU plugin is needed for these tests");
    let topology = Topology::named(&plugin, "tpu7x:4x4x8").expect("a slice of 128 chips");
    let mesh = Mesh::new(&[("fsdp", 32), ("context", 4), ("expert", 2)]).unwrap();
    let over = |axes: &[&str]| axes.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>();
    let rules = Rules::new([
        ("batch", over(&["fsdp", "expert"])),
        ("tokens", over(&["context"])),
        ("embed", over(&["fsdp", "expert"])),
        ("vocab", over(&[])),
    ]);
    let bt = [64, 4 * TOKENS];
    let tokens = |name: &str, dtype| Leaf::new(name, dtype, &bt, &["batch", "tokens"]);
    let x = Leaf::new(
        "x",
        DType::BF16,
        &[bt[0], bt[1], WIDTH],
        &["batch", "tokens", "_"],
    );
    let w = Leaf::new("w", DType::BF16, &[WIDTH, VOCAB], &["embed", "vocab"]);
    let place = |leaves: &[Leaf]| Layout::new(&mesh, &rules, leaves).unwrap();
    let mut builder = Builder::new("head", &mesh, &rules);
    let weights = builder.input("weights", &place(&[x.clone(), w.clone()]));
    let rows = builder.input(
        "rows",
        &place(&[tokens("targets", DType::S32), tokens("g", DType::F32)]),
    );
    let g = builder.graph().clone();
    let head = Head {
        weight: weights[1].clone(),
        tied: false,
        temperature: 1.0,
        settings,
        entropy: EntropyUse::Unread,
    };
    let scores = head.score(&weights[0], &rows[0], None);
    let gradients = g.grad(
        &(&rows[1] * &scores.logprob).sum_all(),
        &[&weights[0], &weights[1]],
    );
    builder.output(&place(&[tokens("logprob", DType::F32)]), &[scores.logprob]);
    builder.output(&place(&[x, w]), &gradients);
    builder.compile_for(&topology).unwrap()
}

#[test]
fn a_large_vocabulary_takes_little_memory() {
    let sizes = HeadSizes {
        tokens: TOKENS,
        width: WIDTH,
        vocab: VOCAB,
    };
    // Temporaries in GiB, and transcendental functions as the compiler counts them, the body of a loop once: for chunks of
    // tokens, the figures of a published implementation on the same work.
    for (chunk, gibibytes, counted) in [
        (Some(4096), 4.35, 2.03e9),
        (Some(1024), 2.75, 0.51e9),
        (None, 1.0, 0.51e9),
    ] {
        let settings = HeadSettings::within(128 << 20, HeadMode::Fused, sizes, chunk, None);
        let compilation = compile(settings);
        let temporaries = compilation.memory().temp as f64 / (1_u64 << 30) as f64;
        let cost = compilation.cost().expect("the TPU plugin counts");
        eprintln!("{settings:?}: {temporaries:.3} GiB, {cost:?}");
        assert!(temporaries <= gibibytes, "{settings:?}: {temporaries} GiB");
        assert!(cost.transcendentals <= counted, "{settings:?}: {cost:?}");
    }
}
