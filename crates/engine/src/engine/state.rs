//! The engine's state, read, saved and restored.

use std::path::Path;
use std::time::{Duration, Instant};

use ferrotune_graph::HostArray;
use ferrotune_models::ModelConfig;
use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::MemoryStats;
use ferrotune_program::{Group, Layout, Program};

use super::{Engine, Trains};
use crate::checkpoint::{self, Copied, Keep, Written};
use crate::error::Error;

impl Engine {
    /// The live parameters in two groups, those that learn and those that do not. They cannot be updated while they are lent.
    ///
    /// # Errors
    /// [`Error::StateLost`].
    pub fn weights(&self) -> Result<[&Group; 2], Error> {
        Ok([self.params.as_ref().ok_or(Error::StateLost)?, &self.frozen])
    }

    /// Where the parameters are placed, in the same two groups.
    pub fn layouts(&self) -> [&Layout; 2] {
        [&self.param_layout, &self.frozen_layout]
    }

    /// A copy of all parameters on the host, in the order in which they were given.
    ///
    /// # Errors
    /// [`Error::StateLost`], or the failure of the step that makes them.
    pub fn params_to_host(&self) -> Result<Vec<(ParamSpec, HostArray)>, Error> {
        let [trained, frozen] = self.weights()?;
        let arrays = self.division.join(trained.to_host()?, frozen.to_host()?);
        Ok(self.division.specs().iter().cloned().zip(arrays).collect())
    }

    /// A copy of the accumulated gradient on the host, of the parameters that learn: the sum over data shards.
    ///
    /// # Errors
    /// [`Error::NoGradient`], or the failure of the step that makes it.
    pub fn gradients_to_host(&self) -> Result<Vec<(ParamSpec, HostArray)>, Error> {
        let accumulation = self.accumulation.as_ref().ok_or(Error::NoGradient)?;
        let specs = self.division.trained(self.division.specs());
        let arrays = accumulation.gradients.to_host()?.into_iter();
        let arrays = arrays.map(|array| self.data.on_host(array));
        let arrays: Result<Vec<HostArray>, Error> = arrays.collect();
        Ok(specs.into_iter().cloned().zip(arrays?).collect())
    }

    /// A copy of the optimizer's arrays on the host, by name: what the rule keeps of each parameter (such as `second/embed`), the
    /// number of updates made, the norms remembered.
    ///
    /// # Errors
    /// [`Error::StateLost`], or the failure of the step that makes them.
    pub fn optimizer_to_host(&self) -> Result<Vec<(String, HostArray)>, Error> {
        let state = self.state.as_ref().ok_or(Error::StateLost)?;
        let names = self.state_layout.names().map(str::to_owned);
        Ok(names.zip(state.to_host()?).collect())
    }

    /// Time that [`Self::forward_backward`] has spent waiting for the device, which is not work of the host.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Updates made since the model was new.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The model.
    pub fn model(&self) -> &ModelConfig {
        &self.model
    }

    /// Which parameters learn.
    pub fn trains(&self) -> &Trains {
        &self.config.trains
    }

    /// Global bytes of parameters, of optimizer state, and of one accumulation.
    pub fn state_bytes(&self) -> [usize; 3] {
        [
            self.param_layout.bytes() + self.frozen_layout.bytes(),
            self.state_layout.bytes(),
            self.accumulator_layout.bytes(),
        ]
    }

    /// Name and per-device memory of every compiled program.
    pub fn program_memory(&self) -> Vec<(String, MemoryStats)> {
        let named = |p: &Program| (p.name().to_owned(), p.memory());
        self.programs().map(named).collect()
    }

    /// Every compiled program: those of gradients (`first_` and `more_`), steps, scores, evaluations, the update.
    pub fn programs(&self) -> impl Iterator<Item = &Program> {
        let gradients = self.gradient_programs.values().map(|p| &p.program);
        let scores = self.score_programs.values().map(|p| &p.program);
        let evaluations = self.evaluation_programs.values().map(|p| &p.program);
        let steps = self.step_programs.values().map(|p| &p.program);
        let update = self.update_program.iter().map(|p| &p.program);
        gradients
            .chain(scores)
            .chain(evaluations)
            .chain(steps)
            .chain(&self.snapshot_program)
            .chain(update)
    }

    /// Copies to the host what a checkpoint holds.
    fn copied(&self, extra: &serde_json::Value) -> Result<Copied, Error> {
        if self.accumulation.is_some() {
            return Err(Error::MidAccumulation);
        }
        let state = self.state.as_ref().ok_or(Error::StateLost)?;
        Ok(Copied {
            step: self.step,
            frozen: self.fingerprint.clone(),
            extra: extra.clone(),
            files: vec![
                ("params", checkpoint::copy(self.weights()?[0])?),
                ("optimizer", checkpoint::copy(state)?),
            ],
        })
    }

    /// Writes a checkpoint of the parameters that learn, optimizer state, step and the caller's `extra` to the folder `dir`.
    ///
    /// It appears under its name only when it is complete.
    ///
    /// # Errors
    /// [`Error::MidAccumulation`], or the file that cannot be written; then what was there before is untouched.
    pub fn save(&self, dir: &Path, extra: &serde_json::Value) -> Result<(), Error> {
        checkpoint::write(dir, &self.copied(extra)?).map(|_| ())
    }

    /// The same beside the run, followed by the removal of checkpoints in the folder around `dir` that `keep` does not keep.
    /// Waits for the copy to the host alone, whose time it returns. What became of the writing is said by [`Self::saved`].
    ///
    /// # Errors
    /// [`Error::MidAccumulation`], or a failure of the device.
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

    /// Takes over the state of a checkpoint and returns its `extra`. On an error nothing has changed.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Corrupt`] or [`Error::Incompatible`], which are different answers.
    pub fn restore(&mut self, dir: &Path) -> Result<serde_json::Value, Error> {
        let (saved, mut groups) = checkpoint::read(
            dir,
            self.fingerprint.as_deref(),
            &[
                ("params", &self.param_layout),
                ("optimizer", &self.state_layout),
            ],
        )?;
        let state = Group::upload(
            &self.client,
            &self.state_layout,
            &groups.pop().expect("two groups were read"),
        )?;
        let params = Group::upload(
            &self.client,
            &self.param_layout,
            &groups.pop().expect("two groups were read"),
        )?;
        self.params = Some(params);
        self.state = Some(state);
        self.accumulation = None;
        self.step = saved.step;
        Ok(saved.extra)
    }
}
