//! Programs through several compilers; for TPU slices, without one. Needs the plugins, which are fetched once.

mod corpus;
mod cost;
mod made;
mod offload;

use std::sync::OnceLock;

use ferrotune_graph::{DType, Graph, Mesh, Rules, Tensor};
use ferrotune_pjrt::{Compilation, Plugin, Topology};
use ferrotune_program::{Builder, Layout, Leaf};

/// A slice of four chips, eight devices.
fn tpu7x() -> &'static Topology {
    static TOPOLOGY: OnceLock<Topology> = OnceLock::new();
    TOPOLOGY.get_or_init(|| topology("tpu7x:2x2x1"))
}

fn topology(name: &str) -> Topology {
    let plugin = Plugin::tpu(&mut |line| eprintln!("{line}"))
        .expect("the TPU plugin is needed for these tests");
    Topology::named(&plugin, name).expect("a slice of four chips")
}

/// A machine with four GPUs.
fn h200() -> Topology {
    let plugin = Plugin::cuda().expect("the CUDA plugin is needed for this test");
    Topology::gpu(&plugin, "h200", 1, 4).expect("it describes an H200")
}

/// Traces `f` of arguments with these types for one device.
fn trace(
    name: &str,
    args: &[(DType, &[usize])],
    f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
) -> Builder {
    let rules = Rules::unsharded(&[]);
    let leaf = |(i, (dtype, dims)): (usize, &(DType, &[usize]))| {
        Leaf::new(&i.to_string(), *dtype, dims, &vec!["_"; dims.len()])
    };
    let leaves: Vec<Leaf> = args.iter().enumerate().map(leaf).collect();
    let layout = Layout::new(&Mesh::single(), &rules, &leaves).unwrap();
    let mut builder = Builder::new(name, &Mesh::single(), &rules);
    let inputs = builder.input("args", &layout);
    let results = f(builder.graph(), &inputs);
    let types: Vec<(DType, Vec<usize>)> = results.iter().map(|t| (t.dtype(), t.dims())).collect();
    let leaves: Vec<Leaf> = types
        .iter()
        .enumerate()
        .map(|(i, (d, dims))| leaf((i, &(*d, dims))))
        .collect();
    builder.output(
        &Layout::new(&Mesh::single(), &rules, &leaves).unwrap(),
        &results,
    );
    builder
}

fn compile(builder: &Builder) -> Compilation {
    builder.compile_for(tpu7x()).unwrap()
}
