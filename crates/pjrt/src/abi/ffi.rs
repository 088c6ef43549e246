//! Memory layouts of XLA's foreign function interface (API 0.1 to 0.4): how a program calls a function of this process.
//!
//! What the plugin hands over is declared as far as it is read, which every version has; what is handed to the plugin, in full.
//! Offsets are checked at compile time, as for the PJRT C API.

use std::ffi::{c_char, c_int, c_void};

use super::RawError;

opaque!(RawFfiError);

/// A struct that the plugin makes; only its beginning may be declared.
macro_rules! view {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty = $offset:literal),* $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }

        const _: () = { $(assert!(std::mem::offset_of!($name, $field) == $offset);)* };
    };
}

view!(
    /// The beginning of every extension, of the PJRT table and of a call frame alike.
    Extension { struct_size: usize = 0, kind: c_int = 8, next: *mut Extension = 16 }
);

/// `Extension::kind` of [`FfiExtension`] in the PJRT table.
pub(crate) const FFI_EXTENSION: c_int = 5;

view!(
    /// The extension of the PJRT table that takes functions.
    FfiExtension {
        base: Extension = 0, type_register: *mut c_void = 24, user_data_add: *mut c_void = 32,
        register_handler: Option<unsafe extern "C" fn(*mut RegisterHandler) -> *mut RawError> = 40,
    }
);

const _: () = assert!(size_of::<FfiExtension>() == 48);

/// The function that XLA calls.
pub(crate) type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut RawFfiError;

view!(
    /// Argument of `FfiExtension::register_handler`.
    RegisterHandler {
        struct_size: usize = 0, target_name: *const u8 = 8, target_name_size: usize = 16,
        handler: Handler = 24,
        platform_name: *const u8 = 32, platform_name_size: usize = 40, traits: c_int = 48,
    }
);

/// `RegisterHandler::struct_size`: the end of the last field.
pub(crate) const REGISTER_HANDLER_SIZE: usize = 52;

view!(
    /// One call.
    CallFrame {
        struct_size: usize = 0, extension_start: *mut Extension = 8, api: *const Api = 16, context: *mut c_void = 24,
        stage: c_int = 32, args: Buffers = 40, rets: Buffers = 80, attrs: Attrs = 120,
    }
);

/// `CallFrame::stage` when there is work to do.
pub(crate) const STAGE_EXECUTE: c_int = 3;

view!(
    /// Arguments or results.
    Buffers {
        struct_size: usize = 0, extension_start: *mut c_void = 8,
        size: i64 = 16, kinds: *const c_int = 24, buffers: *const *const Buffer = 32,
    }
);

const _: () = assert!(size_of::<Buffers>() == 40);

/// An element of `Buffers::kinds`: the only kind there is.
pub(crate) const BUFFER: c_int = 1;

view!(Buffer {
    struct_size: usize = 0, extension_start: *mut c_void = 8,
    dtype: c_int = 16, data: *mut u8 = 24, rank: i64 = 32, dims: *const i64 = 40,
});

view!(Attrs {
    struct_size: usize = 0, extension_start: *mut c_void = 8,
    size: i64 = 16, kinds: *const c_int = 24, names: *const *const ByteSpan = 32, values: *const *const c_void = 40,
});

const _: () = assert!(size_of::<Attrs>() == 48);

/// An element of `Attrs::kinds`: the value is an [`AttrArray`].
pub(crate) const ATTR_ARRAY: c_int = 1;
/// The value is an [`AttrScalar`].
pub(crate) const ATTR_SCALAR: c_int = 3;
/// The value is a [`ByteSpan`].
pub(crate) const ATTR_STRING: c_int = 4;

view!(ByteSpan { data: *const u8 = 0, len: usize = 8 });
view!(AttrScalar { dtype: c_int = 0, value: *const c_void = 8 });
view!(AttrArray { dtype: c_int = 0, size: usize = 8, data: *const c_void = 16 });

view!(
    /// What the plugin offers to the function.
    Api {
        struct_size: usize = 0, extension_start: *mut c_void = 8, version: ApiVersion = 16, internal: *mut c_void = 40,
        error_create: Option<unsafe extern "C" fn(*mut ErrorCreate) -> *mut RawFfiError> = 48,
    }
);

view!(ApiVersion { struct_size: usize = 0, extension_start: *mut c_void = 8, major: c_int = 16, minor: c_int = 20 });

const _: () = assert!(size_of::<ApiVersion>() == 24);

layout!(ErrorCreate, 28 { message: *const c_char = 16, code: c_int = 24 });

/// `ErrorCreate::code`: the same number as in `absl::StatusCode`.
pub(crate) const CODE_INTERNAL: c_int = 13;

/// `Extension::kind` of [`MetadataExtension`] in a call frame.
pub(crate) const METADATA_EXTENSION: c_int = 1;

view!(
    /// Asks which version of the interface the function was written for.
    MetadataExtension { base: Extension = 0, metadata: *mut Metadata = 24 }
);

view!(Metadata {
    struct_size: usize = 0,
    version: ApiVersion = 8,
    traits: u32 = 32
});
