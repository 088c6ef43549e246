//! Memory layouts of the PJRT C API, declared by hand; this file and the one below it are the only ones with raw layouts.
//!
//! Every struct is the newest known layout (API 0.114). A plugin that is older ignores the fields it does not know, a plugin that is
//! newer accepts the older size, so structs are zeroed and always passed at full size. A struct's size is the end of its last field,
//! which is not always Rust's `size_of`. Sizes and offsets are checked at compile time against the numbers written here.
//! Only what this crate calls is declared.

use std::ffi::{c_char, c_int, c_void};

/// Start of the function table that `GetPjrtApi` returns; function pointers follow at the offsets in [`Call::OFFSET`].
#[repr(C)]
pub(crate) struct Table {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut c_void,
    pub(crate) version_struct_size: usize,
    pub(crate) version_extension_start: *mut c_void,
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
}

const _: () = assert!(size_of::<Table>() == 40);

/// The C signature that all functions share: one pointer to an argument struct, null or an error back.
pub(crate) type Function = unsafe extern "C" fn(*mut c_void) -> *mut RawError;

/// The argument struct of one function of the table.
///
/// # Safety
/// The type must be `repr(C)` with exactly the layout that the function at `OFFSET` expects.
pub(crate) unsafe trait Call {
    /// The function's name in the C header.
    const NAME: &'static str;
    /// Where its pointer sits in the table.
    const OFFSET: usize;
}

macro_rules! opaque {
    ($($name:ident),*) => { $(
        #[repr(C)]
        pub(crate) struct $name { _private: [u8; 0] }
    )* };
}

opaque!(
    RawError,
    RawEvent,
    RawClient,
    RawDevice,
    RawDescription,
    RawExecutable,
    RawLoaded,
    RawBuffer,
    RawMemory,
    RawTopology
);

macro_rules! layout {
    ($name:ident, $size:literal { $($field:ident: $type:ty = $offset:literal),* $(,)? }) => {
        #[repr(C)]
        pub(crate) struct $name {
            pub(crate) struct_size: usize,
            pub(crate) extension_start: *mut c_void,
            $(pub(crate) $field: $type,)*
        }

        impl $name {
            /// Everything zero but the size.
            pub(crate) fn new() -> Self {
                // SAFETY: the fields are integers, booleans, raw pointers and optional function pointers; all zeros is valid for each.
                let mut this: Self = unsafe { std::mem::zeroed() };
                this.struct_size = $size;
                this
            }
        }

        const _: () = {
            $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
            let ends = [16 $(, $offset + size_of::<$type>())*];
            assert!(ends[ends.len() - 1] == $size);
        };
    };
}

macro_rules! calls {
    ($($name:ident = $function:literal at $slot:literal, $size:literal $fields:tt)*) => { $(
        layout!($name, $size $fields);

        // SAFETY: layout and offset are those of the C header; `layout!` checks the former.
        unsafe impl Call for $name {
            const NAME: &'static str = $function;
            const OFFSET: usize = $slot;
        }
    )* };
}

