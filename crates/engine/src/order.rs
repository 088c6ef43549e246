//! Where the tokens of rows stand on devices that share a row, and what each of them predicts.
//!
//! The model's output at a token predicts the next one of its row. In another order the next one may be on another device, so
//! everything that belongs to it is put beside the token that predicts it here, on the host: targets, weights, fields. On the
//! devices no token has to know its neighbour.

use ferrotune_batch::{Blocks, OrderKind, Padding, Refused, Rows, Tiling};
use ferrotune_graph::{Mesh, Rules};
use ferrotune_models::ModelConfig;
use ferrotune_nn::{ATTENTION_TILES, QueryOrder};

use crate::error::Error;

/// How rows go to the devices that share their tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenOrder {
    kind: OrderKind,
    /// Devices that share a row.
    shards: usize,
    /// Whether rows lie as they are, and only attention has its queries in that order.
    natural: bool,
}

/// What stands at each place of `[B,T]` rows on the devices.
pub(crate) struct TokenPlaces {
    /// The index, in the natural rows, of the token there.
    pub(crate) here: Vec<usize>,
    /// That of the token which it predicts; behind the last of a row comes the first, which nothing predicts.
    pub(crate) next: Vec<usize>,
}

impl TokenOrder {
    /// By the rules for `tokens`.
    ///
    /// # Errors
    /// [`Error::RowOrder`].
    pub(crate) fn new(
        kind: OrderKind,
        mesh: &Mesh,
        rules: &Rules,
        model: &ModelConfig,
    ) -> Result<Self, Error> {
        let sizes = rules.over("tokens").iter();
        let shards = sizes
            .map(|axis| mesh.axis_size(axis).unwrap_or(1))
            .product();
        let kind = if shards == 1 {
            OrderKind::Contiguous
        } else {
            kind
        };
        let natural = model.has_recurrence();
        if natural && kind == OrderKind::Balanced {
            let family = model.family.model_type();
            return Err(Error::RowOrder { family });
        }
        Ok(Self {
            kind,
            shards,
            natural,
        })
    }

    /// Whether rows of this width can be cut so.
    pub(crate) fn check(&self, width: usize) -> Result<(), Refused> {
        Ok(self.kind.check(width, self.shards)?)
    }

    /// The order that attention gives its queries.
    pub(crate) fn of_queries(&self) -> QueryOrder {
        if self.natural && self.kind == OrderKind::DualChunkSwap {
            QueryOrder::DualChunkSwap
        } else {
            QueryOrder::AsRows
        }
    }

    pub(crate) fn places(&self, rows: &Rows) -> Result<TokenPlaces, Refused> {
        let (count, width) = (rows.row_count(), rows.width());
        let mut here: Vec<usize> = (0..count * width).collect();
        if !self.natural && self.kind != OrderKind::Contiguous {
            let tiling = tiling(width / self.shards);
            let orders = rows.orders(self.kind, self.shards, &tiling)?;
            let placed = orders.iter().enumerate().flat_map(|(row, order)| {
                let own = order.permutation().into_iter();
                own.map(move |at| row * width + at as usize)
            });
            here = placed.collect();
        }
        let after = |at: &usize| at - at % width + (at + 1) % width;
        let next = here.iter().map(after).collect();
        Ok(TokenPlaces { here, next })
    }
}

/// The tiles by which work is shared, for so many queries on a device: those of attention, or an eighth of its queries where that
/// is less, for attention that knows documents and does less than whole tiles.
fn tiling(queries: usize) -> Tiling {
    let most = (queries / 8).max(1);
    let blocks = |(q, k): (usize, usize)| Blocks {
        queries: q.min(most),
        keys: k.min(most),
    };
    let back = blocks(ATTENTION_TILES.backward);
    Tiling {
        forward: blocks(ATTENTION_TILES.forward),
        dq: back,
        dkv: back,
        padding: Padding::Skipped,
    }
}

impl TokenPlaces {
    /// For each place the value of the token there: `width` values of each.
    pub(crate) fn here<T: Copy>(&self, values: &[T], width: usize) -> Vec<T> {
        gather(values, &self.here, width)
    }

    /// For each place the value of the token that is predicted there.
    pub(crate) fn next<T: Copy>(&self, values: &[T]) -> Vec<T> {
        gather(values, &self.next, 1)
    }

