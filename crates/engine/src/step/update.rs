//! The update, alone or behind the micro-batches that it learns from.

use ferrotune_batch::Field;
use ferrotune_graph::{DType, Tensor};
use ferrotune_program::{Builder, Layout, Leaf, Program};

use super::gradient::{Weights, stacked};
use super::{Site, scalars};
use crate::data_shards::ShardOverData;
use crate::engine::fits;
use crate::error::Error;
use crate::loss::Loss;
use crate::optimizer::{self, Updated};

/// The update: parameters (moved), optimizer state (moved), gradients (moved), learning rate → parameters, state, report.
pub(crate) struct UpdateProgram {
    pub(crate) program: Program,
    pub(crate) rate: Layout,
}

/// What stands before a pattern in the name of its norm.
pub(crate) const GROUP: &str = "grad_norm/";

/// What an update reads, in the memory of which it writes.
struct Before {
    params: Vec<Tensor>,
    moments: Vec<Tensor>,
}

impl Before {
    fn input(site: &Site<'_>, builder: &mut Builder) -> Self {
        Self {
            params: builder.input("params", site.params),
            moments: builder.input("optimizer", site.state),
        }
    }

    /// The update from gradients as they are accumulated. Where what the optimizer keeps is split further than the parameters,
    /// every device updates its part.
    fn updated(&self, site: &Site<'_>, gradients: &[Tensor], rate: &Tensor) -> Updated {
        let g = rate.graph().clone();
        g.scope("optimizer", || {
            let mut gradients = site.data.reduced(gradients);
            let mut params = self.params.clone();
            if site.config.shard_over_data != ShardOverData::Nothing {
                for (at, spec) in site.parts.specs().iter().enumerate() {
                    gradients[at] = gradients[at].shard_as(&spec.sharding);
                    params[at] = params[at].shard_as(&spec.sharding);
                }
            }
            optimizer::update(
                &site.config.optimizer,
                site.params,
                &params,
                &self.moments,
                &gradients,
                rate,
                &norm_groups(site),
            )
        })
    }

    fn output(&self, site: &Site<'_>, builder: &mut Builder, new: &Updated) -> Result<(), Error> {
        builder.output_replacing(site.params, &new.params, &self.params);
        builder.output_replacing(site.state, &new.state, &self.moments);
        let patterns = site.config.group_norms.iter();
        let names: Vec<String> = patterns.map(|it| format!("{GROUP}{it}")).collect();
        let names = names.iter().map(String::as_str);
        let names: Vec<&str> = ["grad_norm", "skipped"].into_iter().chain(names).collect();
        let norms = [&new.grad_norm, &new.skipped].into_iter();
        let norms: Vec<Tensor> = norms.chain(&new.group_norms).cloned().collect();
        builder.output(&scalars(site, &names)?, &norms);
        Ok(())
    }
}

/// For each pattern whose norm is wanted, the places of the parameters that fit it.
fn norm_groups(site: &Site<'_>) -> Vec<Vec<usize>> {
    let places = |pattern: &String| {
        let names = site.params.names().enumerate();
        let fitting = names.filter(|(_, name)| fits(pattern, name));
        fitting.map(|(place, _)| place).collect()
    };
    site.config.group_norms.iter().map(places).collect()
}

/// Traces and compiles the update.
pub(crate) fn update_program(site: &Site<'_>) -> Result<UpdateProgram, Error> {
    let mut builder = Builder::new("update", site.mesh, site.rules);
    let rate = scalars(site, &["learning_rate"])?;
    let before = Before::input(site, &mut builder);
    let gradients = builder.input_donated("gradients", site.accumulators);
    let learning_rate = builder.input("rate", &rate);
    let new = before.updated(site, &gradients, &learning_rate[0]);
    before.output(site, &mut builder, &new)?;
    Ok(UpdateProgram {
        program: builder.compile(site.client)?,
        rate,
    })
}

/// Micro-batches and their update as one program: parameters (moved), optimizer state (moved), frozen parameters, stacked rows,
/// histories, learning rate and number of micro-batches → parameters, state, report, metrics, the loss again, the next histories.
pub(crate) struct StepProgram {
    pub(crate) program: Program,
    pub(crate) rows: Layout,
    pub(crate) fields: Vec<Field>,
    pub(crate) given: Layout,
}

/// Traces and compiles it for up to `most` micro-batches of `[rows, width]`.
pub(crate) fn step_program(
    site: &Site<'_>,
    loss: &Loss,
    (most, rows, width): (usize, usize, usize),
) -> Result<StepProgram, Error> {
    site.check(loss)?;
    let layout = site.rows(rows, width, &loss.fields)?.stacked(most, &[]);
    let scalar = |name, dtype| Leaf::new(name, dtype, &[], &[]);
    let leaves = [
        scalar("learning_rate", DType::F32),
        scalar("micro_batches", DType::S32),
    ];
    let given = Layout::new(site.mesh, site.rules, &leaves)?;
    let mut builder = Builder::new(&format!("step_{}", loss.name), site.mesh, site.rules);
    let before = Before::input(site, &mut builder);
    let frozen = builder.input("frozen", site.frozen);
    let arguments = builder.input("rows", &layout);
    let scaling = builder.input("scaling", site.scaling);
    let [rate, count] =
        <[Tensor; 2]>::try_from(builder.input("given", &given)).expect("the layout has two arrays");
    let weights = Weights {
        params: &before.params,
        frozen: &frozen,
        scaling: &scaling,
    };
    let gathered = stacked(site, loss, weights, &arguments, &count);
    let new = before.updated(site, &gathered.gradients, &rate);
    before.output(site, &mut builder, &new)?;
    builder.output(&gathered.layout(site)?, &gathered.values());
    builder.output(
        &scalars(site, &["loss"])?,
        &[gathered.metrics[0].value.clone()],
    );
    builder.output(site.scaling, &gathered.scaling);
    Ok(StepProgram {
        program: builder.compile(site.client)?,
        rows: layout,
        fields: loss.fields.clone(),
        given,
    })
}
