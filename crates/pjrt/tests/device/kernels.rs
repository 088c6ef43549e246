//! Functions of this process, called from programs on the CPU.

use std::{ffi::OsStr, sync::Arc, thread};

use ferrotune_pjrt::{
    Arg, Array, ArraySpec, Attribute, Client, DType, Error, HostArray, Kernel, KernelCall, Mesh,
    Module, PinnedPlugin, Plugin, Topology,
};
use half::bf16;

use crate::programs::{
    add_one, client, counting, in_child, module, on_both_plugins, plugin, spec, tensor, upload,
    values,
};

/// The line of a call, with its attributes in words of the language.
pub(crate) fn call(
    kernel: &str,
    attributes: &[(&str, Attribute)],
    inputs: &[&ArraySpec],
    outputs: &[&ArraySpec],
) -> String {
    let attributes: String = attributes
        .iter()
        .map(|(name, value)| format!(", {name} = {}", value.to_mlir()))
        .collect();
    let operands: Vec<String> = (0..inputs.len()).map(|i| format!("%a{i}")).collect();
    let types = |specs: &[&ArraySpec]| {
        let types: Vec<String> = specs.iter().map(|&spec| tensor(spec)).collect();
        types.join(", ")
    };
    let (many, results) = match outputs {
        [one] => (String::new(), tensor(one)),
        some => (format!(":{}", some.len()), format!("({})", types(some))),
    };
    format!(
        "%r{many} = stablehlo.custom_call @{}({}) {{api_version = 4 : i32, backend_config = {{kernel = \"{kernel}\"{attributes}}}}} : ({}) -> {results}",
        Kernel::TARGET,
        operands.join(", "),
        types(inputs),
    )
}

