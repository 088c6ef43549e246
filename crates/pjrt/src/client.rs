//! A client: the devices that a plugin gives us.

use std::{
    fmt, ptr, slice,
    sync::{Arc, Mutex},
};

use crate::{
    Array, ArraySpec, Error, Executable, HostArray, Mesh, Module, Platform, Plugin, Result,
    abi::{self, RawClient, RawDevice, RawMemory},
    api::Api,
    array, compile,
};

/// A set of devices. Cheap to clone; arrays and executables keep it alive.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<ClientInner>);

pub(crate) struct ClientInner {
    pub(crate) api: Api,
    pub(crate) raw: *mut RawClient,
    pub(crate) devices: Vec<Device>,
    /// Held while a program is handed to several devices: two programs with collectives must reach every device in the
    /// same order, or each waits for the other.
    pub(crate) launch: Mutex<()>,
    pub(crate) plugin: Plugin,
    platform_name: String,
    platform_version: String,
}

pub(crate) struct Device {
    pub(crate) raw: *mut RawDevice,
    pub(crate) id: i32,
    /// Its own memory.
    pub(crate) memory: *mut RawMemory,
    /// Memory of the host that it copies from and to; null if there is none.
    pub(crate) host_memory: *mut RawMemory,
}

/// What plugins call memory of the host that a device reaches by itself.
const PINNED_HOST: &str = "pinned_host";

// SAFETY: client and devices are handles that the PJRT C API allows to be used from any thread at once; the client is destroyed
// only when the last owner is gone.
unsafe impl Send for ClientInner {}
// SAFETY: as above.
unsafe impl Sync for ClientInner {}

impl Client {
    /// The most virtual CPU devices of a client; the plugin does not come back from being asked for very many.
    pub const MOST_CPU_DEVICES: usize = 4096;

    /// A client of `device_count` virtual CPU devices, all in this process.
    ///
    /// # Errors
    /// [`Error::CpuDevices`] for none and for more than [`Self::MOST_CPU_DEVICES`]; [`Error::DeviceCount`] when the plugin does not
    /// make as many; [`Error::Xla`].
    pub fn cpu(plugin: &Plugin, device_count: usize) -> Result<Client> {
        if !(1..=Self::MOST_CPU_DEVICES).contains(&device_count) {
            return Err(Error::CpuDevices {
                asked: device_count,
                most: Self::MOST_CPU_DEVICES,
            });
        }
        // The plugin's own default is four devices, whatever the machine.
        let client = Client::create(plugin, &[("cpu_device_count", device_count as i64)])?;
        match client.device_count() {
            made if made == device_count => Ok(client),
            made => Err(Error::DeviceCount {
                asked: device_count,
                made,
            }),
        }
    }

    fn create(plugin: &Plugin, options: &[(&str, i64)]) -> Result<Client> {
        let api = plugin.api();
        let options: Vec<abi::NamedValue> = options
            .iter()
            .map(|&(name, value)| {
                let mut option = abi::NamedValue::new();
                (option.name, option.name_size) = (name.as_ptr(), name.len());
                (option.kind, option.value, option.value_size) = (abi::NAMED_VALUE_INT64, value, 1);
                option
            })
            .collect();
        let mut args = abi::ClientCreate::new();
        (args.create_options, args.num_options) = (options.as_ptr(), options.len());
        // SAFETY: the options and the names that they point to outlive the call.
        plugin.start(|| unsafe { api.call(&mut args) })?;
        // From here on the client is destroyed if anything fails.
        let mut inner = ClientInner {
            api,
            raw: args.client,
            devices: Vec::new(),
            launch: Mutex::new(()),
            plugin: plugin.clone(),
            platform_name: String::new(),
            platform_version: String::new(),
        };
        inner.describe()?;
        Ok(Client(Arc::new(inner)))
    }

    /// The number of devices.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.0.devices.len()
    }

    /// What kind of devices they are.
    #[must_use]
    pub fn platform(&self) -> Platform {
        Platform::from_name(&self.0.platform_name)
    }

    /// What the plugin calls its platform, such as `cpu`.
    #[must_use]
    pub fn platform_name(&self) -> &str {
        &self.0.platform_name
    }

    /// The plugin's version text.
    #[must_use]
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    /// Whether arrays can lie in the memory of the host: see [`Array::copy_to`].
    #[must_use]
    pub fn has_host_memory(&self) -> bool {
        let mut devices = self.0.devices.iter();
        devices.all(|device| !device.host_memory.is_null())
    }

    /// The plugin behind this client.
    #[must_use]
    pub fn plugin(&self) -> &Plugin {
        &self.0.plugin
    }

    /// Copies a host array to the devices, cut as `spec` says.
    ///
    /// The host array may be dropped or changed at once.
    ///
    /// # Errors
    /// [`Error::Upload`], [`Error::MeshTooLarge`], [`Error::Sharding`]; [`Error::Xla`] when a device has no room.
    pub fn upload(&self, host: &HostArray, spec: Arc<ArraySpec>, mesh: &Mesh) -> Result<Array> {
        array::upload(&self.0, host, spec, mesh)
    }

    /// Compiles a module for the first devices of this client, or finds it in the compile cache.
    ///
    /// # Errors
    /// [`Error::MeshTooLarge`], [`Error::Sharding`]; [`Error::KernelPlatform`], [`Error::KernelTwice`] and [`Error::NoKernels`] when
    /// the module has kernels that cannot be called; [`Error::Xla`] when XLA refuses the text; [`Error::Compiled`] when the module's
    /// text and its specification disagree.
    pub fn compile(&self, module: &Module) -> Result<Executable> {
        compile::compile(&self.0, module)
    }
}

