//! What can be chosen about the head.

/// How the head scores tokens. All modes compute the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadMode {
    /// Plain logits of all tokens: the form that others are checked against.
    Off,
    /// Chunks of tokens, differentiated automatically.
    Local,
    /// Chunks of tokens and tiles of the vocabulary, with a derivative of its own.
    Fused,
    /// As `Fused`; but a loss that is a sum over tokens is formed inside, with its gradient, in one pass.
    SinglePass,
}

/// What a program does with the entropy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntropyUse {
    /// Nobody reads it, and nothing of it is computed.
    Unread,
    /// It is read, and no gradient passes through it.
    Reported,
    /// It is part of what is differentiated.
    Differentiated,
}

/// The algorithm and its chunks, as one device sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadSettings {
    /// The algorithm.
    pub mode: HeadMode,
    /// Tokens of one device that are scored at a time. Chunks are made equal, and the last is padded.
    pub token_chunk: usize,
    /// Entries of the vocabulary that are looked at together, those of other devices that are gathered included.
    pub vocab_chunk: usize,
}

impl HeadSettings {
    /// The plain form.
    pub fn off() -> Self {
        Self {
            mode: HeadMode::Off,
            token_chunk: usize::MAX,
            vocab_chunk: usize::MAX,
        }
    }

    /// Chunks such that the logits held at a time, in f32, take about `bytes`, for `tokens` on each device and a
    /// vocabulary of `vocab`.
    ///
    /// Long chunks of tokens come first, since the weights are read once for each: 1,024 tokens where the logits may be
    /// cut along the vocabulary, all of which `Local` and `SinglePass` hold for a chunk.
    pub fn within(bytes: usize, mode: HeadMode, tokens: usize, vocab: usize) -> Self {
        let logits = (bytes / 4).max(1);
        let (token_chunk, vocab_chunk) = match mode {
            HeadMode::Off => (tokens, vocab),
            HeadMode::Local => ((logits / vocab.max(1)).max(16).min(tokens), vocab),
            HeadMode::SinglePass => {
                let chunk = (logits / vocab.max(1)).max(128).min(tokens);
                (chunk, SINGLE_PASS_TILE.min(vocab))
            }
            HeadMode::Fused => {
                let chunk = tokens.min(1024);
                (chunk, (logits / chunk.max(1)).max(128).min(vocab))
            }
        };
        Self {
            mode,
            token_chunk: token_chunk.max(1),
            vocab_chunk: vocab_chunk.max(1),
        }
    }
}

/// Entries of the vocabulary whose gradients are added to the weight's at a time.
const SINGLE_PASS_TILE: usize = 8192;
