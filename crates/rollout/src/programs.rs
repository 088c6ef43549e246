//! The two programs: prefill and decode.
//!
//! Prompts end in the last of `P` columns, so that every row writes the same cache slot: column `c` is slot `c`, and
//! generated token `i` goes to slot `P + i`. What stands before a row's first token is never read.
//!
//! Letters: `B` rows, `P` prompt columns, `S` cache slots, `C` columns per dispatch, `L` layers, `K` key heads, `E` head
//! size, `V` vocabulary.

use ferrotune_graph::{DType, Graph, HostArray, Policy, Rules, Tensor};
use ferrotune_models::{Cache, Decoder, ModelConfig};
use ferrotune_nn::{LOGICAL_AXES, Params, Sequence};
use ferrotune_program::{Builder, Layout};

use crate::choice::Draw;
use crate::config::SamplerConfig;
use crate::error::{Error, Result};
use crate::layouts::Layouts;

/// What the programs are traced from.
pub(crate) struct Blueprint<'a> {
    pub(crate) model: &'a ModelConfig,
    pub(crate) config: &'a SamplerConfig,
    pub(crate) layouts: Layouts,
    rules: Rules,
}

/// The tensors of the group of requests.
struct Asked {
    /// s32 `[B,P]`
    prompt: Tensor,
    /// Column of the first prompt token, s32 `[B]`.
    start: Tensor,
    /// Longest answer, s32 `[B]`; 0 for rows that are not asked anything.
    limit: Tensor,
    draw: Draw,
}

impl Asked {
    fn of(tensors: Vec<Tensor>) -> Self {
        let [prompt, start, limit, seed, greedy, inverse_temperature] =
            <[Tensor; 6]>::try_from(tensors).expect("a group of requests has six arrays");
        let draw = Draw {
            seed,
            greedy,
            inverse_temperature,
        };
        Self {
            prompt,
            start,
            limit,
            draw,
        }
    }
}

impl<'a> Blueprint<'a> {
    pub(crate) fn new(
        rules: &Rules,
        model: &'a ModelConfig,
        weights: &Layout,
        config: &'a SamplerConfig,
    ) -> Result<Self> {
        let mesh = weights.mesh();
        let rows = rules
            .place("batch", &[config.batch], &["batch"], mesh)
            .map_err(|source| Error::Batch {
                batch: config.batch,
                source,
            })?;
        // Only rows are split: one token a step leaves nothing else worth splitting.
        let split = |axis: &str| {
            if axis == "batch" {
                rows.dims[0].clone()
            } else {
                Vec::new()
            }
        };
        let rules = Rules::new(LOGICAL_AXES.map(|axis| (axis, split(axis))));

        let layouts = Layouts::new(&rules, model, weights, config)?;
        Ok(Self {
            model,
            config,
            layouts,
            rules,
        })
    }

    fn builder(&self, name: &str) -> Builder {
        Builder::new(name, self.layouts.weights.mesh(), &self.rules)
    }

    /// The parameters as the layers read them: whole on every device, matrices in the compute type, norms as they are.
    ///
    /// Done before any loop, so that no step repeats it.
    fn params(&self, builder: &mut Builder) -> Params {
        let tensors = builder.input("weights", &self.layouts.weights);
        let names: Vec<String> = self.layouts.weights.names().map(str::to_owned).collect();
        let ready = |(name, tensor): (String, Tensor)| {
            let dims_per_layer = tensor.rank() - usize::from(name.starts_with("layers/"));
            let tensor = if dims_per_layer > 1 {
                tensor.convert(self.config.compute)
            } else {
                tensor
            };
            let whole = tensor.shard(&vec!["_"; tensor.rank()]);
            (name, whole)
        };
        Params::new(
            names
                .into_iter()
                .zip(tensors)
                .map(ready)
                .collect::<Vec<_>>(),
        )
    }

    fn decoder<'p>(&'p self, params: &'p Params) -> Decoder<'p> {
        Decoder {
            config: self.model,
            params,
            compute: self.config.compute,
            policy: Policy::recompute(),
        }
    }

