//! Products against the plain sum, in every layout and at every edge.

use half::{bf16, f16};

use crate::matrix::Matrix;
use crate::{Number, Packed, Threads, multiply_rounded};

/// Whole numbers of a few bits: every sum is exact, in any order and in any type.
fn numbers<T: Number>(count: usize, seed: usize) -> Vec<T> {
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 13) as f32 - 6.0;
    (0..count).map(|i| T::nearest(number(i))).collect()
}

/// A matrix whose rows, or columns, lie side by side, with gaps between them.
fn strides(dims: [usize; 2], turned: bool, gap: usize) -> [usize; 2] {
    if turned {
        [1, dims[0] + gap]
    } else {
        [dims[1] + gap, 1]
    }
}

fn plain<T: Number>(a: Matrix<'_, T>, b: Matrix<'_, T>) -> Vec<f32> {
    let at = |m: &Matrix<'_, T>, i: usize, j: usize| {
        m.data()[i * m.strides()[0] + j * m.strides()[1]].wide()
    };
    let mut out = Vec::new();
    for i in 0..a.rows() {
        for j in 0..b.columns() {
            out.push((0..a.columns()).map(|k| at(&a, i, k) * at(&b, k, j)).sum());
        }
    }
    out
}

const SIZES: [[usize; 3]; 12] = [
    [1, 1, 1],
    [1, 64, 96],
    [3, 33, 70],
    [8, 64, 32],
    [9, 40, 129],
    [31, 31, 31],
    [33, 32, 64],
    [64, 96, 160],
    [65, 64, 64],
    [100, 1030, 40],
    [300, 70, 50],
    [5, 7, 1100],
];

fn every_layout<T: Number>(
    check: impl Fn(Matrix<'_, T>, Matrix<'_, T>, &[f32], &dyn std::fmt::Display),
) {
    for [m, k, n] in SIZES {
        for (left, right) in [(false, false), (false, true), (true, false), (true, true)] {
            for gap in [0, 3] {
                let (a_strides, b_strides) =
                    (strides([m, k], left, gap), strides([k, n], right, gap));
                let a = numbers::<T>((m + gap) * (k + gap), 1);
                let b = numbers::<T>((k + gap) * (n + gap), 2);
                let a = Matrix::new(&a, [m, k], a_strides);
                let b = Matrix::new(&b, [k, n], b_strides);
                let name = format!("{m} × {k} × {n}, turned {left} {right}, gap {gap}");
                check(a, b, &plain(a, b), &name);
            }
        }
    }
}

fn products_are_plain_sums<T: Number>() {
    every_layout::<T>(|a, b, right, name| {
        for threads in [Threads::One, Threads::All] {
            let mut out = vec![f32::NAN; right.len()];
            T::multiply(a, b, &mut out, threads);
            assert!(out == right, "{name}, {threads:?}");
        }
    });
}

#[test]
fn products_of_f32_are_plain_sums() {
    products_are_plain_sums::<f32>();
}

#[test]
fn products_of_bf16_are_plain_sums() {
    products_are_plain_sums::<bf16>();
}

#[test]
fn products_of_f16_are_plain_sums() {
    products_are_plain_sums::<f16>();
}

#[test]
fn rounded_products_are_rounded_once() {
    every_layout::<bf16>(|a, b, right, name| {
        let mut out = vec![bf16::NAN; right.len()];
        multiply_rounded(a, b, &mut out, Threads::All);
        let right: Vec<bf16> = right.iter().map(|sum| bf16::from_f32(*sum)).collect();
        assert!(out == right, "{name}");
    });
}

#[test]
fn without_tiles_products_are_the_same() {
    every_layout::<bf16>(|a, b, right, name| {
        let mut out = vec![f32::NAN; right.len()];
        crate::narrow::multiply(a, b, &mut out, Threads::All);
        assert!(out == right, "{name}");
    });
}

/// What packed products of f32 fall back to without 512-bit registers.
#[test]
fn without_tiles_sums_of_f32_are_added_or_written_over() {
    every_layout::<f32>(|a, b, right, name| {
        let (n, stride) = (b.columns(), b.columns() + 5);
        let mut sums = vec![f32::NAN; a.rows() * stride];
        for times in 1..3 {
            crate::wide::add_here(a, b, &mut sums, stride, times == 1);
            for (row, right) in sums.chunks(stride).zip(right.chunks(n)) {
                let pairs = row.iter().zip(right);
                assert!(
                    pairs
                        .into_iter()
                        .all(|(sum, right)| *sum == times as f32 * right),
                    "{name}, {times}"
                );
            }
        }
    });
}

