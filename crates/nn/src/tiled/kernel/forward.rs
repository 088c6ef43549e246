//! Softmax over the keys of a document, a block of them at a time.

use std::borrow::Cow;

use ferrotune_cpu::{Matrix, Packed, Threads, exponentials, largest, lend};
use ferrotune_graph::KernelCall;

use super::documents::Row;
use super::{Document, KEYS, Operand, Sizes, gather, padded};

/// Keys and values of one document, ready to be read.
pub(crate) struct Reader<'a, T: Clone> {
    size: usize,
    /// Keys, and values as `[KEYS,E]`, of each block.
    blocks: Vec<(Keys<'a, T>, Packed)>,
}

/// Keys of a block.
enum Keys<'a, T: Clone> {
    /// As `[E,KEYS]`.
    Packed(Packed),
    /// `[n,E]` in pieces of whole blocks of 32: for a few queries, which cost less than to pack them.
    AsTheyLie(&'a [Cow<'a, [T]>]),
}

impl<'a, T: Operand> Reader<'a, T> {
    /// For many queries: `keys` and `values` `[n,E]`.
    pub(crate) fn packed(keys: &[T], values: &[T], size: usize) -> Self {
        let block = |(keys, values): (&[T], &[T])| {
            let [mut turned, mut packed] = [Packed::default(), Packed::default()];
            let keys = Matrix::new(keys, [size, keys.len() / size], [1, size]);
            T::pack(keys, &mut turned);
            let values = Matrix::new(values, [values.len() / size, size], [size, 1]);
            T::pack(values, &mut packed);
            (Keys::Packed(turned), packed)
        };
        let (keys, values) = (keys.chunks(KEYS * size), values.chunks(KEYS * size));
        Self {
            size,
            blocks: keys.zip(values).map(block).collect(),
        }
    }

    /// For a few queries: `count` keys and values, each followed by anything up to a whole block of 32. They come in pieces
    /// of whole blocks, none of which goes over a multiple of [`KEYS`].
    pub(crate) fn in_place(
        keys: &'a [Cow<'a, [T]>],
        values: &[Cow<'_, [T]>],
        count: usize,
        size: usize,
    ) -> Self {
        let (mut blocks, mut first, mut done) = (Vec::new(), 0, 0);
        while done < count {
            let here = (count - done).min(KEYS);
            let (mut pieces, mut rows) = (Vec::new(), 0);
            for piece in &values[first..] {
                if rows == padded(here) {
                    break;
                }
                // What follows the last value may be no number, and would be one when it is multiplied by zero.
                let n = (piece.len() / size).min(here - rows);
                pieces.push(Matrix::new(&piece[..n * size], [n, size], [size, 1]));
                rows += piece.len() / size;
            }
            let mut packed = Packed::default();
            T::pack_rows(&pieces, &mut packed);
            let keys = &keys[first..first + pieces.len()];
            first += pieces.len();
            blocks.push((Keys::AsTheyLie(keys), packed));
            done += here;
        }
        Self { size, blocks }
    }

    /// `softmax(q·kᵀ / √E) · v` for rows that each read the first `visible` keys, at least one.
    ///
    /// Weights are rounded to the element type before they meet the values, and divided by their sum after.
    ///
    /// # Shapes
    /// `q [R,E]` → `out [R,E]`, logs of the sums of exponentials `[R]`.
    pub(crate) fn read(
        &self,
        q: &[T],
        visible: &[usize],
        scale: f32,
        out: &mut [T],
        log_sums: &mut [f32],
    ) {
        let (rows, size) = (visible.len(), self.size);
        let (all_rows, width) = (padded(rows), padded(size));
        let furthest = visible.iter().copied().max().unwrap_or(0);
        let q = Matrix::new(q, [rows, size], [size, 1]);
        let widest = padded(furthest.min(KEYS));
        let mut scores = lend(all_rows * widest);
        let mut part = lend(rows * widest);
        let mut weights = lend(rows * widest);
        let mut mixed = lend(all_rows * width);
        let (mut peaks, mut totals) = (vec![f32::NEG_INFINITY; rows], vec![0.0_f32; rows]);
        for (number, (keys, values)) in self.blocks.iter().enumerate() {
            let first = number * KEYS;
            if first >= furthest {
                break;
            }
            let count = (furthest - first).min(KEYS);
            let depth = padded(count);
            match keys {
                Keys::Packed(keys) => {
                    T::multiply_packed(q, keys, count, &mut scores, widest, true);
                }
                Keys::AsTheyLie(pieces) => {
                    let mut at = 0;
                    for piece in *pieces {
                        let n = piece.len() / size;
                        let keys = Matrix::new(piece, [size, n], [1, size]);
                        let part = &mut part[..rows * n];
                        T::multiply(q, keys, part, Threads::One);
                        for (row, part) in part.chunks(n).enumerate() {
                            scores[row * widest + at..][..n].copy_from_slice(part);
                        }
                        at += n;
                    }
                }
            }
            for row in 0..rows {
                let here = visible[row].saturating_sub(first).min(count);
                let scores = &scores[row * widest..][..depth];
                let weights = &mut weights[row * widest..][..depth];
                if here == 0 {
                    weights.fill(T::nearest(0.0));
                    continue;
                }
                let peak = peaks[row].max(largest(&scores[..here]) * scale);
                let shrink = (peaks[row] - peak).exp();
                let added = exponentials(scores, scale, peak, here, weights);
                totals[row] = totals[row] * shrink + added;
                peaks[row] = peak;
                if number > 0 && shrink != 1.0 {
                    let mixed = &mut mixed[row * width..][..size];
                    mixed.iter_mut().for_each(|m| *m *= shrink);
                }
            }
            let weights = Matrix::new(&weights, [rows, depth], [widest, 1]);
            T::multiply_packed(weights, values, size, &mut mixed, width, number == 0);
        }
        for row in 0..rows {
            let mixed = &mixed[row * width..][..size];
            let out = &mut out[row * size..][..size];
            let pairs = out.iter_mut().zip(mixed);
            pairs.for_each(|(out, mixed)| *out = T::nearest(mixed / totals[row]));
            log_sums[row] = peaks[row] + totals[row].ln();
        }
    }
}

