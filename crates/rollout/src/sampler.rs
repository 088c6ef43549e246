//! The sampler: its compiled programs and the loop around them.

use std::collections::HashMap;

use ferrotune_graph::{DType, Rules};
use ferrotune_models::ModelConfig;
use ferrotune_pjrt::{Client, HostArray};
use ferrotune_program::{Argument, Group, Layout, Program};
use ferrotune_text::Tokenizer;

use crate::answers::Answers;
use crate::config::SamplerConfig;
use crate::error::{Error, Result};
use crate::layouts::Layouts;
use crate::programs::Blueprint;
use crate::refusal;
use crate::request::{Completion, Request};
use crate::rows::Rows;

/// A model's sampler, compiled for one number of rows and one layout of weights.
pub struct Sampler {
    client: Client,
    config: SamplerConfig,
    vocab_size: usize,
    layouts: Layouts,
    /// `None` if the layers can read the weights as they lie.
    ready: Option<Program>,
    begin: Program,
    admit: Program,
    decode: Program,
    tokenizer: Option<Tokenizer>,
}

/// A model's weights as the layers of one sampler read them: borrowed, or converted.
pub struct Weights<'a>(Ready<'a>);

enum Ready<'a> {
    AsGiven(&'a Group),
    Made(Group),
}

impl Weights<'_> {
    /// Waits until they are there.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn wait(&self) -> Result<()> {
        Ok(self.group().wait()?)
    }

    fn group(&self) -> &Group {
        match &self.0 {
            Ready::AsGiven(group) => group,
            Ready::Made(group) => group,
        }
    }
}

/// What stays on the device while requests are answered.
struct Run {
    cache: Group,
    state: Group,
    /// What the rows were asked last, on the host and on the device.
    asked: Option<(Vec<HostArray>, Group)>,
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Sampler {
    /// Compiles the sampler of a model whose parameters lie on the device as `weights` says, in one group or several, adapters
    /// included.
    ///
    /// Rows are split over the mesh axes that `rules` gives to `batch`, on the mesh of the weights. Everything else is
    /// whole on every device: sharded weights are gathered once, by [`Sampler::weights`].
    ///
    /// # Errors
    /// Settings that contradict the model or the mesh, weights of another model, or a failure to compile.
    pub fn new(
        client: &Client,
        rules: &Rules,
        model: &ModelConfig,
        weights: &[&Layout],
        config: SamplerConfig,
    ) -> Result<Self> {
        config.check(model)?;
        let weights: Vec<&Layout> = weights
            .iter()
            .copied()
            .filter(|it| !it.is_empty())
            .collect();
        let weights = &weights[..];
        check_weights(model, weights)?;
        let blueprint = Blueprint::new(rules, model, weights, &config)?;
        let ready = match blueprint.layouts.weights_are_ready() {
            true => None,
            false => Some(blueprint.ready().compile(client)?),
        };
        let begin = blueprint.begin().compile(client)?;
        let admit = blueprint.admit().compile(client)?;
        let decode = blueprint.decode().compile(client)?;
        let layouts = blueprint.layouts;
        Ok(Self {
            client: client.clone(),
            vocab_size: model.vocab_size,
            layouts,
            ready,
            begin,
            admit,
            decode,
            config,
            tokenizer: None,
        })
    }

    /// The same sampler with a tokenizer, which stop strings need.
    pub fn with_tokenizer(self, tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer: Some(tokenizer),
            ..self
        }
    }

    /// What the sampler was compiled for.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// The programs, in the order in which they run first: *ready* makes weights as the layers read them, if they do not lie
    /// like that; *begin* an empty cache; *admit* reads prompts into rows, *decode* appends tokens.
    pub fn programs(&self) -> Vec<&Program> {
        let always = [&self.begin, &self.admit, &self.decode];
        self.ready.iter().chain(always).collect()
    }

