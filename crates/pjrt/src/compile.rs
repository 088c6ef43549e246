//! Compilation for a client, through the compile cache.

use std::sync::Arc;

use crate::{
    Effort, Error, Executable, Module, Platform, Result,
    abi::{self, RawLoaded},
    client::ClientInner,
    compiled::{Entry, Key},
    executable::LoadedHandle,
    kernel, options,
    report::Compiled,
};

pub(crate) fn compile(client: &Arc<ClientInner>, module: &Module) -> Result<Executable> {
    check_shardings(module)?;
    kernel::prepare(client, module)?;
    let devices = client.devices_of(&module.mesh)?;
    let ids: Vec<i32> = devices.iter().map(|device| device.id).collect();
    let options = options::encode(
        &ids,
        Platform::from_name(client.platform_name()),
        Effort::Full,
    );
    let entry = Entry::of(&Key {
        text: &module.text,
        options: &options,
        plugin_sha256: client.plugin.sha256(),
        target: client.platform_name(),
        device_count: client.devices.len(),
    });
    let (loaded, from_cache) = match entry.read().map(|program| load(client, &program)) {
        Some(Ok(loaded)) => (loaded, true),
        found => {
            if found.is_some() {
                entry.discard();
            }
            (compile_text(client, &module.text, &options)?, false)
        }
    };
    let compiled = Compiled::of(&loaded)?;
    let report = compiled.report()?;
    report.check(module, client.platform_name() == "cpu")?;
    if !from_cache {
        compiled.serialize(|program| entry.write(program));
    }
    Ok(Executable {
        memory: report.memory,
        raw: loaded,
        name: module.name.clone(),
        mesh: module.mesh.clone(),
        args: module.args.clone(),
        results: module.results.clone(),
        kernels: module.kernels.as_slice().into(),
        from_cache,
    })
}

pub(crate) fn check_shardings(module: &Module) -> Result<()> {
    for spec in module
        .args
        .iter()
        .map(|arg| &arg.spec)
        .chain(&module.results)
    {
        spec.sharding
            .local_dims(&module.mesh, &spec.dims)
            .map_err(|source| Error::Sharding {
                name: spec.name.clone(),
                source: Box::new(source),
            })?;
    }
    Ok(())
}

/// The text as a program of the C API, which borrows it.
pub(crate) fn program(text: &str) -> abi::Program {
    const FORMAT: &str = "mlir";
    let mut program = abi::Program::new();
    (program.code, program.code_size) = (text.as_ptr(), text.len());
    (program.format, program.format_size) = (FORMAT.as_ptr(), FORMAT.len());
    program
}

fn compile_text(client: &Arc<ClientInner>, text: &str, options: &[u8]) -> Result<LoadedHandle> {
    let program = program(text);
    let mut args = abi::ClientCompile::new();
    args.client = client.raw;
    args.program = &program;
    (args.compile_options, args.compile_options_size) = (options.as_ptr(), options.len());
    // SAFETY: the client is live; program, text and options outlive the call, and the plugin does not write to them.
    unsafe { client.api.call(&mut args) }?;
    Ok(own(client, args.executable))
}

fn load(client: &Arc<ClientInner>, program: &[u8]) -> Result<LoadedHandle> {
    let mut args = abi::DeserializeAndLoad::new();
    args.client = client.raw;
    (args.serialized_executable, args.serialized_executable_size) =
        (program.as_ptr(), program.len());
    // SAFETY: the client is live, and the bytes outlive the call.
    unsafe { client.api.call(&mut args) }?;
    Ok(own(client, args.loaded_executable))
}

fn own(client: &Arc<ClientInner>, raw: *mut RawLoaded) -> LoadedHandle {
    LoadedHandle {
        raw,
        client: Arc::clone(client),
    }
}