/// A module that is one call.
pub(crate) fn one_call(
    kernels: &[&'static Kernel],
    name: &str,
    attributes: &[(&str, Attribute)],
    inputs: &[&Arc<ArraySpec>],
    outputs: &[&Arc<ArraySpec>],
) -> Module {
    let of = |specs: &[&Arc<ArraySpec>]| -> Vec<Arc<ArraySpec>> {
        specs.iter().map(|&spec| Arc::clone(spec)).collect()
    };
    let (ins, outs) = (of(inputs), of(outputs));
    let ins: Vec<&ArraySpec> = ins.iter().map(|spec| &**spec).collect();
    let outs: Vec<&ArraySpec> = outs.iter().map(|spec| &**spec).collect();
    let names: Vec<String> = match outputs.len() {
        1 => vec!["%r".to_owned()],
        n => (0..n).map(|i| format!("%r#{i}")).collect(),
    };
    let types: Vec<String> = outs.iter().map(|spec| tensor(spec)).collect();
    let body = format!(
        "{}\nreturn {} : {}",
        call(name, attributes, &ins, &outs),
        names.join(", "),
        types.join(", ")
    );
    let args: Vec<_> = inputs.iter().map(|&spec| (spec, false)).collect();
    let mut module = module(&Mesh::single(), &args, outputs, &body);
    module.kernels = kernels.to_vec();
    module
}

pub(crate) fn run(
    client: &Client,
    module: &Module,
    inputs: &[&HostArray],
) -> Result<Vec<Array>, Error> {
    let program = client.compile(module).expect("it compiles");
    let arrays = inputs.iter().zip(program.args());
    let args = arrays
        .map(|(host, arg)| Arg::Moved(upload(client, host, &arg.spec, &module.mesh)))
        .collect();
    let results = program.run(args)?;
    results.iter().try_for_each(Array::wait)?;
    Ok(results)
}

/// y = scale x + n
pub(crate) static AFFINE: Kernel = Kernel {
    name: "affine",
    run: |call| {
        let (scale, n) = (call.number("scale")?, call.integer("n")?);
        let (inputs, outputs) = call.parts();
        let (x, y) = (
            inputs[0].as_slice::<f32>()?,
            outputs[0].as_mut_slice::<f32>()?,
        );
        for (y, x) in y.iter_mut().zip(x) {
            *y = scale as f32 * x + n as f32;
        }
        Ok(())
    },
};

pub(crate) fn affine(scale: f64, n: i64) -> [(&'static str, Attribute); 2] {
    [
        ("scale", Attribute::Number(scale)),
        ("n", Attribute::Integer(n)),
    ]
}

/// Fails when it is given the attributes with which `check_attributes` is called, one by one.
static ATTRIBUTES: Kernel = Kernel {
    name: "attributes",
    run: check_attributes,
};

const NAME: &str = "a \"quoted\\ name,\n{and} more: é";

fn check_attributes(call: &mut KernelCall<'_>) -> Result<(), String> {
    assert_eq!(call.integer("large"), Ok(i64::MIN));
    assert_eq!(call.number("third"), Ok(1.0 / 3.0));
    assert_eq!(call.number("one"), Ok(1.0));
    assert_eq!(call.number("infinite"), Ok(f64::NEG_INFINITY));
    assert!(call.number("none").is_ok_and(f64::is_nan));
    assert_eq!((call.flag("yes"), call.flag("no")), (Ok(true), Ok(false)));
    assert_eq!(call.text("words"), Ok(NAME.to_owned()));
    assert_eq!(call.text("empty"), Ok(String::new()));
    assert_eq!(call.integers("list"), Ok(vec![3, -1, i64::MAX]));
    assert_eq!(call.integers("nothing"), Ok(vec![]));
    assert_eq!(
        call.integer("absent"),
        Err("the call has no attribute 'absent'".to_owned())
    );
    assert_eq!(
        call.integer("one"),
        Err("attribute 'one' is 1.0e0 : f64, not a whole number".to_owned())
    );
    assert_eq!(
        call.number("large").unwrap_err(),
        "attribute 'large' is -9223372036854775808 : i64, not a number with a fraction"
    );
    for error in [
        call.flag("list").unwrap_err(),
        call.text("yes").unwrap_err(),
        call.integers("words").unwrap_err(),
    ] {
        assert!(error.contains(", not "), "{error}");
    }
    let (inputs, outputs) = call.parts();
    assert!(inputs.is_empty());
    outputs[0].as_mut_slice::<f32>()?[0] = 1.0;
    Ok(())
}

/// Row sums of a bf16 matrix in f32, its transpose in bf16, the number of rows, and which sums are positive.
static ROWS: Kernel = Kernel {
    name: "rows",
    run: |call| {
        let (inputs, outputs) = call.parts();
        let [x, mask] = inputs else {
            return Err("two inputs".to_owned());
        };
        let [sums, transposed, count, positive] = outputs else {
            return Err("four outputs".to_owned());
        };
        let &[rows, columns] = x.dims() else {
            return Err("a matrix".to_owned());
        };
        assert_eq!((x.dtype(), sums.dims()), (DType::BF16, &[rows][..]));
        assert_eq!((count.dims(), count.dtype()), (&[][..], DType::S32));
        let (x, mask) = (x.as_slice::<bf16>()?, mask.as_slice::<bool>()?);
        let sums = sums.as_mut_slice::<f32>()?;
        let transposed = transposed.as_mut_slice::<bf16>()?;
        for (row, values) in x.chunks(columns).enumerate() {
            let kept = values.iter().zip(mask).filter(|&(_, &kept)| kept);
            sums[row] = kept.map(|(x, _)| x.to_f32()).sum();
            for (column, &value) in values.iter().enumerate() {
                transposed[column * rows + row] = value;
            }
        }
        count.as_mut_slice::<i32>()?[0] = rows as i32;
        assert!(positive.as_mut_slice::<bool>().is_err());
        for (out, &sum) in positive.as_mut_slice::<u8>()?.iter_mut().zip(&*sums) {
            *out = u8::from(sum > 0.0);
        }
        Ok(())
    },
};

/// Does what the first value of its input says.
static TROUBLE: Kernel = Kernel {
    name: "trouble",
    run: |call| {
        let (inputs, outputs) = call.parts();
        let x = inputs[0].as_slice::<f32>()?;
        match x[0] as i32 {
            1 => return Err("no such thing\0 as luck".to_owned()),
            2 => panic!("at element {}", x.len()),
            3 => panic!("in words"),
            4 => std::panic::panic_any(5),
            5 => inputs[0].as_slice::<bf16>()?.len(),
            6 => outputs[0].as_mut_slice::<i32>()?.len(),
            7 => inputs[1].as_slice::<f32>()?.len(),
            _ => 0,
        };
        outputs[0].as_mut_slice::<f32>()?.copy_from_slice(x);
        Ok(())
    },
};

/// A truth value that is none.
static LIAR: Kernel = Kernel {
    name: "liar",
    run: |call| {
        let (_, outputs) = call.parts();
        outputs[0].as_mut_slice::<u8>()?.copy_from_slice(&[1, 2]);
        Ok(())
    },
};

on_both_plugins! {
    fn a_kernel_reads_its_input_and_fills_its_output(plugin) {
        let x = spec("x", DType::F32, &[2, 3], &[]);
        let module = one_call(&[&AFFINE], "affine", &affine(1.5, 3), &[&x], &[&x]);
        let results = run(&client(plugin, 1), &module, &[&counting(&[2, 3])]).expect("it runs");
        assert_eq!(values(&results[0]), [3.0, 4.5, 6.0, 7.5, 9.0, 10.5]);
    }

    fn attributes_arrive_as_they_were_written(plugin) {
        let text = |words: &str| Attribute::Text(words.to_owned());
        let attributes = [
            ("large", Attribute::Integer(i64::MIN)),
            ("third", Attribute::Number(1.0 / 3.0)),
            ("one", Attribute::Number(1.0)),
            ("infinite", Attribute::Number(f64::NEG_INFINITY)),
            ("none", Attribute::Number(f64::NAN)),
            ("yes", Attribute::Flag(true)),
            ("no", Attribute::Flag(false)),
            ("words", text(NAME)),
            ("empty", text("")),
            ("list", Attribute::Integers(vec![3, -1, i64::MAX])),
            ("nothing", Attribute::Integers(vec![])),
        ];
        let y = spec("y", DType::F32, &[1], &[]);
        let module = one_call(&[&ATTRIBUTES], "attributes", &attributes, &[], &[&y]);
        let results = run(&client(plugin, 1), &module, &[]).expect("all are there");
        assert_eq!(values(&results[0]), [1.0]);
    }

    fn several_inputs_and_outputs_of_any_type(plugin) {
        let x = spec("x", DType::BF16, &[2, 3], &[]);
        let mask = spec("mask", DType::Pred, &[3], &[]);
        let outputs = [
            spec("sums", DType::F32, &[2], &[]),
            spec("transposed", DType::BF16, &[3, 2], &[]),
            spec("count", DType::S32, &[], &[]),
            spec("positive", DType::Pred, &[2], &[]),
        ];
        let outputs: Vec<_> = outputs.iter().collect();
        let module = one_call(&[&ROWS], "rows", &[], &[&x, &mask], &outputs);
        let numbers = [1.0, 20.0, 3.0, -4.0, 50.0, 1.0].map(bf16::from_f32);
        let x = HostArray::from_slice(&[2, 3], &numbers).expect("six values");
        let mask = HostArray::from_slice(&[3], &[true, false, true]).expect("three values");
        let results = run(&client(plugin, 1), &module, &[&x, &mask]).expect("it runs");
        assert_eq!(values(&results[0]), [4.0, -3.0]);
        assert_eq!(values(&results[1]), [1.0, -4.0, 20.0, 50.0, 3.0, 1.0]);
        assert_eq!(values(&results[2]), [2.0]);
        assert_eq!(values(&results[3]), [1.0, 0.0]);
    }

    fn empty_arrays_and_scalars_are_arrays(plugin) {
        for dims in [&[0, 3][..], &[]] {
            let x = spec("x", DType::F32, dims, &[]);
            let module = one_call(&[&AFFINE], "affine", &affine(2.0, 1), &[&x], &[&x]);
            let results = run(&client(plugin, 1), &module, &[&counting(dims)]).expect("it runs");
            assert_eq!(values(&results[0]), vec![1.0; dims.iter().product()]);
        }
    }

    fn errors_and_panics_are_errors_of_the_run_and_of_nothing_else(plugin) {
        let client = client(plugin, 1);
        let x = spec("x", DType::F32, &[3], &[]);
        let module = one_call(&[&TROUBLE], "trouble", &[], &[&x], &[&x]);
        let input = |first: f32| HostArray::from_slice(&[3], &[first, 8.0, 9.0]).expect("three values");
        let expected = [
            "kernel 'trouble': no such thing\\0 as luck",
            "kernel 'trouble': panicked: at element 3",
            "kernel 'trouble': panicked: in words",
            "kernel 'trouble': panicked: a panic without a message",
            "kernel 'trouble': input 0 is f32, not bf16",
            "kernel 'trouble': output 0 is f32, not i32",
            "kernel 'trouble': panicked: index out of bounds: the len is 1 but the index is 1",
        ];
        for (index, expected) in expected.into_iter().enumerate() {
            let error = run(&client, &module, &[&input(index as f32 + 1.0)]).expect_err("it fails");
            assert!(matches!(error, Error::Xla { .. }), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
            // The client is none the worse.
            let results = run(&client, &module, &[&input(0.0)]).expect("it runs");
            assert_eq!(values(&results[0]), [0.0, 8.0, 9.0]);
        }
        let y = spec("y", DType::Pred, &[2], &[]);
        let module = one_call(&[&LIAR], "liar", &[], &[], &[&y]);
        let error = run(&client, &module, &[]).expect_err("two is no truth value").to_string();
        assert!(error.contains("kernel 'liar': output 0 holds truth values, but element 1 was set to 2"), "{error}");
    }

    fn a_kernel_that_nobody_lists_is_an_error_of_the_run(plugin) {
        let x = spec("x", DType::F32, &[2], &[]);
        let module = one_call(&[&AFFINE], "nobody", &[], &[&x], &[&x]);
        let error = run(&client(plugin, 1), &module, &[&counting(&[2])]).expect_err("there is none").to_string();
        assert!(error.contains("kernel 'nobody': no module that was compiled in this process lists it"), "{error}");
    }

    fn outputs_in_the_memory_of_inputs_are_refused(plugin) {
        let x = spec("x", DType::F32, &[2], &[]);
        let mut module = one_call(&[&AFFINE], "affine", &affine(1.0, 1), &[&x], &[&x]);
        module.text = module.text.replace(
            "api_version = 4 : i32,",
            "api_version = 4 : i32, output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>],",
        );
        let error = run(&client(plugin, 1), &module, &[&counting(&[2])]).expect_err("they overlap").to_string();
        assert!(error.contains("output 0 shares memory with another array"), "{error}");
    }

    fn threads_may_call_at_once(plugin) {
        let client = client(plugin, 1);
        let x = spec("x", DType::F32, &[4], &[]);
        let module = one_call(&[&AFFINE], "affine", &affine(2.0, 1), &[&x], &[&x]);
        let program = client.compile(&module).expect("it compiles");
        let array = upload(&client, &counting(&[4]), &x, &Mesh::single());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let results = program.run(vec![Arg::Borrowed(&array)]).expect("it runs");
                        assert_eq!(values(&results[0]), [1.0, 3.0, 5.0, 7.0]);
                    }
                });
            }
        });
    }

    fn a_program_from_the_cache_finds_its_kernels(plugin) {
        let cache = tempfile::tempdir().expect("a folder");
        for from_cache in [false, true] {
            let variables = [
                ("FERROTUNE_PJRT_PLUGIN", plugin.path().as_os_str()),
                ("FERROTUNE_CACHE", cache.path().as_os_str()),
                ("FERROTUNE_TPU_PLUGIN", OsStr::new("")),
            ];
            let text = in_child("kernels::child_call", &variables);
            assert!(text.contains(&format!("from_cache={from_cache};")), "{text}");
        }
    }

    fn two_kernels_cannot_have_one_name(plugin) {
        static OTHER: Kernel = Kernel { name: "affine", run: |_| Err("the wrong one".to_owned()) };
        let client = client(plugin, 1);
        let x = spec("x", DType::F32, &[2], &[]);
        client.compile(&one_call(&[&AFFINE], "affine", &affine(1.0, 0), &[&x], &[&x])).expect("it compiles");
        let error = client.compile(&one_call(&[&OTHER], "affine", &[], &[&x], &[&x])).expect_err("two");
        assert_eq!(error.to_string(), "there are two different kernels with the name 'affine'; rename one");
    }
}

