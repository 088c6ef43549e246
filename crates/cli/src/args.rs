//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use ferrotune_batch::{Blocks, DEFAULT_PAD_ALIGN, OrderKind, PadPosition};
use ferrotune_engine::HeadMode;
use ferrotune_pjrt::DType;

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
    /// Lay trajectories out in rows, and say what each row and context shard gets.
    Pack(PackArgs),
    /// Show what this machine has, what is missing, and how to get it.
    Doctor,
    /// Show a recipe with every default filled in, or explain every key.
    Config(ConfigArgs),
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
pub(crate) struct SampleArgs {
    /// A Hugging Face model folder.
    pub(crate) model: PathBuf,
    /// What to continue.
    #[arg(long)]
    pub(crate) prompt: String,
    /// The longest answer, in tokens.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = at_least_one)]
    pub(crate) max_new: usize,
    /// Divides the logits before sampling; 0 takes the most likely token each time.
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = temperature)]
    pub(crate) temperature: f64,
    /// Same seed, same answers.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// How many answers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
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
    /// Put several documents into rows of this many tokens. The values stay the same.
    #[arg(long, value_name = "BUDGET", value_parser = at_least_one)]
    pub(crate) pack: Option<usize>,
    /// Also write the gradient of the mean negative log-prob over all predicted tokens.
    #[arg(long, value_name = "OUT.safetensors")]
    pub(crate) grad: Option<PathBuf>,
    /// Number format of matrix products and activations.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ComputeArg::F32)]
    pub(crate) compute_dtype: ComputeArg,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PackArgs {
    /// Trajectories, one JSON object a line: {"tokens": [...], "loss_mask": [...], "advantage": [...]}
    #[arg(value_name = "TRAJECTORIES.jsonl")]
    pub(crate) trajectories: PathBuf,
    /// Tokens in a row.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) budget: usize,
    /// Shorten trajectories that do not fit a row, instead of refusing them.
    #[arg(long)]
    pub(crate) truncate: bool,
    /// Every trajectory starts at a multiple of this.
    #[arg(long, value_name = "A", default_value_t = 1, value_parser = at_least_one)]
    pub(crate) align: usize,
    /// The most trajectories in a row; as many as fit when left out.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) max_segments: Option<usize>,
    /// Which end of a row holds its padding: end or start.
    #[arg(long, value_name = "END", default_value = "end", value_parser = str::parse::<PadPosition>)]
    pub(crate) pad: PadPosition,
    /// Padding at the start comes in multiples of this.
    #[arg(long, value_name = "P", default_value_t = DEFAULT_PAD_ALIGN, value_parser = at_least_one)]
    pub(crate) pad_align: usize,
    /// Rows of a micro-batch; the last one is filled up with empty rows.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub(crate) rows_per_micro_batch: usize,
    /// Even the attention work of so many data shards, which share the rows of a micro-batch.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) data_shards: Option<usize>,
    /// Context shards, which share the tokens of a row.
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = at_least_one)]
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
    #[arg(long, value_name = "X")]
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

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Training steps on synthetic rows: tokens a second, host time, peak memory.
    Step(BenchStepArgs),
    /// The cost of calling a program that does nothing, by its number of arrays.
    Dispatch(BenchDispatchArgs),
    /// Attention over a row of documents: only the tiles where they meet, beside all with a mask.
    Attention(BenchAttentionArgs),
    /// The time to trace, differentiate, write and compile a hybrid model, by its number of layers.
    Trace(BenchTraceArgs),
    /// The log-prob head alone, loss and gradients: time and memory of every mode, or what it needs on a slice of TPUs.
    Head(BenchHeadArgs),
    /// Trajectories to rows, on one core: tokens a second, memory a token.
    Pack(BenchPackArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchHeadArgs {
    /// Compile for this slice instead of running: tpu7x:4x4x8
    #[arg(long, value_name = "NAME")]
    pub(crate) topology: Option<String>,
    /// Mesh of the slice, as axis=size,… with the axes fsdp, context and expert.
    #[arg(
        long,
        value_name = "AXES",
        default_value = "fsdp=32,context=4,expert=2",
        requires = "topology"
    )]
    pub(crate) mesh: String,
    /// How the head works; every mode unless given.
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) mode: Vec<HeadArg>,
    /// Tokens on each device. By default 2,048, on a slice 16,384.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) tokens: Option<usize>,
    /// Width of the hidden states. By default 1,024, on a slice 4,096.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) width: Option<usize>,
    /// Size of the vocabulary. By default 151,936, on a slice 248,320.
    #[arg(long, value_name = "N", value_parser = at_least_two)]
    pub(crate) vocab: Option<usize>,
    /// Tokens of one device that are scored at a time, instead of the default for the size.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) token_chunk: Vec<usize>,
    /// Entries of the vocabulary that are looked at together, instead of the default for the size.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) vocab_chunk: Option<usize>,
    /// Number format of matrix products.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ComputeArg::Bf16)]
    pub(crate) compute_dtype: ComputeArg,
    /// Runs to measure, after one to warm up.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    pub(crate) runs: usize,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A mode of the head on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum HeadArg {
    /// All logits at once.
    Off,
    /// Chunks of tokens, differentiated automatically.
    Local,
    /// Chunks of tokens and of the vocabulary.
    Fused,
    /// Loss and gradient in one pass.
    SinglePass,
}