    /// (weights, requests) → (cache, state): reads all columns but the last.
    pub(crate) fn prefill(&self) -> Builder {
        let mut builder = self.builder("prefill");
        let params = self.params(&mut builder);
        let asked = Asked::of(builder.input("requests", &self.layouts.requests));
        let g = builder.graph().clone();
        let (b, width) = (self.config.batch, self.config.prompt_width());
        let (read, generated) = (width - 1, g.scalar(0.0, DType::S32));

        let column = g.iota(DType::S32, &[b, read], 1);
        let position = &column - asked.start.expand(1);
        let is_prompt = position.ge(&generated);
        let seq = Sequence {
            segment_ids: is_prompt.convert(DType::S32),
            positions: is_prompt.select(&position, &column),
        };
        let (_, cache) = self
            .decoder(&params)
            .prefill(&asked.prompt.slice(1, 0, read), &seq);
        let room = self.config.slots() - read;
        let cache = cache
            .tensors
            .iter()
            .map(|filled| filled.pad(3, 0, room, 0.0));
        let cache: Vec<Tensor> = cache.collect();

        let token = asked.prompt.slice(1, read, width);
        let done = asked.limit.le(&generated);
        builder.output(&self.layouts.cache, &cache);
        builder.output(&self.layouts.state, &[token, generated, done]);
        builder
    }

    /// (weights, requests, cache, state) → (cache, state, emitted): appends up to `C` tokens to each row.
    pub(crate) fn decode(&self) -> Builder {
        let mut builder = self.builder("decode");
        let params = self.params(&mut builder);
        let asked = Asked::of(builder.input("requests", &self.layouts.requests));
        let cache = builder.input("cache", &self.layouts.cache);
        let state = builder.input("state", &self.layouts.state);
        let g = builder.graph().clone();
        let (b, columns) = (self.config.batch, self.config.columns());

        let blank = |value, dtype| g.full(value, dtype, &[b, columns]).shard(&["batch", "_"]);
        let emitted = [
            blank(-1.0, DType::S32),
            blank(0.0, DType::F32),
            blank(0.0, DType::F32),
        ];
        let first = g.scalar(0.0, DType::S32);
        let carried: Vec<Tensor> = [first]
            .into_iter()
            .chain(cache.clone())
            .chain(state.clone())
            .chain(emitted)
            .collect();
        let limit = g.scalar(columns as f64, DType::S32);
        let mut results = g.while_loop(
            carried,
            |carried| carried[0].lt(&limit).and(&carried[5].not().any(&[0])),
            |carried| self.step(&g, &params, &asked, carried),
        );
        let emitted = results.split_off(6);
        let new_state = results.split_off(3);
        builder.output_replacing(&self.layouts.cache, &results[1..], &cache);
        builder.output_replacing(&self.layouts.state, &new_state, &state);
        builder.output(&self.layouts.emitted, &emitted);
        builder
    }

    /// One more token: column, keys, values, token, generated, done, emitted → the same.
    fn step(&self, g: &Graph, params: &Params, asked: &Asked, carried: &[Tensor]) -> Vec<Tensor> {
        let [column, keys, values, token, generated, done] = &carried[..6] else {
            unreachable!("six carried tensors stand before the emitted ones")
        };
        let decoder = self.decoder(params);
        let slot = generated + (self.config.prompt_width() - 1) as f64;
        let position = &slot - asked.start.expand(1);
        let cache = Cache {
            tensors: vec![keys.clone(), values.clone()],
        };
        let (hidden, cache) = decoder.decode(token, &position, &slot, &asked.start, &cache);
        let logits = g.scope("head", || decoder.logits(&hidden));
        let logits = logits.reshape(&[self.config.batch, self.model.vocab_size]);
        let choice = g.scope("choose", || asked.draw.choose(&logits, generated));

        let count = generated + 1.0;
        let now_done = done
            .or(&self.is_stop(g, &choice.token))
            .or(&asked.limit.le(&count));
        let zero = g.scalar(0.0, DType::S32);
        let pad = g.scalar(f64::from(self.config.pad_id), DType::S32);
        let next = now_done.select(&pad, &choice.token).expand(1);
        let write = |buffer: &Tensor, value: &Tensor, absent: f64| {
            let value = done.select(&value.scalar_like(absent), value).expand(1);
            buffer.dynamic_update_slice(&value, &[&zero, column])
        };
        vec![
            column + 1.0,
            cache.tensors[0].clone(),
            cache.tensors[1].clone(),
            next,
            count,
            now_done,
            write(&carried[6], &choice.token, -1.0),
            write(&carried[7], &choice.logprob, 0.0),
            write(&carried[8], &choice.raw_logprob, 0.0),
        ]
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
