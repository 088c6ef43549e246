//! What kind of device a program is for.

use std::fmt;

/// A kind of device. The text of a program may differ between kinds where one does badly what another does well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Platform {
    /// The host's processor, as one or several virtual devices.
    Cpu,
    /// A graphics processor of any vendor.
    Gpu,
    /// A tensor processor.
    Tpu,
}

impl Platform {
    /// From the name that a plugin gives itself. Everything that is neither the host nor a TPU is taken for a GPU.
    pub(crate) fn from_name(name: &str) -> Platform {
        match name.to_ascii_lowercase().as_str() {
            "cpu" | "host" => Platform::Cpu,
            name if name.starts_with("tpu") => Platform::Tpu,
            _ => Platform::Gpu,
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Platform::Cpu => "cpu",
            Platform::Gpu => "gpu",
            Platform::Tpu => "tpu",
        })
    }
}
