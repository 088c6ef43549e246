//! Every key of a recipe: name, type, default, range, meaning. This file is the whole list.
//!
//! The doc comments are what `ferrotune config --reference` prints. A key is here only if the run reads it.
//! Rules between keys are in `rules.rs`; when a key can have no effect is in `idle.rs`.

use std::path::PathBuf;

use crate::choice::{
    Advantage, Checker, ComputeDtype, ExpertAdapters, HeadMode, LossAggregation, LrSchedule,
    ModelInit, MomentDtype, Offload, OnNonFinite, OptimizerKind, PadPosition, Routes, RowBalance,
    ShardOverData, TokenOrder,
};
use crate::spec::{Base, above, between, count, derived, preset, required, settings, text, unset};

/// Sequences of one step or rows of one micro-batch; more than this is a mistake.
const MANY: f64 = 65_536.0;

/// Tokens of one sequence or row; more than this is a mistake.
const LONG: f64 = 1_048_576.0;

/// Tokens or entries of one chunk of the head; more than this is a mistake.
const MOST_CHUNK: f64 = 16_777_216.0;

settings! {
    /// A training run: warm-up by supervised learning, then reinforcement.
    Recipe at "" {
        /// Every random draw of the run follows from this number.
        seed: u64 = preset(0);
        /// The number format of matrix products and activations.
        compute_dtype: ComputeDtype = preset(ComputeDtype::Auto);
        /// Linear layers multiply in 8-bit floats when this is above 0: values are scaled by the largest ones of so many micro-batches
        /// before, and rounded to e4m3 forward, to e5m2 backward. The sampler multiplies in `compute_dtype`.
        fp8_history: usize = preset(0).within(count(0).at_most(65_536.0));
        [tables] {
            run: Run,
            model: Model,
            data: Data,
            warmup: Warmup,
            rl: Rl,
            lora: Lora,
            router: Router,
            optimizer: Optimizer,
            head: Head,
            rollout: Rollout,
            packing: Packing,
            mesh: Mesh,
            eval: Eval,
            checkpoint: Checkpoint,
            reward: Reward,
        }
    }
}

settings! {
    /// What the run is called and where it writes.
    Run at "run." {
        /// The name of the run, in its folder and in its report.
        name: String = derived("the file name of the recipe").may_change();
        /// The run directory. A relative path starts from the working directory.
        dir: PathBuf = derived("runs/<run.name>").relative_to(Base::WorkingDirectory).may_change();
    }
}

settings! {
    /// The model that is trained.
    Model at "model." {
        /// A Hugging Face folder: config.json, tokenizer.json and, unless `init = "random"`, safetensors.
        path: PathBuf = required().may_change();
        /// The command that makes the folder, for those who lack it: it is told to them, and never run.
        made_by: Option<String> = unset().may_change();
        /// Where the first weights come from.
        init: ModelInit = preset(ModelInit::Pretrained);
        /// Parameters that do not learn: paths, in which `*` stands for any characters (`"*/router"`). They have no gradient and
        /// no moments.
        freeze: Vec<String> = preset(Vec::new());
        /// A folder of adapters in PEFT's layout to go on from, in place of fresh ones.
        adapter: Option<PathBuf> = unset();
    }
}

settings! {
    /// Adapters (LoRA): small matrices beside the weights, which learn in their place.
    Lora at "lora." {
        /// Width between the two matrices of an adapter; 0 trains the weights themselves.
        rank: usize = preset(0).within(count(0).at_most(65_536.0));
        /// The product of an adapter is multiplied by this over the rank; twice the rank when unset.
        alpha: Option<f64> = unset().within(above(0.0).at_most(1e6));
        /// Linear layers with adapters, such as `"q_proj"`; every one that can have them when empty.
        targets: Vec<String> = preset(Vec::new());
        /// Whether the experts' layers among the targets have adapters too.
        experts: ExpertAdapters = preset(ExpertAdapters::Nothing);
    }
}

settings! {
    /// The routers of a model with experts.
    Router at "router." {
        /// Weight of the load-balance loss in the loss; 0 leaves it out.
        load_balance: f64 = preset(0.0).within(between(0.0, 1000.0));
        /// In training an expert takes at most so many times its even share of the tokens of a row, and drops those that come
        /// later, whichever sequences they are of: how many is the metric `experts/dropped/LAYER`. The sampler drops nothing; without
        /// this nothing is dropped.
        capacity_factor: Option<f64> = unset().within(above(0.0).at_most(65_536.0));
        /// What decides, in reinforcement, which experts the tokens of prompts and answers go to.
        routes: Routes = preset(Routes::Router);
    }
}

settings! {
    /// The problems, in files of one JSON object a line.
    Data at "data." {
        /// Problems to train on: a prompt and the expected answer a line.
        train: PathBuf = required().may_change();
        /// Problems to measure on, never trained on: the same fields.
        heldout: PathBuf = required().may_change();
        /// Worked examples for the warm-up: the same fields, the answer being what is imitated.
        demonstrations: Option<PathBuf> = unset().may_change();
        /// The field that holds the prompt.
        prompt_field: String = text("prompt");
        /// The field that holds the answer.
        answer_field: String = text("answer");
        /// What the model reads: `{prompt}` stands for the prompt.
        prompt_template: String = text("{prompt}");
    }
}