fn packed_products_add_up<T: Number>() {
    every_layout::<T>(|a, b, right, name| {
        let (m, n) = (a.rows(), b.columns());
        let (rows, stride) = (Packed::padded(m), Packed::padded(n) + 32);
        let mut packed = Packed::default();
        // What was packed before leaves nothing behind.
        let before = numbers::<T>(90 * 90, 3);
        T::pack(Matrix::new(&before, [90, 90], [90, 1]), &mut packed);
        T::pack(b, &mut packed);
        let mut sums = vec![f32::NAN; rows * stride];
        for times in 1..3 {
            T::multiply_packed(a, &packed, n, &mut sums, stride, times == 1);
            for i in 0..m {
                for j in 0..n {
                    let expected = times as f32 * right[i * n + j];
                    assert!(
                        sums[i * stride + j] == expected,
                        "{name}: {i}, {j}, {times}"
                    );
                }
            }
        }
    });
}

#[test]
fn packed_products_are_added_or_written_over() {
    packed_products_add_up::<f32>();
    packed_products_add_up::<bf16>();
    packed_products_add_up::<f16>();
}

fn zeros_follow_packed_rows<T: Number>() {
    let (a, b) = (numbers::<T>(40 * 64, 1), numbers::<T>(37 * 20, 2));
    let b = Matrix::new(&b, [37, 20], [20, 1]);
    let right = plain(Matrix::new(&a, [40, 37], [64, 1]), b);
    let mut packed = Packed::default();
    T::pack(b, &mut packed);
    let mut sums = vec![f32::NAN; 64 * 32];
    let a = Matrix::new(&a, [40, 64], [64, 1]);
    T::multiply_packed(a, &packed, 20, &mut sums, 32, true);
    for (row, right) in right.chunks(20).enumerate() {
        assert_eq!(&sums[row * 32..][..20], right, "row {row}");
    }
}

#[test]
fn rows_of_zeros_follow_a_packed_operand() {
    zeros_follow_packed_rows::<f32>();
    zeros_follow_packed_rows::<bf16>();
    zeros_follow_packed_rows::<f16>();
}

/// What training finds for a token must be what decoding finds for it alone.
#[test]
fn a_row_has_the_same_bits_alone_and_in_company() {
    let (m, k, n) = (150, 1056, 96);
    let number = |i: usize| ((i * 7919) % 1009) as f32 / 997.0 - 0.5;
    let a: Vec<bf16> = (0..m * k).map(|i| bf16::from_f32(number(i))).collect();
    let b: Vec<bf16> = (0..k * n)
        .map(|i| bf16::from_f32(number(3 * i + 1)))
        .collect();
    let turned: Vec<bf16> = (0..k * n).map(|i| b[i % k * n + i / k]).collect();
    let (row_major, column_major) = (
        Matrix::new(&b, [k, n], [n, 1]),
        Matrix::new(&turned, [k, n], [1, k]),
    );
    let product = |first: usize, rows: usize, b: Matrix<'_, bf16>| {
        let mut out = vec![0.0; rows * n];
        let a = Matrix::new(&a[first * k..], [rows, k], [k, 1]);
        bf16::multiply(a, b, &mut out, Threads::All);
        out
    };
    if !crate::tiles::available::<bf16>() {
        eprintln!("NOT CHECKED: this processor has no tiles");
        return;
    }
    let all = product(0, m, row_major);
    for (first, rows) in [(0, 1), (7, 1), (40, 8), (64, 33), (10, 64), (3, 147)] {
        let expected = &all[first * n..(first + rows) * n];
        for b in [row_major, column_major] {
            let found = product(first, rows, b);
            let same = found
                .iter()
                .zip(expected)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "rows {first}+{rows}");
        }
    }
}

