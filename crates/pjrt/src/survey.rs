//! What is there, without fetching anything: for a `doctor` to print.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use crate::{
    PinnedPlugin, Plugin, Result, cache, compiled, cuda,
    pinned::{self, Found},
};

/// The answer of [`survey`].
#[derive(Debug)]
pub struct Survey {
    /// Where [`Plugin::cpu`] would take the plugin from.
    pub source: PluginSource,
    /// The plugin, loaded, or why it does not load; `None` when it would have to be fetched or there is none.
    pub plugin: Option<Result<Plugin>>,
    /// Where [`Plugin::tpu`] would take the TPU plugin from; it is optional, and not loaded.
    pub tpu: PluginSource,
    /// Where [`Plugin::cuda`] would take the CUDA plugin from; it is optional, and not loaded. `None` when it is not here.
    pub cuda: Option<PluginSource>,
    /// The user's cache; `None` when the environment names no place for one.
    pub cache: Option<CacheSurvey>,
}

/// Where [`Plugin::cpu`], [`Plugin::tpu`] or [`Plugin::cuda`] would take the plugin from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PluginSource {
    /// The file that `FERROTUNE_PJRT_PLUGIN`, `FERROTUNE_TPU_PLUGIN` or `FERROTUNE_CUDA_PLUGIN` names.
    Variable(PathBuf),
    /// The user's cache.
    Cached(PathBuf),
    /// A package of the active Python.
    Installed(PathBuf),
    /// It would be fetched from the package index.
    Fetch(PinnedPlugin),
    /// Nowhere: there is no pinned plugin for this platform.
    Nowhere {
        /// The operating system.
        os: &'static str,
        /// The processor.
        arch: &'static str,
    },
}

/// The user's cache directory and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSurvey {
    /// Where it is; it may not exist yet.
    pub directory: PathBuf,
    /// Size of the fetched plugins, in bytes.
    pub plugin_bytes: u64,
    /// Number of compiled programs.
    pub compiled_entries: usize,
    /// Size of the compiled programs, in bytes.
    pub compiled_bytes: u64,
}

/// Says which plugins would be used and what the cache holds. Fetches nothing.
#[must_use]
pub fn survey() -> Survey {
    let source = source(PinnedPlugin::Default);
    let plugin = match &source {
        PluginSource::Variable(path)
        | PluginSource::Cached(path)
        | PluginSource::Installed(path) => Some(Plugin::at(path)),
        PluginSource::Fetch(_) | PluginSource::Nowhere { .. } => None,
    };
    Survey {
        source,
        plugin,
        tpu: self::source(PinnedPlugin::Tpu),
        cuda: cuda::find(),
        cache: cache::directory().map(survey_cache),
    }
}

fn source(which: PinnedPlugin) -> PluginSource {
    if let Some(path) = which.pin().named_by_user() {
        return PluginSource::Variable(path);
    }
    if !pinned::platform_has_one() {
        return PluginSource::Nowhere {
            os: env::consts::OS,
            arch: env::consts::ARCH,
        };
    }
    match which.pin().find() {
        Some(Found::Cached(path)) => PluginSource::Cached(path),
        Some(Found::Installed(path)) => PluginSource::Installed(path),
        None => PluginSource::Fetch(which),
    }
}

fn survey_cache(directory: PathBuf) -> CacheSurvey {
    let (compiled_entries, compiled_bytes) = compiled::inventory(&directory);
    let plugin_bytes = size_of_tree(&directory.join("plugins"), 2);
    CacheSurvey {
        directory,
        plugin_bytes,
        compiled_entries,
        compiled_bytes,
    }
}

/// Bytes of all files below a folder, as deep as the cache goes.
fn size_of_tree(folder: &Path, depth: usize) -> u64 {
    let Ok(listing) = fs::read_dir(folder) else {
        return 0;
    };
    let sizes = listing.filter_map(|entry| {
        let entry = entry.ok()?;
        let metadata = entry.metadata().ok()?;
        match metadata.is_dir() {
            true if depth > 0 => Some(size_of_tree(&entry.path(), depth - 1)),
            true => None,
            false => Some(metadata.len()),
        }
    });
    sizes.sum()
}
