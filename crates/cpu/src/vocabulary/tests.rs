use half::bf16;

use super::*;
use crate::logits::LogitSlope;

/// Numbers without pattern in (-1, 1).
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let number = |i: u64| {
        let mut h =
            (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed.wrapping_mul(0xD1B5_4A32_D192_ED03);
        h = (h ^ (h >> 31)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (h >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count as u64).map(number).collect()
}

/// More than a block of them.
const TOKENS: usize = ROWS + 35;
const WIDTH: usize = 40;
const ENTRIES: usize = 203;
const SCALE: f32 = 1.25;

/// What a token's log-prob and entropy are worth.
fn worth(token: usize) -> [f32; 2] {
    [0.3 - 0.01 * (token % 70) as f32, 0.05 * (token % 7) as f32]
}

/// In f64: of each token the peak, total, weighted sum and logit of the target; dx and dw `[D,V]`.
fn oracle(
    x: &[f32],
    w: &[f32],
    targets: &[i32],
    entropy: bool,
) -> (Vec<[f64; 4]>, Vec<f64>, Vec<f64>) {
    let (mut known, mut dx, mut dw) = (vec![], vec![0.0; x.len()], vec![0.0; w.len()]);
    for (token, x) in x.chunks(WIDTH).enumerate() {
        let logit = |v: usize| {
            let sum: f64 = (0..WIDTH)
                .map(|d| f64::from(x[d]) * f64::from(w[d * ENTRIES + v]))
                .sum();
            sum * f64::from(SCALE)
        };
        let z: Vec<f64> = (0..ENTRIES).map(logit).collect();
        let peak = z.iter().copied().fold(f64::MIN, f64::max);
        let total: f64 = z.iter().map(|z| (z - peak).exp()).sum();
        let weighted: f64 = z.iter().map(|z| (z - peak).exp() * (z - peak)).sum();
        let target = usize::try_from(targets[token])
            .ok()
            .and_then(|at| z.get(at));
        known.push([peak, total, weighted, target.copied().unwrap_or(0.0)]);
        let [g, h] = worth(token).map(f64::from);
        for (v, z) in z.iter().enumerate() {
            let p = (z - peak).exp() / total;
            let hit = if targets[token] == v as i32 { g } else { 0.0 };
            let spread = if entropy {
                h * p * (z - peak - weighted / total)
            } else {
                0.0
            };
            let dz = (hit - g * p - spread) * f64::from(SCALE);
            for d in 0..WIDTH {
                dx[token * WIDTH + d] += dz * f64::from(w[d * ENTRIES + v]);
                dw[d * ENTRIES + v] += dz * f64::from(x[d]);
            }
        }
    }
    (known, dx, dw)
}

fn close(
    found: impl Iterator<Item = f32>,
    right: impl Iterator<Item = f64>,
    within: f64,
    what: &str,
) {
    for (i, (found, right)) in found.zip(right).enumerate() {
        assert!(
            (f64::from(found) - right).abs() <= within,
            "{what} {i}: {found} for {right}"
        );
    }
}

/// Everything, in one type of products, for weights that lie either way.
fn check<T: Number + Lent>(tile: usize, by_rows: bool, threads: Threads, within: f64) {
    let x: Vec<T> = noise(TOKENS * WIDTH, 1)
        .into_iter()
        .map(T::nearest)
        .collect();
    let rounded = |it: f32| T::nearest(it).wide();
    let w: Vec<f32> = noise(WIDTH * ENTRIES, 2).into_iter().map(rounded).collect();
    let targets: Vec<i32> = (0..TOKENS as i32).map(|i| (i * 37) % 210 - 3).collect();
    let wide: Vec<f32> = x.iter().map(|it| it.wide()).collect();
    let turned: Vec<f32> = (0..w.len())
        .map(|i| w[i % WIDTH * ENTRIES + i / WIDTH])
        .collect();
    let weight = if by_rows {
        Matrix::new(&w, [WIDTH, ENTRIES], [ENTRIES, 1])
    } else {
        Matrix::new(&turned, [WIDTH, ENTRIES], [1, WIDTH])
    };
    let vocabulary = Vocabulary::new(&x, weight, &targets, SCALE, tile);
    let mut logits = vec![0.0; TOKENS * ENTRIES];
    let kept = vocabulary.score(Some(&mut logits), threads);
    let scored = vocabulary.score(None, threads);
    for entropy in [false, true] {
        let (known, dx_right, dw_right) = oracle(&wide, &w, &targets, entropy);
        for scored in [&kept, &scored] {
            let each = |of: fn(&Scored) -> f32| scored.iter().map(of);
            let right = |k: usize| known.iter().map(move |it| it[k]);
            close(each(|it| it.sums.peak), right(0), 1e-5, "peak");
            close(each(|it| it.sums.total), right(1), 1e-3, "total");
            close(each(|it| it.sums.weighted), right(2), 1e-3, "weighted");
            close(each(|it| it.target), right(3), 1e-5, "target");
        }
        let slope = |token: usize| {
            let (sums, [g, h]) = (scored[token].sums, worth(token));
            LogitSlope {
                shift: sums.peak,
                logprob: g,
                share: g / sums.total,
                entropy: entropy.then(|| [sums.weighted / sums.total, h / sums.total]),
                scale: SCALE,
            }
        };
        for source in [None, Some(&logits[..])] {
            for add in [false, true] {
                let (mut dx, mut dw) = (vec![7.0; x.len()], vec![0.5; w.len()]);
                // All tokens at a time, and one block after the other.
                match add == entropy {
                    true => vocabulary.gradients(source, slope, [&mut dx, &mut dw], add, threads),
                    false => {
                        let to = [&mut dx[..], &mut dw[..]];
                        vocabulary.gradients_by(ROWS, source, slope, to, add, threads);
                    }
                }
                let more = if add { 0.5 } else { 0.0 };
                let dw = (0..w.len()).map(|i| {
                    let at = if by_rows {
                        i
                    } else {
                        i % ENTRIES * WIDTH + i / ENTRIES
                    };
                    dw[at]
                });
                close(dx.iter().copied(), dx_right.iter().copied(), within, "dx");
                close(dw, dw_right.iter().map(|it| it + more), within, "dw");
            }
        }
    }
}

#[test]
fn scores_and_gradients_are_those_of_the_formulas() {
    for by_rows in [true, false] {
        for tile in [1000, 64, 50] {
            check::<f32>(tile, by_rows, Threads::All, 2e-5);
        }
        check::<f32>(64, by_rows, Threads::One, 2e-5);
        check::<bf16>(64, by_rows, Threads::All, 0.03);
        check::<bf16>(50, by_rows, Threads::All, 0.03);
    }
}

#[test]
fn nothing_is_scored_of_no_tokens() {
    let weight = noise(12, 1);
    let weight = Matrix::new(&weight, [4, 3], [3, 1]);
    let vocabulary = Vocabulary::<f32, f32>::new(&[], weight, &[], 1.0, 2);
    assert!(vocabulary.score(None, Threads::All).is_empty());
    let mut dw = vec![1.0; 12];
    let slope = |_: usize| unreachable!("there is no token");
    vocabulary.gradients(None, slope, [&mut [], &mut dw], false, Threads::All);
    assert_eq!(dw, [0.0; 12]);
}
