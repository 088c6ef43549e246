//! Attention of one new token per row over a cache of keys and values, for decoding.
//!
//! The slots of a row are a ring: what it reads may go past the last slot and on from the first. The kernel reads in that
//! order, so that its result does not depend on the place in the ring, to the last bit: it is what the whole document gets
//! in training.
//!
//! On the CPU it is a kernel of this process. XLA would copy one layer out of the cache at every step and multiply with all
//! slots, filled or not; the kernel reads the filled slots where they are.

use std::borrow::Cow;
use std::ops::Range;

use ferrotune_cpu::Threads;
use ferrotune_graph::{
    Attributes, Cost, DType, Kernel, KernelCall, KernelRule, Tensor, TensorType,
};
use half::{bf16, f16};

use crate::attention::attend;
use crate::tiled::kernel::{KEYS, Operand, Reader, padded};

/// Keys and values of all layers, and which part of them one step reads.
#[derive(Clone, Debug)]
pub struct CacheView {
    /// Keys `[L,B,K,S,E]`.
    pub keys: Tensor,
    /// Values `[L,B,K,S,E]`.
    pub values: Tensor,
    /// The layer, s32 scalar.
    pub layer: Tensor,
    /// The first slot that each row reads, s32 `[B]`. Where it is greater than the last, the row reads on to the end of the
    /// ring and from its beginning.
    pub first: Tensor,
    /// The last slot, that of the new token, s32 scalar.
    pub last: Tensor,
}

/// `softmax(q·kᵀ / √E) · v` over the slots `first ..= last` of one layer, f32 inside.
///
/// # Shapes
/// `q [B,1,H,E]`, a cache of the same element type (f32, bf16 or f16) → `[B,1,H,E]`.
/// # Source
/// As [`attend`].
#[track_caller]
pub fn attend_cache(q_b1he: &Tensor, cache: &CacheView) -> Tensor {
    let g = q_b1he.graph();
    let operands = [
        q_b1he,
        &cache.keys,
        &cache.values,
        &cache.layer,
        &cache.first,
        &cache.last,
    ];
    let portable = |x: &[Tensor]| {
        let [q, keys, values, layer, first, last] = x else {
            panic!("six operands were passed")
        };
        let (dims, zero) = (keys.dims(), g.scalar(0.0, DType::S32));
        let window = [&[1], &dims[1..]].concat();
        let of_layer = |whole: &Tensor| {
            let start = [layer, &zero, &zero, &zero, &zero];
            whole.dynamic_slice(&start, &window).reshape(&dims[1..])
        };
        let slots = g.iota(DType::S32, &[1, 1, dims[3]], 2);
        let first = first.expand(1).expand(1);
        let (after, before) = (slots.ge(&first), slots.le(last));
        let wrapped = first.gt(last);
        let readable = wrapped.and(&after.or(&before)).or(&after.and(&before));
        vec![attend(q, &of_layer(keys), &of_layer(values), &readable)]
    };
    g.kernel(&ATTEND_CACHE, &operands, &[], portable).remove(0)
}

static ATTEND_CACHE: KernelRule = KernelRule {
    kernel: Kernel {
        name: "attend_cache",
        run,
    },
    infer,
    cost: |inputs, outputs| Cost {
        // Two products with every slot that might be filled.
        flops: 4.0 * outputs[0].elements() as f64 * inputs[1].dims[3] as f64,
        ..Cost::movement(&inputs[..1], outputs)
    },
};

fn infer(inputs: &[TensorType], _: &Attributes) -> Result<Vec<TensorType>, String> {
    let [q, keys, values, layer, first, last] = inputs else {
        return Err(
            "takes queries, keys, values, a layer, first slots and the last slot".to_owned(),
        );
    };
    let (&[b, 1, h, e], &[_, rows, k, _, size]) = (&q.dims[..], &keys.dims[..]) else {
        return Err("queries are [B,1,H,E], keys [L,B,K,S,E]".to_owned());
    };
    if keys != values || rows != b || size != e || h % k != 0 {
        return Err("queries and cache differ in rows, heads or head size".to_owned());
    }
    if q.dtype != keys.dtype || ![DType::F32, DType::BF16, DType::F16].contains(&q.dtype) {
        return Err("queries and cache are of one type: f32, bf16 or f16".to_owned());
    }
    let index = |dims: &[usize]| TensorType::new(DType::S32, dims);
    if *layer != index(&[]) || *first != index(&[b]) || *last != index(&[]) {
        return Err(
            "the layer and the last slot are s32 scalars, the first slots s32 [B]".to_owned(),
        );
    }
    Ok(vec![q.clone()])
}

