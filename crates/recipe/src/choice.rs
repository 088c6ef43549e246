//! Settings that are one word out of a few.
//!
//! Each enum lists its words once; the reader, the writer, the error texts and the reference all take them from here.

/// Declares an enum whose variants are words in a recipe.
macro_rules! choice {
    (
        $(#[doc = $doc:literal])*
        $name:ident {
            $( $(#[doc = $meaning:literal])* $variant:ident = $word:literal, )+
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $( $(#[doc = $meaning])* $variant, )+
        }

        impl $name {
            /// Every word that a recipe may hold here, in the order of the reference.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            const MEANINGS: &'static [(&'static str, &'static str)] =
                &[$( ($word, concat!($($meaning, "\n"),*)) ),+];

            /// The word that stands for this value in a recipe.
            pub fn word(self) -> &'static str {
                match self { $( Self::$variant => $word, )+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }

        impl crate::setting::Setting for $name {
            fn kind() -> crate::setting::Kind {
                crate::setting::Kind::Choice(Self::MEANINGS)
            }
            fn blank() -> Self {
                [$( Self::$variant ),+][0]
            }
            fn read(value: &toml::de::DeValue<'_>, _: &std::path::Path) -> Result<Self, crate::setting::Mismatch> {
                let word = value.as_str().ok_or_else(|| crate::setting::Mismatch::wrong_type::<Self>(value))?;
                match word {
                    $( $word => Ok(Self::$variant), )+
                    other => Err(crate::setting::Mismatch::unknown_word(other, Self::WORDS)),
                }
            }
            fn write(&self) -> Option<String> {
                Some(format!("\"{}\"", self.word()))
            }
        }
    };
}

choice! {
    /// The number format of matrix products and activations. Master weights, moments, norms and losses are f32 whatever it says.
    ComputeDtype {
        /// bf16 where this machine multiplies it fast, f32 elsewhere; the choice is printed.
        Auto = "auto",
        /// f32 throughout.
        F32 = "f32",
        /// bf16 products, accumulated in f32.
        Bf16 = "bf16",
    }
}

choice! {
    /// Which experts have adapters.
    ExpertAdapters {
        /// None: their weights stay as they are.
        Nothing = "none",
        /// Every expert its own.
        Each = "each",
    }
}

choice! {
    /// What sends tokens to experts in training.
    Routes {
        /// The router, as the weights are now.
        Router = "router",
        /// The choices of the sampler, so that trainer and sampler read the same experts whatever rounding does to close calls. The
        /// weights of the experts are still the router's, which learns by them; the last token of an answer, which no sampler
        /// reads, is left to it.
        Sampler = "sampler",
    }
}

choice! {
    /// How the log-prob head scores tokens. All ways give the same numbers.
    HeadMode {
        /// All logits at once. For tests: a long row over a large vocabulary needs tens of gigabytes.
        Off = "off",
        /// Chunks of tokens, each computed again for the gradient by automatic differentiation.
        Local = "local",
        /// Chunks of tokens and of the vocabulary, with a hand-written gradient; the least memory.
        Fused = "fused",
        /// As fused, but a loss that is a sum over tokens is formed with its gradient in one pass: a quarter less work, and
        /// the logits of a chunk of tokens and the gradient of the whole vocabulary are held.
        SinglePass = "single_pass",
    }
}

choice! {
    /// Where the weights of the first step come from.
    ModelInit {
        /// The safetensors files of `model.path`.
        Pretrained = "pretrained",
        /// Drawn from `seed`; weights that lie in `model.path` are not read. Not with adapters, which are written without them.
        Random = "random",
    }
}

choice! {
    /// How the learning rate moves after its warm-up.
    LrSchedule {
        /// Stays at `learning_rate`.
        Constant = "constant",
        /// Half a cosine from `learning_rate` to `learning_rate * min_lr_ratio` at the last step.
        Cosine = "cosine",
        /// A straight line from `learning_rate` to `learning_rate * min_lr_ratio` at the last step.
        Linear = "linear",
        /// Stays at `learning_rate`, then a straight line to `learning_rate * min_lr_ratio` over the last `lr_decay_steps`.
        StableDecay = "stable_decay",
    }
}

choice! {
    /// How the rewards of one group become advantages.
    Advantage {
        /// (reward - mean of the group) / (standard deviation of the group): GRPO.
        GroupNorm = "group_norm",
        /// reward - mean of the group: Dr. GRPO.
        GroupMean = "group_mean",
        /// reward - mean of the other answers of the group: RLOO.
        Rloo = "rloo",
    }
}

choice! {
    /// How per-token losses become one number. The denominator is that of the whole optimizer batch, however it is cut.
    LossAggregation {
        /// Sum over tokens / number of tokens: every token weighs the same.
        TokenMean = "token-mean",
        /// Mean over answers of each answer's token mean: every answer weighs the same.
        SequenceMeanTokenMean = "sequence-mean-token-mean",
        /// Mean over answers of each answer's token sum.
        SequenceMeanTokenSum = "sequence-mean-token-sum",
        /// Sum over tokens / (number of answers * `rollout.max_new_tokens`): no bias by length (Dr. GRPO).
        TokenSum = "token-sum",
    }
}

choice! {
    /// The update rule.
    OptimizerKind {
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
        /// The gradient with momentum.
        Sgd = "sgd",
        /// The same, looking ahead: the gradient plus what is left of the new momentum.
        Nesterov = "nesterov",
        /// Momentum made orthogonal for the matrices of layers, AdamW for the rest: embeddings, head, routers, norms.
        Muon = "muon",
    }
}

choice! {
    /// What is split over the copies of the model that share the rows, `mesh.data` of them: fewer bytes for each, paid with
    /// exchanges between them.
    ShardOverData {
        /// Each copy keeps all that the optimizer keeps, and gradients are exchanged once an update.
        Nothing = "nothing",
        /// Each updates its part of the weights, which are then gathered.
        Moments = "moments",
        /// Also accumulated gradients, which are exchanged in every micro-batch.
        MomentsAndGradients = "moments_and_gradients",
    }
}

choice! {
    /// What lies in the memory of the host while no step of the device reads it.
    Offload {
        /// Nothing.
        Nothing = "nothing",
        /// What the optimizer keeps: brought to the device for an update, and taken back behind it.
        Moments = "moments",
    }
}

choice! {
    /// The number format in which AdamW keeps its two running means. They are computed in f32.
    MomentDtype {
        /// 8 bytes a parameter.
        F32 = "f32",
        /// 4 bytes a parameter. The mean of the squares is rounded up or down by chance, so that it stays right in the mean.
        Bf16 = "bf16",
    }
}

choice! {
    /// What happens when the norm of a gradient is not finite. The update changes nothing either way.
    OnNonFinite {
        /// It is counted, and the run goes on; ten in a row end it.
        Skip = "skip",
        /// The run ends.
        Stop = "stop",
    }
}

choice! {
    /// Which end of a packed row holds its padding.
    PadPosition {
        /// After the last document.
        End = "end",
        /// Before the first document, in whole multiples of `packing.pad_align`.
        Start = "start",
    }
}

choice! {
    /// What data shards are to have equally much of.
    RowBalance {
        /// Attention work: rows are chosen and ordered so that no device waits long for another.
        Attention = "attention",
        /// Nothing: rows stand in the order in which sequences opened them.
        Off = "off",
    }
}

choice! {
    /// Which tokens of a row each of the `mesh.context` devices has that share it. The later a token, the more it attends to.
    TokenOrder {
        /// Consecutive ones: the last device has the most work.
        Contiguous = "contiguous",
        /// Two stretches of the 2 * context of a row, one from each end: even where one document fills the row.
        DualChunkSwap = "dual_chunk_swap",
        /// By the documents of each row: even where they are short, or padding is long.
        Balanced = "balanced",
    }
}

choice! {
    /// What decides the reward of an answer.
    Checker {
        /// 1 if the answer, trimmed of white space, equals the expected one; else 0.
        ExactMatch = "exact_match",
        /// 1 if the last number in the answer is the last number in the expected one (`1,000.0` is 1000); else 0.
        LastNumber = "last_number",
    }
}
