//! `ferrotune inspect`: what a model folder holds, from its configuration, tokenizer, and the headers of its weight files.
//!
//! Nothing runs on a device and no weights are read, so this is quick for models of any size.

mod lines;
mod object;
mod system;

use std::path::Path;

use ferrotune_models::{Error, LayerKind, ModelConfig, Survey, survey};
use ferrotune_text::{TextError, Tokenizer};

use crate::args::InspectArgs;
use crate::failure::{Failure, OrFail};
use crate::terminal::print;

pub(crate) fn run(args: &InspectArgs) -> Result<(), Failure> {
    let found = Found::read(&args.model)?;
    if args.json {
        return print(object::of(&found));
    }
    lines::of(&found).iter().try_for_each(print)
}

/// What there is in a folder; only the configuration must be there.
struct Found {
    model: ModelConfig,
    weights: Option<Survey>,
    tokenizer: Option<Tokenizer>,
}

impl Found {
    /// Reads the folder; whatever is wrong in it is refused together.
    fn read(dir: &Path) -> Result<Self, Failure> {
        crate::model_folder::check(dir, "the model", "config.json").or_refuse()?;
        let mut problems = Vec::new();
        let model = ModelConfig::load(dir);
        let weights = match model.as_ref().map(|model| survey(dir, model)) {
            Ok(Ok(weights)) => Some(weights),
            // Against what to compare them only the configuration says.
            Err(_) | Ok(Err(Error::NoWeights { .. })) => None,
            Ok(Err(error)) => {
                problems.push(error.into());
                None
            }
        };
        let tokenizer = match Tokenizer::from_dir(dir) {
            Ok(tokenizer) => Some(tokenizer),
            Err(TextError::NoTokenizer { .. }) => None,
            Err(error) => {
                problems.push(error.into());
                None
            }
        };
        match model {
            Ok(model) if problems.is_empty() => Ok(Self {
                model,
                weights,
                tokenizer,
            }),
            model => {
                let first = model.err().map(anyhow::Error::from);
                Err(Failure::Refused(
                    first.into_iter().chain(problems).collect(),
                ))
            }
        }
    }

    /// Kinds of layers, and how many are of each, in the order in which they first come.
    fn kinds(&self) -> Vec<(LayerKind, usize)> {
        let mut kinds: Vec<(LayerKind, usize)> = Vec::new();
        for kind in &self.model.layers {
            match kinds.iter_mut().find(|(known, _)| known == kind) {
                Some((_, count)) => *count += 1,
                None => kinds.push((*kind, 1)),
            }
        }
        kinds
    }

    /// Bytes of all weight files.
    fn bytes(&self) -> u64 {
        let files = self.weights.iter().flat_map(|weights| &weights.files);
        files.map(|(_, bytes)| bytes).sum()
    }
}

/// The special ids of a tokenizer by what they do, each with its token.
fn special(tokenizer: &Tokenizer) -> Vec<(&'static str, u32, String)> {
    let named = |role, id: u32| {
        let token = tokenizer.id_to_token(id).unwrap_or_default();
        (role, id, token)
    };
    let begin = tokenizer.bos_id().map(|id| named("begins", id));
    let ends = tokenizer.eos_ids().iter().map(|&id| named("ends", id));
    let pad = tokenizer.pad_id().map(|id| named("pads", id));
    begin.into_iter().chain(ends).chain(pad).collect()
}
