//! What can go wrong in the engine.

use std::path::PathBuf;

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program could not be compiled, started or finished.
    #[error(transparent)]
    Program(#[from] ferrotune_program::Error),
    /// A parameter or a batch cannot be placed on the mesh.
    #[error(transparent)]
    Placement(#[from] ferrotune_graph::PlacementError),
    /// Parameters that are not those of the model.
    #[error("parameter `{path}`: {reason}")]
    Parameter {
        /// Path of the parameter.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Adapters that the model cannot have.
    #[error(transparent)]
    Model(#[from] ferrotune_models::Error),
    /// A pattern of frozen parameters that fits none.
    #[error("no parameter fits the pattern `{pattern}`; there are {}", paths.join(", "))]
    IdlePattern {
        /// The pattern.
        pattern: String,
        /// Paths of all parameters.
        paths: Vec<String>,
    },
    /// Rows that the devices which share them cannot cut.
    #[error(transparent)]
    Rows(#[from] ferrotune_batch::Refused),
    /// An order that differs from row to row, for a model that reads rows in their natural order.
    #[error(
        "a model of the family {family} reads rows in their natural order, in which attention can be evened out by the order \
         dual_chunk_swap but not by balanced, which differs from row to row"
    )]
    RowOrder {
        /// The family.
        family: &'static str,
    },
    /// Settings of routers for a model without experts.
    #[error(
        "a model of the family {family} has no experts: leave load balance, capacity and replay of routes out"
    )]
    NoExperts {
        /// The family.
        family: &'static str,
    },
    /// A capacity of experts that is none.
    #[error("the capacity factor of experts must be a number above 0, found {factor}")]
    CapacityFactor {
        /// The factor.
        factor: f64,
    },
    /// A document beyond what the rotary scaling of the model covers.
    #[error(
        "a document in row {row} has more than {longest} tokens, the most that ferrotune takes with longrope scaling: cut it"
    )]
    LongDocument {
        /// Its row.
        row: usize,
        /// The most tokens.
        longest: usize,
    },
    /// Rows that name another number of experts than the model sends a token to.
    #[error(
        "the rows name {found} experts of each token; the model has {layers} layers with experts, with {top_k} for each token"
    )]
    ExpertsPerToken {
        /// As named.
        found: usize,
        /// Layers with experts.
        layers: usize,
        /// Experts of each token.
        top_k: usize,
    },
    /// An expert that the model has not got.
    #[error(
        "the token in row {row}, column {column} is to go to expert {id}, but there are {count}; -1 leaves the choice to the router"
    )]
    ExpertId {
        /// The expert.
        id: i16,
        /// The token's row.
        row: usize,
        /// Its column.
        column: usize,
        /// Experts of a layer.
        count: usize,
    },
    /// Patterns of frozen parameters that fit all of them.
    #[error("every parameter is frozen, so nothing would learn: take away a pattern")]
    NothingLearns,
    /// `update` or a reading of gradients before any `forward_backward`.
    #[error("there is no gradient: call forward_backward first")]
    NoGradient,
    /// A whole step in the middle of an accumulation.
    #[error("a whole step cannot join an accumulation: update or abandon it first")]
    Unfinished,
    /// What the optimizer keeps is to be split over devices with the same weights, of which there are none.
    #[error(
        "nothing can be sharded over data: no mesh axis of two devices or more splits rows alone; make one larger or leave what the \
         optimizer keeps where its parameters lie"
    )]
    NotOverData,
    /// A micro-batch with another loss than those already accumulated.
    #[error(
        "loss `{given}` cannot join an accumulation of loss `{accumulating}`: update or abandon it first"
    )]
    MixedLosses {
        /// The loss of the accumulation.
        accumulating: String,
        /// The loss that was given.
        given: String,
    },
    /// Rows without a field that the loss reads.
    #[error("loss `{loss}` reads the per-token field `{field}`, which the rows do not have")]
    MissingField {
        /// Name of the loss.
        loss: String,
        /// Name of the field.
        field: &'static str,
    },
    /// A loss whose gradient cannot be formed chunk by chunk.
    #[error(
        "loss `{loss}` is not a sum over tokens of what each token has, so the single pass of the log-prob head cannot form \
         its gradient: use the head mode `fused`"
    )]
    NotSeparable {
        /// Name of the loss.
        loss: String,
    },
    /// A token id outside of the vocabulary.
    #[error(
        "token id {id} in row {row}, column {column} is outside of the vocabulary of {vocabulary}"
    )]
    TokenId {
        /// The id.
        id: i32,
        /// Its row.
        row: usize,
        /// Its column.
        column: usize,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// A gradient that is not finite, where that ends a run.
    #[error("the gradient norm of update {step} is {grad_norm}; nothing was changed by it")]
    NotFinite {
        /// The update.
        step: u64,
        /// The norm.
        grad_norm: f64,
    },
    /// Rows of another shape than all those that there are programs for, of which there are as many as there may be.
    #[error(
        "rows of {} tokens would be one more shape to compile for, after {}: cut and fill batches to one shape, or raise max_shapes",
        times(given), seen.iter().map(times).collect::<Vec<_>>().join(", ")
    )]
    TooManyShapes {
        /// Rows and tokens a row that were given.
        given: [usize; 2],
        /// Those that there are programs for.
        seen: Vec<[usize; 2]>,
    },
    /// The state was given to a program that failed; nothing is left to continue from.
    #[error("the state was lost when an earlier step failed: restore a checkpoint")]
    StateLost,
    /// There is no checkpoint.
    #[error("there is no checkpoint at {}", path.display())]
    Absent {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A checkpoint file is damaged.
    #[error("checkpoint file {} is damaged: {reason}; remove its folder to go on from the checkpoint before it", file.display())]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// How it was noticed.
        reason: String,
    },
    /// A checkpoint of another model or another optimizer.
    #[error("checkpoint {} does not fit this run:\n  {}", path.display(), differences.join("\n  "))]
    Incompatible {
        /// The checkpoint.
        path: PathBuf,
        /// Everything that differs.
        differences: Vec<String>,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// `4 x 512`.
fn times([rows, width]: &[usize; 2]) -> String {
    format!("{rows} x {width}")
}

impl Error {
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}
