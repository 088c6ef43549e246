//! Calling the plugin: look a function up, call it, turn its error into ours; events.
//!
//! Knows nothing of what the functions mean.

use std::{
    ffi::c_int,
    ptr::{self, NonNull},
};

use crate::{
    Error, ErrorCode, Result,
    abi::{self, Call, ffi},
};

/// A plugin's function table. The library behind it is never unloaded, so the table lives as long as the process.
#[derive(Clone, Copy)]
pub(crate) struct Api(NonNull<abi::Table>);

// SAFETY: the table is immutable after loading, and the PJRT C API may be called from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    /// # Safety
    /// `table` must be what `GetPjrtApi` of a library returned, and the library must never be unloaded.
    pub(crate) unsafe fn new(table: NonNull<abi::Table>) -> Api {
        Api(table)
    }

    pub(crate) fn version(self) -> (c_int, c_int) {
        // SAFETY: by `new` the table is live; its header has had this layout since the API's first version.
        let table = unsafe { self.0.as_ref() };
        (table.major, table.minor)
    }

    /// The function that takes `A`, if this plugin has it.
    fn function<A: Call>(self) -> Result<abi::Function> {
        // SAFETY: as in `version`.
        let size = unsafe { self.0.as_ref() }.struct_size;
        let present = if A::OFFSET + size_of::<abi::Function>() <= size {
            // SAFETY: the slot lies inside the table by the check above, is pointer-aligned, and a null pointer reads as `None`.
            unsafe {
                self.0
                    .as_ptr()
                    .byte_add(A::OFFSET)
                    .cast::<Option<abi::Function>>()
                    .read()
            }
        } else {
            None
        };
        present.ok_or(Error::MissingFunction {
            function: A::NAME,
            version: self.version(),
        })
    }

    /// Calls the function that takes `A`.
    ///
    /// # Safety
    /// Every pointer in `args` must be what the C header asks for: live handles of this plugin, and memory of the stated length.
    #[inline]
    pub(crate) unsafe fn call<A: Call>(self, args: &mut A) -> Result<()> {
        let function = self.function::<A>()?;
        // SAFETY: `A` has the layout that this function expects (`Call`), and the caller vouches for its contents.
        let error = unsafe { function(ptr::from_mut(args).cast()) };
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: a non-null result is an error that we own.
        Err(unsafe { self.take_error(error, A::NAME) })
    }

    /// Calls a destructor, which has nothing useful to say.
    ///
    /// # Safety
    /// As for [`Api::call`]; the handle in `args` is dead afterwards.
    pub(crate) unsafe fn destroy<A: Call>(self, mut args: A) {
        // A plugin without the destructor, or one that refuses, leaks; there is nobody to tell from inside a `drop`.
        // SAFETY: passed on to the caller.
        let _ = unsafe { self.call(&mut args) };
    }

    /// Calls a function that the C header declares `void`: what it leaves in the result register means nothing.
    ///
    /// # Safety
    /// As for [`Api::call`].
    unsafe fn call_void<A: Call>(self, args: &mut A) {
        if let Ok(function) = self.function::<A>() {
            // SAFETY: passed on to the caller; the result is not looked at.
            let _ = unsafe { function(ptr::from_mut(args).cast()) };
        }
    }

    /// Registers a function that programs on the CPU may call, under a name.
    pub(crate) fn register_handler(self, target: &str, handler: ffi::Handler) -> Result<()> {
        const PLATFORM: &str = "Host";
        let register = self.handler_registry().ok_or(Error::NoKernels {
            version: self.version(),
        })?;
        let mut args = ffi::RegisterHandler {
            struct_size: ffi::REGISTER_HANDLER_SIZE,
            target_name: target.as_ptr(),
            target_name_size: target.len(),
            handler,
            platform_name: PLATFORM.as_ptr(),
            platform_name_size: PLATFORM.len(),
            traits: 0,
        };
        // SAFETY: the texts outlive the call, which copies them; a handler is code, which is never unloaded.
        let error = unsafe { register(&mut args) };
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: a non-null result is an error that we own.
        Err(unsafe { self.take_error(error, "PJRT_FFI_Register_Handler") })
    }

    /// The function that takes handlers, from the table's list of extensions.
    fn handler_registry(
        self,
    ) -> Option<unsafe extern "C" fn(*mut ffi::RegisterHandler) -> *mut abi::RawError> {
        // SAFETY: by `new` the table is live; so is the list, which ends with null. An extension of this kind has this layout if it
        // is as long.
        unsafe {
            let mut extension: *const ffi::Extension = self.0.as_ref().extension_start.cast();
            while !extension.is_null() {
                if (*extension).kind == ffi::FFI_EXTENSION
                    && (*extension).struct_size >= size_of::<ffi::FfiExtension>()
                {
                    return (*extension.cast::<ffi::FfiExtension>()).register_handler;
                }
                extension = (*extension).next;
            }
        }
        None
    }

    /// # Safety
    /// `error` must be a live error of this plugin; it is destroyed.
    unsafe fn take_error(self, error: *mut abi::RawError, function: &'static str) -> Error {
        let mut text = abi::ErrorMessage::new();
        text.error = error;
        let mut code = abi::ErrorGetCode::new();
        code.error = error;
        // SAFETY: `error` is live, and the argument structs are the right ones. Asking for the code of a live error does not
        // fail, so `call` cannot recurse into this function.
        unsafe {
            self.call_void(&mut text);
            let _ = self.call(&mut code);
        }
        let message = if text.message.is_null() {
            "(the plugin gave no message)".to_owned()
        } else {
            // SAFETY: the plugin says that the message is this long, and it lives as long as the error.
            let bytes = unsafe { std::slice::from_raw_parts(text.message, text.message_size) };
            String::from_utf8_lossy(bytes).trim_end().to_owned()
        };
        let mut destroy = abi::ErrorDestroy::new();
        destroy.error = error;
        // SAFETY: `error` is live and not used again.
        unsafe { self.call_void(&mut destroy) };
        Error::Xla {
            function,
            code: ErrorCode::from_raw(code.code),
            message,
        }
    }
}

