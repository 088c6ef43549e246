//! What an engine is compiled for: settings, and whether they fit a model.

use ferrotune_batch::OrderKind;
use ferrotune_graph::{DType, Policy};
use ferrotune_models::{Lora, ModelConfig};
use ferrotune_nn::HeadSettings;
use ferrotune_pjrt::Memory;

use super::Division;
use crate::data_shards::ShardOverData;
use crate::error::Error;
use crate::optimizer::Optimizer;

/// Settings of an engine. All of them are compiled into its programs.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Element type of activations and matrix products; parameters and moments are f32.
    pub compute: DType,
    /// Largest magnitudes that 8-bit products of linear layers remember, one for each micro-batch; 0 multiplies in `compute`.
    ///
    /// Every micro-batch moves the histories on, in the order in which they are given: over an accumulation the newest wins, and
    /// neither a dropped accumulation nor a refused update takes them back. They are those of the rows of all devices; only while
    /// a history is empty, each data shard scales by what it sees itself.
    pub fp8_history: usize,
    /// What layers keep for the backward pass.
    pub policy: Policy,
    /// How the log-prob head works.
    pub head: HeadSettings,
    /// Temperature of the distributions that are scored; positive.
    pub temperature: f64,
    /// How gradients become updates.
    pub optimizer: Optimizer,
    /// Micro-batches that the host may hand to the device before the first of them is done; at least 1. More hold the memory
    /// of all their inputs and results at once, and more than 2 make nothing faster.
    pub max_inflight: usize,
    /// Shapes of rows that may be compiled for; at least 1. More are an error, since a run that compiles again and again is slow
    /// without a word.
    pub max_shapes: usize,
    /// Patterns of paths, in which `*` stands for any characters: the gradient norm of the parameters that fit each is reported.
    pub group_norms: Vec<String>,
    /// Which parameters learn.
    pub trains: Trains,
    /// How far moments and accumulated gradients are split over devices that have the same weights.
    pub shard_over_data: ShardOverData,
    /// What lies in the memory of the host while no program reads it.
    pub offload: Offload,
    /// What is asked of routers, in models with experts.
    pub router: RouterSettings,
    /// Which tokens of a row each device has, where the rules split `tokens`. Rows are given, and scores returned, in their
    /// natural order. Models with a recurrence have the natural order on the devices too, where only the queries of attention
    /// change places.
    pub order: OrderKind,
}

/// What lies in the memory of the host while no program reads it. The numbers are the same to the last bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// Nothing.
    #[default]
    Nothing,
    /// What the optimizer keeps: it is brought in for an update and taken back behind it, so that devices have its memory for
    /// what layers keep. A whole step has nothing to give back in its midst, and is done in its parts.
    Moments,
}

impl Offload {
    /// Where the arrays of the optimizer rest.
    pub(super) fn rest(self) -> Memory {
        match self {
            Offload::Nothing => Memory::Device,
            Offload::Moments => Memory::Host,
        }
    }
}

/// What is asked of the routers of a model with experts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RouterSettings {
    /// Weight of the load-balance loss; 0 leaves it out.
    pub load_balance: f64,
    /// Whether tokens go to the experts that the rows' field `expert_ids` names, where it names one.
    pub replay: bool,
    /// Experts take so many times a row's even share of its tokens, `⌈capacity_factor · T · J / X⌉` of a row of `T` tokens that
    /// each choose `J` of `X` experts, and drop those that come later: how many choices were dropped in layer `i` is the metric
    /// `experts/dropped/i`. The sampler drops nothing. `None` drops nothing here either.
    pub capacity_factor: Option<f64>,
}

/// Which parameters learn. The others get no gradient, no moments and no place in an accumulation.
#[derive(Clone, Debug, PartialEq)]
pub enum Trains {
    /// All of the model's.
    All,
    /// All but those whose path fits one of these patterns, in which `*` stands for any characters.
    AllBut(Vec<String>),
    /// Adapters alone.
    Adapters(Lora),
}

impl Trains {
    /// What products of adapters are multiplied by; 1 without adapters.
    pub fn adapter_scale(&self) -> f64 {
        match self {
            Trains::Adapters(lora) => lora.scale(),
            Trains::All | Trains::AllBut(_) => 1.0,
        }
    }

    /// Whether it fits the model: what [`Engine::new`](super::Engine::new) would say of it.
    ///
    /// # Errors
    /// A pattern that fits no parameter, patterns that fit all, adapters that the model cannot have.
    pub fn check(&self, model: &ModelConfig) -> Result<(), Error> {
        Division::of(model, self).map(|_| ())
    }

    /// Whether each pattern of [`EngineConfig::group_norms`] fits a parameter that learns.
    ///
    /// # Errors
    /// [`Error::IdlePattern`] for the first that fits none; what [`Self::check`] says.
    pub fn check_groups(&self, model: &ModelConfig, patterns: &[String]) -> Result<(), Error> {
        Division::of(model, self)?.check_groups(patterns)
    }
}

impl RouterSettings {
    /// Whether it fits the model: what [`Engine::new`](super::Engine::new) would say of it.
    ///
    /// # Errors
    /// [`Error::NoExperts`]; [`Error::CapacityFactor`] for one that is no number above 0.
    pub fn check(&self, model: &ModelConfig) -> Result<(), Error> {
        let factor = self.capacity_factor.unwrap_or(1.0);
        if !factor.is_finite() || factor <= 0.0 {
            return Err(Error::CapacityFactor { factor });
        }
        if model.experts.is_none() && *self != Self::default() {
            return Err(Error::NoExperts {
                family: model.family.model_type(),
            });
        }
        Ok(())
    }
}
