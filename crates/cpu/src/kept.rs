//! Memory that a thread uses again and again: fresh pages cost more than what is written to them.

use std::cell::Cell;
use std::thread::LocalKey;

/// Elements of one thread.
pub(crate) struct Kept<T>(Cell<Vec<T>>);

impl<T> Kept<T> {
    pub(crate) const fn new() -> Self {
        Self(Cell::new(Vec::new()))
    }
}

/// What a kept array is filled up with.
pub(crate) trait Blank: Copy + 'static {
    const BLANK: Self;
}

impl Blank for f32 {
    const BLANK: Self = 0.0;
}

/// Loans of kept memory.
pub(crate) trait WithPart<T> {
    /// Lends so many elements that hold anything. A second loan inside of the first gets memory of its own.
    fn with_part<R>(&'static self, count: usize, body: impl FnOnce(&mut [T]) -> R) -> R;
}

impl<T: Blank> WithPart<T> for LocalKey<Kept<T>> {
    fn with_part<R>(&'static self, count: usize, body: impl FnOnce(&mut [T]) -> R) -> R {
        let mut kept = self.with(|kept| kept.0.take());
        if kept.len() < count {
            kept.resize(count, T::BLANK);
        }
        let result = body(&mut kept[..count]);
        self.with(|place| place.0.set(kept));
        result
    }
}
