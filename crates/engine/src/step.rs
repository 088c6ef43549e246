//! The programs of a training step. Each is traced once per shape and loss, and called with a fixed list of groups.

use ferrotune_batch::Field;
use ferrotune_graph::{DType, Mesh, Rules, Tensor};
use ferrotune_models::{Feed, LayerKind, ModelConfig};
use ferrotune_nn::{Combine, EntropyUse, HeadMode, Params};
use ferrotune_pjrt::Client;
use ferrotune_program::{Builder, Layout, Leaf, Program};

use crate::batch::{self, Replayed, RowTensors};
use crate::engine::{EngineConfig, fits};
use crate::error::Error;
use crate::loss::{Loss, LossInputs, LossTerms, Metric};
use crate::optimizer;
use crate::scores::Ahead;

/// What every program of an engine is traced from.
pub(crate) struct Site<'a> {
    pub(crate) client: &'a Client,
    pub(crate) mesh: &'a Mesh,
    pub(crate) rules: &'a Rules,
    pub(crate) model: &'a ModelConfig,
    pub(crate) config: &'a EngineConfig,
    /// Those that learn.
    pub(crate) params: &'a Layout,
    /// Those that do not.
    pub(crate) frozen: &'a Layout,
    /// Histories of 8-bit products.
    pub(crate) scaling: &'a Layout,
}

impl Site<'_> {
    /// What rows say of experts, if tokens are sent where they say.
    pub(crate) fn replayed(&self) -> Option<Replayed> {
        let sizes = self.model.experts.filter(|_| self.config.router.replay)?;
        let sparse = |kind: &&LayerKind| kind.feed == Feed::Experts;
        Some(Replayed {
            layers: self.model.layers.iter().filter(sparse).count(),
            top_k: sizes.top_k,
            count: sizes.count,
        })
    }

    /// The arrays of a micro-batch whose rows have these fields.
    fn rows(&self, rows: usize, width: usize, fields: &[Field]) -> Result<Layout, Error> {
        let replayed = self.replayed();
        Ok(batch::layout(
            self.mesh, self.rules, rows, width, fields, replayed,
        )?)
    }

    /// The tree of all parameters, with the histories beside them.
    fn tree(&self, [trained, frozen, scaling]: [&[Tensor]; 3]) -> Params {
        let names = self.params.names().chain(self.frozen.names());
        let names = names.chain(self.scaling.names());
        let tensors = trained.iter().chain(frozen).chain(scaling).cloned();
        let scale = self.config.trains.adapter_scale();
        Params::new(names.map(str::to_owned).zip(tensors)).with_adapter_scale(scale)
    }
}

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

/// f32 scalars by name: metrics, or what else a program says of its work.
pub(crate) fn scalars(site: &Site<'_>, names: &[&str]) -> Result<Layout, Error> {
    let leaves: Vec<Leaf> = names
        .iter()
        .map(|n| Leaf::new(n, DType::F32, &[], &[]))
        .collect();
    Ok(Layout::new(site.mesh, site.rules, &leaves)?)
}

/// What a micro-batch is worth: the loss, then the loss's own metrics. With `differentiated` the loss may be formed together
/// with its gradient.
fn terms(
    site: &Site<'_>,
    loss: &Loss,
    groups: [&[Tensor]; 3],
    rows: &RowTensors,
    differentiated: bool,
) -> Vec<Metric> {
    let tree = site.tree(groups);
    let ahead = Ahead::new(site.model, site.config, &tree, rows, loss.entropy, true);
    let g = rows.loss_weight.graph().clone();
    let LossTerms {
        loss: mut value,
        mut metrics,
    } = if differentiated && site.config.head.mode == HeadMode::SinglePass {
        ahead.single_pass(loss, rows)
    } else {
        let tokens = ahead.scores();
        let inputs = LossInputs {
            logprob: tokens.logprob,
            entropy: tokens.entropy,
            loss_weight: rows.loss_weight.clone(),
            fields: rows.fields.iter().cloned().collect(),
        };
        g.scope("loss", || (loss.build)(&inputs))
    };
    if let Some(balance) = ahead.load_balance(rows) {
        value = value + &balance * site.config.router.load_balance;
        metrics.push(Metric {
            name: "load_balance".to_owned(),
            value: balance,
            combine: Combine::Sum,
        });
    }
    let value = Metric {
        name: "loss".to_owned(),
        value,
        combine: Combine::Sum,
    };
    std::iter::once(value).chain(metrics).collect()
}

