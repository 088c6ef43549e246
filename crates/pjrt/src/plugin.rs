//! A plugin: a shared library that speaks the PJRT C API, loaded once per process.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    ptr::NonNull,
    sync::{Arc, LazyLock, Mutex},
};

use crate::{
    Error, Kernel, Result,
    abi::{PluginInitialize, Table, ffi::Handler},
    api::Api,
    digest, environment, pinned,
};

/// A loaded plugin. Cheap to clone; stays loaded until the process ends.
#[derive(Clone)]
pub struct Plugin(Arc<Inner>);

struct Inner {
    api: Api,
    name: String,
    path: PathBuf,
    sha256: String,
    /// Whether it has made a client; locked while the first is made.
    started: Mutex<bool>,
    /// Whether it knows the function behind all kernels.
    takes_kernels: Mutex<bool>,
}

/// Plugins by canonical path: a library is initialised once per process.
static LOADED: LazyLock<Mutex<HashMap<PathBuf, Plugin>>> = LazyLock::new(Mutex::default);

impl Plugin {
    /// Loads the plugin in this file.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::NotALibrary`], [`Error::Load`], [`Error::NotAPlugin`], [`Error::ApiVersion`]; [`Error::Xla`] when the
    /// plugin does not initialise.
    pub fn at(path: impl AsRef<Path>) -> Result<Plugin> {
        Plugin::open(path.as_ref(), false)
    }

    /// Loads a plugin that is said to be for TPUs, or that looks like it.
    pub(crate) fn open(given: &Path, tpu: bool) -> Result<Plugin> {
        let path = given
            .canonicalize()
            .map_err(Error::io("find the plugin", given))?;
        // A poisoned lock means that a load panicked; what is in the map is still good.
        let mut loaded = LOADED
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(plugin) = loaded.get(&path) {
            return Ok(plugin.clone());
        }
        let sha256 = digest::of_file_remembered(&path)?;
        if tpu || path.file_stem().is_some_and(|stem| stem == "libtpu") {
            environment::without_tpu();
        }
        let api = load(&path)?;
        let stem = || {
            path.file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        };
        let name = pinned::name_of(&sha256).unwrap_or_else(stem);
        let plugin = Plugin(Arc::new(Inner {
            api,
            name,
            path: path.clone(),
            sha256,
            started: Mutex::new(false),
            takes_kernels: Mutex::new(false),
        }));
        loaded.insert(path, plugin.clone());
        Ok(plugin)
    }

    /// The version of the PJRT C API that it speaks, major and minor.
    #[must_use]
    pub fn api_version(&self) -> (i32, i32) {
        self.0.api.version()
    }

    /// Where it was loaded from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The SHA-256 of the file, in hexadecimal.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.0.sha256
    }

    /// Package and version of a pinned plugin, otherwise the library's file name without extension.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn api(&self) -> Api {
        self.0.api
    }

    /// Registers the function behind all kernels, once.
    pub(crate) fn take_kernels(&self, handler: Handler) -> Result<()> {
        let mut taken = self
            .0
            .takes_kernels
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if !*taken {
            self.0.api.register_handler(Kernel::TARGET, handler)?;
            *taken = true;
        }
        Ok(())
    }

    /// Runs `make`, which makes a client. XLA reads its flags when the first one is made; a plugin that is not pinned may not know
    /// ours, and XLA ends the process over an unknown flag.
    pub(crate) fn start<T>(&self, make: impl FnOnce() -> T) -> T {
        let mut started = self
            .0
            .started
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if std::mem::replace(&mut *started, true) || !pinned::is_cpu(&self.0.sha256) {
            drop(started);
            return make();
        }
        environment::with_patience(make)
    }
}

fn load(path: &Path) -> Result<Api> {
    check_file(path)?;
    environment::quieten();
    let load_error = |error: libloading::Error| Error::Load {
        path: path.to_owned(),
        // The loader's own words are the source of this error.
        reason: std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), ToString::to_string),
    };
    // SAFETY: loading runs the library's initialisers. That is what loading a plugin means: the user names it, or it is the pinned one.
    let library = unsafe { libloading::Library::new(path) }.map_err(load_error)?;
    // Never unloaded: XLA keeps threads and registries that would outlive the code.
    let library = Box::leak(Box::new(library));
    let not_a_plugin = || Error::NotAPlugin {
        path: path.to_owned(),
    };
    // SAFETY: a symbol of this name has this signature in every version of the PJRT C API.
    let entry = unsafe { library.get::<unsafe extern "C" fn() -> *const Table>(b"GetPjrtApi") };
    let entry = entry.map_err(|_| not_a_plugin())?;
    // SAFETY: as above; it takes nothing and may be called at any time.
    let table = unsafe { entry() };
    let table = NonNull::new(table.cast_mut()).ok_or_else(not_a_plugin)?;
    // SAFETY: the table came from `GetPjrtApi` of a library that is never unloaded.
    let api = unsafe { Api::new(table) };
    if api.version().0 != 0 {
        return Err(Error::ApiVersion {
            path: path.to_owned(),
            version: api.version(),
        });
    }
    // SAFETY: the argument struct is complete. This is the first call, as the API demands.
    unsafe { api.call(&mut PluginInitialize::new()) }?;
    Ok(api)
}

/// Catches the commonest mistake, a wheel or a text file, with a better message than the loader's.
/// Refuses what is no shared library, and a library that was cut short: its missing pages would end the process when they
/// are touched.
fn check_file(path: &Path) -> Result<()> {
    let mut header = [0; 64];
    let opened = File::open(path).and_then(|mut file| {
        file.read_exact(&mut header)?;
        file.metadata()
    });
    let not_a_library = || Error::NotALibrary {
        path: path.to_owned(),
    };
    let length = match opened {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            return Err(not_a_library());
        }
        Err(error) => return Err(Error::io("read the plugin", path)(error)),
    };
    if !cfg!(target_os = "linux") {
        return Ok(());
    }
    if header[..5] != *b"\x7fELF\x02" {
        return Err(not_a_library());
    }
    // ELF64: the table of sections stands at `e_shoff`, after everything else, as `e_shnum` entries of `e_shentsize` bytes.
    let word = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let table = u64::from_le_bytes(header[40..48].try_into().expect("eight bytes"));
    let end = table.saturating_add(word(58) * word(60));
    if end <= length {
        return Ok(());
    }
    Err(Error::Load {
        path: path.to_owned(),
        reason: format!("the file is cut short: it has {length} of {end} bytes"),
    })
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.api_version();
        write!(f, "Plugin({}, PJRT {major}.{minor})", self.0.name)
    }
}
