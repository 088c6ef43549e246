//! From parameters and rows to per-token log-probabilities and entropies, or to a loss.
//!
//! What belongs to a token lies at the place that predicts it: [`crate::order`] puts it there. The first token of a document is
//! predicted by nothing: it and padding score 0, and no gradient passes there, whatever the hidden states are.

use ferrotune_graph::Tensor;
use ferrotune_models::{Decoder, Feed, Routed};
use ferrotune_nn::{EntropyUse, Filters, Head, Kept, Params, PartialLoss, TokenScores};

use crate::batch::RowTensors;
use crate::loss::{Loss, LossInputs, LossTerms, Metric};
use crate::step::Site;

/// The beginning of the names of metrics that count what experts dropped; the number of the layer follows.
pub const DROPPED: &str = "experts/dropped/";

/// Rows before the head.
pub(crate) struct Ahead {
    head: Head,
    hidden: Tensor,
    /// Where the predicted token counts.
    mask: Tensor,
    /// What the experts did.
    routed: Option<Routed>,
}

impl Ahead {
    /// Runs the model up to the head. With `weighted`, tokens without weight do not count.
    pub(crate) fn new(
        site: &Site<'_>,
        params: &Params,
        rows: &RowTensors,
        entropy: EntropyUse,
        weighted: bool,
    ) -> Self {
        let config = site.config;
        let decoder = Decoder {
            config: site.model,
            params,
            compute: config.compute,
            policy: config.policy.clone(),
            queries: site.order.of_queries(),
            capacity_factor: config.router.capacity_factor,
        };
        let mut mask = rows.targets.ge(&rows.targets.zeros_like());
        if weighted {
            mask = mask.and(&rows.loss_weight.ne(&rows.loss_weight.zeros_like()));
        }
        let sequence = &rows.sequence;
        let forward = decoder.forward(&rows.token_ids, sequence, rows.expert_ids.as_ref());
        Self {
            hidden: forward.hidden,
            routed: forward.routed,
            head: decoder.head(config.temperature, config.head, entropy),
            mask,
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
    pub(crate) fn load_balance(&self, rows: &RowTensors) -> Tensor {
        let routed = self.routed.as_ref();
        let routed = routed.expect("a load to balance is refused for a model without experts");
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
        (chosen * likely).sum(&[0]) * rows.loss_weight.sum_all() * experts
    }

    /// How many choices of experts were dropped in each layer that has them, f32 scalars by name, where experts have a capacity.
    ///
    /// In a region whose devices have rows of their own, they are counted in these. Counts are exact up to 2²⁴.
    pub(crate) fn dropped(&self, site: &Site<'_>) -> Vec<(String, Tensor)> {
        let Some(dropped) = self.routed.as_ref().and_then(|it| it.dropped.as_ref()) else {
            return Vec::new();
        };
        let layers = site.model.layers.iter().enumerate();
        let sparse = layers.filter(|(_, kind)| kind.feed == Feed::Experts);
        let metric = |(at, (layer, _))| {
            let value = dropped.slice(0, at, at + 1).reshape(&[]);
            (format!("{DROPPED}{layer}"), value)
        };
        sparse.enumerate().map(metric).collect()
    }

    /// Scores of every token that counts, f32 `[B,T]`, at the place that predicts it.
    pub(crate) fn scores(&self, rows: &RowTensors) -> TokenScores {
        let g = self.hidden.graph().clone();
        let scores = g.scope("head", || {
            self.head
                .score(&self.hidden, &rows.targets, Some(&self.mask))
        });
        let place = |t: &Tensor| t.shard(&["batch", "tokens"]);
        TokenScores {
            logprob: place(&scores.logprob),
            entropy: place(&scores.entropy),
            hit: place(&scores.hit),
        }
    }

    /// What filters leave of the same distributions, from the numbers of [`Filters`], scalars.
    pub(crate) fn kept(&self, rows: &RowTensors, numbers: &[Tensor]) -> Kept {
        let [top_k, top_p, min_p] = numbers else {
            unreachable!("three settings")
        };
        let everywhere = |number: &Tensor| number.broadcast_to(&rows.targets.dims());
        let filters = Filters {
            top_k: everywhere(top_k),
            top_p: everywhere(top_p),
            min_p: everywhere(min_p),
        };
        let g = self.hidden.graph().clone();
        g.scope("head", || {
            self.head
                .kept(&self.hidden, &rows.targets, Some(&self.mask), &filters)
        })
    }

    /// The loss of the rows, formed with its gradient in one pass over the logits.
    pub(crate) fn single_pass(&self, loss: &Loss, rows: &RowTensors) -> LossTerms {
        let g = self.hidden.graph().clone();
        let fields = rows.fields.iter().map(|(_, t)| t);
        let extra: Vec<Tensor> = std::iter::once(&rows.loss_weight)
            .chain(fields)
            .cloned()
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
                .single_pass(&self.hidden, &rows.targets, Some(&self.mask), &extra, told)
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
