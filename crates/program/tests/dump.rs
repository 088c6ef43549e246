//! The dump of a program: what a person finds in the folder. One test, because the folder is one per process.

use ferrotune_graph::{DType, Mesh, Policy, Rules};
use ferrotune_pjrt::{Client, Plugin};
use ferrotune_program::{Builder, Error, Layout, Leaf, dump_to};

fn file(folder: &std::path::Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn a_dump_says_what_was_traced_written_and_compiled() {
    let root = std::env::temp_dir().join(format!("ferrotune-dump-{}", std::process::id()));
    dump_to(&root);
    let plugin = Plugin::cpu(&mut |line| eprintln!("{line}")).unwrap();
    let client = Client::cpu(&plugin, 2).unwrap();
    let mesh = Mesh::new(&[("x", 2)]).unwrap();
    let rules = Rules::new([("rows", vec!["x".to_owned()])]);
    let layout = Layout::new(
        &mesh,
        &rules,
        &[Leaf::new("h", DType::F32, &[4, 8], &["rows", "_"])],
    )
    .unwrap();
    let build = || {
        let mut builder = Builder::new("step", &mesh, &rules);
        let state = builder.input("state", &layout);
        let g = builder.graph().clone();
        let (carry, _) = g.scan(
            Policy::keep_dots(),
            vec![state[0].clone()],
            vec![],
            3,
            |_, h, _| {
                let product = g.scope("layers/mlp", || {
                    g.einsum("ab,cb->ac", &h[0], &h[0], DType::F32)
                });
                (
                    vec![g.einsum("ac,cb->ab", &product, &h[0], DType::F32).tanh()],
                    vec![],
                )
            },
        );
        let d = g.grad(&carry[0].sum_all(), &[&state[0]]);
        builder.output_replacing(&layout, &d, &state);
        builder
    };
    build().compile(&client).unwrap();
    let folders: Vec<_> = std::fs::read_dir(&root)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    assert_eq!(folders.len(), 1);
    let folder = &folders[0];
    assert!(
        folder
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("step-")
    );

    assert!(file(folder, "module.mlir").contains("loc(\"layers/mlp\")"));
    let graph = file(folder, "graph.txt");
    let product = graph.lines().find(|l| l.contains("layers/mlp")).unwrap();
    assert!(
        product.contains("tests/dump.rs:") && product.contains("tensor<4x4xf32>"),
        "{product}"
    );
    let report = file(folder, "report.txt");
    for part in [
        "state/h f32 [4, 8]",
        "64 bytes on a device  donated",
        "stablehlo.while",
        "bytes on the device: layers/mlp/einsum tensor<3x4x4xf32>",
        "64 results, 64 of them in the memory of arguments",
        "\noperations of the compiled program\n",
        "     2  while\n",
        "\ncollectives of the compiled program\n  all-gather of 128 bytes on a device, in a loop: layers/mlp\n",
    ] {
        assert!(report.contains(part), "`{part}` is not in\n{report}");
    }

    std::fs::remove_dir_all(&root).unwrap();
    std::fs::write(&root, "a file stands where the folder should be").unwrap();
    let error = build().compile(&client).unwrap_err();
    assert!(matches!(error, Error::Dump { .. }), "{error}");
    std::fs::remove_file(&root).unwrap();
}
