//! Rows of tokens: a struct of arrays `[B,T]` in which everything per token moves together, and the way back.
//!
//! Shapes: `B` rows, `T` tokens a row; every array is row-major `[B,T]`. Not here: how trajectories were given their places.

use std::ops::Range;

use crate::column::Column;
use crate::error::{BatchError, Refused};
use crate::field::{Field, Fields};
use crate::option::PackingOption;
use crate::trajectory::Trajectory;
use crate::weights::LossWeights;

/// Where one trajectory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Index in the batch that was packed.
    pub trajectory: usize,
    /// Its row.
    pub row: usize,
    /// Its segment id: 1 for the first in the row.
    pub segment: usize,
    /// Index of its first token in the row.
    pub start: usize,
    /// Its tokens.
    pub len: usize,
}

/// Packed rows. Padding has segment id 0, a field's [`Element`](crate::Element) says what it has there, and 0 elsewhere.
#[derive(Clone, PartialEq, Debug)]
pub struct Rows {
    row_count: usize,
    width: usize,
    token_ids: Vec<i32>,
    segment_ids: Vec<i32>,
    positions: Vec<i32>,
    loss_weight: Vec<f32>,
    fields: Fields,
    /// In the order of the trajectories.
    places: Vec<Place>,
}

impl Rows {
    /// Rows of padding only, with the given fields, one value a token: a batch that contributes nothing, of the shape that
    /// is wanted. For fields of several values a token, see [`Rows::empty_like`].
    pub fn empty(row_count: usize, width: usize, fields: &[Field]) -> Rows {
        let mut columns = Fields::default();
        for &field in fields {
            columns.set_column(field, field.element().column(1));
        }
        Rows::of_padding(row_count, width, &columns)
    }

    /// Rows of padding only, as wide as these and with the same fields.
    pub fn empty_like(&self, row_count: usize) -> Rows {
        Rows::of_padding(row_count, self.width, &self.fields)
    }

    fn of_padding(row_count: usize, width: usize, like: &Fields) -> Rows {
        let size = row_count * width;
        let columns = like.padding(size);
        Rows {
            row_count,
            width,
            token_ids: vec![0; size],
            segment_ids: vec![0; size],
            positions: vec![0; size],
            loss_weight: vec![0.0; size],
            fields: columns,
            places: Vec::new(),
        }
    }

    /// Writes every trajectory to its place. The batch has been checked: lengths agree, places are disjoint.
    pub(crate) fn lay_out(
        row_count: usize,
        width: usize,
        places: Vec<Place>,
        batch: &[Trajectory],
        weights: &LossWeights,
    ) -> Rows {
        let mut rows = Rows::of_padding(row_count, width, &batch[0].fields);
        for place in &places {
            let range = place.range(width);
            let trajectory = &batch[place.trajectory];
            for (to, &id) in rows.token_ids[range.clone()]
                .iter_mut()
                .zip(&trajectory.tokens)
            {
                *to = id as i32;
            }
            for (to, t) in rows.positions[range.clone()].iter_mut().zip(0..) {
                *to = t;
            }
            rows.segment_ids[range.clone()].fill(place.segment as i32);
            rows.loss_weight[range.clone()].copy_from_slice(&weights.per_token[place.trajectory]);
            for (to, (_, from)) in rows.fields.iter_mut().zip(trajectory.fields.iter()) {
                to.copy_from(range.start, from, 0..place.len);
            }
        }
        rows.places = places;
        rows
    }

    /// Rows, `B`.
    pub fn row_count(&self) -> usize {
        self.row_count
    }

    /// Tokens a row, `T`.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Token ids; 0 in padding.
    pub fn token_ids(&self) -> &[i32] {
        &self.token_ids
    }

    /// 1, 2, … for the segments of a row; 0 in padding.
    pub fn segment_ids(&self) -> &[i32] {
        &self.segment_ids
    }

    /// 0, 1, … in each segment; 0 in padding.
    pub fn positions(&self) -> &[i32] {
        &self.positions
    }

    /// The weight of each token's loss, at the token's own index.
    pub fn loss_weight(&self) -> &[f32] {
        &self.loss_weight
    }

    /// A field of floats, if the trajectories had it or it was set since.
    ///
    /// # Panics
    ///
    /// If `field` holds something else: see [`Rows::column`].
    #[track_caller]
    pub fn field(&self, field: Field) -> Option<&[f32]> {
        self.fields.get(field)
    }

    /// A field of any kind, `[B,T,N]` with its `N` values a token.
    pub fn column(&self, field: Field) -> Option<&Column> {
        self.fields.column(field)
    }

    /// The fields that are present, in the order of the table.
    pub fn fields(&self) -> impl Iterator<Item = (Field, &Column)> {
        self.fields.iter()
    }

    /// Sets a field of floats for every position, `[B,T]`: log-probs that were computed on these very rows, say.
    ///
    /// # Panics
    ///
    /// If `field` holds something else.
    #[track_caller]
    pub fn set_field(&mut self, field: Field, values: Vec<f32>) -> Result<(), BatchError> {
        self.check_shape(values.len())?;
        self.fields.set(field, values);
        Ok(())
    }

    /// Where each trajectory lies, in the order of the trajectories.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Positions that hold a token.
    pub fn token_count(&self) -> usize {
        self.places.iter().map(|place| place.len).sum()
    }

    /// Cuts `[B,T]` values back into one list a trajectory, in the order of the trajectories.
    ///
    /// # Errors
    ///
    /// [`BatchError::RowValues`] if there are not `B·T` values.
    pub fn unpack<T: Copy>(&self, values: &[T]) -> Result<Vec<Vec<T>>, BatchError> {
        self.check_shape(values.len())?;
        Ok(self
            .places
            .iter()
            .map(|place| values[place.range(self.width)].to_vec())
            .collect())
    }

