//! Donation: moved arguments give their memory away, borrowed ones do not.

use std::{thread, time::Duration};

use ferrotune_pjrt::{Arg, DType, HostArray, Mesh};

use crate::programs::{
    add_one, client, counting, module, on_both_plugins, spec, tensor, upload, values,
};

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("the kernel reports it");
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse::<u64>().ok())
        .expect("a number")
        * 1024
}

on_both_plugins! {
    fn a_donated_argument_shares_memory_with_the_result(plugin) {
        let client = client(plugin, 2);
        let mesh = Mesh::new(&[("a", 2)]).expect("a mesh");
        let a = spec("a", DType::F32, &[8, 4], &["a", ""]);
        let memory = |donated| client.compile(&add_one(&mesh, &a, donated)).expect("it compiles").memory();
        // 4 x 4 floats on each of two devices.
        assert_eq!((memory(true).argument, memory(true).output, memory(true).alias), (64, 64, 64));
        assert_eq!((memory(false).argument, memory(false).output, memory(false).alias), (64, 64, 0));
        assert_eq!(memory(false).total() - memory(true).total(), 64);
    }

    fn a_borrowed_donor_survives_and_a_moved_one_is_reused(plugin) {
        let client = client(plugin, 2);
        let mesh = Mesh::new(&[("a", 2)]).expect("a mesh");
        let a = spec("a", DType::F32, &[4], &["a"]);
        let program = client.compile(&add_one(&mesh, &a, true)).expect("it compiles");
        let array = upload(&client, &counting(&[4]), &a, &mesh);
        let first = program.run(vec![Arg::Borrowed(&array)]).expect("it runs").remove(0);
        assert_eq!(values(&first), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(values(&array), [0.0, 1.0, 2.0, 3.0]);
        let second = program.run(vec![Arg::Moved(array)]).expect("it runs").remove(0);
        assert_eq!((values(&second), values(&first)), (vec![1.0, 2.0, 3.0, 4.0], vec![1.0, 2.0, 3.0, 4.0]));
    }

    fn one_array_may_be_borrowed_for_a_donated_and_a_plain_argument(plugin) {
        let (client, mesh) = (client(plugin, 1), Mesh::single());
        let a = spec("a", DType::F32, &[3], &[]);
        let ty = tensor(&a);
        let body = format!("%r = stablehlo.add %a0, %a1 : {ty}\nreturn %r : {ty}");
        let program = client.compile(&module(&mesh, &[(&a, true), (&a, false)], &[&a], &body)).expect("it compiles");
        let array = upload(&client, &counting(&[3]), &a, &mesh);
        let results = program.run(vec![Arg::Borrowed(&array), Arg::Borrowed(&array)]).expect("it runs");
        assert_eq!(values(&results[0]), [0.0, 2.0, 4.0]);
        assert_eq!(values(&array), [0.0, 1.0, 2.0]);
    }

    fn a_moved_argument_that_is_not_donated_is_only_freed(plugin) {
        let (client, mesh) = (client(plugin, 1), Mesh::single());
        let a = spec("a", DType::F32, &[3], &[]);
        let program = client.compile(&add_one(&mesh, &a, false)).expect("it compiles");
        let array = upload(&client, &counting(&[3]), &a, &mesh);
        let results = program.run(vec![Arg::Moved(array)]).expect("it runs");
        assert_eq!(values(&results[0]), [1.0, 2.0, 3.0]);
    }
}

/// In a process of its own, so that nothing else allocates.
#[test]
#[ignore = "run by a_loop_of_moved_arguments_needs_no_more_memory"]
fn child_loop_of_moved_arguments() {
    const BYTES: usize = 256 << 20;
    let plugin = crate::programs::plugin(ferrotune_pjrt::PinnedPlugin::Default);
    let (client, mesh) = (client(&plugin, 1), Mesh::single());
    let dims = [BYTES / 4];
    let a = spec("a", DType::F32, &dims, &[]);
    let program = client
        .compile(&add_one(&mesh, &a, true))
        .expect("it compiles");
    let mut array = upload(&client, &HostArray::zeros(DType::F32, &dims), &a, &mesh);
    array.wait().expect("it arrives");
    let before = resident();
    for _ in 0..4 {
        array = program
            .run(vec![Arg::Moved(array)])
            .expect("it runs")
            .remove(0);
        array.wait().expect("it ends");
        let grown = resident().saturating_sub(before);
        assert!(grown < BYTES as u64 / 4, "grew by {grown} bytes");
    }
    drop(array);
    // The plugin frees on a thread of its own, when it gets to it.
    let freed = || before.saturating_sub(resident()) > BYTES as u64 * 3 / 4;
    let came_back = (0..100).any(|_| {
        freed() || {
            thread::sleep(Duration::from_millis(50));
            false
        }
    });
    assert!(came_back, "{} bytes before, {} after", before, resident());
}

#[test]
fn a_loop_of_moved_arguments_needs_no_more_memory() {
    crate::programs::in_child("donation::child_loop_of_moved_arguments", &[]);
}
