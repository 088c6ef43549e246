//! Compiling for TPUs without having one.

use std::{
    ffi::OsStr,
    process, thread,
    time::{Duration, Instant},
};

use ferrotune_pjrt::{
    DType, Effort, Error, ErrorCode, Mesh, Module, PinnedPlugin, Platform, Plugin, Topology, survey,
};

use crate::programs::{add_one, in_child, module, plugin, spec, tensor};

fn topology(name: &str) -> Topology {
    Topology::named(&plugin(PinnedPlugin::Tpu), name).expect("libtpu knows it")
}

/// x[m, k] w[k, n], with the rows of x split over the mesh; all sizes are whole tiles, so that nothing is padded.
fn matmul(mesh: &Mesh, [m, k, n]: [usize; 3]) -> Module {
    let axis = &mesh.axes()[0].0;
    let x = spec("x", DType::F32, &[m, k], &[axis, ""]);
    let w = spec("w", DType::F32, &[k, n], &[]);
    let y = spec("y", DType::F32, &[m, n], &[axis, ""]);
    let body = format!(
        "%y = stablehlo.dot_general %a0, %a1, contracting_dims = [1] x [0] : ({}, {}) -> {}\nreturn %y : {}",
        tensor(&x),
        tensor(&w),
        tensor(&y),
        tensor(&y)
    );
    module(mesh, &[(&x, false), (&w, false)], &[&y], &body)
}

#[test]
fn a_topology_knows_its_devices() {
    let v5e = topology("v5e:2x2");
    assert_eq!(
        (v5e.name(), v5e.device_count(), v5e.platform()),
        ("v5e:2x2", 4, Platform::Tpu)
    );
    // 16 GB and 96 GB per chip; a chip of the latter is two devices.
    let gigabytes = |topology: &Topology| topology.device_memory().expect("it is known") >> 30;
    let tpu7x = topology("tpu7x:2x2x1").clone();
    assert_eq!((gigabytes(&v5e), gigabytes(&tpu7x)), (15, 94));
    assert_eq!(tpu7x.device_count(), 8);
    assert_eq!(topology("tpu7x:4x4x8").device_count(), 256);
}

/// These two would pass on what an earlier run has left in the cache. Whoever asks for a dump gets no cache.
#[test]
fn the_numbers_of_a_fresh_compilation_are_right() {
    plugin(PinnedPlugin::Tpu);
    let flags = [("XLA_FLAGS", OsStr::new("--xla_dump_hlo_pass_re=none"))];
    in_child(
        "topologies::child_a_sharded_matmul_takes_its_share_of_memory_and_flops",
        &flags,
    );
    in_child(
        "topologies::child_donation_exponentials_and_low_effort_are_seen",
        &flags,
    );
}

#[test]
#[ignore = "run by the_numbers_of_a_fresh_compilation_are_right"]
fn child_a_sharded_matmul_takes_its_share_of_memory_and_flops() {
    for (name, devices) in [("v5e:2x2", 4), ("v5e:2x2", 2), ("tpu7x:2x2x1", 8)] {
        let mesh = Mesh::new(&[("rows", devices)]).expect("a mesh");
        let [m, k, n] = [2048, 512, 256];
        let compiled = topology(name)
            .compile(&matmul(&mesh, [m, k, n]))
            .expect("it compiles");
        assert!(!compiled.from_cache());
        let (memory, rows) = (compiled.memory(), m / devices);
        assert_eq!(memory.argument, 4 * (rows * k + k * n) as u64, "{name}");
        assert_eq!(memory.output, 4 * (rows * n) as u64, "{name}");
        assert!(memory.peak >= memory.argument + memory.output, "{memory:?}");
        let cost = compiled.cost().expect("TPU plugins count");
        assert_eq!(cost.flops, 2.0 * (rows * k * n) as f64, "{name}");
        assert!(cost.bytes_accessed >= (memory.argument + memory.output) as f64);
        assert_eq!(cost.transcendentals, 0.0);
    }
}

