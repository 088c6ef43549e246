//! Matrices that lie anywhere in a slice.

/// A view of a matrix: element (i, j) is `data[i·strides[0] + j·strides[1]]`.
#[derive(Debug)]
pub struct Matrix<'a, T> {
    data: &'a [T],
    dims: [usize; 2],
    strides: [usize; 2],
}

impl<T> Clone for Matrix<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Matrix<'_, T> {}

impl<'a, T> Matrix<'a, T> {
    /// `dims` rows and columns, so many elements apart.
    ///
    /// # Panics
    /// When an element would lie outside of `data`.
    #[track_caller]
    #[must_use]
    pub fn new(data: &'a [T], dims: [usize; 2], strides: [usize; 2]) -> Self {
        if dims[0] > 0 && dims[1] > 0 {
            let last = (dims[0] - 1)
                .checked_mul(strides[0])
                .zip((dims[1] - 1).checked_mul(strides[1]))
                .and_then(|(row, column)| row.checked_add(column));
            assert!(
                last.is_some_and(|last| last < data.len()),
                "a matrix of {dims:?} with strides {strides:?} does not fit into {} elements",
                data.len()
            );
        }
        Self {
            data,
            dims,
            strides,
        }
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.dims[0]
    }

    /// Columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.dims[1]
    }

    pub(crate) fn strides(&self) -> [usize; 2] {
        self.strides
    }

    /// The same elements with rows as columns.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            data: self.data,
            dims: [self.dims[1], self.dims[0]],
            strides: [self.strides[1], self.strides[0]],
        }
    }

    /// `count` rows from `first` on.
    ///
    /// # Panics
    /// When there are not as many.
    #[track_caller]
    #[must_use]
    pub fn rows_of(self, first: usize, count: usize) -> Self {
        assert!(
            first + count <= self.dims[0],
            "rows {first}+{count} of {}",
            self.dims[0]
        );
        let data = if count == 0 || self.dims[1] == 0 {
            &[]
        } else {
            &self.data[first * self.strides[0]..]
        };
        Self {
            data,
            dims: [count, self.dims[1]],
            strides: self.strides,
        }
    }

    /// `count` columns from `first` on.
    ///
    /// # Panics
    /// When there are not as many.
    #[track_caller]
    #[must_use]
    pub fn columns_of(self, first: usize, count: usize) -> Self {
        self.transposed().rows_of(first, count).transposed()
    }

    /// The elements from the first one on.
    pub(crate) fn data(&self) -> &'a [T] {
        self.data
    }
}

impl<'a, T> Matrix<'a, T> {
    /// Row `i` of a matrix whose columns lie side by side.
    pub(crate) fn row(&self, i: usize) -> &'a [T] {
        debug_assert!(self.strides[1] == 1 || self.dims[1] <= 1);
        &self.data[i * self.strides[0]..][..self.dims[1]]
    }
}
