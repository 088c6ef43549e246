//! Compiling for GPUs without having one. The CUDA plugin is large and never fetched: most of this is ignored unless asked for.
//!
//! ```text
//! pip install --target DIR --no-deps jax-cuda13-pjrt==0.12.0.1 nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37
//! FERROTUNE_CUDA_PLUGIN=DIR/jax_plugins/xla_cuda13/xla_cuda_plugin.so cargo test -p ferrotune-pjrt --test device -- --ignored gpus
//! ```

use ferrotune_pjrt::{
    DType, Error, Mesh, PinnedPlugin, Platform, Plugin, PluginSource, Topology, survey,
};

use crate::programs::{add_one, plugin, spec};

#[test]
fn other_plugins_describe_no_gpus() {
    for which in [PinnedPlugin::Default, PinnedPlugin::Tpu] {
        let error = Topology::gpu(&plugin(which), "h200", 1, 8).expect_err("it has none");
        assert_eq!(
            error.to_string(),
            "the GPU 'h200' cannot be compiled for: the plugin describes none"
        );
    }
}

#[test]
#[ignore = "needs the CUDA plugin: see the head of this file"]
fn machines_with_gpus_are_a_topology() {
    assert!(matches!(
        survey().cuda,
        Some(PluginSource::Variable(_) | PluginSource::Installed(_))
    ));
    let cuda = Plugin::cuda().expect("it loads");
    let machines = Topology::gpu(&cuda, "h200", 2, 8).expect("it describes an H200");
    assert_eq!(
        (
            machines.name(),
            machines.device_count(),
            machines.platform()
        ),
        ("h200:2x8", 16, Platform::Gpu)
    );
    assert_eq!(machines.device_memory().expect("it says") >> 30, 141);
    let mesh = Mesh::new(&[("a", 16)]).expect("a mesh");
    let x = spec("x", DType::F32, &[64, 128], &["a", ""]);
    let compiled = machines
        .compile(&add_one(&mesh, &x, true))
        .expect("it compiles");
    let memory = compiled.memory();
    assert_eq!(
        (memory.argument, memory.output, memory.alias),
        (2048, 2048, 2048)
    );
    assert!(
        compiled
            .operations()
            .expect("it shows them")
            .collectives
            .is_empty()
    );
    let mesh = Mesh::new(&[("a", 32)]).expect("a mesh");
    let error = machines
        .compile(&add_one(&mesh, &x, true))
        .expect_err("it has 16");
    assert_eq!(
        error.to_string(),
        "the mesh (a=32) needs 32 devices but the topology h200:2x8 has 16"
    );
}

#[test]
#[ignore = "needs the CUDA plugin: see the head of this file"]
fn what_is_no_gpu_of_the_plugin_is_refused() {
    let cuda = Plugin::cuda().expect("it loads");
    let refused = |target, hosts, each| match Topology::gpu(&cuda, target, hosts, each) {
        Err(Error::GpuTarget { reason, .. }) => reason,
        other => panic!("{target}: {other:?}"),
    };
    assert!(refused("h100", 1, 8).contains("NVIDIA H100 PCIe"));
    assert!(refused("h20", 1, 8).contains("NVIDIA H200 141GB HBM3e"));
    assert!(refused("h200", 0, 8).contains("are none"));
    assert!(refused("h200", 1, 0).contains("are none"));
    // It describes those of other vendors too, and would end the process while compiling for one.
    assert!(refused("mi300x", 1, 8).contains("needs a plugin for ROCM, not for cuda"));
}