    /// The weights as the layers read them, for any number of calls of [`Sampler::generate`]: converted, turned, gathered.
    ///
    /// # Errors
    /// Weights of another layout than the sampler was built for, or a failure of the device.
    pub fn weights<'a>(&self, weights: &[&'a Group]) -> Result<Weights<'a>> {
        let weights: Vec<&Group> = weights
            .iter()
            .copied()
            .filter(|it| !it.is_empty())
            .collect();
        self.check_given(&weights)?;
        let Some(ready) = &self.ready else {
            return Ok(Weights(Ready::AsGiven(weights[0])));
        };
        let given = weights
            .iter()
            .map(|group| Argument::Borrowed(group))
            .collect();
        let [made] = groups(ready.call(given)?);
        Ok(Weights(Ready::Made(made)))
    }

    /// Answers the requests, in their order; `on_progress(finished, total)` is called after every dispatch of tokens.
    ///
    /// Requests take rows in their order. Rows that have finished are given to those that wait, while the others go on.
    ///
    /// # Errors
    /// Requests that the sampler cannot serve (all are named, and nothing is run), weights that another sampler made ready,
    /// numbers that are not finite, or a failure of the device.
    pub fn generate(
        &self,
        weights: &Weights<'_>,
        requests: &[Request],
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<Completion>> {
        let weights = weights.group();
        if weights.layout() != &self.layouts.ready {
            let reason = difference(weights.layout(), &self.layouts.ready);
            return Err(Error::Weights { reason });
        }
        self.check(requests)?;
        let mut answers = Answers::new(
            &self.config,
            self.vocab_size,
            requests,
            self.tokenizer.as_ref(),
        );
        let mut rows = Rows::new(&self.config, self.layouts.devices, requests);
        if rows.is_idle() {
            return Ok(answers.into_completions());
        }
        let mut run = self.begin()?;
        while !rows.is_idle() {
            while let Some(admission) = rows.admit() {
                let routes;
                (run, routes) = self.admit(weights, run, &admission.arrays()?)?;
                answers.absorb_prompts(&routes.to_host()?, admission.read());
            }
            let emitted;
            (run, emitted) = self.decode(weights, run, rows.asked()?)?;
            for row in answers.absorb(&emitted.to_host()?, &rows.at_work())? {
                rows.free(row);
            }
            on_progress(answers.finished(), requests.len());
        }
        Ok(answers.into_completions())
    }

    fn check(&self, requests: &[Request]) -> Result<()> {
        let of = |(i, request): (usize, &Request)| {
            let refusals = refusal::check(
                request,
                &self.config,
                self.vocab_size,
                self.tokenizer.is_some(),
            );
            refusals.into_iter().map(move |why| (i, why))
        };
        let refused: Vec<_> = requests.iter().enumerate().flat_map(of).collect();
        if refused.is_empty() {
            Ok(())
        } else {
            Err(Error::Requests { refused })
        }
    }

    /// Weights must lie as the sampler was built for.
    fn check_given(&self, weights: &[&Group]) -> Result<()> {
        let wanted = &self.layouts.weights;
        let refuse = |reason| Err(Error::Weights { reason });
        if weights.len() != wanted.len() {
            let (found, expected) = (weights.len(), wanted.len());
            return refuse(format!("expected {expected} groups, found {found}"));
        }
        let mut pairs = weights.iter().zip(wanted);
        match pairs.find(|(given, wanted)| given.layout() != *wanted) {
            Some((given, wanted)) => refuse(difference(given.layout(), wanted)),
            None => Ok(()),
        }
    }

    /// An empty cache, and rows without requests.
    fn begin(&self) -> Result<Run> {
        let [cache, state] = groups(self.begin.call(vec![])?);
        Ok(Run {
            cache,
            state,
            asked: None,
        })
    }

    /// Prompts read into rows, and the experts of their tokens where answers name them.
    fn admit(&self, weights: &Group, run: Run, admission: &[HostArray]) -> Result<(Run, Group)> {
        let admission = Group::upload(&self.client, &self.layouts.admission, admission)?;
        let [cache, state, routes] = groups(self.admit.call(vec![
            Argument::Borrowed(weights),
            Argument::Borrowed(&admission),
            Argument::Moved(run.cache),
            Argument::Moved(run.state),
        ])?);
        let asked = run.asked;
        let run = Run {
            cache,
            state,
            asked,
        };
        Ok((run, routes))
    }

    /// Up to a dispatch's number of tokens for every row, with what they are asked uploaded if it has changed.
    fn decode(&self, weights: &Group, run: Run, asked: Vec<HostArray>) -> Result<(Run, Group)> {
        let asked = match run.asked {
            Some((last, group)) if last == asked => (last, group),
            _ => {
                let group = Group::upload(&self.client, &self.layouts.asked, &asked)?;
                (asked, group)
            }
        };
        let [cache, state, emitted] = groups(self.decode.call(vec![
            Argument::Borrowed(weights),
            Argument::Borrowed(&asked.1),
            Argument::Moved(run.cache),
            Argument::Moved(run.state),
        ])?);
        let asked = Some(asked);
        let run = Run {
            cache,
            state,
            asked,
        };
        Ok((run, emitted))
    }
}

fn groups<const N: usize>(results: Vec<Group>) -> [Group; N] {
    results
        .try_into()
        .expect("a program returns the groups that it was traced with")
}

/// The parameters must be those of the model, f32, and besides them only adapters of its layers.
fn check_weights(model: &ModelConfig, weights: &[&Layout]) -> Result<()> {
    let params = model.params();
    let refuse = |reason| Err(Error::Weights { reason });
    let given: HashMap<&str, _> = weights
        .iter()
        .flat_map(|layout| layout.specs())
        .map(|spec| (spec.name.as_str(), spec))
        .collect();
    for param in &params {
        let expected = format!("`{}` f32 {:?}", param.path, param.dims);
        match given.get(param.path.as_str()) {
            None => return refuse(format!("expected {expected}, which is not given")),
            Some(spec) if param.dims != spec.dims || spec.dtype != DType::F32 => {
                let found = format!("`{}` {} {:?}", spec.name, spec.dtype, spec.dims);
                return refuse(format!("expected {expected}, found {found}"));
            }
            Some(_) => {}
        }
    }
    let is_known = |name: &str| {
        let host = name.strip_suffix("_lora_a");
        let host = host.or(name.strip_suffix("_lora_b")).unwrap_or(name);
        params.iter().any(|param| param.path == host)
    };
    match given.keys().find(|name| !is_known(name)) {
        Some(name) => refuse(format!("the model has no parameter `{name}`")),
        None => Ok(()),
    }
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
