//! What tracing refuses, with the place of the call; and names that are written so that XLA reads them back.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use ferrotune_graph::{
    DType, Graph, HostArray, Mesh, Platform, Policy, Rules, Sharding, Tensor, TensorType, random,
};
use ferrotune_program::{Builder, Layout, Leaf};

use crate::check::{client, run, run_on, text};

fn graph() -> Graph {
    Graph::new("refused", Mesh::single(), Rules::default())
}

fn input(g: &Graph, dtype: DType, dims: &[usize]) -> Tensor {
    let sharding = Sharding::replicated(dims.len());
    g.input_placed("x", TensorType::new(dtype, dims), sharding)
}

/// Traces `f` of one argument.
fn traced(dtype: DType, dims: &[usize], f: impl FnOnce(&Graph, &Tensor) -> Tensor) {
    let g = graph();
    f(&g, &input(&g, dtype, dims));
}

macro_rules! refused {
    ($($name:ident: $message:literal => $call:expr;)*) => { $(
        #[test]
        #[should_panic(expected = $message)]
        fn $name() {
            let _ = $call;
        }
    )* };
}

const HALF: usize = 1 << 62;

refused! {
    a_program_without_a_name: "a program has a name" => Graph::new("", Mesh::single(), Rules::default());

    a_scan_of_no_steps: "at least one step and at most 2147483647, not 0"
        => graph().scan(Policy::recompute(), vec![], vec![], 0, |_, _, _| (vec![], vec![]));
    a_scan_back_of_no_steps: "at least one step and at most 2147483647, not 0"
        => graph().scan_reverse(Policy::recompute(), vec![], vec![], 0, |_, _, _| (vec![], vec![]));
    a_scan_of_more_steps_than_its_index_counts: "at most 2147483647, not 2147483648"
        => graph().scan(Policy::recompute(), vec![], vec![], 1 << 31, |_, _, _| (vec![], vec![]));

    the_size_of_an_unsigned_number: "takes SignedNumbers, not ui8" => traced(DType::U8, &[2], |_, x| x.abs());
    the_sign_of_an_unsigned_number: "takes SignedNumbers, not ui32" => traced(DType::U32, &[2], |_, x| x.sign());
    counting_in_booleans: "counts in numbers, not booleans" => graph().iota(DType::Pred, &[2], 0);
    picking_by_booleans: "the ids must be integers of dimensions [2], not tensor<2xi1>"
        => traced(DType::F32, &[2, 2], |_, x| x.pick_last(&x.is_finite().all(&[1])));
    picking_by_too_few_ids: "the ids must be integers of dimensions [2], not tensor<1xi32>"
        => traced(DType::F32, &[2, 2], |g, x| x.pick_last(&g.iota(DType::S32, &[1], 0)));
    picking_from_a_scalar: "a scalar has no axis to pick from"
        => traced(DType::F32, &[], |g, x| x.pick_last(&g.scalar(0.0, DType::S32)));
    gathering_along_an_empty_dimension: "dimension 0 is empty" => traced(DType::F32, &[0, 2], |g, x| whole(g, x, |x| x.all_gather(&[], 0)));
    scattering_along_an_empty_dimension: "dimension 0 is empty" => traced(DType::F32, &[0, 2], |g, x| whole(g, x, |x| x.reduce_scatter(&[], 0)));

    an_argument_that_cannot_be_counted: "more bytes than can be counted" => input(&graph(), DType::F32, &[HALF]);
    an_empty_argument_with_such_a_dimension: "more bytes than can be counted" => input(&graph(), DType::F32, &[0, HALF, 2]);
    a_constant_that_cannot_be_counted: "a tensor of dimensions [4294967296, 2147483648] has more bytes than can be counted"
        => graph().full(0.0, DType::U8, &[1 << 32, 1 << 31]);
    indices_that_cannot_be_counted: "more bytes than can be counted" => graph().iota(DType::S64, &[HALF], 0);
    a_broadcast_that_cannot_be_counted: "more bytes than can be counted"
        => traced(DType::S8, &[2], |_, x| x.broadcast_to(&[1 << 31, 1 << 31, 2]));
    a_reshape_that_cannot_be_counted: "more bytes than can be counted"
        => traced(DType::S8, &[0], |_, x| x.reshape(&[1 << 32, 1 << 32]));
    padding_that_cannot_be_counted: "more bytes than can be counted"
        => traced(DType::S8, &[2], |_, x| x.pad(0, usize::MAX, usize::MAX, 0.0));
    a_join_that_cannot_be_counted: "more bytes than can be counted" => {
        let g = graph();
        let x = input(&g, DType::S8, &[HALF]);
        Tensor::concatenate(&[&x, &x, &x, &x], 0)
    };
    a_stack_that_cannot_be_counted: "more bytes than can be counted" => traced(DType::S8, &[HALF], |g, x| {
        let (_, stacked) = g.scan(Policy::recompute(), vec![], vec![], 2, |_, _, _| (vec![], vec![x.negate()]));
        stacked[0].clone()
    });
    random_numbers_that_cannot_be_counted: "random numbers of dimensions [4294967296, 4294967296] from one key"
        => random::Key::new(&graph(), 1).bits(&[1 << 32, 1 << 32]);

    a_dimension_map_that_is_short: "the dimension map [0] does not fit: dimensions [2, 3]"
        => traced(DType::F32, &[2, 3], |_, x| x.broadcast_in_dim(&[2, 3], &[0]));
    a_dimension_map_to_nowhere: "the dimension map [7] does not fit"
        => traced(DType::F32, &[1], |_, x| x.broadcast_in_dim(&[3], &[7]));
    an_axis_of_a_sum: "axes [2] must be ascending and below 2" => traced(DType::F32, &[2, 3], |_, x| x.sum(&[2]));
    an_axis_of_a_kept_sum: "axes [2] must be ascending and below 2" => traced(DType::F32, &[2, 3], |_, x| x.sum_keep(&[2]));
    an_axis_of_a_kept_maximum: "axes [2] must be ascending and below 2" => traced(DType::F32, &[2, 3], |_, x| x.max_keep(&[2]));
    an_axis_of_a_mean: "axes [2] must be ascending and below 2" => traced(DType::F32, &[2, 3], |_, x| x.mean_keep(&[2]));
    results_that_replace_no_argument: "there are 1 results and 0 arguments" => {
        let leaf = Leaf::new("y", DType::F32, &[2], &["_"]);
        let layout = Layout::new(&Mesh::single(), &Rules::default(), &[leaf]).unwrap();
        let mut builder = Builder::new("refused", &Mesh::single(), &Rules::default());
        let y = builder.input("x", &layout);
        builder.output_replacing(&layout, &y, &[]);
    };

    a_fraction_of_an_integer: "0.5 is no value of type i32" => traced(DType::S32, &[2], |_, x| x * 0.5);
    a_negative_unsigned_number: "-1 is no value of type ui8" => traced(DType::U8, &[2], |_, x| x + -1.0);
    a_number_above_its_type: "300 is no value of type ui8" => traced(DType::U8, &[2], |_, x| x * 300.0);
    an_integer_that_is_none: "NaN is no value of type i64" => graph().scalar(f64::NAN, DType::S64);
    a_boolean_that_is_neither: "2 is no value of type i1" => graph().full(2.0, DType::Pred, &[2]);
    padding_with_a_fraction: "0.25 is no value of type i32" => traced(DType::S32, &[2], |_, x| x.pad(0, 1, 0, 0.25));
    a_mean_of_integers: "is no value of type i32" => traced(DType::S32, &[2], |_, x| x.mean_keep(&[0]));

    a_broadcast_of_two_types: "broadcast of tensor<2x3xf32> and tensor<4xf32>: dimensions [2, 3] and [4] do not fit together"
        => traced(DType::F32, &[2, 3], |g, x| x + g.full(1.0, DType::F32, &[4]));
}

