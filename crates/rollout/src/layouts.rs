//! The groups of arrays that go in and out of the programs: names, types, placement.
//!
//! Letters: `D` devices that share the rows, `B` rows, `A` prompts that one admission reads, `P` prompt columns, `C` columns per
//! dispatch, `N` layers with experts, `J` experts of each token there.

use ferrotune_graph::{DType, PlacementError, Rules};
use ferrotune_models::{CacheEntry, ModelConfig};
use ferrotune_nn::LOGICAL_AXES;
use ferrotune_program::{Layout, Leaf};

use crate::config::SamplerConfig;

/// The groups of arrays that go in and out.
#[derive(Clone, Debug)]
pub(crate) struct Layouts {
    /// Devices that share the rows.
    pub(crate) devices: usize,
    /// The model's parameters, as the trainer holds them: at least one group.
    pub(crate) weights: Vec<Layout>,
    /// The parameters as the layers read them: whole on every device, matrices in the compute type and turned if that is
    /// faster, norms as they are.
    pub(crate) ready: Layout,
    /// What each row is asked, in the order of [`crate::rows::Asked`]; read only.
    pub(crate) asked: Layout,
    /// Prompts to read and where they go, in the order of [`crate::admission::Admission`].
    pub(crate) admission: Layout,
    /// What decoding keeps of the tokens that were read, as [`ModelConfig::cache`] describes it.
    pub(crate) cache: Layout,
    /// The entries behind `cache`, of all rows.
    pub(crate) entries: Vec<CacheEntry>,
    /// Per row: the token to read next s32 `[B]`, its place in the row's sequence s32 `[B]`, number of tokens generated s32
    /// `[B]`, whether the row has finished boolean `[B]`. Per device: the slot to write next s32 `[D]`.
    pub(crate) state: Layout,
    /// Tokens s32 (−1 where a row has finished), log-probs and raw log-probs f32; all `[B,C]`. Where answers name experts, those
    /// of the tokens that were read, s32 `[B,C,N,J]`.
    pub(crate) emitted: Layout,
    /// Where answers name experts, those of the prompts' tokens but the last ones, s32 `[A,P−1,N,J]`.
    pub(crate) routes: Layout,
}

impl Layouts {
    /// Places the groups on the mesh of the weights; `rules` split rows only.
    pub(crate) fn new(
        rules: &Rules,
        model: &ModelConfig,
        weights: &[&Layout],
        config: &SamplerConfig,
    ) -> Result<Self, PlacementError> {
        let mesh = weights[0].mesh();
        let place = |leaves: &[Leaf]| Layout::new(mesh, rules, leaves);
        let rows = rules.place("rows", &[config.batch], &["batch"], mesh)?;
        let sizes = rows.dims[0].iter().map(|axis| mesh.axis_size(axis));
        let devices: usize = sizes.map(|size| size.unwrap_or(1)).product();
        let (b, p, c) = (config.batch, config.prompt_width(), config.columns());
        let prompts = devices * config.prompts_per_admission(devices);
        let given = weights.iter().flat_map(|layout| layout.specs());
        let ready = given.map(|spec| {
            let (name, mut dims) = (&spec.name, spec.dims.clone());
            let rank = dims.len();
            if config.turns(name, rank) {
                dims.swap(rank - 2, rank - 1);
            }
            Leaf::new(
                name,
                config.ready_dtype(name, rank),
                &dims,
                &vec!["_"; rank],
            )
        });
        let asked = [
            by_row("limit", DType::S32, &[b]),
            by_row("seed", DType::U32, &[b, 2]),
            by_row("greedy", DType::Pred, &[b]),
            by_row("inverse_temperature", DType::F32, &[b]),
            by_row("top_k", DType::F32, &[b]),
            by_row("top_p", DType::F32, &[b]),
            by_row("min_p", DType::F32, &[b]),
            by_row("pause_at", DType::S32, &[]),
        ];
        let admission = [
            by_row("prompts", DType::S32, &[prompts, p]),
            by_row("start", DType::S32, &[prompts]),
            by_row("count", DType::S32, &[devices]),
            by_row("row", DType::S32, &[b]),
            by_row("prompt", DType::S32, &[b]),
            by_row("admitted", DType::Pred, &[b]),
            by_row("token", DType::S32, &[b]),
            by_row("position", DType::S32, &[b]),
        ];
        let entries = model.cache(b, config.slots(), config.compute);
        let cache: Vec<Leaf> = entries.iter().map(of_entry).collect();
        let state = [
            by_row("token", DType::S32, &[b]),
            by_row("position", DType::S32, &[b]),
            by_row("generated", DType::S32, &[b]),
            by_row("done", DType::Pred, &[b]),
            by_row("slot", DType::S32, &[devices]),
        ];
        let mut emitted = vec![
            by_row("tokens", DType::S32, &[b, c]),
            by_row("logprobs", DType::F32, &[b, c]),
            by_row("raw_logprobs", DType::F32, &[b, c]),
        ];
        let mut routes = Vec::new();
        if let Some([n, j]) = config.routes(model) {
            emitted.push(by_row("experts", DType::S32, &[b, c, n, j]));
            routes.push(by_row("experts", DType::S32, &[prompts, p - 1, n, j]));
        }
        Ok(Self {
            devices,
            weights: weights.iter().copied().cloned().collect(),
            ready: Layout::new(
                mesh,
                &Rules::unsharded(&LOGICAL_AXES),
                &ready.collect::<Vec<_>>(),
            )?,
            asked: place(&asked)?,
            admission: place(&admission)?,
            cache: place(&cache)?,
            entries,
            state: place(&state)?,
            emitted: place(&emitted)?,
            routes: place(&routes)?,
        })
    }

    /// Whether the layers can read the parameters as they lie.
    pub(crate) fn weights_are_ready(&self) -> bool {
        self.weights == std::slice::from_ref(&self.ready)
    }
}

/// An array whose first dimension, if it has one, is the rows, or equally many of something for every device.
fn by_row(name: &str, dtype: DType, dims: &[usize]) -> Leaf {
    let axes: Vec<&str> = (0..dims.len())
        .map(|i| if i == 0 { "batch" } else { "_" })
        .collect();
    Leaf::new(name, dtype, dims, &axes)
}

fn of_entry(entry: &CacheEntry) -> Leaf {
    let axes: Vec<&str> = (0..entry.dims.len())
        .map(|i| if i == 1 { "batch" } else { "_" })
        .collect();
    Leaf::new(&entry.name, entry.dtype, &entry.dims, &axes)
}