impl HeadArg {
    pub(crate) fn mode(self) -> HeadMode {
        match self {
            Self::Off => HeadMode::Off,
            Self::Local => HeadMode::Local,
            Self::Fused => HeadMode::Fused,
            Self::SinglePass => HeadMode::SinglePass,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchStepArgs {
    /// A model folder; its config.json alone is read. Without one, a model of about two million parameters.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Rows of a micro-batch.
    #[arg(long, default_value_t = 8, value_parser = at_least_one)]
    pub(crate) rows: usize,
    /// Tokens in a row.
    #[arg(long, default_value_t = 128, value_parser = at_least_two)]
    pub(crate) width: usize,
    /// Micro-batches of a step.
    #[arg(long, default_value_t = 8, value_parser = at_least_one)]
    pub(crate) micro_batches: usize,
    /// Steps to measure, after two to warm up.
    #[arg(long, default_value_t = 10, value_parser = at_least_one)]
    pub(crate) steps: usize,
    /// Devices to split the state over.
    #[arg(long, default_value_t = 1, value_parser = at_least_one)]
    pub(crate) fsdp: usize,
    /// Number format of matrix products and activations.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ComputeArg::F32)]
    pub(crate) compute_dtype: ComputeArg,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchDispatchArgs {
    /// Calls to measure.
    #[arg(long, default_value_t = 500, value_parser = at_least_one)]
    pub(crate) calls: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchAttentionArgs {
    /// Tokens of the row.
    #[arg(long, default_value_t = 4096, value_parser = at_least_one)]
    pub(crate) tokens: usize,
    /// Query heads.
    #[arg(long, default_value_t = 8, value_parser = at_least_one)]
    pub(crate) heads: usize,
    /// Query heads that share a key head.
    #[arg(long, default_value_t = 1, value_parser = at_least_one)]
    pub(crate) group: usize,
    /// Size of a head.
    #[arg(long, default_value_t = 128, value_parser = at_least_one)]
    pub(crate) head_size: usize,
    /// Numbers of documents to measure.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 5, 13, 16], value_parser = at_least_one)]
    pub(crate) documents: Vec<usize>,
    /// Queries x keys of a tile, forward.
    #[arg(long, default_value = "512x256", value_parser = tile)]
    pub(crate) blocks: (usize, usize),
    /// Queries x keys of a tile, backward.
    #[arg(long, default_value = "256x256", value_parser = tile)]
    pub(crate) backward_blocks: (usize, usize),
    /// Leave the dense form out.
    #[arg(long)]
    pub(crate) tiled_only: bool,
    /// Number format of operands.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ComputeArg::F32)]
    pub(crate) compute_dtype: ComputeArg,
    /// Runs to measure, after one to warm up.
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    pub(crate) runs: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchAttentionArgs {
    pub(crate) fn kv_heads(&self) -> usize {
        (self.heads / self.group).max(1)
    }

    pub(crate) fn sizes(&self) -> ferrotune_nn::TileSizes {
        ferrotune_nn::TileSizes {
            forward: self.blocks,
            backward: self.backward_blocks,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchTraceArgs {
    /// Layers, a multiple of four; twice as many are measured beside them.
    #[arg(long, default_value_t = 60, value_parser = multiple_of_four)]
    pub(crate) layers: usize,
    /// Runs to measure.
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    pub(crate) runs: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchPackArgs {
    /// Tokens to pack, about.
    #[arg(long, default_value_t = 4_000_000, value_parser = at_least_one)]
    pub(crate) tokens: usize,
    /// Tokens in a row.
    #[arg(long, default_value_t = 65_536, value_parser = at_least_two)]
    pub(crate) budget: usize,
    /// Context shards.
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    pub(crate) context: usize,
    /// Times to measure.
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    pub(crate) repeats: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
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
    match text.parse() {
        Ok(n) if (least..=LARGEST).contains(&n) => Ok(n),
        Ok(_) => Err(format!("must be a whole number from {least} to {LARGEST}")),
        Err(error) => Err(format!("must be a whole number: {error}")),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    bounded(text, 1)
}

fn at_least_two(text: &str) -> Result<usize, String> {
    bounded(text, 2)
}

fn multiple_of_four(text: &str) -> Result<usize, String> {
    match bounded(text, 4)? {
        n if n.is_multiple_of(4) => Ok(n),
        _ => Err(
            "must be a multiple of 4: of four layers, three hold a delta rule and one attention"
                .to_owned(),
        ),
    }
}

fn tile(text: &str) -> Result<(usize, usize), String> {
    let parts = text
        .split_once('x')
        .ok_or("must be queries x keys, such as 512x256")?;
    Ok((at_least_one(parts.0)?, at_least_one(parts.1)?))
}

fn temperature(text: &str) -> Result<f64, String> {
    let least = ferrotune_rollout::MIN_TEMPERATURE;
    match text.parse::<f64>() {
        Ok(t) if t == 0.0 || (least..f64::INFINITY).contains(&t) => Ok(t),
        _ => Err(format!("must be 0, or a number of at least {least}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn overrides_and_flags_may_come_in_any_order() {
        let parse = |words: &[&str]| match Args::try_parse_from(words).unwrap().command {
            Command::Train(args) => (args.overrides, args.resume),
            other => panic!("{other:?}"),
        };
        let expected = (vec!["seed=7".to_owned(), "mesh.fsdp=2".to_owned()], true);
        assert_eq!(
            parse(&[
                "ferrotune",
                "train",
                "a.toml",
                "seed=7",
                "mesh.fsdp=2",
                "--resume"
            ]),
            expected
        );
        assert_eq!(
            parse(&[
                "ferrotune",
                "train",
                "--resume",
                "a.toml",
                "seed=7",
                "mesh.fsdp=2"
            ]),
            expected
        );
        assert_eq!(
            parse(&[
                "ferrotune",
                "train",
                "a.toml",
                "seed=7",
                "--resume",
                "mesh.fsdp=2"
            ]),
            expected
        );
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        for words in [
            ["--max-new", "0"],
            ["--n", "-1"],
            ["--temperature", "NaN"],
            ["--temperature", "1e-9"],
        ] {
            let line = [
                "ferrotune",
                "sample",
                "dir",
                "--prompt",
                "x",
                words[0],
                words[1],
            ];
            assert_eq!(
                Args::try_parse_from(line).unwrap_err().exit_code(),
                2,
                "{words:?}"
            );
        }
    }
}
