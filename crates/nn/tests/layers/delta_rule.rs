//! The gated delta rule, beside its recurrence token by token in float64.

use ferrotune_graph::{Graph, HostArray, Tensor};
use ferrotune_nn::{DeltaInputs, Sequence, delta_step, gated_delta_rule};

use crate::check::{Documents, Function, Noise, largest, moved, slope};

const KEY_HEADS: usize = 2;
const VALUE_HEADS: usize = 2; // of each key head
const KEY: usize = 8;
const VALUE: usize = 6;

/// Queries and keys of length one, values, log decays down to `-decay`, betas; then segment ids and positions.
fn arguments(noise: &mut Noise, documents: &Documents, decay: f32) -> Vec<HostArray> {
    let (b, t) = (documents.rows, documents.tokens);
    let unit = |noise: &mut Noise| {
        let raw = noise.array(&[b, t, KEY_HEADS, KEY], -1.0, 1.0);
        let values: Vec<f32> = raw
            .as_slice::<f32>()
            .chunks(KEY)
            .flat_map(|x| {
                let norm = x.iter().map(|v| v * v).sum::<f32>().sqrt();
                x.iter().map(move |v| v / norm).collect::<Vec<f32>>()
            })
            .collect();
        HostArray::from_slice(raw.dims(), &values).unwrap()
    };
    let heads = [b, t, KEY_HEADS, VALUE_HEADS];
    let mut args = vec![unit(noise), unit(noise)];
    args.push(noise.array(&[&heads[..], &[VALUE]].concat(), -1.0, 1.0));
    args.push(noise.array(&heads, -decay, 0.0));
    args.push(noise.array(&heads, 0.0, 1.0));
    args.extend(documents.arrays());
    args
}

fn inputs(x: &[Tensor]) -> DeltaInputs {
    let [query, key, value, log_decay, beta] = [0, 1, 2, 3, 4].map(|i| x[i].clone());
    DeltaInputs {
        query,
        key,
        value,
        log_decay,
        beta,
    }
}

fn rule(x: &[Tensor], chunk: usize) -> Tensor {
    let seq = Sequence {
        segment_ids: x[5].clone(),
        positions: x[6].clone(),
    };
    gated_delta_rule(&inputs(x), &seq, chunk)
}

/// The recurrence, one head and one token after the other. Padding reads zero.
fn by_tokens(args: &[HostArray], documents: &Documents) -> Vec<f64> {
    let f = |i: usize| args[i].as_slice::<f32>();
    let (q, k, v, decay, beta) = (f(0), f(1), f(2), f(3), f(4));
    let (rows, tokens) = (documents.rows, documents.tokens);
    let mut read = vec![0.0; rows * tokens * KEY_HEADS * VALUE_HEADS * VALUE];
    for row in 0..rows {
        for head in 0..KEY_HEADS * VALUE_HEADS {
            let mut state = [[0.0_f64; VALUE]; KEY];
            for t in row * tokens..(row + 1) * tokens {
                if documents.positions[t] == 0 {
                    state = [[0.0; VALUE]; KEY];
                }
                if documents.segment_ids[t] == 0 {
                    continue;
                }
                let at = t * KEY_HEADS * VALUE_HEADS + head;
                let pair = (t * KEY_HEADS + head / VALUE_HEADS) * KEY;
                state
                    .iter_mut()
                    .flatten()
                    .for_each(|h| *h *= f64::from(decay[at]).exp());
                for (n, out) in read[at * VALUE..(at + 1) * VALUE].iter_mut().enumerate() {
                    let old: f64 = (0..KEY).map(|e| state[e][n] * f64::from(k[pair + e])).sum();
                    let change = f64::from(beta[at]) * (f64::from(v[at * VALUE + n]) - old);
                    for e in 0..KEY {
                        state[e][n] += f64::from(k[pair + e]) * change;
                    }
                    *out = (0..KEY).map(|e| state[e][n] * f64::from(q[pair + e])).sum();
                }
            }
        }
    }
    read
}

fn compare(found: &HostArray, expected: &[f64], what: &str) {
    for (i, (a, b)) in found.as_slice::<f32>().iter().zip(expected).enumerate() {
        assert!(
            (f64::from(*a) - b).abs() <= 1e-5,
            "{what}: element {i} is {a} instead of {b}"
        );
    }
}

#[test]
fn chunks_compute_what_the_recurrence_does() {
    // Chunk borders in all places: rows that are shorter than a chunk, divide it, and do not.
    for (tokens, chunk) in [
        (1, 64),
        (7, 64),
        (64, 64),
        (65, 64),
        (200, 64),
        (50, 16),
        (33, 1),
    ] {
        for (seed, decay) in [(1, 0.2), (2, 20.0), (3, 0.0)] {
            let mut noise = Noise::new(seed);
            let documents = Documents::random(&mut noise, 3, tokens, 90);
            let args = arguments(&mut noise, &documents, decay);
            let f = Function::new("delta", &args, |_, x| vec![rule(x, chunk)]);
            let what = format!("{tokens} tokens in chunks of {chunk}, decay {decay}");
            compare(&f.run(&args)[0], &by_tokens(&args, &documents), &what);
        }
    }
}

