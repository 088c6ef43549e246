//! The command line.

mod bench;
mod checkpoint;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use ferrotune_batch::{Blocks, DEFAULT_PAD_ALIGN, OrderKind, PadPosition};
use ferrotune_nn::FilterSettings;
use ferrotune_pjrt::DType;
use ferrotune_rollout::MIN_TEMPERATURE;

pub(crate) use bench::*;
pub(crate) use checkpoint::*;

/// Reinforcement-learning post-training of language models on XLA.
#[derive(Debug, Parser)]
#[command(name = "ferrotune", version, arg_required_else_help = true)]
pub(crate) struct Args {
    /// Leave what is traced and compiled in this folder: graph, StableHLO, arguments, work, memory.
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) dump: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a model as a recipe says.
    Train(TrainArgs),
    /// Let a model continue a prompt.
    Sample(SampleArgs),
    /// Say how likely a model finds each token of some documents.
    Score(ScoreArgs),
    /// Say what a model folder holds: layers, sizes, files, tokenizer.
    Inspect(InspectArgs),
    /// Lay trajectories out in rows, and say what each row and context shard gets.
    Pack(PackArgs),
    /// Show what this machine has, what is missing, and how to get it.
    Doctor,
    /// Show a recipe with every default filled in, or explain every key.
    Config(ConfigArgs),
    /// List, verify, show or export the checkpoints of a run.
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Measure speed and memory.
    #[command(subcommand)]
    Bench(BenchCommand),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TrainArgs {
    /// The recipe, a TOML file.
    pub(crate) recipe: PathBuf,
    /// Settings laid over the recipe, as key=value: seed=7 run.dir=PATH mesh.fsdp=2
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Go on with the run in the run directory, from its newest checkpoint.
    #[arg(long)]
    pub(crate) resume: bool,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("continued").args(["prompt", "prompts"]).required(true))]
pub(crate) struct SampleArgs {
    /// A Hugging Face model folder.
    pub(crate) model: PathBuf,
    /// A folder of adapters (LoRA) in PEFT's layout, to use with the model.
    #[arg(long, value_name = "DIR")]
    pub(crate) adapter: Option<PathBuf>,
    /// What to continue.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Continue many, one JSON object a line: {"prompt": "..."}, or {"messages": [{"role": ..., "content": ...}, ...]}
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) prompts: Option<PathBuf>,
    /// A prompt is what a user says: it goes through the model's chat template.
    #[arg(long)]
    pub(crate) chat: bool,
    /// Print an object a line: token ids of prompt and answer, log-probs of the model, text, how it ended.
    #[arg(long)]
    pub(crate) json: bool,
    /// The longest answer, in tokens; 128, or as many as the model was made for, when left out.
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) max_new: Option<usize>,
    /// Divides the logits before sampling; 0 takes the most likely token each time.
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = temperature, allow_negative_numbers = true)]
    pub(crate) temperature: f64,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    /// Stop at this string, which is not printed. May be given several times.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,
    /// Same seed, same answers.
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = seed, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// How many answers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) n: usize,
    /// Number format of matrix products and activations.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ComputeArg::F32)]
    pub(crate) compute_dtype: ComputeArg,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScoreArgs {
    /// A Hugging Face model folder.
    pub(crate) model: PathBuf,
    /// Documents, one JSON object a line: {"text": "..."} or {"ids": [...]}
    pub(crate) documents: PathBuf,
    /// A folder of adapters (LoRA) in PEFT's layout, to use with the model.
    #[arg(long, value_name = "DIR", conflicts_with = "grad")]
    pub(crate) adapter: Option<PathBuf>,
    /// Divides the logits, as before sampling.
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = divisor, allow_negative_numbers = true)]
    pub(crate) temperature: f64,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    /// Put several documents into rows of this many tokens. The values stay the same, up to rounding.
    #[arg(long, value_name = "BUDGET", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) pack: Option<usize>,
    /// Also write the gradient of the mean negative log-prob over all predicted tokens by the model's weights; not with --adapter.
    #[arg(long, value_name = "OUT.safetensors")]
    pub(crate) grad: Option<PathBuf>,
    /// Number format of matrix products and activations.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ComputeArg::F32)]
    pub(crate) compute_dtype: ComputeArg,
}

/// What may be drawn.
#[derive(Debug, clap::Args)]
pub(crate) struct FilterArgs {
    /// Only the K most likely tokens may be drawn; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = from_zero, allow_negative_numbers = true)]
    top_k: usize,
    /// Only the fewest tokens that together have this share of the probability may be drawn; 1 for all.
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = share_above_zero, allow_negative_numbers = true)]
    top_p: f64,
    /// Only tokens at least this share as likely as the most likely one may be drawn; 0 for all.
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = share, allow_negative_numbers = true)]
    min_p: f64,
}