calls! {
    ErrorDestroy = "PJRT_Error_Destroy" at 40, 24 { error: *mut RawError = 16 }
    ErrorMessage = "PJRT_Error_Message" at 48, 40 { error: *const RawError = 16, message: *const u8 = 24, message_size: usize = 32 }
    ErrorGetCode = "PJRT_Error_GetCode" at 56, 28 { error: *const RawError = 16, code: c_int = 24 }
    PluginInitialize = "PJRT_Plugin_Initialize" at 64, 16 {}

    EventDestroy = "PJRT_Event_Destroy" at 80, 24 { event: *mut RawEvent = 16 }
    EventIsReady = "PJRT_Event_IsReady" at 88, 25 { event: *mut RawEvent = 16, is_ready: bool = 24 }
    EventAwait = "PJRT_Event_Await" at 104, 24 { event: *mut RawEvent = 16 }

    ClientCreate = "PJRT_Client_Create" at 120, 88 {
        create_options: *const NamedValue = 16, num_options: usize = 24,
        kv_get_callback: *mut c_void = 32, kv_get_user_arg: *mut c_void = 40,
        kv_put_callback: *mut c_void = 48, kv_put_user_arg: *mut c_void = 56,
        client: *mut RawClient = 64,
        kv_try_get_callback: *mut c_void = 72, kv_try_get_user_arg: *mut c_void = 80,
    }
    ClientDestroy = "PJRT_Client_Destroy" at 128, 24 { client: *mut RawClient = 16 }
    ClientPlatformName = "PJRT_Client_PlatformName" at 136, 40 {
        client: *mut RawClient = 16, platform_name: *const u8 = 24, platform_name_size: usize = 32,
    }
    ClientPlatformVersion = "PJRT_Client_PlatformVersion" at 152, 40 {
        client: *mut RawClient = 16, platform_version: *const u8 = 24, platform_version_size: usize = 32,
    }
    ClientAddressableDevices = "PJRT_Client_AddressableDevices" at 168, 40 {
        client: *mut RawClient = 16, addressable_devices: *const *mut RawDevice = 24, num_addressable_devices: usize = 32,
    }
    ClientCompile = "PJRT_Client_Compile" at 200, 56 {
        client: *mut RawClient = 16, program: *const Program = 24,
        compile_options: *const u8 = 32, compile_options_size: usize = 40,
        executable: *mut RawLoaded = 48,
    }
    BufferFromHostBuffer = "PJRT_Client_BufferFromHostBuffer" at 216, 120 {
        client: *mut RawClient = 16, data: *const c_void = 24, element_type: c_int = 32,
        dims: *const i64 = 40, num_dims: usize = 48,
        byte_strides: *const i64 = 56, num_byte_strides: usize = 64,
        host_buffer_semantics: c_int = 72, device: *mut RawDevice = 80, memory: *mut c_void = 88,
        device_layout: *mut MemoryLayout = 96,
        done_with_host_buffer: *mut RawEvent = 104, buffer: *mut RawBuffer = 112,
    }

    DeviceDescriptionId = "PJRT_DeviceDescription_Id" at 224, 28 { description: *mut RawDescription = 16, id: c_int = 24 }
    DeviceDescriptionAttributes = "PJRT_DeviceDescription_Attributes" at 240, 40 {
        description: *mut RawDescription = 16, num_attributes: usize = 24, attributes: *const NamedValue = 32,
    }
    DeviceGetDescription = "PJRT_Device_GetDescription" at 272, 32 { device: *mut RawDevice = 16, description: *mut RawDescription = 24 }
    DeviceAddressableMemories = "PJRT_Device_AddressableMemories" at 296, 40 {
        device: *mut RawDevice = 16, memories: *const *mut RawMemory = 24, num_memories: usize = 32,
    }
    DeviceDefaultMemory = "PJRT_Device_DefaultMemory" at 304, 32 { device: *mut RawDevice = 16, memory: *mut RawMemory = 24 }
    MemoryKind = "PJRT_Memory_Kind" at 328, 40 { memory: *mut RawMemory = 16, kind: *const u8 = 24, kind_size: usize = 32 }

    ExecutableDestroy = "PJRT_Executable_Destroy" at 360, 24 { executable: *mut RawExecutable = 16 }
    ExecutableNumOutputs = "PJRT_Executable_NumOutputs" at 392, 32 { executable: *mut RawExecutable = 16, num_outputs: usize = 24 }
    ExecutableGetCostAnalysis = "PJRT_Executable_GetCostAnalysis" at 408, 40 {
        executable: *mut RawExecutable = 16, num_properties: usize = 24, properties: *const NamedValue = 32,
    }
    ExecutableOptimizedProgram = "PJRT_Executable_OptimizedProgram" at 424, 32 {
        executable: *mut RawExecutable = 16, program: *mut Program = 24,
    }
    ExecutableSerialize = "PJRT_Executable_Serialize" at 432, 56 {
        executable: *const RawExecutable = 16, serialized_bytes: *const u8 = 24, serialized_bytes_size: usize = 32,
        serialized_executable: *mut c_void = 40,
        serialized_executable_deleter: Option<unsafe extern "C" fn(*mut c_void)> = 48,
    }
    LoadedDestroy = "PJRT_LoadedExecutable_Destroy" at 440, 24 { executable: *mut RawLoaded = 16 }
    LoadedGetExecutable = "PJRT_LoadedExecutable_GetExecutable" at 448, 32 {
        loaded_executable: *mut RawLoaded = 16, executable: *mut RawExecutable = 24,
    }
    LoadedExecute = "PJRT_LoadedExecutable_Execute" at 480, 80 {
        executable: *mut RawLoaded = 16, options: *mut ExecuteOptions = 24,
        argument_lists: *const *const *mut RawBuffer = 32, num_devices: usize = 40, num_args: usize = 48,
        output_lists: *const *mut *mut RawBuffer = 56, device_complete_events: *mut *mut RawEvent = 64,
        execute_device: *mut RawDevice = 72,
    }
    DeserializeAndLoad = "PJRT_Executable_DeserializeAndLoad" at 488, 72 {
        client: *mut RawClient = 16, serialized_executable: *const u8 = 24, serialized_executable_size: usize = 32,
        loaded_executable: *mut RawLoaded = 40,
        overridden_compile_options: *const u8 = 48, overridden_compile_options_size: usize = 56,
        load_options: *mut c_void = 64,
    }

    BufferDestroy = "PJRT_Buffer_Destroy" at 504, 24 { buffer: *mut RawBuffer = 16 }
    BufferToHostBuffer = "PJRT_Buffer_ToHostBuffer" at 600, 56 {
        src: *mut RawBuffer = 16, host_layout: *mut MemoryLayout = 24,
        dst: *mut c_void = 32, dst_size: usize = 40, event: *mut RawEvent = 48,
    }
    BufferReadyEvent = "PJRT_Buffer_ReadyEvent" at 616, 32 { buffer: *mut RawBuffer = 16, event: *mut RawEvent = 24 }

    TopologyCreate = "PJRT_TopologyDescription_Create" at 696, 56 {
        name: *const u8 = 16, name_size: usize = 24, create_options: *const NamedValue = 32, num_options: usize = 40,
        topology: *mut RawTopology = 48,
    }
    TopologyDestroy = "PJRT_TopologyDescription_Destroy" at 704, 24 { topology: *mut RawTopology = 16 }
    TopologyPlatformName = "PJRT_TopologyDescription_PlatformName" at 712, 40 {
        topology: *mut RawTopology = 16, platform_name: *const u8 = 24, platform_name_size: usize = 32,
    }
    TopologyGetDeviceDescriptions = "PJRT_TopologyDescription_GetDeviceDescriptions" at 728, 40 {
        topology: *mut RawTopology = 16, descriptions: *const *mut RawDescription = 24, num_descriptions: usize = 32,
    }
    Compile = "PJRT_Compile" at 752, 64 {
        topology: *const RawTopology = 16, program: *const Program = 24,
        compile_options: *const u8 = 32, compile_options_size: usize = 40,
        client: *mut RawClient = 48, executable: *mut RawExecutable = 56,
    }
    ExecutableOutputElementTypes = "PJRT_Executable_OutputElementTypes" at 760, 40 {
        executable: *mut RawExecutable = 16, output_types: *const c_int = 24, num_output_types: usize = 32,
    }
    ExecutableOutputDimensions = "PJRT_Executable_OutputDimensions" at 768, 48 {
        executable: *mut RawExecutable = 16, num_outputs: usize = 24, dims: *const i64 = 32, dim_sizes: *const usize = 40,
    }
    BufferCopyToMemory = "PJRT_Buffer_CopyToMemory" at 776, 40 {
        buffer: *mut RawBuffer = 16, dst_memory: *mut RawMemory = 24, dst_buffer: *mut RawBuffer = 32,
    }
    ExecutableGetCompiledMemoryStats = "PJRT_Executable_GetCompiledMemoryStats" at 808, 144 {
        executable: *mut RawExecutable = 16,
        generated_code: i64 = 24, argument: i64 = 32, output: i64 = 40, alias: i64 = 48, temp: i64 = 56,
        host_generated_code: i64 = 64, host_argument: i64 = 72, host_output: i64 = 80, host_alias: i64 = 88, host_temp: i64 = 96,
        peak_memory: i64 = 104, total_size: i64 = 112, total_allocation: i64 = 120,
        indefinite_allocations: i64 = 128, peak_unpadded_heap: i64 = 136,
    }
}

