//! First-fit decreasing: which row each segment goes to, and where in it.
//!
//! Longest first, ties in the order given; each goes to the first row with room. A tree of the free room answers "the first
//! row with at least n free" in log time. Not here: alignment of whole rows, the arrays.

/// Where one segment lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    pub(crate) row: usize,
    /// Segments before it in the row.
    pub(crate) order: usize,
    /// Index of its first token in the row.
    pub(crate) start: usize,
}

/// A slot for each length, in the order given, and the number of rows.
///
/// Every length is from 1 to `budget`; `align` divides `budget`; no row gets more than `max_segments`.
pub(crate) fn first_fit_decreasing(
    lengths: &[usize],
    budget: usize,
    align: usize,
    max_segments: usize,
) -> (Vec<Slot>, usize) {
    let mut longest_first: Vec<usize> = (0..lengths.len()).collect();
    longest_first.sort_by_key(|&i| std::cmp::Reverse(lengths[i]));

    let mut room = Room::new(lengths.len(), budget);
    let mut segments = vec![0; lengths.len()];
    let mut slots = vec![
        Slot {
            row: 0,
            order: 0,
            start: 0
        };
        lengths.len()
    ];
    let mut rows = 0;
    for i in longest_first {
        let row = room.first_with(lengths[i]);
        let start = budget - room.free(row);
        slots[i] = Slot {
            row,
            order: segments[row],
            start,
        };
        segments[row] += 1;
        rows = rows.max(row + 1);
        let next = (start + lengths[i]).next_multiple_of(align);
        room.set(
            row,
            if segments[row] == max_segments {
                0
            } else {
                budget - next
            },
        );
    }
    (slots, rows)
}

/// A complete binary tree over the rows' free room; each inner node holds the larger of its children. Root at 1.
struct Room {
    tree: Vec<usize>,
    leaves: usize,
}

impl Room {
    fn new(rows: usize, budget: usize) -> Room {
        let leaves = rows.next_power_of_two();
        Room {
            tree: vec![budget; 2 * leaves],
            leaves,
        }
    }

    fn free(&self, row: usize) -> usize {
        self.tree[self.leaves + row]
    }

    /// There is always one: as many rows as segments start out empty.
    fn first_with(&self, length: usize) -> usize {
        let mut node = 1;
        while node < self.leaves {
            node = if self.tree[2 * node] >= length {
                2 * node
            } else {
                2 * node + 1
            };
        }
        node - self.leaves
    }

    fn set(&mut self, row: usize, free: usize) {
        let mut node = self.leaves + row;
        self.tree[node] = free;
        while node > 1 {
            node /= 2;
            self.tree[node] = self.tree[2 * node].max(self.tree[2 * node + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(row: usize, order: usize, start: usize) -> Slot {
        Slot { row, order, start }
    }

    #[test]
    fn worked_examples() {
        let (slots, rows) = first_fit_decreasing(&[5, 3, 7], 10, 1, usize::MAX);
        assert_eq!(
            (slots, rows),
            (vec![slot(1, 0, 0), slot(0, 1, 7), slot(0, 0, 0)], 2)
        );
        let (slots, rows) = first_fit_decreasing(&[6, 5, 3], 10, 1, usize::MAX);
        assert_eq!(
            (slots, rows),
            (vec![slot(0, 0, 0), slot(1, 0, 0), slot(0, 1, 6)], 2)
        );
    }

    #[test]
    fn ties_keep_their_order() {
        let (slots, rows) = first_fit_decreasing(&[2, 2, 2], 4, 1, usize::MAX);
        assert_eq!(
            (slots, rows),
            (vec![slot(0, 0, 0), slot(0, 1, 2), slot(1, 0, 0)], 2)
        );
    }

    #[test]
    fn alignment_rounds_starts_up() {
        let (slots, rows) = first_fit_decreasing(&[5, 3, 1], 12, 4, usize::MAX);
        assert_eq!(
            (slots, rows),
            (vec![slot(0, 0, 0), slot(0, 1, 8), slot(1, 0, 0)], 2)
        );
    }

    #[test]
    fn the_cap_closes_a_row() {
        let (slots, rows) = first_fit_decreasing(&[1, 1, 1], 8, 1, 2);
        assert_eq!(
            (slots, rows),
            (vec![slot(0, 0, 0), slot(0, 1, 1), slot(1, 0, 0)], 2)
        );
    }
}
