//! The same mathematics on the host in f64, and the modes against it.
#![allow(clippy::needless_range_loop)] // indices are those of the formulas

use ferrotune_graph::Platform;
use ferrotune_nn::{EntropyUse, HeadMode};

use crate::case::{Case, Found, Numbers, distance, relative};

/// Scores and gradients as the formulas say them, in f64, one logit at a time.
pub(crate) fn oracle(n: &Numbers, temperature: f64, entropy: bool) -> Found {
    let (d, v) = (n.model, n.vocab);
    let mut found = Found {
        logprob: Vec::new(),
        entropy: Vec::new(),
        hit: Vec::new(),
        dx: vec![0.0; n.x.len()],
        dw: vec![0.0; n.w.len()],
        loss: 0.0,
    };
    for token in 0..n.tokens() {
        if !n.mask[token] {
            found.logprob.push(0.0);
            found.entropy.push(0.0);
            found.hit.push(false);
            continue;
        }
        let x = &n.x[token * d..(token + 1) * d];
        let z: Vec<f64> = (0..v)
            .map(|j| (0..d).map(|i| x[i] * n.w[i * v + j]).sum::<f64>() / temperature)
            .collect();
        let m = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let s: f64 = z.iter().map(|z| (z - m).exp()).sum();
        let target = n.targets[token] as usize;
        let log_p: Vec<f64> = z.iter().map(|z| z - m - s.ln()).collect();
        let h = -log_p.iter().map(|l| l.exp() * l).sum::<f64>();
        found.logprob.push(log_p[target]);
        found.entropy.push(h);
        found.hit.push(z[target] >= m);
        found.loss += n.slopes[0][token] * log_p[target];
        let slope_h = if entropy { n.slopes[1][token] } else { 0.0 };
        found.loss += slope_h * h;
        for j in 0..v {
            let p = log_p[j].exp();
            let hit = f64::from(u8::from(j == target));
            let dz = n.slopes[0][token] * (hit - p) - slope_h * p * (log_p[j] + h);
            for i in 0..d {
                found.dx[token * d + i] += dz / temperature * n.w[i * v + j];
                found.dw[i * v + j] += dz / temperature * x[i];
            }
        }
    }
    found
}

/// Every mode with chunks that divide and that do not, and one chunk for all.
pub(crate) fn forms() -> Vec<Case> {
    let all = usize::MAX;
    let operations = |mode, tokens, vocab| Case {
        platform: Platform::Gpu,
        ..Case::new(mode, tokens, vocab)
    };
    vec![
        Case::new(HeadMode::Off, all, all),
        Case::new(HeadMode::Local, 4, all),
        Case::new(HeadMode::Local, 5, all),
        operations(HeadMode::Fused, all, all),
        operations(HeadMode::Fused, 4, all),
        operations(HeadMode::Fused, 5, all),
        operations(HeadMode::Fused, all, 8),
        operations(HeadMode::Fused, 5, 9),
        operations(HeadMode::Fused, 1, 1),
        operations(HeadMode::SinglePass, all, all),
        operations(HeadMode::SinglePass, 4, all),
        operations(HeadMode::SinglePass, 5, 9),
        operations(HeadMode::SinglePass, all, 8),
        // With kernels.
        Case::new(HeadMode::Fused, all, all),
        Case::new(HeadMode::Fused, 5, 9),
        Case::new(HeadMode::SinglePass, 5, 9),
        Case::new(HeadMode::SinglePass, all, 8),
    ]
}

#[test]
fn every_mode_says_what_the_formulas_say() {
    // Tiles of at most 9 entries leave a narrower rest.
    let n = Numbers::new([2, 6, 5, 26]);
    let shapes = [(1.0, false), (0.7, false), (0.7, true), (1.5, true)];
    for (k, (form, (temperature, tied))) in forms()
        .iter()
        .flat_map(|f| shapes.map(|s| (f, s)))
        .enumerate()
    {
        // Both uses for every form and every shape.
        let entropy = if (k + k / 4).is_multiple_of(2) {
            EntropyUse::Reported
        } else {
            EntropyUse::Differentiated
        };
        let case = Case {
            temperature,
            tied,
            entropy,
            ..form.clone()
        };
        let expected = oracle(&n, temperature, entropy == EntropyUse::Differentiated);
        let what = format!(
            "{:?} T={temperature} tied={tied} {entropy:?}",
            case.settings
        );
        assert_near(&case.run(&n), &expected, &what);
    }
}

/// Equal but for rounding in f32.
pub(crate) fn assert_near(found: &Found, expected: &Found, what: &str) {
    let apart = |a: &[f64], b: &[f64], name: &str| {
        assert!(
            distance(a, b) < 2e-6,
            "{what}: {name} differ by {}",
            distance(a, b)
        );
    };
    apart(&found.logprob, &expected.logprob, "log-probs");
    apart(&found.entropy, &expected.entropy, "entropies");
    assert_eq!(found.hit, expected.hit, "{what}");
    let scale = 1.0 + expected.loss.abs();
    apart(&[found.loss / scale], &[expected.loss / scale], "losses");
    assert!(relative(&found.dx, &expected.dx) < 2e-6, "{what}: dx");
    assert!(relative(&found.dw, &expected.dw) < 2e-6, "{what}: dw");
}
