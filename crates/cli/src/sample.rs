//! `ferrotune sample`: a model continues prompts.

mod prompts;

use anyhow::anyhow;
use ferrotune_models::ModelConfig;
use ferrotune_rl::answer_text;
use ferrotune_rollout::{Completion, Finish, Request, Sampler, SamplerConfig};
use ferrotune_text::Tokenizer;
use serde::Serialize;

use crate::args::SampleArgs;
use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::model_folder;
use crate::terminal::{counted, print, say};

/// Answers that are decoded together.
const ROWS: usize = 16;

/// The longest answer where the command line does not say, in tokens.
const MAX_NEW: usize = 128;

/// Tokens that one dispatch decodes.
const TOKENS_PER_DISPATCH: usize = 16;

pub(crate) fn run(args: &SampleArgs) -> Result<(), Failure> {
    let filters = args.filters.settings();
    if args.temperature == 0.0 && !filters.is_off() {
        return Err(Failure::refused(anyhow!(
            "--temperature 0 takes the most likely token, which --top-k, --top-p and --min-p always keep: leave them out, or raise the temperature"
        )));
    }
    let model = model_folder::config(&args.model)?;
    let tokenizer = Tokenizer::from_dir(&args.model).or_refuse()?;
    let prompts = prompts::read(args, &tokenizer, model.vocab_size)?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let max_new = longest_answer(args, &model, longest)?;
    let slots = longest.saturating_add(max_new);
    let rows = args.n.saturating_mul(prompts.len()).min(ROWS);
    let cure = "lower --max-new or --n, or shorten the prompt";
    crate::machine::check_rows(&model, rows, slots, cure)?;
    let adapter = args.adapter.as_deref();
    let (params, trains) = model_folder::with_adapter(&args.model, adapter, &model)?;
    let device = Device::single()?;
    say(device.describe());

    let weights = model_folder::upload(&device, &params)?;
    let inside = |id: &u32| (*id as usize) < model.vocab_size;
    let config = SamplerConfig {
        batch: rows,
        max_prompt_tokens: longest,
        max_new_tokens: max_new,
        tokens_per_dispatch: max_new.min(TOKENS_PER_DISPATCH),
        compute: args.compute_dtype.dtype(),
        stop_ids: tokenizer.eos_ids().iter().copied().filter(inside).collect(),
        adapter_scale: trains.adapter_scale(),
        routes: false,
        pad_id: 0,
    };
    let layout = weights.layout();
    let sampler = Sampler::new(&device.client, &device.rules, &model, &[layout], config)
        .or_fail()?
        .with_tokenizer(tokenizer.clone());
    let request = |prompt: &Vec<u32>, n: u64| Request {
        prompt: prompt.clone(),
        seed: args.seed.wrapping_add(n),
        temperature: args.temperature,
        filters,
        stop_strings: args.stop.clone(),
        max_new_tokens: max_new,
        ..Request::default()
    };
    let each = |prompt| (0..args.n as u64).map(move |n| (prompt, n));
    let mut waiting = prompts.iter().flat_map(each);
    let weights = sampler.weights(&[&weights]).or_fail()?;
    // In waves: the first answers are there before the last are begun, and no more of them are held than a wave has.
    loop {
        let wave = waiting.by_ref().take(ROWS);
        let wave: Vec<Request> = wave.map(|(prompt, n)| request(prompt, n)).collect();
        if wave.is_empty() {
            return Ok(());
        }
        let answers = sampler
            .generate(&weights, &wave, &mut |_, _| ())
            .or_fail()?;
        for (request, answer) in wave.iter().zip(&answers) {
            show(args, &tokenizer, request, answer)?;
        }
    }
}

/// The most tokens of an answer: as many as were asked for, or else as the model was made for.
fn longest_answer(args: &SampleArgs, model: &ModelConfig, prompt: usize) -> Result<usize, Failure> {
    let Some(longest) = model.longest() else {
        return Ok(args.max_new.unwrap_or(MAX_NEW));
    };
    let room = longest.tokens.saturating_sub(prompt);
    let wanted = args.max_new.unwrap_or(MAX_NEW.min(room).max(1));
    if wanted <= room {
        return Ok(wanted);
    }
    let limit = longest.told(args.model.join("config.json").display());
    let prompt = counted(prompt, "token");
    Err(Failure::refused(match room {
        0 => anyhow!(
            "{prompt} of prompt leave no room for an answer: with one token more it is more than {limit}: shorten the prompt"
        ),
        _ => anyhow!(
            "{prompt} of prompt and up to {wanted} new ones are more than {limit}: lower --max-new to {room}, or shorten \
             the prompt"
        ),
    }))
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
    let text = answer_text(tokenizer, answer, &args.stop).or_fail()?;
    if !args.json {
        return print(text);
    }
    let line = Answered {
        prompt_ids: &request.prompt,
        ids: &answer.tokens,
        logprobs: &answer.raw_logprobs,
        text: &text,
        finish: match answer.finish {
            Finish::StopToken | Finish::StopString(_) => "stop",
            Finish::Length => "length",
        },
    };
    print(serde_json::to_string(&line).or_fail()?)
}
