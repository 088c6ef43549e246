//! Results of operations against numbers worked out by hand or on the host.

use ferrotune_graph::{DType, HostArray, Tensor, random};
use half::bf16;

use crate::check::run;

fn s32(dims: &[usize], values: &[i32]) -> HostArray {
    HostArray::from_slice(dims, values).unwrap()
}

fn f32s(dims: &[usize], values: &[f32]) -> HostArray {
    HostArray::from_slice(dims, values).unwrap()
}

#[test]
fn the_largest_of_equals_is_the_first() {
    let x = f32s(
        &[3, 4],
        &[
            1.0,
            5.0,
            5.0,
            2.0,
            f32::NEG_INFINITY,
            f32::NEG_INFINITY,
            -1.0,
            -1.0,
            3.0,
            3.0,
            3.0,
            3.0,
        ],
    );
    let out = run("argmax", &[x], |_, x| vec![x[0].argmax(1), x[0].argmax(0)]);
    assert_eq!(out[0].as_slice::<i32>(), [1, 2, 0]);
    assert_eq!(out[1].as_slice::<i32>(), [2, 0, 0, 2]);
}

#[test]
fn an_argmax_of_nothing_but_minus_infinity_is_an_index_of_the_axis() {
    let out = run(
        "argmax_inf",
        &[f32s(&[1, 3], &[f32::NEG_INFINITY; 3])],
        |_, x| vec![x[0].argmax(1)],
    );
    assert_eq!(out[0].as_slice::<i32>(), [0]);
}

#[test]
fn integer_reductions_start_from_their_extremes() {
    let out = run("int_max", &[s32(&[3], &[-7, -3, -9])], |_, x| {
        vec![x[0].max(&[0]), x[0].min(&[0]), x[0].sum(&[0])]
    });
    assert_eq!(
        [
            out[0].as_slice::<i32>()[0],
            out[1].as_slice::<i32>()[0],
            out[2].as_slice::<i32>()[0]
        ],
        [-3, -9, -19]
    );
}

#[test]
fn booleans_are_reduced_by_all_and_any() {
    let out = run("bools", &[s32(&[2, 2], &[1, 0, 1, 1])], |g, x| {
        let p = x[0].gt(&g.scalar(0.0, DType::S32));
        vec![
            p.all(&[1]).convert(DType::S32),
            p.not().any(&[1]).convert(DType::S32),
        ]
    });
    assert_eq!(out[0].as_slice::<i32>(), [0, 1]);
    assert_eq!(out[1].as_slice::<i32>(), [1, 0]);
}

#[test]
fn narrow_contractions_are_summed_in_f32_and_rounded_once() {
    let n = 512;
    let ones = HostArray::from_slice(&[n], &vec![bf16::from_f32(1.0); n]).unwrap();
    let small = HostArray::from_slice(&[n], &vec![bf16::from_f32(1.007_812_5); n]).unwrap();
    let out = run("bf16_dot", &[ones, small], |g, x| {
        vec![
            g.einsum("a,a->", &x[0], &x[1], DType::BF16),
            g.einsum("a,a->", &x[0], &x[1], DType::F32),
        ]
    });
    let exact = bf16::from_f32(1.007_812_5).to_f32() * n as f32;
    assert_eq!(out[1].as_slice::<f32>(), [exact]);
    assert_eq!(out[0].as_slice::<bf16>(), [bf16::from_f32(exact)]);
}

#[test]
fn windows_are_read_and_written_where_asked() {
    let out = run(
        "windows",
        &[s32(&[3, 2], &[1, 2, 3, 4, 5, 6]), s32(&[], &[1])],
        |g, x| {
            let zero = g.scalar(0.0, DType::S32);
            let row = x[0].dynamic_slice(&[&x[1], &zero], &[1, 2]);
            vec![
                row.clone(),
                x[0].dynamic_update_slice(&(row * 10.0), &[&x[1], &zero]),
            ]
        },
    );
    assert_eq!(out[0].as_slice::<i32>(), [3, 4]);
    assert_eq!(out[1].as_slice::<i32>(), [1, 2, 30, 40, 5, 6]);
}

