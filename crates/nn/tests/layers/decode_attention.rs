//! Attention over a cache: the kernel, its portable form, and a plain loop.

use ferrotune_graph::{DType, Graph, HostArray, Platform, Tensor};
use ferrotune_nn::{CacheView, attend_cache};

use crate::check::{Function, Noise};

/// Layers, rows, key heads, query heads of each, slots, head size.
type Sizes = [usize; 6];

fn arguments([l, b, k, g, s, e]: Sizes, layer: i32, first: &[i32], last: i32) -> Vec<HostArray> {
    let mut noise = Noise::new(1);
    let scalar = |v: i32| HostArray::from_slice(&[], &[v]).unwrap();
    vec![
        noise.array(&[b, 1, k * g, e], -2.0, 2.0),
        noise.array(&[l, b, k, s, e], -2.0, 2.0),
        noise.array(&[l, b, k, s, e], -2.0, 2.0),
        scalar(layer),
        HostArray::from_slice(&[b], first).unwrap(),
        scalar(last),
    ]
}

fn read(x: &[Tensor], dtype: DType) -> Tensor {
    let view = CacheView {
        keys: x[1].convert(dtype),
        values: x[2].convert(dtype),
        layer: x[3].clone(),
        first: x[4].clone(),
        last: x[5].clone(),
    };
    attend_cache(&x[0].convert(dtype), &view).convert(DType::F32)
}

fn plain(
    args: &[HostArray],
    [_, b, k, g, s, e]: Sizes,
    layer: usize,
    first: &[i32],
    last: usize,
) -> Vec<f64> {
    let at = |i: usize, n: usize| f64::from(args[i].as_slice::<f32>()[n]);
    let mut out = Vec::new();
    for (row, first) in first.iter().enumerate().take(b) {
        for head in 0..k * g {
            let slot = |t: usize| (((layer * b + row) * k + head / g) * s + t) * e;
            let q = (row * k * g + head) * e;
            let (first, wrapped) = (*first as usize, *first as usize > last);
            let end = if wrapped { last + 1 + s } else { last + 1 };
            let slots = (first..end).map(|t| t % s);
            let score = |t: usize| {
                (0..e)
                    .map(|i| at(0, q + i) * at(1, slot(t) + i))
                    .sum::<f64>()
                    / (e as f64).sqrt()
            };
            let odds: Vec<f64> = slots.clone().map(|t| score(t).exp()).collect();
            let total: f64 = odds.iter().sum();
            out.extend((0..e).map(|i| {
                slots
                    .clone()
                    .zip(&odds)
                    .map(|(t, o)| o / total * at(2, slot(t) + i))
                    .sum::<f64>()
            }));
        }
    }
    out
}

#[test]
fn the_kernel_reads_the_filled_slots_of_its_layer() {
    // Small, and large enough for threads; a head size that vector lanes do not divide.
    for sizes in [[2, 3, 2, 3, 7, 5], [3, 4, 3, 4, 200, 64]] {
        let (first, last) = (vec![0, 2, 6, 3], sizes[4] as i32 - 2);
        let first = &first[..sizes[1]];
        let args = arguments(sizes, 1, first, last);
        let found =
            Function::new("attend_cache", &args, |_, x| vec![read(x, DType::F32)]).run(&args);
        let expected = plain(&args, sizes, 1, first, last as usize);
        for (a, b) in found[0].as_slice::<f32>().iter().zip(expected) {
            assert!((f64::from(*a) - b).abs() < 2e-6, "{a} instead of {b}");
        }
        for dtype in [DType::BF16, DType::F16] {
            let narrow =
                Function::new("attend_cache", &args, |_, x| vec![read(x, dtype)]).run(&args);
            let pairs = narrow[0]
                .as_slice::<f32>()
                .iter()
                .zip(found[0].as_slice::<f32>());
            for (a, b) in pairs {
                assert!((a - b).abs() < 0.05, "{a} instead of {b}"); // operands of eight bits or more
            }
        }
    }
}

/// Keys are read 512 at a time, whatever lies side by side.
#[test]
fn long_rings_are_read_to_their_end() {
    let sizes = [1, 1, 1, 2, 1200, 8];
    for (first, last) in [(0, 1198), (700, 650)] {
        let args = arguments(sizes, 0, &[first], last);
        let found =
            Function::new("attend_cache", &args, |_, x| vec![read(x, DType::F32)]).run(&args);
        let expected = plain(&args, sizes, 0, &[first], last as usize);
        for (a, b) in found[0].as_slice::<f32>().iter().zip(expected) {
            assert!((f64::from(*a) - b).abs() < 2e-6, "{a} instead of {b}");
        }
    }
}