pub(super) fn run<T: Operand>(call: &mut KernelCall<'_>) -> Result<(), String> {
    let (inputs, outputs) = call.parts();
    let sizes = Sizes::of(inputs)?;
    let (q, k, v) = (
        inputs[0].as_slice::<T>()?,
        inputs[1].as_slice::<T>()?,
        inputs[2].as_slice::<T>()?,
    );
    let places: Result<Vec<&[i32]>, String> = inputs[3..7].iter().map(|p| p.as_slice()).collect();
    let rows = super::rows(&places?, &sizes);
    let [out, log_sum] = outputs else {
        return Err("has two results".to_owned());
    };
    let of_head = sizes.queries * sizes.group;
    let out = out
        .as_mut_slice::<T>()?
        .chunks_mut((of_head * sizes.size).max(1));
    let log_sum = log_sum.as_mut_slice::<f32>()?.chunks_mut(of_head.max(1));
    let mut heads: Vec<_> = out.zip(log_sum).collect();
    Threads::All.for_each_chunk(&mut heads, 1, |head, results| {
        let (out, log_sum) = &mut results[0];
        let own = sizes.keys * sizes.size;
        let head = Head {
            sizes,
            q: &q[head * of_head * sizes.size..][..of_head * sizes.size],
            k: &k[head * own..][..own],
            v: &v[head * own..][..own],
            documents: &rows[head / sizes.heads],
        };
        head.run(out, log_sum);
    });
    Ok(())
}

/// The documents of each row.
pub(super) fn rows(places: &[&[i32]], sizes: &Sizes) -> Vec<Vec<Document>> {
    let of_queries = |which: usize| places[which].chunks(sizes.queries.max(1));
    let of_keys = |which: usize| places[which].chunks(sizes.keys.max(1));
    let queries = of_queries(0).zip(of_queries(1));
    let keys = of_keys(2).zip(of_keys(3));
    let documents = |(queries, keys)| Row { queries, keys }.documents();
    queries.zip(keys).map(documents).collect()
}

/// The queries of one key head of one row.
struct Head<'a, T> {
    sizes: Sizes,
    /// `[T,G,E]`
    q: &'a [T],
    /// `[S,E]`
    k: &'a [T],
    /// `[S,E]`
    v: &'a [T],
    documents: &'a [Document],
}

impl<T: Operand> Head<'_, T> {
    fn run(&self, out: &mut [T], log_sum: &mut [f32]) {
        let (size, group) = (self.sizes.size, self.sizes.group);
        out.fill(T::nearest(0.0));
        log_sum.fill(0.0);
        let mut mixed = vec![T::nearest(0.0); self.sizes.block() * group * size];
        let mut sums = vec![0.0; self.sizes.block() * group];
        for document in self.documents {
            let keys = || document.keys.iter().copied();
            let reader = Reader::packed(
                &gather(self.k, size, keys()),
                &gather(self.v, size, keys()),
                size,
            );
            for (queries, visible) in document.blocks(self.sizes.block()) {
                let q = gather(self.q, group * size, queries.iter().copied());
                let visible: Vec<usize> = visible
                    .iter()
                    .flat_map(|n| std::iter::repeat_n(*n, group))
                    .collect();
                let (mixed, sums) = (&mut mixed[..q.len()], &mut sums[..visible.len()]);
                reader.read(&q, &visible, self.sizes.scale(), mixed, sums);
                for (i, at) in queries.iter().enumerate() {
                    out[at * group * size..][..group * size]
                        .copy_from_slice(&mixed[i * group * size..][..group * size]);
                    log_sum[at * group..][..group].copy_from_slice(&sums[i * group..][..group]);
                }
            }
        }
    }
}
