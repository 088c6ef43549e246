//! A step whose micro-batches are all there: one program from rows to new parameters.

use std::time::Instant;

use ferrotune_batch::Rows;
use ferrotune_graph::HostArray;
use ferrotune_program::{Argument, Group, Layout};

use super::{Awaited, Engine, Pending};
use crate::batch;
use crate::error::Error;
use crate::loss::Loss;
use crate::step;

impl Engine {
    /// The update from the gradients of all these micro-batches, as [`Self::forward_backward`] of each and [`Self::update`]
    /// make it, but handed to the device as one program that walks through them. Returns before the device is done, and runs no
    /// more than [`EngineConfig::max_inflight`](super::EngineConfig::max_inflight) such programs ahead of it.
    ///
    /// A program is compiled for every number of micro-batches; the shape of their rows counts once among
    /// [`EngineConfig::max_shapes`](super::EngineConfig::max_shapes). Rows of several shapes are walked through from here.
    ///
    /// # Errors
    /// As those calls; [`Error::NoGradient`] without rows, [`Error::Unfinished`] in the middle of an accumulation. On failures of
    /// the rows the state is unchanged.
    pub fn train(
        &mut self,
        micro_batches: &[Rows],
        loss: &Loss,
        learning_rate: f64,
    ) -> Result<Pending, Error> {
        if self.accumulation.is_some() {
            return Err(Error::Unfinished);
        }
        let shape = |rows: &Rows| (rows.row_count(), rows.width());
        let (rows, width) = micro_batches.first().map(shape).ok_or(Error::NoGradient)?;
        if micro_batches.iter().any(|it| shape(it) != (rows, width)) {
            let each = micro_batches.iter();
            let gathered = each.map(|it| self.forward_backward(it, loss));
            if let Err(e) = gathered.collect::<Result<(), Error>>() {
                self.abandon();
                return Err(e);
            }
            return self.update(learning_rate);
        }
        self.compile_step(micro_batches.len(), rows, width, loss)?;
        self.one_program(micro_batches, loss, learning_rate)
    }

    /// Compiles the program of [`Self::train`] ahead of time for as many micro-batches of `[rows, width]`.
    ///
    /// # Errors
    /// A batch that the mesh does not divide, one shape of rows more than
    /// [`EngineConfig::max_shapes`](super::EngineConfig::max_shapes), or what the plugin says.
    ///
    /// # Panics
    /// Without micro-batches.
    pub fn compile_step(
        &mut self,
        micro_batches: usize,
        rows: usize,
        width: usize,
        loss: &Loss,
    ) -> Result<(), Error> {
        let key = (loss.name.clone(), micro_batches, rows, width);
        if !self.step_programs.contains_key(&key) {
            let (shape, begun) = ([rows, width], Instant::now());
            self.shapes.check(shape)?;
            let program = step::step_program(&self.site(), loss, (micro_batches, rows, width))?;
            self.shapes
                .add(&program.program, Some(shape), begun.elapsed());
            self.step_programs.insert(key, program);
        }
        Ok(())
    }

    fn one_program(
        &mut self,
        micro_batches: &[Rows],
        loss: &Loss,
        learning_rate: f64,
    ) -> Result<Pending, Error> {
        let first = &micro_batches[0];
        let key = (
            loss.name.clone(),
            micro_batches.len(),
            first.row_count(),
            first.width(),
        );
        let step = &self.step_programs[&key];
        let wanted = self.wanted(loss, &step.fields);
        let batch = batch::upload(&self.client, &step.rows, micro_batches, &wanted)?;
        let rate = self.rate(&step.rate, learning_rate)?;
        let (Some(params), Some(state)) = (self.params.take(), self.state.take()) else {
            return Err(Error::StateLost);
        };
        let results = step.program.call(vec![
            Argument::Moved(params),
            Argument::Moved(state),
            Argument::Borrowed(&self.frozen),
            Argument::Borrowed(&batch),
            Argument::Borrowed(&self.scaling),
            Argument::Borrowed(&rate),
        ])?;
        let [params, state, report, metrics, own_loss, scaling] =
            <[Group; 6]>::try_from(results).expect("the step has six groups of results");
        self.scaling = scaling;
        let pending = self.advanced(params, state, (report, metrics));
        self.keep_pace(Awaited::Update(self.step), own_loss)?;
        Ok(pending)
    }

    /// The learning rate on the devices.
    pub(super) fn rate(&self, layout: &Layout, learning_rate: f64) -> Result<Group, Error> {
        let rate = HostArray::from_slice(&[], &[learning_rate as f32])
            .map_err(ferrotune_program::Error::from)?;
        Ok(Group::upload(&self.client, layout, &[rate])?)
    }

    /// Takes over what an update has made.
    pub(super) fn advanced(
        &mut self,
        params: Group,
        state: Group,
        (report, metrics): (Group, Group),
    ) -> Pending {
        self.params = Some(params);
        self.state = Some(state);
        self.step += 1;
        Pending {
            step: self.step,
            on_nonfinite: self.config.optimizer.on_nonfinite,
            device_wait: self.device_wait.clone(),
            report,
            metrics,
        }
    }
}
