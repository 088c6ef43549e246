//! The kernels of a decoding step against their portable forms, which are the layer code of training.

use ferrotune_graph::{DType, Graph, HostArray, Tensor};
use ferrotune_nn::{
    FeedStep, HeadsStep, LogitSummary, Params, Rotation, project, rms_norm, rotate, swiglu,
};

use crate::check::{Function, Noise, largest};

/// Rows, width, query heads, key heads, head size, inner width.
type Sizes = [usize; 6];

const SIZES: [Sizes; 3] = [
    [1, 64, 2, 1, 32, 96],
    [5, 96, 6, 2, 16, 33],
    [33, 32, 1, 1, 64, 64],
];

struct Layer {
    names: Vec<String>,
    arrays: Vec<HostArray>,
    turned: bool,
}

impl Layer {
    /// `weights` are names and `[in, out]`; biases and norms have one dimension.
    fn new(noise: &mut Noise, weights: &[(&str, [usize; 2])], turned: bool) -> Self {
        let mut layer = Self {
            names: vec![],
            arrays: vec![],
            turned,
        };
        for (name, [from, to]) in weights {
            let dims = if turned { [*to, *from] } else { [*from, *to] };
            layer.add(name, noise.array(&dims, -0.3, 0.3));
        }
        layer
    }

    fn add(&mut self, name: &str, array: HostArray) {
        self.names.push(name.to_owned());
        self.arrays.push(array);
    }

    /// The parameters, matrices and biases in a type.
    fn params(&self, tensors: &[Tensor], dtype: DType) -> Params {
        let read = |(name, tensor): (&String, &Tensor)| {
            let wide = name.ends_with("norm");
            let tensor = if wide {
                tensor.clone()
            } else {
                tensor.convert(dtype)
            };
            (name.clone(), tensor)
        };
        let params = Params::new(self.names.iter().zip(tensors).map(read));
        if self.turned {
            params.with_transposed_weights()
        } else {
            params
        }
    }
}

/// Both forms, which differ by rounding.
fn both_forms(
    what: &str,
    dtype: DType,
    args: &[HostArray],
    f: impl Fn(&Graph, &[Tensor]) -> Vec<Tensor>,
) {
    let wide = |g: &Graph, x: &[Tensor]| -> Vec<Tensor> {
        let found = f(g, x);
        found.iter().map(|t| t.convert(DType::F32)).collect()
    };
    let kernel = Function::new("kernel", args, wide).run(args);
    let portable = Function::portable("portable", args, wide).run(args);
    assert!(!kernel.is_empty() && kernel.len() == portable.len());
    for (i, (found, expected)) in kernel.iter().zip(&portable).enumerate() {
        assert_eq!(found.dims(), expected.dims(), "{what}");
        let (found, expected) = (found.as_slice::<f32>(), expected.as_slice::<f32>());
        let size = largest(expected).max(0.1);
        assert!(found.iter().all(|x| x.is_finite()), "{what}: {i}");
        let apart = |(a, b): (&f32, &f32)| f64::from((a - b).abs()) / size;
        let worst = found.iter().zip(expected).map(apart).fold(0.0, f64::max);
        let mean = found.iter().zip(expected).map(apart).sum::<f64>() / found.len() as f64;
        let (most, usual) = match dtype {
            DType::F32 => (2e-6, 5e-7),
            _ => (2e-2, 4e-3),
        };
        assert!(
            worst <= most && mean <= usual,
            "{what}, result {i}: {worst:e}, mean {mean:e}"
        );
    }
}

