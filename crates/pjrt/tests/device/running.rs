//! Running programs: values, several devices, asynchrony, lifetimes, threads.

use std::thread;

use ferrotune_pjrt::{Arg, Client, DType, Executable, HostArray, Mesh};

use crate::programs::{
    add_one, client, counting, module, on_both_plugins, spec, tensor, upload, values,
};

/// x + sum(x), over all devices of the mesh's axis `a`: needs a collective.
fn plus_sum(client: &Client, mesh: &Mesh, len: usize) -> Executable {
    let a = spec("a", DType::F32, &[len], &["a"]);
    let ty = tensor(&a);
    let body = format!(
        "%c = stablehlo.constant dense<0.0> : tensor<f32>\n\
         %s = stablehlo.reduce(%a0 init: %c) applies stablehlo.add across dimensions = [0] : ({ty}, tensor<f32>) -> tensor<f32>\n\
         %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> {ty}\n\
         %r = stablehlo.add %a0, %b : {ty}\nreturn %r : {ty}"
    );
    client
        .compile(&module(mesh, &[(&a, true)], &[&a], &body))
        .expect("it compiles")
}

/// A program that takes a noticeable time: `times` products of 256 x 256 matrices, scaled to stay finite.
fn slow(client: &Client, times: usize) -> Executable {
    let a = spec("a", DType::F32, &[256, 256], &[]);
    let ty = tensor(&a);
    let body = format!(
        "%z = stablehlo.constant dense<0> : tensor<i32>\n%one = stablehlo.constant dense<1> : tensor<i32>\n\
         %n = stablehlo.constant dense<{times}> : tensor<i32>\n%k = stablehlo.constant dense<0.00390625> : {ty}\n\
         %l:2 = stablehlo.while(%i = %z, %x = %a0) : tensor<i32>, {ty} cond {{\n\
         %p = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>\nstablehlo.return %p : tensor<i1>\n\
         }} do {{\n%y = stablehlo.dot_general %x, %k, contracting_dims = [1] x [0] : ({ty}, {ty}) -> {ty}\n\
         %j = stablehlo.add %i, %one : tensor<i32>\nstablehlo.return %j, %y : tensor<i32>, {ty}\n}}\nreturn %l#1 : {ty}"
    );
    client
        .compile(&module(&Mesh::single(), &[(&a, false)], &[&a], &body))
        .expect("it compiles")
}

