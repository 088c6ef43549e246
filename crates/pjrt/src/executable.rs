//! A compiled program: check the arguments, run it.

use std::{fmt, ptr, sync::Arc};

use crate::{
    ArgSpec, Array, ArraySpec, Error, Kernel, Memory, Mesh, Operations, Result,
    abi::{self, RawBuffer, RawEvent, RawLoaded},
    api::Event,
    client::ClientInner,
    kernel::Watch,
    report::Compiled,
};

/// An argument of [`Executable::run`].
///
/// For an argument that the program overwrites, moving gives its memory to the result, borrowing makes XLA copy it first.
/// A moved array cannot be read afterwards, and that is checked when your code is compiled:
///
/// ```compile_fail,E0382
/// # use ferrotune_pjrt::{Arg, Array, Executable, Result};
/// # fn f(step: &Executable, weights: Array) -> Result<()> {
/// let updated = step.run(vec![Arg::Moved(weights)])?;
/// weights.to_host()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum Arg<'a> {
    /// Read by the program and kept.
    Borrowed(&'a Array),
    /// Given away: overwritten if the program donates this argument, freed after the run otherwise.
    Moved(Array),
}

/// A compiled program, loaded on the devices of one mesh.
pub struct Executable {
    pub(crate) raw: LoadedHandle,
    pub(crate) name: String,
    pub(crate) mesh: Mesh,
    pub(crate) args: Vec<ArgSpec>,
    pub(crate) results: Vec<Arc<ArraySpec>>,
    pub(crate) kernels: Arc<[&'static Kernel]>,
    pub(crate) memory: MemoryStats,
    pub(crate) from_cache: bool,
}

/// An owned loaded executable.
pub(crate) struct LoadedHandle {
    pub(crate) raw: *mut RawLoaded,
    pub(crate) client: Arc<ClientInner>,
}

// SAFETY: the PJRT C API allows executables to be used from any thread at once.
unsafe impl Send for LoadedHandle {}
// SAFETY: as above.
unsafe impl Sync for LoadedHandle {}

impl Drop for LoadedHandle {
    fn drop(&mut self) {
        let mut args = abi::LoadedDestroy::new();
        args.executable = self.raw;
        // SAFETY: we own the handle, it is not used again, and the client is still alive.
        unsafe { self.client.api.destroy(args) };
    }
}

/// What a program needs on each device, as the compiler reports it.
///
/// What must fit is `argument + output - alias + temp + generated_code`, see [`MemoryStats::total`].
///
/// # Units
/// Bytes per device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Arguments.
    pub argument: u64,
    /// Results.
    pub output: u64,
    /// Results that take over an argument's memory.
    pub alias: u64,
    /// Temporaries.
    pub temp: u64,
    /// Machine code.
    pub generated_code: u64,
    /// Arguments in host memory.
    pub host_argument: u64,
    /// Results in host memory.
    pub host_output: u64,
    /// Results that take over an argument's host memory.
    pub host_alias: u64,
    /// Temporaries in host memory.
    pub host_temp: u64,
    /// Machine code in host memory.
    pub host_generated_code: u64,
    /// The most that is in use at any moment, where the compiler knows: on TPUs. On the CPU this is the arguments alone.
    pub peak: u64,
}

impl MemoryStats {
    /// What must fit on a device: arguments, new results, temporaries and machine code.
    #[must_use]
    pub fn total(&self) -> u64 {
        (self.argument + self.output + self.temp + self.generated_code).saturating_sub(self.alias)
    }
}

impl Executable {
    /// The module's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The mesh it runs on.
    #[must_use]
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// What it takes.
    #[must_use]
    pub fn args(&self) -> &[ArgSpec] {
        &self.args
    }

    /// What it returns.
    #[must_use]
    pub fn results(&self) -> &[Arc<ArraySpec>] {
        &self.results
    }

    /// What it needs on each device.
    #[must_use]
    pub fn memory(&self) -> MemoryStats {
        self.memory
    }

    /// What the compiler has made of the program; `None` from a plugin that does not show it. Read anew at every call.
    ///
    /// # Errors
    /// [`Error::Xla`] when the plugin fails to say, [`Error::CompiledProgram`] when what it says cannot be read.
    pub fn operations(&self) -> Result<Option<Operations>> {
        Compiled::of(&self.raw)?.operations()
    }

    /// Whether it was loaded from the compile cache.
    #[must_use]
    pub fn from_cache(&self) -> bool {
        self.from_cache
    }

    /// Starts the program and returns its results at once; reading a result waits for it.
    ///
    /// Failures while running appear when a result is waited for or read.
    ///
    /// # Errors
    /// [`Error::ArgCount`] and [`Error::ArgMismatch`] before anything runs; [`Error::Xla`] when the program cannot start, or when an
    /// argument is known to come from a run that failed.
    pub fn run(&self, args: Vec<Arg<'_>>) -> Result<Vec<Array>> {
        let kept = self.check(&args)?;
        let devices = self.mesh.device_count();
        // Row per device, as PJRT wants it.
        let mut inputs: Vec<*mut RawBuffer> = Vec::with_capacity(devices * args.len());
        for device in 0..devices {
            inputs.extend(args.iter().map(|arg| arg.array().raw(device)));
        }
        let mut outputs: Vec<*mut RawBuffer> = vec![ptr::null_mut(); devices * self.results.len()];
        let watch = Watch::begin(&self.kernels, devices);
        self.execute(&mut inputs, &mut outputs, &kept, watch.as_deref())?;
        let results = self.results.len();
        let arrays = self.results.iter().enumerate().map(|(index, spec)| {
            let raw = (0..devices).map(|device| outputs[device * results + index]);
            // SAFETY: a successful execution filled every slot with a buffer that is ours; `compile` has checked that
            // result `index` is what `spec` says.
            unsafe { Array::from_raw(&self.raw.client, spec, &self.mesh, raw, watch.clone()) }
        });
        // `args` are dropped at the end: moved arrays go, whether or not the program took their memory.
        Ok(arrays.collect())
    }

