//! Norms, gates and rotations: their derivatives by finite differences, kernels and portable forms.

use ferrotune_graph::{DType, Graph, HostArray, Tensor};
use ferrotune_nn::{Params, Rotation, rms_norm, rotate, swiglu};

use crate::check::{Function, Noise, moved, slope};

const ROWS: usize = 3;
const WIDTH: usize = 24;

/// Stream, weight of a norm, weights of a gated block, factors, positions.
fn arguments(noise: &mut Noise) -> Vec<HostArray> {
    let (inner, positions) = (10, [1_i32, 4, 9]);
    vec![
        noise.array(&[1, ROWS, WIDTH], -2.0, 2.0),
        noise.array(&[WIDTH], 0.5, 1.5),
        noise.array(&[WIDTH, inner], -1.0, 1.0),
        noise.array(&[WIDTH, inner], -1.0, 1.0),
        noise.array(&[inner, WIDTH], -1.0, 1.0),
        noise.array(&[1, ROWS, WIDTH], -1.0, 1.0),
        HostArray::from_slice(&[1, ROWS], &positions).unwrap(),
    ]
}

/// A number, from the middle of a graph: what comes in is doubled, what comes out multiplied by factors.
fn number(x: &[Tensor]) -> Tensor {
    let normed = rms_norm(&(&x[0] * 2.0), &x[1], 1e-3);
    let params = Params::new([
        ("gate_proj".to_owned(), x[2].clone()),
        ("up_proj".to_owned(), x[3].clone()),
        ("down_proj".to_owned(), x[4].clone()),
    ]);
    let fed = &normed + swiglu(&normed, &params);
    let heads = fed.reshape(&[1, ROWS, 2, WIDTH / 2]);
    let turned = rotate(&heads, &Rotation::new(&x[6], &[1.0, 0.3, 0.1], 1.0));
    let factors = &x[5] * 1.7;
    (turned.reshape(&[1, ROWS, WIDTH]) * factors).sum(&[0, 1, 2])
}

fn with_gradients(g: &Graph, x: &[Tensor]) -> Vec<Tensor> {
    let value = number(x);
    let wrt: Vec<&Tensor> = x[..5].iter().collect();
    let gradients = g.grad(&value, &wrt);
    std::iter::once(value).chain(gradients).collect()
}

#[test]
fn slopes_of_norms_gates_and_rotations_are_those_of_differences() {
    let mut noise = Noise::new(11);
    let args = arguments(&mut noise);
    for f in [
        Function::new("kernels", &args, with_gradients),
        Function::portable("portable", &args, with_gradients),
    ] {
        let found = f.run(&args);
        for i in 0..5 {
            let direction = noise.array(args[i].dims(), -1.0, 1.0);
            let at = |by: f32| {
                let mut changed = args.clone();
                changed[i] = moved(&args[i], &direction, by);
                f64::from(f.run(&changed)[0].as_slice::<f32>()[0])
            };
            let expected = (at(4e-3) - at(-4e-3)) / 8e-3;
            let slope = slope(&found[1 + i], &direction);
            assert!(
                (slope - expected).abs() <= 2e-3 * expected.abs().max(1.0),
                "argument {i}: {slope} instead of {expected}"
            );
        }
    }
}

/// In half width the kernels round where the operations do: what differs is a sum in another order, or an exponential, that falls
/// on the other side of the middle between two numbers.
#[test]
fn half_width_is_rounded_where_operations_round_it() {
    let mut noise = Noise::new(12);
    let (rows, width) = (32, 64);
    let mut one = vec![0.0_f32; width * width];
    (0..width).for_each(|i| one[i * width + i] = 1.0);
    let args = [
        noise.array(&[1, rows, width], -3.0, 3.0),
        noise.array(&[width], 0.5, 1.5),
        noise.array(&[width, width], -0.5, 0.5),
        noise.array(&[width, width], -0.5, 0.5),
        HostArray::from_slice(&[width, width], &one).unwrap(),
        HostArray::from_slice(&[1, rows], &(0..rows as i32).collect::<Vec<_>>()).unwrap(),
    ];
    let results = |_: &Graph, x: &[Tensor]| {
        let stream = x[0].convert(DType::BF16);
        let names = ["gate_proj", "up_proj", "down_proj"].map(str::to_owned);
        let params = Params::new(names.into_iter().zip(x[2..5].iter().cloned()));
        let heads = stream.reshape(&[1, rows, 2, width / 2]);
        let found = [
            rms_norm(&stream, &x[1], 1e-5),
            swiglu(&stream, &params),
            rotate(&heads, &Rotation::new(&x[5], &[1.0, 0.3, 0.1], 1.0)),
        ];
        found.iter().map(|t| t.convert(DType::F32)).collect()
    };
    let kernels = Function::new("kernels", &args, results).run(&args);
    let portable = Function::portable("portable", &args, results).run(&args);
    for (i, (found, right)) in kernels.iter().zip(&portable).enumerate() {
        let pairs = found.as_slice::<f32>().iter().zip(right.as_slice::<f32>());
        let others = pairs.filter(|(a, b)| a != b).count();
        assert!(others * 100 <= rows * width, "result {i}: {others} differ");
    }
}

/// What the kernels' derivatives round differs from what the operations' do by the order of sums.
#[test]
fn derivatives_in_half_width_are_those_of_operations() {
    let mut noise = Noise::new(13);
    // More rows than are summed at once and not a multiple, more gates than one thread takes at a time.
    let (rows, width, inner) = (150, 48, 120);
    let args = [
        noise.array(&[1, rows, width], -3.0, 3.0),
        noise.array(&[width], 0.5, 1.5),
        noise.array(&[width, inner], -0.5, 0.5),
        noise.array(&[width, inner], -0.5, 0.5),
        noise.array(&[inner, width], -0.5, 0.5),
        noise.array(&[1, rows, width], -1.0, 1.0),
    ];
    let gradients = |g: &Graph, x: &[Tensor]| {
        let stream = rms_norm(&(x[0].convert(DType::BF16) * 2.0), &x[1], 1e-5);
        let names = ["gate_proj", "up_proj", "down_proj"].map(str::to_owned);
        let params = Params::new(names.into_iter().zip(x[2..5].iter().cloned()));
        let fed = swiglu(&stream, &params).convert(DType::F32);
        let wrt: Vec<&Tensor> = x[..5].iter().collect();
        g.grad(&(fed * &x[5] * 1.7).sum(&[0, 1, 2]), &wrt)
    };
    let kernels = Function::new("kernels", &args, gradients).run(&args);
    let portable = Function::portable("portable", &args, gradients).run(&args);
    for (i, (found, right)) in kernels.iter().zip(&portable).enumerate() {
        let (found, right) = (found.as_slice::<f32>(), right.as_slice::<f32>());
        let square = |it: &mut dyn Iterator<Item = f32>| it.map(|x| x * x).sum::<f32>().sqrt();
        let apart = square(&mut found.iter().zip(right).map(|(a, b)| a - b));
        let size = square(&mut right.iter().copied());
        assert!(apart <= 4e-3 * size, "gradient {i}: {apart} of {size}");
    }
}