settings! {
    /// Supervised learning on the demonstrations, before the reinforcement.
    Warmup at "warmup." {
        /// Steps of supervised learning; 0 leaves the warm-up out.
        steps: usize = preset(0).within(count(0));
        /// Demonstrations a step.
        batch_size: usize = preset(32).within(count(1).at_most(MANY));
        /// The highest learning rate.
        learning_rate: f64 = preset(1e-3).within(above(0.0).at_most(1000.0));
        /// How the learning rate moves after its warm-up.
        lr_schedule: LrSchedule = preset(LrSchedule::Constant);
        /// Steps over which the learning rate rises from zero.
        lr_warmup_steps: usize = preset(0).within(count(0));
        /// Steps of the fall at the end, under `stable_decay`.
        lr_decay_steps: usize = preset(10).within(count(1));
        /// The last learning rate over the highest.
        min_lr_ratio: f64 = preset(0.0).within(between(0.0, 1.0).below(1.0));
    }
}

settings! {
    /// Reinforcement learning by groups of sampled answers (GRPO and its kin).
    Rl at "rl." {
        /// Steps of reinforcement: each samples once and updates `updates_per_step` times. 0 stops after the warm-up.
        steps: usize = preset(100).within(count(0)).may_change();
        /// Prompts a step.
        prompts_per_step: usize = preset(16).within(count(1).at_most(MANY));
        /// Answers sampled for each prompt.
        group_size: usize = preset(8).within(count(2).at_most(4096.0).because(
            "an answer is judged against the others of its group; alone, its advantage is always zero",
        ));
        /// How the rewards of a group become advantages.
        advantage: Advantage = preset(Advantage::GroupNorm);
        /// How per-token losses become one number.
        loss_aggregation: LossAggregation = preset(LossAggregation::TokenMean);
        /// Optimizer updates a step: its answers are cut into as many equal parts, each used once.
        updates_per_step: usize = preset(1).within(count(1));
        /// The probability ratio to the policy that sampled is clipped below at 1 - this.
        clip_ratio_low: f64 = preset(0.2).within(above(0.0).at_most(1.0));
        /// The probability ratio to the policy that sampled is clipped above at 1 + this.
        clip_ratio_high: f64 = preset(0.2).within(above(0.0).at_most(1000.0));
        /// The highest learning rate.
        learning_rate: f64 = preset(1e-4).within(above(0.0).at_most(1000.0));
        /// How the learning rate moves after its warm-up; all updates of one step share a rate.
        lr_schedule: LrSchedule = preset(LrSchedule::Constant);
        /// Steps over which the learning rate rises from zero.
        lr_warmup_steps: usize = preset(0).within(count(0));
        /// Steps of the fall at the end, under `stable_decay`.
        lr_decay_steps: usize = preset(10).within(count(1));
        /// The last learning rate over the highest.
        min_lr_ratio: f64 = preset(0.0).within(between(0.0, 1.0).below(1.0));
    }
}

settings! {
    /// The optimizer, shared by warm-up and reinforcement.
    Optimizer at "optimizer." {
        /// The update rule.
        kind: OptimizerKind = preset(OptimizerKind::AdamW);
        /// Decay of the running mean of the gradient.
        beta1: f64 = preset(0.9).within(between(0.0, 1.0).below(1.0));
        /// Decay of the running mean of the squared gradient.
        beta2: f64 = preset(0.999).within(between(0.0, 1.0).below(1.0));
        /// Added to the root of the second moment.
        eps: f64 = preset(1e-8).within(between(1e-20, 1e20).because(
            "it must survive 32-bit arithmetic, or weights without gradient divide by zero",
        ));
        /// Share of a weight matrix that an update removes, times the learning rate. Norm weights do not decay.
        weight_decay: f64 = preset(0.0).within(between(0.0, 1.0));
        /// A gradient whose global norm is larger is scaled down to it; `inf` leaves it as it is.
        max_grad_norm: f64 = preset(1.0).within(above(0.0).at_most(f64::INFINITY).because(
            "0 would erase every gradient; write inf to switch clipping off",
        ));
        /// The number format of the running means.
        moments: MomentDtype = preset(MomentDtype::F32);
        /// What is left of the momentum of `sgd`, `nesterov` and `muon` after an update.
        momentum: f64 = preset(0.95).within(between(0.0, 1.0).below(1.0));
        /// What a gradient that is not finite means.
        on_nonfinite: OnNonFinite = preset(OnNonFinite::Skip);
        /// Updates whose gradient is far above those before it are skipped: so many norms are remembered. 0 skips none.
        spike_window: usize = preset(0).within(count(0).at_most(65_536.0));
        /// A norm above so many times the median of the remembered ones is far above.
        spike_factor: f64 = preset(10.0).within(above(1.0).at_most(1e9));
        /// Patterns of parameters (`"*/attn/*"`, where `*` stands for any characters): the gradient norm of those that fit one is
        /// the metric `grad_norm/PATTERN`.
        group_norms: Vec<String> = preset(Vec::new()).may_change();
        /// Updates that the host hands to the device before the first of them is done.
        max_inflight: usize = preset(2).within(count(1).at_most(1024.0)).may_change();
        /// What copies of the model split among themselves.
        shard_over_data: ShardOverData = preset(ShardOverData::Nothing);
        /// What makes room on devices that have a memory of their own. Steps are then handed to the device micro-batch by micro-batch.
        offload: Offload = preset(Offload::Nothing);
    }
}

