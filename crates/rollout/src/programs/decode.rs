//! Decoding: several tokens for every row.

use std::sync::Arc;

use ferrotune_graph::{DType, Graph, HostArray, Tensor};
use ferrotune_models::{Cache, Decoder};
use ferrotune_nn::{Filters, Params};
use ferrotune_pjrt::ArraySpec;
use ferrotune_program::Builder;

use super::{Blueprint, State, array};
use crate::choice::Draw;

/// What the rows of one device are asked.
struct Asked {
    /// Longest answer, s32 `[B]`; 0 for rows that are not asked anything, or whose answer is complete.
    limit: Tensor,
    draw: Draw,
    /// Number of finished rows at which the loop stops, s32 scalar.
    pause_at: Tensor,
}

impl Asked {
    fn of(tensors: Vec<Tensor>) -> Self {
        let [
            limit,
            seed,
            greedy,
            inverse_temperature,
            top_k,
            top_p,
            min_p,
            pause_at,
        ] = array(tensors);
        let draw = Draw {
            seed,
            greedy,
            inverse_temperature,
            filters: Filters {
                top_k,
                top_p,
                min_p,
            },
        };
        Self {
            limit,
            draw,
            pause_at,
        }
    }
}

/// What one step hands to the next.
struct Step {
    /// Column of what is emitted, s32 scalar.
    column: Tensor,
    state: State,
    /// Tokens, log-probs, raw log-probs, `[B,C]`, and experts, `[B,C,N,J]`, where answers name them.
    emitted: Vec<Tensor>,
    cache: Vec<Tensor>,
}

impl Step {
    /// Of the tensors that a loop carries, `emitted` of which are the fields' of that name.
    fn of(carried: &[Tensor], emitted: usize) -> Self {
        let (emitted, cache) = carried[6..].split_at(emitted);
        Self {
            column: carried[0].clone(),
            state: State::of(carried[1..6].to_vec()),
            emitted: emitted.to_vec(),
            cache: cache.to_vec(),
        }
    }

    fn into_tensors(self) -> Vec<Tensor> {
        let mut tensors = vec![self.column];
        tensors.extend(self.state.into_tensors());
        tensors.extend(self.emitted);
        tensors.extend(self.cache);
        tensors
    }
}