/// An event of the plugin, destroyed when dropped.
pub(crate) struct Event {
    api: Api,
    raw: *mut abi::RawEvent,
}

// SAFETY: the PJRT C API allows events to be used from any thread at once.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// # Safety
    /// `raw` must be null (an event that has already happened) or a live event of this plugin that nobody else destroys.
    pub(crate) unsafe fn new(api: Api, raw: *mut abi::RawEvent) -> Event {
        Event { api, raw }
    }

    /// Blocks until it has happened, and says whether what it stood for failed.
    pub(crate) fn wait(&self) -> Result<()> {
        if self.raw.is_null() {
            return Ok(());
        }
        let mut args = abi::EventAwait::new();
        args.event = self.raw;
        // SAFETY: the event is live until `self` is dropped.
        unsafe { self.api.call(&mut args) }
    }

    pub(crate) fn is_ready(&self) -> Result<bool> {
        if self.raw.is_null() {
            return Ok(true);
        }
        let mut args = abi::EventIsReady::new();
        args.event = self.raw;
        // SAFETY: the event is live until `self` is dropped.
        unsafe { self.api.call(&mut args) }?;
        Ok(args.is_ready)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        let mut args = abi::EventDestroy::new();
        args.event = self.raw;
        // SAFETY: we own the event, and it is not used again.
        unsafe { self.api.destroy(args) };
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::{self, NonNull};

    use super::{Api, Error, abi, ffi};

    unsafe extern "C" fn handler(_: *mut ffi::CallFrame) -> *mut ffi::RawFfiError {
        ptr::null_mut()
    }

    #[test]
    fn a_plugin_without_the_extension_takes_no_kernels() {
        // A list with another extension only, and one that is too short to be read.
        let mut short = ffi::Extension {
            struct_size: 24,
            kind: ffi::FFI_EXTENSION,
            next: ptr::null_mut(),
        };
        let mut other = ffi::Extension {
            struct_size: 24,
            kind: 4,
            next: &mut short,
        };
        let mut table = abi::Table {
            struct_size: 40,
            extension_start: ptr::from_mut(&mut other).cast(),
            version_struct_size: 24,
            version_extension_start: ptr::null_mut(),
            major: 0,
            minor: 40,
        };
        // SAFETY: the table outlives the API, and has no functions.
        let api = unsafe { Api::new(NonNull::from(&mut table)) };
        let error = api.register_handler("x", handler).expect_err("it has none");
        assert!(matches!(error, Error::NoKernels { version: (0, 40) }));
    }
}
