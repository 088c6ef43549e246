//! The engine's executables, called with fixed lists of arguments.

use ferrotune_batch::Rows;
use ferrotune_engine::Engine;
use ferrotune_graph::{DType, HostArray};
use ferrotune_program::{Argument, Group, Layout, Program};

use crate::device::Device;
use crate::failure::{Failure, OrFail};

/// State of its own, and rows that are on the device already.
pub(super) struct Bare {
    params: Option<Group>,
    moments: Option<Group>,
    frozen: Group,
    /// Of no 8-bit products.
    scaling: Group,
    rate: Group,
    rows: Vec<Group>,
    stacked: Group,
    /// Learning rate and number of micro-batches.
    given: Group,
}

impl Bare {
    pub(super) fn new(
        device: &Device,
        engine: &Engine,
        rows: &[Rows],
        rate: f64,
    ) -> Result<Self, Failure> {
        let update = program(engine, "update", None)?;
        let step = program(engine, "step_", Some(rows.len()))?;
        let first = program(engine, "first_", None)?;
        let upload = |program: &Program, name: &str, arrays: Vec<HostArray>| {
            Group::upload(&device.client, layout(program, name), &arrays).or_fail()
        };
        let params = engine.weights().or_fail()?[0].to_host().or_fail()?;
        let rate = HostArray::from_slice(&[], &[rate as f32]).or_fail()?;
        let count = HostArray::from_slice(&[], &[rows.len() as i32]).or_fail()?;
        let moments = layout(update, "optimizer").specs().iter();
        let moments = moments.map(|spec| HostArray::zeros(spec.dtype, &spec.dims));
        let each = rows
            .iter()
            .map(|it| arrays(std::slice::from_ref(it), layout(first, "rows")));
        let groups = each.map(|arrays| upload(first, "rows", arrays?));
        Ok(Self {
            params: Some(upload(update, "params", params)?),
            moments: Some(upload(update, "optimizer", moments.collect())?),
            frozen: upload(step, "frozen", Vec::new())?,
            scaling: upload(step, "scaling", Vec::new())?,
            given: upload(step, "given", vec![rate.clone(), count])?,
            rate: upload(update, "rate", vec![rate])?,
            rows: groups.collect::<Result<Vec<Group>, Failure>>()?,
            stacked: upload(step, "rows", arrays(rows, layout(step, "rows"))?)?,
        })
    }

    fn state(&mut self) -> (Group, Group) {
        let state = self.params.take().zip(self.moments.take());
        state.expect("a step gives back what it takes")
    }

    /// Waits for the new parameters.
    fn keep(&mut self, mut results: Vec<Group>) -> Result<(), Failure> {
        results.truncate(2);
        self.moments = results.pop();
        self.params = results.pop();
        self.params
            .as_ref()
            .map_or(Ok(()), |params| params.wait().or_fail())
    }

    /// One program for each micro-batch, and the update.
    pub(super) fn parts(&mut self, engine: &Engine) -> Result<(), Failure> {
        let (first, more) = (
            program(engine, "first_", None)?,
            program(engine, "more_", None)?,
        );
        let (params, moments) = self.state();
        let mut gathered: Option<Vec<Group>> = None;
        for rows in &self.rows {
            let given = [&params, &self.frozen, rows, &self.scaling];
            let mut arguments: Vec<Argument<'_>> = given.map(Argument::Borrowed).into();
            let program = match gathered.take() {
                None => first,
                Some(so_far) => {
                    arguments.extend(so_far.into_iter().map(Argument::Moved));
                    more
                }
            };
            let mut results = program.call(arguments).or_fail()?;
            results.truncate(2);
            gathered = Some(results);
        }
        let gradients = gathered.expect("there are micro-batches").swap_remove(0);
        let update = program(engine, "update", None)?;
        let results = update.call(vec![
            Argument::Moved(params),
            Argument::Moved(moments),
            Argument::Moved(gradients),
            Argument::Borrowed(&self.rate),
        ]);
        self.keep(results.or_fail()?)
    }

    /// All as one program.
    pub(super) fn whole(&mut self, engine: &Engine, count: usize) -> Result<(), Failure> {
        let step = program(engine, "step_", Some(count))?;
        let (params, moments) = self.state();
        let results = step.call(vec![
            Argument::Moved(params),
            Argument::Moved(moments),
            Argument::Borrowed(&self.frozen),
            Argument::Borrowed(&self.stacked),
            Argument::Borrowed(&self.scaling),
            Argument::Borrowed(&self.given),
        ]);
        self.keep(results.or_fail()?)
    }
}

fn layout<'a>(program: &'a Program, name: &str) -> &'a Layout {
    program
        .input(name)
        .expect("the engine's programs have these groups")
}

/// The engine's program whose name begins so; of as many stacked micro-batches, if that is asked for.
fn program<'a>(
    engine: &'a Engine,
    name: &str,
    stacked: Option<usize>,
) -> Result<&'a Program, Failure> {
    let fits = |it: &&Program| {
        let count = || layout(it, "rows").specs()[0].dims[0];
        it.name().starts_with(name) && stacked.is_none_or(|stacked| stacked == count())
    };
    let found = engine.programs().find(fits);
    found.ok_or_else(|| Failure::refused(anyhow::anyhow!("the engine has not compiled `{name}`")))
}

/// Rows, one behind the other, as the arrays of a layout. What belongs to a predicted token stands beside the one before it.
fn arrays(rows: &[Rows], layout: &Layout) -> Result<Vec<HostArray>, Failure> {
    let array = |at: usize| {
        let spec = &layout.specs()[at];
        let ints = |of: fn(&Rows) -> &[i32]| rows.iter().flat_map(of).copied().collect::<Vec<_>>();
        let made = match (spec.name.as_str(), spec.dtype) {
            ("token_ids", DType::S32) => HostArray::from_slice(&spec.dims, &ints(Rows::token_ids)),
            ("segment_ids", DType::S32) => {
                HostArray::from_slice(&spec.dims, &ints(Rows::segment_ids))
            }
            ("positions", DType::S32) => HostArray::from_slice(&spec.dims, &ints(Rows::positions)),
            ("targets", DType::S32) => {
                let own = |rows: &Rows| {
                    let tokens = rows.token_ids().iter().zip(rows.positions());
                    let follows = tokens.map(|(id, position)| if *position > 0 { *id } else { -1 });
                    next(&follows.collect::<Vec<_>>(), rows.width())
                };
                let targets: Vec<i32> = rows.iter().flat_map(own).collect();
                HostArray::from_slice(&spec.dims, &targets)
            }
            _ => {
                let own = |rows: &Rows| next(rows.loss_weight(), rows.width());
                let weights: Vec<f32> = rows.iter().flat_map(own).collect();
                HostArray::from_slice(&spec.dims, &weights)
            }
        };
        made.or_fail()
    };
    (0..layout.len()).map(array).collect()
}

/// Each row begun at its second token.
fn next<T: Copy>(values: &[T], width: usize) -> Vec<T> {
    let mut next = values.to_vec();
    next.chunks_mut(width).for_each(|row| row.rotate_left(1));
    next
}