/// Calls a kernel once, and says whether the program came from the cache.
#[test]
#[ignore = "run by the other tests of this file"]
fn child_call() {
    let plugin =
        Plugin::cpu(&mut |line| panic!("nothing is to be fetched: {line}")).expect("it loads");
    let client = client(&plugin, 1);
    let x = spec("x", DType::F32, &[2], &[]);
    let module = one_call(&[&AFFINE], "affine", &affine(3.0, 2), &[&x], &[&x]);
    println!(
        "from_cache={};",
        client.compile(&module).expect("it compiles").from_cache()
    );
    let results = run(&client, &module, &[&counting(&[2])]).expect("it runs");
    assert_eq!(values(&results[0]), [2.0, 5.0]);
}

#[test]
fn kernels_are_for_the_cpu_only() {
    let tpu = Topology::named(&plugin(PinnedPlugin::Tpu), "v5e:1x1").expect("libtpu knows it");
    let x = spec("x", DType::F32, &[8, 128], &[]);
    let mut module = add_one(&Mesh::single(), &x, false);
    tpu.compile(&module).expect("it compiles without kernels");
    module.kernels = vec![&AFFINE];
    let error = tpu.compile(&module).expect_err("there is no host");
    assert_eq!(
        error.to_string(),
        "module 'm' calls the kernel 'affine', but kernels run on the CPU only, not on a tpu"
    );
}
