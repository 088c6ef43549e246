//! What is refused, and that it is refused before anything runs: plugins accept wrong types, or crash.

use std::sync::Arc;

use ferrotune_pjrt::{Arg, Array, DType, Error, ErrorCode, HostArray, Mesh, Module};

use crate::programs::{add_one, client, counting, module, on_both_plugins, spec, tensor, upload};

on_both_plugins! {
    fn wrong_arguments_are_refused_by_name(plugin) {
        let (client, other_client) = (client(plugin, 4), client(plugin, 4));
        let mesh = Mesh::new(&[("a", 2), ("b", 2)]).expect("a mesh");
        let other_mesh = Mesh::new(&[("a", 4)]).expect("a mesh");
        let w = spec("layers/w", DType::F32, &[4, 2], &["a", ""]);
        let program = client.compile(&add_one(&mesh, &w, false)).expect("it compiles");
        let refused = |arrays: Vec<Array>| {
            let args = arrays.into_iter().map(Arg::Moved).collect();
            program.run(args).expect_err("it is refused").to_string()
        };
        let floats = counting(&[4, 2]);
        let good = || upload(&client, &floats, &w, &mesh);

        assert_eq!(refused(vec![]), "program 'm' takes 1 arguments but 0 were given");
        assert_eq!(refused(vec![good(), good()]), "program 'm' takes 1 arguments but 2 were given");
        // Equal in bytes, so the plugin would not notice.
        let ints = HostArray::from_slice(&[4, 2], &[0i32; 8]).expect("eight values");
        let array = upload(&client, &ints, &spec("x", DType::S32, &[4, 2], &["a", ""]), &mesh);
        assert_eq!(
            refused(vec![array]),
            "program 'm', argument 0 ('layers/w'): expected f32 [4, 2] [{\"a\"}, {}], got i32 [4, 2] [{\"a\"}, {}]"
        );
        let array = upload(&client, &counting(&[2, 4]), &spec("x", DType::F32, &[2, 4], &["a", ""]), &mesh);
        assert!(refused(vec![array]).contains("got f32 [2, 4]"));
        let array = upload(&client, &floats, &spec("x", DType::F32, &[4, 2], &["b", ""]), &mesh);
        assert!(refused(vec![array]).contains("got f32 [4, 2] [{\"b\"}, {}]"));
        let array = upload(&client, &floats, &spec("x", DType::F32, &[4, 2], &["a", ""]), &other_mesh);
        assert!(refused(vec![array]).contains("expected mesh a=2 b=2, got mesh a=4"));
        let array = upload(&other_client, &floats, &w, &mesh);
        assert!(refused(vec![array]).contains("got an array of another client"));

        // The same thing by another `Arc` and another name is welcome.
        let twin = spec("twin", DType::F32, &[4, 2], &["a", ""]);
        let twin_mesh = Mesh::new(&[("a", 2), ("b", 2)]).expect("a mesh");
        program.run(vec![Arg::Moved(upload(&client, &floats, &twin, &twin_mesh))]).expect("it runs");
    }

    fn a_module_that_disagrees_with_its_specification_is_refused(plugin) {
        let client = client(plugin, 2);
        let mesh = Mesh::new(&[("a", 2)]).expect("a mesh");
        let a = spec("a", DType::F32, &[4, 2], &["a", ""]);
        let good = add_one(&mesh, &a, false);
        let refused = |change: &dyn Fn(&mut Module)| {
            let mut module = good.clone();
            change(&mut module);
            client.compile(&module).expect_err("it is refused").to_string()
        };
        let other = |dtype, dims: &[usize], sharding: &[&str]| spec("a", dtype, dims, sharding);
        client.compile(&good).expect("the module itself is sound");
        assert!(refused(&|m| m.results.clear()).contains("the number of results differs: the module says 0, the compiled program 1"));
        assert!(refused(&|m| m.results[0] = other(DType::S32, &[4, 2], &["a", ""])).contains("the module says i32"));
        let error = refused(&|m| m.results[0] = other(DType::F32, &[4, 2], &[]));
        assert!(error.contains("per-device dimensions of result 'a' differ: the module says [4, 2], the compiled program [2, 2]"));
        assert!(refused(&|m| m.results[0] = other(DType::F32, &[2, 4], &["a", ""])).contains("the module says [1, 4]"));
        let error = refused(&|m| m.args[0].spec = other(DType::F32, &[4, 2], &[]));
        assert!(error.contains("the size of the arguments on one device differs: the module says 32 bytes, the compiled program 16"));
        assert!(refused(&|m| m.args.clear()).contains("the module says 0 bytes"));
        assert!(refused(&|m| m.args[0].spec = other(DType::F32, &[3, 2], &["a", ""])).contains("cannot be split 2 ways over a"));
        assert!(refused(&|m| m.mesh = Mesh::new(&[("a", 4)]).expect("a mesh")).contains("needs 4 devices but the client has 2"));
    }

    fn text_that_does_not_parse_is_reported_in_xlas_words(plugin) {
        let (client, mesh) = (client(plugin, 1), Mesh::single());
        let a = spec("a", DType::F32, &[2], &[]);
        let body = "%r = stablehlo.no_such_op %a0 : tensor<2xf32>\nreturn %r : tensor<2xf32>";
        let error = client.compile(&module(&mesh, &[(&a, false)], &[&a], body)).expect_err("there is no such op");
        let Error::Xla { function, message, .. } = error else { panic!("{error}") };
        assert_eq!(function, "PJRT_Client_Compile");
        assert!(message.contains("no_such_op"), "{message}");
    }

    fn a_failure_while_running_appears_when_the_result_is_read(plugin) {
        let (client, mesh) = (client(plugin, 1), Mesh::single());
        let a = spec("a", DType::F32, &[], &[]);
        // 64 TiB: it compiles, but there is no room for it.
        let big = spec("big", DType::F32, &[1 << 44], &[]);
        let ty = tensor(&big);
        let body = format!("%r = stablehlo.broadcast_in_dim %a0, dims = [] : (tensor<f32>) -> {ty}\nreturn %r : {ty}");
        let program = client.compile(&module(&mesh, &[(&a, false)], &[&big], &body)).expect("it compiles");
        let array = upload(&client, &counting(&[]), &a, &mesh);
        let failed = program.run(vec![Arg::Borrowed(&array)]).and_then(|results| results[0].wait());
        let error = failed.expect_err("there is no room");
        assert!(matches!(error, Error::Xla { code: ErrorCode::ResourceExhausted, .. }), "{error}");
        assert!(error.to_string().contains("70368744177664"), "{error}");
        // The client is none the worse.
        let program = client.compile(&add_one(&mesh, &a, false)).expect("it compiles");
        let results = program.run(vec![Arg::Borrowed(&array)]).expect("it runs");
        assert_eq!(crate::programs::values(&results[0]), [1.0]);
    }

    fn a_client_has_at_least_one_device_and_not_too_many(plugin) {
        let error = ferrotune_pjrt::Client::cpu(plugin, 0).expect_err("none were asked for");
        assert!(error.to_string().contains("at least one device"), "{error}");
        for asked in [4097, usize::MAX] {
            let error = ferrotune_pjrt::Client::cpu(plugin, asked).expect_err("too many were asked for");
            assert!(error.to_string().contains("at most 4096"), "{error}");
        }
        let client = client(plugin, 3);
        assert_eq!((client.device_count(), client.platform_name()), (3, "cpu"));
        let _ = Arc::new(client);
    }
}
