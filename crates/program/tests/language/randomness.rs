//! Random numbers: independence of keys and shapes, and the first two moments of each distribution.

use ferrotune_graph::{DType, Graph, HostArray, random::Key};

use crate::check::run;

/// Draws from the key of an argument, so that nothing is folded while compiling.
fn draw<T: Clone + ferrotune_pjrt::Element>(
    seed: [u32; 2],
    f: impl FnOnce(&Graph, &Key) -> ferrotune_graph::Tensor,
) -> Vec<T> {
    let words = HostArray::from_slice(&[2], &seed).unwrap();
    let out = run("random", &[words], |g, x| {
        vec![f(g, &Key::from_words(&x[0]))]
    });
    out[0].as_slice::<T>().to_vec()
}

fn moments(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let square = values
        .iter()
        .map(|v| (f64::from(*v) - mean).powi(2))
        .sum::<f64>();
    (mean, square / n)
}

const N: usize = 200_000;

#[test]
fn element_i_is_the_cipher_of_i_whatever_the_shape() {
    let whole = draw::<u32>([7, 9], |_, key| key.bits(&[6]));
    let grid = draw::<u32>([7, 9], |_, key| key.bits(&[2, 2]));
    assert_eq!(whole[..4], grid);
    let constant = run("constant_key", &[], |g, _| {
        vec![Key::new(g, (9 << 32) | 7).bits(&[6])]
    });
    assert_eq!(constant[0].as_slice::<u32>(), whole);
    // Word 0 of the published answer for counter (0, 0) and key (0, 0).
    assert_eq!(draw::<u32>([0, 0], |_, key| key.bits(&[1])), [0x6b20_0159]);
}

#[test]
fn split_and_folded_keys_differ_from_each_other_and_from_their_source() {
    let words = HostArray::from_slice(&[2], &[1_u32, 2]).unwrap();
    let out = run("keys", &[words], |g, x| {
        let key = Key::from_words(&x[0]);
        let mut keys = key.split(3);
        keys.extend([0.0, 1.0, 2.0].map(|v| key.fold_in(&g.scalar(v, DType::U32))));
        keys.push(key.split(1).remove(0).fold_in(&g.scalar(0.0, DType::S32)));
        keys.push(key);
        keys.iter().map(|k| k.words().clone()).collect()
    });
    let mut seen: Vec<Vec<u32>> = out.iter().map(|k| k.as_slice::<u32>().to_vec()).collect();
    assert_eq!(seen.len(), 8);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 8, "{seen:?}");
}

#[test]
fn uniform_numbers_have_the_moments_of_the_unit_interval() {
    let values = draw::<f32>([3, 1], |_, key| key.uniform(&[N]));
    assert!(values.iter().all(|v| *v > 0.0 && *v < 1.0));
    let (mean, variance) = moments(&values);
    // Five standard errors: sqrt(1/12 / N) and sqrt(1/180 / N).
    assert!(
        (mean - 0.5).abs() < 5.0 * (1.0 / 12.0 / N as f64).sqrt(),
        "{mean}"
    );
    assert!(
        (variance - 1.0 / 12.0).abs() < 5.0 * (1.0 / 180.0 / N as f64).sqrt(),
        "{variance}"
    );
}

#[test]
fn normal_numbers_have_mean_zero_variance_one_and_normal_tails() {
    let values = draw::<f32>([3, 2], |_, key| key.normal(&[N]));
    let (mean, variance) = moments(&values);
    let n = N as f64;
    assert!(mean.abs() < 5.0 / n.sqrt(), "{mean}");
    assert!(
        (variance - 1.0).abs() < 5.0 * (2.0 / n).sqrt(),
        "{variance}"
    );
    let share = |limit: f32| values.iter().filter(|v| **v > limit).count() as f64 / n;
    for (limit, expected) in [(0.0, 0.5), (1.0, 0.158_655), (2.0, 0.022_750)] {
        let error = 5.0 * (expected * (1.0 - expected) / n).sqrt();
        assert!(
            (share(limit) - expected).abs() < error,
            "{limit}: {}",
            share(limit)
        );
    }
}

#[test]
fn gumbel_numbers_have_the_mean_and_variance_of_their_distribution() {
    let values = draw::<f32>([3, 3], |_, key| key.gumbel(&[N]));
    assert!(values.iter().all(|v| v.is_finite()));
    let (mean, variance) = moments(&values);
    let expected = std::f64::consts::PI.powi(2) / 6.0;
    let n = N as f64;
    assert!(
        (mean - 0.577_215_7).abs() < 5.0 * (expected / n).sqrt(),
        "{mean}"
    );
    // The fourth central moment is 27/5 of the squared variance.
    assert!(
        (variance - expected).abs() < 5.0 * expected * (4.4 / n).sqrt(),
        "{variance}"
    );
}

#[test]
fn truth_values_have_the_asked_probability_and_keep_its_ends() {
    let values = draw::<i32>([3, 4], |g, key| {
        let p = g.constant(HostArray::from_slice(&[3, 1], &[0.0_f32, 0.3, 1.0]).unwrap());
        key.bernoulli(&p, &[3, N]).convert(DType::S32).sum(&[1])
    });
    let expected = 0.3 * N as f64;
    assert_eq!((values[0], values[2]), (0, N as i32));
    assert!(
        (f64::from(values[1]) - expected).abs() < 5.0 * (expected * 0.7).sqrt(),
        "{values:?}"
    );
}

#[test]
fn integers_reach_both_ends_of_their_range_and_nothing_else() {
    let mut counts = [0; 7];
    for v in draw::<i32>([3, 5], |_, key| key.integers(-3, 4, &[N])) {
        counts[usize::try_from(v + 3).unwrap()] += 1;
    }
    let expected = N as f64 / 7.0;
    assert!(
        counts
            .iter()
            .all(|c| (f64::from(*c) - expected).abs() < 5.0 * expected.sqrt()),
        "{counts:?}"
    );
    let wide = draw::<i32>([3, 6], |_, key| key.integers(i32::MIN, i32::MAX, &[N]));
    let half = wide.iter().filter(|v| **v < 0).count() as f64;
    assert!(
        (half - N as f64 / 2.0).abs() < 5.0 * (N as f64).sqrt() / 2.0,
        "{half}"
    );
}