#[test]
fn slices_pads_and_joins() {
    let out = run("joins", &[s32(&[4], &[1, 2, 3, 4])], |_, x| {
        let cut = x[0].slice(0, 1, 3);
        vec![
            cut.pad(0, 1, 2, 9.0),
            Tensor::concatenate(&[&cut, &x[0].reverse(0)], 0),
            x[0].cumulative_sum(0),
        ]
    });
    assert_eq!(out[0].as_slice::<i32>(), [9, 2, 3, 9, 9]);
    assert_eq!(out[1].as_slice::<i32>(), [2, 3, 4, 3, 2, 1]);
    assert_eq!(out[2].as_slice::<i32>(), [1, 3, 6, 10]);
}

#[test]
fn threefry_gives_the_published_vectors() {
    // Known answers of Random123 for threefry2x32 with 20 rounds: counter, key, result.
    let cases: [([u32; 2], [u32; 2], [u32; 2]); 3] = [
        ([0, 0], [0, 0], [0x6b20_0159, 0x99ba_4efe]),
        ([u32::MAX; 2], [u32::MAX; 2], [0x1cb9_96fc, 0xbb00_2be7]),
        (
            [0x243f_6a88, 0x85a3_08d3],
            [0x1319_8a2e, 0x0370_7344],
            [0xc492_3a9c, 0x483d_f7a0],
        ),
    ];
    for (counter, key, expected) in cases {
        let words: Vec<HostArray> = key
            .iter()
            .chain(&counter)
            .map(|w| HostArray::from_slice(&[], &[*w]).unwrap())
            .collect();
        let out = run("threefry", &words, |_, x| {
            random::threefry_2x32([&x[0], &x[1]], [&x[2], &x[3]]).to_vec()
        });
        assert_eq!(
            [out[0].as_slice::<u32>()[0], out[1].as_slice::<u32>()[0]],
            expected
        );
    }
}

#[test]
fn uniform_numbers_stay_inside_the_open_interval() {
    let out = run(
        "uniform",
        &[HostArray::from_slice(&[2], &[0_u32, u32::MAX]).unwrap()],
        |_, x| vec![random::open_uniform(&x[0])],
    );
    let u = out[0].as_slice::<f32>();
    assert!(
        u[0] > 0.0 && u[0] < 1e-6 && u[1] < 1.0 && u[1] > 0.999_999,
        "{u:?}"
    );
}

#[test]
fn bits_and_finiteness() {
    let out = run(
        "bits",
        &[f32s(&[3], &[1.0, f32::NAN, f32::INFINITY])],
        |_, x| {
            vec![
                x[0].bitcast(DType::U32),
                x[0].is_finite().convert(DType::S32),
            ]
        },
    );
    assert_eq!(out[0].as_slice::<u32>()[0], 1.0_f32.to_bits());
    assert_eq!(out[1].as_slice::<i32>(), [1, 0, 0]);
}

#[test]
fn a_nan_is_the_extreme_of_whatever_it_stands_in() {
    for count in [5, 1000] {
        let mut values = vec![1.0_f32; count];
        (values[1], values[3]) = (f32::NAN, f32::INFINITY);
        let x = HostArray::from_slice(&[count], &values).unwrap();
        let found = run("nan", &[x], |_, x| {
            let up = x[0].cumulative_max(0).slice(0, 1, count);
            let down = x[0].cumulative_min(0).slice(0, 1, count);
            let pair = x[0].maximum(&x[0].scalar_like(2.0)).slice(0, 1, 2);
            vec![x[0].max(&[0]), x[0].min(&[0]), up, down, pair]
        });
        for (i, result) in found.iter().enumerate() {
            assert!(
                result.as_slice::<f32>().iter().all(|v| v.is_nan()),
                "{i} of {count}: {result:?}"
            );
        }
    }
}