    /// Checks what plugins do not, and lists the donated arguments that must survive.
    ///
    /// An array cannot be given twice with one of them donated: it is not `Clone`, and moving it while it is borrowed does not
    /// compile.
    fn check(&self, args: &[Arg<'_>]) -> Result<Vec<i64>> {
        if args.len() != self.args.len() {
            return Err(Error::ArgCount {
                program: self.name.clone(),
                expected: self.args.len(),
                got: args.len(),
            });
        }
        let mut kept = Vec::new();
        for (index, (arg, expected)) in args.iter().zip(&self.args).enumerate() {
            let array = arg.array();
            if !Arc::ptr_eq(array.client(), &self.raw.client) {
                let got = "an array of another client";
                return Err(self.mismatch(
                    index,
                    "an array of the program's client".into(),
                    got.into(),
                ));
            }
            if *array.mesh() != self.mesh {
                let (expected, got) = (
                    format!("mesh {}", self.mesh),
                    format!("mesh {}", array.mesh()),
                );
                return Err(self.mismatch(index, expected, got));
            }
            if array.memory() != Memory::Device {
                let (expected, got) = ("an array on the devices", "one in host memory");
                return Err(self.mismatch(index, expected.into(), got.into()));
            }
            if !same(array.spec(), &expected.spec) {
                return Err(self.mismatch(
                    index,
                    expected.spec.to_string(),
                    array.spec().to_string(),
                ));
            }
            array.check_run()?;
            if expected.donated && matches!(arg, Arg::Borrowed(_)) {
                kept.push(index as i64);
            }
        }
        Ok(kept)
    }

    #[cold]
    fn mismatch(&self, index: usize, expected: String, got: String) -> Error {
        let name = self.args[index].spec.name.clone();
        Error::ArgMismatch {
            program: self.name.clone(),
            index,
            name,
            expected,
            got,
        }
    }

    fn execute(
        &self,
        inputs: &mut [*mut RawBuffer],
        outputs: &mut [*mut RawBuffer],
        kept: &[i64],
        watch: Option<&Watch>,
    ) -> Result<()> {
        let (devices, client) = (self.mesh.device_count(), &self.raw.client);
        let (num_args, num_results) = (self.args.len(), self.results.len());
        // Row by row from one base pointer each; with no columns every row is the base itself.
        let (input_base, output_base) = (inputs.as_ptr(), outputs.as_mut_ptr());
        let input_rows: Vec<*const *mut RawBuffer> = (0..devices)
            .map(|device| input_base.wrapping_add(device * num_args))
            .collect();
        let output_rows: Vec<*mut *mut RawBuffer> = (0..devices)
            .map(|device| output_base.wrapping_add(device * num_results))
            .collect();
        let mut options = abi::ExecuteOptions::new();
        (
            options.non_donatable_input_indices,
            options.num_non_donatable_input_indices,
        ) = (kept.as_ptr(), kept.len());
        let mut call = abi::LoadedExecute::new();
        call.executable = self.raw.raw;
        call.options = &mut options;
        (call.argument_lists, call.num_devices, call.num_args) =
            (input_rows.as_ptr(), devices, num_args);
        call.output_lists = output_rows.as_ptr();
        let mut done: Vec<*mut RawEvent> = vec![ptr::null_mut(); devices];
        if watch.is_some() {
            call.device_complete_events = done.as_mut_ptr();
        }
        // A poisoned lock means that another thread panicked between launches, which leaves nothing behind.
        let _order = (devices > 1).then(|| {
            client
                .launch
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
        });
        // SAFETY: the executable and all arguments are live buffers of one client, checked against what the program takes;
        // both matrices have `devices` rows of the program's own widths; everything outlives the call.
        let result = unsafe { client.api.call(&mut call) };
        if let Some(watch) = watch {
            if result.is_err() {
                // The plugin has made no events.
                done.clear();
            }
            // SAFETY: the plugin has made these events for us, one per device.
            let event = |raw| unsafe { Event::new(client.api, raw) };
            watch.started(done.into_iter().map(event).collect());
        }
        result
    }
}

impl Arg<'_> {
    fn array(&self) -> &Array {
        match self {
            Arg::Borrowed(array) => array,
            Arg::Moved(array) => array,
        }
    }
}

/// Equal in all that the device sees; names may differ.
fn same(a: &Arc<ArraySpec>, b: &Arc<ArraySpec>) -> bool {
    Arc::ptr_eq(a, b) || (a.dtype == b.dtype && a.dims == b.dims && a.sharding == b.sharding)
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Executable('{}', {} arguments, {} results)",
            self.name,
            self.args.len(),
            self.results.len()
        )
    }
}
