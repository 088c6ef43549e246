//! `ferrotune sample`: a model continues a prompt.

use ferrotune_models::ModelConfig;
use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::HostArray;
use ferrotune_program::{Group, Layout, Leaf};
use ferrotune_rl::answer_text;
use ferrotune_rollout::{Request, Sampler, SamplerConfig};
use ferrotune_text::Tokenizer;

use crate::args::SampleArgs;
use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::model_folder;
use crate::terminal::{print, say};

/// Answers that are decoded together.
const ROWS: usize = 16;

/// The longest answer where the command line does not say, in tokens.
const MAX_NEW: usize = 128;

/// Tokens that one dispatch decodes.
const TOKENS_PER_DISPATCH: usize = 16;

pub(crate) fn run(args: &SampleArgs) -> Result<(), Failure> {
    if args.temperature == 0.0 && (args.top_k > 0 || args.top_p < 1.0 || args.min_p > 0.0) {
        return Err(Failure::refused(anyhow::anyhow!(
            "--temperature 0 takes the most likely token, which --top-k, --top-p and --min-p always keep: leave them out, or raise the temperature"
        )));
    }
    let model = ModelConfig::load(&args.model).or_refuse()?;
    let tokenizer = Tokenizer::from_dir(&args.model).or_refuse()?;
    let prompt = encode(&tokenizer, &args.prompt, model.vocab_size)?;
    let max_new = longest_answer(args, &model, prompt.len())?;
    let slots = prompt.len().saturating_add(max_new);
    let rows = args.n.min(ROWS);
    crate::machine::check_attention(
        &model,
        rows,
        prompt.len(),
        slots,
        "lower --max-new or --n, or shorten the prompt",
    )?;
    let (params, _) = model_folder::weights(&args.model, &model)?;
    let device = Device::single()?;
    say(device.describe());

    let weights = upload(&device, &params)?;
    let inside = |id: &u32| (*id as usize) < model.vocab_size;
    let config = SamplerConfig {
        batch: args.n.min(ROWS),
        max_prompt_tokens: prompt.len(),
        max_new_tokens: max_new,
        tokens_per_dispatch: max_new.min(TOKENS_PER_DISPATCH),
        compute: args.compute_dtype.dtype(),
        stop_ids: tokenizer.eos_ids().iter().copied().filter(inside).collect(),
        pad_id: 0,
    };
    let layout = weights.layout();
    let sampler = Sampler::new(&device.client, &device.rules, &model, layout, config)
        .or_fail()?
        .with_tokenizer(tokenizer.clone());
    let request = |n: u64| Request {
        prompt: prompt.clone(),
        seed: args.seed.wrapping_add(n),
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        stop_strings: args.stop.clone(),
        max_new_tokens: max_new,
        ..Request::default()
    };
    let requests: Vec<Request> = (0..args.n as u64).map(request).collect();
    // In parts, so that the first answers are there before the last are begun.
    for part in requests.chunks(ROWS) {
        let answers = sampler.generate(&weights, part, &mut |_, _| ()).or_fail()?;
        for answer in &answers {
            print(answer_text(&tokenizer, answer, &args.stop).or_fail()?)?;
        }
    }
    Ok(())
}

/// The most tokens of an answer: as many as were asked for, or else as the model was made for.
fn longest_answer(args: &SampleArgs, model: &ModelConfig, prompt: usize) -> Result<usize, Failure> {
    let Some(longest) = model.max_position_embeddings else {
        return Ok(args.max_new.unwrap_or(MAX_NEW));
    };
    let room = longest.saturating_sub(prompt);
    let wanted = args.max_new.unwrap_or(MAX_NEW.min(room).max(1));
    if wanted <= room {
        return Ok(wanted);
    }
    Err(Failure::refused(anyhow::anyhow!(
        "{prompt} tokens of prompt and up to {wanted} new ones are more than the model was made for \
         (max_position_embeddings = {longest} in {}/config.json): lower --max-new, or shorten the prompt",
        args.model.display()
    )))
}

/// The tokens of a prompt that must have some, all of them the model's.
fn encode(tokenizer: &Tokenizer, prompt: &str, vocab_size: usize) -> Result<Vec<u32>, Failure> {
    let mut ids = tokenizer.encode(prompt, true).or_refuse()?;
    if ids.is_empty() {
        ids.extend(tokenizer.bos_id());
    }
    if ids.is_empty() {
        return Err(Failure::refused(anyhow::anyhow!(
            "the prompt has no tokens, and the tokenizer has none that begins a text: give a --prompt that is not empty"
        )));
    }
    match ids.iter().find(|&&id| id as usize >= vocab_size) {
        None => Ok(ids),
        Some(id) => Err(Failure::refused(anyhow::anyhow!(
            "the prompt has token id {id}, outside of the model's vocabulary of {vocab_size}: \
             put the tokenizer that belongs to the model into its folder"
        ))),
    }
}

fn upload(device: &Device, params: &[(ParamSpec, HostArray)]) -> Result<Group, Failure> {
    let leaf = |spec: &ParamSpec| Leaf {
        name: spec.path.clone(),
        dtype: spec.dtype,
        dims: spec.dims.clone(),
        axes: spec.axes.clone(),
    };
    let leaves: Vec<Leaf> = params.iter().map(|(spec, _)| leaf(spec)).collect();
    let layout = Layout::new(&device.mesh, &device.rules, &leaves).or_fail()?;
    let host: Vec<HostArray> = params.iter().map(|(_, array)| array.clone()).collect();
    Group::upload(&device.client, &layout, &host).or_fail()
}
