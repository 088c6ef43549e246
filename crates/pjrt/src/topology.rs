//! Compiling for devices that are not here: what a program would need on a named slice of TPUs, or on machines with GPUs.

mod gpu;

use std::{fmt, sync::Arc};

use crate::{
    Effort, Error, MemoryStats, Module, Operations, Platform, Plugin, Result,
    abi::{self, RawDescription, RawTopology},
    api::Api,
    client::{array_of, text_of},
    compile::{check_shardings, program},
    compiled::{Entry, Key},
    kernel::check_platform,
    options,
    report::{Compiled, Report},
};

/// Devices and how they are connected, such as the TPU slice `tpu7x:4x4x8`. Cheap to clone.
///
/// The name of a slice is that of a TPU generation, then the number of *chips* along each axis; a chip is one or two devices.
#[derive(Clone)]
pub struct Topology(Arc<Inner>);

struct Inner {
    plugin: Plugin,
    raw: *mut RawTopology,
    name: String,
    platform_name: String,
    device_ids: Vec<i32>,
    device_memory: Option<u64>,
}

// SAFETY: a topology is never changed after it has been made, and the PJRT C API allows handles to be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut args = abi::TopologyDestroy::new();
        args.topology = self.raw;
        // SAFETY: we own the handle, and it is not used again.
        unsafe { self.plugin.api().destroy(args) };
    }
}

/// What the plugin is given to make a topology of.
struct Created<'a> {
    given: &'a str,
    options: &'a [TextOption<'a>],
    /// What one device can hold, where only the caller knows.
    device_memory: Option<u64>,
}

struct TextOption<'a> {
    name: &'a str,
    value: &'a str,
}

impl Topology {
    /// The TPU slice of this name. Needs no devices.
    ///
    /// # Errors
    /// [`Error::Topology`] when the plugin knows none of this name; a CPU plugin knows none at all.
    pub fn named(plugin: &Plugin, name: &str) -> Result<Topology> {
        let unknown = |reason: String| Error::Topology {
            name: name.to_owned(),
            reason,
        };
        check_form(name).map_err(|reason| unknown(reason.to_owned()))?;
        let created = Created {
            given: name,
            options: &[],
            device_memory: None,
        };
        Topology::create(plugin, name.to_owned(), &created, unknown)
    }

    /// `refused` makes an error of the plugin's refusal.
    fn create(
        plugin: &Plugin,
        name: String,
        created: &Created<'_>,
        refused: impl Fn(String) -> Error,
    ) -> Result<Topology> {
        let api = plugin.api();
        let options: Vec<abi::NamedValue> = created
            .options
            .iter()
            .map(|option| abi::NamedValue::of_text(option.name, option.value))
            .collect();
        let mut args = abi::TopologyCreate::new();
        (args.name, args.name_size) = (created.given.as_ptr(), created.given.len());
        (args.create_options, args.num_options) = (options.as_ptr(), options.len());
        // SAFETY: the name, the options and the texts that they point to outlive the call.
        unsafe { api.call(&mut args) }.map_err(|error| match error {
            Error::Xla { message, .. } => refused(message),
            other => other,
        })?;
        // From here on the topology is destroyed if anything fails.
        let mut inner = Inner {
            plugin: plugin.clone(),
            raw: args.topology,
            name,
            platform_name: String::new(),
            device_ids: Vec::new(),
            device_memory: None,
        };
        inner.describe(api)?;
        inner.device_memory = inner.device_memory.or(created.device_memory);
        Ok(Topology(Arc::new(inner)))
    }

    /// The name that it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The number of devices, at least as many as chips.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.0.device_ids.len()
    }

    /// What kind of devices they are.
    #[must_use]
    pub fn platform(&self) -> Platform {
        Platform::from_name(&self.0.platform_name)
    }

    /// What one device can hold, if the plugin says.
    ///
    /// # Units
    /// Bytes.
    #[must_use]
    pub fn device_memory(&self) -> Option<u64> {
        self.0.device_memory
    }

    /// Compiles a module for the first devices of this topology, or finds what a compilation said in the compile cache.
    ///
    /// # Errors
    /// [`Error::MeshTooLarge`], [`Error::Sharding`], [`Error::KernelPlatform`]; [`Error::Xla`] when XLA refuses the text, or when the program does not fit a
    /// device (with the code [`ResourceExhausted`](crate::ErrorCode::ResourceExhausted)); [`Error::Compiled`] when the module's text
    /// and its specification disagree.
    pub fn compile(&self, module: &Module) -> Result<Compilation> {
        self.compile_with(module, Effort::Full)
    }

    /// Compiles with another effort than the plugin's default.
    ///
    /// # Errors
    /// As for [`Topology::compile`].
    pub fn compile_with(&self, module: &Module, effort: Effort) -> Result<Compilation> {
        check_shardings(module)?;
        check_platform(module, self.platform())?;
        let options = options::encode(self.devices_of(module)?, self.platform(), effort);
        let entry = Entry::of(&Key {
            text: &module.text,
            options: &options,
            plugin_sha256: self.0.plugin.sha256(),
            target: &format!("topology {}", self.0.name),
            device_count: self.device_count(),
        });
        let found = entry.read().and_then(|record| Report::decode(&record));
        let from_cache = found.is_some();
        let report = match found {
            Some(report) => report,
            None => self.compile_text(&module.text, &options)?.report()?,
        };
        report.check(module, false)?;
        if !from_cache {
            entry.write(&report.encode());
        }
        Ok(Compilation { report, from_cache })
    }

    fn devices_of(&self, module: &Module) -> Result<&[i32]> {
        let (needed, ids) = (module.mesh.device_count(), &self.0.device_ids);
        ids.get(..needed).ok_or_else(|| Error::MeshTooLarge {
            owner: format!("the topology {}", self.0.name),
            mesh: module.mesh.to_string(),
            needed,
            present: ids.len(),
        })
    }

    fn compile_text(&self, text: &str, options: &[u8]) -> Result<Compiled> {
        let (api, program) = (self.0.plugin.api(), program(text));
        let mut args = abi::Compile::new();
        args.topology = self.0.raw;
        args.program = &program;
        (args.compile_options, args.compile_options_size) = (options.as_ptr(), options.len());
        // SAFETY: the topology is live, and a null client is what compiling without devices means; program, text and options
        // outlive the call. The executable that comes back is ours.
        unsafe {
            api.call(&mut args)?;
            Ok(Compiled::from_raw(api, args.executable))
        }
    }
}

