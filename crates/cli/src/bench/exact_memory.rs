//! A process of its own, whose allocator keeps nothing back: its size is what is in use.

use std::process::Command;

use anyhow::anyhow;

use crate::failure::{Failure, OrFail};

/// A variable of the GNU C library: freed blocks of this size and more go back to the system at once.
const GIVE_BACK: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "65536");

/// Whether this process is one.
pub(super) fn is_on() -> bool {
    std::env::var_os(GIVE_BACK.0).is_some()
}

/// Runs this very command in such a process, with `more` arguments. `cure` says what to change where it needs too much memory.
pub(super) fn again(more: Option<String>, cure: &str) -> Result<(), Failure> {
    let status = Command::new(std::env::current_exe().or_fail()?)
        .args(std::env::args_os().skip(1))
        .args(more)
        .env(GIVE_BACK.0, GIVE_BACK.1)
        .status()
        .or_fail()?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => Err(Failure::Told(u8::try_from(code).unwrap_or(1))),
        None => Err(Failure::failed(anyhow!(
            "the bench was ended from outside ({status}), as a system does that runs out of memory: {cure}"
        ))),
    }
}
