//! The command line of `ferrotune bench`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use ferrotune_engine::HeadMode;

use super::{ComputeArg, at_least_one, at_least_two, bounded, temperature};

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Training steps on synthetic rows: tokens a second, host time, peak memory.
    Step(BenchStepArgs),
    /// What the engine adds to the programs that it runs, for 28 layers in a loop and for 28 written out.
    Engine(BenchEngineArgs),
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
    /// The sampler on random weights: tokens a second by the number of rows.
    Sampler(BenchSamplerArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchSamplerArgs {
    /// Take the shape of this Hugging Face model folder, instead of that of SmolLM2-135M.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Rows that are decoded together; 1, 8 and 32 unless given. May be given several times.
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) batch: Vec<usize>,
    /// Tokens of each prompt.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) prompt: usize,
    /// Tokens of each answer.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) new_tokens: usize,
    /// Tokens that one dispatch decodes.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) tokens_per_dispatch: usize,
    /// Divides the logits before sampling; 0 takes the most likely token each time.
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = temperature, allow_negative_numbers = true)]
    pub(crate) temperature: f64,
    /// Runs that are measured.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) runs: usize,
    /// Number format of matrix products and activations; both unless given.
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(crate) compute_dtype: Option<ComputeArg>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
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
        value_delimiter = ',',
        value_parser = axis,
        requires = "topology"
    )]
    pub(crate) mesh: Vec<(String, usize)>,
    /// How the head works; every mode unless given.
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) mode: Vec<HeadArg>,
    /// Tokens on each device. By default 2,048, on a slice 16,384.
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) tokens: Option<usize>,
    /// Width of the hidden states. By default 1,024, on a slice 4,096.
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) width: Option<usize>,
    /// Size of the vocabulary. By default 151,936, on a slice 248,320.
    #[arg(long, value_name = "N", value_parser = at_least_two, allow_negative_numbers = true)]
    pub(crate) vocab: Option<usize>,
    /// Tokens of one device that are scored at a time, instead of the default for the size.
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) token_chunk: Vec<usize>,
    /// Entries of the vocabulary that are looked at together, instead of the default for the size.
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) vocab_chunk: Option<usize>,
    /// Number format of matrix products.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ComputeArg::Bf16)]
    pub(crate) compute_dtype: ComputeArg,
    /// Runs to measure, after one to warm up.
    #[arg(long, default_value_t = 3, value_parser = at_least_one, allow_negative_numbers = true)]
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

    /// As the flag and the setting `head.mode` have it.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |it| it.get_name().to_owned())
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchStepArgs {
    /// A model folder; its config.json alone is read. Without one, a model of about two million parameters.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Rows of a micro-batch.
    #[arg(long, default_value_t = 8, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) rows: usize,
    /// Tokens in a row.
    #[arg(long, default_value_t = 128, value_parser = at_least_two, allow_negative_numbers = true)]
    pub(crate) width: usize,
    /// Micro-batches of a step.
    #[arg(long, default_value_t = 8, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) micro_batches: usize,
    /// Steps to measure, after two to warm up.
    #[arg(long, default_value_t = 10, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) steps: usize,
    /// Devices to split the state over.
    #[arg(long, default_value_t = 1, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) fsdp: usize,
    /// Number format of matrix products and activations.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ComputeArg::F32)]
    pub(crate) compute_dtype: ComputeArg,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchEngineArgs {
    /// Layers of the model.
    #[arg(long, value_name = "N", default_value_t = 28, value_parser = at_least_two, allow_negative_numbers = true)]
    pub(crate) layers: usize,
    /// Size of its hidden states, in multiples of 16.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) hidden: usize,
    /// Rows of a micro-batch.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) rows: usize,
    /// Tokens in a row.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_two, allow_negative_numbers = true)]
    pub(crate) width: usize,
    /// Micro-batches of a step; 1 and 8 unless given. May be given several times.
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) micro_batches: Vec<usize>,
    /// Steps to measure of each kind, after two to warm up.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) steps: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchDispatchArgs {
    /// Calls to measure.
    #[arg(long, default_value_t = 500, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) calls: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchAttentionArgs {
    /// Tokens of the row.
    #[arg(long, default_value_t = 4096, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) tokens: usize,
    /// Query heads.
    #[arg(long, default_value_t = 8, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) heads: usize,
    /// Query heads that share a key head.
    #[arg(long, default_value_t = 1, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) group: usize,
    /// Size of a head.
    #[arg(long, default_value_t = 128, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) head_size: usize,
    /// Documents in the row; several numbers are measured one after the other: 1,2,5. May be given several times.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 5, 13, 16], value_parser = at_least_one, allow_negative_numbers = true)]
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
    #[arg(long, default_value_t = 5, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) runs: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchAttentionArgs {
    pub(crate) fn kv_heads(&self) -> usize {
        self.heads / self.group
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
    #[arg(long, default_value_t = 5, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) runs: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchPackArgs {
    /// Tokens to pack, about.
    #[arg(long, default_value_t = 4_000_000, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) tokens: usize,
    /// Tokens in a row.
    #[arg(long, default_value_t = 65_536, value_parser = at_least_two, allow_negative_numbers = true)]
    pub(crate) budget: usize,
    /// Context shards.
    #[arg(long, default_value_t = 4, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) context: usize,
    /// Times to measure.
    #[arg(long, default_value_t = 5, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) repeats: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
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

/// One axis of a mesh.
fn axis(text: &str) -> Result<(String, usize), String> {
    const AXES: [&str; 3] = ["fsdp", "context", "expert"];
    match text.split_once('=') {
        Some((name, size)) if AXES.contains(&name) => match at_least_one(size) {
            Ok(size) => Ok((name.to_owned(), size)),
            Err(why) => Err(format!("the size of {name} {why}")),
        },
        Some((name, _)) => Err(format!(
            "there is no axis `{name}`; the axes are {}",
            AXES.join(", ")
        )),
        None => Err("must be axis=size, such as fsdp=32".to_owned()),
    }
}

fn tile(text: &str) -> Result<(usize, usize), String> {
    let parts = text
        .split_once('x')
        .ok_or("must be queries x keys, such as 512x256")?;
    Ok((at_least_one(parts.0)?, at_least_one(parts.1)?))
}