    /// Cuts the `[B,T]` values of one micro-batch back, each trajectory's to `out` at its index in the whole batch.
    ///
    /// # Errors
    ///
    /// [`BatchError::RowValues`] if there are not `B·T` values, [`BatchError::NoRoom`] if `out` is too short. Nothing is
    /// written then.
    pub fn unpack_into<T: Copy>(&self, values: &[T], out: &mut [Vec<T>]) -> Result<(), BatchError> {
        self.check_shape(values.len())?;
        if let Some(last) = self
            .places
            .last()
            .filter(|place| place.trajectory >= out.len())
        {
            return Err(BatchError::NoRoom {
                trajectory: last.trajectory,
                room: out.len(),
            });
        }
        for place in &self.places {
            out[place.trajectory] = values[place.range(self.width)].to_vec();
        }
        Ok(())
    }

    /// Cuts the rows, in order, into micro-batches of `rows_per_micro_batch`, the last filled with empty rows, so that all
    /// have one shape. Their weights are those of the whole batch: the gradients of the pieces add up.
    ///
    /// # Errors
    ///
    /// [`BatchError::Zero`] and [`BatchError::TooLarge`].
    pub fn micro_batches(&self, rows_per_micro_batch: usize) -> Result<Vec<Rows>, Refused> {
        let height = rows_per_micro_batch;
        if height == 0 {
            return Err(BatchError::Zero {
                option: PackingOption::RowsPerMicroBatch,
            }
            .into());
        }
        if height
            .checked_mul(self.width)
            .is_none_or(|positions| positions as u64 > 1 << 32)
        {
            return Err(BatchError::TooLarge {
                rows: height,
                budget: self.width,
            }
            .into());
        }
        let mut pieces: Vec<Rows> = (0..self.row_count)
            .step_by(height)
            .map(|first| self.piece(first, height))
            .collect();
        for place in &self.places {
            pieces[place.row / height].places.push(Place {
                row: place.row % height,
                ..*place
            });
        }
        Ok(pieces)
    }

    /// `height` rows from `first` on, without their places.
    fn piece(&self, first: usize, height: usize) -> Rows {
        let last = self.row_count.min(first + height);
        let range = first * self.width..last * self.width;
        let size = height * self.width;
        let mut fields = self.fields.padding(size);
        for (to, (_, from)) in fields.iter_mut().zip(self.fields.iter()) {
            to.copy_from(0, from, range.clone());
        }
        Rows {
            row_count: height,
            width: self.width,
            token_ids: cut(&self.token_ids, range.clone(), size),
            segment_ids: cut(&self.segment_ids, range.clone(), size),
            positions: cut(&self.positions, range.clone(), size),
            loss_weight: cut(&self.loss_weight, range, size),
            fields,
            places: Vec::new(),
        }
    }

    /// The pairs of a query and a key that attention looks at in each row: `n (n + 1) / 2` for a segment of `n` tokens.
    pub fn attention_pairs(&self) -> Vec<u64> {
        let mut pairs = vec![0; self.row_count];
        for place in &self.places {
            pairs[place.row] += attention_pairs(place.len);
        }
        pairs
    }

    /// Everything per token, each row's chunk `from` moved to `to` for every pair that `moves` gives for it.
    pub(crate) fn moved<M>(&self, moves: impl Fn(usize) -> M) -> Rows
    where
        M: Iterator<Item = (Range<usize>, Range<usize>)>,
    {
        let mut rows = self.empty_like(self.row_count);
        for row in 0..self.row_count {
            let base = row * self.width;
            for (to, from) in moves(row) {
                let (to, from) = (
                    base + to.start..base + to.end,
                    base + from.start..base + from.end,
                );
                rows.copy_tokens(to, self, from);
            }
        }
        rows.places.clone_from(&self.places);
        rows
    }

    fn copy_tokens(&mut self, to: Range<usize>, source: &Rows, from: Range<usize>) {
        for (to_list, from_list) in [
            (&mut self.token_ids, &source.token_ids),
            (&mut self.segment_ids, &source.segment_ids),
            (&mut self.positions, &source.positions),
        ] {
            to_list[to.clone()].copy_from_slice(&from_list[from.clone()]);
        }
        self.loss_weight[to.clone()].copy_from_slice(&source.loss_weight[from.clone()]);
        for (to_column, (_, from_column)) in self.fields.iter_mut().zip(source.fields.iter()) {
            to_column.copy_from(to.start, from_column, from.clone());
        }
    }

    /// The segment ids of one row.
    pub fn row_segment_ids(&self, row: usize) -> &[i32] {
        &self.segment_ids[row * self.width..][..self.width]
    }

    pub(crate) fn check_shape(&self, values: usize) -> Result<(), BatchError> {
        let (rows, width) = (self.row_count, self.width);
        if values == rows * width {
            Ok(())
        } else {
            Err(BatchError::RowValues {
                values,
                rows,
                width,
            })
        }
    }
}

impl Place {
    fn range(&self, width: usize) -> Range<usize> {
        let start = self.row * width + self.start;
        start..start + self.len
    }
}

/// The pairs of a query and a key in one segment.
pub(crate) fn attention_pairs(tokens: usize) -> u64 {
    let n = tokens as u64;
    n * (n + 1) / 2
}

/// `values[range]`, filled with zeros up to `size`.
fn cut<T: Copy + Default>(values: &[T], range: Range<usize>, size: usize) -> Vec<T> {
    let mut piece = Vec::with_capacity(size);
    piece.extend_from_slice(&values[range]);
    piece.resize(size, T::default());
    piece
}
