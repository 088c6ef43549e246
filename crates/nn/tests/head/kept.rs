//! What a sampler's filters leave of each distribution.

use ferrotune_graph::{DType, Platform};
use ferrotune_nn::{FilterSettings, Filters, HeadMode};

use crate::case::{Case, Numbers, distance, noise, values};
use crate::meshes::{PLACED, on};

/// Every kind alone, all together, and none.
fn settings() -> [FilterSettings; 8] {
    let of = |top_k, top_p, min_p| FilterSettings {
        top_k,
        top_p,
        min_p,
    };
    [
        FilterSettings::default(),
        of(3, 1.0, 0.0),
        of(0, 0.7, 0.0),
        of(0, 1.0, 0.3),
        of(7, 0.8, 0.2),
        of(1, 1.0, 0.0),
        of(0, 1e-9, 0.0),
        of(500, 0.95, 1.0),
    ]
}

/// Mass and whether the target is kept, by sorting in f64, for logits of one token.
fn by_sorting(z: &[f64], asked: FilterSettings, target: usize) -> (f64, bool) {
    let peak = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let p: Vec<f64> = z.iter().map(|z| (z - peak).exp()).collect();
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| z[*b].total_cmp(&z[*a]));
    // The first that are kept, and all that equal the last of them.
    let with_ties = |count: usize| {
        let last = z[order[count - 1]];
        order.iter().filter(|i| z[**i] >= last).count()
    };
    let mut kept = match asked.top_k {
        0 => p.len(),
        k => with_ties(k.min(p.len())),
    };
    if asked.top_p < 1.0 {
        let total: f64 = order[..kept].iter().map(|i| p[*i]).sum();
        let mut sum = 0.0;
        let enough = order[..kept].iter().position(|i| {
            sum += p[*i];
            sum >= asked.top_p * total
        });
        kept = with_ties(enough.unwrap() + 1);
    }
    let near = order.iter().filter(|i| p[**i] >= asked.min_p).count();
    let kept = &order[..kept.min(near)];
    let mass: f64 = kept.iter().map(|i| p[*i]).sum();
    (mass / p.iter().sum::<f64>(), kept.contains(&target))
}

/// Mass, and 1 where the target is kept, of every token.
fn found(case: &Case, n: &Numbers, asked: &[FilterSettings]) -> [Vec<f64>; 2] {
    let program = case.compile(n, |g, args| {
        let [top_k, top_p, min_p] = [0, 1, 2].map(|at| {
            let values: Vec<f32> = asked.iter().map(|it| it.numbers()[at]).collect();
            let array = ferrotune_graph::HostArray::from_slice(&[n.rows, n.width], &values);
            g.constant(array.unwrap())
        });
        let filters = Filters {
            top_k,
            top_p,
            min_p,
        };
        let mask = args[3].ne(&args[3].zeros_like());
        let x = args[0].convert(case.compute);
        let kept = case
            .head(&args[1])
            .kept(&x, &args[2], Some(&mask), &filters);
        vec![kept.mass, kept.target.convert(DType::F32)]
    });
    let found = case.call(&program, n);
    [values(&found[0]), values(&found[1])]
}

/// What the formulas say of every token.
fn expected(n: &Numbers, temperature: f64, asked: &[FilterSettings]) -> [Vec<f64>; 2] {
    let mut all = [vec![], vec![]];
    for (token, asked) in asked.iter().enumerate() {
        let x = &n.x[token * n.model..(token + 1) * n.model];
        let logit = |j: usize| -> f64 {
            let products = x.iter().enumerate().map(|(i, x)| x * n.w[i * n.vocab + j]);
            products.sum::<f64>() / temperature
        };
        let z: Vec<f64> = (0..n.vocab).map(logit).collect();
        let (mass, kept) = match n.mask[token] {
            true => by_sorting(&z, *asked, n.targets[token] as usize),
            false => (1.0, false),
        };
        all[0].push(mass);
        all[1].push(f64::from(u8::from(kept)));
    }
    all
}

fn check(case: &Case, n: &Numbers, asked: &[FilterSettings]) {
    let (found, right) = (found(case, n, asked), expected(n, case.temperature, asked));
    let what = format!("{:?} on {} {:?}", case.settings, case.mesh, case.rules);
    let apart = distance(&found[0], &right[0]);
    assert!(
        apart <= 1e-6,
        "{what}: masses differ by {apart}: {found:?} for {right:?}"
    );
    assert_eq!(found[1], right[1], "{what}");
}