impl FilterArgs {
    pub(crate) fn settings(&self) -> FilterSettings {
        FilterSettings {
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// A Hugging Face model folder; only config.json must be there.
    pub(crate) model: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PackArgs {
    /// Trajectories, one JSON object a line: {"tokens": [...], "loss_mask": [...], "advantage": [...]}
    #[arg(value_name = "TRAJECTORIES.jsonl")]
    pub(crate) trajectories: PathBuf,
    /// Tokens in a row.
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) budget: usize,
    /// Shorten trajectories that do not fit a row, instead of refusing them.
    #[arg(long)]
    pub(crate) truncate: bool,
    /// Every trajectory starts at a multiple of this.
    #[arg(long, value_name = "A", default_value_t = 1, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) align: usize,
    /// The most trajectories in a row; as many as fit when left out.
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) max_segments: Option<usize>,
    /// Which end of a row holds its padding: end or start.
    #[arg(long, value_name = "END", default_value = "end", value_parser = str::parse::<PadPosition>)]
    pub(crate) pad: PadPosition,
    /// Padding at the start comes in multiples of this.
    #[arg(long, value_name = "P", default_value_t = DEFAULT_PAD_ALIGN, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) pad_align: usize,
    /// Rows of a micro-batch; the last one is filled up with empty rows.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) rows_per_micro_batch: usize,
    /// Even the attention work of so many data shards, which share the rows of a micro-batch.
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) data_shards: Option<usize>,
    /// Context shards, which share the tokens of a row.
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) context: usize,
    /// How tokens go to context shards: contiguous, dual_chunk_swap or balanced.
    #[arg(long, value_name = "ORDER", default_value = "contiguous", value_parser = str::parse::<OrderKind>)]
    pub(crate) order: OrderKind,
    /// Queries and keys in a tile of the forward pass and of the gradient of queries.
    #[arg(long, value_name = "QxK", default_value = "1024x4096", value_parser = str::parse::<Blocks>)]
    pub(crate) blocks: Blocks,
    /// Queries and keys in a tile of the gradient of keys and values.
    #[arg(long, value_name = "QxK", default_value = "2048x2048", value_parser = str::parse::<Blocks>)]
    pub(crate) dkv_blocks: Blocks,
    /// Leave padding out when tiles are counted, instead of taking it for segment 0.
    #[arg(long)]
    pub(crate) skip_padding: bool,
    /// What the loss weights add up to: token-mean, sequence-mean-token-mean, sequence-mean-token-sum, token-sum, sequence-mean.
    #[arg(long, value_name = "MODE", default_value = "token-mean")]
    pub(crate) aggregation: String,
    /// What token-sum divides by.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) constant: Option<f64>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// The recipe, a TOML file.
    #[arg(required_unless_present = "reference")]
    pub(crate) recipe: Option<PathBuf>,
    /// Settings laid over the recipe.
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Explain every key instead.
    #[arg(long, conflicts_with = "recipe")]
    pub(crate) reference: bool,
}

/// A number format on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ComputeArg {
    /// f32 throughout.
    F32,
    /// bf16 products, accumulated in f32.
    Bf16,
}

impl ComputeArg {
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }
}

/// Beyond this, sizes in bytes could overflow; nothing real comes near.
const LARGEST: usize = 1_000_000_000;

fn bounded(text: &str, least: usize) -> Result<usize, String> {
    let number = text.parse().ok();
    let fitting = number.filter(|n| (least..=LARGEST).contains(n));
    fitting.ok_or_else(|| format!("must be a whole number from {least} to {LARGEST}"))
}

fn at_least_one(text: &str) -> Result<usize, String> {
    bounded(text, 1)
}

fn at_least_two(text: &str) -> Result<usize, String> {
    bounded(text, 2)
}

fn from_zero(text: &str) -> Result<usize, String> {
    bounded(text, 0)
}

fn seed(text: &str) -> Result<u64, String> {
    let number = text.parse().ok();
    number.ok_or_else(|| format!("must be a whole number from 0 to {}", u64::MAX))
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("must be a number from 0 to 1".to_owned()),
    }
}

fn share_above_zero(text: &str) -> Result<f64, String> {
    match share(text) {
        Ok(share) if share > 0.0 => Ok(share),
        _ => Err("must be a number above 0, up to 1".to_owned()),
    }
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(0.0) => Ok(0.0),
        _ => divisor(text)
            .map_err(|_| format!("must be 0, or a finite number of at least {MIN_TEMPERATURE}")),
    }
}

/// A temperature that logits can be divided by.
fn divisor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(t) if (MIN_TEMPERATURE..f64::INFINITY).contains(&t) => Ok(t),
        _ => Err(format!(
            "must be a finite number of at least {MIN_TEMPERATURE}"
        )),
    }
}
