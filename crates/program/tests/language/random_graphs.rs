//! Programs that nobody thought of: lists of instructions, drawn at random, each adding a node or a body to a pool of tensors.
//!
//! For each: the text is the same when it is traced again, it compiles, what nobody reads is not in it, and the derivative
//! along a random direction is what finite differences say.

use ferrotune_graph::{DType, Graph, HostArray, Mesh, Platform, Policy, Residual, Tensor};
use ferrotune_program::{Argument, Group};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use crate::check::{client, noise, program_on, trace_on};

const CASES: u32 = 200;

/// One instruction: what to do, and two numbers that choose its operands and its details.
type Instruction = (u8, u8, u8);

/// All pool tensors are `[3, 4]`, so that every instruction fits every operand.
const DIMS: [usize; 2] = [3, 4];

struct Pool<'a> {
    g: &'a Graph,
    tensors: Vec<Tensor>,
}

impl Pool<'_> {
    fn pick(&self, choice: u8) -> Tensor {
        // Later tensors more often, so that programs are deep.
        let n = self.tensors.len();
        self.tensors[n - 1 - usize::from(choice) * usize::from(choice) * n / (256 * 256)].clone()
    }

    fn policy(choice: u8) -> Policy {
        match choice % 4 {
            0 => Policy::recompute(),
            1 => Policy::keep_dots(),
            2 => Policy::keep_all(),
            _ => Policy::recompute().with("mixed", Residual::Offload),
        }
    }

    /// A body for loops and blocks: two operands, a captured constant, a contraction, a name.
    fn mix(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let square = self.g.einsum("ab,cb->ac", a, b, DType::F64).named("mixed");
        (self.g.einsum("ac,cb->ab", &square, b, DType::F64) * 0.3 + a).tanh()
    }

    fn add(&mut self, (what, i, j): Instruction) {
        let g = self.g;
        let (a, b) = (self.pick(i), self.pick(j));
        let next = match what % 20 {
            0 => &a + &b,
            1 => &a * &b,
            2 => &a / (b.square() + 1.0),
            3 => a.tanh() - b.logistic(),
            4 => a.exp() * 0.2,
            5 => (a.square() + 0.5).ln() * b,
            6 => (a.square() + 0.5).rsqrt(),
            7 => {
                g.einsum("ab,cb->ac", &a, &b, DType::F64)
                    .sum_keep(&[1])
                    .tanh()
                    * b
            }
            8 => a.transpose(&[1, 0]).reshape(&[3, 4]),
            9 => Tensor::concatenate(&[&a.slice(1, 0, 2), &b.slice(1, 1, 3)], 1),
            10 => a.gt(&b).select(&a, &(b * 0.5)),
            11 => a.slice(0, 1, 3).pad(0, 1, 0, 0.25),
            12 => a.cumulative_sum(usize::from(j % 2)) * 0.3,
            13 => a.max_keep(&[1]) * b,
            14 => {
                let ids = HostArray::from_slice(&[3], &[2_i32, 0, i32::from(i % 3)]).unwrap();
                a.take(&g.constant(ids))
            }
            15 => {
                let stacked = Tensor::concatenate(&[&a, &b], 0).reshape(&[2, 3, 4]);
                let (carry, ys) = g.scan(Self::policy(i), vec![a], vec![stacked], 2, |_, c, x| {
                    let next = self.mix(&c[0], &x[0]) + &b * 0.1;
                    (vec![next.clone()], vec![next])
                });
                &carry[0] + ys[0].sum(&[0]) * 0.2
            }
            16 => {
                let yes = a.sum_all().gt(&b.sum_all());
                g.cond(&yes, || vec![self.mix(&a, &b)], || vec![a.sin()])
                    .remove(0)
            }
            17 => g
                .remat(&Self::policy(j), || vec![self.mix(&a, &b)])
                .remove(0),
            18 => g
                .custom_vjp(
                    &[&a, &b],
                    |x| {
                        (
                            vec![(&x[0] * &x[1]).tanh()],
                            vec![x[0].clone(), x[1].clone()],
                        )
                    },
                    |r, d| {
                        let slope = (&r[0] * &r[1]).tanh().square() * -1.0 + 1.0;
                        let d = &d[0] * slope;
                        vec![Some(&d * &r[1]), Some(&d * &r[0])]
                    },
                )
                .remove(0),
            _ => g.barrier(&[&a, &b])[usize::from(i % 2)].clone() - &a * 0.5,
        };
        assert_eq!(next.dims(), DIMS);
        // Values stay of size one, whatever is done to them.
        self.tensors.push((next * 0.7).tanh());
        // Never read: must not reach the text, which uses this function nowhere else.
        let _ = self.tensors[0].floor();
    }
}