settings! {
    /// The log-prob head, which finds how likely each token was. Its logits are the largest tensors of a step.
    Head at "head." {
        /// How it works.
        mode: HeadMode = preset(HeadMode::Fused);
        /// Tokens of one device that are scored at a time; sized for about 32 MiB when unset.
        token_chunk: Option<usize> = unset().within(count(1).at_most(MOST_CHUNK));
        /// Entries of the vocabulary that are looked at together; sized for about 32 MiB when unset.
        vocab_chunk: Option<usize> = unset().within(count(1).at_most(MOST_CHUNK));
    }
}

settings! {
    /// The sampler. Held-out problems are answered greedily, whatever the temperature.
    Rollout at "rollout." {
        /// Divides the logits before sampling, and in training alike.
        temperature: f64 = preset(1.0).within(between(1e-3, 1000.0).because(
            "near temperature 0 all answers of a group are the same and nothing is learned",
        ));
        /// Only the so many most likely tokens are sampled; 0 for all. This and the next two leave the model that is trained
        /// as it is: they need `temperature = 1`.
        top_k: usize = preset(0).within(count(0));
        /// Only the fewest tokens are sampled that together have at least this share of the probability; 1 for all.
        top_p: f64 = preset(1.0).within(above(0.0).at_most(1.0));
        /// Only tokens are sampled that are at least this share as likely as the most likely one; 0 for all.
        min_p: f64 = preset(0.0).within(between(0.0, 1.0));
        /// Strings that end an answer, with the token that completes one; what is judged ends before the string.
        stop_strings: Vec<String> = preset(Vec::new());
        /// The longest prompt, in tokens; a longer one is an error.
        max_prompt_tokens: usize = preset(256).within(count(1).at_most(LONG));
        /// The longest answer, in tokens.
        max_new_tokens: usize = preset(256).within(count(1).at_most(LONG));
        /// Tokens decoded by one dispatch to the device.
        tokens_per_dispatch: usize = preset(8).within(count(1));
    }
}

settings! {
    /// How sequences share the rows of a batch.
    Packing at "packing." {
        /// Tokens in a row.
        row_tokens: usize = preset(512).within(count(2).at_most(LONG));
        /// Rows that are computed at once; gradients accumulate over as many micro-batches as it takes.
        rows_per_micro_batch: usize = preset(4).within(count(1).at_most(MANY));
        /// The most sequences in a row; as many as fit when unset.
        max_segments: Option<usize> = unset().within(count(1));
        /// Every sequence starts at a multiple of this.
        segment_align: usize = preset(1).within(count(1));
        /// Which end of a row holds its padding.
        pad_position: PadPosition = preset(PadPosition::End);
        /// Padding at the start comes in multiples of this.
        pad_align: usize = derived("packing.segment_align").within(count(1));
        /// What the devices that share the rows of a micro-batch have equally much of.
        balance: RowBalance = preset(RowBalance::Attention);
    }
}

settings! {
    /// The devices: their number is the product of the axes. On a CPU they are virtual.
    Mesh at "mesh." {
        /// Copies of the model that share the rows.
        data: usize = preset(1).within(count(1).at_most(4096.0));
        /// Devices over which rows, weights, gradients and moments are split.
        fsdp: usize = preset(1).within(count(1).at_most(4096.0));
        /// Devices that share the tokens of each row. Weights, gradients and moments are split over them too.
        context: usize = preset(1).within(count(1).at_most(4096.0));
        /// Which tokens of a row each of them has.
        order: TokenOrder = preset(TokenOrder::DualChunkSwap);
    }
}

settings! {
    /// Greedy answers to the held-out problems: always when the reinforcement begins and at the end.
    Eval at "eval." {
        /// Also after every so many steps of reinforcement; 0 for never.
        every_steps: usize = preset(0).within(count(0));
        /// Use only the first so many problems; all when unset.
        max_problems: Option<usize> = unset().within(count(1));
    }
}

settings! {
    /// Saved states, from which `--resume` goes on. One is always written at the end and on Ctrl-C.
    Checkpoint at "checkpoint." {
        /// Also after every so many steps, warm-up included; 0 for never.
        every_steps: usize = preset(50).within(count(0)).may_change();
        /// The newest so many are kept.
        keep_last: usize = preset(2).within(count(1)).may_change();
        /// Those whose step is a multiple of this are kept too; 0 for none.
        keep_every: usize = preset(0).within(count(0)).may_change();
    }
}

settings! {
    /// What makes an answer good.
    Reward at "reward." {
        /// What decides the reward.
        checker: Checker = preset(Checker::ExactMatch);
    }
}
