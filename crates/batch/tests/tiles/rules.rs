//! Every rule of orders and tiles against the plainest loop.

use ferrotune_batch::{Blocks, Order, OrderKind, Padding, Pass, Tile, Tiling};
use proptest::prelude::*;

use crate::blocks;

#[derive(Clone, Debug)]
struct Case {
    segment_ids: Vec<i32>,
    shards: usize,
    tiling: Tiling,
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = (1usize..5, 1usize..9, any::<bool>());
    let tile = || (1usize..9, 1usize..9).prop_map(|(q, k)| blocks(q, k));
    (sizes, tile(), tile(), tile()).prop_flat_map(
        |((shards, per_shard, skip), forward, dq, dkv)| {
            let runs = prop::collection::vec((any::<bool>(), 1usize..12), 1..12);
            runs.prop_map(move |runs| {
                let width = 2 * shards * per_shard;
                let mut segment_ids = Vec::new();
                let mut next = 1;
                for (real, length) in runs {
                    let id = if real { next } else { 0 };
                    next += i32::from(real);
                    segment_ids.extend(vec![id; length]);
                }
                segment_ids.resize(width, 0);
                let padding = if skip {
                    Padding::Skipped
                } else {
                    Padding::Counted
                };
                Case {
                    segment_ids,
                    shards,
                    tiling: Tiling {
                        forward,
                        dq,
                        dkv,
                        padding,
                    },
                }
            })
        },
    )
}

/// Natural indices of each shard's blocks of queries, and of the blocks of keys.
fn cut(case: &Case, order: &Order, blocks: Blocks) -> (Vec<Vec<Vec<usize>>>, Vec<Vec<usize>>) {
    let width = case.segment_ids.len();
    let permutation: Vec<usize> = order.permutation().iter().map(|&i| i as usize).collect();
    let pieces = |list: &[usize], size| list.chunks(size).map(<[usize]>::to_vec).collect();
    let shards = permutation.chunks(width / case.shards);
    let queries = shards.map(|shard| pieces(shard, blocks.queries)).collect();
    let natural: Vec<usize> = (0..width).collect();
    (queries, pieces(&natural, blocks.keys))
}

/// The rule as it is written, on lists of natural indices.
fn active(case: &Case, queries: &[usize], keys: &[usize]) -> bool {
    let counted = |list: &[usize]| -> Vec<usize> {
        let counts =
            |i: &usize| case.tiling.padding == Padding::Counted || case.segment_ids[*i] != 0;
        list.iter().copied().filter(counts).collect()
    };
    let (queries, keys) = (counted(queries), counted(keys));
    if queries.is_empty() || keys.is_empty() {
        return false;
    }
    let range = |list: &[usize]| {
        let ids = list.iter().map(|&i| case.segment_ids[i]);
        (ids.clone().min().unwrap(), ids.max().unwrap())
    };
    let ((q_low, q_high), (k_low, k_high)) = (range(&queries), range(&keys));
    let above = queries.iter().max() < keys.iter().min();
    !above && q_low.max(k_low) <= q_high.min(k_high)
}

fn attends(case: &Case, query: usize, key: usize) -> bool {
    let ids = &case.segment_ids;
    ids[query] != 0 && ids[query] == ids[key] && key <= query
}

