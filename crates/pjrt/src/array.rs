//! Arrays on devices: upload, read back, wait.

use std::{fmt, sync::Arc};

use crate::{
    ArraySpec, DType, Error, HostArray, Mesh, Result,
    abi::{self, RawBuffer},
    api::{Api, Event},
    client::{ClientInner, Device},
    kernel::Watch,
    placement::Placement,
};

/// An array on the devices of a mesh: one buffer per device, freed when dropped.
///
/// Not `Clone`: a program that overwrites its argument takes the array by value, and a second handle would see the wreckage.
pub struct Array {
    spec: Arc<ArraySpec>,
    mesh: Mesh,
    buffers: Box<[Buffer]>,
    memory: Memory,
    /// The run that it comes from, if that calls kernels.
    watch: Option<Arc<Watch>>,
    // Last: buffers must be destroyed before their client.
    client: Arc<ClientInner>,
}

/// Where arrays lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// On the devices, where programs read them.
    #[default]
    Device,
    /// With the host, out of the way.
    Host,
}

/// An owned buffer of one device.
struct Buffer {
    api: Api,
    raw: *mut RawBuffer,
}

// SAFETY: the PJRT C API allows buffers to be used from any thread at once, and nothing here mutates one through `&`.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut args = abi::BufferDestroy::new();
        args.buffer = self.raw;
        // SAFETY: we own the handle, and it is not used again. A program still reading the buffer holds a reference of its own.
        unsafe { self.api.destroy(args) };
    }
}

impl Array {
    /// What this array is.
    #[must_use]
    pub fn spec(&self) -> &Arc<ArraySpec> {
        &self.spec
    }

    /// The mesh whose devices hold it.
    #[must_use]
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Where it lies.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// Starts copying it to another memory and returns the copy at once. The original may be dropped; its memory is free when the
    /// copy is done.
    ///
    /// # Errors
    /// [`Error::NoHostMemory`] when the plugin has none (see [`Client::has_host_memory`](crate::Client::has_host_memory));
    /// [`Error::Xla`] when there is no room.
    pub fn copy_to(&self, memory: Memory) -> Result<Array> {
        let devices = self.client.devices_of(&self.mesh)?;
        let copy = |(buffer, device): (&Buffer, &Device)| {
            let to = match memory {
                Memory::Device => device.memory,
                Memory::Host => device.host_memory,
            };
            if to.is_null() {
                return Err(Error::NoHostMemory {
                    platform: self.client.platform_name().to_owned(),
                });
            }
            let mut args = abi::BufferCopyToMemory::new();
            (args.buffer, args.dst_memory) = (buffer.raw, to);
            // SAFETY: the buffer is live, the memory is one of its client's, and the new buffer is ours.
            unsafe { buffer.api.call(&mut args) }?;
            Ok(Buffer {
                api: buffer.api,
                raw: args.dst_buffer,
            })
        };
        let buffers: Result<Box<[Buffer]>> = self.buffers.iter().zip(devices).map(copy).collect();
        Ok(Array {
            spec: Arc::clone(&self.spec),
            mesh: self.mesh.clone(),
            buffers: buffers?,
            memory,
            watch: self.watch.clone(),
            client: Arc::clone(&self.client),
        })
    }

    /// Waits until the values are there.
    ///
    /// # Errors
    /// [`Error::Xla`] when the program that was to write them failed.
    pub fn wait(&self) -> Result<()> {
        // Every device is waited for, even after a failure, so that nothing runs on behind the caller's back.
        let results: Vec<Result<()>> = self
            .buffers
            .iter()
            .map(|buffer| buffer.ready()?.wait())
            .collect();
        results.into_iter().collect::<Result<()>>()?;
        self.wait_for_run()
    }

    fn wait_for_run(&self) -> Result<()> {
        self.watch.as_ref().map_or(Ok(()), |watch| watch.wait())
    }

    /// Whether the run that it comes from is known to have failed, though XLA thinks otherwise.
    pub(crate) fn check_run(&self) -> Result<()> {
        self.watch.as_ref().map_or(Ok(()), |watch| watch.check())
    }

