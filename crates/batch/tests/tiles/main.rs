//! Orders and attention tiles: numbers worked out by hand.

mod rules;

use ferrotune_batch::{
    Aggregation, BatchError, Blocks, Order, OrderKind, Packing, PadPosition, Padding, Pass, Rows,
    Tile, Tiling, Trajectory,
};

fn blocks(queries: usize, keys: usize) -> Blocks {
    Blocks { queries, keys }
}

fn pack(packing: &Packing, lengths: &[usize]) -> Rows {
    let documents = lengths.iter().map(|&n| Trajectory::document(vec![1; n]));
    let batch: Vec<Trajectory> = documents.collect();
    let weights = Aggregation::TokenMean.weights(&batch).unwrap();
    packing.pack(&batch, &weights).unwrap()
}

/// The tiling and the row that the published numbers are about.
fn long_row(pad_position: PadPosition) -> (Tiling, Rows) {
    let packing = Packing {
        pad_position,
        ..Packing::packed(65_536)
    };
    let tiling = Tiling::new(blocks(1024, 4096), blocks(2048, 2048));
    (tiling, pack(&packing, &[60_948]))
}

fn counts(tiling: &Tiling, rows: &Rows, kind: OrderKind, shards: usize) -> [Vec<usize>; 2] {
    let ids = rows.row_segment_ids(0);
    let order = Order::new(kind, ids, shards, tiling).unwrap();
    [Pass::Forward, Pass::Dkv].map(|pass| tiling.counts(pass, ids, &order))
}

#[test]
fn mirrored_chunks_of_a_long_row() {
    let (tiling, rows) = long_row(PadPosition::End);
    assert_eq!(
        counts(&tiling, &rows, OrderKind::DualChunkSwap, 4),
        [[80, 136, 136, 136], [74, 132, 132, 132]]
    );
    let (tiling, rows) = long_row(PadPosition::Start);
    assert_eq!(
        counts(&tiling, &rows, OrderKind::DualChunkSwap, 4),
        [[125, 120, 120, 120], [122, 116, 116, 116]]
    );
}

#[test]
fn balanced_chunks_of_a_long_row_are_as_even_as_whole_tiles_can_be() {
    for position in [PadPosition::End, PadPosition::Start] {
        let (tiling, rows) = long_row(position);
        let [forward, dkv] = counts(&tiling, &rows, OrderKind::Balanced, 4);
        assert_eq!(forward.iter().max(), Some(&122), "{forward:?}");
        assert_eq!(dkv.iter().max(), Some(&118), "{dkv:?}");
    }
}

#[test]
fn skipping_padding_leaves_only_tiles_of_the_document() {
    let (mut tiling, rows) = long_row(PadPosition::End);
    tiling.padding = Padding::Skipped;
    // Four query blocks of padding met two key blocks each.
    assert_eq!(
        counts(&tiling, &rows, OrderKind::DualChunkSwap, 4),
        [[72, 136, 136, 136], [69, 132, 132, 132]]
    );
    let empty = Rows::empty(1, 65_536, &[]);
    assert_eq!(
        counts(&tiling, &empty, OrderKind::Contiguous, 2),
        [[0, 0], [0, 0]]
    );
}

#[test]
fn chunks_of_sixteen_tokens() {
    let tiling = Tiling::new(blocks(1, 1), blocks(1, 1));
    let order = |kind, shards| {
        let order = Order::new(kind, &[1; 16], shards, &tiling).unwrap();
        order.permutation()
    };
    assert_eq!(
        order(OrderKind::DualChunkSwap, 4),
        [0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9]
    );
    assert_eq!(
        order(OrderKind::DualChunkSwap, 2),
        [0, 1, 2, 3, 12, 13, 14, 15, 4, 5, 6, 7, 8, 9, 10, 11]
    );
    let natural: Vec<i32> = (0..16).collect();
    assert_eq!(order(OrderKind::Contiguous, 4), natural);
    for kind in OrderKind::ALL {
        assert_eq!(order(kind, 1), natural, "{kind:?}");
    }
}

#[test]
fn an_inverse_of_chunks_by_hand() {
    let tiling = Tiling::new(blocks(1, 1), blocks(1, 1));
    let order = Order::new(OrderKind::DualChunkSwap, &[1; 8], 2, &tiling).unwrap();
    assert_eq!(order.permutation(), [0, 1, 6, 7, 2, 3, 4, 5]);
    assert_eq!(order.inverse(), [0, 1, 4, 5, 6, 7, 2, 3]);
    assert_eq!((order.shards(), order.chunk(), order.len()), (2, 2, 8));
    assert_eq!(order.chunks(), [0, 3, 1, 2]);
    assert_eq!(order.runs(1).collect::<Vec<_>>(), [2..4, 4..6]);
}

