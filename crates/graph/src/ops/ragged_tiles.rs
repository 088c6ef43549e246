//! Products of groups of rows as a loop over tiles of rows, for devices that have no operation for it.

use ferrotune_pjrt::DType;

use crate::ops::einsum_text::summed_in;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Rows of a tile at most: a product of so many rows runs at full speed.
const LARGEST: usize = 256;
/// Rows of a tile at least, unless there are fewer.
const SMALLEST: usize = 16;

/// Where the tiles lie; all s32.
pub(crate) struct Tiles {
    rows: usize,
    tile: usize,
    /// First row of each group `[G]`.
    starts: Tensor,
    /// Row after the last of each group `[G]`.
    ends: Tensor,
    /// Number of tiles of each group `[G]`.
    counts: Tensor,
    /// Number of tiles of each group and those before `[G]`.
    through: Tensor,
}

/// One step of the loop.
struct Tile {
    group: Tensor,
    /// First row read; the tile may begin further down.
    from: Tensor,
    /// Rows of the tile that belong to it, boolean `[tile]`.
    inside: Tensor,
}

impl Tiles {
    /// Tiles for `rows` rows in groups of the given sizes `[G]`.
    ///
    /// Half of the mean group is the size: a quarter more than is needed is then computed, and on the CPU plugin larger and
    /// smaller tiles were both slower (4096 x 1024 x 768 in 32 groups: 30 ms, where one bf16 product takes 28).
    pub(crate) fn new(sizes: &Tensor, rows: usize) -> Self {
        let groups = sizes.dim(0);
        let half = rows / (2 * groups.max(1));
        let tile = half
            .max(1)
            .next_power_of_two()
            .clamp(SMALLEST, LARGEST)
            .min(rows.max(1));
        // Cut, so that wrong sizes do not make the loop longer than the rows are.
        let ends = sizes
            .cumulative_sum(0)
            .minimum(&sizes.scalar_like(rows as f64));
        let starts = ends.pad(0, 1, 0, 0.0).slice(0, 0, groups);
        let counts = (&ends - &starts + (tile - 1) as f64) / tile as f64;
        let through = counts.cumulative_sum(0);
        Self {
            rows,
            tile,
            starts,
            ends,
            counts,
            through,
        }
    }

    fn tile(&self, step: &Tensor) -> Tile {
        let done = self.through.le(step).convert(DType::S32);
        let group = done.sum(&[0]);
        let of = |t: &Tensor| t.dynamic_slice(&[&group], &[1]).reshape(&[]);
        let first_step = of(&self.through) - of(&self.counts);
        let start = of(&self.starts) + (step - first_step) * self.tile as f64;
        let from = start.minimum(&start.scalar_like((self.rows - self.tile) as f64));
        let row = start.graph().iota(DType::S32, &[self.tile], 0) + &from;
        let inside = row.ge(&start).and(&row.lt(&of(&self.ends)));
        Tile {
            group,
            from,
            inside,
        }
    }

    /// Runs `body` over all tiles, from zeros of `like`.
    fn walk(&self, like: &TensorType, body: impl FnOnce(&Tile, &Tensor) -> Tensor) -> Tensor {
        let g = self.through.graph().clone();
        let zeros = g.full(0.0, like.dtype, &like.dims);
        let groups = self.through.dim(0);
        if groups * self.rows * like.elements() == 0 {
            return zeros;
        }
        let total = self.through.slice(0, groups - 1, groups).reshape(&[]);
        let mut state = g.while_loop(
            vec![g.scalar(0.0, DType::S32), zeros],
            |state| state[0].lt(&total),
            |state| {
                let next = body(&self.tile(&state[0]), &state[1]);
                vec![&state[0] + 1.0, next]
            },
        );
        state.remove(1)
    }

    fn read(&self, rows: &Tensor, tile: &Tile) -> Tensor {
        let zero = tile.from.scalar_like(0.0);
        rows.dynamic_slice(&[&tile.from, &zero], &[self.tile, rows.dim(1)])
    }

    /// Each row times the matrix of its group.
    pub(crate) fn rows(
        &self,
        rows: &Tensor,
        matrices: &Tensor,
        spec: &str,
        result: &TensorType,
    ) -> Tensor {
        let (k, n) = (matrices.dim(1), matrices.dim(2));
        self.walk(result, |tile, out| {
            let zero = tile.from.scalar_like(0.0);
            let matrix = matrices
                .dynamic_slice(&[&tile.group, &zero, &zero], &[1, k, n])
                .reshape(&[k, n]);
            let found = rows
                .graph()
                .einsum(spec, &self.read(rows, tile), &matrix, result.dtype);
            let chosen = tile.inside.expand(1).select(&found, &self.read(out, tile));
            out.dynamic_update_slice(&chosen, &[&tile.from, &zero])
        })
    }

    /// Outer products summed over the rows of each group.
    pub(crate) fn outer(&self, lhs: &Tensor, rhs: &Tensor, result: &TensorType) -> Tensor {
        let (k, n) = (result.dims[1], result.dims[2]);
        let wide = result.with_dtype(summed_in(lhs.dtype(), result.dtype));
        let sums = self.walk(&wide, |tile, out| {
            // Rows of both sides are left out: a row that is not the group's may be anything, NaN included.
            let read = |rows: &Tensor| {
                let zero = rows.scalar_like(0.0);
                tile.inside.expand(1).select(&self.read(rows, tile), &zero)
            };
            let (g, zero) = (lhs.graph(), tile.from.scalar_like(0.0));
            let term = g.einsum("tk,tn->kn", &read(lhs), &read(rhs), wide.dtype);
            let place = [&tile.group, &zero, &zero];
            let sum = out.dynamic_slice(&place, &[1, k, n]) + term.expand(0);
            out.dynamic_update_slice(&sum, &place)
        });
        sums.convert(result.dtype)
    }
}
