//! What can be wrong with a batch or its settings: one variant a problem, and the report that collects them.

use std::fmt;

use crate::option::{Idle, PackingOption};

/// One problem, with its place. Trajectories and tokens are counted from 0.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// There is nothing to pack.
    #[error("the batch has no trajectories; give at least one")]
    NoTrajectories,
    /// A trajectory without tokens.
    #[error("trajectory {trajectory} has no tokens; leave it out of the batch")]
    EmptyTrajectory {
        /// Index in the batch.
        trajectory: usize,
    },
    /// A trajectory that does not fit a row.
    #[error("{}", self.told(PackingOption::name))]
    TooLong {
        /// Index in the batch.
        trajectory: usize,
        /// Its tokens.
        tokens: usize,
        /// Tokens that a row holds.
        budget: usize,
    },
    /// A per-token field, loss mask or weight of another length than the tokens.
    #[error(
        "trajectory {trajectory}: {field} has {} for {}; give {} a token",
        counted(*.values, "value"), counted(*.tokens, "token"), counted(*.per_token, "value")
    )]
    FieldLength {
        /// Index in the batch.
        trajectory: usize,
        /// The field's name.
        field: &'static str,
        /// Its values.
        values: usize,
        /// The trajectory's tokens.
        tokens: usize,
        /// How many values belong to each token.
        per_token: usize,
    },
    /// A field with another number of values a token than the first trajectory that has it.
    #[error(
        "trajectory {trajectory}: {field} has {} a token, and trajectory {first} has {}; give all as many",
        counted(*.per_token, "value"), counted(*.expected, "value")
    )]
    FieldWidth {
        /// Index in the batch.
        trajectory: usize,
        /// The field's name.
        field: &'static str,
        /// Its values a token.
        per_token: usize,
        /// The first trajectory that has the field.
        first: usize,
        /// The values a token there.
        expected: usize,
    },
    /// A field that only some trajectories have.
    #[error(
        "field {field} is in {present} of {total} trajectories, and trajectory {missing} lacks it; \
         give it to all or to none"
    )]
    FieldMissing {
        /// The field's name.
        field: &'static str,
        /// How many trajectories have it.
        present: usize,
        /// How many there are.
        total: usize,
        /// The first that lacks it.
        missing: usize,
    },
    /// NaN or an infinity, which would reach the loss even under a weight of 0.
    #[error("trajectory {trajectory}: {field} is {value} at token {token}; values must be finite")]
    NotFinite {
        /// Index in the batch.
        trajectory: usize,
        /// The field's name.
        field: &'static str,
        /// Index in the trajectory.
        token: usize,
        /// What is there.
        value: f32,
    },
    /// A whole number below what its field allows.
    #[error("trajectory {trajectory}: {field} is {value} at token {token}; the least is {least}")]
    TooSmall {
        /// Index in the batch.
        trajectory: usize,
        /// The field's name.
        field: &'static str,
        /// Index in the trajectory.
        token: usize,
        /// What is there.
        value: i64,
        /// The least that may be there.
        least: i64,
    },
    /// A loss mask that asks for the first token.
    #[error(
        "trajectory {trajectory}: the loss mask asks for token 0, which nothing predicts; \
         clear it, or use `predictable_mask`"
    )]
    FirstTokenTrained {
        /// Index in the batch.
        trajectory: usize,
    },
    /// A token id that the model does not have.
    #[error(
        "trajectory {trajectory}: id {id} at token {token} is outside the vocabulary of {vocab_size}; \
         use the tokenizer that belongs to the model"
    )]
    TokenOutsideVocabulary {
        /// Index in the batch.
        trajectory: usize,
        /// Index in the trajectory.
        token: usize,
        /// The id.
        id: u32,
        /// Ids run from 0 up to this, not included.
        vocab_size: u32,
    },
    /// Loss weights of another batch.
    #[error(
        "there are loss weights for {weights} trajectories and {trajectories} trajectories; compute them for this batch"
    )]
    WeightCount {
        /// Trajectories that have weights.
        weights: usize,
        /// Trajectories in the batch.
        trajectories: usize,
    },
    /// A loss weight where the mask says none.
    #[error(
        "trajectory {trajectory}: loss weight {weight} at token {token}, where the loss mask is 0; \
         compute the weights from the masks of this batch"
    )]
    WeightOutsideMask {
        /// Index in the batch.
        trajectory: usize,
        /// Index in the trajectory.
        token: usize,
        /// The weight.
        weight: f32,
    },
    /// A size or count of 0.
    #[error("{}", self.told(PackingOption::name))]
    Zero {
        /// The option.
        option: PackingOption,
    },
    /// A budget that something does not divide.
    #[error("{}", self.told(PackingOption::name))]
    Indivisible {
        /// Tokens that a row holds.
        budget: usize,
        /// The option that does not divide it.
        option: PackingOption,
        /// That option's value.
        value: usize,
        /// Whether it is twice the value that has to divide.
        twice: bool,
        /// The multiple below.
        below: usize,
        /// The multiple above.
        above: usize,
    },
    /// Rows that data shards cannot share evenly.
    #[error("{}", self.told(PackingOption::name))]
    UnevenRows {
        /// Rows of a micro-batch.
        rows: usize,
        /// Shards that share them.
        shards: usize,
        /// The multiple below.
        below: usize,
        /// The multiple above.
        above: usize,
    },
    /// A number of rows that does not make whole micro-batches.
    #[error("{}", self.told(PackingOption::name))]
    RowMultiple {
        /// As given.
        row_multiple: usize,
        /// Rows of a micro-batch.
        rows: usize,
    },
    /// Orders of other rows.
    #[error(
        "{orders} orders of {tokens} tokens do not fit {rows} rows of {width} tokens; make one for each of these rows"
    )]
    OrderCount {
        /// Orders given.
        orders: usize,
        /// Tokens of the first one that does not fit, or of any.
        tokens: usize,
        /// Rows.
        rows: usize,
        /// Tokens a row.
        width: usize,
    },
    /// Orders that cut their rows into different numbers of shards.
    #[error(
        "there are orders for {first} and for {other} context shards; use one number for all rows"
    )]
    MixedShards {
        /// Shards of the first order.
        first: usize,
        /// Shards of another.
        other: usize,
    },
    /// A list of tiles with no room for them.
    #[error(
        "row {row}, shard {shard} has {tiles} tiles, and there is room for {capacity}; raise the capacity"
    )]
    TileCapacity {
        /// The row.
        row: usize,
        /// The shard.
        shard: usize,
        /// Its tiles.
        tiles: usize,
        /// Tiles that the list holds.
        capacity: usize,
    },
    /// A start alignment that would move segments off their own alignment.
    #[error("{}", self.told(PackingOption::name))]
    PadAlign {
        /// As given.
        pad_align: usize,
        /// As given.
        segment_align: usize,
    },
    /// A start alignment that can never move a row.
    #[error("{}", self.told(PackingOption::name))]
    PadAlignTooLarge {
        /// As given.
        pad_align: usize,
        /// Tokens that a row holds.
        budget: usize,
    },
    /// An option that the others make idle.
    #[error("{}", self.told(PackingOption::name))]
    NoEffect {
        /// The idle option.
        option: PackingOption,
        /// Its value.
        value: String,
        /// What makes it idle.
        with: Idle,
    },
    /// A name that is not one of the known ones.
    #[error("unknown {what} `{given}`; known: {known}")]
    UnknownName {
        /// What was to be named.
        what: &'static str,
        /// As given.
        given: String,
        /// The names there are.
        known: &'static str,
    },
    /// `token-sum` without its constant.
    #[error("{}", self.told(PackingOption::name))]
    ConstantMissing,
    /// A constant that cannot divide.
    #[error("{}", self.told(PackingOption::name))]
    Constant {
        /// As given.
        constant: f64,
    },
    /// Rows beyond what can be addressed.
    #[error("{}", self.told(PackingOption::name))]
    TooLarge {
        /// Rows.
        rows: usize,
        /// Tokens that a row holds.
        budget: usize,
    },
    /// Per-token values that do not have the shape of the rows.
    #[error("{values} values do not fill {rows} rows of {width} tokens")]
    RowValues {
        /// Values given.
        values: usize,
        /// Rows.
        rows: usize,
        /// Tokens a row.
        width: usize,
    },
    /// Results of other trajectories than the rows hold.
    #[error("the rows hold trajectory {trajectory}, and there is room for {room}")]
    NoRoom {
        /// Index in the batch.
        trajectory: usize,
        /// Length of the list to write to.
        room: usize,
    },
}

