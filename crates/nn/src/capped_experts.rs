//! A mixture of experts whose buffers have a fixed size: what finds no place is dropped, and counted.
//!
//! Every row of a micro-batch fills buffers of its own, so what is dropped depends on neither the other rows nor the devices
//! that the rows are split over. Devices that share a row have a buffer each for their tokens of it.
//!
//! Letters besides the crate's: `M` tokens of `B` rows, `X` experts, `J` experts of each token, `C` places in the buffer of an
//! expert for a row.

use ferrotune_graph::{DType, Tensor};

use crate::experts::{Routes, answers};
use crate::params::Params;

/// The size of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// `B`: rows, one behind the other.
    pub rows: usize,
    /// `C`: tokens of a row that an expert takes at most.
    pub places: usize,
}

impl Capacity {
    /// `⌈factor · T · J / X⌉` places for `[B,T]` rows, padding included: at least one, for a factor above 0, and no more than a row
    /// has tokens. A factor of 1 is enough where tokens are spread evenly.
    ///
    /// # Source
    /// Fedus, Zoph and Shazeer, "Switch transformers" (2021), eq. 3, with the tokens of a row.
    pub fn of_rows(factor: f64, [rows, tokens]: [usize; 2], top_k: usize, experts: usize) -> Self {
        let even = (tokens * top_k) as f64 / experts as f64;
        let places = (factor * even).ceil() as usize;
        Self {
            rows,
            places: places.min(tokens),
        }
    }
}

/// As [`mix_experts`](crate::mix_experts), with experts that take [`Capacity::places`] tokens of each row: one product of fixed
/// shape for all of them, as much work as without dropping where the factor is 1.
///
/// A row's places go to its tokens that count in their order, so later ones are dropped first. The answer of an expert that has
/// dropped a token is zero: the token keeps the others, with the weights that they have, and no gradient passes there.
///
/// # Shapes
/// `x [M,D]`, routes of `M` tokens, `counted` boolean `[M]`; parameters as there → `[M,D]`, and how many of the experts chosen by
/// tokens that count have dropped them, an s32 scalar.
#[track_caller]
pub fn mix_experts_capped(
    x_md: &Tensor,
    routes: &Routes,
    counted: &Tensor,
    capacity: Capacity,
    params: &Params,
) -> (Tensor, Tensor) {
    let (g, dtype) = (x_md.graph(), x_md.dtype());
    let buffers = Buffers::fill(routes, counted, capacity);
    let filled = buffers.of_slots(&routes.copies(x_md));
    let answers = answers(&filled, params, |rows, matrices| {
        g.einsum("xcd,xdf->xcf", rows, &matrices.convert(dtype), dtype)
    });
    let mixed = routes.weighted(&buffers.to_slots(&answers));
    (mixed, buffers.dropped)
}

/// Which of the `M·J` slots, one for each expert of a token, lies where in the buffers `[X,B·C]`.
///
/// Slots and the places that stay empty are put into one order, those in buffers first, so that both ways are permutations:
/// neither they nor their derivatives scatter.
struct Buffers {
    experts: usize,
    /// Places of all buffers.
    places: usize,
    slots: usize,
    /// The slot at each place, then those that are dropped; numbers from `M·J` on are empty places.
    order: Tensor,
    /// Where each slot is.
    back: Tensor,
    /// Slots of tokens that count without a place, s32 scalar.
    dropped: Tensor,
}

impl Buffers {
    fn fill(routes: &Routes, counted: &Tensor, capacity: Capacity) -> Self {
        let g = counted.graph();
        let (m, j) = (routes.experts.dim(0), routes.experts.dim(1));
        let (b, c, experts) = (capacity.rows, capacity.places, routes.probabilities.dim(1));
        let (slots, buffers) = (m * j, experts * b);
        let places = buffers * c;
        let count = |n: usize| g.iota(DType::S32, &[n], 0);

        // The buffer of each slot; those of tokens that do not count come behind the last one.
        let row = g.iota(DType::S32, &[b, m / b, j], 0).reshape(&[m, j]);
        let buffer = &routes.experts * b as f64 + row;
        let nowhere = buffer.scalar_like(buffers as f64);
        let buffer = counted
            .expand(1)
            .select(&buffer, &nowhere)
            .reshape(&[slots]);
        let hits = routes.hits(counted).convert(DType::S32);
        let load = hits.reshape(&[b, slots / b, experts]).sum(&[1]);
        let load = load.transpose(&[1, 0]).reshape(&[buffers]);
        let held = load.minimum(&load.scalar_like(c as f64));

        // Sorted by buffer, a slot's number in it is how far it stands behind the first.
        let (buffer, sorted) = buffer.sort_by_key(&[&count(slots)], 0, false);
        let first = (load.cumulative_sum(0) - &load).pad(0, 0, 1, 0.0);
        let number = count(slots) - first.take(&buffer);
        let placed = buffer
            .lt(&buffer.scalar_like(buffers as f64))
            .and(&number.lt(&number.scalar_like(c as f64)));
        let behind = buffer.scalar_like(places as f64);
        let place = placed.select(&(&buffer * c as f64 + number), &behind);

        let number = g.iota(DType::S32, &[buffers, c], 1);
        let empty = number.ge(&held.expand(1)).reshape(&[places]);
        let keys = [&place, &empty.select(&count(places), &behind)];
        let numbers = [&sorted[0], &(count(places) + slots as f64)];
        let keys = Tensor::concatenate(&keys, 0);
        let (_, mut order) = keys.sort_by_key(&[&Tensor::concatenate(&numbers, 0)], 0, false);
        let (_, mut back) = order[0].sort_by_key(&[&count(slots + places)], 0, false);
        Self {
            experts,
            places,
            slots,
            order: order.remove(0),
            back: back.remove(0),
            dropped: (load - held).sum(&[0]),
        }
    }

    /// `[M·J,D]` → `[X,B·C,D]`, with zeros at empty places.
    fn of_slots(&self, values: &Tensor) -> Tensor {
        let d = values.dim(1);
        let with_empty = values.pad(0, 0, self.places, 0.0);
        let filled = with_empty.permute_rows(&self.order, &self.back);
        filled
            .slice(0, 0, self.places)
            .reshape(&[self.experts, self.places / self.experts, d])
    }

    /// `[X,B·C,D]` → `[M·J,D]`, with zeros for what was dropped.
    fn to_slots(&self, values: &Tensor) -> Tensor {
        let d = values.dim(2);
        let flat = values.reshape(&[self.places, d]);
        let with_dropped = flat.pad(0, 0, self.slots, 0.0);
        let back = with_dropped.permute_rows(&self.back, &self.order);
        back.slice(0, 0, self.slots)
    }
}