fn run(call: &mut KernelCall<'_>) -> Result<(), String> {
    match call.inputs()[0].dtype() {
        DType::BF16 => run_in::<bf16>(call),
        DType::F16 => run_in::<f16>(call),
        _ => run_in::<f32>(call),
    }
}

fn run_in<T: Operand>(call: &mut KernelCall<'_>) -> Result<(), String> {
    let (inputs, outputs) = call.parts();
    let &[layers, b, k, s, e] = inputs[1].dims() else {
        return Err("the cache has five dimensions".to_owned());
    };
    let heads = inputs[0].dims()[2] / k; // query heads of each key head
    let (q, keys, values) = (
        inputs[0].as_slice::<T>()?,
        inputs[1].as_slice::<T>()?,
        inputs[2].as_slice::<T>()?,
    );
    let slot = |slot: i32| usize::try_from(slot).unwrap_or(0).min(s - 1);
    let last = slot(inputs[5].as_slice::<i32>()?[0]);
    let first = inputs[4].as_slice::<i32>()?;
    // As XLA does, an index outside of the cache reads its nearest layer.
    let layer = usize::try_from(inputs[3].as_slice::<i32>()?[0])
        .unwrap_or(0)
        .min(layers - 1);
    let out = outputs[0].as_mut_slice::<T>()?;
    let scale = (e as f32).sqrt().recip();
    let group = |at: usize, out: &mut [T]| {
        let begin = (layer * b * k + at) * s * e;
        let read = runs(slot(first[at / k]), last, s);
        let count = read.iter().map(ExactSizeIterator::len).sum();
        let [keys, values] = [keys, values].map(|all| in_order(&all[begin..][..s * e], &read, e));
        let reader = Reader::in_place(&keys, &values, count, e);
        let q = &q[at * heads * e..][..heads * e];
        reader.read(q, &vec![count; heads], scale, out, &mut vec![0.0; heads]);
    };
    Threads::All.for_each_chunk(out, heads * e, group);
    Ok(())
}

/// The slots of a ring in the order of reading, followed by others or zeros up to a whole block, in pieces as
/// [`Reader::in_place`] takes them: where they lie, but for blocks that go past the ring's end.
fn in_order<'a, T: Operand>(
    ring: &'a [T],
    [first, then]: &[Range<usize>; 2],
    size: usize,
) -> Vec<Cow<'a, [T]>> {
    let (slots, block) = (ring.len() / size, padded(1));
    let count = first.len() + then.len();
    let place = |at: usize| match at < first.len() {
        true => first.start + at,
        false => then.start + at - first.len(),
    };
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < count {
        let begin = place(at);
        let (end, until) = match at < first.len() {
            true => (first.end, first.len()),
            false => (then.end, count),
        };
        // Other slots may follow the last one, as far as the ring goes.
        let open = until == count && begin + padded(end - begin) <= slots;
        let side_by_side = if open {
            padded(end - begin)
        } else {
            end - begin
        };
        let whole = (side_by_side / block * block).min(KEYS - at % KEYS);
        if whole > 0 {
            pieces.push(Cow::Borrowed(&ring[begin * size..][..whole * size]));
            at += whole;
        } else {
            let mut copied = vec![T::nearest(0.0); block * size];
            let rows = copied.chunks_mut(size).zip(at..count);
            rows.for_each(|(to, at)| to.copy_from_slice(&ring[place(at) * size..][..size]));
            pieces.push(Cow::Owned(copied));
            at += block;
        }
    }
    pieces
}

/// The slots from `first` to `last` of a ring of `slots`, as two runs in the order of reading.
fn runs(first: usize, last: usize, slots: usize) -> [Range<usize>; 2] {
    if first <= last {
        [first..last + 1, 0..0]
    } else {
        [first..slots, 0..last + 1]
    }
}