/// Refuses what is no generation with sizes: plugins take unknown words for names of their own, or end the process.
fn check_form(name: &str) -> Result<(), &'static str> {
    let (generation, sizes) = name.split_once(':').ok_or("it has no ':'")?;
    let word = |c: char| c.is_ascii_alphanumeric();
    if generation.is_empty() || !generation.chars().all(word) {
        return Err("what stands before the ':' is not the name of a generation");
    }
    let size = |size: &str| {
        size.chars().all(|c| c.is_ascii_digit()) && size.parse::<u16>().is_ok_and(|n| n > 0)
    };
    if !sizes.split('x').all(size) {
        return Err("what follows the ':' is not sizes joined by 'x'");
    }
    Ok(())
}

impl Inner {
    fn describe(&mut self, api: Api) -> Result<()> {
        let mut name = abi::TopologyPlatformName::new();
        name.topology = self.raw;
        let mut devices = abi::TopologyGetDeviceDescriptions::new();
        devices.topology = self.raw;
        // SAFETY: the topology is live; the text and the array live as long as it does.
        let descriptions = unsafe {
            api.call(&mut name)?;
            api.call(&mut devices)?;
            self.platform_name = text_of(name.platform_name, name.platform_name_size);
            array_of(devices.descriptions, devices.num_descriptions)
        };
        for &description in descriptions {
            let mut id = abi::DeviceDescriptionId::new();
            id.description = description;
            // SAFETY: the description belongs to a live topology.
            unsafe { api.call(&mut id) }?;
            self.device_ids.push(id.id);
        }
        if let Some(&first) = descriptions.first() {
            // SAFETY: as above.
            self.device_memory = unsafe { device_memory(api, first) };
        }
        Ok(())
    }
}

/// # Safety
/// `description` must belong to a live topology of this plugin.
unsafe fn device_memory(api: Api, description: *mut RawDescription) -> Option<u64> {
    let mut args = abi::DeviceDescriptionAttributes::new();
    args.description = description;
    // SAFETY: the caller vouches for the description; attributes and their names live as long as it does.
    unsafe {
        api.call(&mut args).ok()?;
        let attributes = array_of(args.attributes, args.num_attributes);
        let limit = attributes.iter().find(|attribute| {
            array_of(attribute.name, attribute.name_size) == b"device_memory_bytes_limit"
        })?;
        limit.int64().and_then(|bytes| u64::try_from(bytes).ok())
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Topology({}, {} devices)",
            self.name(),
            self.device_count()
        )
    }
}

/// What the compiler says of a program for a [`Topology`]. The program itself is not kept: there is nothing here to run it.
#[derive(Debug, Clone)]
pub struct Compilation {
    report: Report,
    from_cache: bool,
}

impl Compilation {
    /// What it needs on each device.
    #[must_use]
    pub fn memory(&self) -> MemoryStats {
        self.report.memory
    }

    /// What it does on each device, if the plugin counts.
    #[must_use]
    pub fn cost(&self) -> Option<CostAnalysis> {
        self.report.cost
    }

    /// What the compiler has made of the program; `None` from a plugin that does not show it.
    #[must_use]
    pub fn operations(&self) -> Option<&Operations> {
        self.report.operations.as_ref()
    }

    /// Whether the compile cache had the answer.
    #[must_use]
    pub fn from_cache(&self) -> bool {
        self.from_cache
    }
}

/// What a program does on one device, as XLA counts it: the body of a loop counts once, however often it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostAnalysis {
    /// Floating-point operations; a multiply-add is two.
    pub flops: f64,
    /// Bytes read and written, the same byte each time anew.
    pub bytes_accessed: f64,
    /// Exponentials, logarithms, sines and their like.
    pub transcendentals: f64,
    /// A lower bound of the run time in seconds. Not to be relied upon: it was seen to be negative for large programs.
    pub optimal_seconds: f64,
}

#[cfg(test)]
mod tests;
