//! The sampler: two compiled programs and the loop around them.

use ferrotune_graph::{DType, Rules};
use ferrotune_models::ModelConfig;
use ferrotune_pjrt::Client;
use ferrotune_program::{Argument, Group, Layout, Program};

use crate::batch::Batch;
use crate::config::SamplerConfig;
use crate::error::{Error, Result};
use crate::layouts::Layouts;
use crate::programs::Blueprint;
use crate::request::{Completion, Request};

/// A model's sampler, compiled for one shape of batch and one layout of weights.
pub struct Sampler {
    client: Client,
    config: SamplerConfig,
    vocab_size: usize,
    layouts: Layouts,
    prefill: Program,
    decode: Program,
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Sampler {
    /// Compiles the sampler of a model whose parameters lie on the device as `weights` says.
    ///
    /// Rows are split over the mesh axes that `rules` gives to `batch`, on the mesh of the weights. Everything else is
    /// whole on every device: sharded weights are gathered once per dispatch.
    ///
    /// # Errors
    /// Settings that contradict the model or the mesh, weights of another model, or a failure to compile.
    pub fn new(
        client: &Client,
        rules: &Rules,
        model: &ModelConfig,
        weights: &Layout,
        config: SamplerConfig,
    ) -> Result<Self> {
        config.check(model)?;
        check_weights(model, weights)?;
        let blueprint = Blueprint::new(rules, model, weights, &config)?;
        let prefill = blueprint.prefill().compile(client)?;
        let decode = blueprint.decode().compile(client)?;
        let layouts = blueprint.layouts;
        Ok(Self {
            client: client.clone(),
            vocab_size: model.vocab_size,
            layouts,
            prefill,
            decode,
            config,
        })
    }

    /// What the sampler was compiled for.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// The program that reads prompts into the cache.
    pub fn prefill_program(&self) -> &Program {
        &self.prefill
    }

    /// The program that appends tokens.
    pub fn decode_program(&self) -> &Program {
        &self.decode
    }

    /// Answers the requests, in their order; `on_progress(finished, total)` is called after every dispatch.
    ///
    /// Requests are cut into batches; rows that the last batch has too many are finished from the start.
    ///
    /// # Errors
    /// A request that the sampler cannot serve (nothing is run then), weights of another layout than it was built for,
    /// numbers that are not finite, or a failure of the device.
    pub fn generate(
        &self,
        weights: &Group,
        requests: &[Request],
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<Completion>> {
        if *weights.layout() != self.layouts.weights {
            let reason = difference(weights.layout(), &self.layouts.weights);
            return Err(Error::Weights { reason });
        }
        for (i, request) in requests.iter().enumerate() {
            request.check(i, &self.config, self.vocab_size)?;
        }
        let mut answers = Vec::with_capacity(requests.len());
        for part in requests.chunks(self.config.batch) {
            let before = answers.len();
            let mut report = |finished| on_progress(before + finished, requests.len());
            let batch = Batch::new(&self.config, self.vocab_size, part, before);
            answers.extend(self.answer(weights, batch, &mut report)?);
        }
        Ok(answers)
    }

    fn answer(
        &self,
        weights: &Group,
        mut batch: Batch<'_>,
        report: &mut dyn FnMut(usize),
    ) -> Result<Vec<Completion>> {
        let requests = batch.upload(&self.client, &self.layouts.requests)?;
        let given = || vec![Argument::Borrowed(weights), Argument::Borrowed(&requests)];
        let [mut cache, mut state] = groups(self.prefill.call(given())?);
        while !batch.is_finished() {
            let mut arguments = given();
            arguments.extend([Argument::Moved(cache), Argument::Moved(state)]);
            let [next_cache, next_state, emitted] = groups(self.decode.call(arguments)?);
            batch.absorb(&emitted)?;
            report(batch.finished());
            (cache, state) = (next_cache, next_state);
        }
        Ok(batch.into_answers())
    }
}

fn groups<const N: usize>(results: Vec<Group>) -> [Group; N] {
    results
        .try_into()
        .expect("a program returns the groups that it was traced with")
}

/// The parameters must be those of the model: same order, names and dimensions, f32.
fn check_weights(model: &ModelConfig, weights: &Layout) -> Result<()> {
    let params = model.params();
    let refuse = |reason| Err(Error::Weights { reason });
    if params.len() != weights.len() {
        return refuse(format!(
            "the model has {} parameters but {} arrays are given",
            params.len(),
            weights.len()
        ));
    }
    for (param, spec) in params.iter().zip(weights.specs()) {
        if param.path != spec.name || param.dims != spec.dims || spec.dtype != DType::F32 {
            let expected = format!("`{}` f32 {:?}", param.path, param.dims);
            return refuse(format!(
                "expected {expected}, found `{}` {} {:?}",
                spec.name, spec.dtype, spec.dims
            ));
        }
    }
    Ok(())
}

/// The first difference between two layouts.
fn difference(given: &Layout, wanted: &Layout) -> String {
    match given
        .specs()
        .iter()
        .zip(wanted.specs())
        .find(|(g, w)| g != w)
    {
        Some((g, w)) => format!("expected `{}` {w}, found `{}` {g}", w.name, g.name),
        None if given.len() != wanted.len() => {
            format!("expected {} arrays, found {}", wanted.len(), given.len())
        }
        None => format!(
            "expected the mesh {:?}, found {:?}",
            wanted.mesh().axes(),
            given.mesh().axes()
        ),
    }
}
