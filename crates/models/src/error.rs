//! What can go wrong with a model folder, as data.

use std::fmt::{self, Write as _};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ferrotune_pjrt::DType;

use crate::adapter::AdapterProblem;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with a model folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused.
    #[error("cannot {action} {}: {source}{}", path.display(), cure(source))]
    Io {
        /// What was tried: `"open"`, `"write"`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The reason given by the system.
        source: std::io::Error,
    },
    /// A file that should be JSON is not.
    #[error("{origin} is not valid JSON: {message}")]
    Json {
        /// File, or where else the text came from.
        origin: String,
        /// The parser's message, with line and column.
        message: String,
    },
    /// The configuration describes no model that can be built here; every reason is listed.
    #[error(
        "{origin} does not describe a model that ferrotune can build:{}",
        lines(problems)
    )]
    Config {
        /// File, or where else the text came from.
        origin: String,
        /// One entry for each reason.
        problems: Vec<String>,
    },
    /// The folder has a configuration but no weights.
    #[error("{} holds no weights: put model.safetensors, or model.safetensors.index.json and its files, there", dir.display())]
    NoWeights {
        /// The folder.
        dir: PathBuf,
    },
    /// A safetensors file is truncated or damaged.
    #[error("{} is not a sound safetensors file: {problem}; copy or download it again", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        problem: String,
    },
    /// The index of a sharded checkpoint is not usable.
    #[error("{} cannot be used as an index of weight files: {problem}", path.display())]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong in it.
        problem: String,
    },
    /// The weights in the files are not those of the model; every difference is listed.
    #[error("the weights in {} are not those of the model in its config.json:{}", dir.display(), lines(problems))]
    Weights {
        /// The folder.
        dir: PathBuf,
        /// One entry for each tensor.
        problems: Vec<WeightProblem>,
    },
    /// Adapters that the model cannot have; every reason is listed.
    #[error("the model cannot have these adapters:{}", lines(problems))]
    Adapter {
        /// One entry for each reason.
        problems: Vec<AdapterProblem>,
    },
    /// The tensors of adapters are not those that their description and the model ask for; every difference is listed.
    #[error("the weights in {} are not those that the adapter_config.json beside it describes for this model:{}", path.display(), lines(problems))]
    AdapterWeights {
        /// The weight file.
        path: PathBuf,
        /// One entry for each tensor.
        problems: Vec<WeightProblem>,
    },
    /// A description of adapters that cannot be used; every reason is listed.
    #[error("{} does not describe adapters that can be used here:{}", path.display(), lines(problems))]
    AdapterFile {
        /// The file.
        path: PathBuf,
        /// One entry for each reason.
        problems: Vec<String>,
    },
    /// The arrays given for writing are not those of the model; every difference is listed.
    #[error("cannot write {}: the arrays given are not those of the model:{}", path.display(), lines(problems))]
    Arrays {
        /// The file that was to be written.
        path: PathBuf,
        /// One entry for each array.
        problems: Vec<WeightProblem>,
    },
    /// Arrays that cannot become tensors of a checkpoint; every one is listed.
    #[error("the weights cannot be written:{}", lines(problems))]
    Unfit {
        /// One entry for each array.
        problems: Vec<WeightProblem>,
    },
    /// There is no room for a parameter.
    #[error("no memory for {name} of shape {dims:?} in f32")]
    Memory {
        /// Path of the parameter.
        name: String,
        /// Its dimensions.
        dims: Vec<usize>,
    },
    /// Weights cannot be written in this number type.
    #[error("weights cannot be written as {dtype}: choose f32, bf16 or f16")]
    SaveDtype {
        /// The number type asked for.
        dtype: DType,
    },
}

impl Error {
    pub(crate) fn io(
        action: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::Io {
            action,
            path,
            source,
        }
    }
}

/// One tensor that is not as the model wants it. Names are those of the place where it was found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum WeightProblem {
    /// The model needs it and it is not there.
    Missing {
        /// Name.
        name: String,
        /// Dimensions that the model needs.
        expected: Vec<usize>,
    },
    /// It is there and the model has no place for it.
    Extra {
        /// Name.
        name: String,
        /// Dimensions found.
        found: Vec<usize>,
    },
    /// Its dimensions are wrong.
    Shape {
        /// Name.
        name: String,
        /// Dimensions that the model needs.
        expected: Vec<usize>,
        /// Dimensions found.
        found: Vec<usize>,
    },
    /// Its number type cannot be used.
    Dtype {
        /// Name.
        name: String,
        /// Number type found, as the file or the array names it.
        found: String,
        /// Number types that can be used.
        expected: &'static str,
    },
    /// It holds NaN or infinity.
    NotFinite {
        /// Name.
        name: String,
        /// How many such values.
        count: usize,
        /// Where the first one is, one number for each dimension.
        first: Vec<usize>,
    },
    /// A value is too large for the number type in which it is to be written.
    OutOfRange {
        /// Name.
        name: String,
        /// The first such value.
        value: f32,
        /// The number type.
        dtype: DType,
    },
    /// The configuration ties the head to the embedding, and the file has a head with other values.
    TiedHeadDiffers {
        /// Name of the head.
        name: String,
        /// Name of the embedding.
        embedding: String,
    },
}

impl fmt::Display for WeightProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, expected } => {
                write!(f, "{name} is missing, expected shape {expected:?}")
            }
            Self::Extra { name, found } => {
                write!(f, "{name} is not part of the model, found shape {found:?}")
            }
            Self::Shape {
                name,
                expected,
                found,
            } => write!(f, "{name} has shape {found:?}, expected {expected:?}"),
            Self::Dtype {
                name,
                found,
                expected,
            } => write!(f, "{name} is stored as {found}, expected {expected}"),
            Self::NotFinite { name, count, first } => {
                write!(
                    f,
                    "{name} holds {count} NaN or infinite value(s), the first at {first:?}"
                )
            }
            Self::OutOfRange { name, value, dtype } => {
                write!(f, "{name} holds {value}, too large for {dtype}")
            }
            Self::TiedHeadDiffers { name, embedding } => write!(
                f,
                "{name} differs from {embedding}, although config.json has tie_word_embeddings = true; set it to false, or remove {name}"
            ),
        }
    }
}

/// What the user can do about a refusal of the system, where it is plain.
fn cure(source: &std::io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::NotFound => "; check the name of the folder, and that it is complete",
        ErrorKind::PermissionDenied => "; check the permissions of the file and of its folder",
        ErrorKind::IsADirectory => "; it is a folder where a file is wanted",
        ErrorKind::NotADirectory => "; name the folder, not a file in it",
        ErrorKind::InvalidData => "; it is not UTF-8 text: fetch it again",
        ErrorKind::StorageFull => "; free some space, or write elsewhere",
        _ => "",
    }
}

/// One line for each problem, indented, for messages that list several.
fn lines(problems: &[impl fmt::Display]) -> String {
    problems.iter().fold(String::new(), |mut text, problem| {
        let _ = write!(text, "\n  - {problem}");
        text
    })
}
