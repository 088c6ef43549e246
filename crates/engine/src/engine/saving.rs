//! The engine's state, saved and restored.

use std::path::Path;
use std::time::{Duration, Instant};

use ferrotune_graph::HostArray;
use ferrotune_program::{Group, Layout};

use super::{Accumulation, Awaited, Engine};
use crate::checkpoint::{self, Copied, Keep, Manifest, Stored, Written};
use crate::error::Error;
use crate::step;

impl Engine {
    /// Copies to the host what a checkpoint holds.
    fn copied(&self, extra: &serde_json::Value) -> Result<Copied, Error> {
        let state = self.state.as_ref().ok_or(Error::StateLost)?;
        let mut groups = vec![("params", self.weights()?[0]), ("optimizer", state)];
        if !self.scaling.is_empty() {
            groups.push(("scaling", &self.scaling));
        }
        if let Some(a) = &self.accumulation {
            groups.extend([("gradients", &a.gradients), ("metrics", &a.metrics)]);
        }
        let copy = |(name, group)| Ok((name, checkpoint::copy(group)?));
        let files: Result<_, Error> = self
            .device_wait
            .during(Awaited::State, || groups.into_iter().map(copy).collect());
        Ok(Copied {
            step: self.step,
            frozen: self.fingerprint.clone(),
            accumulating: self.accumulation.as_ref().map(|a| a.loss.clone()),
            extra: extra.clone(),
            files: files?,
        })
    }

    /// Writes a checkpoint of the parameters that learn, optimizer state, step, accumulation if there is one, and the caller's
    /// `extra` to the folder `dir`.
    ///
    /// It appears under its name only when it is complete.
    ///
    /// # Errors
    /// [`Error::StateLost`], a failure of the device, or the file that cannot be written; then what was there before is untouched.
    pub fn save(&self, dir: &Path, extra: &serde_json::Value) -> Result<(), Error> {
        checkpoint::write(dir, &self.copied(extra)?).map(|_| ())
    }

    /// The same beside the run, followed by the removal of checkpoints in the folder around `dir` that `keep` does not keep.
    /// Waits for the copy to the host alone, whose time it returns. What became of the writing is said by [`Self::saved`].
    ///
    /// # Errors
    /// [`Error::StateLost`], or a failure of the device.
    ///
    /// # Panics
    /// When nobody asked what became of the one before.
    pub fn save_in_background(
        &mut self,
        dir: &Path,
        extra: &serde_json::Value,
        keep: Keep,
    ) -> Result<Duration, Error> {
        let begun = Instant::now();
        let state = self.copied(extra)?;
        let time = begun.elapsed();
        self.writer.begin(dir.to_owned(), state, keep);
        Ok(time)
    }

    /// Whether a checkpoint is on its way to the disk.
    pub fn is_saving(&self) -> bool {
        self.writer.is_busy()
    }

    /// What became of the last checkpoint that was begun, if that was not yet asked. Waits for it.
    pub fn saved(&mut self) -> Option<Result<Written, Error>> {
        self.writer.wait()
    }

    /// Ends the engine: waits for the device, then saves if asked to, and waits for what is still being written.
    ///
    /// # Errors
    /// The failure of any program, or a file that cannot be written.
    pub fn close(mut self, save: Option<(&Path, &serde_json::Value)>) -> Result<(), Error> {
        self.params.as_ref().ok_or(Error::StateLost)?.wait()?;
        if let Some(outcome) = self.writer.wait() {
            outcome?;
        }
        match save {
            Some((dir, extra)) => self.save(dir, extra),
            None => Ok(()),
        }
    }

    /// Takes over the state of a checkpoint and returns its `extra`: an accumulation that it was saved in the middle of goes on,
    /// bit for bit where as many data shards gather it, and from the sum of what they had where there are others. On an error nothing has changed.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Corrupt`] or [`Error::Incompatible`], which are different answers.
    pub fn restore(&mut self, dir: &Path) -> Result<serde_json::Value, Error> {
        let stored = checkpoint::open(dir)?;
        let metrics = step::scalars(&self.site(), &stored.names("metrics"))?;
        let mut layouts = vec![
            ("params", &self.param_layout),
            ("optimizer", &self.state_layout),
        ];
        let gathered = gathered_layout(&stored, &self.param_layout);
        let scaled = !self.scaling_layout.is_empty();
        if scaled {
            layouts.push(("scaling", &self.scaling_layout));
        }
        if stored.manifest.accumulating.is_some() {
            layouts.extend([("gradients", &gathered), ("metrics", &metrics)]);
        }
        let arrays = checkpoint::read(&stored, dir, self.fingerprint.as_deref(), &layouts)?;
        let placed = layouts.iter().zip(arrays).map(|((name, layout), host)| {
            let (layout, host) = match *name {
                "gradients" => (&self.accumulator_layout, self.regathered(host)?),
                _ => (*layout, host),
            };
            let group = Group::upload(&self.client, layout, &host)?;
            Ok(match *name {
                "optimizer" => group.moved_to(self.config.offload.rest())?,
                _ => group,
            })
        });
        let groups: Result<Vec<Group>, Error> = placed.collect();
        let mut groups = groups?.into_iter();
        let mut next = || groups.next().expect("a group was read for every layout");
        self.params = Some(next());
        self.state = Some(next());
        if scaled {
            self.scaling = next();
        }
        let Manifest {
            step,
            extra,
            accumulating,
            ..
        } = stored.manifest;
        self.accumulation = accumulating.map(|loss| Accumulation {
            loss,
            gradients: next(),
            metrics: next(),
        });
        self.step = step;
        Ok(extra)
    }

    /// Gradients of a checkpoint as data shards here gather them.
    fn regathered(&self, gradients: Vec<HostArray>) -> Result<Vec<HostArray>, Error> {
        let specs = self.param_layout.specs().iter();
        let each = gradients.into_iter().zip(specs);
        each.map(|(array, spec)| self.data.regathered(array, spec.dims.len()))
            .collect()
    }
}

/// How the gradients of a checkpoint lie in it: for the parameters, or stacked for data shards, of which its run had as many.
fn gathered_layout(stored: &Stored, params: &Layout) -> Layout {
    let rank = params.specs().first().map_or(0, |spec| spec.dims.len());
    match stored.dims("gradients") {
        Some(dims) if dims.len() == rank + 1 && dims[0] > 0 => params.stacked(dims[0], &[]),
        _ => params.clone(),
    }
}
