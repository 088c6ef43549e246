//! Running traced functions and checking their derivatives against finite differences.

use std::sync::OnceLock;

use ferrotune_graph::{DType, Graph, HostArray, Mesh, Output, Platform, Rules, Sharding, Tensor};
use ferrotune_pjrt::{Client, Plugin};
use ferrotune_program::{Argument, Builder, Group, Layout, Leaf, Program};

/// One client with eight virtual devices for all tests; a mesh may use fewer.
pub(crate) fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let plugin = Plugin::cpu(&mut |line| eprintln!("{line}"))
            .expect("the CPU plugin is needed for these tests");
        Client::cpu(&plugin, 8).expect("a CPU client")
    })
}

pub(crate) fn rules() -> Rules {
    Rules::new([
        ("split", vec!["x".to_owned()]),
        ("split2", vec!["y".to_owned()]),
        ("both", vec!["x".to_owned(), "y".to_owned()]),
    ])
}

/// Numbers without pattern, all between 0.2 and 1.2 in size, of both signs unless `positive`.
pub(crate) fn noise(dims: &[usize], seed: u64, positive: bool) -> HostArray {
    let count: usize = dims.iter().product();
    let values: Vec<f64> = (0..count as u64)
        .map(|i| {
            let mut h = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
                ^ seed.wrapping_mul(0xD1B5_4A32_D192_ED03);
            h = (h ^ (h >> 31)).wrapping_mul(0x94D0_49BB_1331_11EB);
            h ^= h >> 29;
            let size = 0.2 + (h >> 11) as f64 / (1_u64 << 53) as f64;
            if positive || h & 1 == 0 { size } else { -size }
        })
        .collect();
    HostArray::from_slice(dims, &values).unwrap()
}

/// Compiles `f` for a mesh: unsharded arguments of the given types, unsharded results.
pub(crate) fn program_on(
    mesh: &Mesh,
    name: &str,
    args: &[HostArray],
    f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
) -> (Program, Layout) {
    program_by(client(), mesh, name, args, f)
}

/// The same, compiled by the given client.
pub(crate) fn program_by(
    client: &Client,
    mesh: &Mesh,
    name: &str,
    args: &[HostArray],
    f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
) -> (Program, Layout) {
    let (builder, layout) = trace_on(mesh, name, args, f);
    let program = builder.compile(client);
    (program.unwrap_or_else(|e| panic!("{name}: {e}")), layout)
}

/// The same without compiling.
pub(crate) fn trace_on(
    mesh: &Mesh,
    name: &str,
    args: &[HostArray],
    f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
) -> (Builder, Layout) {
    let leaves: Vec<Leaf> = args
        .iter()
        .enumerate()
        .map(|(i, a)| {
            Leaf::new(
                &i.to_string(),
                a.dtype(),
                a.dims(),
                &vec!["_"; a.dims().len()],
            )
        })
        .collect();
    let rules = if mesh.axes().is_empty() {
        Rules::unsharded(&["split", "split2", "both"])
    } else {
        rules()
    };
    let layout = Layout::new(mesh, &rules, &leaves).unwrap();
    let mut builder = Builder::new(name, mesh, &rules);
    let inputs = builder.input("args", &layout);
    let results = f(builder.graph(), &inputs);
    let leaves: Vec<Leaf> = results
        .iter()
        .enumerate()
        .map(|(i, t)| Leaf::new(&i.to_string(), t.dtype(), &t.dims(), &vec!["_"; t.rank()]))
        .collect();
    let out = Layout::new(mesh, &rules, &leaves).unwrap();
    builder.output(&out, &results);
    (builder, layout)
}

pub(crate) fn run_on(
    mesh: &Mesh,
    name: &str,
    args: &[HostArray],
    f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
) -> Vec<HostArray> {
    let (program, layout) = program_on(mesh, name, args, f);
    let group = Group::upload(client(), &layout, args).unwrap();
    program.call(vec![Argument::Borrowed(&group)]).unwrap()[0]
        .to_host()
        .unwrap()
}

/// Runs `f` on one device.
pub(crate) fn run(
    name: &str,
    args: &[HostArray],
    f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
) -> Vec<HostArray> {
    run_on(&Mesh::single(), name, args, f)
}

/// The text of one result of two f32 or bf16 arguments.
pub(crate) fn text(
    platform: Platform,
    dims: [&[usize]; 2],
    dtype: DType,
    f: impl FnOnce(&Graph, &Tensor, &Tensor) -> Tensor,
) -> String {
    let g = Graph::new("text", Mesh::single(), Rules::default());
    let [a, b] = [("a", dims[0]), ("b", dims[1])]
        .map(|(name, d)| g.input(name, dtype, d, &vec!["_"; d.len()]));
    let tensor = f(&g, &a, &b);
    let sharding = Sharding::replicated(tensor.rank());
    let output = Output {
        name: "y".into(),
        tensor,
        sharding,
        replaces: None,
    };
    g.lower(platform, &[output], &[]).module.text
}

/// Checks the derivative of `f` with respect to every element of every argument, in float64.
///
/// `f` stands in the middle of a graph: its arguments are computed, and its result is multiplied by numbers that are not 1.
pub(crate) fn derivative(name: &str, args: &[HostArray], f: impl Fn(&Graph, &[Tensor]) -> Tensor) {
    derivative_on(&Mesh::single(), name, args, f);
}

/// The same on a mesh.
pub(crate) fn derivative_on(
    mesh: &Mesh,
    name: &str,
    args: &[HostArray],
    f: impl Fn(&Graph, &[Tensor]) -> Tensor,
) {
    let loss = |g: &Graph, xs: &[Tensor]| {
        let inner: Vec<Tensor> = xs.iter().map(|x| x * 0.9 + x * x * 0.05).collect();
        let y = f(g, &inner);
        let weights = g.constant(noise(&y.dims(), 77, false));
        (y * weights).sum_all() * 1.7
    };
    let (value, layout) = program_on(mesh, &format!("{name}_value"), args, |g, xs| {
        vec![loss(g, xs)]
    });
    let gradients = run_on(mesh, &format!("{name}_grad"), args, |g, xs| {
        let wrt: Vec<&Tensor> = xs.iter().collect();
        g.grad(&loss(g, xs), &wrt)
    });
    let at = |args: &[HostArray]| {
        let group = Group::upload(client(), &layout, args).unwrap();
        value.call(vec![Argument::Borrowed(&group)]).unwrap()[0]
            .to_host()
            .unwrap()[0]
            .as_slice::<f64>()[0]
    };
    let step = 1e-5; // error of order step², 1e-10, against rounding 1e-16 / step, 1e-11
    for (i, arg) in args.iter().enumerate() {
        assert_eq!(arg.dtype(), DType::F64);
        for k in 0..arg.len() {
            let moved = |by: f64| {
                let mut changed = args.to_vec();
                let mut values = arg.as_slice::<f64>().to_vec();
                values[k] += by;
                changed[i] = HostArray::from_slice(arg.dims(), &values).unwrap();
                at(&changed)
            };
            let expected = (moved(step) - moved(-step)) / (2.0 * step);
            let found = gradients[i].as_slice::<f64>()[k];
            let close = (found - expected).abs() <= 1e-7 * (1.0 + expected.abs());
            assert!(
                close,
                "{name}: derivative by element {k} of argument {i} is {found}, finite differences say {expected}"
            );
        }
    }
}
