//! What is asked of the current parameters without changing anything: the terms of a loss, scores, a copy of them.
//!
//! Any of it may be asked before or after an update and in the middle of an accumulation, and what is trained stays the same to
//! the last bit.

use std::collections::BTreeMap;
use std::time::Instant;

use ferrotune_batch::Rows;
use ferrotune_graph::HostArray;
use ferrotune_nn::FilterSettings;
use ferrotune_program::{Argument, Group};

use super::{Awaited, Engine, Kept, Scores, report};
use crate::batch;
use crate::error::Error;
use crate::loss::Loss;
use crate::step;

impl Engine {
    /// `loss` and the loss's own metrics of some rows under the current parameters, without a gradient. Of rows that are the
    /// parts of a batch each sum adds up to that of the batch. Waits for the device.
    ///
    /// # Errors
    /// Rows without a field that the loss reads or with a token outside of the vocabulary, one shape of rows more than
    /// [`EngineConfig::max_shapes`](super::EngineConfig::max_shapes), or a failure of the device.
    pub fn evaluate(&mut self, rows: &Rows, loss: &Loss) -> Result<BTreeMap<String, f64>, Error> {
        let key = (loss.name.clone(), rows.row_count(), rows.width());
        if !self.evaluation_programs.contains_key(&key) {
            let (shape, begun) = ([key.1, key.2], Instant::now());
            self.shapes.check(shape)?;
            let program = step::evaluation_program(&self.site(), loss, key.1, key.2)?;
            self.shapes
                .add(&program.program, Some(shape), begun.elapsed());
            self.evaluation_programs.insert(key.clone(), program);
        }
        let evaluation = &self.evaluation_programs[&key];
        let (batch, _) = batch::upload(
            &self.client,
            &evaluation.rows,
            std::slice::from_ref(rows),
            &self.wanted(&loss.name, &evaluation.fields),
        )?;
        let params = self.params.as_ref().ok_or(Error::StateLost)?;
        let results = evaluation.program.call(vec![
            Argument::Borrowed(params),
            Argument::Borrowed(&self.frozen),
            Argument::Borrowed(&batch),
            Argument::Borrowed(&self.scaling),
        ])?;
        self.device_wait
            .during(Awaited::Rows, || report::named(&results[0]))
    }

    /// A copy on the devices of the parameters that learn, which later updates leave as it is.
    ///
    /// # Errors
    /// A failure of the device, such as too little memory.
    pub fn snapshot(&mut self) -> Result<Group, Error> {
        let copy = match self.snapshot_program.take() {
            Some(copy) => copy,
            None => {
                let begun = Instant::now();
                let copy = step::snapshot_program(&self.site())?;
                self.shapes.add(&copy, None, begun.elapsed());
                copy
            }
        };
        let params = self.params.as_ref().ok_or(Error::StateLost)?;
        let results = copy.call(vec![Argument::Borrowed(params)]);
        self.snapshot_program = Some(copy);
        Ok(results?.remove(0))
    }

    /// Scores every token of the rows under the current parameters.
    ///
    /// # Errors
    /// A token outside of the vocabulary, one shape of rows more than
    /// [`EngineConfig::max_shapes`](super::EngineConfig::max_shapes), or a failure of the device.
    pub fn score(&mut self, rows: &Rows) -> Result<Scores, Error> {
        self.scored(rows, None)
    }

    /// The same, and [`Scores::kept`]: what a sampler with these filters would leave of the distributions. One program serves
    /// filters of any settings, besides that of [`Self::score`].
    ///
    /// # Errors
    /// As [`Self::score`].
    ///
    /// # Panics
    /// As [`FilterSettings::numbers`].
    #[track_caller]
    pub fn score_filtered(
        &mut self,
        rows: &Rows,
        filters: &FilterSettings,
    ) -> Result<Scores, Error> {
        self.scored(rows, Some(filters.numbers()))
    }

    fn scored(&mut self, rows: &Rows, filters: Option<[f32; 3]>) -> Result<Scores, Error> {
        let key = (rows.row_count(), rows.width(), filters.is_some());
        if !self.score_programs.contains_key(&key) {
            let (shape, begun) = ([key.0, key.1], Instant::now());
            self.shapes.check(shape)?;
            let program = step::score_program(&self.site(), key.0, key.1, key.2)?;
            self.shapes
                .add(&program.program, Some(shape), begun.elapsed());
            self.score_programs.insert(key, program);
        }
        let score = &self.score_programs[&key];
        let (batch, places) = batch::upload(
            &self.client,
            &score.rows,
            std::slice::from_ref(rows),
            &self.wanted("score", &[]),
        )?;
        let filters = score.filters.as_ref().zip(filters);
        let filters = filters.map(|(layout, numbers)| self.scalars(layout, &numbers));
        let filters = filters.transpose()?;
        let params = self.params.as_ref().ok_or(Error::StateLost)?;
        let mut arguments = vec![
            Argument::Borrowed(params),
            Argument::Borrowed(&self.frozen),
            Argument::Borrowed(&batch),
            Argument::Borrowed(&self.scaling),
        ];
        arguments.extend(filters.iter().map(Argument::Borrowed));
        let results = score.program.call(arguments)?;
        let wait = &self.device_wait;
        let host = wait.during(Awaited::Rows, || results[0].to_host())?;
        let places = &places[0];
        let kept = |found: &[HostArray]| Kept {
            mass: places.natural(found[0].as_slice::<f32>()),
            token: places.natural(found[1].as_slice::<bool>()),
        };
        Ok(Scores {
            logprob: places.natural(host[0].as_slice::<f32>()),
            entropy: places.natural(host[1].as_slice::<f32>()),
            kept: filters.is_some().then(|| kept(&host[2..])),
        })
    }
}