#[test]
#[ignore = "run by the_numbers_of_a_fresh_compilation_are_right"]
fn child_donation_exponentials_and_low_effort_are_seen() {
    let mesh = Mesh::new(&[("a", 8)]).expect("a mesh");
    let x = spec("x", DType::F32, &[64, 128], &["a", ""]);
    let body =
        "%y = stablehlo.exponential %a0 : tensor<64x128xf32>\nreturn %y : tensor<64x128xf32>";
    let donated = module(&mesh, &[(&x, true)], &[&x], body);
    let topology = topology("tpu7x:2x2x1");
    for effort in [Effort::Full, Effort::Low] {
        let compiled = topology
            .compile_with(&donated, effort)
            .expect("it compiles");
        let memory = compiled.memory();
        assert_eq!(
            (memory.argument, memory.output, memory.alias),
            (4096, 4096, 4096)
        );
        assert_eq!(
            compiled.cost().expect("it counts").transcendentals,
            8.0 * 128.0
        );
    }
}

#[test]
fn a_program_that_only_copies_costs_no_flops() {
    let x = spec("x", DType::BF16, &[3, 5], &[]);
    let copy = module(
        &Mesh::single(),
        &[(&x, false)],
        &[&x],
        "return %a0 : tensor<3x5xbf16>",
    );
    let compiled = topology("v5e:1x1").compile(&copy).expect("it compiles");
    assert_eq!(compiled.cost().expect("it counts").flops, 0.0);
    // Padded to a tile: more than the 30 bytes of its elements, and accepted.
    assert!(compiled.memory().argument > 30);
}

