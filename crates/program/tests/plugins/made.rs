//! What the compilers make of a layer whose weights are split over the devices that its rows are split over.
//!
//! The weights are gathered for the product; their gradient, a sum over all rows, is reduced and cut again.

use ferrotune_graph::{DType, Graph, Mesh, Policy, Rules, Tensor};
use ferrotune_pjrt::{Client, Collective, Operations, PinnedPlugin, Plugin};
use ferrotune_program::{Builder, Layout, Leaf};

use super::{h200, topology, tpu7x};

const ROWS: usize = 256;
const WIDTH: usize = 128;
/// The weights in f32; a TPU sends them as the bf16 that it multiplies.
const WHOLE: u64 = (WIDTH * WIDTH * 4) as u64;
const LAYER: &str = "layers/up";

/// Two plugins with devices, two kinds of devices without.
const PLACES: [&str; 4] = ["default", "second", "v5e", "tpu7x"];

type Trace = fn(&Graph, &Tensor, &Tensor) -> Tensor;

fn layer(g: &Graph, h: &Tensor, w: &Tensor) -> Tensor {
    g.scope(LAYER, || {
        let product = g.einsum("td,df->tf", h, w, DType::F32);
        product.shard(&["rows", "_"]).tanh()
    })
}

fn once(g: &Graph, x: &Tensor, w: &Tensor) -> Tensor {
    layer(g, x, w)
}

fn three_times(g: &Graph, x: &Tensor, w: &Tensor) -> Tensor {
    let step = |_: &Tensor, h: &[Tensor], _: &[Tensor]| (vec![layer(g, &h[0], w)], vec![]);
    let (carry, _) = g.scan(Policy::recompute(), vec![x.clone()], vec![], 3, step);
    carry[0].clone()
}

/// The result of `trace`, or the derivative of its squares by the weights.
fn program(devices: usize, trace: Trace, gradient: bool) -> Builder {
    let mesh = Mesh::new(&[("data", devices)]).unwrap();
    let over = || vec!["data".to_owned()];
    let rules = Rules::new([("rows", over()), ("embed", over())]);
    let layout = |leaf| Layout::new(&mesh, &rules, &[leaf]).unwrap();
    let x_layout = layout(Leaf::new("x", DType::F32, &[ROWS, WIDTH], &["rows", "_"]));
    let w_layout = layout(Leaf::new("w", DType::F32, &[WIDTH, WIDTH], &["embed", "_"]));
    let mut builder = Builder::new("layer", &mesh, &rules);
    let x = builder.input("batch", &x_layout).remove(0);
    let w = builder.input("params", &w_layout).remove(0);
    let g = builder.graph().clone();
    let y = trace(&g, &x, &w);
    if gradient {
        builder.output(&w_layout, &g.grad(&y.square().sum_all(), &[&w]));
    } else {
        builder.output(&x_layout, &[y]);
    }
    builder
}

fn operations(place: &str, devices: usize, builder: Builder) -> Operations {
    let on_client = |plugin, builder: Builder| {
        let plugin = Plugin::pinned(plugin, &mut |line| eprintln!("{line}")).unwrap();
        let client = Client::cpu(&plugin, devices).unwrap();
        builder.compile(&client).unwrap().operations().unwrap()
    };
    let made = match place {
        "default" => on_client(PinnedPlugin::Default, builder),
        "second" => on_client(PinnedPlugin::Second, builder),
        "v5e" => {
            let compiled = builder.compile_for(&topology("v5e:2x2")).unwrap();
            compiled.operations().cloned()
        }
        _ => builder.compile_for(tpu7x()).unwrap().operations().cloned(),
    };
    made.expect("these plugins show their programs")
}

