//! Products and triangular systems: values against the host, forms chosen for the device, loops.

use ferrotune_graph::{DType, HostArray, Platform, Policy, Precision, Tensor};

use crate::check::{derivative, noise, run, text};

#[test]
fn the_precision_is_written_and_the_derivative_keeps_it() {
    let text = text(Platform::Tpu, [&[2, 3], &[3, 4]], DType::F32, |g, a, b| {
        let y = g.einsum_with("ab,bc->ac", a, b, DType::F32, Precision::Highest);
        g.grad(&y.square().sum_all(), &[a]).remove(0)
    });
    assert_eq!(
        text.matches("precision = [HIGHEST, HIGHEST]").count(),
        2,
        "{text}"
    );
    assert!(!text.contains("DEFAULT"), "{text}");
}

#[test]
fn sums_are_formed_in_a_type_wide_enough() {
    let out = run("wide", &[noise(&[3], 1, false)], |g, x| {
        let big = g.full(100.0, DType::S8, &[300]);
        let thin = x[0].convert(DType::F8E4M3FN);
        vec![
            g.einsum("a,a->", &big, &big, DType::S32),
            g.einsum("a,a->", &x[0], &x[0], DType::F32),
            g.einsum("a,a->", &thin, &thin, DType::F32),
            thin.convert(DType::F32).square().sum_all(),
            g.einsum(
                "a,a->",
                &g.full(3.0, DType::U8, &[4]),
                &g.full(5.0, DType::U8, &[4]),
                DType::U8,
            ),
        ]
    });
    assert_eq!(out[0].as_slice::<i32>(), [3_000_000]);
    let exact: f64 = noise(&[3], 1, false)
        .as_slice::<f64>()
        .iter()
        .map(|v| v * v)
        .sum();
    assert_eq!(out[1].as_slice::<f32>(), [exact as f32]);
    assert_eq!(out[2].as_slice::<f32>(), out[3].as_slice::<f32>());
    assert_eq!(out[4].as_slice::<u8>(), [60]);
}

#[test]
fn a_bf16_operand_that_ends_with_the_wrong_dimension_is_copied_on_the_cpu_only() {
    let product = |platform, spec: &'static str, dims: [&[usize]; 2]| {
        text(platform, dims, DType::BF16, |g, a, b| {
            g.einsum(spec, a, b, DType::F32)
        })
    };
    let copied = |text: &str| text.contains("stablehlo.transpose");
    assert!(copied(&product(
        Platform::Cpu,
        "td,tf->df",
        [&[6, 4], &[6, 8]]
    )));
    assert!(
        copied(&product(Platform::Cpu, "td,tf->df", [&[6, 3], &[6, 8]])),
        "the summed dimension is even"
    );
    assert!(
        !copied(&product(Platform::Cpu, "td,tf->df", [&[5, 3], &[5, 8]])),
        "nothing to halve"
    );
    assert!(!copied(&product(
        Platform::Cpu,
        "dt,tf->df",
        [&[4, 6], &[6, 8]]
    )));
    assert!(!copied(&product(
        Platform::Tpu,
        "td,tf->df",
        [&[6, 4], &[6, 8]]
    )));
}

#[test]
fn copied_operands_give_the_products_of_the_host() {
    let cases: [(&str, &[usize], &[usize]); 6] = [
        ("td,tf->df", &[6, 4], &[6, 8]),
        ("td,tf->fd", &[6, 4], &[6, 8]),
        ("td,ft->df", &[6, 3], &[4, 6]),
        ("btd,btf->bdf", &[2, 4, 3], &[2, 4, 6]),
        ("btd,btf->df", &[2, 3, 6], &[2, 3, 5]),
        ("tbgd,bts->bgds", &[4, 2, 3, 2], &[2, 4, 5]),
    ];
    for (spec, a, b) in cases {
        let args = [noise(a, 1, false), noise(b, 2, false)];
        let out = run("copied", &args, |g, x| {
            let [a, b] = [&x[0], &x[1]].map(|x| x.convert(DType::BF16));
            let narrow = g.einsum(spec, &a, &b, DType::F32);
            let [a, b] = [&a, &b].map(|x| x.convert(DType::F32));
            vec![narrow, g.einsum(spec, &a, &b, DType::F32)]
        });
        assert_eq!(out[0].dims(), out[1].dims());
        for (x, y) in out[0]
            .as_slice::<f32>()
            .iter()
            .zip(out[1].as_slice::<f32>())
        {
            // Products of bf16 numbers are exact in f32; the order of a few additions may differ.
            assert!((x - y).abs() <= 1e-6 * (1.0 + y.abs()), "{spec}: {x} {y}");
        }
    }
}

