//! `ferrotune sample`: a model continues prompts.

mod prompts;

use ferrotune_models::ModelConfig;
use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::HostArray;
use ferrotune_program::{Group, Layout, Leaf};
use ferrotune_rl::answer_text;
use ferrotune_rollout::{Completion, Finish, Request, Sampler, SamplerConfig};
use ferrotune_text::Tokenizer;
use serde::Serialize;

use crate::args::SampleArgs;
use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::model_folder;
use crate::terminal::{print, say};

/// Answers that are decoded together.
const ROWS: usize = 16;

/// Tokens that one dispatch decodes.
const TOKENS_PER_DISPATCH: usize = 16;

pub(crate) fn run(args: &SampleArgs) -> Result<(), Failure> {
    let model = ModelConfig::load(&args.model).or_refuse()?;
    let tokenizer = Tokenizer::from_dir(&args.model).or_refuse()?;
    let prompts = prompts::read(args, &tokenizer, model.vocab_size)?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let slots = longest.saturating_add(args.max_new);
    let rows = args.n.saturating_mul(prompts.len()).min(ROWS);
    crate::machine::check_attention(
        &model,
        rows,
        longest,
        slots,
        "lower --max-new or --n, or shorten the prompt",
    )?;
    let (params, _) = model_folder::weights(&args.model, &model)?;
    let device = Device::single()?;
    say(device.describe());

    let weights = upload(&device, &params)?;
    let inside = |id: &u32| (*id as usize) < model.vocab_size;
    let config = SamplerConfig {
        batch: rows,
        max_prompt_tokens: longest,
        max_new_tokens: args.max_new,
        tokens_per_dispatch: args.max_new.min(TOKENS_PER_DISPATCH),
        compute: args.compute_dtype.dtype(),
        stop_ids: tokenizer.eos_ids().iter().copied().filter(inside).collect(),
        pad_id: 0,
    };
    let layout = weights.layout();
    let sampler = Sampler::new(&device.client, &device.rules, &model, layout, config).or_fail()?;
    let request = |prompt: &Vec<u32>, n: u64| Request {
        prompt: prompt.clone(),
        seed: args.seed.wrapping_add(n),
        temperature: args.temperature,
        max_new_tokens: args.max_new,
    };
    let requests: Vec<Request> = prompts
        .iter()
        .flat_map(|prompt| (0..args.n as u64).map(move |n| request(prompt, n)))
        .collect();
    // In parts, so that the first answers are there before the last are begun.
    for part in requests.chunks(ROWS) {
        let answers = sampler.generate(&weights, part, &mut |_, _| ()).or_fail()?;
        for (request, answer) in part.iter().zip(&answers) {
            show(args, &tokenizer, request, answer)?;
        }
    }
    Ok(())
}

/// One line for a script.
#[derive(Serialize)]
struct Answered<'a> {
    prompt_ids: &'a [u32],
    ids: &'a [u32],
    logprobs: &'a [f32],
    text: &'a str,
    finish: &'static str,
}

fn show(
    args: &SampleArgs,
    tokenizer: &Tokenizer,
    request: &Request,
    answer: &Completion,
) -> Result<(), Failure> {
    let text = answer_text(tokenizer, answer).or_fail()?;
    if !args.json {
        return print(text);
    }
    let line = Answered {
        prompt_ids: &request.prompt,
        ids: &answer.tokens,
        logprobs: &answer.raw_logprobs,
        text: &text,
        finish: match answer.finish {
            Finish::Stop => "stop",
            Finish::Length => "length",
        },
    };
    print(serde_json::to_string(&line).or_fail()?)
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