#[test]
fn heads_are_those_of_the_layer_code() {
    for (seed, [b, d, h, k, e, _]) in SIZES.into_iter().enumerate() {
        for (dtype, turned, biased, norms, half) in [
            (DType::F32, false, false, false, e / 2),
            (DType::F32, true, true, true, e / 4),
            (DType::BF16, true, false, true, e / 2),
            (DType::BF16, false, true, false, e / 2),
        ] {
            let mut noise = Noise::new(seed as u64);
            let sizes = [
                ("q_proj", [d, h * e]),
                ("k_proj", [d, k * e]),
                ("v_proj", [d, k * e]),
            ];
            let mut layer = Layer::new(&mut noise, &sizes, turned);
            for (name, [_, to]) in sizes.into_iter().filter(|_| biased) {
                layer.add(&format!("{name}_bias"), noise.array(&[to], -1.0, 1.0));
            }
            layer.add("input_norm", noise.array(&[d], 0.5, 1.5));
            for name in ["q_norm", "k_norm"].into_iter().filter(|_| norms) {
                layer.add(name, noise.array(&[e], 0.5, 1.5));
            }
            let x = noise.array(&[b, 1, d], -2.0, 2.0);
            let positions: Vec<i32> = (0..b as i32).map(|row| 3 * row + 1).collect();
            let positions = HostArray::from_slice(&[b, 1], &positions).unwrap();
            let args = [&[x, positions], &layer.arrays[..]].concat();
            let what =
                format!("{b} rows of {d}, {dtype}, turned {turned}, bias {biased}, norms {norms}");
            both_forms(&what, dtype, &args, |_, x| {
                let params = layer.params(&x[2..], dtype);
                let frequencies: Vec<f32> = (0..half).map(|i| 0.7_f32.powi(i as i32)).collect();
                let step = HeadsStep {
                    norm: params.at("input_norm"),
                    eps: 1e-5,
                    params: &params,
                    head_norms: norms.then(|| ["q_norm", "k_norm"].map(|name| params.at(name))),
                    head_size: e,
                };
                assert!(HeadsStep::fits(&params, dtype));
                let by = Rotation::new(&x[1], &frequencies, 1.0);
                step.of(&x[0].convert(dtype), &by).to_vec()
            });
        }
    }
}

#[test]
fn the_rest_of_a_layer_is_that_of_the_layer_code() {
    for (seed, [b, d, h, _, e, f]) in SIZES.into_iter().enumerate() {
        for (dtype, turned) in [(DType::F32, false), (DType::F32, true), (DType::BF16, true)] {
            let mut noise = Noise::new(seed as u64);
            let sizes = [
                ("o_proj", [h * e, d]),
                ("gate_proj", [d, f]),
                ("up_proj", [d, f]),
                ("down_proj", [f, d]),
            ];
            let mut layer = Layer::new(&mut noise, &sizes, turned);
            layer.add("norm", noise.array(&[d], 0.5, 1.5));
            let x = noise.array(&[b, 1, d], -2.0, 2.0);
            let mixed = noise.array(&[b, 1, h, e], -1.0, 1.0);
            let args = [&[x, mixed], &layer.arrays[..]].concat();
            let what = format!("{b} rows of {d}, {dtype}, turned {turned}");
            both_forms(&what, dtype, &args, |_, x| {
                let params = layer.params(&x[2..], dtype);
                let step = FeedStep {
                    attention: &params,
                    norm: params.at("norm"),
                    eps: 1e-5,
                    mlp: &params,
                };
                assert!(FeedStep::fits(&params, &params, dtype));
                vec![step.of(&x[0].convert(dtype), &x[1].convert(dtype))]
            });
        }
    }
}

#[test]
fn logits_are_summed_up_as_operations_do_it() {
    for (b, v) in [(1, 5), (3, 64), (4, 1001)] {
        let mut noise = Noise::new(v as u64);
        let mut values = noise.array(&[b, v], -9.0, 9.0).as_slice::<f32>().to_vec();
        values[1] = f32::NEG_INFINITY; // filtered out
        (values[v - 1], values[2]) = (20.0, 20.0); // the first of two
        let args = [HostArray::from_slice(&[b, v], &values).unwrap()];
        both_forms(&format!("{b} × {v}"), DType::F32, &args, |_, x| {
            let summary = LogitSummary::of(&x[0]);
            let of_best = summary.log_prob(&x[0], &summary.best);
            vec![summary.best, summary.peak, summary.log_sum, of_best]
        });
    }
}

