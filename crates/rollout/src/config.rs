//! What a sampler is compiled for.

use ferrotune_graph::DType;
use ferrotune_models::{Feed, ModelConfig, is_linear_weight, is_read_in_f32};

use crate::error::{Error, Result};

/// Tokens that one admission reads on a device, about: enough to keep it busy, few enough to be there soon.
const ADMISSION_TOKENS: usize = 512;

/// What a sampler is compiled for: the shapes and constants of its programs.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Rows that are decoded together; the mesh axes of the rows must divide it.
    pub batch: usize,
    /// Longest prompt, in tokens.
    pub max_prompt_tokens: usize,
    /// Longest answer, in tokens.
    pub max_new_tokens: usize,
    /// Tokens that one dispatch of the decode program appends to each row, at most. Between dispatches rows that have
    /// finished are given to requests that wait, and stop strings are looked for.
    pub tokens_per_dispatch: usize,
    /// Element type of activations, products and the cache. [`crate::Sampler::weights`] converts weights to it.
    pub compute: DType,
    /// Tokens that end any answer; a request may name more.
    pub stop_ids: Vec<u32>,
    /// What products of adapters are multiplied by; nothing without adapters.
    pub adapter_scale: f64,
    /// Whether answers say which experts their tokens went to, in models that have some.
    pub routes: bool,
    /// Any token of the vocabulary; fills the places whose content does not matter.
    pub pad_id: u32,
}

impl SamplerConfig {
    /// `P`: width of the prompts in the programs. Admission reads all columns but the last, so there are at least two.
    pub(crate) fn prompt_width(&self) -> usize {
        self.max_prompt_tokens.max(2)
    }

    /// `S`: slots of a row's ring. The last token of an answer is never read back, so it needs none.
    pub(crate) fn slots(&self) -> usize {
        self.prompt_width() + self.max_new_tokens - 1
    }

    /// `C`: columns of what a dispatch returns.
    pub(crate) fn columns(&self) -> usize {
        self.tokens_per_dispatch.min(self.max_new_tokens)
    }

    /// `A`: prompts that one admission reads on each of the devices that share the rows.
    pub(crate) fn prompts_per_admission(&self, devices: usize) -> usize {
        // With more, too many free rows would have to be waited for.
        let quarter = self.batch / devices / 4;
        (ADMISSION_TOKENS / self.prompt_width()).min(quarter).max(1)
    }

    /// Element type in which the layers read a parameter.
    pub(crate) fn ready_dtype(&self, name: &str, rank: usize) -> DType {
        if is_read_in_f32(name, rank) {
            DType::F32
        } else {
            self.compute
        }
    }

    /// Whether weights of linear layers are turned to `[out, in]`: products of a few rows in half width read them as they lie.
    pub(crate) fn turns_weights(&self) -> bool {
        self.compute != DType::F32
    }

    /// Whether a parameter is turned.
    pub(crate) fn turns(&self, name: &str, rank: usize) -> bool {
        self.turns_weights() && (name == "lm_head" || is_linear_weight(name, rank))
    }

    pub(crate) fn check(&self, model: &ModelConfig) -> Result<()> {
        let sizes = [
            ("batch", self.batch),
            ("max_prompt_tokens", self.max_prompt_tokens),
            ("max_new_tokens", self.max_new_tokens),
            ("tokens_per_dispatch", self.tokens_per_dispatch),
        ];
        if let Some((setting, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(Error::Zero { setting });
        }
        let ids = self.stop_ids.iter().map(|id| ("stop_ids", *id));
        for (setting, token) in ids.chain([("pad_id", self.pad_id)]) {
            let vocab_size = model.vocab_size;
            if token as usize >= vocab_size {
                return Err(Error::SettingOutsideVocabulary {
                    setting,
                    token,
                    vocab_size,
                });
            }
        }
        if !matches!(self.compute, DType::F32 | DType::BF16 | DType::F16) {
            return Err(Error::Compute {
                dtype: self.compute,
            });
        }
        let tokens = self.max_prompt_tokens.saturating_add(self.max_new_tokens);
        if let Some(longest) = model.rotary.longest().filter(|it| tokens > *it) {
            return Err(Error::TooLong { tokens, longest });
        }
        if self.routes && self.routes(model).is_none() {
            return Err(Error::Routes {
                family: model.family.model_type(),
            });
        }
        self.check_size(model)
    }

    /// `N` and `J`: layers with experts and experts of each token there, if answers name them.
    pub(crate) fn routes(&self, model: &ModelConfig) -> Option<[usize; 2]> {
        let counts = model.experts.filter(|it| i16::try_from(it.count).is_ok())?;
        let sparse = model.layers.iter();
        let sparse = sparse.filter(|kind| kind.feed == Feed::Experts).count();
        self.routes.then_some([sparse, counts.top_k])
    }

    /// Slots and rows are counted in s32 on the device, and the cache in bytes on the host.
    fn check_size(&self, model: &ModelConfig) -> Result<()> {
        let slots = self
            .max_prompt_tokens
            .max(2)
            .saturating_add(self.max_new_tokens);
        let entries = model.cache(self.batch, slots, self.compute);
        let fits = |dtype: DType, dims: &[usize]| {
            let bytes = dims
                .iter()
                .try_fold(dtype.bytes(), |n, d| n.checked_mul(*d));
            bytes.is_some_and(|b| i64::try_from(b).is_ok())
        };
        // A ring is written by way of one of twice its length.
        let counts_fit = [2 * slots.min(usize::MAX / 2), self.batch]
            .iter()
            .all(|n| i32::try_from(*n).is_ok());
        if counts_fit && entries.iter().all(|it| fits(it.dtype, &it.dims)) {
            Ok(())
        } else {
            Err(Error::TooLarge {
                batch: self.batch,
                slots,
            })
        }
    }
}
