//! The same attention as calls on the host's processor.
//!
//! Rows are taken apart into documents: their keys and queries are gathered in the order of their places, so that blocks
//! are counted from where a document begins, wherever it lies in the row and however the row is ordered. What a document
//! gets is the same to the last bit in every packing, order and shard, and when it is decoded token by token.
//!
//! Letters besides the crate's: `n` keys of a document, `R` rows of a block: queries × G.

mod backward;
mod documents;
mod forward;

use ferrotune_cpu::{Lent, Number, Packed};
use ferrotune_graph::{Attributes, Cost, DType, Kernel, KernelInput, KernelRule, TensorType};
use ferrotune_pjrt::Element;

use self::documents::Document;
pub(crate) use self::forward::Reader;
use self::forward::rows;

/// Keys of a block.
pub(crate) const KEYS: usize = 512;
/// Rows of a block, about.
const ROWS: usize = 128;

/// Sizes of a call.
#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    queries: usize,
    group: usize,
    size: usize,
    keys: usize,
}

impl Sizes {
    fn of(inputs: &[KernelInput<'_>]) -> Result<Self, String> {
        let (&[_, heads, queries, group, size], &[_, _, keys, _]) =
            (inputs[0].dims(), inputs[1].dims())
        else {
            return Err("queries have five dimensions, keys four".to_owned());
        };
        Ok(Self {
            heads,
            queries,
            group,
            size,
            keys,
        })
    }

    /// Scores are multiplied by this.
    fn scale(&self) -> f32 {
        (self.size as f32).sqrt().recip()
    }

    /// Queries of a block.
    fn block(&self) -> usize {
        (ROWS / self.group).max(1)
    }
}

/// Gathers rows of `size` elements.
fn gather<T: Copy>(from: &[T], size: usize, rows: impl Iterator<Item = usize>) -> Vec<T> {
    let mut to = Vec::new();
    for row in rows {
        to.extend_from_slice(&from[row * size..][..size]);
    }
    to
}

fn check(inputs: &[TensorType]) -> Result<(), String> {
    let [q, k, v, q_segment, q_index, k_segment, k_index, ..] = inputs else {
        return Err("takes queries, keys, values and the places of both".to_owned());
    };
    let (&[b, heads, t, _, e], &[rows, same, s, size]) = (&q.dims[..], &k.dims[..]) else {
        return Err("queries are [B,K,T,G,E], keys [B,K,S,E]".to_owned());
    };
    if k != v || rows != b || same != heads || size != e || k.dtype != q.dtype {
        return Err("queries, keys and values differ in rows, heads, size or type".to_owned());
    }
    if ![DType::F32, DType::BF16, DType::F16].contains(&q.dtype) {
        return Err("queries are f32, bf16 or f16".to_owned());
    }
    let places = |count: usize| TensorType::new(DType::S32, &[b, count]);
    if [q_segment, q_index].iter().any(|p| **p != places(t))
        || [k_segment, k_index].iter().any(|p| **p != places(s))
    {
        return Err("places are s32 [B,T] and [B,S]".to_owned());
    }
    Ok(())
}

fn cost(inputs: &[TensorType], outputs: &[TensorType], products: f64) -> Cost {
    let keys = inputs[1].dims[2] as f64;
    Cost {
        flops: products * 2.0 * inputs[0].elements() as f64 * keys,
        ..Cost::movement(inputs, outputs)
    }
}

/// (q, k, v, places) → (out, log of the sum of exponentials).
pub(super) static ATTEND: KernelRule = KernelRule {
    kernel: Kernel {
        name: "attend",
        run: |call| match call.inputs()[0].dtype() {
            DType::BF16 => forward::run::<half::bf16>(call),
            DType::F16 => forward::run::<half::f16>(call),
            _ => forward::run::<f32>(call),
        },
    },
    infer: |inputs: &[TensorType], _: &Attributes| {
        check(inputs)?;
        let log_sum = TensorType::new(DType::F32, &inputs[0].dims[..4]);
        Ok(vec![inputs[0].clone(), log_sum])
    },
    cost: |inputs, outputs| cost(inputs, outputs, 2.0),
};

/// (q, k, v, places, out, log of the sum, cotangent of out) → cotangents of q, k, v.
pub(super) static ATTEND_BACK: KernelRule = KernelRule {
    kernel: Kernel {
        name: "attend_back",
        run: |call| match call.inputs()[0].dtype() {
            DType::BF16 => backward::run::<half::bf16>(call),
            DType::F16 => backward::run::<half::f16>(call),
            _ => backward::run::<f32>(call),
        },
    },
    infer: |inputs: &[TensorType], _: &Attributes| {
        check(inputs)?;
        let log_sum = TensorType::new(DType::F32, &inputs[0].dims[..4]);
        match &inputs[7..] {
            [out, sums, d] if out == &inputs[0] && d == out && *sums == log_sum => {
                Ok(inputs[..3].to_vec())
            }
            _ => Err("takes the result, the log of its sums, and its cotangent".to_owned()),
        }
    },
    cost: |inputs, outputs| cost(inputs, outputs, 5.0),
};

/// An element of the operands.
pub(crate) trait Operand: Number + Element + Lent {}

impl Operand for f32 {}
impl Operand for half::bf16 {}
impl Operand for half::f16 {}

/// Columns of sums of so many.
pub(crate) fn padded(size: usize) -> usize {
    Packed::padded(size)
}
