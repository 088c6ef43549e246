//! Inputs that lie inside of larger arrays, and inputs that are changed where they lie.

use ferrotune_pjrt::{Attribute, DType, Kernel, Module};

use crate::kernels::{one_call, run};
use crate::programs::{client, counting, on_both_plugins, spec, values};

/// Each row's sum, of an input with two dimensions.
static SUMS: Kernel = Kernel {
    name: "sums",
    run: |call| {
        let (inputs, outputs) = call.parts();
        let &[_, width] = inputs[0].dims() else {
            return Err(format!("{:?} are not two dimensions", inputs[0].dims()));
        };
        let rows = inputs[0].as_slice::<f32>()?.chunks(width);
        let sums = outputs[0].as_mut_slice::<f32>()?.iter_mut();
        sums.zip(rows)
            .for_each(|(sum, row)| *sum = row.iter().sum());
        Ok(())
    },
};

/// Adds the second input to the first, in place.
static ADD_TO: Kernel = Kernel {
    name: "add_to",
    run: |call| {
        let (inputs, outputs) = call.parts();
        if !inputs[0].as_slice::<f32>()?.is_empty() {
            return Err("what is replaced can be read".to_owned());
        }
        let more = inputs[1].as_slice::<f32>()?;
        let sums = outputs[0].as_mut_slice::<f32>()?.iter_mut();
        sums.zip(more).for_each(|(sum, more)| *sum += more);
        Ok(())
    },
};

/// `y = add_to(x, more)`, with pairs that the kernel is told, and with or without XLA being told.
fn add_to(pairs: &[i64], aliased: bool) -> Module {
    let (x, y) = (
        spec("x", DType::F32, &[3], &[]),
        spec("y", DType::F32, &[3], &[]),
    );
    let replaces = [(Kernel::REPLACES, Attribute::Integers(pairs.to_vec()))];
    let mut module = one_call(&[&ADD_TO], "add_to", &replaces, &[&x, &x], &[&y]);
    if aliased {
        module.text = module.text.replace(
            "api_version = 4 : i32,",
            "api_version = 4 : i32, output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>],",
        );
    }
    module
}

fn parts(numbers: &[i64]) -> [(&'static str, Attribute); 1] {
    [(Kernel::PARTS, Attribute::Integers(numbers.to_vec()))]
}

on_both_plugins! {
    fn a_part_is_read_where_it_lies(plugin) {
        let (x, y) = (spec("x", DType::F32, &[4, 2, 3], &[]), spec("y", DType::F32, &[2], &[]));
        // Two rows of three, from the seventh element on.
        let module = one_call(&[&SUMS], "sums", &parts(&[0, 6, 2, 2, 3]), &[&x], &[&y]);
        let results = run(&client(plugin, 1), &module, &[&counting(&[4, 2, 3])]).expect("it runs");
        assert_eq!(values(&results[0]), [21.0, 30.0]);
    }

    fn parts_that_are_none_are_errors_of_the_run(plugin) {
        let client = client(plugin, 1);
        let (x, y) = (spec("x", DType::F32, &[4, 6], &[]), spec("y", DType::F32, &[2], &[]));
        for wrong in [
            &[0, 6, 2, 4, 6][..],     // beyond the end
            &[1, 0, 2, 2, 3],         // no such input
            &[0, 6, 2, 2],            // a dimension too few
            &[0, 6],                  // no dimensions at all
            &[0, -1, 2, 2, 3],        // before the beginning
            &[0, i64::MAX, 2, 2, 3],  // beyond all memory
            &[0, 0, 2, i64::MAX, 9],
        ] {
            let module = one_call(&[&SUMS], "sums", &parts(wrong), &[&x], &[&y]);
            let error = run(&client, &module, &[&counting(&[4, 6])]).expect_err("no part").to_string();
            assert!(error.contains("kernel 'sums'"), "{wrong:?}: {error}");
        }
    }

    fn an_input_is_changed_where_it_lies(plugin) {
        let x = counting(&[3]);
        let results = run(&client(plugin, 1), &add_to(&[0, 0], true), &[&x, &x]).expect("it runs");
        assert_eq!(values(&results[0]), [0.0, 2.0, 4.0]);
    }

    fn pairs_that_are_none_are_errors_of_the_run(plugin) {
        let client = client(plugin, 1);
        let x = counting(&[3]);
        for (wrong, aliased) in [
            (&[0, 0][..], false), // XLA was not told
            (&[1, 0], true),      // XLA was told of another
            (&[2, 0], true),      // no such input
            (&[0], true),         // half a pair
            (&[-1, 0], true),
            (&[0, -1], true),
            (&[0, 1], true),      // no such output: so nobody replaces the input whose memory it has
            (&[], true),
        ] {
            let error = run(&client, &add_to(wrong, aliased), &[&x, &x]).expect_err("no pair").to_string();
            assert!(error.contains("kernel 'add_to'"), "{wrong:?}: {error}");
        }
    }
}
