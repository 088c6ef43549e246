//! Experts with buffers of a fixed size, beside a plain loop that fills them token by token.

use ferrotune_graph::{Graph, HostArray, Tensor};
use ferrotune_nn::{Capacity, Routing, mix_experts, mix_experts_capped};

use crate::check::{Function, Noise, moved, slope};
use crate::experts::{CHOSEN, EXPERTS, Plain, TOKENS, WIDTH, arguments, close, params};

const ROUTING: Routing = Routing {
    top_k: CHOSEN,
    normalize: true,
};

fn block(x: &[Tensor], capacity: Capacity) -> Vec<Tensor> {
    let counted = x[5].gt(&x[5].scalar_like(0.0));
    let routes = ROUTING.route(&x[0], &x[1], None);
    let (y, dropped) = mix_experts_capped(&x[0], &routes, &counted, capacity, &params(x));
    let whole = mix_experts(&x[0], &routes, &counted, &params(x));
    vec![y, dropped, routes.experts, whole]
}

/// Which slots find a place, token by token.
fn kept(experts: &[i32], capacity: Capacity) -> Vec<bool> {
    let mut taken = vec![0; capacity.rows * EXPERTS];
    let slot = |(at, x): (usize, &i32)| {
        let token = at / CHOSEN;
        let row = token / (TOKENS / capacity.rows);
        let buffer = &mut taken[row * EXPERTS + *x as usize];
        let counted = token % 3 != 1;
        *buffer += usize::from(counted);
        counted && *buffer <= capacity.places
    };
    experts.iter().enumerate().map(slot).collect()
}

#[test]
fn later_tokens_of_a_row_are_dropped_and_counted() {
    let args = arguments(1);
    let plain = Plain(&args);
    for (rows, places) in [(1, 1), (1, 3), (2, 2), (3, 1), (3, 2), (6, 1)] {
        let capacity = Capacity { rows, places };
        let name = format!("capped_{rows}_{places}");
        let found = Function::new(&name, &args, |_, x| block(x, capacity)).run(&args);
        let experts = found[2].as_slice::<i32>();
        let kept = kept(experts, capacity);
        for token in 0..TOKENS {
            let chosen = &experts[token * CHOSEN..][..CHOSEN];
            let speaks = |j| kept[token * CHOSEN + j];
            let expected = plain.mix_some(token, chosen, true, speaks);
            let y = &found[0].as_slice::<f32>()[token * WIDTH..][..WIDTH];
            close(y, &expected, &name);
        }
        let slots = (0..TOKENS).filter(|t| t % 3 != 1).count() * CHOSEN;
        let dropped = slots - kept.iter().filter(|it| **it).count();
        assert!(dropped > 0, "{name} drops nothing, so it shows nothing");
        assert_eq!(found[1].as_slice::<i32>(), [dropped as i32], "{name}");
    }
}

#[test]
fn with_places_for_all_nothing_is_dropped_and_nothing_changes() {
    let args = arguments(2);
    for rows in [1, 3] {
        let places = TOKENS / rows;
        let capacity = Capacity { rows, places };
        let found = Function::new("ample", &args, |_, x| block(x, capacity)).run(&args);
        assert_eq!(found[1].as_slice::<i32>(), [0]);
        let pairs = found[0].as_slice::<f32>().iter();
        let pairs = pairs.zip(found[3].as_slice::<f32>());
        let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-6, "off by {worst}");
    }
}

#[test]
fn the_capacity_is_that_of_a_row() {
    let places = |factor, tokens| Capacity::of_rows(factor, [2, tokens], 3, 8).places;
    assert_eq!(
        [places(1.0, 16), places(1.0, 17), places(1.5, 16)],
        [6, 7, 9]
    );
    assert_eq!([places(0.001, 16), places(1e9, 16)], [1, 16]);
    assert_eq!(Capacity::of_rows(1.0, [5, 16], 3, 8).rows, 5);
}

#[test]
fn gradients_of_what_is_kept_are_those_of_finite_differences() {
    let args = arguments(3);
    let capacity = Capacity { rows: 2, places: 2 };
    let loss = |g: &Graph, x: &[Tensor]| {
        let y = block(x, capacity).remove(0);
        let weights = Noise::new(9).array(&[TOKENS, WIDTH], -1.0, 1.0);
        (y * g.constant(weights)).sum_all() * 1.7
    };
    let value = Function::new("capped_loss", &args, |g, x| vec![loss(g, x)]);
    let slopes = Function::new("capped_grad", &args, |g, x| {
        g.grad(&loss(g, x), &x[..5].iter().collect::<Vec<_>>())
    });
    let at = |args: &[HostArray]| f64::from(value.run(args)[0].as_slice::<f32>()[0]);
    let mut noise = Noise::new(4);
    for (i, gradient) in slopes.run(&args).iter().enumerate() {
        let direction = noise.array(args[i].dims(), -1.0, 1.0);
        let at_moved = |by: f32| {
            let mut changed = args.clone();
            changed[i] = moved(&args[i], &direction, by);
            at(&changed)
        };
        let step = 2e-3; // small, so that no token changes its experts
        let expected = (at_moved(step) - at_moved(-step)) / (2.0 * f64::from(step));
        let slope = slope(gradient, &direction);
        assert!(
            (slope - expected).abs() < 5e-3 * (1.0 + expected.abs()),
            "input {i}: {slope}, differences say {expected}"
        );
    }
}