/// `f` in a region of the program's only device.
fn whole(g: &Graph, x: &Tensor, f: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    let split = Sharding::replicated(x.rank());
    g.manual(&[], &[(x, split.clone())], &[split], |x| vec![f(&x[0])])
        .remove(0)
}

/// What a closure says that panics, and in which file.
fn complaint(f: impl FnOnce()) -> (String, String) {
    thread_local! {
        static FILE: RefCell<Option<String>> = const { RefCell::new(None) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            let file = info.location().map_or("", |place| place.file());
            match FILE.take() {
                Some(_) => FILE.set(Some(file.to_owned())),
                None => before(info), // another test
            }
        }));
    });
    FILE.set(Some(String::new()));
    let caught = catch_unwind(AssertUnwindSafe(f)).expect_err("it must panic");
    let said = caught.downcast_ref::<String>().cloned();
    (said.unwrap_or_default(), FILE.take().unwrap_or_default())
}

#[test]
fn what_a_closure_returns_is_refused_at_the_place_of_the_call() {
    let g = graph();
    let x = input(&g, DType::F32, &[4]);
    let yes = g.scalar(1.0, DType::Pred);
    let both = || vec![x.exp(), x.exp()];
    let mesh = Sharding::replicated(1);
    let recompute = Policy::recompute;
    let cases: [(&str, &dyn Fn()); 9] = [
        (
            "the carry of a scan keeps its types: number 1 is tensor<4xf32> before a step and tensor<f32> after it",
            &|| {
                let _ = g.scan(recompute(), both(), vec![], 2, |_, c, _| {
                    (vec![c[0].exp(), c[1].sum_all()], vec![])
                });
            },
        ),
        (
            "the carry of a scan keeps its types: there are 2 before a step and 1 after it",
            &|| {
                let _ = g.scan(recompute(), both(), vec![], 2, |_, c, _| {
                    (c[..1].to_vec(), vec![])
                });
            },
        ),
        (
            "the condition of a while loop is a boolean scalar, not tensor<4xf32>",
            &|| {
                let _ = g.while_loop(both(), |s| s[0].clone(), <[Tensor]>::to_vec);
            },
        ),
        (
            "the state of a while loop keeps its types: number 0 is tensor<4xf32> before a step and tensor<f32> after it",
            &|| {
                let sums = |s: &[Tensor]| vec![s[0].sum_all(), s[1].clone()];
                let _ = g.while_loop(both(), |_| yes.clone(), sums);
            },
        ),
        (
            "the branches of a cond return the same types: number 1 is tensor<4xf32> where the predicate holds and \
             tensor<f32> where it does not",
            &|| {
                let _ = g.cond(&yes, both, || vec![x.exp(), x.sum_all()]);
            },
        ),
        (
            "a derivative answers for every input: 0 answers for 1 inputs",
            &|| {
                let _ = g.custom_vjp(&[&x], |x| (x.to_vec(), vec![]), |_, _| vec![]);
            },
        ),
        (
            "cotangent 1 of type tensor<f32> stands for an input of type tensor<4xf32>",
            &|| {
                let back = |_: &[Tensor], d: &[Tensor]| vec![None, Some(d[0].sum_all())];
                let _ = g.custom_vjp(&[&x, &x], |x| (x[..1].to_vec(), vec![]), back);
            },
        ),
        (
            "the body of `manual` returns one tensor per output sharding: 2 for 1",
            &|| {
                let _ = g.manual(&[], &[], std::slice::from_ref(&mesh), |_| both());
            },
        ),
        ("broadcast of tensor<4xf32> and tensor<3xf32>", &|| {
            let _ = &x + g.full(1.0, DType::F32, &[3]);
        }),
    ];
    for (message, case) in cases {
        let (said, file) = complaint(case);
        assert!(said.contains(message), "{said}");
        assert!(file.ends_with("refusals.rs"), "{message}: {file}");
    }
}

