//! Functions of this process that programs call.

use ferrotune_graph::{
    Attribute, Attributes, Cost, DType, Graph, HostArray, Kernel, KernelCall, KernelRule, Mesh,
    Platform, Policy, Sharding, Tensor, TensorType,
};

use crate::check::{derivative, noise, program_on, rules, run, run_on, trace_on};

/// `a · xᵏ + b`, element by element: two operands, one attribute.
static POWER: KernelRule = KernelRule {
    kernel: Kernel {
        name: "test_power",
        run: power,
    },
    infer: power_types,
    cost: |inputs, outputs| Cost::elementwise(2.0, inputs, outputs),
};

fn power(call: &mut KernelCall<'_>) -> Result<(), String> {
    let exponent = i32::try_from(call.integer("exponent")?).map_err(|e| e.to_string())?;
    if exponent == 13 {
        panic!("the exponent is thirteen");
    }
    let (inputs, outputs) = call.parts();
    let (x, b) = (inputs[0].as_slice::<f64>()?, inputs[1].as_slice::<f64>()?);
    let y = outputs[0].as_mut_slice::<f64>()?;
    for ((y, x), b) in y.iter_mut().zip(x).zip(b) {
        *y = x.powi(exponent) + b;
    }
    Ok(())
}

fn power_types(inputs: &[TensorType], attributes: &Attributes) -> Result<Vec<TensorType>, String> {
    if inputs.len() != 2 || inputs[0] != inputs[1] || inputs[0].dtype != DType::F64 {
        return Err("takes two f64 tensors of one shape".to_owned());
    }
    match attributes {
        [("exponent", Attribute::Integer(n))] if *n > 0 => Ok(vec![inputs[0].clone()]),
        _ => Err("takes one attribute, `exponent`, a positive integer".to_owned()),
    }
}

fn call(g: &Graph, x: &Tensor, b: &Tensor, exponent: i64) -> Tensor {
    let portable = |x: &[Tensor]| {
        let product = (1..exponent).fold(x[0].clone(), |product, _| product * &x[0]);
        vec![product + &x[1]]
    };
    g.kernel(
        &POWER,
        &[x, b],
        &[("exponent", Attribute::Integer(exponent))],
        portable,
    )
    .remove(0)
}

/// With its own derivative, again by a kernel.
fn differentiable(g: &Graph, x: &Tensor, b: &Tensor, exponent: i64) -> Tensor {
    let forward = |x: &[Tensor]| (vec![call(g, &x[0], &x[1], exponent)], vec![x[0].clone()]);
    let backward = |r: &[Tensor], d: &[Tensor]| {
        let slope = call(g, &r[0], &r[0].zeros_like(), exponent - 1) * exponent as f64;
        vec![Some(&d[0] * slope), Some(d[0].clone())]
    };
    g.custom_vjp(&[x, b], forward, backward).remove(0)
}

fn arguments() -> [HostArray; 2] {
    [noise(&[8, 4], 1, false), noise(&[8, 4], 2, false)]
}

#[test]
fn a_kernel_computes_what_its_portable_form_does() {
    let args = arguments();
    let kernel = |g: &Graph, x: &[Tensor]| vec![call(g, &x[0], &x[1], 3)];
    let (program, _) = program_on(&Mesh::single(), "kernel", &args, kernel);
    assert!(
        program.text().contains("@ferrotune_kernel"),
        "{}",
        program.text()
    );
    let (builder, _) = trace_on(&Mesh::single(), "kernel", &args, kernel);
    let elsewhere = builder.lower(Platform::Tpu);
    assert!(
        !elsewhere.module.text.contains("custom_call"),
        "{}",
        elsewhere.module.text
    );
    assert!(elsewhere.module.kernels.is_empty());
    assert!(
        elsewhere
            .choices
            .contains_key("kernels are written in their portable form")
    );

    let portable = |_: &Graph, x: &[Tensor]| vec![&x[0] * &x[0] * &x[0] + &x[1]];
    let (found, expected) = (
        run("kernel", &args, kernel),
        run("portable", &args, portable),
    );
    for (a, b) in found[0]
        .as_slice::<f64>()
        .iter()
        .zip(expected[0].as_slice::<f64>())
    {
        assert!((a - b).abs() < 1e-14, "{a} {b}");
    }
}

#[test]
fn a_kernel_is_differentiated_by_the_rule_that_it_is_given() {
    derivative("kernel", &arguments(), |g, x| {
        differentiable(g, &x[0], &x[1], 3)
    });
}

#[test]
#[should_panic(expected = "give it one with custom_vjp")]
fn a_kernel_without_a_rule_is_not_differentiated() {
    run("bare", &arguments(), |g, x| {
        let y = call(g, &x[0], &x[1], 3).sum_all();
        g.grad(&y, &[&x[0]])
    });
}

#[test]
#[should_panic(
    expected = "`test_power` in ``: takes one attribute, `exponent`, a positive integer"
)]
fn attributes_are_checked_when_the_call_is_traced() {
    run("exponent", &arguments(), |g, x| {
        vec![call(g, &x[0], &x[1], 0)]
    });
}

