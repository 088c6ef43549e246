//! Adapters of experts, each expert's its own, beside weights with the same product in them.

use ferrotune_graph::{DType, Graph, HostArray, Tensor};
use ferrotune_nn::{Capacity, Params, Routing, mix_experts, mix_experts_capped};

use crate::check::{Function, Noise, moved, slope};
use crate::experts::{CHOSEN, EXPERTS, TOKENS, WIDTH, arguments, params};

const RANK: usize = 2;
const SCALE: f64 = 0.7;
const NAMES: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Those of the block, then the two matrices of each layer.
fn with_adapters(seed: u64) -> Vec<HostArray> {
    let mut args = arguments(seed);
    let mut noise = Noise::new(seed + 1);
    for weight in 2..5 {
        let (from, to) = (args[weight].dims()[1], args[weight].dims()[2]);
        args.push(noise.array(&[EXPERTS, from, RANK], -1.0, 1.0));
        args.push(noise.array(&[EXPERTS, RANK, to], -1.0, 1.0));
    }
    args
}

fn adapted(x: &[Tensor]) -> Params {
    let pairs = x[6..12].chunks(2).zip(NAMES).flat_map(|(pair, name)| {
        let named = |part: &str, t: &Tensor| (format!("{name}_lora_{part}"), t.clone());
        [named("a", &pair[0]), named("b", &pair[1])]
    });
    let all = params(x).entries().into_iter().chain(pairs);
    Params::new(all).with_adapter_scale(SCALE)
}

/// The weights with the adapters' products in them.
fn merged(g: &Graph, x: &[Tensor]) -> Params {
    let named = (0..3).map(|i| {
        let product = g.einsum("xdr,xrf->xdf", &x[6 + 2 * i], &x[7 + 2 * i], DType::F32);
        (NAMES[i].to_owned(), &x[2 + i] + product * SCALE)
    });
    Params::new(named.collect::<Vec<_>>())
}

/// Without and with dropping.
fn both(x: &[Tensor], params: &Params) -> [Tensor; 2] {
    let counted = x[5].gt(&x[5].scalar_like(0.0));
    let routing = Routing {
        top_k: CHOSEN,
        normalize: true,
    };
    let routes = routing.route(&x[0], &x[1], None);
    let capacity = Capacity { rows: 2, places: 2 };
    let (capped, _) = mix_experts_capped(&x[0], &routes, &counted, capacity, params);
    [mix_experts(&x[0], &routes, &counted, params), capped]
}

fn worst(a: &HostArray, b: &HostArray) -> f32 {
    let pairs = a.as_slice::<f32>().iter().zip(b.as_slice::<f32>());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn adapters_say_what_weights_with_their_product_say_and_fresh_ones_nothing() {
    let mut args = with_adapters(5);
    let results = |g: &Graph, x: &[Tensor]| {
        let each = [adapted(x), merged(g, x), params(x)].map(|params| both(x, &params));
        each.concat()
    };
    let function = Function::new("expert_adapters", &args, results);
    let found = function.run(&args);
    for way in 0..2 {
        let error = worst(&found[way], &found[2 + way]);
        assert!(error < 2e-5, "{way}: off by {error}");
        assert!(worst(&found[way], &found[4 + way]) > 0.1, "{way}");
    }
    for b in [7, 9, 11] {
        let dims = args[b].dims().to_vec();
        let zeros = vec![0_f32; dims.iter().product()];
        args[b] = HostArray::from_slice(&dims, &zeros).unwrap();
    }
    let fresh = function.run(&args);
    for way in 0..2 {
        assert_eq!(fresh[way].bytes(), fresh[4 + way].bytes(), "{way}");
    }
}

#[test]
fn gradients_of_adapters_are_those_of_finite_differences() {
    let args = with_adapters(6);
    let loss = |g: &Graph, x: &[Tensor]| {
        let [y, capped] = both(x, &adapted(x));
        let weights = Noise::new(9).array(&[TOKENS, WIDTH], -1.0, 1.0);
        ((y * 1.3 + capped) * g.constant(weights)).sum_all()
    };
    let value = Function::new("adapters_loss", &args, |g, x| vec![loss(g, x)]);
    let slopes = Function::new("adapters_grad", &args, |g, x| {
        g.grad(&loss(g, x), &x[6..12].iter().collect::<Vec<_>>())
    });
    let at = |args: &[HostArray]| f64::from(value.run(args)[0].as_slice::<f32>()[0]);
    let mut noise = Noise::new(4);
    for (i, gradient) in slopes.run(&args).iter().enumerate() {
        let direction = noise.array(args[6 + i].dims(), -1.0, 1.0);
        let at_moved = |by: f32| {
            let mut changed = args.clone();
            changed[6 + i] = moved(&args[6 + i], &direction, by);
            at(&changed)
        };
        let step = 2e-3;
        let expected = (at_moved(step) - at_moved(-step)) / (2.0 * f64::from(step));
        let slope = slope(gradient, &direction);
        assert!(
            (slope - expected).abs() < 5e-3 * (1.0 + expected.abs()),
            "matrix {i}: {slope}, differences say {expected}"
        );
    }
}