    /// Scores of predicted tokens, each at its token's own place in the natural rows.
    pub(crate) fn natural<T: Copy + Default>(&self, scores: &[T]) -> Vec<T> {
        let mut own = vec![T::default(); scores.len()];
        for (score, at) in scores.iter().zip(&self.next) {
            own[*at] = *score;
        }
        own
    }

    /// The token that each place predicts, −1 where it predicts none: the first token of a document is predicted by nothing,
    /// and padding neither.
    pub(crate) fn targets(&self, rows: &Rows) -> Vec<i32> {
        let predicted = |at: &usize| {
            let follows = rows.positions()[*at] != 0
                && rows.segment_ids()[*at] != 0
                && !at.is_multiple_of(rows.width());
            if follows { rows.token_ids()[*at] } else { -1 }
        };
        self.next.iter().map(predicted).collect()
    }
}

fn gather<T: Copy>(values: &[T], places: &[usize], width: usize) -> Vec<T> {
    let each = places.iter().map(|at| &values[at * width..][..width]);
    each.flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use ferrotune_batch::{Aggregation, Packing, Trajectory};

    use super::*;

    /// Two rows of 32 tokens with documents of 20, 9, 2 and of 15, 1 and padding; each token has an id of its own.
    fn rows() -> Rows {
        let mut id = 0;
        let mut document = |length: u32| {
            id += length;
            Trajectory::document((id - length..id).collect())
        };
        let docs = [20, 9, 2, 15, 1].map(&mut document);
        let weights = Aggregation::TokenMean.weights(&docs).unwrap();
        Packing::packed(32).pack(&docs, &weights).unwrap()
    }

    fn order(kind: OrderKind, natural: bool) -> TokenOrder {
        TokenOrder {
            kind,
            shards: 2,
            natural,
        }
    }

    #[test]
    fn each_place_predicts_the_next_token_of_its_document_and_nothing_else() {
        let rows = rows();
        for kind in OrderKind::ALL {
            let places = order(kind, false).places(&rows).unwrap();
            for (at, target) in places.here.iter().zip(places.targets(&rows)) {
                let inside = !(at + 1).is_multiple_of(32);
                let segments = rows.segment_ids();
                let follows = inside && segments[*at] != 0 && segments[*at] == segments[at + 1];
                let expected = if follows {
                    rows.token_ids()[at + 1]
                } else {
                    -1
                };
                assert_eq!(target, expected, "{kind:?} {at}");
            }
        }
    }

    /// A loss may sum by rows: it must find there what belongs to each row, also to its first token.
    #[test]
    fn what_belongs_to_a_row_stays_in_it() {
        let rows = rows();
        for kind in OrderKind::ALL {
            let next = order(kind, false).places(&rows).unwrap().next;
            for (row, next) in next.chunks(32).enumerate() {
                assert!(next.iter().all(|at| at / 32 == row), "{kind:?} {row}");
            }
        }
    }

    #[test]
    fn scores_of_predicted_tokens_come_back_to_their_own_places() {
        let rows = rows();
        let values: Vec<f32> = (0..64).map(|i| i as f32).collect();
        for kind in OrderKind::ALL {
            let places = order(kind, false).places(&rows).unwrap();
            assert_eq!(places.natural(&places.next(&values)), values, "{kind:?}");
            let wide = places.here(&(0..128).collect::<Vec<usize>>(), 2);
            for (pair, at) in wide.chunks(2).zip(&places.here) {
                assert_eq!(pair, [2 * at, 2 * at + 1], "{kind:?}");
            }
        }
    }

    #[test]
    fn the_orders_differ_and_the_balanced_one_from_row_to_row() {
        let rows = rows();
        let first = |kind| order(kind, false).places(&rows).unwrap().here;
        let [contiguous, swapped, balanced] = OrderKind::ALL.map(first);
        assert_eq!(contiguous, (0..64).collect::<Vec<_>>());
        assert_eq!(
            swapped[..17],
            [
                &[0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31],
                &[8][..]
            ]
            .concat()
        );
        assert_ne!(balanced, swapped);
        let of_row = |row: usize| {
            balanced[32 * row..][..32]
                .iter()
                .map(move |at| at - 32 * row)
        };
        assert!(!of_row(0).eq(of_row(1)));
        for kind in OrderKind::ALL {
            let natural = order(kind, true).places(&rows).unwrap().here;
            assert_eq!(natural, contiguous, "{kind:?}");
        }
    }
}