#[test]
fn each_device_calls_the_kernel_on_its_own_part_of_a_manual_region() {
    let args = arguments();
    let f = |g: &Graph, x: &[Tensor], axes: &[&str], split: &Sharding| {
        let result = g.manual(
            axes,
            &[(&x[0], split.clone()), (&x[1], split.clone())],
            std::slice::from_ref(split),
            |part| vec![differentiable(g, &part[0], &part[1], 3)],
        );
        let y = &result[0];
        let d = g.grad(&(y * y).sum_all(), &[&x[0], &x[1]]);
        vec![y.clone(), d[0].clone(), d[1].clone()]
    };
    let one = run("one", &args, |g, x| f(g, x, &[], &Sharding::replicated(2)));
    for (x, y) in [(2, 1), (2, 2), (4, 2)] {
        let mesh = Mesh::new(&[("x", x), ("y", y)]).unwrap();
        let split = rules()
            .place("part", &[8, 4], &["split", "split2"], &mesh)
            .unwrap();
        let many = run_on(&mesh, "many", &args, |g, x| f(g, x, &["x", "y"], &split));
        assert_eq!(one, many, "on {mesh}");
        // Outside of a region the array is split, and the kernel would be given the whole of it on every device.
        let (builder, _) = trace_on(&mesh, "outside", &args, |g, x| {
            vec![call(g, &x[0], &x[1], 3)]
        });
        assert!(
            !builder
                .lower(Platform::Cpu)
                .module
                .text
                .contains("custom_call")
        );
    }
}

#[test]
fn a_panic_in_a_kernel_is_an_error_of_the_run() {
    use ferrotune_program::{Argument, Group};
    let args = arguments();
    let (program, layout) = program_on(&Mesh::single(), "panics", &args, |g, x| {
        vec![call(g, &x[0], &x[1], 13)]
    });
    let group = Group::upload(crate::check::client(), &layout, &args).unwrap();
    let error = match program.call(vec![Argument::Borrowed(&group)]) {
        Ok(results) => results[0].to_host().unwrap_err(),
        Err(error) => error,
    };
    let text = error.to_string();
    assert!(
        text.contains("test_power") && text.contains("the exponent is thirteen"),
        "{text}"
    );
}

#[test]
fn two_kernels_of_one_name_are_refused() {
    static OTHER: KernelRule = KernelRule {
        kernel: Kernel {
            name: "test_power",
            run: |_| Err("the other".to_owned()),
        },
        infer: |inputs, _| Ok(vec![inputs[0].clone()]),
        cost: |inputs, outputs| Cost::elementwise(1.0, inputs, outputs),
    };
    let (builder, _) = trace_on(&Mesh::single(), "twice", &arguments(), |g, x| {
        let other = g.kernel(&OTHER, &[&x[0]], &[], |x| vec![x[0].clone()]);
        vec![call(g, &x[0], &x[1], 3), other[0].clone()]
    });
    let error = builder
        .compile(crate::check::client())
        .unwrap_err()
        .to_string();
    assert!(error.contains("test_power"), "{error}");
}

/// `sum + x`, in the memory of `sum`.
static ADD_TO: KernelRule = KernelRule {
    kernel: Kernel {
        name: "test_add_to",
        run: |call| {
            let (inputs, outputs) = call.parts();
            let sums = outputs[1].as_mut_slice::<f64>()?.iter_mut();
            sums.zip(inputs[0].as_slice::<f64>()?)
                .for_each(|(sum, x)| *sum += x);
            outputs[0].as_mut_slice::<f64>()?[0] = 7.0;
            Ok(())
        },
    },
    infer: |inputs: &[TensorType], _: &Attributes| {
        Ok(vec![TensorType::new(DType::F64, &[1]), inputs[1].clone()])
    },
    cost: |inputs, outputs| Cost::elementwise(1.0, inputs, outputs),
};

fn add_to(g: &Graph, sum: &Tensor, x: &Tensor) -> Tensor {
    let in_place = [(Kernel::REPLACES, Attribute::Integers(vec![1, 1]))];
    let portable = |it: &[Tensor]| vec![g.full(7.0, DType::F64, &[1]), &it[1] + &it[0]];
    g.kernel(&ADD_TO, &[x, sum], &in_place, portable).remove(1)
}

#[test]
fn a_loop_adds_to_what_it_carries_in_place() {
    let args = arguments();
    let sum = |g: &Graph, x: &[Tensor]| {
        let (sum, _) = g.scan(
            Policy::recompute(),
            vec![x[0].clone()],
            vec![],
            5,
            |_, carry, _| (vec![add_to(g, &carry[0], &x[1])], vec![]),
        );
        // What the loop began with is read after it.
        vec![&sum[0] + &x[0]]
    };
    let (program, _) = program_on(&Mesh::single(), "in_place", &args, sum);
    assert!(program.text().contains("output_operand_aliases"));
    let right = |_: &Graph, x: &[Tensor]| vec![&x[0] * 2.0 + &x[1] * 5.0];
    let (found, expected) = (run("in_place", &args, sum), run("right", &args, right));
    let (found, expected) = (found[0].as_slice::<f64>(), expected[0].as_slice::<f64>());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-14, "{found} {expected}");
    }
}

#[test]
fn an_operand_that_is_replaced_and_read_too_is_copied() {
    let args = arguments();
    let both = |g: &Graph, x: &[Tensor]| {
        let flat = x[0].reshape(&[32]);
        let sum = add_to(g, &flat, &x[1].reshape(&[32]));
        vec![sum - flat - x[1].reshape(&[32])]
    };
    let found = run("both", &args, both);
    assert!(found[0].as_slice::<f64>().iter().all(|it| it.abs() < 1e-14));
}

#[test]
#[should_panic(expected = "what the kernel `test_add_to` replaces")]
fn a_result_of_another_type_replaces_nothing() {
    trace_on(&Mesh::single(), "other", &arguments(), |g, x| {
        let in_place = [(Kernel::REPLACES, Attribute::Integers(vec![1, 0]))];
        let portable = |it: &[Tensor]| vec![g.full(7.0, DType::F64, &[1]), &it[1] + &it[0]];
        g.kernel(&ADD_TO, &[&x[0], &x[1]], &in_place, portable)
    });
}