layout!(NamedValue, 56 {
    name: *const u8 = 16, name_size: usize = 24, kind: c_int = 32,
    // A union in C; this crate passes 64-bit integers and texts, and reads what `NamedValue::value` knows.
    value: i64 = 40, value_size: usize = 48,
});

impl NamedValue {
    /// A text, which must outlive this.
    pub(crate) fn of_text(name: &str, value: &str) -> NamedValue {
        let mut this = NamedValue::new();
        (this.name, this.name_size) = (name.as_ptr(), name.len());
        (this.kind, this.value_size) = (NAMED_VALUE_STRING, value.len());
        // The union's arm for texts is a pointer, as wide as the integer.
        this.value = value.as_ptr().expose_provenance() as i64;
        this
    }

    /// A 64-bit integer, if it is one.
    pub(crate) fn int64(&self) -> Option<i64> {
        (self.kind == NAMED_VALUE_INT64).then_some(self.value)
    }

    /// A floating-point number, if it is one.
    pub(crate) fn float(&self) -> Option<f64> {
        // SAFETY: the plugin says that the union's first four bytes are an `f32`; the others need not be anything.
        (self.kind == NAMED_VALUE_FLOAT)
            .then(|| f64::from(unsafe { (&raw const self.value).cast::<f32>().read() }))
    }
}

