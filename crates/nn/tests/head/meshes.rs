//! The head on meshes: what one device computes, several compute together.

use ferrotune_graph::{DType, Mesh, Platform};
use ferrotune_nn::{EntropyUse, HeadMode};

use crate::case::{Case, Numbers, distance, relative};
use crate::oracle::{assert_near, oracle};

pub(crate) type Placed = (
    &'static [(&'static str, usize)],
    &'static [(&'static str, &'static [&'static str])],
);

/// Meshes of 2, 4 and 8 devices, and what is split over which axis.
pub(crate) const PLACED: [Placed; 8] = [
    (&[("data", 2)], &[("batch", &["data"])]),
    (
        &[("fsdp", 2)],
        &[("batch", &["fsdp"]), ("embed", &["fsdp"])],
    ),
    (
        &[("fsdp", 2)],
        &[("batch", &["fsdp"]), ("vocab", &["fsdp"])],
    ),
    (&[("tensor", 2)], &[("vocab", &["tensor"])]),
    (
        &[("fsdp", 2), ("tensor", 2)],
        &[
            ("batch", &["fsdp"]),
            ("embed", &["fsdp"]),
            ("vocab", &["tensor"]),
        ],
    ),
    (
        &[("fsdp", 2), ("tensor", 2)],
        &[("batch", &["fsdp"]), ("vocab", &["fsdp", "tensor"])],
    ),
    (
        &[("data", 2), ("fsdp", 2), ("context", 2)],
        &[
            ("batch", &["data", "fsdp"]),
            ("tokens", &["context"]),
            ("embed", &["fsdp"]),
        ],
    ),
    (
        &[("fsdp", 2), ("context", 2), ("tensor", 2)],
        &[
            ("batch", &["fsdp"]),
            ("tokens", &["context"]),
            ("embed", &["context"]),
            ("vocab", &["tensor", "fsdp"]),
        ],
    ),
];

pub(crate) fn on(case: &Case, (axes, rules): Placed) -> Case {
    Case {
        mesh: Mesh::new(axes).unwrap(),
        rules: rules
            .iter()
            .map(|(name, axes)| (*name, axes.to_vec()))
            .collect(),
        ..case.clone()
    }
}

fn forms() -> Vec<Case> {
    let all = usize::MAX;
    vec![
        Case::new(HeadMode::Off, all, all),
        Case::new(HeadMode::Local, 5, all),
        Case::new(HeadMode::Fused, all, all),
        Case::new(HeadMode::Fused, 5, 5),
        Case::new(HeadMode::SinglePass, all, all),
        Case::new(HeadMode::SinglePass, 5, 5),
    ]
}

#[test]
fn every_mode_says_on_every_mesh_what_the_formulas_say() {
    // Tiles of at most 5 entries leave a narrower rest on every device.
    let mut n = Numbers::new([4, 6, 8, 28]);
    n.mask[5] = false;
    for placed in PLACED {
        for (k, form) in forms().iter().enumerate() {
            // Every form in both ways on some mesh, and on every mesh in one.
            let tied = (k + placed.0.len() + placed.1.len()).is_multiple_of(2);
            let entropy = if tied {
                EntropyUse::Reported
            } else {
                EntropyUse::Differentiated
            };
            let case = Case {
                temperature: 0.7,
                tied,
                entropy,
                platform: if (k / 2 + placed.1.len()).is_multiple_of(2) {
                    Platform::Cpu
                } else {
                    Platform::Gpu
                },
                ..on(form, placed)
            };
            let expected = oracle(&n, 0.7, entropy == EntropyUse::Differentiated);
            let what = format!(
                "{:?} tied={tied} {entropy:?} on {} {:?}",
                case.settings, case.mesh, placed.1
            );
            assert_near(&case.run(&n), &expected, &what);
        }
    }
}

#[test]
fn every_mode_is_off_on_every_mesh_in_bf16_but_for_the_rounding_of_gradients() {
    let mut n = Numbers::new([4, 6, 8, 28]);
    n.mask[5] = false;
    let bf16 = |form: &Case| Case {
        temperature: 0.7,
        compute: DType::BF16,
        ..form.clone()
    };
    let off = bf16(&forms()[0]).run(&n);
    let expected = oracle(&n, 0.7, true);
    let forms = forms();
    for (m, placed) in PLACED.into_iter().enumerate() {
        // Two forms on every mesh, every form on two or three.
        for form in [&forms[m % 6], &forms[(m + 3) % 6]] {
            let case = Case {
                tied: m % 2 == 1,
                platform: if m < 4 { Platform::Gpu } else { Platform::Cpu },
                ..on(&bf16(form), placed)
            };
            let found = case.run(&n);
            let what = format!("{:?} on {} {:?}", case.settings, case.mesh, placed.1);
            // Logits are sums of the same 8 products in f32, whatever the devices are.
            let apart = [
                distance(&found.logprob, &off.logprob),
                distance(&found.entropy, &off.entropy),
            ];
            assert!(apart.iter().all(|it| *it <= 2e-6), "{what}: {apart:?}");
            assert_eq!(found.hit, off.hit, "{what}");
            // Gradients are sums of parts that are rounded to eight bits on each device, and once more in the end: one part in
            // 256 for each rounding, of the largest entry at most.
            let apart = [relative(&found.dx, &off.dx), relative(&found.dw, &off.dw)];
            assert!(
                apart.iter().all(|it| *it <= 1.0 / 128.0),
                "{what}: {apart:?}"
            );
            assert!(relative(&found.dw, &expected.dw) <= 1.0 / 64.0, "{what}");
        }
    }
}

/// Collectives of the text by name.
fn collectives(text: &str, name: &str) -> usize {
    text.matches(&format!("stablehlo.{name}\"")).count()
}

#[test]
fn gradients_of_weights_are_reduced_once_and_a_split_vocabulary_exchanges_numbers_of_tokens_only() {
    let n = Numbers::new([4, 6, 8, 24]);
    let text = |placed| {
        let case = on(&Case::new(HeadMode::Fused, 5, 9), placed);
        let (builder, _) = case.trace(&n, |g, args| {
            let scores = case.scores(args);
            g.grad(
                &(&args[4] * &scores.logprob).sum_all(),
                &[&args[0], &args[1]],
            )
        });
        builder.lower(Platform::Cpu).module.text
    };
    let data = text(PLACED[0]);
    let dw = data
        .lines()
        .filter(|l| l.contains("all_reduce") && l.contains("tensor<8x24xf32>"));
    assert_eq!(dw.count(), 1, "{data}");
    let fsdp = text(PLACED[1]);
    assert_eq!(collectives(&fsdp, "reduce_scatter"), 1, "{fsdp}");
    assert_eq!(collectives(&fsdp, "all_gather"), 2, "{fsdp}");
    let tensor = text(PLACED[3]);
    assert_eq!(collectives(&tensor, "all_gather"), 0, "{tensor}");
    assert_eq!(collectives(&tensor, "reduce_scatter"), 0, "{tensor}");
}