/// Forward substitution in f64 for `[N,N]` lower and `[N,M]`.
fn substitute(a: &[f64], b: &[f64], n: usize, unit: bool) -> Vec<f64> {
    let m = b.len() / n;
    let mut x = b.to_vec();
    for i in 0..n {
        for k in 0..m {
            let known: f64 = (0..i).map(|j| a[i * n + j] * x[j * m + k]).sum();
            x[i * m + k] -= known;
            if !unit {
                x[i * m + k] /= a[i * n + i];
            }
        }
    }
    x
}

#[test]
fn triangular_systems_of_every_size_are_solved() {
    for n in [1, 2, 3, 16, 17, 33, 48, 64, 100] {
        let (a, b) = (noise(&[n, n], n as u64, false), noise(&[n, 3], 2, false));
        let small: Vec<f64> = a
            .as_slice::<f64>()
            .iter()
            .enumerate()
            .map(|(k, v)| if k / n == k % n { 2.0 + v } else { v * 0.3 })
            .collect();
        let a = HostArray::from_slice(&[n, n], &small).unwrap();
        let out = run("triangular", &[a, b.clone()], |_, x| {
            let flip = |t: &Tensor| t.reverse(0);
            let upper = flip(&x[0])
                .reverse(1)
                .solve_triangular(&flip(&x[1]), false, false);
            vec![
                x[0].solve_triangular(&x[1], true, true),
                x[0].solve_triangular(&x[1], true, false),
                flip(&upper),
            ]
        });
        for (found, unit) in out.iter().zip([true, false, false]) {
            let expected = substitute(&small, b.as_slice::<f64>(), n, unit);
            for (x, y) in found.as_slice::<f64>().iter().zip(&expected) {
                assert!(
                    (x - y).abs() <= 1e-11 * (1.0 + y.abs()),
                    "{n} {unit}: {x} {y}"
                );
            }
        }
    }
}

#[test]
fn a_chunk_of_the_delta_rule_is_solved_to_f32() {
    // Keys of unit length and rates up to 1: the systems that the gated delta rule solves, all keys alike at worst.
    let (n, d) = (64, 8);
    for likeness in [0.0, 5.0] {
        let keys = noise(&[n, d], 3, false);
        let rates = noise(&[n], 4, true);
        let out = run("delta", &[keys, rates, noise(&[n, 4], 5, false)], |g, x| {
            let k = &x[0] + likeness;
            let k = &k * k.square().sum_keep(&[1]).rsqrt();
            let a = g.einsum("id,jd->ij", &k, &k, DType::F64)
                * x[1].minimum(&x[1].scalar_like(1.0)).expand(1);
            let narrow = [&a, &x[2]].map(|t| t.convert(DType::F32));
            vec![
                a.clone(),
                narrow[0]
                    .solve_triangular(&narrow[1], true, true)
                    .convert(DType::F64),
            ]
        });
        let expected = substitute(
            out[0].as_slice::<f64>(),
            noise(&[n, 4], 5, false).as_slice::<f64>(),
            n,
            true,
        );
        let largest = expected.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
        for (x, y) in out[1].as_slice::<f64>().iter().zip(&expected) {
            assert!((x - y).abs() <= 2e-5 * largest, "{likeness}: {x} {y}");
        }
    }
}

#[test]
fn what_stands_in_the_other_triangle_is_not_read() {
    let a = HostArray::from_slice(&[2, 2], &[f64::NAN, f64::NAN, 0.5, f64::NAN]).unwrap();
    let b = HostArray::from_slice(&[2, 1], &[2.0, 3.0]).unwrap();
    let out = run("unread", &[a, b], |g, x| {
        let y = x[0].solve_triangular(&x[1], true, true);
        let d = g.grad(&y.sum_all(), &[&x[0]]).remove(0);
        vec![y, d]
    });
    assert_eq!(out[0].as_slice::<f64>(), [2.0, 2.0]);
    assert_eq!(out[1].as_slice::<f64>(), [0.0, 0.0, -2.0, 0.0]);
}

#[test]
fn systems_and_groups_are_differentiated_inside_of_loops() {
    let args = [
        noise(&[3, 4, 4], 1, false),
        noise(&[4, 2], 2, false),
        noise(&[2, 2, 2], 3, false),
    ];
    for policy in [Policy::recompute(), Policy::keep_dots()] {
        derivative("in_scan", &args, |g, x| {
            let sizes = g.constant(HostArray::from_slice(&[2], &[1, 2]).unwrap());
            let (carry, ys) = g.scan(
                policy.clone(),
                vec![x[1].clone()],
                vec![x[0].clone()],
                3,
                |_, c, a| {
                    let solved = (&a[0] * 0.4).solve_triangular(&c[0], true, true);
                    let mixed = g.ragged_dot(&solved, &x[2], &sizes, DType::F64).tanh();
                    (vec![&mixed + &c[0] * 0.5], vec![mixed.cumulative_max(0)])
                },
            );
            carry[0].expand(0) * &ys[0]
        });
    }
}
