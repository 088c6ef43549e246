//! `ferrotune score`: how likely a model finds each token of some documents, and the gradient of that.

use std::path::Path;

use anyhow::{Context, anyhow};
use ferrotune_batch::{Aggregation, Packing, Rows, Trajectory};
use ferrotune_engine::{Engine, FilterSettings, HeadMode, Loss};
use ferrotune_models::export_gradients;
use ferrotune_text::Tokenizer;
use serde::Serialize;

use crate::args::ScoreArgs;
use crate::device::Device;
use crate::documents::{self, Limits};
use crate::failure::{Failure, OrFail};
use crate::model_folder;
use crate::output_file;
use crate::terminal::{print, say};

/// Tokens that are scored at once, unless one document has more.
const TOKENS_AT_ONCE: usize = 4096;

/// One line of the output: values of all tokens but the first, which nothing predicts. What is not finite is written as null.
#[derive(Serialize)]
struct Scored<'a> {
    logprobs: &'a [f32],
    entropy: &'a [f32],
    #[serde(flatten)]
    filtered: Option<Filtered<'a>>,
}

/// What filters leave: the probability of all that may be drawn, and log-probs in the distribution of that.
#[derive(Serialize)]
struct Filtered<'a> {
    kept: &'a [f32],
    sampling_logprobs: &'a [f32],
}

pub(crate) fn run(args: &ScoreArgs) -> Result<(), Failure> {
    let model = model_folder::config(&args.model)?;
    let limits = Limits {
        vocab_size: model.vocab_size,
        row: args.pack,
        longest: model.longest(),
    };
    let tokenizer = || Tokenizer::from_dir(&args.model).or_refuse();
    let documents = documents::read(&args.documents, &limits, tokenizer)?;
    if let Some(path) = &args.grad {
        check_writable(path, [&args.model, &args.documents])?;
        if documents.iter().all(|ids| ids.len() < 2) {
            return Err(Failure::refused(anyhow!(
                "no document has a second token, so there is nothing to differentiate: leave out --grad"
            )));
        }
    }
    let widest = args
        .pack
        .or(documents.iter().map(Vec::len).max())
        .unwrap_or(0);
    let cure = "lower --pack, or leave out the longest documents";
    crate::machine::check_rows(&model, 1, widest, cure)?;
    let rows = lay_out(documents, args.pack)?;
    let height = (TOKENS_AT_ONCE / rows.width()).clamp(1, rows.row_count());
    let micro_batches = rows.micro_batches(height).or_refuse()?;

    let adapter = args.adapter.as_deref();
    let (params, trains) = model_folder::with_adapter(&args.model, adapter, &model)?;
    let device = Device::single()?;
    say(device.describe());
    let tokens = height * rows.width();
    let head = (
        model_folder::head(HeadMode::Fused, tokens, &model),
        args.temperature,
    );
    let compute = args.compute_dtype.dtype();
    let mut engine =
        model_folder::scoring_engine(&device, model, (&params, trains), compute, head)?;
    drop(params);
    let filters = Some(args.filters.settings()).filter(|it| !it.is_off());
    print_scores(&mut engine, &micro_batches, rows.places().len(), filters)?;
    match &args.grad {
        Some(path) => write_gradient(&mut engine, &micro_batches, path),
        None => Ok(()),
    }
}

/// One document a row as wide as the longest, or several in rows of `pack` tokens.
///
/// Weights are those of the mean over all predicted tokens.
fn lay_out(documents: Vec<Vec<u32>>, pack: Option<usize>) -> Result<Rows, Failure> {
    let longest = documents.iter().map(Vec::len).max().unwrap_or(0);
    // A model predicts from one place to the next, so a row has at least two.
    let packing = match pack {
        Some(budget) => Packing::packed(budget.max(2)),
        None => Packing::padded(longest.max(2)),
    };
    let documents: Vec<Trajectory> = documents.into_iter().map(Trajectory::document).collect();
    let weights = Aggregation::TokenMean.weights(&documents).or_refuse()?;
    packing.pack(&documents, &weights).or_refuse()
}

fn print_scores(
    engine: &mut Engine,
    micro_batches: &[Rows],
    documents: usize,
    filters: Option<FilterSettings>,
) -> Result<(), Failure> {
    let [mut logprobs, mut entropy, mut kept, mut sampling] =
        [(); 4].map(|()| vec![Vec::new(); documents]);
    for micro_batch in micro_batches {
        let scores = match &filters {
            Some(filters) => engine.score_filtered(micro_batch, filters),
            None => engine.score(micro_batch),
        };
        let scores = scores.or_fail()?;
        let unpack = |values: &[f32], out| micro_batch.unpack_into(values, out).or_fail();
        unpack(&scores.logprob, &mut logprobs)?;
        unpack(&scores.entropy, &mut entropy)?;
        if let Some(it) = &scores.kept {
            unpack(&it.mass, &mut kept)?;
            unpack(&it.sampling_logprob(&scores.logprob), &mut sampling)?;
        }
    }
    for i in 0..documents {
        let line = Scored {
            logprobs: &logprobs[i][1..],
            entropy: &entropy[i][1..],
            filtered: filters.map(|_| Filtered {
                kept: &kept[i][1..],
                sampling_logprobs: &sampling[i][1..],
            }),
        };
        print(serde_json::to_string(&line).or_fail()?)?;
    }
    Ok(())
}

fn write_gradient(engine: &mut Engine, micro_batches: &[Rows], path: &Path) -> Result<(), Failure> {
    let loss = Loss::cross_entropy();
    for micro_batch in micro_batches {
        engine.forward_backward(micro_batch, &loss).or_fail()?;
    }
    let gradients = engine.gradients_to_host().or_fail()?;
    export_gradients(path, engine.model(), &gradients).or_fail()?;
    say(format_args!("wrote {}", path.display()));
    Ok(())
}

/// Refuses a file that could not be written once the work is done, or that holds what is read.
fn check_writable(path: &Path, reads: [&Path; 2]) -> Result<(), Failure> {
    if let Ok(existing) = path.canonicalize()
        && reads
            .iter()
            .filter_map(|it| it.canonicalize().ok())
            .any(|it| existing.starts_with(it))
    {
        return Err(Failure::refused(anyhow!(
            "--grad {} would overwrite what is scored: name another file",
            path.display()
        )));
    }
    let folder = path
        .parent()
        .filter(|it| !it.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let tried = if path.is_dir() {
        Err(anyhow!("it is a folder"))
    } else if path.exists() && !path.is_file() {
        Err(anyhow!("it is not a file"))
    } else {
        output_file::check_folder(folder)
    };
    tried
        .with_context(|| {
            format!(
                "cannot write {}: name a file in a folder that you may write to",
                path.display()
            )
        })
        .or_refuse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_packing_every_document_has_its_row() {
        let rows = lay_out(vec![vec![5; 3], vec![6; 7], vec![7]], None).unwrap();
        assert_eq!((rows.row_count(), rows.width()), (3, 7));
        // Nine tokens less the three first ones: eight predicted.
        assert_eq!(
            rows.loss_weight().iter().filter(|w| **w == 0.125).count(),
            8
        );
        let packed = lay_out(vec![vec![5; 3], vec![6; 7], vec![7]], Some(11)).unwrap();
        assert_eq!((packed.row_count(), packed.width()), (1, 11));
    }
}