fn slowest(case: &Case, order: &Order) -> u64 {
    let products = [2, 3, 4];
    let passes = Pass::ALL.iter().zip(products);
    passes
        .map(|(&pass, products)| {
            let tiles = case.tiling.tiles(pass, &case.segment_ids, order);
            let Blocks { queries, keys } = case.tiling.blocks(pass);
            let most = tiles.iter().map(Vec::len).max().unwrap();
            (products * queries * keys * most) as u64
        })
        .sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn tiles_are_what_the_rule_says(case in cases(), kind in 0usize..3, pass in 0usize..3) {
        let (kind, pass) = (OrderKind::ALL[kind], Pass::ALL[pass]);
        let order = Order::new(kind, &case.segment_ids, case.shards, &case.tiling).unwrap();
        let blocks = case.tiling.blocks(pass);
        let (queries, keys) = cut(&case, &order, blocks);
        let found = case.tiling.tiles(pass, &case.segment_ids, &order);
        prop_assert_eq!(found.len(), case.shards);
        prop_assert_eq!(
            found.iter().map(Vec::len).collect::<Vec<_>>(),
            case.tiling.counts(pass, &case.segment_ids, &order)
        );
        for (queries, found) in queries.iter().zip(&found) {
            let mut expected = Vec::new();
            for (query_block, q) in queries.iter().enumerate() {
                for (key_block, k) in keys.iter().enumerate() {
                    if active(&case, q, k) {
                        let full = q.len() == blocks.queries && k.len() == blocks.keys;
                        let all = q.iter().all(|&q| k.iter().all(|&k| attends(&case, q, k)));
                        expected.push(Tile { query_block, key_block, whole: full && all });
                    }
                }
            }
            if pass == Pass::Dkv {
                expected.sort_by_key(|tile| tile.key_block);
            }
            prop_assert_eq!(found, &expected);
            let most = case.tiling.most_tiles(pass, case.segment_ids.len(), case.shards);
            prop_assert!(found.len() <= most);
        }
    }

    #[test]
    fn every_pair_of_a_document_lies_in_one_tile(case in cases(), kind in 0usize..3, pass in 0usize..3) {
        let (kind, pass) = (OrderKind::ALL[kind], Pass::ALL[pass]);
        let order = Order::new(kind, &case.segment_ids, case.shards, &case.tiling).unwrap();
        let (queries, keys) = cut(&case, &order, case.tiling.blocks(pass));
        let width = case.segment_ids.len();
        let mut covered = vec![0; width * width];
        let found = case.tiling.tiles(pass, &case.segment_ids, &order);
        for (shard, tiles) in found.iter().enumerate() {
            for tile in tiles {
                for &q in &queries[shard][tile.query_block] {
                    for &k in &keys[tile.key_block] {
                        covered[q * width + k] += 1;
                    }
                }
            }
        }
        for q in 0..width {
            for k in 0..width {
                let times = covered[q * width + k];
                prop_assert!(times == 1 || times == 0 && !attends(&case, q, k), "{} {}: {}", q, k, times);
            }
        }
    }

    #[test]
    fn an_order_gives_every_shard_as_many_tokens_each_once(case in cases(), kind in 0usize..3) {
        let order = Order::new(OrderKind::ALL[kind], &case.segment_ids, case.shards, &case.tiling).unwrap();
        prop_assert_eq!(order.len(), case.segment_ids.len());
        let mut seen: Vec<usize> = Vec::new();
        for shard in 0..case.shards {
            let held: Vec<usize> = order.runs(shard).flatten().collect();
            prop_assert_eq!(held.len(), case.segment_ids.len() / case.shards);
            prop_assert!(held.is_sorted(), "within a shard the order is natural");
            seen.extend(held);
        }
        prop_assert_eq!(&seen, &order.permutation().iter().map(|&i| i as usize).collect::<Vec<_>>());
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..case.segment_ids.len()).collect::<Vec<_>>());
    }

    #[test]
    fn balanced_is_never_worse_than_the_others(case in cases()) {
        let work = |kind| {
            let order = Order::new(kind, &case.segment_ids, case.shards, &case.tiling).unwrap();
            slowest(&case, &order)
        };
        let balanced = work(OrderKind::Balanced);
        prop_assert!(balanced <= work(OrderKind::Contiguous));
        prop_assert!(balanced <= work(OrderKind::DualChunkSwap));
    }

    #[test]
    fn skipping_padding_never_adds_tiles(mut case in cases(), pass in 0usize..3) {
        let order = Order::new(OrderKind::Contiguous, &case.segment_ids, case.shards, &case.tiling).unwrap();
        let mut of = |padding| {
            case.tiling.padding = padding;
            case.tiling.counts(Pass::ALL[pass], &case.segment_ids, &order)
        };
        let (skipped, counted) = (of(Padding::Skipped), of(Padding::Counted));
        prop_assert!(skipped.iter().zip(&counted).all(|(skipped, counted)| skipped <= counted));
    }
}