/// Traces and compiles the gradient program of a loss for `[rows, width]` rows; `adds` to an accumulation or begins one.
pub(crate) fn gradient_program(
    site: &Site<'_>,
    loss: &Loss,
    rows: usize,
    width: usize,
    adds: bool,
) -> Result<GradientProgram, Error> {
    if site.config.head.mode == HeadMode::SinglePass && !loss.separable {
        return Err(Error::NotSeparable {
            loss: loss.name.clone(),
        });
    }
    let layout = site.rows(rows, width, &loss.fields)?;
    let name = format!("{}_{}", if adds { "more" } else { "first" }, loss.name);
    let mut builder = Builder::new(&name, site.mesh, site.rules);
    let params = builder.input("params", site.params);
    let frozen = builder.input("frozen", site.frozen);
    let arguments = builder.input("rows", &layout);
    let row_tensors = RowTensors::new(&arguments, &loss.fields);
    let scaling = builder.input("scaling", site.scaling);
    let groups = [&params[..], &frozen, &scaling];
    let metrics = terms(site, loss, groups, &row_tensors, true);
    let wrt: Vec<&Tensor> = params.iter().chain(&scaling).collect();
    let mut gradients = builder.graph().grad(&metrics[0].value, &wrt);
    // In the place of a history's gradient stands its next value: it is assigned, and goes no further with the gradients.
    let scaling = gradients.split_off(params.len());
    let names: Vec<&str> = metrics.iter().map(|m| m.name.as_str()).collect();
    let metric_layout = scalars(site, &names)?;
    let own_loss = metrics[0].value.clone();
    if adds {
        let sums = builder.input("gradients", site.params);
        let before = builder.input("metrics", &metric_layout);
        let gradients: Vec<Tensor> = sums.iter().zip(&gradients).map(|(a, b)| a + b).collect();
        let values: Vec<Tensor> = metrics
            .iter()
            .zip(&before)
            .map(|(m, b)| m.combine.apply(b, &m.value))
            .collect();
        builder.output_replacing(site.params, &gradients, &sums);
        builder.output_replacing(&metric_layout, &values, &before);
    } else {
        let values: Vec<Tensor> = metrics.iter().map(|m| m.value.clone()).collect();
        builder.output(site.params, &gradients);
        builder.output(&metric_layout, &values);
    }
    builder.output(&scalars(site, &["loss"])?, &[own_loss]);
    builder.output(site.scaling, &scaling);
    Ok(GradientProgram {
        program: builder.compile(site.client)?,
        rows: layout,
        fields: loss.fields.clone(),
    })
}

/// What stands before a pattern in the name of its norm.
pub(crate) const GROUP: &str = "grad_norm/";

/// The update: parameters (moved), optimizer state (moved), gradients (moved), learning rate → parameters, state, report.
pub(crate) struct UpdateProgram {
    pub(crate) program: Program,
    pub(crate) rate: Layout,
}

