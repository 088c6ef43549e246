//! Attention of one new token per row over a cache of keys and values, for decoding.
//!
//! The slots of a row are a ring: what it reads may go past the last slot and on from the first. The kernel reads in that
//! order, so that its result does not depend on the place in the ring, to the last bit.
//!
//! On the CPU it is a kernel of this process. XLA would copy one layer out of the cache at every step and multiply with all
//! slots, filled or not; the kernel reads the filled slots where they are.

use std::ops::Range;

use ferrotune_cpu::Threads;
use ferrotune_graph::{
    Attributes, Cost, DType, Kernel, KernelCall, KernelRule, Tensor, TensorType,
};
use ferrotune_pjrt::Element;
use half::{bf16, f16};

use crate::attention::attend;

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

/// An element that is read and written as f32.
trait Number: Element + Copy + Send + Sync {
    fn wide(self) -> f32;
    fn narrow(value: f32) -> Self;
}

impl Number for f32 {
    fn wide(self) -> f32 {
        self
    }
    fn narrow(value: f32) -> Self {
        value
    }
}

impl Number for bf16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn narrow(value: f32) -> Self {
        bf16::from_f32(value)
    }
}

impl Number for f16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn narrow(value: f32) -> Self {
        f16::from_f32(value)
    }
}

/// Products below this number are done faster than threads are woken.
const WORTH_THREADS: usize = 1 << 16;

fn run_in<T: Number>(call: &mut KernelCall<'_>) -> Result<(), String> {
    let (inputs, outputs) = call.parts();
    let &[_, b, k, s, e] = inputs[1].dims() else {
        return Err("the cache has five dimensions".to_owned());
    };
    let heads = inputs[0].dims()[2] / k; // query heads of each key head
    let (q, keys, values) = (
        inputs[0].as_slice::<T>()?,
        inputs[1].as_slice::<T>()?,
        inputs[2].as_slice::<T>()?,
    );
    let slot = |slot: i32| usize::try_from(slot).unwrap_or(0).min(s - 1);
    let (layer, last) = (
        inputs[3].as_slice::<i32>()?[0],
        slot(inputs[5].as_slice::<i32>()?[0]),
    );
    let first = inputs[4].as_slice::<i32>()?;
    let read: Vec<[Range<usize>; 2]> = first.iter().map(|f| runs(slot(*f), last, s)).collect();
    // As XLA does, an index outside of the cache reads its nearest layer.
    let layers = inputs[1].dims()[0];
    let layer = usize::try_from(layer).unwrap_or(0).min(layers - 1);
    let out = outputs[0].as_mut_slice::<T>()?;
    let group = |at: usize, out: &mut [T]| {
        let ring = (layer * b * k + at) * s * e..(layer * b * k + at + 1) * s * e;
        let (keys, values) = (&keys[ring.clone()], &values[ring]);
        let parts = read[at / k].clone().map(|run| {
            let run = run.start * e..run.end * e;
            (&keys[run.clone()], &values[run])
        });
        one_group(&q[at * heads * e..][..heads * e], parts, e, out);
    };
    let groups = heads * e;
    let slots: usize = read.iter().flatten().map(ExactSizeIterator::len).sum();
    let threads = if k * slots * groups < WORTH_THREADS {
        Threads::One
    } else {
        Threads::All
    };
    threads.for_each_chunk(out, groups, group);
    Ok(())
}

/// The slots from `first` to `last` of a ring of `slots`, as two runs in the order of reading.
fn runs(first: usize, last: usize, slots: usize) -> [Range<usize>; 2] {
    if first <= last {
        [first..last + 1, 0..0]
    } else {
        [first..slots, 0..last + 1]
    }
}

/// The query heads of one key head: `q [G,E]`, runs of keys and values `[S,E]` → `[G,E]`.
///
/// Weights are rounded to the element type before they meet the values, and divided by their sum after, as in [`attend`]:
/// what is decoded must have the log-probs that training finds for it, so both round in the same places.
fn one_group<T: Number>(q: &[T], parts: [(&[T], &[T]); 2], e: usize, out: &mut [T]) {
    let slots = parts.iter().map(|(keys, _)| keys.len() / e).sum();
    let scale = (e as f32).sqrt().recip();
    let q: Vec<f32> = q.iter().map(|q| q.wide()).collect();
    let mut weights = vec![0.0_f32; q.len() / e * slots];
    let mut wide = vec![0.0_f32; e];
    let keys = parts.iter().flat_map(|(keys, _)| keys.chunks_exact(e));
    for (slot, key) in keys.enumerate() {
        wide.iter_mut().zip(key).for_each(|(w, k)| *w = k.wide());
        for (q, weights) in q.chunks_exact(e).zip(weights.chunks_exact_mut(slots)) {
            weights[slot] = dot(q, &wide) * scale;
        }
    }
    let mut totals = Vec::with_capacity(q.len() / e);
    for weights in weights.chunks_exact_mut(slots) {
        let peak = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        weights
            .iter_mut()
            .for_each(|w| *w = T::narrow((*w - peak).exp()).wide());
        totals.push(weights.iter().sum::<f32>());
    }
    let mut sum = vec![0.0_f32; q.len()];
    let values = parts.iter().flat_map(|(_, values)| values.chunks_exact(e));
    for (slot, value) in values.enumerate() {
        wide.iter_mut().zip(value).for_each(|(w, v)| *w = v.wide());
        for (sum, weights) in sum.chunks_exact_mut(e).zip(weights.chunks_exact(slots)) {
            let weight = weights[slot];
            sum.iter_mut()
                .zip(&wide)
                .for_each(|(s, v)| *s += weight * v);
        }
    }
    for ((out, sum), total) in out.chunks_exact_mut(e).zip(sum.chunks_exact(e)).zip(totals) {
        out.iter_mut()
            .zip(sum)
            .for_each(|(out, s)| *out = T::narrow(s / total));
    }
}

/// Sums of eight lanes, so that the compiler may use vector registers.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a8
        .remainder()
        .iter()
        .zip(b8.remainder())
        .map(|(a, b)| a * b)
        .sum();
    for (a, b) in a8.zip(b8) {
        lanes
            .iter_mut()
            .zip(a.iter().zip(b))
            .for_each(|(lane, (a, b))| *lane += a * b);
    }
    lanes.iter().sum::<f32>() + rest
}
