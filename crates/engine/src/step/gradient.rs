//! Gradients of micro-batches: of one that begins an accumulation or joins it, or of several that a device walks through.

use ferrotune_batch::Field;
use ferrotune_graph::Tensor;
use ferrotune_nn::{Combine, HeadMode};
use ferrotune_program::{Builder, Layout, Program};

use super::{Site, scalars};
use crate::batch::RowTensors;
use crate::data_shards::Gathered;
use crate::error::Error;
use crate::loss::{Loss, LossInputs, LossTerms, Metric};
use crate::scores::Ahead;

/// A program that gathers gradients of one loss over rows of one shape.
///
/// The first of an accumulation maps parameters and rows to gradients and metrics; the next ones also take the gradients
/// and metrics so far, by move, and add to them. Either also returns the loss of its own rows, which nobody overwrites: by
/// waiting for it the host keeps in step with the device. Both map the histories of 8-bit products to the next ones.
pub(crate) struct GradientProgram {
    pub(crate) program: Program,
    pub(crate) rows: Layout,
    pub(crate) fields: Vec<Field>,
}

/// Parameters, those that learn and the others, and the histories that scale their products.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) params: &'a [Tensor],
    pub(super) frozen: &'a [Tensor],
    pub(super) scaling: &'a [Tensor],
}

/// What programs that leave the parameters alone are given: the weights around the rows.
pub(super) struct Given {
    params: Vec<Tensor>,
    frozen: Vec<Tensor>,
    pub(super) rows: Vec<Tensor>,
    scaling: Vec<Tensor>,
}

impl Given {
    pub(super) fn input(site: &Site<'_>, builder: &mut Builder, rows: &Layout) -> Self {
        Self {
            params: builder.input("params", site.params),
            frozen: builder.input("frozen", site.frozen),
            rows: builder.input("rows", rows),
            scaling: builder.input("scaling", site.scaling),
        }
    }

    pub(super) fn weights(&self) -> Weights<'_> {
        Weights {
            params: &self.params,
            frozen: &self.frozen,
            scaling: &self.scaling,
        }
    }
}

/// What a micro-batch is worth: the loss, then the loss's own metrics. With `differentiated` the loss may be formed together
/// with its gradient.
pub(super) fn terms(
    site: &Site<'_>,
    loss: &Loss,
    weights: Weights<'_>,
    rows: &RowTensors,
    differentiated: bool,
) -> Vec<Metric> {
    let tree = site.tree(weights);
    let ahead = Ahead::new(site, &tree, rows, loss.entropy, true);
    let g = rows.loss_weight.graph().clone();
    let LossTerms {
        loss: mut value,
        mut metrics,
    } = if differentiated && site.config.head.mode == HeadMode::SinglePass {
        ahead.single_pass(loss, rows)
    } else {
        let tokens = ahead.scores(rows);
        let inputs = LossInputs {
            logprob: tokens.logprob,
            entropy: tokens.entropy,
            loss_weight: rows.loss_weight.clone(),
            fields: rows.fields.iter().cloned().collect(),
        };
        g.scope("loss", || (loss.build)(&inputs))
    };
    let summed = |name: String, value| Metric {
        name,
        value,
        combine: Combine::Sum,
    };
    if site.config.router.load_balance != 0.0 {
        let balance = ahead.load_balance(rows);
        value = value + &balance * site.config.router.load_balance;
        metrics.push(summed("load_balance".to_owned(), balance));
    }
    let dropped = ahead.dropped(site).into_iter();
    metrics.extend(dropped.map(|(name, count)| summed(name, count)));
    let value = summed("loss".to_owned(), value);
    std::iter::once(value).chain(metrics).collect()
}

/// Gradients and terms of one micro-batch.
fn micro_batch(site: &Site<'_>, loss: &Loss, weights: Weights<'_>, rows: &[Tensor]) -> Gathered {
    let metrics = terms(
        site,
        loss,
        weights,
        &RowTensors::new(rows, &loss.fields),
        true,
    );
    let of = &metrics[0].value;
    let wrt: Vec<&Tensor> = weights.params.iter().chain(weights.scaling).collect();
    let mut gradients = of.graph().grad(of, &wrt);
    // In the place of a history's gradient stands its next value: it is assigned, and goes no further with the gradients.
    let scaling = gradients.split_off(weights.params.len());
    Gathered {
        gradients,
        scaling: site.data.largest(&scaling),
        metrics,
    }
}

impl Gathered {
    /// Gradients, then metrics, joined with those so far.
    fn joined(&self, gradients: &[Tensor], metrics: &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>) {
        let sums = gradients.iter().zip(&self.gradients).map(|(a, b)| a + b);
        let values = self.metrics.iter().zip(metrics);
        let values = values.map(|(m, before)| m.combine.apply(before, &m.value));
        (sums.collect(), values.collect())
    }

    pub(super) fn values(&self) -> Vec<Tensor> {
        self.metrics.iter().map(|m| m.value.clone()).collect()
    }

    pub(super) fn layout(&self, site: &Site<'_>) -> Result<Layout, Error> {
        let names: Vec<&str> = self.metrics.iter().map(|m| m.name.as_str()).collect();
        scalars(site, &names)
    }
}

