//! Arguments of `ferrotune checkpoint`.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// The checkpoints of a run, oldest first, and whether each looks whole.
    List(CheckpointsArgs),
    /// Read every byte of the checkpoints of a run, or of one, and compare it with what was written.
    Verify(CheckpointsArgs),
    /// What a checkpoint holds: files, arrays, place in the data.
    Show(CheckpointArgs),
    /// Write the weights of a checkpoint as a Hugging Face folder, or its adapters as PEFT does.
    Export(CheckpointExportArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckpointsArgs {
    /// A run directory, its folder `checkpoints`, or one checkpoint.
    pub(crate) path: PathBuf,
    /// Print an object a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckpointArgs {
    /// A checkpoint, or a run directory, of which the newest is taken.
    pub(crate) path: PathBuf,
    /// Print the manifest as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckpointExportArgs {
    /// A checkpoint, or a run directory, of which the newest is taken.
    pub(crate) path: PathBuf,
    /// The folder to write.
    pub(crate) out: PathBuf,
    /// The run directory, where the checkpoint no longer lies in it.
    #[arg(long, value_name = "DIR")]
    pub(crate) run: Option<PathBuf>,
}
