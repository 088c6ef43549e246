//! Prints how fast products are.
use ferrotune_cpu::*;
use half::bf16;
use std::time::Instant;
fn best(mut f: impl FnMut()) -> f64 {
    let mut b = f64::MAX;
    for _ in 0..9 {
        let t = Instant::now();
        f();
        b = b.min(t.elapsed().as_secs_f64());
    }
    b
}
fn main() {
    for (m, k, n) in [
        (2048, 576, 1536),
        (2048, 1536, 576),
        (2048, 2048, 2048),
        (576, 2048, 1536),
        (2048, 576, 49152),
        (2048, 49152, 576),
        (32, 576, 1536),
        (8, 576, 1536),
        (1, 576, 1536),
        (1, 1536, 576),
    ] {
        for form in ["ab", "abT", "aTb"] {
            let sa = if form == "aTb" { [1, m] } else { [k, 1] };
            let sb = if form == "abT" { [1, k] } else { [n, 1] };
            let gf = 2e-9 * (m * k * n) as f64;
            let a: Vec<bf16> = (0..m * k)
                .map(|i| bf16::from_f32(((i * 7919) % 13) as f32 - 6.0))
                .collect();
            let b: Vec<bf16> = (0..k * n)
                .map(|i| bf16::from_f32(((i * 104729) % 17) as f32 - 8.0))
                .collect();
            let mut c = vec![0f32; m * n];
            let t = best(|| {
                bf16::multiply(
                    Matrix::new(&a, [m, k], sa),
                    Matrix::new(&b, [k, n], sb),
                    &mut c,
                    Threads::All,
                )
            });
            let mut d = vec![bf16::ZERO; m * n];
            let t2 = best(|| {
                multiply_rounded(
                    Matrix::new(&a, [m, k], sa),
                    Matrix::new(&b, [k, n], sb),
                    &mut d,
                    Threads::All,
                )
            });
            let a: Vec<f32> = a.iter().map(|x| x.to_f32()).collect();
            let b: Vec<f32> = b.iter().map(|x| x.to_f32()).collect();
            let mut e = vec![0f32; m * n];
            let t3 = best(|| {
                f32::multiply(
                    Matrix::new(&a, [m, k], sa),
                    Matrix::new(&b, [k, n], sb),
                    &mut e,
                    Threads::All,
                )
            });
            let worst = c
                .iter()
                .zip(&e)
                .map(|(c, e)| (c - e).abs())
                .fold(0.0, f32::max);
            println!(
                "{m} {k} {n} {form}: bf16->f32 {:.0}, ->bf16 {:.0}, f32 {:.0} GF/s; weights {:.1} {:.1} GB/s; diff {worst}",
                gf / t,
                gf / t2,
                gf / t3,
                2e-9 * (k * n) as f64 / t,
                4e-9 * (k * n) as f64 / t3
            );
        }
    }
}