#[test]
fn documents_of_every_length_and_offset_are_computed_alike() {
    let mut noise = Noise::new(4);
    let (rows, tokens) = (8, 256);
    let shape = Documents::random(&mut noise, rows, tokens, 10);
    let args = arguments(&mut noise, &shape, 0.5);
    let f = Function::new("lengths", &args, |_, x| vec![rule(x, 64)]);
    for longest in [3, 20, 70, 256] {
        for _ in 0..6 {
            let documents = Documents::random(&mut noise, rows, tokens, longest);
            let args = arguments(&mut noise, &documents, 0.5);
            compare(
                &f.run(&args)[0],
                &by_tokens(&args, &documents),
                &format!("documents up to {longest}"),
            );
        }
    }
}

#[test]
fn steps_compute_what_chunks_do() {
    let mut noise = Noise::new(5);
    let tokens = 20;
    let documents = Documents {
        rows: 2,
        tokens,
        segment_ids: vec![1; 2 * tokens],
        positions: (0..2).flat_map(|_| 0..tokens as i32).collect(),
    };
    let args = arguments(&mut noise, &documents, 1.0);
    let f = Function::new("steps", &args, |g, x| {
        let turned = x[..5].iter().map(|t| {
            let order: Vec<usize> = [1, 0].into_iter().chain(2..t.rank()).collect();
            t.transpose(&order)
        });
        let state = g.full(
            0.0,
            ferrotune_graph::DType::F32,
            &[2, KEY_HEADS, VALUE_HEADS, KEY, VALUE],
        );
        let (_, read) = g.scan(
            Default::default(),
            vec![state],
            turned.collect(),
            tokens,
            |_, state, token| {
                let (read, next) = delta_step(&state[0], &inputs(token));
                (vec![next], vec![read])
            },
        );
        vec![read[0].transpose(&[1, 0, 2, 3, 4])]
    });
    compare(&f.run(&args)[0], &by_tokens(&args, &documents), "steps");
}

/// A scalar that reads every output with another weight.
fn loss(g: &Graph, x: &[Tensor], chunk: usize) -> Tensor {
    let read = rule(x, chunk);
    let weights = Noise::new(99).array(&read.dims(), -1.0, 1.0);
    (read * g.constant(weights)).sum_all() * 1.7
}

#[test]
fn gradients_are_those_of_finite_differences_and_reach_no_other_document() {
    let mut noise = Noise::new(6);
    let documents = Documents::random(&mut noise, 2, 21, 12);
    let args = arguments(&mut noise, &documents, 1.0);
    let value = Function::new("delta_loss", &args, |g, x| vec![loss(g, x, 8)]);
    let slopes = Function::new("delta_grad", &args, |g, x| {
        let y = loss(g, x, 8);
        g.grad(&y, &x[..5].iter().collect::<Vec<_>>())
    });
    let found = slopes.run(&args);
    let at = |args: &[HostArray]| f64::from(value.run(args)[0].as_slice::<f32>()[0]);
    for (i, gradient) in found.iter().enumerate() {
        // Along random directions: single elements would drown in the rounding of f32.
        for _ in 0..4 {
            let direction = noise.array(args[i].dims(), -1.0, 1.0);
            let at_moved = |by: f32| {
                let mut changed = args.clone();
                changed[i] = moved(&args[i], &direction, by);
                at(&changed)
            };
            let step = 1e-2;
            let expected = (at_moved(step) - at_moved(-step)) / (2.0 * f64::from(step));
            let slope = slope(gradient, &direction);
            let size = largest(gradient.as_slice::<f32>());
            assert!(
                (slope - expected).abs() < 3e-3 * (1.0 + expected.abs() + size),
                "input {i}: {slope}, differences say {expected}"
            );
        }
    }
}

#[test]
fn gradients_stay_finite_under_extreme_decays() {
    for decay in [0.0, 1e-6, 80.0, 1e4] {
        let mut noise = Noise::new(7);
        let documents = Documents::random(&mut noise, 2, 70, 40);
        let args = arguments(&mut noise, &documents, decay);
        let slopes = Function::new("extreme", &args, |g, x| {
            let y = loss(g, x, 32);
            g.grad(&y, &x[..5].iter().collect::<Vec<_>>())
        });
        for gradient in slopes.run(&args) {
            assert!(
                gradient.as_slice::<f32>().iter().all(|v| v.is_finite()),
                "decay {decay}"
            );
        }
    }
}

#[test]
fn changing_one_document_changes_no_bit_of_another() {
    let mut noise = Noise::new(8);
    let documents = Documents::random(&mut noise, 3, 90, 40);
    let args = arguments(&mut noise, &documents, 0.5);
    let f = Function::new("isolated", &args, |g, x| {
        let y = rule(x, 32);
        let d = g.grad(&loss(g, x, 32), &[&x[2]]);
        vec![y, d[0].clone()]
    });
    let before = f.run(&args);
    let mut other = args.clone();
    for arg in &mut other[..5] {
        let per_token = arg.len() / (documents.rows * documents.tokens);
        let values: Vec<f32> = arg
            .as_slice::<f32>()
            .iter()
            .enumerate()
            .map(|(i, v)| {
                if documents.segment_ids[i / per_token] == 1 {
                    v * 0.5
                } else {
                    *v
                }
            })
            .collect();
        *arg = HostArray::from_slice(arg.dims(), &values).unwrap();
    }
    let after = f.run(&other);
    for (a, b) in before.iter().zip(&after) {
        let per_token = a.len() / (documents.rows * documents.tokens);
        let pairs = a
            .as_slice::<f32>()
            .iter()
            .zip(b.as_slice::<f32>())
            .enumerate();
        for (i, (a, b)) in pairs.filter(|(i, _)| documents.segment_ids[i / per_token] != 1) {
            assert_eq!(a.to_bits(), b.to_bits(), "element {i}");
        }
    }
}
