//! The engine's state, as it can be read.

use std::time::Duration;

use ferrotune_graph::HostArray;
use ferrotune_models::ModelConfig;
use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::{Memory, MemoryStats};
use ferrotune_program::{Group, Layout, Program};

use super::{Engine, Trains};
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

    /// A copy on the host of the histories of 8-bit products, by name: for each weight of linear layers `[L,3,n]` magnitudes of
    /// its input, itself and the gradient of its output, oldest first.
    ///
    /// # Errors
    /// The failure of the step that makes them.
    pub fn scaling_to_host(&self) -> Result<Vec<(String, HostArray)>, Error> {
        let names = self.scaling_layout.names().map(str::to_owned);
        Ok(names.zip(self.scaling.to_host()?).collect())
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

    /// Global bytes of the state that lie on the devices now: without what [`EngineConfig::offload`](super::EngineConfig::offload)
    /// keeps with the host, with the accumulation if there is one.
    pub fn device_bytes(&self) -> usize {
        let gathered = self.accumulation.as_ref().map(|a| &a.gradients);
        let groups = self.params.iter().chain(&self.state).chain(gathered);
        let groups = groups.chain([&self.frozen, &self.scaling]);
        let there = groups.filter(|it| it.memory() == Memory::Device);
        there.map(|it| it.layout().bytes()).sum()
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
}
