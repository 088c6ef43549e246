//! The short convolution, beside a plain loop.

use ferrotune_graph::HostArray;
use ferrotune_nn::{Sequence, causal_convolution};

use crate::check::{Documents, Function, Noise};

#[test]
fn a_convolution_reads_the_last_tokens_of_its_own_document() {
    let mut noise = Noise::new(1);
    let (rows, tokens, channels, taps) = (3, 23, 5, 4);
    let documents = Documents::random(&mut noise, rows, tokens, 9);
    let x = noise.array(&[rows, tokens, channels], -1.0, 1.0);
    let w = noise.array(&[taps, channels], -1.0, 1.0);
    let [segment_ids, positions] = documents.arrays();
    let args: Vec<HostArray> = vec![x.clone(), w.clone(), segment_ids, positions];
    let f = Function::new("convolution", &args, |_, x| {
        let seq = Sequence {
            segment_ids: x[2].clone(),
            positions: x[3].clone(),
        };
        vec![causal_convolution(&x[0], &x[1], &seq)]
    });
    let found = f.run(&args);
    let (x, w, found) = (
        x.as_slice::<f32>(),
        w.as_slice::<f32>(),
        found[0].as_slice::<f32>(),
    );
    for row in 0..rows {
        for t in 0..tokens {
            for c in 0..channels {
                let place = documents.positions[row * tokens + t] as usize;
                let sum: f64 = (0..taps.min(place + 1))
                    .map(|back| {
                        let at = (row * tokens + t - back) * channels + c;
                        f64::from(x[at]) * f64::from(w[(taps - 1 - back) * channels + c])
                    })
                    .sum();
                let y = f64::from(found[(row * tokens + t) * channels + c]);
                assert!(
                    (y - sum).abs() < 1e-6,
                    "row {row}, token {t}: {y} instead of {sum}"
                );
            }
        }
    }
}

#[test]
fn a_row_may_be_shorter_than_the_taps() {
    let mut noise = Noise::new(2);
    let documents = Documents::random(&mut noise, 2, 2, 2);
    let [segment_ids, positions] = documents.arrays();
    let args = vec![
        noise.array(&[2, 2, 3], -1.0, 1.0),
        noise.array(&[4, 3], -1.0, 1.0),
        segment_ids,
        positions,
    ];
    let f = Function::new("short_row", &args, |_, x| {
        let seq = Sequence {
            segment_ids: x[2].clone(),
            positions: x[3].clone(),
        };
        vec![causal_convolution(&x[0], &x[1], &seq)]
    });
    assert!(
        f.run(&args)[0]
            .as_slice::<f32>()
            .iter()
            .all(|v| v.is_finite())
    );
}
