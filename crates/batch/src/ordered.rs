//! Rows in the order of context shards, on their way to the devices.

use crate::column::Column;
use crate::error::{BatchError, Refused};
use crate::field::Field;
use crate::order::{Order, OrderKind};
use crate::rows::Rows;
use crate::tiles::Tiling;

/// Rows of which everything per token stands in the order of context shards, one [`Order`] a row.
///
/// The arrays are `[B,T]`; cut into `C` equal parts along `T`, part `r` is what shard `r` holds. A token has the id, segment
/// id, position, weight and fields that it has in the natural rows. There is no way to write these rows to a file.
#[derive(Clone, PartialEq, Debug)]
pub struct OrderedRows {
    rows: Rows,
    orders: Vec<Order>,
}

impl Rows {
    /// An order for each row over `context_size` shards.
    ///
    /// # Errors
    ///
    /// As [`Order::new`].
    pub fn orders(
        &self,
        kind: OrderKind,
        context_size: usize,
        tiling: &Tiling,
    ) -> Result<Vec<Order>, Refused> {
        let rows = 0..self.row_count();
        rows.map(|row| Order::new(kind, self.row_segment_ids(row), context_size, tiling))
            .collect::<Result<_, BatchError>>()
            .map_err(Refused::from)
    }

    /// These rows in the given orders, one a row.
    ///
    /// # Errors
    ///
    /// [`BatchError::OrderCount`] and [`BatchError::MixedShards`].
    pub fn in_order(&self, orders: Vec<Order>) -> Result<OrderedRows, Refused> {
        self.check_orders(&orders)?;
        let rows = self.moved(|row| orders[row].moves());
        Ok(OrderedRows { rows, orders })
    }

    pub(crate) fn check_orders(&self, orders: &[Order]) -> Result<(), BatchError> {
        let other = orders.iter().find(|order| order.len() != self.width());
        if orders.len() != self.row_count() || other.is_some() {
            return Err(BatchError::OrderCount {
                orders: orders.len(),
                tokens: other.or(orders.first()).map_or(0, Order::len),
                rows: self.row_count(),
                width: self.width(),
            });
        }
        let first = orders.first().map_or(1, Order::shards);
        match orders.iter().find(|order| order.shards() != first) {
            Some(other) => Err(BatchError::MixedShards {
                first,
                other: other.shards(),
            }),
            None => Ok(()),
        }
    }
}

impl OrderedRows {
    /// The order of each row.
    pub fn orders(&self) -> &[Order] {
        &self.orders
    }

    /// Rows, `B`.
    pub fn row_count(&self) -> usize {
        self.rows.row_count()
    }

    /// Tokens a row, `T`.
    pub fn width(&self) -> usize {
        self.rows.width()
    }

    /// Token ids; 0 in padding.
    pub fn token_ids(&self) -> &[i32] {
        self.rows.token_ids()
    }

    /// The segment of each token; 0 in padding.
    pub fn segment_ids(&self) -> &[i32] {
        self.rows.segment_ids()
    }

    /// The true position of each token in its segment. Within a segment the order of positions is the natural order, so
    /// segments and positions are all that a causal mask needs.
    pub fn positions(&self) -> &[i32] {
        self.rows.positions()
    }

    /// The weight of each token's loss.
    pub fn loss_weight(&self) -> &[f32] {
        self.rows.loss_weight()
    }

    /// A field of any kind.
    pub fn column(&self, field: Field) -> Option<&Column> {
        self.rows.column(field)
    }

    /// The natural index of the token at each place of each row, `[B,T]`.
    pub fn permutation(&self) -> Vec<i32> {
        self.orders.iter().flat_map(Order::permutation).collect()
    }

    /// The place of each natural index of each row, `[B,T]`.
    pub fn inverse(&self) -> Vec<i32> {
        self.orders.iter().flat_map(Order::inverse).collect()
    }

    /// `[B,T]` values that were computed in these orders, in natural order.
    ///
    /// # Errors
    ///
    /// [`BatchError::RowValues`].
    pub fn to_natural<T: Copy>(&self, values: &[T]) -> Result<Vec<T>, BatchError> {
        self.rows.check_shape(values.len())?;
        let mut natural = values.to_vec();
        for (row, order) in self.orders.iter().enumerate() {
            let base = row * self.width();
            for (place, index) in order.moves() {
                natural[base + index.start..base + index.end]
                    .copy_from_slice(&values[base + place.start..base + place.end]);
            }
        }
        Ok(natural)
    }

    /// The rows in natural order again.
    pub fn restore(&self) -> Rows {
        self.rows.moved(|row| {
            self.orders[row]
                .moves()
                .map(|(place, index)| (index, place))
        })
    }
}