/// Compares as sets: the order of unrelated collectives is the compiler's.
fn assert_collectives(what: &str, made: &Operations, expected: &[(&str, u64, &str, bool)]) {
    let key = |c: &Collective| (c.kind.clone(), c.bytes, c.scope.clone(), c.in_loop);
    let mut found: Vec<_> = made.collectives.iter().map(key).collect();
    let own = |&(kind, bytes, scope, in_loop): &(&str, u64, &str, bool)| {
        (kind.to_owned(), bytes, scope.to_owned(), in_loop)
    };
    let mut expected: Vec<_> = expected.iter().map(own).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "{what}");
}

/// The weights as they are gathered.
fn gathered(place: &str) -> u64 {
    if matches!(place, "default" | "second") {
        WHOLE
    } else {
        WHOLE / 2
    }
}

/// How the gradient is reduced: only the newest TPU sums and cuts in one instruction.
fn reduced(place: &str, devices: usize) -> (&'static str, u64) {
    if place == "tpu7x" {
        ("reduce-scatter", WHOLE / devices as u64)
    } else {
        ("all-reduce", WHOLE)
    }
}

#[test]
fn split_weights_are_gathered_once_and_nothing_else_is_sent() {
    for (place, devices) in PLACES.into_iter().flat_map(|p| [(p, 2), (p, 4)]) {
        let made = operations(place, devices, program(devices, once, false));
        let what = format!("{place}, {devices} devices: {made:?}");
        assert_collectives(
            &what,
            &made,
            &[("all-gather", gathered(place), LAYER, false)],
        );
        // A TPU multiplies by convolution.
        assert_eq!(made.count("dot") + made.count("convolution"), 1, "{what}");
        assert_eq!(
            (
                made.count("tanh"),
                made.count("while"),
                made.count("scatter")
            ),
            (1, 0, 0),
            "{what}"
        );
        assert!((1..=8).contains(&made.count("fusion")), "{what}");
    }
}

#[test]
fn their_gradient_is_reduced_once() {
    for (place, devices) in PLACES.into_iter().flat_map(|p| [(p, 2), (p, 4)]) {
        let made = operations(place, devices, program(devices, once, true));
        let what = format!("{place}, {devices} devices: {made:?}");
        let (kind, bytes) = reduced(place, devices);
        assert_collectives(
            &what,
            &made,
            &[
                ("all-gather", gathered(place), LAYER, false),
                (kind, bytes, LAYER, false),
            ],
        );
        assert_eq!(made.count("dot") + made.count("convolution"), 2, "{what}");
    }
}

/// The CPU's compiler gathers before each of the two loops. The newer one has then no name left for it but the loop's.
#[test]
fn in_a_loop_is_what_is_sent_in_every_step() {
    for (place, devices) in PLACES.into_iter().flat_map(|p| [(p, 2), (p, 4)]) {
        let made = operations(place, devices, program(devices, three_times, true));
        let what = format!("{place}, {devices} devices: {made:?}");
        let (kind, bytes) = reduced(place, devices);
        let names = match place {
            "default" => ["while.2", "while.3"],
            _ => [LAYER, LAYER],
        };
        let tpu = place != "default" && place != "second";
        let gather = |name| ("all-gather", gathered(place), name, tpu);
        assert_collectives(
            &what,
            &made,
            &[
                gather(names[0]),
                gather(names[1]),
                (kind, bytes, LAYER, true),
            ],
        );
        assert_eq!(made.count("while"), 2, "{what}");
    }
}

#[test]
#[ignore = "needs the CUDA plugin: see the head of `corpus.rs`"]
fn the_h200s_of_one_machine_gather_and_reduce_alike() {
    let reduce = ("reduce-scatter", WHOLE / 4, LAYER);
    for (trace, gathers, looped) in [(once as Trace, 1, false), (three_times, 2, true)] {
        let compiled = program(4, trace, true).compile_for(&h200()).unwrap();
        let made = compiled.operations().unwrap();
        let gather = ("all-gather", WHOLE, LAYER);
        let expected: Vec<_> = std::iter::repeat_n(gather, gathers)
            .chain([reduce])
            .map(|(kind, bytes, scope)| (kind, bytes, scope, looped))
            .collect();
        assert_collectives(&format!("{made:?}"), made, &expected);
    }
}
