//! One document on its way to a row: tokens, loss mask, per-token fields.
//!
//! Not here: how it was sampled or rewarded. Lengths are explicit; nothing is inferred from token ids.

use crate::column::{Column, Element, Values};
use crate::error::BatchError;
use crate::field::{Field, Fields};

/// Tokens with everything that travels beside them. All lengths must equal the token count when it is packed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trajectory {
    /// Token ids, prompt first.
    pub tokens: Vec<u32>,
    /// Which tokens are trained on. Prompt and tool tokens are `false`; token 0 must be.
    pub loss_mask: Vec<bool>,
    /// Optional per-token fields; all trajectories of a batch have the same ones.
    pub fields: Fields,
    /// The prompt it answers. Metadata: packing does not read it.
    pub group: usize,
    /// Updates made to the policy that sampled it. Metadata: packing does not read it.
    pub policy_version: u64,
    /// Whether [`truncate`] shortened it.
    pub truncated: bool,
}

impl Trajectory {
    /// Tokens with an explicit loss mask.
    pub fn new(tokens: Vec<u32>, loss_mask: Vec<bool>) -> Trajectory {
        Trajectory {
            tokens,
            loss_mask,
            ..Trajectory::default()
        }
    }

    /// A document of which every predictable token is trained on or scored.
    pub fn document(tokens: Vec<u32>) -> Trajectory {
        let loss_mask = predictable_mask(tokens.len());
        Trajectory::new(tokens, loss_mask)
    }

    /// A prompt, not trained on, and its answer, all of it trained on. The prompt must not be empty.
    pub fn from_prompt(prompt: &[u32], answer: &[u32]) -> Trajectory {
        let tokens = [prompt, answer].concat();
        let loss_mask = (0..tokens.len()).map(|t| t >= prompt.len()).collect();
        Trajectory::new(tokens, loss_mask)
    }

    /// Tokens in it.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Tokens that are trained on.
    pub fn trained_tokens(&self) -> usize {
        self.loss_mask.iter().filter(|&&on| on).count()
    }

    /// Sets `field` to one value for each token.
    pub fn with(mut self, field: Field, values: Vec<f32>) -> Trajectory {
        self.fields.set(field, values);
        self
    }

    /// Sets `field` to `value` on the tokens that are trained on, and to 0 elsewhere.
    pub fn with_constant(self, field: Field, value: f32) -> Trajectory {
        let values = self
            .loss_mask
            .iter()
            .map(|&on| if on { value } else { 0.0 })
            .collect();
        self.with(field, values)
    }

    /// Sets `field` from values for the last tokens only (an answer's log-probs, say), with 0 before them.
    pub fn with_tail(self, field: Field, tail: &[f32]) -> Trajectory {
        let mut values = vec![0.0; self.len().saturating_sub(tail.len())];
        values.extend_from_slice(tail);
        self.with(field, values)
    }

    /// Sets [`Field::PolicyVersion`] to `version` on every token: all of it was sampled by one policy.
    pub fn with_policy_version(mut self, version: i32) -> Trajectory {
        let column = Column::new(Values::S32(vec![version; self.len()]));
        self.fields.set_column(Field::PolicyVersion, column);
        self
    }

    /// Sets [`Field::ExpertIds`]: `per_token` ids for each of the first tokens, layer by layer.
    ///
    /// A sampler never routes the last token that it draws, so its capture is short by one. Tokens that it does not reach
    /// get −1, which leaves the router free, and never a real expert.
    pub fn with_expert_ids(mut self, per_token: usize, captured: &[i16]) -> Trajectory {
        let mut ids = captured.to_vec();
        ids.resize(ids.len().max(self.len() * per_token), -1);
        let column = Column::wide(per_token, Values::S16(ids));
        self.fields.set_column(Field::ExpertIds, column);
        self
    }

    /// Adds what is wrong with this trajectory, apart from its length, to `problems`.
    pub(crate) fn check(&self, trajectory: usize, vocab_size: u32, problems: &mut Vec<BatchError>) {
        let tokens = self.len();
        if tokens == 0 {
            problems.push(BatchError::EmptyTrajectory { trajectory });
        }
        if let Some(token) = self.tokens.iter().position(|&id| id >= vocab_size) {
            let id = self.tokens[token];
            problems.push(BatchError::TokenOutsideVocabulary {
                trajectory,
                token,
                id,
                vocab_size,
            });
        }
        if self.loss_mask.len() != tokens {
            let values = self.loss_mask.len();
            problems.push(BatchError::FieldLength {
                trajectory,
                field: "loss_mask",
                values,
                tokens,
                per_token: 1,
            });
        }
        if self.loss_mask.first() == Some(&true) {
            problems.push(BatchError::FirstTokenTrained { trajectory });
        }
        for (field, column) in self.fields.iter() {
            check_column(trajectory, field.name(), column, tokens, problems);
        }
    }
}

/// The mask of all tokens that something predicts: every one but the first.
pub fn predictable_mask(len: usize) -> Vec<bool> {
    (0..len).map(|t| t > 0).collect()
}

/// Shortens each trajectory of more than `budget` tokens to its first `budget`, marks it, and returns how many there were.
///
/// Loss weights must be computed after this: what is cut off no longer counts in any denominator.
pub fn truncate(trajectories: &mut [Trajectory], budget: usize) -> usize {
    let mut count = 0;
    for trajectory in trajectories
        .iter_mut()
        .filter(|trajectory| trajectory.len() > budget)
    {
        let tokens = trajectory.len();
        trajectory.tokens.truncate(budget);
        // An array that did not match the tokens is left as it is, so that packing still refuses it.
        if trajectory.loss_mask.len() == tokens {
            trajectory.loss_mask.truncate(budget);
        }
        for column in trajectory
            .fields
            .iter_mut()
            .filter(|column| column.values().len() == tokens * column.per_token())
        {
            column.truncate(budget);
        }
        trajectory.truncated = true;
        count += 1;
    }
    count
}

/// Reports values that are not as many for each token as they should be, or not what their element allows.
fn check_column(
    trajectory: usize,
    field: &'static str,
    column: &Column,
    tokens: usize,
    problems: &mut Vec<BatchError>,
) {
    let (values, per_token) = (column.values().len(), column.per_token());
    if values != tokens * per_token {
        problems.push(BatchError::FieldLength {
            trajectory,
            field,
            values,
            tokens,
            per_token,
        });
    }
    let Some((at, value)) = column.first_not_allowed() else {
        return;
    };
    let token = at / per_token;
    problems.push(match column.values().element() {
        Element::F32 => BatchError::NotFinite {
            trajectory,
            field,
            token,
            value: value as f32,
        },
        Element::S32 | Element::S16 => BatchError::TooSmall {
            trajectory,
            field,
            token,
            value: value as i64,
            least: column.least(),
        },
    });
}

/// Reports weights that are not one finite number for each of the trajectory's tokens.
pub(crate) fn check_weights(
    trajectory: usize,
    weights: &[f32],
    tokens: usize,
    problems: &mut Vec<BatchError>,
) {
    let field = "loss_weight";
    if weights.len() != tokens {
        problems.push(BatchError::FieldLength {
            trajectory,
            field,
            values: weights.len(),
            tokens,
            per_token: 1,
        });
    }
    if let Some(token) = weights.iter().position(|weight| !weight.is_finite()) {
        problems.push(BatchError::NotFinite {
            trajectory,
            field,
            token,
            value: weights[token],
        });
    }
}