#[test]
fn names_that_no_plugin_knows_are_refused_with_examples() {
    let tpu = plugin(PinnedPlugin::Tpu);
    for name in [
        "v99:2x2",
        "v5e:7x5",
        "v5e",
        "",
        "v5e:0x2",
        "tpu7x:60000x60000x3",
    ] {
        let error = Topology::named(&tpu, name).expect_err("there is no such thing");
        assert!(matches!(&error, Error::Topology { name: given, .. } if given == name));
        let text = error.to_string();
        assert!(text.starts_with(&format!("there is no topology '{name}': ")));
        assert!(text.contains("such as tpu7x:2x2x1"), "{text}");
    }
    for which in [PinnedPlugin::Default, PinnedPlugin::Second] {
        let error = Topology::named(&plugin(which), "v5e:2x2").expect_err("a CPU has none");
        assert!(error.to_string().contains("for CPU"), "{error}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let topology = topology("v5e:2x2");
    let mesh = Mesh::new(&[("a", 8)]).expect("a mesh");
    let error = topology
        .compile(&matmul(&mesh, [64, 128, 128]))
        .expect_err("it has four devices");
    assert_eq!(
        error.to_string(),
        "the mesh (a=8) needs 8 devices but the topology v5e:2x2 has 4"
    );
    // 64 GiB on a device with 16.
    let x = spec("x", DType::F32, &[1 << 17, 1 << 17], &[]);
    let error = topology
        .compile(&add_one(&Mesh::single(), &x, false))
        .expect_err("there is no room");
    assert!(matches!(
        error,
        Error::Xla {
            code: ErrorCode::ResourceExhausted,
            ..
        }
    ));
    assert!(error.to_string().contains("CompileTimeHbmOom"), "{error}");
}

#[test]
fn a_module_that_disagrees_with_its_specification_is_refused_even_from_the_cache() {
    let mesh = Mesh::new(&[("a", 2)]).expect("a mesh");
    let topology = topology("v5e:2x2");
    let good = matmul(&mesh, [64, 128, 128]);
    topology.compile(&good).expect("the module itself is sound");
    let refused = |change: &dyn Fn(&mut Module)| {
        let mut module = good.clone();
        change(&mut module);
        topology
            .compile(&module)
            .expect_err("it is refused")
            .to_string()
    };
    let wrong = spec("y", DType::F32, &[64, 128], &[]);
    assert!(
        refused(&|m| m.results[0] = wrong.clone())
            .contains("the module says [64, 128], the compiled program [32, 128]")
    );
    assert!(refused(&|m| m.results.clear()).contains("the number of results differs"));
    let larger = spec("x", DType::F32, &[640, 128], &["a", ""]);
    assert!(refused(&|m| m.args[0].spec = larger.clone()).contains("bytes or more"));
}

#[test]
fn threads_may_compile_at_once_beside_a_cpu_client() {
    let topology = topology("tpu7x:2x2x1");
    thread::scope(|scope| {
        for index in 0..3 {
            let topology = &topology;
            scope.spawn(move || {
                let mesh = Mesh::new(&[("a", 2)]).expect("a mesh");
                // Sizes of its own, in an unusual order, so that the cache has little to say.
                let k = 128 * (1 + index);
                topology
                    .compile(&matmul(&mesh, [64, k, 384]))
                    .expect("it compiles")
            });
        }
        let cpu = plugin(PinnedPlugin::Second);
        let mesh = Mesh::new(&[("a", 2)]).expect("a mesh");
        let client = crate::programs::client(&cpu, 2);
        client
            .compile(&matmul(&mesh, [8, 4, 4]))
            .expect("it compiles");
    });
}

/// Loads the TPU plugin as users do, compiles, and says how long that took and where the answer came from.
#[test]
#[ignore = "run by the other tests of this file"]
fn child_compile() {
    // A plugin that waits for a metadata server does so for minutes.
    thread::spawn(|| {
        thread::sleep(Duration::from_secs(60));
        process::exit(1);
    });
    println!("tpu={:?};", survey().tpu);
    let start = Instant::now();
    let tpu =
        Plugin::tpu(&mut |line| panic!("nothing is to be fetched: {line}")).expect("it loads");
    println!("loaded in {} ms;", start.elapsed().as_millis());
    let topology = Topology::named(&tpu, "v5e:2x2").expect("libtpu knows it");
    let mesh = Mesh::new(&[("a", 4)]).expect("a mesh");
    let compiled = topology
        .compile(&matmul(&mesh, [512, 128, 128]))
        .expect("it compiles");
    let operations = compiled.operations().expect("TPU plugins show them");
    assert_eq!(operations.count("convolution"), 1);
    println!(
        "{:?} {:?} {operations:?};",
        compiled.memory(),
        compiled.cost()
    );
    // The same text, options and number of devices.
    let other = Topology::named(&tpu, "v6e:2x2").expect("libtpu knows it");
    let other = other
        .compile(&matmul(&mesh, [512, 128, 128]))
        .expect("it compiles");
    assert_ne!(other.cost(), compiled.cost());
    println!("from_cache={};", compiled.from_cache());
}

#[test]
fn the_plugin_loads_at_once_and_in_silence() {
    plugin(PinnedPlugin::Tpu);
    let text = in_child("topologies::child_compile", &[]);
    assert!(!text.contains("tpu=Fetch"), "{text}");
    assert!(
        !text.contains("WARNING") && !text.contains("Failed"),
        "{text}"
    );
    let (_, rest) = text.split_once("loaded in ").expect("it says so");
    let milliseconds: u64 = rest
        .split(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .expect("a number");
    assert!(milliseconds < 5000, "{text}");
}

#[test]
fn a_second_process_finds_the_answer() {
    let tpu = plugin(PinnedPlugin::Tpu);
    let cache = tempfile::tempdir().expect("a folder");
    let run = || {
        let variables = [
            ("FERROTUNE_TPU_PLUGIN", tpu.path().as_os_str()),
            ("FERROTUNE_CACHE", cache.path().as_os_str()),
            ("FERROTUNE_PJRT_PLUGIN", OsStr::new("/no/such/plugin.so")),
        ];
        let text = in_child("topologies::child_compile", &variables);
        assert!(text.contains("tpu=Variable("), "{text}");
        let answer = text.lines().find(|line| line.starts_with("MemoryStats"));
        let answer = answer.expect("it says so").to_owned();
        (text.contains("from_cache=true"), answer)
    };
    let (first, second) = (run(), run());
    assert_eq!((first.0, second.0), (false, true));
    assert_eq!(first.1, second.1);
    // The answer is kept, not the program.
    let kept: u64 = std::fs::read_dir(cache.path().join("compiled"))
        .expect("it exists")
        .map(|entry| entry.expect("an entry").metadata().expect("its size").len())
        .sum();
    assert!(kept < 4000, "{kept} bytes");
}
