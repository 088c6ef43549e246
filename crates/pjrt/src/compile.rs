//! Compilation, and checking that the compiled program is what the module says.

use std::sync::Arc;

use crate::{
    ArgSpec, Error, Executable, MemoryStats, Module, Result,
    abi::{self, RawExecutable, RawLoaded},
    api::Api,
    array::raw_dtype,
    client::{ClientInner, array_of},
    compiled::{Entry, Key},
    executable::LoadedHandle,
    host::byte_len,
    options,
};

pub(crate) fn compile(client: &Arc<ClientInner>, module: &Module) -> Result<Executable> {
    check_shardings(module)?;
    let devices = client.devices_of(&module.mesh)?;
    let ids: Vec<i32> = devices.iter().map(|device| device.id).collect();
    let options = options::encode(&ids);
    let entry = Entry::of(&Key {
        text: &module.text,
        options: &options,
        plugin_sha256: client.plugin.sha256(),
        platform: client.platform_name(),
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
    compiled.check(module)?;
    let memory = compiled.memory()?;
    if client.platform_name() == "cpu" {
        check_arguments(module, memory)?;
    }
    if !from_cache {
        compiled.serialize(|program| entry.write(program));
    }
    Ok(Executable {
        memory,
        raw: loaded,
        name: module.name.clone(),
        mesh: module.mesh.clone(),
        args: module.args.clone(),
        results: module.results.clone(),
        from_cache,
    })
}

fn check_shardings(module: &Module) -> Result<()> {
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

/// The C API does not tell a program's parameters, only their size; on the CPU that is the exact sum.
fn check_arguments(module: &Module, memory: MemoryStats) -> Result<()> {
    let mut bytes = 0;
    for ArgSpec { spec, .. } in &module.args {
        bytes += byte_len(
            spec.dtype,
            &spec.sharding.local_dims(&module.mesh, &spec.dims)?,
        )? as u64;
    }
    if bytes == memory.argument {
        return Ok(());
    }
    Err(Error::Compiled {
        module: module.name.clone(),
        what: "the size of the arguments on one device differs".to_owned(),
        expected: format!("{bytes} bytes"),
        got: format!("{} bytes", memory.argument),
    })
}

fn compile_text(client: &Arc<ClientInner>, text: &str, options: &[u8]) -> Result<LoadedHandle> {
    const FORMAT: &str = "mlir";
    let mut program = abi::Program::new();
    (program.code, program.code_size) = (text.as_ptr(), text.len());
    (program.format, program.format_size) = (FORMAT.as_ptr(), FORMAT.len());
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

/// The unloaded side of an executable: what the compiler says about it.
struct Compiled {
    api: Api,
    raw: *mut RawExecutable,
}

impl Compiled {
    fn of(loaded: &LoadedHandle) -> Result<Compiled> {
        let api = loaded.client.api;
        let mut args = abi::LoadedGetExecutable::new();
        args.loaded_executable = loaded.raw;
        // SAFETY: the executable is live; the result is ours to destroy.
        unsafe { api.call(&mut args) }?;
        Ok(Compiled {
            api,
            raw: args.executable,
        })
    }

    /// Number, element types and per-device dimensions of the results, against the specification.
    fn check(&self, module: &Module) -> Result<()> {
        let disagree = |what: String, expected: String, got: String| {
            Err(Error::Compiled {
                module: module.name.clone(),
                what,
                expected,
                got,
            })
        };
        let mut count = abi::ExecutableNumOutputs::new();
        count.executable = self.raw;
        let mut types = abi::ExecutableOutputElementTypes::new();
        types.executable = self.raw;
        let mut shapes = abi::ExecutableOutputDimensions::new();
        shapes.executable = self.raw;
        // SAFETY: the executable is live, and the arrays that come back live as long as it does.
        let (types, ranks, mut dims) = unsafe {
            self.api.call(&mut count)?;
            self.api.call(&mut types)?;
            self.api.call(&mut shapes)?;
            let ranks = array_of(shapes.dim_sizes, shapes.num_outputs);
            (
                array_of(types.output_types, types.num_output_types),
                ranks,
                array_of(shapes.dims, ranks.iter().sum()),
            )
        };
        let expected = module.results.len();
        if count.num_outputs != expected || types.len() != expected || ranks.len() != expected {
            return disagree(
                "the number of results differs".into(),
                expected.to_string(),
                count.num_outputs.to_string(),
            );
        }
        for ((spec, &dtype), &rank) in module.results.iter().zip(types).zip(ranks) {
            let (got, rest) = dims.split_at(rank);
            dims = rest;
            let local = spec.sharding.local_dims(&module.mesh, &spec.dims)?;
            if dtype != raw_dtype(spec.dtype) {
                let got = format!("element type number {dtype}");
                return disagree(
                    format!("result '{}' differs", spec.name),
                    spec.dtype.to_string(),
                    got,
                );
            }
            if !got.iter().map(|&d| d as usize).eq(local.iter().copied()) {
                let what = format!("the per-device dimensions of result '{}' differ", spec.name);
                return disagree(what, format!("{local:?}"), format!("{got:?}"));
            }
        }
        Ok(())
    }

    /// Hands the serialized program to `f`; a plugin that cannot serialize is one without a cache.
    fn serialize(&self, f: impl FnOnce(&[u8])) {
        let mut args = abi::ExecutableSerialize::new();
        args.executable = self.raw;
        // SAFETY: the executable is live; the bytes live until the deleter is called, once, below.
        unsafe {
            if self.api.call(&mut args).is_ok() {
                f(array_of(args.serialized_bytes, args.serialized_bytes_size));
                if let Some(delete) = args.serialized_executable_deleter {
                    delete(args.serialized_executable);
                }
            }
        }
    }

    fn memory(&self) -> Result<MemoryStats> {
        let mut args = abi::ExecutableGetCompiledMemoryStats::new();
        args.executable = self.raw;
        // SAFETY: the executable is live.
        unsafe { self.api.call(&mut args) }?;
        let bytes = |n: i64| u64::try_from(n).unwrap_or(0);
        Ok(MemoryStats {
            argument: bytes(args.argument),
            output: bytes(args.output),
            alias: bytes(args.alias),
            temp: bytes(args.temp),
            generated_code: bytes(args.generated_code),
            host_argument: bytes(args.host_argument),
            host_output: bytes(args.host_output),
            host_alias: bytes(args.host_alias),
            host_temp: bytes(args.host_temp),
            host_generated_code: bytes(args.host_generated_code),
        })
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let mut args = abi::ExecutableDestroy::new();
        args.executable = self.raw;
        // SAFETY: we own the handle, and it is not used again.
        unsafe { self.api.destroy(args) };
    }
}
