//! Programs of every construct, with their gradients, through every compiler at hand: both CPU plugins, and device-less the
//! TPU's for two generations. What an emitter writes must be what all of them read.
//!
//! NVIDIA's compiler is large and not fetched, so its test is ignored unless asked for. To run it:
//!
//! ```text
//! pip install --target DIR --no-deps jax-cuda13-pjrt==0.12.0.1 nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37
//! FERROTUNE_CUDA_PLUGIN=DIR/jax_plugins/xla_cuda13/xla_cuda_plugin.so \
//!     cargo test -p ferrotune-program --test plugins -- --ignored h200
//! ```

use ferrotune_graph::{
    DType, Graph, HostArray, Mesh, Policy, Precision, Residual, Rules, Sharding, Tensor,
};
use ferrotune_pjrt::{Client, PinnedPlugin, Plugin, Topology};
use ferrotune_program::{Builder, Layout, Leaf};

use super::{h200, topology, tpu7x};

type Trace = fn(&Graph, &[Tensor]) -> Vec<Tensor>;

/// Name, and what to compute of `x [8,16]` split over the mesh's first axis, `w [16,16]` split over its second, and `w` again
/// for what changes its arguments. A scalar at place 0 is differentiated by `x` and `w`.
const CORPUS: &[(&str, Trace)] = &[
    ("elementwise", elementwise),
    ("shapes", shapes),
    ("reductions", reductions),
    ("products", products),
    ("rows", rows),
    ("windows", windows),
    ("loops", loops),
    ("blocks", blocks),
    ("branches", branches),
    ("given_derivative", given_derivative),
    ("random", random),
    ("ordering", ordering),
    ("systems", systems),
    ("groups", groups),
    ("batched_rows", batched_rows),
    ("regions", regions),
    ("collectives", collectives),
];

fn mesh() -> Mesh {
    Mesh::new(&[("data", 2), ("model", 2)]).unwrap()
}

fn builder(name: &str, trace: Trace) -> Builder {
    let rules = Rules::new([
        ("rows", vec!["data".to_owned()]),
        ("columns", vec!["model".to_owned()]),
    ]);
    let leaves = [
        Leaf::new("x", DType::F32, &[8, 16], &["rows", "_"]),
        Leaf::new("w", DType::F32, &[16, 16], &["_", "columns"]),
    ];
    let layout = Layout::new(&mesh(), &rules, &leaves).unwrap();
    let mut builder = Builder::new(name, &mesh(), &rules);
    let inputs = builder.input("args", &layout);
    let g = builder.graph().clone();
    let mut results = trace(&g, &inputs);
    let loss = results[0].clone();
    results.extend(g.grad(&loss, &[&inputs[0], &inputs[1]]));
    let leaf = |(i, t): (usize, &Tensor)| {
        Leaf::new(&i.to_string(), t.dtype(), &t.dims(), &vec!["_"; t.rank()])
    };
    let leaves: Vec<Leaf> = results.iter().enumerate().map(leaf).collect();
    builder.output(&Layout::new(&mesh(), &rules, &leaves).unwrap(), &results);
    builder
}

