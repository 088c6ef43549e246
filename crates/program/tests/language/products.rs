//! Contractions that the host's processor does by itself, against XLA's own in float64.

use ferrotune_graph::{DType, Graph, HostArray, Mesh, Platform, Sharding, Tensor};

use crate::check::{noise, run_on, text, trace_on};

/// Enough elements for a call, in every order of letters that models and their derivatives use.
const CASES: [(&str, &[usize], &[usize], bool); 9] = [
    ("btd,df->btf", &[3, 70, 96], &[96, 480], true),
    ("btd,fd->btf", &[3, 70, 96], &[480, 96], true),
    ("btf,df->btd", &[3, 70, 480], &[96, 480], true),
    ("btd,btf->df", &[3, 70, 96], &[3, 70, 480], true),
    ("df,btd->btf", &[96, 480], &[3, 70, 96], true),
    (
        "bkgts,bkse->bkgte",
        &[2, 3, 2, 40, 100],
        &[2, 3, 100, 64],
        true,
    ),
    ("bhtd,bhsd->bhst", &[2, 3, 100, 32], &[2, 3, 130, 32], true),
    ("bthd,bshd->bhts", &[2, 100, 3, 32], &[2, 130, 3, 32], true),
    // Rows that do not lie evenly are left to XLA.
    ("tdb,df->tbf", &[70, 96, 3], &[96, 480], false),
];

fn arguments(lhs: &[usize], rhs: &[usize]) -> [HostArray; 2] {
    [noise(lhs, 1, false), noise(rhs, 2, false)]
}

/// The contraction in f32, bf16 → f32, bf16 → bf16, and the same operands in f64.
fn forms(g: &Graph, spec: &str, a: &Tensor, b: &Tensor) -> Vec<Tensor> {
    forms_of_parts(g, spec, [a, b], |a, b| [a.clone(), b.clone()])
}

/// The same of parts, which are cut out of operands that have their type already.
fn forms_of_parts(
    g: &Graph,
    spec: &str,
    [a, b]: [&Tensor; 2],
    cut: impl Fn(&Tensor, &Tensor) -> [Tensor; 2],
) -> Vec<Tensor> {
    let mut results = Vec::new();
    for (operands, result) in [
        (DType::F32, DType::F32),
        (DType::BF16, DType::F32),
        (DType::BF16, DType::BF16),
    ] {
        let [a, b] = cut(&a.convert(operands), &b.convert(operands));
        let (exact_a, exact_b) = (a.convert(DType::F64), b.convert(DType::F64));
        results.push(g.einsum(spec, &a, &b, result).convert(DType::F64));
        results.push(g.einsum(spec, &exact_a, &exact_b, DType::F64));
    }
    results
}

fn check_forms(name: &str, found: &[HostArray]) {
    let size = |x: &HostArray| {
        x.as_slice::<f64>()
            .iter()
            .fold(0.0_f64, |m, v| m.max(v.abs()))
    };
    for (pair, tolerance) in found.chunks(2).zip([2e-6, 2e-6, 4e-3]) {
        let (found, exact) = (pair[0].as_slice::<f64>(), pair[1].as_slice::<f64>());
        let worst = found
            .iter()
            .zip(exact)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f64::max);
        assert!(
            worst <= tolerance * size(&pair[1]),
            "{name}: off by {worst}"
        );
    }
}

#[test]
fn the_processors_products_are_those_of_xla() {
    for (spec, lhs, rhs, called) in CASES {
        let args = arguments(lhs, rhs);
        let found = run_on(&Mesh::single(), spec, &args, |g, x| {
            forms(g, spec, &x[0], &x[1])
        });
        check_forms(spec, &found);
        let text = text(Platform::Cpu, [lhs, rhs], DType::BF16, |g, a, b| {
            g.einsum(spec, a, b, DType::F32)
        });
        assert_eq!(text.contains("kernel = \"product\""), called, "{spec}");
        let elsewhere = self::text_for_tpu(lhs, rhs, spec);
        assert!(elsewhere.contains("dot_general"), "{spec}");
    }
}

fn text_for_tpu(lhs: &[usize], rhs: &[usize], spec: &str) -> String {
    text(Platform::Tpu, [lhs, rhs], DType::BF16, |g, a, b| {
        g.einsum(spec, a, b, DType::F32)
    })
}

/// A slice of stacked weights is read where it lies.
#[test]
fn slices_are_read_in_place() {
    let args = arguments(&[2, 70, 96], &[4, 3, 96, 480]);
    let product = |g: &Graph, x: &[Tensor]| {
        let found = [0, 3].map(|i| {
            forms_of_parts(g, "btd,df->btf", [&x[0], &x[1]], |rows, weights| {
                let weight = weights.slice(0, i, i + 1).reshape(&[3, 96, 480]);
                let weight = weight.slice(0, 2, 3).reshape(&[96, 480]);
                [rows.slice(0, 1, 2), weight]
            })
        });
        found.concat()
    };
    let found = run_on(&Mesh::single(), "slices", &args, product);
    check_forms("the first", &found[..6]);
    check_forms("the last", &found[6..]);
    let direct = |g: &Graph, x: &[Tensor]| {
        let [a, b] = [&x[0], &x[1]].map(|x| x.convert(DType::F32));
        let weight = b.slice(0, 3, 4).reshape(&[3, 96, 480]).slice(0, 1, 2);
        vec![g.einsum("btd,df->btf", &a, &weight.reshape(&[96, 480]), DType::F32)]
    };
    let (builder, _) = trace_on(&Mesh::single(), "in_place", &args, direct);
    let text = builder.lower(Platform::Cpu).module.text;
    let first = 3 * 3 * 96 * 480 + 96 * 480;
    // Operand 1 begins there, and has two dimensions.
    assert!(text.contains(&format!("\"parts\" = array<i64: 1, {first}, 2, 96, 480>")));
}

#[test]
fn devices_of_a_region_call_with_their_parts() {
    let mesh = Mesh::new(&[("x", 2)]).unwrap();
    let args = arguments(&[4, 70, 96], &[96, 480]);
    let found = run_on(&mesh, "parts", &args, |g, x| {
        let rows = |rank: usize| {
            let mut dims = vec![Vec::new(); rank];
            dims[0] = vec!["x".to_owned()];
            Sharding { dims }
        };
        let inputs = [(&x[0], rows(3)), (&x[1], Sharding::replicated(2))];
        let outputs: Vec<Sharding> = (0..6).map(|_| rows(3)).collect();
        g.manual(&["x"], &inputs, &outputs, |parts| {
            forms(g, "btd,df->btf", &parts[0], &parts[1])
        })
    });
    check_forms("in parts", &found);
    // Outside of a region, where arrays may be split, XLA divides the product: no device is to gather it.
    let whole = |g: &Graph, x: &[Tensor]| forms(g, "btd,df->btf", &x[0], &x[1]);
    let text = trace_on(&mesh, "whole", &args, whole)
        .0
        .lower(Platform::Cpu);
    assert!(!text.module.text.contains("custom_call"));
    check_forms("whole", &run_on(&mesh, "whole", &args, whole));
}
