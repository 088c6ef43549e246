//! The one function that plugins know, and the table of kernels behind it.

use std::{
    any::Any,
    collections::{HashMap, hash_map},
    ffi::CString,
    panic::{self, AssertUnwindSafe},
    ptr,
    sync::{LazyLock, RwLock},
};

use super::{Kernel, KernelCall, attributes::Attributes, watch};
use crate::{
    Error, Module, Platform, Result,
    abi::ffi::{self, CallFrame, Extension, MetadataExtension, RawFfiError},
    client::ClientInner,
};

/// Every kernel that a compiled module has listed, by name.
static KERNELS: LazyLock<RwLock<HashMap<&'static str, &'static Kernel>>> =
    LazyLock::new(RwLock::default);

/// The attribute that says which kernel is called.
const NAME: &str = "kernel";

/// Makes the module's kernels known, to this process and to the plugin. Also needed before a program is loaded from the cache.
pub(crate) fn prepare(client: &ClientInner, module: &Module) -> Result<()> {
    if module.kernels.is_empty() {
        return Ok(());
    }
    check_platform(module, Platform::from_name(client.platform_name()))?;
    for &kernel in &module.kernels {
        add(kernel)?;
    }
    client.plugin.take_kernels(handle)
}

/// Refuses kernels for anything but the CPU.
pub(crate) fn check_platform(module: &Module, platform: Platform) -> Result<()> {
    match module.kernels.first() {
        Some(kernel) if platform != Platform::Cpu => Err(Error::KernelPlatform {
            module: module.name.clone(),
            kernel: kernel.name,
            platform,
        }),
        _ => Ok(()),
    }
}

fn add(kernel: &'static Kernel) -> Result<()> {
    // A panic cannot leave the table half changed.
    let mut kernels = KERNELS
        .write()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    match kernels.entry(kernel.name) {
        hash_map::Entry::Vacant(place) => {
            place.insert(kernel);
            Ok(())
        }
        hash_map::Entry::Occupied(there)
            if ptr::eq(*there.get(), kernel) || ptr::fn_addr_eq(there.get().run, kernel.run) =>
        {
            Ok(())
        }
        hash_map::Entry::Occupied(_) => Err(Error::KernelTwice { name: kernel.name }),
    }
}

fn find(name: &[u8]) -> Option<&'static Kernel> {
    let kernels = KERNELS
        .read()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    kernels.get(str::from_utf8(name).ok()?).copied()
}

/// Called by XLA, from any thread.
///
/// # Safety
/// `frame` must be a call frame of XLA's foreign function interface.
unsafe extern "C" fn handle(frame: *mut CallFrame) -> *mut RawFfiError {
    // SAFETY: XLA keeps the frame and all it points to until this returns, and gives us no other way to it.
    let frame = unsafe { &*frame };
    // SAFETY: as above.
    if unsafe { answer_metadata(frame) } || frame.stage != ffi::STAGE_EXECUTE {
        return ptr::null_mut();
    }
    // What a kernel may have left half done is its own: it keeps nothing between calls, and the outputs of a failed run are not read.
    // SAFETY: as above.
    let result = panic::catch_unwind(AssertUnwindSafe(|| unsafe { run(frame) }));
    let Err(message) = result.unwrap_or_else(|payload| Err(words_of(&*payload))) else {
        return ptr::null_mut();
    };
    // SAFETY: as above.
    unsafe { error(frame, &message) }
}

/// Registration asks a function which version of the interface it was written for. Ours uses nothing that has ever changed, so it
/// is for the plugin's own.
///
/// # Safety
/// `frame` must be a live call frame.
unsafe fn answer_metadata(frame: &CallFrame) -> bool {
    let mut extension: *mut Extension = frame.extension_start;
    // SAFETY: the list ends with null; an extension of this kind has this layout, and its metadata is ours to write.
    unsafe {
        while !extension.is_null() {
            if (*extension).kind == ffi::METADATA_EXTENSION {
                let metadata = (*extension.cast::<MetadataExtension>()).metadata;
                let version = &(*frame.api).version;
                (*metadata).version.major = version.major;
                (*metadata).version.minor = version.minor;
                (*metadata).traits = 0;
                return true;
            }
            extension = (*extension).next;
        }
    }
    false
}

/// # Safety
/// `frame` must be a live call frame with work to do.
unsafe fn run(frame: &CallFrame) -> Result<(), String> {
    // SAFETY: passed on to the caller.
    let name = unsafe { Attributes::of(&frame.attrs) }.text(NAME)?;
    let named = |message: String| format!("kernel '{}': {message}", String::from_utf8_lossy(name));
    let unknown = || named("no module that was compiled in this process lists it".to_owned());
    let kernel = find(name).ok_or_else(unknown)?;
    // SAFETY: passed on to the caller.
    let mut call = unsafe { KernelCall::of(frame) }.map_err(named)?;
    let result = panic::catch_unwind(AssertUnwindSafe(|| (kernel.run)(&mut call)));
    let result = result
        .unwrap_or_else(|payload| Err(format!("panicked: {}", words_of(&*payload))))
        .and_then(|()| call.check_truth_values())
        .map_err(named);
    match result {
        Err(message) if watch::keep(kernel, &message) => {
            call.poison();
            Ok(())
        }
        result => result,
    }
}

/// What a panic said, if it was words.
fn words_of(payload: &(dyn Any + Send)) -> String {
    match (
        payload.downcast_ref::<&str>(),
        payload.downcast_ref::<String>(),
    ) {
        (Some(words), _) => (*words).to_owned(),
        (_, Some(words)) => words.clone(),
        _ => "a panic without a message".to_owned(),
    }
}

/// # Safety
/// `frame` must be a live call frame.
unsafe fn error(frame: &CallFrame, message: &str) -> *mut RawFfiError {
    // C ends texts at a zero byte.
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    let mut args = ffi::ErrorCreate::new();
    (args.message, args.code) = (message.as_ptr(), ffi::CODE_INTERNAL);
    // SAFETY: the API outlives the call, and copies the message.
    unsafe {
        match (*frame.api).error_create {
            Some(create) => create(&mut args),
            // Nothing is left but to end the process: to say that all went well would be a lie.
            None => std::process::abort(),
        }
    }
}