/// The micro-batch at a place of stacked ones.
fn at(rows: &[Tensor], place: &Tensor) -> Vec<Tensor> {
    let first = place.scalar_like(0.0);
    let one = |t: &Tensor| {
        let dims = t.dims();
        let starts: Vec<&Tensor> = std::iter::once(place)
            .chain(dims[1..].iter().map(|_| &first))
            .collect();
        let sizes = [&[1], &dims[1..]].concat();
        t.dynamic_slice(&starts, &sizes).reshape(&dims[1..])
    };
    rows.iter().map(one).collect()
}

/// The first micro-batch, then a loop over the others, of which there are as many as `count` says: gradients are added in the
/// memory of the first.
fn micro_batches(
    site: &Site<'_>,
    loss: &Loss,
    weights: Weights<'_>,
    rows: &[Tensor],
    count: &Tensor,
) -> Gathered {
    let mut gathered = micro_batch(site, loss, weights, &at(rows, &count.scalar_like(0.0)));
    if rows[0].dim(0) == 1 {
        return gathered;
    }
    let (parameters, histories) = (gathered.gradients.len(), gathered.scaling.len());
    let mut so_far = [
        gathered.gradients.clone(),
        gathered.scaling.clone(),
        gathered.values(),
    ]
    .concat();
    so_far.push(count.scalar_like(1.0));
    let mut sums = count.graph().while_loop(
        so_far,
        |so_far| so_far[so_far.len() - 1].lt(count),
        |so_far| {
            let (place, so_far) = so_far.split_last().expect("a place is counted");
            let (gradients, rest) = so_far.split_at(parameters);
            let (scaling, metrics) = rest.split_at(histories);
            let weights = Weights { scaling, ..weights };
            let own = micro_batch(site, loss, weights, &at(rows, place));
            let (sums, values) = own.joined(gradients, metrics);
            [sums, own.scaling, values, vec![place + 1.0]].concat()
        },
    );
    sums.pop();
    let values = sums.split_off(parameters + histories);
    gathered.scaling = sums.split_off(parameters);
    gathered.gradients = sums;
    for (metric, value) in gathered.metrics.iter_mut().zip(values) {
        metric.value = value;
    }
    gathered
}

/// The same over the data shards; `rows` are stacked micro-batches.
pub(super) fn stacked(
    site: &Site<'_>,
    loss: &Loss,
    weights: Weights<'_>,
    rows: &[Tensor],
    count: &Tensor,
) -> Gathered {
    let g = rows[0].graph();
    let made = [site.params, site.scaling];
    site.data.gather(g, made, (rows, 1), |rows| {
        micro_batches(site, loss, weights, rows, count)
    })
}

/// Traces and compiles the gradient program of a loss for `[rows, width]` rows; `adds` to an accumulation or begins one.
pub(crate) fn gradient_program(
    site: &Site<'_>,
    loss: &Loss,
    rows: usize,
    width: usize,
    adds: bool,
) -> Result<GradientProgram, Error> {
    site.check(loss)?;
    let layout = site.rows(rows, width, &loss.fields)?;
    let name = format!("{}_{}", if adds { "more" } else { "first" }, loss.name);
    let mut builder = Builder::new(&name, site.mesh, site.rules);
    let given = Given::input(site, &mut builder, &layout);
    let (g, made) = (builder.graph(), [site.params, site.scaling]);
    let gathered = site.data.gather(g, made, (&given.rows, 0), |rows| {
        micro_batch(site, loss, given.weights(), rows)
    });
    let metrics = gathered.layout(site)?;
    if adds {
        let sums = builder.input("gradients", site.accumulators);
        let before = builder.input("metrics", &metrics);
        let (gradients, values) = gathered.joined(&sums, &before);
        builder.output_replacing(site.accumulators, &gradients, &sums);
        builder.output_replacing(&metrics, &values, &before);
    } else {
        builder.output(site.accumulators, &gathered.gradients);
        builder.output(&metrics, &gathered.values());
    }
    builder.output(
        &scalars(site, &["loss"])?,
        &[gathered.metrics[0].value.clone()],
    );
    builder.output(site.scaling, &gathered.scaling);
    Ok(GradientProgram {
        program: builder.compile(site.client)?,
        rows: layout,
        fields: loss.fields.clone(),
    })
}

/// Evaluation: parameters, rows → what a gradient program also reports, without a gradient.
pub(crate) fn evaluation_program(
    site: &Site<'_>,
    loss: &Loss,
    rows: usize,
    width: usize,
) -> Result<GradientProgram, Error> {
    let layout = site.rows(rows, width, &loss.fields)?;
    let mut builder = Builder::new(&format!("evaluate_{}", loss.name), site.mesh, site.rules);
    let given = Given::input(site, &mut builder, &layout);
    let rows = RowTensors::new(&given.rows, &loss.fields);
    let metrics = terms(site, loss, given.weights(), &rows, false);
    let names: Vec<&str> = metrics.iter().map(|m| m.name.as_str()).collect();
    let values: Vec<Tensor> = metrics.iter().map(|m| m.value.clone()).collect();
    builder.output(&scalars(site, &names)?, &values);
    Ok(GradientProgram {
        program: builder.compile(site.client)?,
        rows: layout,
        fields: loss.fields.clone(),
    })
}