#[test]
fn what_the_kernels_do_not_know_is_left_to_the_layer_code() {
    let names = [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ];
    let args = [HostArray::from_slice(&[2, 2], &[0.0_f32; 4]).unwrap()];
    Function::new("fits", &args, |_, x| {
        let with = |more: &[&str]| {
            let all = names.iter().chain(more);
            Params::new(all.map(|name| ((*name).to_owned(), x[0].clone())))
        };
        let fits = |params: &Params, dtype| {
            [
                HeadsStep::fits(params, dtype),
                FeedStep::fits(params, params, dtype),
            ]
        };
        assert_eq!(fits(&with(&[]), DType::BF16), [true, true]);
        assert_eq!(fits(&with(&[]), DType::F16), [false, false]);
        assert_eq!(fits(&with(&["k_proj_lora_a"]), DType::F32), [false, true]);
        assert_eq!(fits(&with(&["q_proj_bias"]), DType::F32), [false, true]);
        assert_eq!(fits(&with(&["up_proj_lora_a"]), DType::F32), [true, false]);
        assert_eq!(fits(&with(&["o_proj_bias"]), DType::F32), [true, false]);
        vec![x[0].clone()]
    });
}

/// Trainer and sampler agree, since a token has the same numbers in both.
#[test]
fn half_width_has_the_bits_of_training() {
    let [b, d, h, k, e, f] = [5, 512, 8, 2, 64, 768];
    let mut noise = Noise::new(7);
    let sizes = [
        ("q_proj", [d, h * e]),
        ("k_proj", [d, k * e]),
        ("v_proj", [d, k * e]),
        ("o_proj", [h * e, d]),
        ("gate_proj", [d, f]),
        ("up_proj", [d, f]),
        ("down_proj", [f, d]),
    ];
    let mut layer = Layer::new(&mut noise, &sizes, true);
    layer.add("norm", noise.array(&[d], 0.5, 1.5));
    for (name, [_, to]) in &sizes[..3] {
        layer.add(&format!("{name}_bias"), noise.array(&[*to], -1.0, 1.0));
    }
    for name in ["q_norm", "k_norm"] {
        layer.add(name, noise.array(&[e], 0.5, 1.5));
    }
    let x = noise.array(&[b, 1, d], -2.0, 2.0);
    let mixed = noise.array(&[b, 1, h, e], -1.0, 1.0);
    let positions = HostArray::from_slice(&[b, 1], &[0_i32, 1, 20, 300, 4000]).unwrap();
    let args = [&[x, mixed, positions], &layer.arrays[..]].concat();
    let found = Function::new("rounding", &args, |_, x| {
        let params = layer.params(&x[3..], DType::BF16);
        let (stream, mixed) = (x[0].convert(DType::BF16), x[1].convert(DType::BF16));
        let frequencies: Vec<f32> = (0..e / 2).map(|i| 0.7_f32.powi(i as i32)).collect();
        let by = Rotation::new(&x[2], &frequencies, 1.0);
        let (norm, eps) = (params.at("norm"), 1e-5);
        let heads = HeadsStep {
            norm,
            eps,
            params: &params,
            head_norms: Some([params.at("q_norm"), params.at("k_norm")]),
            head_size: e,
        };
        let feed = FeedStep {
            attention: &params,
            norm,
            eps,
            mlp: &params,
        };
        let normed = rms_norm(&stream, norm, eps);
        let of_head = |name, n| project(&normed, &params, name).reshape(&[b, 1, n, e]);
        let flat = mixed.reshape(&[b, 1, h * e]);
        let after = &stream + project(&flat, &params, "o_proj");
        let training = [
            rotate(
                &rms_norm(&of_head("q_proj", h), params.at("q_norm"), eps),
                &by,
            ),
            rotate(
                &rms_norm(&of_head("k_proj", k), params.at("k_norm"), eps),
                &by,
            ),
            of_head("v_proj", k),
            &after + swiglu(&rms_norm(&after, norm, eps), &params),
        ];
        let mut all = heads.of(&stream, &by).to_vec();
        all.push(feed.of(&stream, &mixed));
        all.extend(training);
        all.iter().map(|t| t.convert(DType::F32)).collect()
    })
    .run(&args);
    for i in 0..4 {
        let (found, right) = (found[i].as_slice::<f32>(), found[4 + i].as_slice::<f32>());
        assert!(found == right, "result {i}");
    }
}