/// "one value", "8 values".
fn counted(count: usize, thing: &str) -> String {
    match count {
        1 => format!("one {thing}"),
        n => format!("{n} {thing}s"),
    }
}

impl BatchError {
    /// The trajectory to blame, if it is one: its index in the batch.
    pub fn trajectory(&self) -> Option<usize> {
        use BatchError::*;
        match *self {
            EmptyTrajectory { trajectory }
            | TooLong { trajectory, .. }
            | FieldLength { trajectory, .. }
            | FieldWidth { trajectory, .. }
            | NotFinite { trajectory, .. }
            | TooSmall { trajectory, .. }
            | FirstTokenTrained { trajectory }
            | TokenOutsideVocabulary { trajectory, .. }
            | WeightOutsideMask { trajectory, .. } => Some(trajectory),
            FieldMissing { missing, .. } => Some(missing),
            _ => None,
        }
    }
}

/// Every problem that was found, in a fixed order. Never empty.
#[derive(Clone, PartialEq, Debug)]
pub struct Refused {
    problems: Vec<BatchError>,
}

impl Refused {
    /// `Ok` if there are no problems.
    pub(crate) fn unless_empty(problems: Vec<BatchError>) -> Result<(), Refused> {
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Refused { problems })
        }
    }

    /// The problems.
    pub fn problems(&self) -> &[BatchError] {
        &self.problems
    }
}

impl From<BatchError> for Refused {
    fn from(problem: BatchError) -> Refused {
        Refused {
            problems: vec![problem],
        }
    }
}

/// Problems written out before the rest is only counted.
const LISTED: usize = 20;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = &self.problems[..] {
            return only.fmt(f);
        }
        write!(f, "{} problems with the batch:", self.problems.len())?;
        for problem in self.problems.iter().take(LISTED) {
            write!(f, "\n  - {problem}")?;
        }
        match self.problems.len().saturating_sub(LISTED) {
            0 => Ok(()),
            rest => write!(f, "\n  - and {rest} more"),
        }
    }
}

impl std::error::Error for Refused {}
