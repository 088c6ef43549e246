//! The process environment that XLA reads: quieter logging, more patience between virtual devices, a TPU compiler without a TPU.
//!
//! XLA takes these settings from nowhere else. Whatever the user has set stands.

use std::{
    env,
    ffi::OsString,
    sync::{Mutex, MutexGuard, Once},
};

const LOG_LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";
pub(crate) const XLA_FLAGS: &str = "XLA_FLAGS";

/// XLA ends the process when a device waits longer than a minute for the others inside a collective (20 seconds, a warning, then
/// 40 more). Virtual devices that share a few busy cores exceed that on honest work. Measured: the same options in a compile
/// request have no effect, or crash.
const PATIENCE: [(&str, &str); 2] = [
    (
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds",
        "600",
    ),
    (
        "--xla_cpu_collective_call_terminate_timeout_seconds",
        "86400",
    ),
];

/// Turns off XLA's informational lines on standard error. Failures still come back as errors.
///
/// To be called before a plugin is loaded.
pub(crate) fn quieten() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if env::var_os(LOG_LEVEL).is_none() {
            // SAFETY: Rust code reads the environment under the standard library's lock. C code that does not is, in this
            // process, the plugins; this runs once, before the first of them is loaded.
            unsafe { env::set_var(LOG_LEVEL, "2") };
        }
    });
}

/// What a TPU plugin must find when it is loaded on a machine without TPUs.
const TPU: [(&str, &str); 8] = [
    // Otherwise it asks the cloud's metadata server for each of several facts, thirty times each, for minutes.
    ("TPU_SKIP_MDS_QUERY", "1"),
    // Otherwise a lock file lets one process at a time load the library, which matters for real TPUs only.
    ("ALLOW_MULTIPLE_LIBTPU_LOAD", "true"),
    // What the metadata server would have said; any value will do, and silences complaints on standard error.
    ("TPU_ACCELERATOR_TYPE", "v5litepod-4"),
    ("TPU_WORKER_HOSTNAMES", "localhost"),
    ("TPU_WORKER_ID", "0"),
    ("TPU_MIN_LOG_LEVEL", "3"),
    ("TPU_STDERR_LOG_LEVEL", "3"),
    ("TPU_LOG_DIR", "disabled"),
];

/// Tells a TPU plugin that there is no TPU. To be called before it is loaded.
pub(crate) fn without_tpu() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _guard = changing();
        for (name, value) in TPU {
            if env::var_os(name).is_none() {
                // SAFETY: as in `quieten`, but CPU plugins may be loaded by now. Those read the environment while their first
                // client is made, which `changing` keeps apart from this.
                unsafe { env::set_var(name, value) };
            }
        }
    });
}

/// Held while the environment is changed under plugins that may be loaded already.
fn changing() -> MutexGuard<'static, ()> {
    static CHANGING: Mutex<()> = Mutex::new(());
    CHANGING
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Runs `f`, which makes a plugin's first client, while `XLA_FLAGS` asks for patience; then puts the variable back, so that child
/// processes with an XLA of their own do not see flags they may not know.
pub(crate) fn with_patience<T>(f: impl FnOnce() -> T) -> T {
    let _guard = changing();
    let before = env::var_os(XLA_FLAGS);
    let Some(flags) = patient(before.clone()) else {
        return f();
    };
    // SAFETY: as in `quieten`, but plugins may be loaded by now. XLA reads the environment while a client is made, which is what
    // `f` does, and callers make first clients one at a time.
    unsafe { env::set_var(XLA_FLAGS, flags) };
    let result = f();
    // SAFETY: as above.
    unsafe {
        match before {
            Some(flags) => env::set_var(XLA_FLAGS, flags),
            None => env::remove_var(XLA_FLAGS),
        }
    }
    result
}

/// The flags with ours added, where the user has not said anything; `None` when there is nothing to add.
fn patient(flags: Option<OsString>) -> Option<String> {
    let mut flags = flags.unwrap_or_default().into_string().ok()?;
    // Anything that is not a list of flags names a file of them.
    if !flags.is_empty() && !flags.trim_start().starts_with('-') {
        return None;
    }
    let before = flags.len();
    for (flag, value) in PATIENCE {
        if !flags.contains(flag) {
            flags.push_str(&format!(" {flag}={value}"));
        }
    }
    (flags.len() > before).then(|| flags.trim_start().to_owned())
}

#[cfg(test)]
mod tests {
    use super::patient;

    #[test]
    fn patience_is_added_to_the_users_flags_and_never_replaces_them() {
        let text = |flags: &str| patient(Some(flags.into()));
        let added = text("").expect("both are missing");
        assert!(added.starts_with("--xla_cpu_collective_call_warn_stuck_timeout_seconds=600 --"));
        assert!(added.ends_with("terminate_timeout_seconds=86400"));
        let kept = text("--xla_a=1 --xla_cpu_collective_call_terminate_timeout_seconds=5")
            .expect("one is missing");
        assert!(
            kept.starts_with("--xla_a=1 --xla_cpu_collective_call_terminate_timeout_seconds=5 --")
        );
        assert_eq!(kept.matches("terminate").count(), 1);
        assert_eq!(text(&added), None);
        assert_eq!(text("/some/file"), None);
        assert_eq!(patient(None), Some(added));
    }
}
