//! Updates in float64 on the host, written from the formulas.

use ferrotune_engine::{AdamW, Optimizer, Rule};
use ferrotune_graph::HostArray;
use ferrotune_nn::ParamSpec;

pub(crate) fn wide(array: &HostArray) -> Vec<f64> {
    array
        .as_slice::<f32>()
        .iter()
        .map(|v| f64::from(*v))
        .collect()
}

pub(crate) struct Oracle {
    optimizer: Optimizer,
    specs: Vec<ParamSpec>,
    pub(crate) params: Vec<Vec<f64>>,
    m: Vec<Vec<f64>>,
    v: Vec<Vec<f64>>,
    t: i32,
}

impl Oracle {
    pub(crate) fn new(optimizer: Optimizer, params: &[(ParamSpec, HostArray)]) -> Self {
        let params_wide: Vec<Vec<f64>> = params.iter().map(|(_, a)| wide(a)).collect();
        let zeros: Vec<Vec<f64>> = params_wide.iter().map(|p| vec![0.0; p.len()]).collect();
        Self {
            optimizer,
            specs: params.iter().map(|(spec, _)| spec.clone()).collect(),
            params: params_wide,
            m: zeros.clone(),
            v: zeros,
            t: 0,
        }
    }

    /// One update; returns the norm of the gradient.
    pub(crate) fn step(&mut self, gradients: &[(ParamSpec, HostArray)], rate: f64) -> f64 {
        self.t += 1;
        let gradients: Vec<Vec<f64>> = gradients.iter().map(|(_, a)| wide(a)).collect();
        let norm = gradients
            .iter()
            .flatten()
            .map(|g| g * g)
            .sum::<f64>()
            .sqrt();
        let limit = self.optimizer.max_grad_norm;
        let scale = if norm > limit { limit / norm } else { 1.0 };
        for (i, gradient) in gradients.iter().enumerate() {
            let g: Vec<f64> = gradient.iter().map(|g| g * scale).collect();
            let direction = match self.optimizer.rule {
                Rule::AdamW(it) => self.adam(i, &g, &it),
                Rule::Sgd(it) => self.momentum(i, &g, it.momentum, it.nesterov),
                Rule::Muon(it) if self.is_matrix_of_layers(i) => {
                    let ahead = self.momentum(i, &g, it.momentum, true);
                    orthogonal(&ahead, &self.specs[i].dims)
                }
                Rule::Muon(it) => self.adam(i, &g, &it.others),
            };
            let decay = if self.specs[i].path.contains("norm") {
                0.0
            } else {
                self.optimizer.weight_decay
            };
            for (p, d) in self.params[i].iter_mut().zip(direction) {
                *p -= rate * (d + decay * *p);
            }
        }
        norm
    }

    fn is_matrix_of_layers(&self, i: usize) -> bool {
        self.specs[i].path.contains("_proj")
    }

    fn adam(&mut self, i: usize, g: &[f64], s: &AdamW) -> Vec<f64> {
        let t = self.t;
        let step = |((m, v), g): ((&mut f64, &mut f64), &f64)| {
            *m = s.beta1 * *m + (1.0 - s.beta1) * g;
            *v = s.beta2 * *v + (1.0 - s.beta2) * g * g;
            let (m, v) = (*m / (1.0 - s.beta1.powi(t)), *v / (1.0 - s.beta2.powi(t)));
            m / (v.sqrt() + s.eps)
        };
        let moments = self.m[i].iter_mut().zip(&mut self.v[i]);
        moments.zip(g).map(step).collect()
    }

    fn momentum(&mut self, i: usize, g: &[f64], decay: f64, nesterov: bool) -> Vec<f64> {
        let step = |(m, g): (&mut f64, &f64)| {
            *m = decay * *m + g;
            if nesterov { g + decay * *m } else { *m }
        };
        self.m[i].iter_mut().zip(g).map(step).collect()
    }
}

/// c = a · b for row-major `[n,k]` and `[k,m]`.
fn product(a: &[f64], b: &[f64], (n, k, m): (usize, usize, usize)) -> Vec<f64> {
    let mut c = vec![0.0; n * m];
    for i in 0..n {
        for x in 0..k {
            for j in 0..m {
                c[i * m + j] += a[i * k + x] * b[x * m + j];
            }
        }
    }
    c
}

fn transposed(a: &[f64], (n, m): (usize, usize)) -> Vec<f64> {
    (0..n * m).map(|at| a[(at % n) * m + at / n]).collect()
}

/// The direction of Muon for `[L,in,out]`, without turning long matrices: (xxᵀ)x and x(xᵀx) are the same.
fn orthogonal(ahead: &[f64], dims: &[usize]) -> Vec<f64> {
    let (n, m) = (dims[1], dims[2]);
    let one = |x: &[f64]| {
        let norm = x.iter().map(|v| v * v).sum::<f64>().sqrt() + 1e-7;
        let mut x: Vec<f64> = x.iter().map(|v| v / norm).collect();
        for _ in 0..5 {
            let square = product(&x, &transposed(&x, (n, m)), (n, m, n));
            let fourth = product(&square, &square, (n, n, n));
            let factor: Vec<f64> = square
                .iter()
                .zip(&fourth)
                .map(|(a, b)| -4.7750 * a + 2.0315 * b)
                .collect();
            let pulled = product(&factor, &x, (n, n, m));
            x = x.iter().zip(&pulled).map(|(x, y)| 3.4445 * x + y).collect();
        }
        let scale = 0.2 * (n.max(m) as f64).sqrt();
        x.into_iter().map(move |v| v * scale)
    };
    ahead.chunks(n * m).flat_map(one).collect()
}