#[test]
fn the_place_in_the_ring_does_not_change_a_bit() {
    let sizes = [2, 3, 2, 3, 7, 5];
    let mut args = arguments(sizes, 1, &[1, 2, 4], 5);
    let read = |args: &[HostArray]| {
        Function::new("attend_cache", args, |_, x| vec![read(x, DType::F32)]).run(args)
    };
    let expected = read(&args).remove(0);
    for turned in 1..7 {
        let scalar = |v: i32| HostArray::from_slice(&[], &[v]).unwrap();
        let turn = |array: &HostArray| {
            let values = array.as_slice::<f32>();
            let ring = |ring: &[f32]| [&ring[6 * 5..], &ring[..6 * 5]].concat();
            let turned: Vec<f32> = values.chunks(7 * 5).flat_map(ring).collect();
            HostArray::from_slice(array.dims(), &turned).unwrap()
        };
        let first = [1, 2, 4].map(|it| (it + turned) % 7);
        args[1] = turn(&args[1]);
        args[2] = turn(&args[2]);
        args[4] = HostArray::from_slice(&[3], &first).unwrap();
        args[5] = scalar((5 + turned) % 7);
        assert_eq!(read(&args)[0], expected, "turned by {turned}");
    }
}

#[test]
fn the_portable_form_computes_the_same() {
    let sizes = [2, 3, 2, 3, 9, 8];
    // Rows from the beginning, to the end of the ring and on, and of one slot.
    let args = arguments(sizes, 1, &[0, 8, 6], 6);
    let both = Function::new("both", &args, |g: &Graph, x| {
        let kernel = read(x, DType::F32);
        // Outside of the CPU the portable form is written; here it is traced by hand.
        let layer = |t: &Tensor| t.slice(0, 1, 2).reshape(&[3, 2, 9, 8]);
        let slots = g.iota(DType::S32, &[1, 1, 9], 2);
        let ring = |slot: &Tensor| {
            (slot + 9.0 - x[4].expand(1).expand(1)).remainder(&slot.scalar_like(9.0))
        };
        let readable = ring(&slots).le(&ring(&x[5]));
        let portable = ferrotune_nn::attend(&x[0], &layer(&x[1]), &layer(&x[2]), &readable);
        vec![kernel, portable]
    });
    let found = both.run(&args);
    for (a, b) in found[0]
        .as_slice::<f32>()
        .iter()
        .zip(found[1].as_slice::<f32>())
    {
        assert!((a - b).abs() < 2e-6, "{a} instead of {b}");
    }
    let text = |platform| both.text(&args, platform, |_, x| vec![read(x, DType::F32)]);
    assert!(text(Platform::Cpu).contains("kernel = \"attend_cache\""));
    assert!(!text(Platform::Tpu).contains("custom_call"));
    assert!(text(Platform::Tpu).contains("dot_general"));
}

#[test]
fn slots_that_are_not_read_may_hold_anything() {
    let sizes = [1, 1, 1, 3, 96, 32];
    for (first, last) in [(3, 40), (80, 8)] {
        let args = arguments(sizes, 0, &[first], last);
        let right = plain(&args, sizes, 0, &[first], last as usize);
        let unread = |slot: usize| match first <= last {
            true => slot < first as usize || slot > last as usize,
            false => slot > last as usize && slot < first as usize,
        };
        let mut spoilt = args.clone();
        for i in [1, 2] {
            let numbers = args[i].as_slice::<f32>().iter().enumerate();
            let numbers = numbers.map(|(at, x)| if unread(at / 32) { f32::NAN } else { *x });
            let numbers: Vec<f32> = numbers.collect();
            spoilt[i] = HostArray::from_slice(args[i].dims(), &numbers).unwrap();
        }
        for dtype in [DType::F32, DType::BF16] {
            let function = Function::new("spoilt", &spoilt, |_: &Graph, x: &[Tensor]| {
                vec![read(x, dtype)]
            });
            let found = function.run(&spoilt).remove(0);
            let bound = if dtype == DType::F32 { 1e-5 } else { 3e-2 };
            for (found, right) in found.as_slice::<f32>().iter().zip(&right) {
                assert!(
                    (f64::from(*found) - right).abs() <= bound,
                    "{found}, {right}"
                );
            }
        }
    }
}