#[test]
fn what_no_rule_places_is_refused_at_the_place_of_the_call() {
    let g = graph();
    let x = input(&g, DType::F32, &[4]);
    let cases: [&dyn Fn(); 4] = [
        &|| drop(g.input("y", DType::F32, &[4], &["absent"])),
        &|| drop(g.placement("y", &[4], &["absent"])),
        &|| drop(x.shard(&["absent"])),
        &|| drop(g.manual(&[], &[(&x, Sharding::replicated(2))], &[], |_| vec![])),
    ];
    for case in cases {
        let (said, file) = complaint(case);
        assert!(file.ends_with("refusals.rs"), "{said}: {file}");
    }
}

#[test]
fn a_layout_that_cannot_be_counted_is_refused() {
    let layout = |dims: &[usize]| {
        let leaf = Leaf::new("y", DType::F32, dims, &vec!["_"; dims.len()]);
        Layout::new(&Mesh::single(), &Rules::default(), &[leaf.clone(), leaf])
    };
    let error = layout(&[1 << 32, 1 << 32]).unwrap_err().to_string();
    assert!(error.contains("more bytes than can be counted"), "{error}");
    let large = layout(&[1 << 30, 1 << 30]).unwrap();
    assert_eq!(large.bytes(), 1 << 63);
    assert_eq!(large.with_dtype(DType::F64).bytes(), usize::MAX);
}

#[test]
fn scopes_of_any_characters_reach_xla_and_break_nothing() {
    let scope = "a\"b\\c\nd\te\u{1}f µ) loc(\"x";
    let found = text(Platform::Cpu, [&[2], &[2]], DType::F32, |g, a, _| {
        g.scope(scope, || a.exp())
    });
    let line = found.lines().find(|line| line.contains("exponential"));
    let line = line.expect("it is written");
    assert!(
        line.ends_with("loc(\"a\\22b\\5Cc\\0Ad\\09e\\01f \\C2\\B5) loc(\\22x\")"),
        "{line}"
    );
    let two = HostArray::from_slice(&[1], &[2.0_f32]).unwrap();
    let out = run("odd name\"\\\n2", &[two], |g, x| {
        vec![g.scope(scope, || &x[0] * 3.0)]
    });
    assert_eq!(out[0].as_slice::<f32>(), [6.0]);
}

#[test]
fn plain_program_names_stay_bare_and_others_are_quoted() {
    for (name, written) in [
        ("update_2.a", "module @update_2.a "),
        ("2nd step", "module @\"2nd step\" "),
        ("a\"b", "module @\"a\\22b\" "),
    ] {
        let g = Graph::new(name, Mesh::single(), Rules::default());
        let module = g.lower(Platform::Cpu, &[], &[]).module;
        assert!(module.text.starts_with(written), "{}", module.text);
        assert_eq!(module.name, name);
        client().compile(&module).expect("XLA reads the name");
    }
}

#[test]
fn an_exchange_along_empty_dimensions_is_empty() {
    let mesh = Mesh::new(&[("x", 2)]).unwrap();
    let all = Sharding::replicated(2);
    for (split, concat) in [(0, 1), (1, 0), (1, 1)] {
        let none = HostArray::from_slice::<f32>(&[0, 4], &[]).unwrap();
        let out = run_on(&mesh, "empty_exchange", &[none], |g, x| {
            g.manual(
                &["x"],
                &[(&x[0], all.clone())],
                std::slice::from_ref(&all),
                |x| vec![x[0].all_to_all(&["x"], split, concat)],
            )
        });
        assert!(out[0].is_empty());
    }
}
