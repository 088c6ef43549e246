//! Plugins, clients and small modules for the tests.

use std::{env, ffi::OsStr, process::Command, sync::Arc};

use ferrotune_pjrt::{
    ArgSpec, Array, ArraySpec, Client, DType, HostArray, Mesh, Module, PinnedPlugin, Plugin,
    Sharding,
};

/// Runs each test body on both pinned plugins: two sizes of the function table, two versions of StableHLO.
macro_rules! on_both_plugins {
    ($($(#[$meta:meta])* fn $name:ident($plugin:ident) $body:block)*) => { $(
        mod $name {
            use super::*;

            fn body($plugin: &ferrotune_pjrt::Plugin) $body

            $(#[$meta])*
            #[test]
            fn default_plugin() {
                body(&crate::programs::plugin(ferrotune_pjrt::PinnedPlugin::Default));
            }

            $(#[$meta])*
            #[test]
            fn second_plugin() {
                body(&crate::programs::plugin(ferrotune_pjrt::PinnedPlugin::Second));
            }
        }
    )* };
}
pub(crate) use on_both_plugins;

pub(crate) fn plugin(which: PinnedPlugin) -> Plugin {
    Plugin::pinned(which, &mut |line| eprintln!("{line}"))
        .expect("these tests need the XLA CPU plugins, fetched with pip")
}

pub(crate) fn client(plugin: &Plugin, devices: usize) -> Client {
    Client::cpu(plugin, devices).expect("the plugin makes a client")
}

/// A specification; `sharding` has one space-separated list of axes per dimension.
pub(crate) fn spec(name: &str, dtype: DType, dims: &[usize], sharding: &[&str]) -> Arc<ArraySpec> {
    let dims_of = |axes: &&str| axes.split_whitespace().map(str::to_owned).collect();
    let sharding = match sharding {
        [] => Sharding::replicated(dims.len()),
        some => Sharding {
            dims: some.iter().map(dims_of).collect(),
        },
    };
    Arc::new(ArraySpec {
        name: name.to_owned(),
        dtype,
        dims: dims.to_vec(),
        sharding,
    })
}

/// The type of an array in StableHLO.
pub(crate) fn tensor(spec: &ArraySpec) -> String {
    let dims: String = spec.dims.iter().map(|d| format!("{d}x")).collect();
    format!("tensor<{dims}{}>", spec.dtype)
}

/// A module whose `main` has the given body; arguments are `%a0`, `%a1` .., and the body ends in `return`.
pub(crate) fn module(
    mesh: &Mesh,
    args: &[(&Arc<ArraySpec>, bool)],
    results: &[&Arc<ArraySpec>],
    body: &str,
) -> Module {
    let axes: Vec<String> = mesh
        .axes()
        .iter()
        .map(|(name, size)| format!("\"{name}\"={size}"))
        .collect();
    let axes = format!("[{}]", axes.join(", "));
    let sharding =
        |spec: &ArraySpec| format!("sdy.sharding = #sdy.sharding<@mesh, {}>", spec.sharding);
    let donor = |donated: &bool| {
        if *donated {
            ", jax.buffer_donor = true"
        } else {
            ""
        }
    };
    let inputs: Vec<String> = args
        .iter()
        .enumerate()
        .map(|(i, (spec, donated))| {
            format!(
                "%a{i}: {} {{{}{}}}",
                tensor(spec),
                sharding(spec),
                donor(donated)
            )
        })
        .collect();
    let outputs: Vec<String> = results
        .iter()
        .map(|spec| format!("{} {{{}}}", tensor(spec), sharding(spec)))
        .collect();
    let text = format!(
        "module @m attributes {{mhlo.num_partitions = {} : i32, mhlo.num_replicas = 1 : i32}} {{\n\
         sdy.mesh @mesh = <{axes}>\nfunc.func public @main({}) -> ({}) {{\n{body}\n}}\n}}\n",
        mesh.device_count(),
        inputs.join(", "),
        outputs.join(", "),
    );
    Module {
        name: "m".to_owned(),
        text,
        mesh: mesh.clone(),
        args: args
            .iter()
            .map(|&(spec, donated)| ArgSpec {
                spec: Arc::clone(spec),
                donated,
            })
            .collect(),
        results: results.iter().map(|&spec| Arc::clone(spec)).collect(),
        kernels: vec![],
    }
}

/// One argument, returned with 1 added.
pub(crate) fn add_one(mesh: &Mesh, spec: &Arc<ArraySpec>, donated: bool) -> Module {
    let ty = tensor(spec);
    let body = format!(
        "%c = stablehlo.constant dense<1.0> : {ty}\n%r = stablehlo.add %a0, %c : {ty}\nreturn %r : {ty}"
    );
    module(mesh, &[(spec, donated)], &[spec], &body)
}

/// 0, 1, 2, .. as f32.
pub(crate) fn counting(dims: &[usize]) -> HostArray {
    let values: Vec<f32> = (0..dims.iter().product())
        .map(|i: usize| i as f32)
        .collect();
    HostArray::from_slice(dims, &values).expect("the values fill the dimensions")
}

pub(crate) fn upload(
    client: &Client,
    host: &HostArray,
    spec: &Arc<ArraySpec>,
    mesh: &Mesh,
) -> Array {
    client
        .upload(host, Arc::clone(spec), mesh)
        .expect("upload succeeds")
}

pub(crate) fn values(array: &Array) -> Vec<f32> {
    array.to_host().expect("the values arrive").to_f32_vec()
}

/// Runs one (ignored) test of this binary in a process of its own, with another environment, and returns what it printed.
pub(crate) fn in_child(test: &str, variables: &[(&str, &OsStr)]) -> String {
    let output = Command::new(env::current_exe().expect("the test knows its own path"))
        .args([
            test,
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .envs(variables.iter().copied())
        .output()
        .expect("the test binary starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the child failed:\n{text}");
    assert!(text.contains("1 passed"), "the child ran no test:\n{text}");
    text
}