on_both_plugins! {
    fn two_vectors_are_added(plugin) {
        let (client, mesh) = (client(plugin, 1), Mesh::single());
        let a = spec("a", DType::F32, &[3], &[]);
        let body = "%r = stablehlo.add %a0, %a1 : tensor<3xf32>\n%m = stablehlo.multiply %a0, %a1 : tensor<3xf32>\n\
                    return %r, %m : tensor<3xf32>, tensor<3xf32>";
        let program = client.compile(&module(&mesh, &[(&a, false), (&a, false)], &[&a, &a], body)).expect("it compiles");
        let array = upload(&client, &counting(&[3]), &a, &mesh);
        let results = program.run(vec![Arg::Borrowed(&array), Arg::Borrowed(&array)]).expect("it runs");
        assert_eq!(results.iter().map(values).collect::<Vec<_>>(), [[0.0, 2.0, 4.0], [0.0, 1.0, 4.0]]);
        assert_eq!((results[0].spec().as_ref(), results[0].mesh()), (a.as_ref(), &mesh));
    }

    fn several_arguments_and_results_on_several_devices_keep_their_places(plugin) {
        let client = client(plugin, 4);
        let mesh = Mesh::new(&[("a", 2), ("b", 2)]).expect("a mesh");
        let a = spec("a", DType::F32, &[4], &["a b"]);
        let body = "%r = stablehlo.subtract %a0, %a1 : tensor<4xf32>\n%s = stablehlo.subtract %a2, %a0 : tensor<4xf32>\n\
                    return %r, %s, %a1 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>";
        let args = [(&a, false), (&a, true), (&a, false)];
        let program = client.compile(&module(&mesh, &args, &[&a, &a, &a], body)).expect("it compiles");
        let array = |values: [f32; 4]| {
            let host = HostArray::from_slice(&[4], &values).expect("four values");
            Arg::Moved(upload(&client, &host, &a, &mesh))
        };
        let args = vec![array([1., 2., 3., 4.]), array([10., 20., 30., 40.]), array([5., 7., 11., 13.])];
        let results = program.run(args).expect("it runs");
        let expected = [[-9., -18., -27., -36.], [4., 5., 8., 9.], [10., 20., 30., 40.]];
        assert_eq!(results.iter().map(values).collect::<Vec<_>>(), expected);
    }

    fn two_four_and_eight_devices_agree(plugin) {
        for devices in [2, 4, 8] {
            let client = client(plugin, devices);
            let mesh = Mesh::new(&[("a", devices)]).expect("a mesh");
            let program = plus_sum(&client, &mesh, 8);
            let array = upload(&client, &counting(&[8]), &program.args()[0].spec, &mesh);
            let results = program.run(vec![Arg::Moved(array)]).expect("it runs");
            assert_eq!(values(&results[0]), [28.0, 29.0, 30.0, 31.0, 32.0, 33.0, 34.0, 35.0]);
        }
    }

    fn a_mesh_may_be_smaller_than_the_client(plugin) {
        let client = client(plugin, 4);
        let mesh = Mesh::new(&[("a", 2)]).expect("a mesh");
        // Twice: compiled, then (unless it was already) from the cache.
        for _ in 0..2 {
            let program = plus_sum(&client, &mesh, 2);
            let array = upload(&client, &counting(&[2]), &program.args()[0].spec, &mesh);
            assert_eq!(values(&program.run(vec![Arg::Moved(array)]).expect("it runs")[0]), [1.0, 2.0]);
        }
    }

    fn a_program_without_arguments_or_results_runs(plugin) {
        let client = client(plugin, 2);
        let mesh = Mesh::new(&[("a", 2)]).expect("a mesh");
        let a = spec("a", DType::F32, &[2], &["a"]);
        let program = client.compile(&module(&mesh, &[(&a, false)], &[], "return")).expect("it compiles");
        assert!(program.run(vec![Arg::Moved(upload(&client, &counting(&[2]), &a, &mesh))]).expect("it runs").is_empty());
        let body = "%r = stablehlo.constant dense<2.0> : tensor<2xf32>\nreturn %r : tensor<2xf32>";
        let program = client.compile(&module(&mesh, &[], &[&a], body)).expect("it compiles");
        assert_eq!(values(&program.run(vec![]).expect("it runs")[0]), [2.0, 2.0]);
    }

    fn running_does_not_wait_and_its_arguments_may_go(plugin) {
        let client = client(plugin, 1);
        let program = slow(&client, 1000);
        let array = upload(&client, &counting(&[256, 256]), &program.args()[0].spec, &Mesh::single());
        let results = program.run(vec![Arg::Moved(array)]).expect("it starts");
        assert!(!results[0].is_ready(), "a second of work cannot be done yet");
        results[0].wait().expect("it ends");
        assert!(results[0].is_ready());
        // Each product replaces a row by its mean.
        let row_means: Vec<f32> = (0..256).map(|row| row as f32 * 256.0 + 127.5).collect();
        for (row, mean) in values(&results[0]).chunks(256).zip(row_means) {
            // A sum of 256 terms, a thousand times over: 1e-4 relative leaves room for rounding.
            assert!(row.iter().all(|x| (x - mean).abs() <= mean * 1e-4), "{} is not {mean}", row[0]);
        }
    }

    fn arrays_and_programs_outlive_the_client_handle(plugin) {
        let mesh = Mesh::single();
        let a = spec("a", DType::F32, &[2], &[]);
        let (program, array) = {
            let client = client(plugin, 1);
            let program = client.compile(&add_one(&mesh, &a, false)).expect("it compiles");
            (program, upload(&client, &counting(&[2]), &a, &mesh))
        };
        let results = program.run(vec![Arg::Moved(array)]).expect("it runs");
        drop(program);
        assert_eq!(values(&results[0]), [1.0, 2.0]);
    }

    fn threads_may_share_everything(plugin) {
        let client = client(plugin, 4);
        let mesh = Mesh::new(&[("a", 4)]).expect("a mesh");
        let program = plus_sum(&client, &mesh, 4);
        let array = upload(&client, &counting(&[4]), &program.args()[0].spec, &mesh);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let results = program.run(vec![Arg::Borrowed(&array)]).expect("it runs");
                        assert_eq!(values(&results[0]), [6.0, 7.0, 8.0, 9.0]);
                    }
                });
            }
        });
    }
}