/// Traces and compiles the update.
pub(crate) fn update_program(site: &Site<'_>, state: &Layout) -> Result<UpdateProgram, Error> {
    let mut builder = Builder::new("update", site.mesh, site.rules);
    let rate = scalars(site, &["learning_rate"])?;
    let patterns = &site.config.group_norms;
    let place = |pattern: &String| -> Vec<usize> {
        let names = site.params.names().enumerate();
        names
            .filter_map(|(i, name)| fits(pattern, name).then_some(i))
            .collect()
    };
    let groups: Vec<Vec<usize>> = patterns.iter().map(place).collect();
    let names: Vec<String> = patterns.iter().map(|it| format!("{GROUP}{it}")).collect();
    let names = names.iter().map(String::as_str);
    let names: Vec<&str> = ["grad_norm", "skipped"].into_iter().chain(names).collect();
    let report = scalars(site, &names)?;
    let params = builder.input("params", site.params);
    let moments = builder.input("optimizer", state);
    let gradients = builder.input_donated("gradients", site.params);
    let learning_rate = builder.input("rate", &rate);
    let g = builder.graph().clone();
    let new = g.scope("optimizer", || {
        optimizer::update(
            &site.config.optimizer,
            site.params,
            &params,
            &moments,
            &gradients,
            &learning_rate[0],
            &groups,
        )
    });
    builder.output_replacing(site.params, &new.params, &params);
    builder.output_replacing(state, &new.state, &moments);
    let norms = [new.grad_norm, new.skipped].into_iter();
    let norms: Vec<Tensor> = norms.chain(new.group_norms).collect();
    builder.output(&report, &norms);
    Ok(UpdateProgram {
        program: builder.compile(site.client)?,
        rate,
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
    let params = builder.input("params", site.params);
    let frozen = builder.input("frozen", site.frozen);
    let arguments = builder.input("rows", &layout);
    let rows = RowTensors::new(&arguments, &loss.fields);
    let scaling = builder.input("scaling", site.scaling);
    let metrics = terms(site, loss, [&params, &frozen, &scaling], &rows, false);
    let names: Vec<&str> = metrics.iter().map(|m| m.name.as_str()).collect();
    let values: Vec<Tensor> = metrics.iter().map(|m| m.value.clone()).collect();
    builder.output(&scalars(site, &names)?, &values);
    Ok(GradientProgram {
        program: builder.compile(site.client)?,
        rows: layout,
        fields: loss.fields.clone(),
    })
}

/// A copy: parameters that learn → the same in memory of their own.
pub(crate) fn snapshot_program(site: &Site<'_>) -> Result<Program, Error> {
    let mut builder = Builder::new("snapshot", site.mesh, site.rules);
    let params = builder.input("params", site.params);
    builder.output(site.params, &params);
    Ok(builder.compile(site.client)?)
}

/// Scoring: parameters, rows → log-probabilities and entropies.
pub(crate) struct ScoreProgram {
    pub(crate) program: Program,
    pub(crate) rows: Layout,
}

/// Traces and compiles scoring for `[rows, width]` rows.
pub(crate) fn score_program(
    site: &Site<'_>,
    rows: usize,
    width: usize,
) -> Result<ScoreProgram, Error> {
    let layout = site.rows(rows, width, &[])?;
    let mut builder = Builder::new("score", site.mesh, site.rules);
    let params = builder.input("params", site.params);
    let frozen = builder.input("frozen", site.frozen);
    let arguments = builder.input("rows", &layout);
    let scaling = builder.input("scaling", site.scaling);
    let tree = site.tree([&params, &frozen, &scaling]);
    let rows_of = RowTensors::new(&arguments, &[]);
    let entropy = EntropyUse::Reported;
    let tokens = Ahead::new(site.model, site.config, &tree, &rows_of, entropy, false).scores();
    let leaf = |name: &str| Leaf::new(name, DType::F32, &[rows, width], &["batch", "tokens"]);
    let out = Layout::new(site.mesh, site.rules, &[leaf("logprob"), leaf("entropy")])?;
    builder.output(&out, &[tokens.logprob, tokens.entropy]);
    Ok(ScoreProgram {
        program: builder.compile(site.client)?,
        rows: layout,
    })
}