    /// Whether the values are there (or have failed to come), without waiting.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        // An event that cannot be asked for is a failure, which `wait` will report at once.
        self.buffers.iter().all(|buffer| {
            buffer
                .ready()
                .and_then(|event| event.is_ready())
                .unwrap_or(true)
        })
    }

    /// Reads the whole array back, joining the parts. Waits for the values.
    ///
    /// # Errors
    /// [`Error::Xla`] when the program that was to write them failed.
    pub fn to_host(&self) -> Result<HostArray> {
        let (dtype, dims) = (self.spec.dtype, &self.spec.dims);
        let element = dtype.bytes();
        let placement = Placement::new(&self.mesh, &self.spec.sharding, dims)?;
        let part_bytes = placement.local.iter().product::<usize>() * element;
        let mut host = HostArray::zeros(dtype, dims);
        if host.is_empty() {
            self.wait()?;
            return Ok(host);
        }
        // A part that is one run of the global array is read in place, any other through a buffer of its own.
        let held = (0..self.buffers.len()).filter(|&device| placement.first_holder[device]);
        let mut parts: Vec<(usize, Option<Vec<u8>>)> = held
            .map(|device| {
                (
                    device,
                    placement
                        .contiguous(device, element)
                        .is_none()
                        .then(|| vec![0; part_bytes]),
                )
            })
            .collect();
        let whole = host.bytes_mut().as_mut_ptr();
        let mut transfers: Vec<Result<Event>> = Vec::with_capacity(parts.len());
        for (device, own) in &mut parts {
            let target = match own {
                Some(bytes) => bytes.as_mut_ptr(),
                None => whole.wrapping_add(placement.offset(*device, element)),
            };
            // SAFETY: every target is a region of `part_bytes` bytes of its own, which is neither touched nor freed before all
            // transfers have been waited for below.
            transfers.push(unsafe {
                self.buffers[*device].start_read(&placement.local, target, part_bytes)
            });
        }
        // All of them are waited for before any error is returned: a transfer still running writes into our memory.
        let results: Vec<Result<()>> = transfers.into_iter().map(|event| event?.wait()).collect();
        results.into_iter().collect::<Result<()>>()?;
        self.wait_for_run()?;
        for (device, own) in parts {
            if let Some(bytes) = own {
                placement.paste(device, element, &bytes, host.bytes_mut());
            }
        }
        Ok(host)
    }

    /// An array over buffers that a program has just made.
    ///
    /// # Safety
    /// `raw` must be live buffers of `client`, one per device of `mesh` in order, holding `spec`, and owned by nobody else.
    pub(crate) unsafe fn from_raw(
        client: &Arc<ClientInner>,
        spec: &Arc<ArraySpec>,
        mesh: &Mesh,
        raw: impl Iterator<Item = *mut RawBuffer>,
        watch: Option<Arc<Watch>>,
    ) -> Array {
        let buffers = raw
            .map(|raw| Buffer {
                api: client.api,
                raw,
            })
            .collect();
        Array {
            spec: Arc::clone(spec),
            mesh: mesh.clone(),
            buffers,
            memory: Memory::Device,
            watch,
            client: Arc::clone(client),
        }
    }

    pub(crate) fn client(&self) -> &Arc<ClientInner> {
        &self.client
    }

    pub(crate) fn raw(&self, device: usize) -> *mut RawBuffer {
        self.buffers[device].raw
    }
}

impl Buffer {
    fn ready(&self) -> Result<Event> {
        let mut args = abi::BufferReadyEvent::new();
        args.buffer = self.raw;
        // SAFETY: the buffer is live; the event is ours to destroy.
        unsafe {
            self.api.call(&mut args)?;
            Ok(Event::new(self.api, args.event))
        }
    }