#[test]
fn numbers_that_are_none_stay_in_their_row() {
    let (m, k, n) = (40, 64, 64);
    let mut a = numbers::<bf16>(m * k, 1);
    let b = numbers::<bf16>(k * n, 2);
    a[5 * k + 3] = bf16::NAN;
    a[9 * k] = bf16::INFINITY;
    let mut out = vec![0.0; m * n];
    let b = Matrix::new(&b, [k, n], [n, 1]);
    bf16::multiply(Matrix::new(&a, [m, k], [k, 1]), b, &mut out, Threads::All);
    for (row, values) in out.chunks(n).enumerate() {
        let finite = values.iter().all(|v| v.is_finite());
        assert_eq!(finite, row != 5 && row != 9, "row {row}");
    }
}

#[test]
fn what_was_packed_before_does_not_fill_up_tiles() {
    for turned in [false, true] {
        let nothing = vec![bf16::NAN; 64 * 64];
        let nothing = Matrix::new(&nothing, [64, 64], strides([64, 64], turned, 0));
        let mut out = vec![0.0; 64 * 64];
        bf16::multiply(nothing, nothing, &mut out, Threads::One);
        let [m, k, n] = [40, 37, 41];
        let (a, b) = (numbers::<bf16>(m * k, 1), numbers::<bf16>(k * n, 2));
        let a = Matrix::new(&a, [m, k], strides([m, k], turned, 0));
        let b = Matrix::new(&b, [k, n], strides([k, n], turned, 0));
        bf16::multiply(a, b, &mut out[..m * n], Threads::One);
        assert!(out[..m * n] == plain(a, b), "turned {turned}");
    }
}

#[test]
fn rounding_is_to_the_nearest_and_to_even() {
    for i in 0..200_000_u32 {
        let value = f32::from_bits(i.wrapping_mul(2_654_435_761));
        let (found, right) = (<bf16 as Number>::nearest(value), bf16::from_f32(value));
        assert!(
            found == right || (found.is_nan() && right.is_nan()),
            "{value}"
        );
    }
}

#[test]
fn empty_products_are_zeros() {
    let mut out = vec![1.0; 6];
    f32::multiply(
        Matrix::new(&[], [2, 0], [0, 1]),
        Matrix::new(&[], [0, 3], [3, 1]),
        &mut out,
        Threads::All,
    );
    assert_eq!(out, [0.0; 6]);
    let mut out = vec![1.0; 6];
    bf16::multiply(
        Matrix::new(&[], [2, 0], [0, 1]),
        Matrix::new(&[], [0, 3], [3, 1]),
        &mut out,
        Threads::All,
    );
    assert_eq!(out, [0.0; 6]);
}

#[test]
#[should_panic(expected = "does not fit into 5 elements")]
fn a_matrix_outside_of_its_slice_is_refused() {
    let _ = Matrix::new(&[0.0_f32; 5], [2, 3], [3, 1]);
}

#[test]
fn every_task_runs_once_and_a_panic_comes_back() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for round in 0..2000 {
        let count = round % 7;
        let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
        crate::team::run(count, &|i| {
            done[i].fetch_add(1, Ordering::Relaxed);
        });
        assert!(done.iter().all(|d| d.load(Ordering::Relaxed) == 1));
    }
    let failed = std::panic::catch_unwind(|| crate::team::run(4, &|i| assert!(i != 2, "task two")));
    let words = failed.expect_err("the panic comes back");
    assert!(
        words
            .downcast_ref::<&str>()
            .is_some_and(|w| w.contains("task two"))
    );
    // Several callers at once.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let sum = AtomicUsize::new(0);
                    crate::team::run(9, &|i| {
                        sum.fetch_add(i, Ordering::Relaxed);
                    });
                    assert_eq!(sum.load(Ordering::Relaxed), 36);
                }
            });
        }
    });
}

/// Left operands that are too large to be packed at once.
#[test]
fn large_left_operands_are_packed_block_by_block() {
    let (m, k, n) = (65, 262_176, 8);
    let (a, b) = (numbers::<bf16>(m * k, 1), numbers::<bf16>(k * n, 2));
    let (a, b) = (
        Matrix::new(&a, [m, k], [k, 1]),
        Matrix::new(&b, [k, n], [n, 1]),
    );
    let mut out = vec![f32::NAN; m * n];
    bf16::multiply(a, b, &mut out, Threads::All);
    assert!(out == plain(a, b));
}
