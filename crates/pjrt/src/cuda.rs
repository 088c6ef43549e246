//! The CUDA plugin, found where the user has it: it is never fetched, being large and of no use without its companions.

use std::path::PathBuf;

use crate::{Error, Plugin, PluginSource, Result, pinned::installed_file};

/// The environment variable that names a CUDA plugin's file.
const VARIABLE: &str = "FERROTUNE_CUDA_PLUGIN";
const MODULE: &str = "jax_plugins.xla_cuda13";
const FILE: &str = "xla_cuda_plugin.so";

/// Where the plugin is, if anywhere.
pub(crate) fn find() -> Option<PluginSource> {
    let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    named
        .map(|path| PluginSource::Variable(PathBuf::from(path)))
        .or_else(|| {
            let path = installed_file(MODULE, FILE)?;
            path.is_file().then_some(PluginSource::Installed(path))
        })
}

impl Plugin {
    /// The XLA CUDA plugin, to compile for a [`Topology::gpu`](crate::Topology::gpu) without having a GPU: the file that
    /// `FERROTUNE_CUDA_PLUGIN` names, else that of the package `jax-cuda13-pjrt` in the active Python. Compiling needs NVIDIA's
    /// assembler, from the packages `nvidia-cuda-nvcc` and `nvidia-nvvm`, in the same `site-packages`. Nothing is fetched.
    ///
    /// # Errors
    /// [`Error::NoCudaPlugin`], and those of [`Plugin::at`].
    pub fn cuda() -> Result<Plugin> {
        match find() {
            Some(PluginSource::Variable(path) | PluginSource::Installed(path)) => Plugin::at(path),
            _ => Err(Error::NoCudaPlugin { variable: VARIABLE }),
        }
    }
}