impl Blueprint<'_> {
    /// (weights, asked, cache, state) → (cache, state, emitted): appends up to `C` tokens to each row.
    ///
    /// It ends early when all rows of the device have finished, or so many that others are to take their place.
    pub(crate) fn decode(&self) -> Builder {
        let mut builder = self.builder("decode");
        let layouts = &self.layouts;
        let weights = builder.input("weights", &layouts.ready);
        let asked = builder.input("asked", &layouts.asked);
        let cache = builder.input("cache", &layouts.cache);
        let state = builder.input("state", &layouts.state);
        let g = builder.graph().clone();
        let groups: [(&[Tensor], _); 4] = [
            (&weights, &layouts.ready),
            (&asked, &layouts.asked),
            (&cache, &layouts.cache),
            (&state, &layouts.state),
        ];
        let outputs = [&layouts.cache, &layouts.state, &layouts.emitted];
        let results = self.on_rows(&g, &groups, &outputs, |parts| {
            let [weights, asked, cache, state] =
                <[Vec<Tensor>; 4]>::try_from(parts).expect("four groups were passed");
            self.decode_on_device(&g, &self.params(weights), Asked::of(asked), cache, state)
        });
        builder.output_replacing(&layouts.cache, &results[0], &cache);
        builder.output_replacing(&layouts.state, &results[1], &state);
        builder.output(&layouts.emitted, &results[2]);
        builder
    }

    fn decode_on_device(
        &self,
        g: &Graph,
        params: &Params,
        asked: Asked,
        cache: Vec<Tensor>,
        state: Vec<Tensor>,
    ) -> Vec<Vec<Tensor>> {
        let mut state = State::of(state);
        state.done = state.done.or(&asked.limit.le(&state.generated));
        let blank = |spec: &Arc<ArraySpec>| {
            let dims = [&[state.token.dim(0)], &spec.dims[1..]].concat();
            let value = if spec.dtype == DType::S32 { -1.0 } else { 0.0 };
            g.full(value, spec.dtype, &dims)
        };
        let emitted: Vec<Tensor> = self.layouts.emitted.specs().iter().map(blank).collect();
        let count = emitted.len();
        let first = Step {
            column: g.scalar(0.0, DType::S32),
            emitted,
            state,
            cache,
        };
        let columns = g.scalar(self.config.columns() as f64, DType::S32);
        let goes_on = |carried: &[Tensor]| {
            let Step { column, state, .. } = Step::of(carried, count);
            let finished = state.done.convert(DType::S32).sum(&[0]);
            let some_row = state.done.not().any(&[0]);
            let no_pause = finished.lt(&asked.pause_at);
            column.lt(&columns).and(&some_row).and(&no_pause)
        };
        let decoder = self.decoder(params);
        let layers = decoder.layers();
        let last = g.while_loop(first.into_tensors(), goes_on, |carried| {
            self.step(g, &decoder, &layers, &asked, Step::of(carried, count))
                .into_tensors()
        });
        let last = Step::of(&last, count);
        vec![last.cache, last.state.into_tensors(), last.emitted]
    }

    /// One more token.
    fn step(
        &self,
        g: &Graph,
        decoder: &Decoder<'_>,
        layers: &[Params],
        asked: &Asked,
        step: Step,
    ) -> Step {
        let state = &step.state;
        let slots = g.scalar(self.config.slots() as f64, DType::S32);
        // A row that has finished looks back on nothing.
        let back = state
            .done
            .select(&state.position.zeros_like(), &state.position);
        let first = (&state.slot - back + &slots).remainder(&slots);
        let (forward, cache) = decoder.decode(
            layers,
            &state.token.expand(1),
            &state.position.expand(1),
            &state.slot,
            &first,
            &Cache {
                tensors: step.cache,
            },
        );
        let logits = g.scope("head", || decoder.logits(&forward.hidden));
        let logits = logits.reshape(&[logits.dim(0), self.model.vocab_size]);
        let choice = g.scope("choose", || asked.draw.choose(&logits, &state.generated));

        let count = &state.generated + 1.0;
        let over = self.is_stop(g, &choice.token).or(&asked.limit.le(&count));
        let done = state.done.or(&over);
        let pad = g.scalar(f64::from(self.config.pad_id), DType::S32);
        let zero = g.scalar(0.0, DType::S32);
        let at_column = |buffer: &Tensor, value: &Tensor| {
            let mut starts = vec![&zero; buffer.rank()];
            starts[1] = &step.column;
            buffer.dynamic_update_slice(value, &starts)
        };
        let write = |buffer: &Tensor, value: &Tensor, absent: f64| {
            let value = state.done.select(&value.scalar_like(absent), value);
            at_column(buffer, &value.expand(1))
        };
        let routes = self.routes(&forward);
        let routes = routes.map(|experts| at_column(&step.emitted[3], &experts));
        let mut emitted = vec![
            write(&step.emitted[0], &choice.token, -1.0),
            write(&step.emitted[1], &choice.logprob, 0.0),
            write(&step.emitted[2], &choice.raw_logprob, 0.0),
        ];
        emitted.extend(routes);
        let next = State {
            token: done.select(&pad, &choice.token),
            position: done.select(&state.position, &(&state.position + 1.0)),
            generated: state.done.select(&state.generated, &count),
            slot: (&state.slot + 1.0).remainder(&slots),
            done,
        };
        Step {
            emitted,
            column: &step.column + 1.0,
            state: next,
            cache: cache.tensors,
        }
    }

    /// Whether each token s32 `[B]` is one that ends an answer.
    fn is_stop(&self, g: &Graph, token: &Tensor) -> Tensor {
        let ids: Vec<i32> = self.config.stop_ids.iter().map(|id| *id as i32).collect();
        if ids.is_empty() {
            return g.full(0.0, DType::Pred, &token.dims());
        }
        let ids = HostArray::from_slice(&[1, ids.len()], &ids).expect("one row of ids");
        token.expand(1).eq(&g.constant(ids)).any(&[1])
    }
}
