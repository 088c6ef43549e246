//! From parameters and rows to per-token log-probabilities and entropies, or to a loss.
//!
//! The model's output at place t − 1 predicts the token at t. So what belongs to a token is moved one place ahead for the
//! head, and the scores are moved back. The first token of a document is predicted by nothing: it and padding score 0, and
//! no gradient passes there, whatever the hidden states are.

use ferrotune_graph::Tensor;
use ferrotune_models::{Decoder, ModelConfig, Routed};
use ferrotune_nn::{EntropyUse, Head, Params, PartialLoss, TokenScores};

use crate::batch::RowTensors;
use crate::engine::EngineConfig;
use crate::loss::{Loss, LossInputs, LossTerms, Metric};

/// Rows before the head.
pub(crate) struct Ahead {
    head: Head,
    hidden: Tensor,
    /// The token that each place predicts.
    targets: Tensor,
    /// Where that token counts.
    mask: Tensor,
    /// What the experts did, where their load is to be balanced.
    routed: Option<Routed>,
}

/// What sits at each token's own place, at the place that predicts it.
fn ahead(t: &Tensor) -> Tensor {
    t.slice(1, 1, t.dim(1)).pad(1, 0, 1, 0.0)
}

/// The opposite.
fn back(t: &Tensor) -> Tensor {
    t.slice(1, 0, t.dim(1) - 1).pad(1, 1, 0, 0.0)
}

impl Ahead {
    /// Runs the model up to the head. With `weighted`, tokens without weight do not count.
    pub(crate) fn new(
        model: &ModelConfig,
        config: &EngineConfig,
        params: &Params,
        rows: &RowTensors,
        entropy: EntropyUse,
        weighted: bool,
    ) -> Self {
        let decoder = Decoder {
            config: model,
            params,
            compute: config.compute,
            policy: config.policy.clone(),
        };
        let nonzero = |t: &Tensor| t.ne(&t.zeros_like());
        let sequence = &rows.sequence;
        let mut counts = nonzero(&sequence.positions).and(&nonzero(&sequence.segment_ids));
        if weighted {
            counts = counts.and(&nonzero(&rows.loss_weight));
        }
        let forward = decoder.forward(&rows.token_ids, sequence, rows.expert_ids.as_ref());
        Self {
            hidden: forward.hidden,
            routed: forward.routed.filter(|_| config.router.load_balance != 0.0),
            head: decoder.head(config.temperature, config.head, entropy),
            targets: ahead(&rows.token_ids),
            mask: ahead(&counts),
        }
    }

    /// How unevenly the rows' tokens are spread over experts, a scalar, times the rows' share of the batch's weight: so the sum
    /// over micro-batches is a mean of theirs, on the scale of the loss.
    ///
    /// In a region whose devices have rows of their own, loads are counted over all of them and the share is that of their own
    /// rows, so the sum over regions is the same.
    ///
    /// With `f` the choices that fell on an expert and `p` its probability, both means over tokens and layers, it is `X Σ f p`:
    /// the experts of a token if they are spread evenly. Only `p` is differentiated.
    ///
    /// # Source
    /// Fedus, Zoph and Shazeer, "Switch transformers" (2021), eq. 4–6; over layers as `load_balancing_loss_func` in
    /// transformers.
    pub(crate) fn load_balance(&self, rows: &RowTensors) -> Option<Tensor> {
        let routed = self.routed.as_ref()?;
        let everywhere = |t: Tensor| match t.graph().manual_axes() {
            Some(axes) => t.all_reduce(&axes.iter().map(String::as_str).collect::<Vec<_>>()),
            None => t,
        };
        let probability = everywhere(routed.probability.sum(&[0]));
        // The probabilities of a token add up to 1 in every layer.
        let total = probability.sum(&[0]).stop_gradient();
        let total = total.maximum(&total.scalar_like(1.0));
        let chosen = everywhere(routed.load.sum(&[0])).stop_gradient() / &total;
        let likely = probability / total;
        let experts = routed.load.dim(1) as f64;
        Some((chosen * likely).sum(&[0]) * rows.loss_weight.sum_all() * experts)
    }

    /// Scores of every token that counts, f32 `[B,T]`, at the token's own place.
    pub(crate) fn scores(&self) -> TokenScores {
        let g = self.hidden.graph().clone();
        let scores = g.scope("head", || {
            self.head
                .score(&self.hidden, &self.targets, Some(&self.mask))
        });
        let place = |t: &Tensor| back(t).shard(&["batch", "tokens"]);
        TokenScores {
            logprob: place(&scores.logprob),
            entropy: place(&scores.entropy),
            hit: place(&scores.hit),
        }
    }

    /// The loss of the rows, formed with its gradient in one pass over the logits.
    pub(crate) fn single_pass(&self, loss: &Loss, rows: &RowTensors) -> LossTerms {
        let g = self.hidden.graph().clone();
        let fields = rows.fields.iter().map(|(_, t)| t);
        let extra: Vec<Tensor> = std::iter::once(&rows.loss_weight)
            .chain(fields)
            .map(ahead)
            .collect();
        let names = std::cell::RefCell::new(Vec::new());
        let told = |scores: &TokenScores, extra: &[Tensor]| {
            let kinds = rows.fields.iter().map(|(field, _)| *field);
            let inputs = LossInputs {
                logprob: scores.logprob.clone(),
                entropy: scores.entropy.clone(),
                loss_weight: extra[0].clone(),
                fields: kinds.zip(extra[1..].iter().cloned()).collect(),
            };
            let terms = g.scope("loss", || (loss.build)(&inputs));
            let metrics = terms.metrics.iter();
            *names.borrow_mut() = metrics.clone().map(|m| m.name.clone()).collect();
            PartialLoss {
                loss: terms.loss.clone(),
                others: metrics.map(|m| (m.value.clone(), m.combine)).collect(),
            }
        };
        let found = g.scope("head", || {
            self.head
                .single_pass(&self.hidden, &self.targets, Some(&self.mask), &extra, told)
        });
        let metrics = found.others.into_iter().zip(names.into_inner());
        let metric = |((value, combine), name)| Metric {
            name,
            value,
            combine,
        };
        LossTerms {
            loss: found.loss,
            metrics: metrics.map(metric).collect(),
        }
    }
}
