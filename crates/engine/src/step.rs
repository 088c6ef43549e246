//! The programs of a training step. Each is traced once per shape and loss, and called with a fixed list of groups.

mod gradient;
mod update;

use ferrotune_batch::Field;
use ferrotune_graph::{DType, Mesh, Rules};
use ferrotune_models::{Feed, LayerKind, ModelConfig};
use ferrotune_nn::{EntropyUse, HeadMode, Params};
use ferrotune_pjrt::Client;
use ferrotune_program::{Builder, Layout, Leaf, Program};

use gradient::{Given, Weights};
pub(crate) use gradient::{GradientProgram, evaluation_program, gradient_program};
pub(crate) use update::{GROUP, StepProgram, UpdateProgram, step_program, update_program};

use crate::batch::{self, Replayed, RowTensors};
use crate::data_shards::DataShards;
use crate::engine::EngineConfig;
use crate::error::Error;
use crate::loss::Loss;
use crate::order::TokenOrder;
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
    /// What the optimizer keeps.
    pub(crate) state: &'a Layout,
    /// Gradients between micro-batches.
    pub(crate) accumulators: &'a Layout,
    /// The parameters that learn, split as what the optimizer keeps of them.
    pub(crate) parts: &'a Layout,
    /// The devices that gather gradients of their own.
    pub(crate) data: &'a DataShards,
    /// How rows go to the devices that share them.
    pub(crate) order: TokenOrder,
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
        self.order.check(width)?;
        let replayed = self.replayed();
        Ok(batch::layout(
            self.mesh, self.rules, rows, width, fields, replayed,
        )?)
    }

    /// Refuses a loss that the head cannot form.
    fn check(&self, loss: &Loss) -> Result<(), Error> {
        if self.config.head.mode == HeadMode::SinglePass && !loss.separable {
            return Err(Error::NotSeparable {
                loss: loss.name.clone(),
            });
        }
        Ok(())
    }

    /// The tree of all parameters, with the histories beside them.
    fn tree(&self, weights: Weights<'_>) -> Params {
        let names = self.params.names().chain(self.frozen.names());
        let names = names.chain(self.scaling.names());
        let tensors = weights.params.iter().chain(weights.frozen);
        let tensors = tensors.chain(weights.scaling).cloned();
        let scale = self.config.trains.adapter_scale();
        Params::new(names.map(str::to_owned).zip(tensors)).with_adapter_scale(scale)
    }
}

/// f32 scalars by name: metrics, or what else a program says of its work.
pub(crate) fn scalars(site: &Site<'_>, names: &[&str]) -> Result<Layout, Error> {
    let leaves: Vec<Leaf> = names
        .iter()
        .map(|n| Leaf::new(n, DType::F32, &[], &[]))
        .collect();
    Ok(Layout::new(site.mesh, site.rules, &leaves)?)
}

/// A copy: parameters that learn → the same in memory of their own.
pub(crate) fn snapshot_program(site: &Site<'_>) -> Result<Program, Error> {
    let mut builder = Builder::new("snapshot", site.mesh, site.rules);
    let params = builder.input("params", site.params);
    builder.output(site.params, &params);
    Ok(builder.compile(site.client)?)
}

/// Scoring: parameters, rows, numbers of filters if there are any → log-probabilities, entropies, and what the filters leave.
pub(crate) struct ScoreProgram {
    pub(crate) program: Program,
    pub(crate) rows: Layout,
    pub(crate) filters: Option<Layout>,
}

/// Traces and compiles scoring for `[rows, width]` rows.
pub(crate) fn score_program(
    site: &Site<'_>,
    rows: usize,
    width: usize,
    filtered: bool,
) -> Result<ScoreProgram, Error> {
    let layout = site.rows(rows, width, &[])?;
    let mut builder = Builder::new("score", site.mesh, site.rules);
    let given = Given::input(site, &mut builder, &layout);
    let tree = site.tree(given.weights());
    let rows_of = RowTensors::new(&given.rows, &[]);
    let entropy = EntropyUse::Reported;
    let ahead = Ahead::new(site, &tree, &rows_of, entropy, false);
    let tokens = ahead.scores(&rows_of);
    let leaf = |name: &str, dtype| Leaf::new(name, dtype, &[rows, width], &["batch", "tokens"]);
    let mut leaves = vec![leaf("logprob", DType::F32), leaf("entropy", DType::F32)];
    let mut found = vec![tokens.logprob, tokens.entropy];
    let filters = filtered.then(|| scalars(site, &["top_k", "top_p", "min_p"]));
    let filters = filters.transpose()?;
    if let Some(filters) = &filters {
        let kept = ahead.kept(&rows_of, &builder.input("filters", filters));
        leaves.extend([leaf("kept", DType::F32), leaf("may_be_drawn", DType::Pred)]);
        found.extend([kept.mass, kept.target]);
    }
    let out = Layout::new(site.mesh, site.rules, &leaves)?;
    builder.output(&out, &found);
    Ok(ScoreProgram {
        program: builder.compile(site.client)?,
        rows: layout,
        filters,
    })
}