fn compile_all(compile: impl Fn(Builder) -> Result<(), ferrotune_program::Error>) {
    let failed: Vec<String> = CORPUS
        .iter()
        .filter_map(|(name, trace)| {
            let error = compile(builder(name, *trace)).err()?;
            Some(format!("{name}: {error}"))
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn on_client(plugin: PinnedPlugin) {
    let plugin = Plugin::pinned(plugin, &mut |line| eprintln!("{line}")).unwrap();
    let client = Client::cpu(&plugin, 4).unwrap();
    compile_all(|builder| builder.compile(&client).map(|_| ()));
}

fn on_topology(topology: &Topology) {
    compile_all(|builder| builder.compile_for(topology).map(|_| ()));
}

#[test]
fn the_default_cpu_plugin_reads_every_program() {
    on_client(PinnedPlugin::Default);
}

#[test]
fn the_older_cpu_plugin_reads_every_program() {
    on_client(PinnedPlugin::Second);
}

#[test]
fn the_tpu_compiler_reads_every_program_for_the_newest_slices() {
    on_topology(tpu7x());
}

#[test]
fn the_tpu_compiler_reads_every_program_for_older_slices() {
    on_topology(&topology("v5e:2x2"));
}

#[test]
#[ignore = "needs the CUDA plugin: see the head of this file"]
fn the_cuda_compiler_reads_every_program_for_an_h200() {
    on_topology(&h200());
}

fn elementwise(_: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let x = &t[0];
    let smooth = x.exp()
        + x.expm1()
        + (x.square() + 1.0).ln()
        + (x.square() + 1.0).rsqrt()
        + x.square().ln_1p();
    let waves = x.tanh() * x.logistic() + x.sin() * x.cos() + (x.abs() + 1.0).sqrt() - x.silu();
    let steps = x.sign() * 0.5 + x.floor() - x.ceil() + x.clamp(-0.5, 0.5);
    let chosen = x.gt(&(x * 0.5)).and(&x.is_finite()).select(&smooth, &waves);
    let bits = x.bitcast(DType::U32);
    let mixed = bits.shift_left(&bits.scalar_like(3.0)).xor(&bits.not());
    let narrow = x
        .convert(DType::BF16)
        .convert(DType::F32)
        .maximum(&(x * 2.0))
        .minimum(x);
    vec![(chosen + steps + narrow).sum_all(), mixed]
}

fn shapes(_: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let x = &t[0];
    let turned = x.transpose(&[1, 0]).reshape(&[8, 16]).reverse(1);
    let cut = Tensor::concatenate(&[&turned.slice(1, 2, 10), &x.slice(1, 0, 8)], 1);
    vec![(cut.pad(0, 1, 1, 0.5).square()).sum_all()]
}

fn reductions(_: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let x = &t[0];
    let extremes = x.max_keep(&[1]) - x.min_keep(&[0]) + x.cumulative_sum(1);
    let any = x.gt(&x.scalar_like(0.0)).any(&[1]);
    vec![(extremes * x).sum_all(), x.argmax(1), any]
}

fn products(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let (x, w) = (&t[0], &t[1]);
    let narrow = g.einsum(
        "td,df->tf",
        &x.convert(DType::BF16),
        &w.convert(DType::BF16),
        DType::BF16,
    );
    let wide = g
        .einsum("td,df->tf", x, w, DType::F32)
        .shard(&["rows", "columns"]);
    vec![(narrow.convert(DType::F32) * wide).sum_all()]
}

fn rows(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let ids = g.constant(HostArray::from_slice(&[4], &[7_i32, 0, 7, 3]).unwrap());
    let taken = t[0].take(&ids);
    let added = t[0].scatter_add_rows(&ids, &(&taken * 2.0));
    vec![(added * &t[0]).sum_all() + taken.pick_last(&ids).sum_all()]
}

fn windows(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let (i, j) = (t[0].argmax(1).max(&[0]), g.scalar(1.0, DType::S32));
    let window = t[0].dynamic_slice(&[&j, &i], &[4, 4]);
    let moved = t[0].dynamic_update_slice(&(&window * 2.0), &[&j, &j]);
    vec![(moved * &t[0]).sum_all()]
}

fn layer(g: &Graph, h: &Tensor, w: &Tensor) -> Tensor {
    let product = g.einsum("td,df->tf", h, w, DType::F32).named("product");
    (product.tanh() + h).shard(&["rows", "_"])
}

fn loops(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let (x, w) = (&t[0], &t[1]);
    let policy = Policy::recompute().with("product", Residual::Offload);
    let (carry, ys) = g.scan(policy, vec![x.clone()], vec![], 3, |_, h, _| {
        let h = layer(g, &h[0], w);
        (vec![h.clone()], vec![h.sum(&[1])])
    });
    let (back, _) = g.scan_reverse(
        Policy::keep_all(),
        carry,
        vec![ys[0].clone()],
        3,
        |_, h, y| (vec![&h[0] * y[0].expand(1)], vec![]),
    );
    let limit = g.scalar(20.0, DType::F32);
    let state = g.while_loop(
        vec![x.stop_gradient()],
        |s| s[0].square().sum_all().lt(&limit),
        |s| vec![&s[0] * 2.0],
    );
    vec![(&back[0] * &state[0]).sum_all()]
}

fn blocks(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let policy = Policy::recompute().with("product", Residual::Offload);
    let h = g.remat(&policy, || vec![layer(g, &t[0], &t[1])]);
    vec![g.barrier(&[&h[0]])[0].square().sum_all()]
}

fn branches(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let yes = t[0].sum_all().gt(&g.scalar(0.0, DType::F32));
    vec![g.cond(&yes, || vec![layer(g, &t[0], &t[1])], || vec![&t[0] * 2.0])[0].sum_all()]
}

fn given_derivative(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let y = g.custom_vjp(
        &[&t[0], &t[1]],
        |x| (vec![layer(g, &x[0], &x[1])], vec![x[1].clone()]),
        |r, d| vec![Some(g.einsum("tf,df->td", &d[0], &r[0], DType::F32)), None],
    );
    vec![y[0].sum_all()]
}

fn random(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let counter = g.iota(DType::U32, &[8, 16], 1);
    let key = g.scalar(7.0, DType::U32);
    let bits = ferrotune_graph::random::threefry_2x32([&key, &key], [&counter, &counter]);
    let uniform = ferrotune_graph::random::open_uniform(&bits[0]);
    vec![(uniform * &t[0]).sum_all()]
}

fn ordering(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let x = &t[0];
    let places = g.iota(DType::S32, &[8, 16], 1);
    let (keys, carried) = x.sort_by_key(&[&places, &(x * 2.0)], 1, true);
    let (largest, at) = x.top_k(3);
    let running = x.cumulative_max(1) * x.cumulative_min(0);
    let loss = (keys * &carried[1]).sum_all() + largest.square().sum_all() + running.sum_all();
    vec![loss, carried[0].clone(), at, x.argmin(1)]
}

fn systems(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let solved = t[1].solve_triangular(&t[0].transpose(&[1, 0]), true, true);
    let exact = g.einsum_with(
        "ab,ab->ab",
        &solved,
        &solved,
        DType::F32,
        Precision::Highest,
    );
    vec![(exact + solved.erf()).sum_all()]
}

fn groups(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let matrices = t[1].reshape(&[4, 4, 16]);
    let sizes = g.constant(HostArray::from_slice(&[4], &[3_i32, 0, 4, 1]).unwrap());
    let rows = t[0].slice(1, 0, 4);
    vec![
        g.ragged_dot(&rows, &matrices, &sizes, DType::F32)
            .square()
            .sum_all(),
    ]
}

fn batched_rows(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let x = t[0].reshape(&[2, 4, 16]);
    let ids = g.constant(HostArray::from_slice(&[2, 3], &[3_i32, 0, 3, 1, 1, 2]).unwrap());
    let order = g.constant(HostArray::from_slice(&[8], &[3_i32, 0, 1, 2, 7, 6, 5, 4]).unwrap());
    let inverse = g.constant(HostArray::from_slice(&[8], &[1_i32, 2, 3, 0, 7, 6, 5, 4]).unwrap());
    let moved = t[0].permute_rows(&order, &inverse);
    vec![x.take_along(1, &ids).square().sum_all() + (moved * &t[0]).sum_all()]
}

fn split(dims: &[&str]) -> Sharding {
    let axes = |dim: &&str| {
        if dim.is_empty() {
            vec![]
        } else {
            vec![(*dim).to_owned()]
        }
    };
    Sharding {
        dims: dims.iter().map(axes).collect(),
    }
}

/// Manual over one axis, the other automatic; in a loop, with a loop in it.
fn regions(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let (carry, _) = g.scan(
        Policy::recompute(),
        vec![t[0].clone()],
        vec![],
        2,
        |_, h, _| {
            let rows = split(&["data", ""]);
            let next = g.manual(&["data"], &[(&h[0], rows.clone())], &[rows], |part| {
                let (c, _) = g.scan(
                    Policy::recompute(),
                    vec![part[0].clone()],
                    vec![],
                    2,
                    |_, c, _| {
                        let total = c[0].sum_keep(&[0]).all_reduce(&["data"]);
                        (vec![(&c[0] + total * 0.01).tanh()], vec![])
                    },
                );
                c
            });
            (next, vec![])
        },
    );
    vec![carry[0].square().sum_all()]
}

fn collectives(g: &Graph, t: &[Tensor]) -> Vec<Tensor> {
    let (rows, columns) = (split(&["data", ""]), split(&["", "model"]));
    let inputs = [(&t[0], rows.clone()), (&t[1], columns)];
    let y = g.manual(
        &["data", "model"],
        &inputs,
        std::slice::from_ref(&rows),
        |part| {
            let w = part[1].all_gather(&["model"], 1);
            let h = g.einsum("td,df->tf", &part[0], &w, DType::F32);
            let swapped = h.collective_permute("data", &[(0, 1), (1, 0)]);
            let turned = swapped
                .all_to_all(&["model"], 1, 0)
                .all_to_all(&["model"], 0, 1);
            let summed = turned
                .reduce_scatter(&["model"], 1)
                .all_gather(&["model"], 1);
            let index = g.axis_index(&["data", "model"]).convert(DType::F32);
            vec![summed * 0.5 + h.all_reduce(&["data"]) + (index * 0.0)]
        },
    );
    vec![y[0].square().sum_all()]
}
