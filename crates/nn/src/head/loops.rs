//! Loops over chunks of tokens and over tiles of the vocabulary.

use ferrotune_graph::{DType, Graph, Policy, Tensor};

use super::TokenScores;

/// Tokens cut into chunks of equal length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chunks {
    tokens: usize,
    pub(super) count: usize,
    pub(super) length: usize,
}

impl Chunks {
    /// As few chunks of at most `longest` tokens as there can be, made equal, so that little is padded.
    #[track_caller]
    pub(super) fn of(tokens: usize, longest: usize) -> Self {
        assert!(longest > 0, "a chunk of no tokens");
        let count = tokens.div_ceil(longest).max(1);
        Self {
            tokens,
            count,
            length: tokens.div_ceil(count),
        }
    }

    /// `[N,…]` → `[chunks,n,…]`, padded with zeros.
    pub(super) fn cut(&self, tensors: &[&Tensor]) -> Vec<Tensor> {
        let padding = self.count * self.length - self.tokens;
        let cut = |t: &&Tensor| {
            let dims = [&[self.count, self.length], &t.dims()[1..]].concat();
            t.pad(0, 0, padding, 0.0).reshape(&dims)
        };
        tensors.iter().map(cut).collect()
    }

    /// `[chunks,n,…]` → `[N,…]`.
    pub(super) fn join(&self, t: &Tensor) -> Tensor {
        let dims = [&[self.count * self.length], &t.dims()[2..]].concat();
        t.reshape(&dims).slice(0, 0, self.tokens)
    }

    /// Log-prob, entropy and hit, joined.
    pub(super) fn scores(&self, found: &[Tensor]) -> TokenScores {
        TokenScores {
            logprob: self.join(&found[0]),
            entropy: self.join(&found[1]),
            hit: self.join(&found[2]),
        }
    }

    /// Runs `body(chunk, carry, slices) → (carry, results)` for every chunk and stacks the results. One chunk needs no loop.
    pub(super) fn walk(
        &self,
        g: &Graph,
        carry: Vec<Tensor>,
        stacked: Vec<Tensor>,
        body: impl FnOnce(&Tensor, &[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
    ) -> (Vec<Tensor>, Vec<Tensor>) {
        if self.count == 1 {
            return alone(g, &carry, &stacked, body);
        }
        g.scan(Policy::recompute(), carry, stacked, self.count, body)
    }

    /// The same from the last chunk to the first, in which order an automatic derivative adds gradients up.
    pub(super) fn walk_back(
        &self,
        g: &Graph,
        carry: Vec<Tensor>,
        stacked: Vec<Tensor>,
        body: impl FnOnce(&Tensor, &[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
    ) -> (Vec<Tensor>, Vec<Tensor>) {
        if self.count == 1 {
            return alone(g, &carry, &stacked, body);
        }
        g.scan_reverse(Policy::recompute(), carry, stacked, self.count, body)
    }
}

fn alone(
    g: &Graph,
    carry: &[Tensor],
    stacked: &[Tensor],
    body: impl FnOnce(&Tensor, &[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
) -> (Vec<Tensor>, Vec<Tensor>) {
    let slices: Vec<Tensor> = stacked.iter().map(|t| t.reshape(&t.dims()[1..])).collect();
    let (carry, found) = body(&g.scalar(0.0, DType::S32), carry, &slices);
    (carry, found.iter().map(|t| t.expand(0)).collect())
}

/// The vocabulary, or a device's part of it, cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tiles {
    /// Tiles of full width.
    full: usize,
    pub(super) width: usize,
    /// Width of the last, narrower one; 0 if there is none.
    rest: usize,
}

impl Tiles {
    /// As few tiles of at most `widest` entries as there can be, made equal up to multiples of 128, the width of a vector
    /// of a TPU.
    #[track_caller]
    pub(super) fn of(entries: usize, widest: usize) -> Self {
        assert!(widest > 0, "a tile without entries");
        let count = entries.div_ceil(widest).max(1);
        let even = entries.div_ceil(count);
        let width = even.next_multiple_of(128);
        let width = if width > widest.min(entries) {
            even
        } else {
            width
        };
        Self {
            full: entries / width.max(1),
            width,
            rest: entries % width.max(1),
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.full + usize::from(self.rest > 0)
    }

    /// Runs `body(place, carry) → carry` for every tile: traced once for those of full width and once for the rest, so that
    /// the weights need no padding, which would be a copy of them.
    pub(super) fn walk(
        &self,
        g: &Graph,
        carry: Vec<Tensor>,
        body: impl Fn(&Place, &[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let place = |index: Tensor, width: usize| Place {
            start: &index * self.width as f64,
            index,
            width,
        };
        let at = |tile: usize| g.scalar(tile as f64, DType::S32);
        let carry = match self.full {
            0 => carry,
            1 => body(&place(at(0), self.width), &carry),
            _ => {
                let step = |index: &Tensor, carry: &[Tensor], _: &[Tensor]| {
                    (body(&place(index.clone(), self.width), carry), vec![])
                };
                g.scan(Policy::recompute(), carry, vec![], self.full, step)
                    .0
            }
        };
        if self.rest == 0 {
            return carry;
        }
        body(&place(at(self.full), self.rest), &carry)
    }
}

/// Where a tile lies.
pub(super) struct Place {
    /// Its number, s32.
    pub(super) index: Tensor,
    /// Its first entry, s32.
    pub(super) start: Tensor,
    pub(super) width: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_few_equal_and_hold_every_token() {
        for (tokens, longest, count, length) in [
            (10, 4, 3, 4),
            (9, 4, 3, 3),
            (8, 4, 2, 4),
            (3, 100, 1, 3),
            (7, 1, 7, 1),
        ] {
            let chunks = Chunks::of(tokens, longest);
            assert_eq!(
                (chunks.count, chunks.length),
                (count, length),
                "{tokens} by {longest}"
            );
        }
    }

    #[test]
    fn tiles_hold_every_entry_once_and_none_is_wider_than_asked() {
        for entries in [1, 5, 127, 128, 1000, 3880, 151_936, 248_320] {
            for widest in [1, 3, 128, 200, 4096, usize::MAX] {
                let tiles = Tiles::of(entries, widest);
                assert_eq!(tiles.full * tiles.width + tiles.rest, entries);
                assert!(
                    tiles.width <= widest && tiles.rest < tiles.width,
                    "{tiles:?}"
                );
            }
        }
        assert_eq!(Tiles::of(248_320, 2560).count(), 97);
    }
}
