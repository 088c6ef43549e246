//! Products in 8-bit floats against rounding on the host.

use ferrotune_graph::HostArray;
use ferrotune_nn::linear_fp8;

use crate::check::{Function, Noise};

const B: usize = 2;
const T: usize = 3;
const D: usize = 5;
const F: usize = 4;
const N: usize = 3;

/// To the nearest number with so many bits behind the point, and this least exponent; ties to even.
fn round8(value: f32, bits: i32, least: i32) -> f64 {
    let value = f64::from(value);
    if value == 0.0 {
        return 0.0;
    }
    let exponent = (value.abs().log2().floor() as i32).max(least);
    let quantum = f64::powi(2.0, exponent - bits);
    (value / quantum).round_ties_even() * quantum
}

/// Values as e4m3 or e5m2 has them under a scale from the history, and their largest magnitude.
fn rounded(values: &[f32], history: &[f32], forward: bool) -> (Vec<f64>, f32) {
    let (most, bits, least) = if forward {
        (448.0f32, 3, -6)
    } else {
        (57_344.0, 2, -14)
    };
    let magnitude = |values: &[f32]| values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let (seen, own) = (magnitude(history), magnitude(values));
    let step = if seen > 0.0 { seen } else { own } / most;
    let round = |v: &f32| round8((v / step).clamp(-most, most), bits, least) * f64::from(step);
    (values.iter().map(round).collect(), own)
}

struct Case {
    x: Vec<f32>,
    w: Vec<f32>,
    history: Vec<f32>,
    /// The gradient of the result.
    dy: Vec<f32>,
}

impl Case {
    fn new(history: [[f32; N]; 3]) -> Self {
        let mut noise = Noise::new(7);
        let mut draw = |count: usize, size: f64| -> Vec<f32> {
            (0..count)
                .map(|_| ((noise.next() * 2.0 - 1.0) * size) as f32)
                .collect()
        };
        Self {
            x: draw(B * T * D, 3.0),
            w: draw(D * F, 0.1),
            history: history.concat(),
            dy: draw(B * T * F, 1e-4),
        }
    }

    fn arrays(&self) -> [HostArray; 4] {
        let array = |dims: &[usize], values: &[f32]| HostArray::from_slice(dims, values).unwrap();
        [
            array(&[B, T, D], &self.x),
            array(&[D, F], &self.w),
            array(&[3, N], &self.history),
            array(&[B, T, F], &self.dy),
        ]
    }

    /// Result, gradients of input and weight, next history.
    fn on_device(&self) -> Vec<Vec<f32>> {
        let args = self.arrays();
        let function = Function::new("fp8", &args, |g, args| {
            let y = linear_fp8(&args[0], &args[1], &args[2]);
            let loss = (&y * &args[3]).sum_all();
            let mut results = vec![y];
            results.extend(g.grad(&loss, &[&args[0], &args[1], &args[2]]));
            results
        });
        let results = function.run(&args);
        results
            .iter()
            .map(|it| it.as_slice::<f32>().to_vec())
            .collect()
    }

    fn on_host(&self) -> [Vec<f64>; 3] {
        let (x, _) = rounded(&self.x, &self.history[..N], true);
        let (w, _) = rounded(&self.w, &self.history[N..2 * N], true);
        let (dy, _) = rounded(&self.dy, &self.history[2 * N..], false);
        let mut found = [vec![0.0; B * T * F], vec![0.0; B * T * D], vec![0.0; D * F]];
        for i in 0..B * T {
            for d in 0..D {
                for f in 0..F {
                    found[0][i * F + f] += x[i * D + d] * w[d * F + f];
                    found[1][i * D + d] += dy[i * F + f] * w[d * F + f];
                    found[2][d * F + f] += x[i * D + d] * dy[i * F + f];
                }
            }
        }
        found
    }
}

/// Row 0 knows more than the values have, row 1 nothing, row 2 less, so that some are held at the end of the range.
const HISTORY: [[f32; N]; 3] = [[2.0, 6.5, 1.0], [0.0; N], [2e-5, 3e-5, 1e-5]];

#[test]
fn products_are_of_rounded_values_forward_and_backward() {
    let case = Case::new(HISTORY);
    assert!(case.dy.iter().any(|v| v.abs() > 3e-5), "one is held");
    for (found, expected) in case.on_device().iter().zip(case.on_host()) {
        let size = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        assert_eq!(found.len(), expected.len());
        for (a, b) in found.iter().zip(expected) {
            assert!((f64::from(*a) - b).abs() <= 1e-6 * size, "{a} {b}");
        }
    }
}

#[test]
fn a_history_moves_by_one_and_takes_the_magnitudes_of_the_call() {
    let case = Case::new(HISTORY);
    let largest = |values: &[f32]| values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let expected = [
        [6.5, 1.0, largest(&case.x)],
        [0.0, 0.0, largest(&case.w)],
        [3e-5, 1e-5, largest(&case.dy)],
    ];
    assert_eq!(case.on_device()[3], expected.concat());
}

#[test]
fn what_is_not_finite_does_not_enter_a_history() {
    let mut case = Case::new(HISTORY);
    case.dy[3] = f32::INFINITY;
    case.x[2] = f32::NAN;
    let next = &case.on_device()[3];
    assert_eq!(next[..N], [6.5, 1.0, 1.0]);
    assert_eq!(next[2 * N..], [3e-5, 1e-5, 1e-5]);
}

#[test]
fn zeros_stay_zeros_whatever_was_seen() {
    let mut case = Case::new([[0.0; N]; 3]);
    case.dy.fill(0.0);
    case.x.fill(0.0);
    let found = case.on_device();
    assert!(found[..3].iter().flatten().all(|v| *v == 0.0));
}
