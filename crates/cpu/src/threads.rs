//! Who does the work.

use std::ops::Range;
use std::sync::Mutex;

use crate::team;

/// The threads of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread only, for callers that divide the work themselves.
    One,
    /// As many as the process may run at once.
    All,
}

impl Threads {
    /// How many there are.
    #[must_use]
    pub fn count(self) -> usize {
        match self {
            Threads::One => 1,
            Threads::All => team::size(),
        }
    }

    /// Runs `body` on ranges that cover `0..count`, one a thread, none (but the last) shorter than `least`.
    ///
    /// # Panics
    /// When `body` does.
    pub fn for_each_range(self, count: usize, least: usize, body: impl Fn(Range<usize>) + Sync) {
        let threads = self.count().min(count / least.max(1)).max(1);
        if threads == 1 {
            body(0..count);
            return;
        }
        let start = |i: usize| i * count / threads;
        team::run(threads, &|i| body(start(i)..start(i + 1)));
    }

    /// Runs `body` on chunks of a slice and their numbers.
    ///
    /// # Panics
    /// When `body` does, and for chunks of no elements.
    pub fn for_each_chunk<T: Send>(
        self,
        slice: &mut [T],
        chunk: usize,
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let chunks = slice.chunks_mut(chunk).enumerate();
        if self == Threads::One {
            return chunks.for_each(|(i, chunk)| body(i, chunk));
        }
        let chunks: Vec<_> = chunks.map(|(i, chunk)| (i, Mutex::new(chunk))).collect();
        team::run(chunks.len(), &|number| {
            let (i, chunk) = &chunks[number];
            // Each is locked by the one task that it belongs to.
            if let Ok(mut chunk) = chunk.lock() {
                body(*i, &mut chunk);
            }
        });
    }

    /// Runs `body` on one share of whole units for each thread, and the number of its first unit.
    ///
    /// # Panics
    /// When `body` does.
    pub fn for_each_share<T: Send>(
        self,
        slice: &mut [T],
        unit: usize,
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let unit = unit.max(1);
        let share = (slice.len() / unit).div_ceil(self.count()).max(1);
        self.for_each_chunk(slice, share * unit, |chunk, part| body(chunk * share, part));
    }
}