/// `NamedValue::kind` of a text, whose address is the value.
pub(crate) const NAMED_VALUE_STRING: c_int = 0;
/// `NamedValue::kind` of a 64-bit integer.
pub(crate) const NAMED_VALUE_INT64: c_int = 1;
/// `NamedValue::kind` of an `f32`, which takes the first half of the value.
pub(crate) const NAMED_VALUE_FLOAT: c_int = 3;

layout!(Program, 48 { code: *const u8 = 16, code_size: usize = 24, format: *const u8 = 32, format_size: usize = 40 });

layout!(ExecuteOptions, 144 {
    send_callbacks: *mut c_void = 16, recv_callbacks: *mut c_void = 24, num_send_ops: usize = 32, num_recv_ops: usize = 40,
    launch_id: c_int = 48,
    non_donatable_input_indices: *const i64 = 56, num_non_donatable_input_indices: usize = 64,
    context: *mut c_void = 72, call_location: *const c_char = 80,
    num_tasks: usize = 88, task_ids: *mut c_void = 96, incarnation_ids: *mut c_void = 104, multi_slice_config: *mut c_void = 112,
    use_major_to_minor_data_layout_for_callbacks: bool = 120,
    hlo_output_callbacks: *mut c_void = 128, num_hlo_output_callbacks: usize = 136,
});

// The tiled arm of a union; the strided arm is shorter and not used.
layout!(MemoryLayout, 76 {
    tiled_struct_size: usize = 16, tiled_extension_start: *mut c_void = 24,
    minor_to_major: *const i64 = 32, minor_to_major_size: usize = 40,
    tile_dims: *const i64 = 48, tile_dim_sizes: *const usize = 56, num_tiles: usize = 64,
    kind: c_int = 72,
});

/// `MemoryLayout::tiled_struct_size`.
pub(crate) const TILED_LAYOUT_SIZE: usize = 56;
/// `MemoryLayout::kind` of the tiled arm.
pub(crate) const TILED_LAYOUT: c_int = 0;

/// The plugin copies the host bytes before the call returns (or before its event fires).
pub(crate) const IMMUTABLE_ONLY_DURING_CALL: c_int = 0;

pub(crate) mod ffi;

#[cfg(test)]
mod tests;
