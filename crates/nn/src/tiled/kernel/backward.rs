//! Cotangents of queries, keys and values, document by document: the weights again from the kept logs of their sums, then
//! five products for each pair of blocks.

use ferrotune_cpu::{Lent, Loan, Matrix, Packed, Threads, exponentials, lend};
use ferrotune_graph::KernelCall;

use super::{Document, KEYS, Operand, Sizes, gather, padded};

pub(super) fn run<T: Operand>(call: &mut KernelCall<'_>) -> Result<(), String> {
    let (inputs, outputs) = call.parts();
    let sizes = Sizes::of(inputs)?;
    let narrow = |i: usize| inputs[i].as_slice::<T>();
    let given = (narrow(0)?, narrow(1)?, narrow(2)?);
    let places: Result<Vec<&[i32]>, String> = inputs[3..7].iter().map(|p| p.as_slice()).collect();
    let rows = super::rows(&places?, &sizes);
    let (out, log_sum, d_out) = (narrow(7)?, inputs[8].as_slice::<f32>()?, narrow(9)?);
    let [dq, dk, dv] = outputs else {
        return Err("has three results".to_owned());
    };
    let per_query = sizes.queries * sizes.group;
    let (of_queries, of_keys) = (per_query * sizes.size, sizes.keys * sizes.size);
    let dq = dq.as_mut_slice::<T>()?.chunks_mut(of_queries.max(1));
    let dk = dk.as_mut_slice::<T>()?.chunks_mut(of_keys.max(1));
    let dv = dv.as_mut_slice::<T>()?.chunks_mut(of_keys.max(1));
    let mut heads: Vec<_> = dq.zip(dk).zip(dv).collect();
    Threads::All.for_each_chunk(&mut heads, 1, |head, results| {
        let ((dq, dk), dv) = &mut results[0];
        let head_of = |own: usize| head * own..(head + 1) * own;
        let (q, k) = (head_of(of_queries), head_of(of_keys));
        let one = Head {
            sizes,
            q: &given.0[q.clone()],
            k: &given.1[k.clone()],
            v: &given.2[k],
            out: &out[q.clone()],
            log_sum: &log_sum[head * per_query..][..per_query],
            d_out: &d_out[q],
        };
        for d in [&mut **dq, &mut **dk, &mut **dv] {
            d.fill(T::nearest(0.0));
        }
        for document in &rows[head / sizes.heads] {
            one.document(document, dq, dk, dv);
        }
    });
    Ok(())
}

/// One key head of one row; queries `[T,G,E]`, keys `[S,E]`.
struct Head<'a, T> {
    sizes: Sizes,
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    out: &'a [T],
    log_sum: &'a [f32],
    d_out: &'a [T],
}

/// Keys and values of one block as the products want them.
struct Block {
    /// `[E,n]`
    keys_turned: Packed,
    /// `[n,E]`
    keys: Packed,
    /// `[E,n]`
    values_turned: Packed,
    /// Sums for the keys, turned: `[E,n]`.
    dk: Loan<f32>,
    /// Sums for the values, turned.
    dv: Loan<f32>,
    first: usize,
    count: usize,
}

/// What is computed of one pair of blocks, with rows of `KEYS`.
struct Workspace<T: Lent> {
    scores: Loan<f32>,
    slopes: Loan<f32>,
    weights: Loan<T>,
    narrow_slopes: Loan<T>,
    right: Packed,
}

