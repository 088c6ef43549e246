//! What can go wrong with a run directory.

use std::path::PathBuf;
use std::{fmt, io};

/// An error of the run directory; the text names the place and the cure.
#[derive(Debug)]
pub(crate) enum RunDirError {
    /// A new run, but the folder holds something.
    Taken { path: PathBuf, entry: String },
    /// The path is that of a file.
    NotAFolder { path: PathBuf },
    /// A run to go on with, but there is none.
    NothingToResume { path: PathBuf },
    /// A run to go on with, without one of its records.
    Lost { file: PathBuf },
    /// The folder cannot be made or written.
    Unwritable { path: PathBuf, source: io::Error },
    /// Another process writes here.
    InUse { path: PathBuf },
    /// A write or read failed under way.
    Failed {
        path: PathBuf,
        doing: &'static str,
        source: io::Error,
    },
    /// A line in the middle of a file is not what was written.
    Damaged {
        path: PathBuf,
        line: usize,
        why: String,
    },
}

impl RunDirError {
    /// Whether the user asked for something that cannot be (exit code 2), rather than the run having failed (1).
    pub(crate) fn is_configuration(&self) -> bool {
        !matches!(self, Self::Failed { .. } | Self::Damaged { .. })
    }
}

impl fmt::Display for RunDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { path, entry } => write!(
                f,
                "run directory {} is not empty (it holds {entry}): go on with that run by --resume, \
                 or choose another directory with run.dir=PATH",
                path.display()
            ),
            Self::NotAFolder { path } => {
                write!(
                    f,
                    "run directory {} is a file: choose another with run.dir=PATH",
                    path.display()
                )
            }
            Self::NothingToResume { path } => write!(
                f,
                "there is no run to resume in {}: leave out --resume, or name the run's directory with run.dir=PATH",
                path.display()
            ),
            Self::Lost { file } => write!(
                f,
                "{} is missing, which the run wrote beside its checkpoints: restore that file, or start a new run with run.dir=PATH",
                file.display()
            ),
            Self::Unwritable { path, source } => write!(
                f,
                "run directory {} cannot be written ({source}): choose another with run.dir=PATH",
                path.display()
            ),
            Self::InUse { path } => write!(
                f,
                "run directory {} is in use by another process: wait for it, or choose another with run.dir=PATH",
                path.display()
            ),
            Self::Failed {
                path,
                doing,
                source,
            } => write!(f, "cannot {doing} {}: {source}", path.display()),
            Self::Damaged { path, line, why } => write!(
                f,
                "{}:{line} is damaged ({why}), and not at its end: restore the file, or start a new run",
                path.display()
            ),
        }
    }
}

impl std::error::Error for RunDirError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unwritable { source, .. } | Self::Failed { source, .. } => Some(source),
            _ => None,
        }
    }
}