impl ClientInner {
    fn describe(&mut self) -> Result<()> {
        let api = self.api;
        let mut devices = abi::ClientAddressableDevices::new();
        devices.client = self.raw;
        // SAFETY: the client is live.
        unsafe { api.call(&mut devices) }?;
        // SAFETY: the plugin says that there are this many, and keeps them as long as the client.
        let raw = unsafe { array_of(devices.addressable_devices, devices.num_addressable_devices) };
        for &device in raw {
            let mut description = abi::DeviceGetDescription::new();
            description.device = device;
            // SAFETY: the device belongs to a live client.
            unsafe { api.call(&mut description) }?;
            let mut id = abi::DeviceDescriptionId::new();
            id.description = description.description;
            // SAFETY: the description belongs to a live device.
            unsafe { api.call(&mut id) }?;
            let mut memory = abi::DeviceDefaultMemory::new();
            memory.device = device;
            // SAFETY: as above.
            let known = unsafe { api.call(&mut memory) };
            // A plugin that does not tell of memories has no other than the device's own.
            let other = known.and_then(|()| host_memory(api, device));
            self.devices.push(Device {
                raw: device,
                id: id.id,
                memory: memory.memory,
                host_memory: other.unwrap_or(ptr::null_mut()),
            });
        }

        let mut name = abi::ClientPlatformName::new();
        name.client = self.raw;
        let mut version = abi::ClientPlatformVersion::new();
        version.client = self.raw;
        // SAFETY: the client is live; both texts live as long as it does.
        unsafe {
            api.call(&mut name)?;
            api.call(&mut version)?;
            self.platform_name = text_of(name.platform_name, name.platform_name_size);
            self.platform_version =
                text_of(version.platform_version, version.platform_version_size);
        }
        Ok(())
    }

    pub(crate) fn platform_name(&self) -> &str {
        &self.platform_name
    }

    /// The devices of a mesh: the first ones.
    pub(crate) fn devices_of(&self, mesh: &Mesh) -> Result<&[Device]> {
        self.devices
            .get(..mesh.device_count())
            .ok_or_else(|| Error::MeshTooLarge {
                owner: "the client".to_owned(),
                mesh: mesh.to_string(),
                needed: mesh.device_count(),
                present: self.devices.len(),
            })
    }
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        let mut args = abi::ClientDestroy::new();
        args.client = self.raw;
        // SAFETY: every array and executable holds an `Arc` of this client, so they are gone; the handle is not used again.
        unsafe { self.api.destroy(args) };
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Client({} x {})",
            self.device_count(),
            self.platform_name()
        )
    }
}

/// The host's memory as the device reaches it, or null.
fn host_memory(api: Api, device: *mut RawDevice) -> Result<*mut RawMemory> {
    let mut memories = abi::DeviceAddressableMemories::new();
    memories.device = device;
    // SAFETY: the device belongs to a live client.
    unsafe { api.call(&mut memories) }?;
    // SAFETY: the plugin says that there are this many, and keeps them as long as the client.
    let memories = unsafe { array_of(memories.memories, memories.num_memories) };
    for &memory in memories {
        let mut kind = abi::MemoryKind::new();
        kind.memory = memory;
        // SAFETY: the memory belongs to a live client, and so does its text.
        let name = unsafe {
            api.call(&mut kind)?;
            text_of(kind.kind, kind.kind_size)
        };
        if name == PINNED_HOST {
            return Ok(memory);
        }
    }
    Ok(ptr::null_mut())
}

/// A slice of the plugin's memory; null with length zero is an empty slice.
///
/// # Safety
/// `data` must be valid for `len` elements for as long as the result is used, or `len` must be zero.
pub(crate) unsafe fn array_of<'a, T>(data: *const T, len: usize) -> &'a [T] {
    let data = if len == 0 {
        ptr::NonNull::dangling().as_ptr()
    } else {
        data
    };
    // SAFETY: passed on to the caller; a dangling pointer is right for an empty slice.
    unsafe { slice::from_raw_parts(data, len) }
}

/// A copy of the plugin's text.
///
/// # Safety
/// As for [`array_of`].
pub(crate) unsafe fn text_of(data: *const u8, len: usize) -> String {
    // SAFETY: passed on to the caller.
    String::from_utf8_lossy(unsafe { array_of(data, len) }).into_owned()
}