/// All settings, over and over.
fn for_tokens(n: &Numbers) -> Vec<FilterSettings> {
    settings().into_iter().cycle().take(n.tokens()).collect()
}

#[test]
fn the_kept_mass_is_that_of_the_sorted_distribution_in_every_mode_and_on_every_mesh() {
    let mut n = Numbers::new([4, 6, 8, 28]);
    // Every other target is the most likely entry or near it, so that many are kept and many are not.
    n.w.iter_mut().for_each(|w| *w *= 0.5);
    n.mask[5] = false;
    let asked = for_tokens(&n);
    let all = usize::MAX;
    for (k, form) in [
        Case::new(HeadMode::Off, all, all),
        Case::new(HeadMode::Local, 21, all),
        Case::new(HeadMode::Fused, 24, 14),
        Case::new(HeadMode::SinglePass, 15, 5),
    ]
    .into_iter()
    .enumerate()
    {
        let case = Case {
            temperature: [1.0, 0.7][k % 2],
            tied: k / 2 == 1,
            platform: Platform::Cpu,
            ..form
        };
        check(&case, &n, &asked);
        for placed in PLACED.into_iter().skip(k).step_by(4) {
            check(&on(&case, placed), &n, &asked);
        }
    }
}

#[test]
fn a_log_prob_less_that_of_the_kept_mass_adds_up_to_one_over_what_is_kept() {
    // One token in as many rows as there are entries, each with another target.
    let mut n = Numbers::new([20, 1, 6, 20]);
    n.x = noise(6, 9).repeat(20);
    n.targets = (0..20).collect();
    let case = Case::new(HeadMode::Fused, 5, 7);
    let asked = vec![settings()[4]; 20];
    let [mass, kept] = found(&case, &n, &asked);
    let logprob = case.run(&n).logprob;
    let under_filters = |i: usize| kept[i] * (logprob[i] - mass[i].ln()).exp();
    let total: f64 = (0..20).map(under_filters).sum();
    assert!((total - 1.0).abs() < 1e-6, "{total}");
    assert!(kept.contains(&0.0) && mass[0] < 0.99, "{mass:?}");
}

#[test]
fn equal_logits_are_kept_together_and_rows_that_are_not_finite_have_no_mass() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let two = FilterSettings {
        top_k: 2,
        ..FilterSettings::default()
    };
    let half = FilterSettings {
        top_p: 0.5,
        ..FilterSettings::default()
    };
    let e = |z: f64| z.exp();
    for (logits, asked, mass) in [
        (
            [1.0, 1.0, 1.0, 0.0],
            two,
            3.0 * e(1.0) / (3.0 * e(1.0) + 1.0),
        ),
        ([1.0, 1.0, 1.0, 1.0], half, 1.0),
        (
            [-0.0, 0.0, -1.0, -inf],
            FilterSettings {
                top_k: 1,
                ..FilterSettings::default()
            },
            2.0 / (2.0 + e(-1.0)),
        ),
        ([0.0, -inf, -inf, -inf], two, 1.0),
        ([0.0, nan, 1.0, 2.0], two, nan),
        ([0.0, inf, 1.0, 2.0], half, nan),
        ([-inf, -inf, -inf, -inf], FilterSettings::default(), nan),
    ] {
        let mut n = Numbers::new([1, 1, 1, 4]);
        n.x = vec![1.0];
        n.w = logits.to_vec();
        n.targets = vec![0];
        let case = Case::new(HeadMode::Fused, 1, 1);
        let mass_found = found(&case, &n, &[asked])[0][0];
        let same = mass_found == mass || (mass_found.is_nan() && mass.is_nan());
        assert!(
            same || (mass_found - mass).abs() < 1e-6,
            "{logits:?} {asked:?}: {mass_found} for {mass}"
        );
    }
}

#[test]
fn masked_tokens_may_hold_anything_and_keep_everything() {
    let mut n = Numbers::new([1, 3, 2, 5]);
    n.mask[1] = false;
    n.x[2] = f64::NAN;
    n.x[3] = f64::INFINITY;
    let asked = vec![settings()[4]; 3];
    let [mass, kept] = found(&Case::new(HeadMode::Local, 3, usize::MAX), &n, &asked);
    assert_eq!((mass[1], kept[1]), (1.0, 0.0));
    assert!(mass[0] > 0.0 && mass[0] < 1.0 && mass[2] < 1.0, "{mass:?}");
}
