//! What a compiler says about a program that it has made, and whether that is what the module says.

mod record;

use std::ffi::c_int;

use crate::{
    ArgSpec, CostAnalysis, Error, ErrorCode, MemoryStats, Module, Operations, Result,
    abi::{self, RawExecutable},
    api::Api,
    array::raw_dtype,
    client::{array_of, text_of},
    executable::LoadedHandle,
    host::byte_len,
};

/// The unloaded side of an executable: what the compiler says about it.
pub(crate) struct Compiled {
    api: Api,
    raw: *mut RawExecutable,
}

/// Results and sizes of a compiled program.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Report {
    pub(crate) results: Vec<ResultType>,
    pub(crate) memory: MemoryStats,
    /// `None` where the plugin does not count.
    pub(crate) cost: Option<CostAnalysis>,
    /// `None` where the plugin does not show its program.
    pub(crate) operations: Option<Operations>,
}

/// A result as it is on one device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ResultType {
    /// The element type's number in the C header.
    pub(crate) dtype: c_int,
    pub(crate) dims: Vec<i64>,
}

impl Compiled {
    pub(crate) fn of(loaded: &LoadedHandle) -> Result<Compiled> {
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

    /// # Safety
    /// `raw` must be a live executable of this plugin that nobody else destroys.
    pub(crate) unsafe fn from_raw(api: Api, raw: *mut RawExecutable) -> Compiled {
        Compiled { api, raw }
    }

    pub(crate) fn report(&self) -> Result<Report> {
        Ok(Report {
            results: self.results()?,
            memory: self.memory()?,
            cost: self.cost(),
            operations: self.operations()?,
        })
    }

    /// Number, element types and per-device dimensions of the results.
    fn results(&self) -> Result<Vec<ResultType>> {
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
        let results = types.iter().zip(ranks).map(|(&dtype, &rank)| {
            let (own, rest) = dims.split_at(rank);
            dims = rest;
            ResultType {
                dtype,
                dims: own.to_vec(),
            }
        });
        let mut results: Vec<ResultType> = results.collect();
        // Three answers that should agree; the shortest decides.
        results.truncate(count.num_outputs);
        Ok(results)
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
            peak: bytes(args.peak_memory),
        })
    }

    /// CPU and CUDA plugins do not implement this; a cost that is not there is no failure.
    fn cost(&self) -> Option<CostAnalysis> {
        let mut args = abi::ExecutableGetCostAnalysis::new();
        args.executable = self.raw;
        // SAFETY: the executable is live, and the array that comes back lives as long as it does.
        let properties = unsafe {
            self.api.call(&mut args).ok()?;
            array_of(args.properties, args.num_properties)
        };
        let of = |name: &str| {
            properties.iter().find_map(|property| {
                // SAFETY: the plugin says that the name is this long; it lives as long as the executable.
                let own = unsafe { array_of(property.name, property.name_size) };
                (own == name.as_bytes()).then(|| property.float())?
            })
        };
        // What is not there was never met: a program that only copies has no "flops".
        let count = |name| of(name).unwrap_or(0.0);
        Some(CostAnalysis {
            flops: count("flops"),
            bytes_accessed: count("bytes accessed"),
            transcendentals: count("transcendentals"),
            optimal_seconds: count("optimal_seconds"),
        })
    }

    /// `None` from a plugin that does not show its program, or not in the one form that XLA has for it.
    pub(crate) fn operations(&self) -> Result<Option<Operations>> {
        let mut program = abi::Program::new();
        let mut args = abi::ExecutableOptimizedProgram::new();
        (args.executable, args.program) = (self.raw, &mut program);
        // SAFETY: the executable is live; without a place for the code, the plugin writes down the size only, and a pointer to a
        // static text for the format.
        match unsafe { self.api.call(&mut args) } {
            Err(Error::MissingFunction { .. }) => return Ok(None),
            Err(Error::Xla {
                code: ErrorCode::Unimplemented,
                ..
            }) => return Ok(None),
            other => other?,
        }
        let mut code = vec![0_u8; program.code_size];
        program.code = code.as_mut_ptr();
        args.program = &mut program;
        // SAFETY: as above; the place is as large as the plugin has asked for.
        unsafe { self.api.call(&mut args) }?;
        // SAFETY: the plugin says that the text is this long, and keeps it.
        if unsafe { text_of(program.format, program.format_size) } != "hlo_with_config" {
            return Ok(None);
        }
        let operations = Operations::decode(&code).map_err(|error| Error::CompiledProgram {
            reason: error.to_string(),
        })?;
        Ok(Some(operations))
    }

    /// Hands the serialized program to `f`; a plugin that cannot serialize is one without a cache.
    pub(crate) fn serialize(&self, f: impl FnOnce(&[u8])) {
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
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let mut args = abi::ExecutableDestroy::new();
        args.executable = self.raw;
        // SAFETY: we own the handle, and it is not used again.
        unsafe { self.api.destroy(args) };
    }
}

impl Report {
    /// Compares with the module. `exact`: arrays take no more memory than their elements, as on the CPU.
    pub(crate) fn check(&self, module: &Module, exact: bool) -> Result<()> {
        self.check_results(module)?;
        self.check_arguments(module, exact)
    }

    fn check_results(&self, module: &Module) -> Result<()> {
        let (expected, got) = (module.results.len(), self.results.len());
        if expected != got {
            let what = "the number of results differs".to_owned();
            return disagree(module, what, expected.to_string(), got.to_string());
        }
        for (spec, got) in module.results.iter().zip(&self.results) {
            if got.dtype != raw_dtype(spec.dtype) {
                let what = format!("result '{}' differs", spec.name);
                let got = format!("element type number {}", got.dtype);
                return disagree(module, what, spec.dtype.to_string(), got);
            }
            let local = spec.sharding.local_dims(&module.mesh, &spec.dims)?;
            let same = got
                .dims
                .iter()
                .map(|&d| d as usize)
                .eq(local.iter().copied());
            if !same {
                let what = format!("the per-device dimensions of result '{}' differ", spec.name);
                return disagree(
                    module,
                    what,
                    format!("{local:?}"),
                    format!("{:?}", got.dims),
                );
            }
        }
        Ok(())
    }

    /// The C API does not tell a program's parameters, only their size. That is the sum on the CPU; a TPU pads arrays to tiles, and
    /// may take some from the host.
    fn check_arguments(&self, module: &Module, exact: bool) -> Result<()> {
        let mut bytes = 0;
        for ArgSpec { spec, .. } in &module.args {
            let local = spec.sharding.local_dims(&module.mesh, &spec.dims)?;
            bytes += byte_len(spec.dtype, &local)? as u64;
        }
        let got = self.memory.argument + self.memory.host_argument;
        if bytes == got || (bytes < got && !exact) {
            return Ok(());
        }
        let what = "the size of the arguments on one device differs".to_owned();
        let more = if exact { "" } else { " or more" };
        disagree(
            module,
            what,
            format!("{bytes} bytes{more}"),
            format!("{got} bytes"),
        )
    }
}

fn disagree(module: &Module, what: String, expected: String, got: String) -> Result<()> {
    Err(Error::Compiled {
        module: module.name.clone(),
        what,
        expected,
        got,
    })
}