impl<T: Operand> Head<'_, T> {
    fn document(&self, document: &Document, dq: &mut [T], dk: &mut [T], dv: &mut [T]) {
        let (size, group) = (self.sizes.size, self.sizes.group);
        let mut blocks = self.blocks(document);
        let rows = padded(self.sizes.block() * group);
        let mut space = Workspace {
            scores: lend(rows * KEYS),
            slopes: lend(rows * KEYS),
            weights: lend(rows * KEYS),
            narrow_slopes: lend(rows * KEYS),
            right: Packed::default(),
        };
        for (queries, visible) in document.blocks(self.sizes.block()) {
            let sums = self.queries(queries, visible, &mut blocks, &mut space);
            for (i, at) in queries.iter().enumerate() {
                for g in 0..group {
                    let from = &sums[(i * group + g) * padded(size)..][..size];
                    round(from, &mut dq[(at * group + g) * size..][..size]);
                }
            }
        }
        for block in &blocks {
            let at = &document.keys[block.first..][..block.count];
            for (j, at) in at.iter().enumerate() {
                for e in 0..size {
                    dk[at * size + e] = T::nearest(block.dk[e * KEYS + j]);
                    dv[at * size + e] = T::nearest(block.dv[e * KEYS + j]);
                }
            }
        }
    }

    fn blocks(&self, document: &Document) -> Vec<Block> {
        let size = self.sizes.size;
        let block = |(number, at): (usize, &[usize])| {
            let keys = gather(self.k, size, at.iter().copied());
            let values = gather(self.v, size, at.iter().copied());
            let count = at.len();
            let pack = |matrix| {
                let mut packed = Packed::default();
                T::pack(matrix, &mut packed);
                packed
            };
            Block {
                keys_turned: pack(Matrix::new(&keys, [size, count], [1, size])),
                keys: pack(Matrix::new(&keys, [count, size], [size, 1])),
                values_turned: pack(Matrix::new(&values, [size, count], [1, size])),
                dk: zeros(padded(size) * KEYS),
                dv: zeros(padded(size) * KEYS),
                first: number * KEYS,
                count,
            }
        };
        document.keys.chunks(KEYS).enumerate().map(block).collect()
    }

    /// A block of queries: adds to the sums of keys and values, and returns those of the queries, `[R,E]`, padded.
    fn queries(
        &self,
        queries: &[usize],
        visible: &[usize],
        blocks: &mut [Block],
        space: &mut Workspace<T>,
    ) -> Loan<f32> {
        let (size, group, scale) = (self.sizes.size, self.sizes.group, self.sizes.scale());
        let rows = queries.len() * group;
        let depth = padded(rows);
        let own = |from: &[T]| {
            let mut own = gather(from, group * size, queries.iter().copied());
            own.resize(depth * size, T::nearest(0.0));
            own
        };
        let (q, out, d_out) = (own(self.q), own(self.out), own(self.d_out));
        let log_sums = gather(self.log_sum, group, queries.iter().copied());
        let means: Vec<f32> = (0..rows)
            .map(|row| product_sum(&out[row * size..][..size], &d_out[row * size..][..size]))
            .collect();
        let (q_turned, d_out_turned) = (turned(&q, rows, size), turned(&d_out, rows, size));
        let own_rows = |of| Matrix::new(of, [depth, size], [size, 1]);
        let mut dq = lend(depth * padded(size));
        let furthest = visible.iter().copied().max().unwrap_or(0);
        for block in blocks.iter_mut().take_while(|block| block.first < furthest) {
            let count = block.count.min(furthest - block.first);
            let wide = padded(count);
            let Workspace {
                scores,
                slopes,
                weights,
                narrow_slopes,
                right,
            } = space;
            T::multiply_packed(own_rows(&q), &block.keys_turned, count, scores, KEYS, true);
            T::multiply_packed(
                own_rows(&d_out),
                &block.values_turned,
                count,
                slopes,
                KEYS,
                true,
            );
            for row in 0..rows {
                let here = visible[row / group].saturating_sub(block.first).min(count);
                let part = row * KEYS..row * KEYS + wide;
                let (scores, slopes) = (&mut scores[part.clone()], &slopes[part.clone()]);
                let narrow = &mut narrow_slopes[part.clone()];
                // f32 weights for the slopes, rounded ones for the values.
                let mut exact = [0.0_f32; KEYS];
                let exact = &mut exact[..wide];
                exponentials(scores, scale, log_sums[row], here, exact);
                for (j, narrow) in narrow.iter_mut().enumerate() {
                    let slope = exact[j] * (slopes[j] - means[row]) * scale;
                    *narrow = T::nearest(if j < here { slope } else { 0.0 });
                }
                round(exact, &mut weights[part]);
            }
            // Packing fills up with zeros what is no row of theirs.
            let of_pair = |values| Matrix::new(values, [rows, wide], [KEYS, 1]);
            let width = padded(size);
            T::multiply_packed(
                of_pair(narrow_slopes),
                &block.keys,
                size,
                &mut dq,
                width,
                block.first == 0,
            );
            let left = |of| Matrix::new(of, [size, depth], [depth, 1]);
            T::pack(of_pair(narrow_slopes), right);
            T::multiply_packed(left(&q_turned), right, wide, &mut block.dk, KEYS, false);
            T::pack(of_pair(weights), right);
            T::multiply_packed(left(&d_out_turned), right, wide, &mut block.dv, KEYS, false);
        }
        dq
    }
}

/// Sums that nothing has been added to.
fn zeros(count: usize) -> Loan<f32> {
    let mut sums = lend(count);
    sums.fill(0.0);
    sums
}

/// `[R,E]` → `[E, R padded with zeros]`.
fn turned<T: Operand>(from: &[T], rows: usize, size: usize) -> Vec<T> {
    let depth = padded(rows);
    let mut to = vec![T::nearest(0.0); size * depth];
    for row in 0..rows {
        for e in 0..size {
            to[e * depth + row] = from[row * size + e];
        }
    }
    to
}

fn round<T: Operand>(from: &[f32], to: &mut [T]) {
    to.iter_mut()
        .zip(from)
        .for_each(|(to, from)| *to = T::nearest(*from));
}

/// `Σ a b`, in f32.
fn product_sum<T: Operand>(a: &[T], b: &[T]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a.wide() * b.wide()).sum()
}
