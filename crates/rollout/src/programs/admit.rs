//! Admission: prompts are read and put into rows that are free.

use ferrotune_graph::{DType, Graph, Tensor};
use ferrotune_models::CacheEntry;
use ferrotune_nn::Sequence;
use ferrotune_program::Builder;

use super::{Blueprint, State, array};

/// What one device is to admit.
struct Admission {
    /// s32 `[A,P]`; prompts end in the last column.
    prompts: Tensor,
    /// Column of the first token of each prompt, s32 `[A]`.
    start: Tensor,
    /// How many of the following pairs there are, s32 scalar.
    count: Tensor,
    /// The row of each pair, s32 `[B]`, …
    row: Tensor,
    /// … and the prompt that goes there, s32 `[B]`.
    prompt: Tensor,
    /// Which rows are begun, boolean `[B]`.
    admitted: Tensor,
    /// The last token of their prompts, s32 `[B]`.
    token: Tensor,
    /// Its place in the prompt, s32 `[B]`.
    position: Tensor,
}

impl Admission {
    fn of(tensors: Vec<Tensor>) -> Self {
        let [
            prompts,
            start,
            count,
            row,
            prompt,
            admitted,
            token,
            position,
        ] = array(tensors);
        Self {
            prompts,
            start,
            count: count.reshape(&[]),
            row,
            prompt,
            admitted,
            token,
            position,
        }
    }

    /// The state in which the admitted rows begin: all of the prompt but its last token has been read.
    fn begin(&self, state: State) -> State {
        let fresh = |new: &Tensor, old: &Tensor| self.admitted.select(new, old);
        State {
            token: fresh(&self.token, &state.token),
            position: fresh(&self.position, &state.position),
            generated: fresh(&state.generated.zeros_like(), &state.generated),
            done: state.done.and(&self.admitted.not()),
            slot: state.slot,
        }
    }
}

impl Blueprint<'_> {
    /// (weights, admission, cache, state) → (cache, state, routes): reads prompts and begins rows with them.
    pub(crate) fn admit(&self) -> Builder {
        let mut builder = self.builder("admit");
        let layouts = &self.layouts;
        let weights = builder.input("weights", &layouts.ready);
        let admission = builder.input("admission", &layouts.admission);
        let cache = builder.input("cache", &layouts.cache);
        let state = builder.input("state", &layouts.state);
        let g = builder.graph().clone();
        let groups: [(&[Tensor], _); 4] = [
            (&weights, &layouts.ready),
            (&admission, &layouts.admission),
            (&cache, &layouts.cache),
            (&state, &layouts.state),
        ];
        let outputs = [&layouts.cache, &layouts.state, &layouts.routes];
        let results = self.on_rows(&g, &groups, &outputs, |parts| {
            let [weights, admission, cache, state] =
                <[Vec<Tensor>; 4]>::try_from(parts).expect("four groups were passed");
            self.admit_on_device(&g, weights, admission, cache, state)
        });
        builder.output_replacing(&layouts.cache, &results[0], &cache);
        builder.output_replacing(&layouts.state, &results[1], &state);
        builder.output(&layouts.routes, &results[2]);
        builder
    }

    fn admit_on_device(
        &self,
        g: &Graph,
        weights: Vec<Tensor>,
        admission: Vec<Tensor>,
        cache: Vec<Tensor>,
        state: Vec<Tensor>,
    ) -> Vec<Vec<Tensor>> {
        let params = self.params(weights);
        let (asked, state) = (Admission::of(admission), State::of(state));
        // The last token of a prompt is read by the first step of decoding, which needs its logits.
        let read = self.config.prompt_width() - 1;
        let column = g.iota(DType::S32, &[asked.prompts.dim(0), read], 1);
        let position = &column - asked.start.expand(1);
        let is_prompt = position.ge(&g.scalar(0.0, DType::S32));
        let seq = Sequence {
            segment_ids: is_prompt.convert(DType::S32),
            positions: is_prompt.select(&position, &column),
        };
        let tokens = asked.prompts.slice(1, 0, read);
        let (forward, filled) = self.decoder(&params).prefill(&tokens, &seq);
        let entries = cache.iter().zip(&filled.tensors).zip(&self.layouts.entries);
        let cache = g.scope("insert", || {
            entries
                .map(|((whole, filled), entry)| {
                    insert(g, whole, filled, entry, &asked, &state.slot)
                })
                .collect()
        });
        let routes = self.routes(&forward).into_iter().collect();
        vec![cache, asked.begin(state).into_tensors(), routes]
    }
}

/// Writes what was kept of the prompts into their rows of one cache entry; one layer of one row at a time, so that nothing
/// large stands beside the cache.
fn insert(
    g: &Graph,
    whole: &Tensor,
    filled: &Tensor,
    entry: &CacheEntry,
    asked: &Admission,
    slot: &Tensor,
) -> Tensor {
    let zero = g.scalar(0.0, DType::S32);
    let layers = g.scalar(entry.dims[0] as f64, DType::S32);
    let pick = |from: &Tensor, at: &Tensor| from.dynamic_slice(&[at], &[1]).reshape(&[]);
    let mut window = filled.dims();
    window[..2].fill(1);
    // A prompt of one token has nothing to read: only padding stands before its last token.
    let unread = asked
        .start
        .ge(&asked.start.scalar_like(asked.prompts.dim(1) as f64 - 1.0));
    let write = |carried: &[Tensor]| {
        let layer = carried[0].remainder(&layers);
        let pair = (&carried[0] - &layer) / &layers;
        let (row, prompt) = (pick(&asked.row, &pair), pick(&asked.prompt, &pair));
        let at = |row: &Tensor| -> Vec<Tensor> {
            let rest = std::iter::repeat_n(zero.clone(), window.len() - 2);
            [layer.clone(), row.clone()]
                .into_iter()
                .chain(rest)
                .collect()
        };
        let from = at(&prompt);
        let piece = filled.dynamic_slice(&from.iter().collect::<Vec<_>>(), &window);
        let piece = match entry.slots {
            Some(axis) => turn(&piece, axis, entry.dims[axis], slot),
            None => pick(&unread, &prompt).select(&piece.zeros_like(), &piece),
        };
        let to = at(&row);
        let next = carried[1].dynamic_update_slice(&piece, &to.iter().collect::<Vec<_>>());
        vec![&carried[0] + 1.0, next]
    };
    let steps = &asked.count * &layers;
    let done = |carried: &[Tensor]| carried[0].lt(&steps);
    g.while_loop(vec![zero.clone(), whole.clone()], done, write)
        .remove(1)
}

/// Slots in their order as a whole ring of `slots` in which the last of them stands before `slot`.
fn turn(filled: &Tensor, axis: usize, slots: usize, slot: &Tensor) -> Tensor {
    let g = filled.graph();
    let length = filled.dim(axis);
    let ring = filled.pad(axis, 0, slots - length, 0.0);
    let twice = Tensor::concatenate(&[&ring, &ring], axis);
    // Element i is element i − (slot − length) of the filled ones, around the ring: counted from the end of the first ring,
    // and never from before its beginning.
    let whole = g.scalar(slots as f64, DType::S32);
    let begin = (&whole - slot + length as f64).remainder(&whole);
    let zero = g.scalar(0.0, DType::S32);
    let starts: Vec<&Tensor> = (0..ring.rank())
        .map(|d| if d == axis { &begin } else { &zero })
        .collect();
    twice.dynamic_slice(&starts, &ring.dims())
}