/// A scalar that depends on the last tensors, with weights that are not 1.
fn loss(g: &Graph, x: &[Tensor], instructions: &[Instruction]) -> Tensor {
    let mut pool = Pool {
        g,
        tensors: x.to_vec(),
    };
    for instruction in instructions {
        pool.add(*instruction);
    }
    let last = pool.tensors.iter().rev().take(3).enumerate();
    let terms = last.map(|(k, t)| (t * g.constant(noise(&DIMS, 50 + k as u64, false))).sum_all());
    terms.fold(g.scalar(0.0, DType::F64), |sum, term| sum + term) * 1.3
}

fn along(args: &[HostArray], directions: &[HostArray], by: f64) -> Vec<HostArray> {
    let moved = args.iter().zip(directions).map(|(a, d)| {
        let pairs = a.as_slice::<f64>().iter().zip(d.as_slice::<f64>());
        HostArray::from_slice(
            a.dims(),
            &pairs.map(|(a, d)| a + by * d).collect::<Vec<f64>>(),
        )
        .unwrap()
    });
    moved.collect()
}

fn check(instructions: &[Instruction]) -> Result<(), TestCaseError> {
    let args = [noise(&DIMS, 1, false), noise(&DIMS, 2, false)];
    let trace = |g: &Graph, x: &[Tensor]| {
        let y = loss(g, x, instructions);
        let d = g.grad(&y, &[&x[0], &x[1]]);
        vec![y, d[0].clone(), d[1].clone()]
    };
    let (program, layout) = program_on(&Mesh::single(), "random", &args, trace);
    let (again, _) = trace_on(&Mesh::single(), "random", &args, trace);
    prop_assert_eq!(program.text(), again.lower(Platform::Cpu).module.text);
    prop_assert!(
        !program.text().contains("floor"),
        "dead code in {}",
        program.text()
    );

    let run = |args: &[HostArray]| {
        let group = Group::upload(client(), &layout, args).unwrap();
        program.call(vec![Argument::Borrowed(&group)]).unwrap()[0]
            .to_host()
            .unwrap()
    };
    let directions = [noise(&DIMS, 3, false), noise(&DIMS, 4, false)];
    let found: f64 = run(&args)[1..]
        .iter()
        .zip(&directions)
        .flat_map(|(g, d)| g.as_slice::<f64>().iter().zip(d.as_slice::<f64>()))
        .map(|(g, d)| g * d)
        .sum();
    let step = 1e-5;
    let at = |by: f64| run(&along(&args, &directions, by))[0].as_slice::<f64>()[0];
    let expected = (at(step) - at(-step)) / (2.0 * step);
    // Second-order error step², some of it multiplied by the depth of the program.
    prop_assert!(
        (found - expected).abs() <= 1e-6 * (1.0 + expected.abs()),
        "the derivative is {}, finite differences say {}",
        found,
        expected
    );
    Ok(())
}

#[test]
fn random_programs_are_written_once_and_differentiated_rightly() {
    let config = Config {
        cases: CASES,
        rng_seed: RngSeed::Fixed(0x5EED),
        failure_persistence: None,
        ..Config::default()
    };
    let instructions = prop::collection::vec(any::<Instruction>(), 1..10);
    TestRunner::new(config)
        .run(&instructions, |list| check(&list))
        .unwrap_or_else(|e| panic!("{e}"));
}
