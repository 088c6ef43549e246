//! Attention of rows that devices share.

use ferrotune_graph::{DType, Mesh, Rules};
use ferrotune_nn::{QueryOrder, Sequence, attend_documents};
use ferrotune_pjrt::{Plugin, Topology};
use ferrotune_program::{Builder, Layout, Leaf};

/// Rows, tokens, query heads, key heads, values of a head.
const SIZES: [usize; 5] = [2, 16_384, 8, 2, 128];

#[test]
fn attention_of_shared_rows_compiles_and_holds_keys_of_a_row_but_no_scores() {
    let plugin = Plugin::tpu(&mut |line| eprintln!("{line}"))
        .expect("the TPU plugin is needed for these tests");
    let topology = Topology::named(&plugin, "tpu7x:2x2x1").expect("a slice of 4 chips");
    let mesh = Mesh::new(&[("fsdp", 2), ("context", 4)]).unwrap();
    let over = |axis: &str| vec![axis.to_owned()];
    let rules = Rules::new([("batch", over("fsdp")), ("tokens", over("context"))]);
    let [b, t, h, k, e] = SIZES;
    let q = Leaf::new(
        "q",
        DType::BF16,
        &[b, t, h, e],
        &["batch", "tokens", "_", "_"],
    );
    let keys = |name: &str| {
        Leaf::new(
            name,
            DType::BF16,
            &[b, k, t, e],
            &["batch", "_", "tokens", "_"],
        )
    };
    let of_tokens = |name: &str| Leaf::new(name, DType::S32, &[b, t], &["batch", "tokens"]);
    let place = |leaves: &[Leaf]| Layout::new(&mesh, &rules, leaves).unwrap();
    for order in [QueryOrder::AsRows, QueryOrder::DualChunkSwap] {
        let mut builder = Builder::new("attention", &mesh, &rules);
        let operands = [q.clone(), keys("k"), keys("v")];
        let x = builder.input("x", &place(&operands));
        let rows = builder.input(
            "rows",
            &place(&[of_tokens("segments"), of_tokens("positions")]),
        );
        let seq = Sequence {
            segment_ids: rows[0].clone(),
            positions: rows[1].clone(),
        };
        let read = attend_documents(&x[0], &x[1], &x[2], &seq, order);
        let loss = read.convert(DType::F32).square().sum_all();
        let gradients = builder.graph().grad(&loss, &[&x[0], &x[1], &x[2]]);
        builder.output(&place(&operands), &gradients);
        let compilation = builder.compile_for(&topology).unwrap();
        let held = compilation.memory().temp as f64;
        // Keys, values and their gradients of a whole row; f32 sums of a part of the queries.
        let row = (k * t * e * 2) as f64;
        eprintln!("{order:?}: {:.1} times the keys of a row", held / row);
        assert!(held < 12.0 * row, "{order:?}: {} times", held / row);
    }
}
