//! A step whose micro-batches are all there: one program from rows to new parameters.

use std::time::Instant;

use ferrotune_batch::Rows;
use ferrotune_graph::HostArray;
use ferrotune_program::{Argument, Group, Layout};

use super::{Awaited, Engine, Offload, Pending, StepKey};
use crate::batch;
use crate::error::Error;
use crate::loss::Loss;
use crate::step;

impl Engine {
    /// The update from the gradients of all these micro-batches, as [`Self::forward_backward`] of each and [`Self::update`]
    /// make it, but handed to the device as one program that walks through them. Returns before the device is done, and runs no
    /// more than [`EngineConfig::max_inflight`](super::EngineConfig::max_inflight) such programs ahead of it.
    ///
    /// It is the program for the fewest micro-batches of [`Self::compile_step`] that are enough; if none is, one is compiled for as
    /// many as are given. The shape of their rows counts once among [`EngineConfig::max_shapes`](super::EngineConfig::max_shapes).
    /// Rows of several shapes are walked through from here, and all rows with [`Offload::Moments`](super::Offload::Moments).
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
        let mut others = micro_batches.iter();
        if self.config.offload != Offload::Nothing || others.any(|it| shape(it) != (rows, width)) {
            let each = micro_batches.iter();
            let gathered = each.map(|it| self.forward_backward(it, loss));
            if let Err(e) = gathered.collect::<Result<(), Error>>() {
                self.abandon();
                return Err(e);
            }
            return self.update(learning_rate);
        }
        let count = micro_batches.len();
        let key = |most| (loss.name.clone(), rows, width, most);
        let mut enough = self.step_programs.range(key(count)..=key(usize::MAX));
        let key = match enough.next() {
            Some((key, _)) => key.clone(),
            None => self.step_program(key(count), loss)?,
        };
        self.one_program(&key, micro_batches, loss, learning_rate)
    }

    /// Compiles what [`Self::train`] runs ahead of time, for up to `micro_batches` of `[rows, width]`. It takes as much memory
    /// for rows as if there were so many, and no more time.
    ///
    /// # Errors
    /// A batch that the mesh does not divide, one shape of rows more than
    /// [`EngineConfig::max_shapes`](super::EngineConfig::max_shapes), or what the plugin says.
    ///
    /// # Panics
    /// For none.
    #[track_caller]
    pub fn compile_step(
        &mut self,
        micro_batches: usize,
        rows: usize,
        width: usize,
        loss: &Loss,
    ) -> Result<(), Error> {
        assert!(micro_batches > 0, "a step has micro-batches");
        if self.config.offload != Offload::Nothing {
            return self.compile(rows, width, loss);
        }
        let key = (loss.name.clone(), rows, width, micro_batches);
        self.step_program(key, loss).map(|_| ())
    }

    fn step_program(&mut self, key: StepKey, loss: &Loss) -> Result<StepKey, Error> {
        if !self.step_programs.contains_key(&key) {
            let (_, rows, width, most) = key;
            let (shape, begun) = ([rows, width], Instant::now());
            self.shapes.check(shape)?;
            let program = step::step_program(&self.site(), loss, (most, rows, width))?;
            self.shapes
                .add(&program.program, Some(shape), begun.elapsed());
            self.step_programs.insert(key.clone(), program);
        }
        Ok(key)
    }

    fn one_program(
        &mut self,
        key: &StepKey,
        micro_batches: &[Rows],
        loss: &Loss,
        learning_rate: f64,
    ) -> Result<Pending, Error> {
        let step = &self.step_programs[key];
        let wanted = self.wanted(&loss.name, &step.fields);
        let (batch, _) = batch::upload(&self.client, &step.rows, micro_batches, &wanted)?;
        let given = [
            HostArray::from_slice(&[], &[learning_rate as f32]),
            HostArray::from_slice(&[], &[micro_batches.len() as i32]),
        ];
        let given: Result<Vec<HostArray>, _> = given.into_iter().collect();
        let given = given.map_err(ferrotune_program::Error::from)?;
        let given = Group::upload(&self.client, &step.given, &given)?;
        let (Some(params), Some(state)) = (self.params.take(), self.state.take()) else {
            return Err(Error::StateLost);
        };
        let results = step.program.call(vec![
            Argument::Moved(params),
            Argument::Moved(state),
            Argument::Borrowed(&self.frozen),
            Argument::Borrowed(&batch),
            Argument::Borrowed(&self.scaling),
            Argument::Borrowed(&given),
        ])?;
        let [params, state, report, metrics, own_loss, scaling] =
            <[Group; 6]>::try_from(results).expect("the step has six groups of results");
        self.scaling = scaling;
        let pending = self.advanced(params, state, (report, metrics));
        self.keep_pace(Awaited::Update(self.step), own_loss)?;
        Ok(pending)
    }

    /// Numbers on the devices.
    pub(super) fn scalars(&self, layout: &Layout, numbers: &[f32]) -> Result<Group, Error> {
        let each = numbers.iter().map(|it| HostArray::from_slice(&[], &[*it]));
        let each: Result<Vec<HostArray>, _> = each.collect();
        let each = each.map_err(ferrotune_program::Error::from)?;
        Ok(Group::upload(&self.client, layout, &each)?)
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
