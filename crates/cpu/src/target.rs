//! A result that several threads fill.

use std::marker::PhantomData;

/// A row-major matrix that is written in parts.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a, O> {
    first: *mut O,
    rows: usize,
    columns: usize,
    borrow: PhantomData<&'a mut [O]>,
}

// SAFETY: `part` and `block` are the only accesses, and their callers promise that no two threads have the same elements.
unsafe impl<O: Send> Send for Target<'_, O> {}
// SAFETY: as above.
unsafe impl<O: Send> Sync for Target<'_, O> {}

impl<'a, O> Target<'a, O> {
    /// # Panics
    /// When the slice has another size.
    pub(crate) fn new(out: &'a mut [O], rows: usize, columns: usize) -> Self {
        assert_eq!(out.len(), rows * columns, "a result of {rows} × {columns}");
        Self {
            first: out.as_mut_ptr(),
            rows,
            columns,
            borrow: PhantomData,
        }
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Where a block of all rows and `count` columns begins; its rows are [`Self::columns`] apart.
    pub(crate) fn block(&self, column: usize, count: usize) -> *mut O {
        assert!(
            column + count <= self.columns,
            "a block outside of the result"
        );
        self.first.wrapping_add(column)
    }

    /// `count` elements of a row, from `column` on.
    ///
    /// # Safety
    /// Nobody else may hold any of these elements.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller promises what the borrow checker cannot see"
    )]
    pub(crate) unsafe fn part(&self, row: usize, column: usize, count: usize) -> &mut [O] {
        assert!(
            row < self.rows && column + count <= self.columns,
            "a part outside of the result"
        );
        // SAFETY: inside of the slice, as just checked; alone, as the caller promises.
        unsafe {
            std::slice::from_raw_parts_mut(self.first.add(row * self.columns + column), count)
        }
    }
}