    /// Starts copying the buffer to the host, row-major whatever the device's own layout.
    ///
    /// # Safety
    /// `target` must be `len` writable bytes that nobody touches until the event has been waited for.
    unsafe fn start_read(&self, dims: &[usize], target: *mut u8, len: usize) -> Result<Event> {
        let minor_to_major: Vec<i64> = (0..dims.len() as i64).rev().collect();
        let mut layout = abi::MemoryLayout::new();
        layout.tiled_struct_size = abi::TILED_LAYOUT_SIZE;
        layout.kind = abi::TILED_LAYOUT;
        (layout.minor_to_major, layout.minor_to_major_size) =
            (minor_to_major.as_ptr(), minor_to_major.len());
        let mut args = abi::BufferToHostBuffer::new();
        args.src = self.raw;
        args.host_layout = &mut layout;
        (args.dst, args.dst_size) = (target.cast(), len);
        // SAFETY: the buffer is live, the layout outlives the call, and the caller keeps `target` until the event has fired.
        unsafe {
            self.api.call(&mut args)?;
            Ok(Event::new(self.api, args.event))
        }
    }
}

pub(crate) fn upload(
    client: &Arc<ClientInner>,
    host: &HostArray,
    spec: Arc<ArraySpec>,
    mesh: &Mesh,
) -> Result<Array> {
    if host.dtype() != spec.dtype || host.dims() != spec.dims {
        return Err(Error::Upload {
            name: spec.name.clone(),
            expected: format!("{} {:?}", spec.dtype, spec.dims),
            got: format!("{} {:?}", host.dtype(), host.dims()),
        });
    }
    let devices = client.devices_of(mesh)?;
    let placement =
        Placement::new(mesh, &spec.sharding, &spec.dims).map_err(|source| Error::Sharding {
            name: spec.name.clone(),
            source: Box::new(source),
        })?;
    let element = spec.dtype.bytes();
    let part_bytes = placement.local.iter().product::<usize>() * element;
    let dims: Vec<i64> = placement.local.iter().map(|&d| d as i64).collect();
    let mut scratch = Vec::new();
    let mut buffers = Vec::with_capacity(devices.len());
    for (index, device) in devices.iter().enumerate() {
        let part = match placement.contiguous(index, element) {
            Some(offset) => &host.bytes()[offset..offset + part_bytes],
            None => {
                scratch.resize(part_bytes, 0);
                placement.cut(index, element, host.bytes(), &mut scratch);
                &scratch
            }
        };
        let mut args = abi::BufferFromHostBuffer::new();
        args.client = client.raw;
        args.data = part.as_ptr().cast();
        args.element_type = raw_dtype(spec.dtype);
        (args.dims, args.num_dims) = (dims.as_ptr(), dims.len());
        args.host_buffer_semantics = abi::IMMUTABLE_ONLY_DURING_CALL;
        args.device = device.raw;
        // SAFETY: client and device are live, `part` holds exactly `dims` elements, and all of it outlives the call.
        unsafe { client.api.call(&mut args) }?;
        buffers.push(Buffer {
            api: client.api,
            raw: args.buffer,
        });
        // SAFETY: the event is ours.
        unsafe { Event::new(client.api, args.done_with_host_buffer) }.wait()?;
    }
    Ok(Array {
        spec,
        mesh: mesh.clone(),
        buffers: buffers.into(),
        memory: Memory::Device,
        watch: None,
        client: Arc::clone(client),
    })
}

/// The number of an element type in the C header.
pub(crate) fn raw_dtype(dtype: DType) -> std::ffi::c_int {
    match dtype {
        DType::Pred => 1,
        DType::S8 => 2,
        DType::S16 => 3,
        DType::S32 => 4,
        DType::S64 => 5,
        DType::U8 => 6,
        DType::U16 => 7,
        DType::U32 => 8,
        DType::U64 => 9,
        DType::F16 => 10,
        DType::F32 => 11,
        DType::F64 => 12,
        DType::BF16 => 13,
        DType::F8E5M2 => 16,
        DType::F8E4M3FN => 17,
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array('{}' {})", self.spec.name, self.spec)
    }
}
