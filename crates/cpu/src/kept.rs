//! Memory that a thread uses again and again: fresh pages cost more than what is written to them, and where several threads
//! run, each costs the others a pause.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

use half::{bf16, f16};

use crate::tiles::Tile;

/// Arrays that are not lent at the moment; the one that came back last is lent first.
type Pool<T> = RefCell<Vec<Vec<T>>>;

/// An element of lent arrays.
pub trait Lent: Copy + 'static {
    /// What a new array is filled with.
    const BLANK: Self;

    /// The thread's arrays of this element.
    fn pool() -> &'static LocalKey<Pool<Self>>;
}

macro_rules! lent {
    ($($element:ty = $blank:expr),*) => {$(
        impl Lent for $element {
            const BLANK: Self = $blank;

            fn pool() -> &'static LocalKey<Pool<Self>> {
                thread_local! {
                    static POOL: Pool<$element> = const { RefCell::new(Vec::new()) };
                }
                &POOL
            }
        }
    )*};
}

lent!(
    f32 = 0.0,
    bf16 = bf16::ZERO,
    f16 = f16::ZERO,
    Tile = Tile::ZERO
);

/// An array that goes back to the pool of the thread that drops it.
pub struct Loan<T: Lent> {
    array: Vec<T>,
    count: usize,
}

/// Lends so many elements of the thread's memory, which hold anything.
#[must_use]
pub fn lend<T: Lent>(count: usize) -> Loan<T> {
    let mut array = T::pool().with_borrow_mut(Vec::pop).unwrap_or_default();
    if array.len() < count {
        array.resize(count, T::BLANK);
    }
    Loan { array, count }
}

impl<T: Lent> Default for Loan<T> {
    fn default() -> Self {
        Self {
            array: Vec::new(),
            count: 0,
        }
    }
}

impl<T: Lent> Deref for Loan<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.array[..self.count]
    }
}

impl<T: Lent> DerefMut for Loan<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.array[..self.count]
    }
}

impl<T: Lent> Drop for Loan<T> {
    fn drop(&mut self) {
        let array = std::mem::take(&mut self.array);
        if array.is_empty() {
            return;
        }
        T::pool().with_borrow_mut(|pool| pool.push(array));
    }
}
