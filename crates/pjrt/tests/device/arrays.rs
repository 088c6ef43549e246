//! Uploading and reading back.

use ferrotune_pjrt::{Arg, DType, Error, HostArray, Memory, Mesh};

use crate::programs::{client, counting, module, on_both_plugins, spec, tensor, upload, values};

on_both_plugins! {
    fn every_element_type_survives_the_round_trip(plugin) {
        let (client, mesh) = (client(plugin, 1), Mesh::single());
        for dtype in DType::ALL {
            let byte = |i: usize| if dtype == DType::Pred { i as u8 % 2 } else { (i as u8).wrapping_mul(37) };
            let bytes = (0..12 * dtype.bytes()).map(byte).collect();
            let host = HostArray::new(dtype, vec![3, 4], bytes).expect("the bytes fill the array");
            let array = upload(&client, &host, &spec("a", dtype, &[3, 4], &[]), &mesh);
            assert_eq!(array.to_host().expect("it reads back").bytes(), host.bytes(), "{dtype}");
        }
    }

    fn every_sharding_survives_the_round_trip(plugin) {
        let client = client(plugin, 8);
        let mesh = Mesh::new(&[("a", 2), ("b", 4)]).expect("a mesh");
        let host = counting(&[8, 4, 16]);
        let shardings: [&[&str]; 7] = [
            &["", "", ""], &["a", "", ""], &["", "b", ""], &["", "", "a b"], &["b a", "", ""], &["a", "", "b"], &["a", "b", ""],
        ];
        for sharding in shardings {
            let array = upload(&client, &host, &spec("a", DType::F32, &[8, 4, 16], sharding), &mesh);
            assert_eq!(array.to_host().expect("it reads back"), host, "{sharding:?}");
        }
    }

    fn resharding_on_the_devices_agrees_with_cutting_on_the_host(plugin) {
        // Any mistake in device order or in the order of axes would permute the values.
        let client = client(plugin, 8);
        let mesh = Mesh::new(&[("a", 2), ("b", 4)]).expect("a mesh");
        let host = counting(&[8, 16]);
        let pairs: [(&[&str], &[&str]); 4] =
            [(&["a", ""], &["", "b"]), (&["a b", ""], &["b a", ""]), (&["", "a b"], &["", "b a"]), (&["b", "a"], &["a", "b"])];
        for (before, after) in pairs {
            let (before, after) = (spec("x", DType::F32, &[8, 16], before), spec("y", DType::F32, &[8, 16], after));
            let ty = tensor(&before);
            let body = format!("%r = stablehlo.negate %a0 : {ty}\nreturn %r : {ty}");
            let program = client.compile(&module(&mesh, &[(&before, false)], &[&after], &body)).expect("it compiles");
            let results = program.run(vec![Arg::Moved(upload(&client, &host, &before, &mesh))]).expect("it runs");
            let expected: Vec<f32> = host.to_f32_vec().iter().map(|x| -x).collect();
            assert_eq!(values(&results[0]), expected, "{} to {}", before.sharding, after.sharding);
        }
    }

    fn a_column_major_result_is_read_row_major(plugin) {
        let (client, mesh) = (client(plugin, 1), Mesh::single());
        let a = spec("a", DType::F32, &[2, 3], &[]);
        let ty = tensor(&a);
        let mut module = module(&mesh, &[(&a, false)], &[&a], &format!("%r = stablehlo.negate %a0 : {ty}\nreturn %r : {ty}"));
        let (before, after) = (") -> (tensor<2x3xf32> {", ") -> (tensor<2x3xf32> {mhlo.layout_mode = \"{0,1}\", ");
        assert!(module.text.contains(before));
        module.text = module.text.replace(before, after);
        let program = client.compile(&module).expect("it compiles");
        let results = program.run(vec![Arg::Moved(upload(&client, &counting(&[2, 3]), &a, &mesh))]).expect("it runs");
        assert_eq!(values(&results[0]), [0.0, -1.0, -2.0, -3.0, -4.0, -5.0]);
    }

    fn scalars_and_empty_arrays_are_arrays(plugin) {
        let client = client(plugin, 2);
        let mesh = Mesh::new(&[("a", 2)]).expect("a mesh");
        let scalar = HostArray::from_slice(&[], &[2.5f32]).expect("one value");
        let array = upload(&client, &scalar, &spec("s", DType::F32, &[], &[]), &mesh);
        assert_eq!(array.to_host().expect("it reads back"), scalar);
        let empty = HostArray::zeros(DType::BF16, &[4, 0]);
        let array = upload(&client, &empty, &spec("e", DType::BF16, &[4, 0], &["a", ""]), &mesh);
        assert_eq!(array.to_host().expect("it reads back"), empty);
    }

    fn an_array_in_host_memory_has_its_values_and_is_no_argument(plugin) {
        let client = client(plugin, 2);
        let mesh = Mesh::new(&[("a", 2)]).expect("a mesh");
        let (host, a) = (counting(&[4, 3]), spec("a", DType::F32, &[4, 3], &["a", ""]));
        let ty = tensor(&a);
        let module = module(&mesh, &[(&a, true)], &[&a], &format!("%r = stablehlo.negate %a0 : {ty}\nreturn %r : {ty}"));
        let negate = client.compile(&module).expect("it compiles");
        assert!(client.has_host_memory());
        // What is copied may still be computed, and its original is gone before the copy is read.
        let mut made = negate.run(vec![Arg::Moved(upload(&client, &host, &a, &mesh))]).expect("it runs");
        let aside = made.remove(0).copy_to(Memory::Host).expect("there is room");
        assert_eq!((aside.memory(), aside.spec()), (Memory::Host, &a));
        let negated: Vec<f32> = host.to_f32_vec().iter().map(|x| -x).collect();
        assert_eq!(values(&aside), negated);
        let refused = negate.run(vec![Arg::Borrowed(&aside)]).expect_err("it is out of the way");
        assert!(refused.to_string().contains("host memory"), "{refused}");
        let back = aside.copy_to(Memory::Device).expect("there is room");
        drop(aside);
        assert_eq!(back.memory(), Memory::Device);
        let results = negate.run(vec![Arg::Moved(back)]).expect("it runs");
        assert_eq!(values(&results[0]), host.to_f32_vec());
    }

    fn an_upload_is_checked_against_its_specification(plugin) {
        let client = client(plugin, 2);
        let two = Mesh::new(&[("a", 2)]).expect("a mesh");
        let four = Mesh::new(&[("a", 4)]).expect("a mesh");
        let host = counting(&[4, 2]);
        let upload = |spec, mesh| client.upload(&host, spec, mesh).expect_err("it is refused");
        assert!(matches!(upload(spec("a", DType::S32, &[4, 2], &[]), &two), Error::Upload { .. }));
        assert!(matches!(upload(spec("a", DType::F32, &[2, 4], &[]), &two), Error::Upload { .. }));
        assert!(matches!(
            upload(spec("a", DType::F32, &[4, 2], &[]), &four),
            Error::MeshTooLarge { needed: 4, present: 2, .. }
        ));
        let error = upload(spec("w", DType::F32, &[4, 2], &["nope", ""]), &two);
        assert_eq!(
            error.to_string(),
            "'w': the sharding of dimension 0 uses axis 'nope', which the mesh does not have (its axes are a=2)"
        );
    }
}