#[test]
fn tiles_of_two_documents_by_hand() {
    // Documents of 5 and 3 tokens, blocks of 2 by 2, in mirrored chunks: shard 0 has tokens 0 1 6 7, shard 1 has 2 to 5.
    let ids = [1, 1, 1, 1, 1, 2, 2, 2];
    let tiling = Tiling::new(blocks(2, 2), blocks(2, 4));
    let order = Order::new(OrderKind::DualChunkSwap, &ids, 2, &tiling).unwrap();
    let tile = |query_block, key_block, whole| Tile {
        query_block,
        key_block,
        whole,
    };
    // The key block of tokens 4 and 5 holds both documents.
    let forward = vec![
        vec![tile(0, 0, false), tile(1, 2, false), tile(1, 3, false)],
        vec![
            tile(0, 0, true),
            tile(0, 1, false),
            tile(1, 0, false),
            tile(1, 1, false),
            tile(1, 2, false),
        ],
    ];
    assert_eq!(tiling.tiles(Pass::Forward, &ids, &order), forward);
    assert_eq!(tiling.tiles(Pass::Dq, &ids, &order), forward);
    // By key block, four keys each.
    let dkv = vec![
        vec![tile(0, 0, false), tile(1, 1, false)],
        vec![tile(0, 0, false), tile(1, 0, false), tile(1, 1, false)],
    ];
    assert_eq!(tiling.tiles(Pass::Dkv, &ids, &order), dkv);
}

#[test]
fn lists_for_a_device_loop() {
    let rows = pack(
        &Packing {
            row_multiple: 2,
            ..Packing::packed(8)
        },
        &[5, 3],
    );
    let tiling = Tiling {
        padding: Padding::Skipped,
        ..Tiling::new(blocks(2, 2), blocks(2, 4))
    };
    let orders = rows.orders(OrderKind::DualChunkSwap, 2, &tiling).unwrap();
    let lists = rows
        .tile_lists(Pass::Forward, &tiling, &orders, None)
        .unwrap();
    assert_eq!((lists.rows, lists.shards, lists.capacity), (2, 2, 5));
    assert_eq!(lists.count, [3, 5, 0, 0]);
    let none = [0; 10];
    let padded = |row: [i32; 10]| [row, none].concat();
    assert_eq!(lists.query_block, padded([0, 1, 1, 0, 0, 0, 0, 1, 1, 1]));
    assert_eq!(lists.key_block, padded([0, 2, 3, 0, 0, 0, 1, 0, 1, 2]));
    assert_eq!(lists.whole, padded([0, 0, 0, 0, 0, 1, 0, 0, 0, 0]));
    let dkv = rows
        .tile_lists(Pass::Dkv, &tiling, &orders, Some(4))
        .unwrap();
    assert_eq!((dkv.capacity, dkv.count), (4, vec![2, 3, 0, 0]));
    assert_eq!(
        rows.tile_lists(Pass::Forward, &tiling, &orders, Some(2))
            .unwrap_err()
            .problems(),
        [(0, 3), (1, 5)].map(|(shard, tiles)| BatchError::TileCapacity {
            row: 0,
            shard,
            tiles,
            capacity: 2
        })
    );
    let empty = rows.empty_like(1);
    let orders = empty.orders(OrderKind::Balanced, 2, &tiling).unwrap();
    let lists = empty.tile_lists(Pass::Dq, &tiling, &orders, None).unwrap();
    assert_eq!((lists.capacity, lists.count), (1, vec![0, 0]));
}

#[test]
fn orders_that_do_not_fit() {
    let rows = pack(&Packing::packed(12), &[5]);
    let tiling = Tiling::new(blocks(2, 2), blocks(2, 2));
    let refused = |kind, shards| {
        let refused = rows.orders(kind, shards, &tiling).unwrap_err();
        refused.to_string()
    };
    assert_eq!(
        refused(OrderKind::DualChunkSwap, 4),
        "budget 12 is not a multiple of twice context_size 4; nearest are 8 and 16"
    );
    assert_eq!(
        refused(OrderKind::Balanced, 5),
        "budget 12 is not a multiple of context_size 5; nearest are 10 and 15"
    );
    assert_eq!(
        refused(OrderKind::Contiguous, 0),
        "context_size is 0; it must be at least 1"
    );
    assert!(rows.orders(OrderKind::Balanced, 4, &tiling).is_ok());
    let order = |width: usize, shards| {
        let ids = vec![1; width];
        Order::new(OrderKind::Contiguous, &ids, shards, &tiling).unwrap()
    };
    let count = |orders, tokens| BatchError::OrderCount {
        orders,
        tokens,
        rows: 1,
        width: 12,
    };
    let problem = |orders| rows.in_order(orders).unwrap_err().problems()[0].clone();
    assert_eq!(problem(vec![]), count(0, 0));
    assert_eq!(problem(vec![order(8, 2)]), count(1, 8));
    assert_eq!(problem(vec![order(12, 2); 2]), count(2, 12));
    let two = pack(&Packing::packed(12), &[12, 12]);
    assert_eq!(
        two.in_order(vec![order(12, 2), order(12, 3)])
            .unwrap_err()
            .problems(),
        [BatchError::MixedShards { first: 2, other: 3 }]
    );
}
