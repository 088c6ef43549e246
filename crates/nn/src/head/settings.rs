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

    /// Chunks such that what is held of one takes about `bytes`; a chunk that is given stays as it is.
    ///
    /// `Local` and `SinglePass` hold the f32 logits of a chunk of tokens over all of the vocabulary; the single pass takes
    /// 512 tokens at least, fewer of which make products slow. `Fused` holds those of
    /// a tile; beside them its weights in the type of products, and twice its gradient in f32: `v·(4·n + 10·D)` bytes.
    /// There one chunk holds all tokens up to 16,384: a loop over chunks inside of the one over tiles would keep the
    /// gradient by hidden states twice.
    pub fn within(
        bytes: usize,
        mode: HeadMode,
        sizes: HeadSizes,
        token_chunk: Option<usize>,
        vocab_chunk: Option<usize>,
    ) -> Self {
        let HeadSizes {
            tokens,
            width,
            vocab,
        } = sizes;
        let rows = bytes / 4 / vocab.max(1);
        let sized = match mode {
            HeadMode::Off => tokens,
            HeadMode::Local => rows.max(16).min(tokens),
            HeadMode::SinglePass => rows.max(512).min(tokens),
            HeadMode::Fused => tokens.min(16_384),
        };
        let token_chunk = token_chunk.unwrap_or(sized).max(1);
        let sized = match mode {
            HeadMode::Off | HeadMode::Local => vocab,
            HeadMode::SinglePass => SINGLE_PASS_TILE.min(vocab),
            HeadMode::Fused => {
                let held = 4 * token_chunk.min(tokens) + 10 * width;
                (bytes / held.max(1)).max(128).min(vocab)
            }
        };
        Self {
            mode,
            token_chunk,
            vocab_chunk: vocab_chunk.unwrap_or(sized).max(1),
        }
    }
}

/// What the head of one device has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSizes {
    /// Tokens on the device.
    pub tokens: usize,
    /// Width of the hidden states.
    pub width: usize,
    /// Entries of the vocabulary.
    pub vocab: usize,
}

/// Entries of the vocabulary whose gradients are added to the weight's at a time.
const SINGLE_PASS_TILE: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: HeadSizes = HeadSizes {
        tokens: 16_384,
        width: 4096,
        vocab: 248_320,
    };

    #[test]
    fn chunks_keep_to_their_memory_and_to_what_is_given() {
        let of = |mode, tokens, vocab| {
            let s = HeadSettings::within(128 << 20, mode, SIZES, tokens, vocab);
            (s.token_chunk, s.vocab_chunk)
        };
        assert_eq!(of(HeadMode::Off, None, None), (16_384, 248_320));
        assert_eq!(of(HeadMode::Local, None, None), (135, 248_320));
        assert_eq!(of(HeadMode::SinglePass, None, None), (512, 8192));
        assert_eq!(of(HeadMode::Fused, None, None), (16_384, 1260));
        assert_eq!(of(HeadMode::Fused, Some(4096), None), (4096, 2340));
        assert_eq!(of(HeadMode::Fused, Some(1024), None), (1024, 2978));
        assert_eq!(of(HeadMode::Fused, Some(1024), Some(77)), (1024, 77));
    }

    #[test]
    fn chunks_are_never_empty_nor_longer_than_what_is_there() {
        for mode in [
            HeadMode::Off,
            HeadMode::Local,
            HeadMode::Fused,
            HeadMode::SinglePass,
        ] {
            for (tokens, width, vocab) in [(1, 1, 1), (3, 8, 5), (1 << 20, 1 << 14, 1 << 20)] {
                let sizes = HeadSizes {
                    tokens,
                    width,
                    vocab,
                };
                let s = HeadSettings::within(1 << 20, mode, sizes, None, None);
                assert!((1..=tokens).contains(&s.token_chunk), "{s:?}");
                assert!((1..=vocab).contains(&s.vocab_chunk), "{s:?}");
            }
        }
    }
}
