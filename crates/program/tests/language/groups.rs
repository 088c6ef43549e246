//! Products in groups of rows: values against the host, rows of no group, empty groups, forms chosen for the device.

use ferrotune_graph::{DType, Graph, HostArray, Mesh, Platform, Rules};
use half::bf16;

use crate::check::{noise, run, text};

/// `[M,K]` times `[G,K,N]` on the host.
fn groups_on_host(rows: &HostArray, matrices: &HostArray, sizes: &[i32]) -> Vec<f64> {
    let (m, k) = (rows.dims()[0], rows.dims()[1]);
    let n = matrices.dims()[2];
    let (rows, matrices) = (rows.as_slice::<f64>(), matrices.as_slice::<f64>());
    let owner: Vec<usize> = sizes
        .iter()
        .enumerate()
        .flat_map(|(g, s)| std::iter::repeat_n(g, *s as usize))
        .collect();
    let mut out = vec![0.0; m * n];
    for (r, g) in owner.into_iter().take(m).enumerate() {
        for c in 0..n {
            out[r * n + c] = (0..k)
                .map(|i| rows[r * k + i] * matrices[(g * k + i) * n + c])
                .sum();
        }
    }
    out
}

#[test]
fn rows_meet_the_matrix_of_their_group() {
    let (m, k, n) = (75, 3, 4);
    let cases: [&[i32]; 8] = [
        &[75],
        &[0, 75, 0],
        &[20, 0, 17, 38, 0],
        &[1, 1, 1, 1, 1, 1],
        &[0, 0, 0, 0],
        &[16, 16, 16, 16],
        &[33, 31, 11],
        &[50, 50, 50],
    ];
    for sizes in cases {
        let groups = sizes.len();
        let (rows, matrices) = (noise(&[m, k], 1, false), noise(&[groups, k, n], 2, false));
        let counts = HostArray::from_slice(&[groups], sizes).unwrap();
        let out = run(
            "ragged",
            &[rows.clone(), matrices.clone(), counts],
            |g, x| vec![g.ragged_dot(&x[0], &x[1], &x[2], DType::F64)],
        );
        let expected = groups_on_host(&rows, &matrices, sizes);
        for (x, y) in out[0].as_slice::<f64>().iter().zip(&expected) {
            assert!((x - y).abs() < 1e-12, "{sizes:?}: {x} {y}");
        }
    }
}

#[test]
fn outer_products_are_summed_over_all_rows_of_their_group() {
    // Groups of many tiles, of one, of none; rows of no group at the end.
    let (m, k, n) = (75, 3, 4);
    for sizes in [&[75][..], &[0, 60, 10], &[20, 0, 38, 17, 0]] {
        let groups = sizes.len();
        let (a, b) = (noise(&[m, k], 1, false), noise(&[m, n], 2, false));
        let counts = HostArray::from_slice(&[groups], sizes).unwrap();
        let out = run("outer", &[a.clone(), b.clone(), counts], |g, x| {
            vec![g.ragged_outer(&x[0], &x[1], &x[2], DType::F64)]
        });
        let (a, b, found) = (
            a.as_slice::<f64>(),
            b.as_slice::<f64>(),
            out[0].as_slice::<f64>(),
        );
        let mut first = 0;
        for (g, size) in sizes.iter().enumerate() {
            let rows = first..first + *size as usize;
            for (i, j) in (0..k).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let sum: f64 = rows.clone().map(|r| a[r * k + i] * b[r * n + j]).sum();
                let x = found[(g * k + i) * n + j];
                assert!((x - sum).abs() < 1e-12, "{sizes:?} group {g}: {x} {sum}");
            }
            first = rows.end;
        }
    }
}

#[test]
fn rows_of_no_group_are_not_looked_at() {
    let mut rows = vec![1.0; 6];
    rows[5] = f64::NAN;
    let rows = HostArray::from_slice(&[6, 1], &rows).unwrap();
    let sizes = HostArray::from_slice(&[2], &[2, 2]).unwrap();
    let out = run(
        "unowned",
        &[rows, noise(&[2, 1, 1], 1, false), sizes],
        |g, x| {
            let y = g.ragged_dot(&x[0], &x[1], &x[2], DType::F64);
            let d = g.grad(&y.sum_all(), &[&x[1]]).remove(0);
            vec![y, d]
        },
    );
    assert_eq!(out[0].as_slice::<f64>()[4..], [0.0, 0.0]);
    assert_eq!(out[1].as_slice::<f64>(), [2.0, 2.0]);
}

