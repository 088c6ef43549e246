//! The run directory: what a run leaves behind, and how it is written so that a kill at any moment does no harm.
//!
//! ```text
//! runs/NAME/config.resolved.toml   every value and where it came from
//!           metrics.jsonl          one object a step
//!           samples.jsonl          one object a sampled answer
//!           report.html            curves and sample answers, self-contained
//!           checkpoints/  model/   written by others
//! ```
//!
//! Whole files appear under their final names complete or not at all. The JSONL files grow by whole lines; going on from
//! step N first takes off everything after N, so they end up as if the run had never stopped. A lock keeps a second
//! process out. What is in a checkpoint is not known here.

mod chart;
mod error;
mod lines;
mod metrics;
mod panels;
mod report;
mod samples;
mod scale;
#[cfg(test)]
mod tests;
mod whole_file;

use std::path::{Path, PathBuf};

pub(crate) use error::RunDirError;
pub(crate) use metrics::StepMetrics;
pub(crate) use samples::Sample;

use lines::JsonLines;

const CONFIG: &str = "config.resolved.toml";
const METRICS: &str = "metrics.jsonl";
const SAMPLES: &str = "samples.jsonl";
const REPORT: &str = "report.html";

/// An open run directory, locked against other processes until dropped.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    metrics: JsonLines,
    samples: JsonLines,
}

impl RunDir {
    /// Opens the directory: a new one, or with `resume` that of an earlier run, which must be there.
    ///
    /// A directory in which no step was ever recorded counts as new. Call [`RunDir::rewind`] next when resuming.
    ///
    /// # Errors
    /// All are of the configuration ([`RunDirError::is_configuration`]): taken, absent, not a folder, unwritable, in use.
    pub(crate) fn create(path: &Path, resume: bool) -> Result<Self, RunDirError> {
        let unwritable = |source| RunDirError::Unwritable {
            path: path.to_owned(),
            source,
        };
        if path.exists() && !path.is_dir() {
            return Err(RunDirError::NotAFolder {
                path: path.to_owned(),
            });
        }
        if resume {
            check_records(path)?;
        }
        if !resume && path.is_dir() {
            let occupied = occupant(path).map_err(unwritable)?;
            if let Some(entry) = occupied {
                return Err(RunDirError::Taken {
                    path: path.to_owned(),
                    entry,
                });
            }
        }
        std::fs::create_dir_all(path).map_err(unwritable)?;
        let open = |name| JsonLines::open(path.join(name)).map_err(unwritable);
        let (metrics, samples) = (open(METRICS)?, open(SAMPLES)?);
        if !metrics.lock() {
            return Err(RunDirError::InUse {
                path: path.to_owned(),
            });
        }
        Ok(Self {
            path: path.to_owned(),
            metrics,
            samples,
        })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the checkpoints; not created here.
    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// The folder of the trained model; not created here.
    pub(crate) fn model(&self) -> PathBuf {
        self.path.join("model")
    }

    /// The folder of the trained adapters; not created here.
    pub(crate) fn adapter(&self) -> PathBuf {
        self.path.join("adapter")
    }

    /// The resolved configuration, for comparing before going on.
    pub(crate) fn config(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    /// Writes the resolved configuration.
    pub(crate) fn write_config(&self, text: &str) -> Result<(), RunDirError> {
        whole_file::write(&self.config(), text.as_bytes())
    }

    /// Takes off what was recorded after `step`, half-written last lines included.
    ///
    /// Answers the last step of which there are metrics. It is below `step` if these were not yet written when the
    /// checkpoint was, which [`RunDir::sync`] before each checkpoint rules out.
    ///
    /// # Errors
    /// A line that is damaged anywhere but at the end is not ours to repair.
    pub(crate) fn rewind(&mut self, step: u64) -> Result<Option<u64>, RunDirError> {
        self.samples.rewind(step)?;
        self.metrics.rewind(step)
    }

    /// Answers to a step that are recorded.
    pub(crate) fn sample_count(&self, step: u64) -> Result<usize, RunDirError> {
        Ok(self.samples.read(|it| it == step)?.len())
    }

    /// Adds one step to `metrics.jsonl`.
    pub(crate) fn record_metrics(&mut self, metrics: &StepMetrics) -> Result<(), RunDirError> {
        self.metrics.append(&[metrics])
    }

    /// Adds sampled answers to `samples.jsonl`.
    pub(crate) fn record_samples(&mut self, samples: &[Sample<'_>]) -> Result<(), RunDirError> {
        self.samples.append(samples)
    }

    /// Waits until all that was recorded is on the disk.
    pub(crate) fn sync(&self) -> Result<(), RunDirError> {
        self.metrics.sync()?;
        self.samples.sync()
    }

    /// Writes `report.html` from the files as they stand.
    pub(crate) fn write_report(&self, name: &str) -> Result<PathBuf, RunDirError> {
        let config = std::fs::read_to_string(self.config()).unwrap_or_default();
        let metrics = self.metrics.read(|_| true)?;
        let shown = report::shown_steps(&metrics);
        let samples = self.samples.read(|step| shown.contains(&step))?;
        let path = self.path.join(REPORT);
        whole_file::write(
            &path,
            report::render(name, &config, &metrics, &samples).as_bytes(),
        )?;
        Ok(path)
    }
}

/// Refuses to go on with a run that is not there, or whose records are not.
fn check_records(path: &Path) -> Result<(), RunDirError> {
    let is_run = path.join(CONFIG).exists() || path.join("checkpoints").is_dir();
    let lost = [METRICS, SAMPLES].map(|name| path.join(name));
    match lost.into_iter().find(|it| !it.is_file()) {
        None => Ok(()),
        Some(file) if is_run => Err(RunDirError::Lost { file }),
        Some(_) => Err(RunDirError::NothingToResume {
            path: path.to_owned(),
        }),
    }
}

/// Something in the folder that a new run would endanger.
fn occupant(path: &Path) -> std::io::Result<Option<String>> {
    for entry in path.read_dir()? {
        let entry = entry?;
        let name = entry.file_name();
        let harmless = name == CONFIG
            || ((name == METRICS || name == SAMPLES) && entry.metadata()?.len() == 0);
        if !harmless {
            return Ok(Some(name.to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}
