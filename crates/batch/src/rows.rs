//! Rows of tokens: a struct of arrays `[B,T]` in which everything per token moves together, and the way back.
//!
//! Shapes: `B` rows, `T` tokens a row; every array is row-major `[B,T]`. Not here: how trajectories were given their places.

use crate::error::{BatchError, Refused};
use crate::field::{Field, Fields};
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

/// Packed rows. Padding has segment id 0, and 0 everywhere else.
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
    /// Rows of padding only, with the given fields: a batch that contributes nothing, of the shape that is wanted.
    pub fn empty(row_count: usize, width: usize, fields: &[Field]) -> Rows {
        let size = row_count * width;
        let mut columns = Fields::default();
        for &field in fields {
            columns.set(field, vec![0.0; size]);
        }
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
        let present: Vec<Field> = batch[0].fields.iter().map(|(field, _)| field).collect();
        let mut rows = Rows::empty(row_count, width, &present);
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
                to[range.clone()].copy_from_slice(from);
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

    /// A per-token field, if the trajectories had it or it was set since.
    pub fn field(&self, field: Field) -> Option<&[f32]> {
        self.fields.get(field)
    }

    /// The fields that are present, in the order of the table.
    pub fn fields(&self) -> impl Iterator<Item = (Field, &[f32])> {
        self.fields.iter()
    }

    /// Sets a field for every position, `[B,T]`: log-probs that were computed on these very rows, say.
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
                option: "rows_per_micro_batch",
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
        let mut fields = Fields::default();
        for (field, values) in self.fields.iter() {
            fields.set(field, cut(values, range.clone(), height * self.width));
        }
        let size = height * self.width;
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

    fn check_shape(&self, values: usize) -> Result<(), BatchError> {
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
    fn range(&self, width: usize) -> std::ops::Range<usize> {
        let start = self.row * width + self.start;
        start..start + self.len
    }
}

/// `values[range]`, filled with zeros up to `size`.
fn cut<T: Copy + Default>(values: &[T], range: std::ops::Range<usize>, size: usize) -> Vec<T> {
    let mut piece = Vec::with_capacity(size);
    piece.extend_from_slice(&values[range]);
    piece.resize(size, T::default());
    piece
}