#[test]
fn narrow_rows_are_summed_wide_and_rounded_once() {
    let k = 512;
    let small = bf16::from_f32(1.007_812_5);
    let rows = HostArray::from_slice(&[2, k], &vec![small; 2 * k]).unwrap();
    let matrices = HostArray::from_slice(&[1, k, 1], &vec![bf16::ONE; k]).unwrap();
    let out = run("ragged_bf16", &[rows, matrices], |g, x| {
        let sizes = g.full(2.0, DType::S32, &[1]);
        vec![
            g.ragged_dot(&x[0], &x[1], &sizes, DType::BF16),
            g.ragged_dot(&x[0], &x[1], &sizes, DType::F32),
        ]
    });
    let exact = small.to_f32() * k as f32;
    assert_eq!(out[0].as_slice::<bf16>(), [bf16::from_f32(exact); 2]);
    assert_eq!(out[1].as_slice::<f32>(), [exact; 2]);
}

#[test]
fn nothing_times_nothing_has_the_right_shape() {
    let dims: [(usize, usize, usize, usize); 4] =
        [(0, 2, 3, 4), (5, 0, 3, 4), (5, 2, 0, 4), (5, 2, 3, 0)];
    for (m, groups, k, n) in dims {
        let args = [noise(&[m, k], 1, false), noise(&[groups, k, n], 2, false)];
        let out = run("ragged_empty", &args, |g, x| {
            let sizes = g.full(1.0, DType::S32, &[groups]);
            let y = g.ragged_dot(&x[0], &x[1], &sizes, DType::F64);
            let d = g.grad(&y.sum_all(), &[&x[0], &x[1]]);
            vec![y, d[0].clone(), d[1].clone()]
        });
        assert_eq!(out[0].dims(), [m, n]);
        assert!(
            out.iter()
                .all(|o| o.as_slice::<f64>().iter().all(|v| *v == 0.0))
        );
    }
}

#[test]
fn a_tpu_is_given_its_own_operation_and_others_a_loop() {
    let of = |platform| {
        text(platform, [&[8, 4], &[2, 4, 6]], DType::BF16, |g, a, b| {
            let sizes = g.constant(HostArray::from_slice(&[2], &[3, 5]).unwrap());
            let y = g.ragged_dot(a, b, &sizes, DType::BF16);
            g.grad(&y.convert(DType::F32).square().sum_all(), &[a])
                .remove(0)
        })
    };
    let tpu = of(Platform::Tpu);
    assert_eq!(tpu.matches("chlo.ragged_dot").count(), 4, "{tpu}");
    assert!(!tpu.contains("while"), "{tpu}");
    for platform in [Platform::Cpu, Platform::Gpu] {
        let text = of(platform);
        assert!(!text.contains("ragged"), "{text}");
        assert_eq!(text.matches("stablehlo.while").count(), 2, "{text}");
    }
}

#[test]
fn the_work_of_products_in_groups_is_that_of_one_product() {
    let g = Graph::new("cost", Mesh::single(), Rules::default());
    let rows = g.input("rows", DType::F32, &[40, 8], &["_", "_"]);
    let matrices = g.input("matrices", DType::F32, &[4, 8, 16], &["_", "_", "_"]);
    let sizes = g.input("sizes", DType::S32, &[4], &["_"]);
    let y = g.ragged_dot(&rows, &matrices, &sizes, DType::F32);
    let brought_into_bounds = 2.0 * 4.0; // the sizes
    let product = 2.0 * 40.0 * 8.0 * 16.0;
    assert_eq!(g.cost(&[&y]).flops, product + brought_into_bounds);
}

#[test]
fn sizes_that_do_not_fit_are_brought_into_bounds() {
    let rows = HostArray::from_slice(&[5, 1], &[1.0_f64, 2.0, 3.0, 4.0, 5.0]).unwrap();
    let matrices = HostArray::from_slice(&[3, 1, 1], &[1.0_f64, 10.0, 100.0]).unwrap();
    for (sizes, expected) in [
        ([2, i32::MAX, 0], [1.0, 2.0, 30.0, 40.0, 50.0]),
        ([i32::MAX; 3], [1.0, 2.0, 3.0, 4.0, 5.0]),
        ([3, -2, 4], [1.0, 2.0, 3.0, 400.0, 500.0]),
    ] {
        let sizes = HostArray::from_slice(&[3], &sizes).unwrap();
        let found = run("sizes", &[rows.clone(), matrices.clone(), sizes], |g, x| {
            vec![g.ragged_dot(&x[0], &x[1], &x[2], DType::F64)]
        });
        assert_eq!(found[0].as_slice::<f64>(), expected);
    }
}
