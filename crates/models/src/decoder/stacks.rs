//! The walk over the stacks: one scan each, whose body is the stack's block.

use ferrotune_graph::{DType, Policy, Residual, Tensor};
use ferrotune_nn::{Params, Rotation};

use super::{Cache, Decoder, InCache, Reach};
use crate::config::{Feed, LayerKind, Stack};

/// What the experts of a layer did: chosen `[B,T,J]`, load `[X]`, probability `[X]`, and with a capacity what was dropped `[1]`.
pub(super) type LayerRouted = Vec<Tensor>;

/// The same of one stack: for each place of the block that has experts, with the repeats in front.
pub(super) type StackRouted = Vec<LayerRouted>;

/// The name that the policy of a block keeps: each layer's input, so that one layer at a time is computed again.
const LAYER_INPUT: &str = "decoder_layer_input";

/// A block's parameters: paths and tensors of every place.
struct Stacked {
    names: Vec<Vec<String>>,
    tensors: Vec<Tensor>,
}

impl Stacked {
    fn of(params: &Params, stack: &Stack) -> Self {
        let places =
            (0..stack.block.len()).map(|place| params.under(&stack.prefix(place)).entries());
        let (mut names, mut tensors) = (Vec::new(), Vec::new());
        for entries in places {
            let (paths, parts): (Vec<String>, Vec<Tensor>) = entries.into_iter().unzip();
            names.push(paths);
            tensors.extend(parts);
        }
        Self { names, tensors }
    }

    /// The parameters of one repeat, for each place; `slices` begin with them.
    fn places(&self, slices: &[Tensor], like: &Params) -> Vec<Params> {
        let mut slices = slices.iter().cloned();
        let place = |names: &Vec<String>| {
            let entries = names.iter().cloned().zip(slices.by_ref());
            like.like(entries.collect::<Vec<_>>())
        };
        self.names.iter().map(place).collect()
    }
}

impl Decoder<'_> {
    fn policy_of(&self, stack: &Stack) -> Policy {
        if stack.block.len() == 1 {
            self.policy.clone()
        } else {
            self.policy.clone().with(LAYER_INPUT, Residual::Device)
        }
    }

    /// All layers over whole rows: `x`, what a cache would hold, and what the experts did.
    pub(super) fn run_rows(
        &self,
        mut x: Tensor,
        reach: &Reach<'_>,
        replay: Option<&Tensor>,
    ) -> (Tensor, Vec<Tensor>, Vec<StackRouted>) {
        let g = self.graph();
        let (mut held, mut routed) = (Vec::new(), Vec::new());
        let mut sparse_before = 0;
        for stack in self.config.stacks() {
            let stacked = Stacked::of(self.params, &stack);
            let sparse = stack.block.iter().filter(|kind| kind.feed == Feed::Experts);
            let sparse = sparse.count();
            let chosen = replay.map(|all| replayed(all, &stack, sparse_before, sparse));
            sparse_before += sparse * stack.repeats;
            let count = stacked.tensors.len();
            let inputs = [&stacked.tensors[..], &chosen.unwrap_or_default()].concat();
            let (carry, outputs) = g.scope(stack.name, || {
                g.scan(
                    self.policy_of(&stack),
                    vec![x.clone()],
                    inputs,
                    stack.repeats,
                    |_, carry, slices| {
                        let places = stacked.places(slices, self.params);
                        self.block(&stack.block, &places, &carry[0], reach, &slices[count..])
                    },
                )
            });
            x = carry.into_iter().next().expect("the carry is x");
            let each = 3 + usize::from(self.capacity_factor.is_some());
            let (kept, of_experts) = outputs.split_at(outputs.len() - each * sparse);
            held.extend_from_slice(kept);
            routed.push(of_experts.chunks_exact(each).map(<[_]>::to_vec).collect());
        }
        (x, held, routed)
    }

    /// One block: `x`, and of every place what is kept, then what its experts did.
    fn block(
        &self,
        kinds: &[LayerKind],
        places: &[Params],
        x: &Tensor,
        reach: &Reach<'_>,
        replay: &[Tensor],
    ) -> (Vec<Tensor>, Vec<Tensor>) {
        let (mut x, mut held, mut routed) = (x.clone(), Vec::new(), Vec::new());
        let mut replay = replay.iter();
        for (place, (kind, params)) in kinds.iter().zip(places).enumerate() {
            if kinds.len() > 1 {
                x = x.named(LAYER_INPUT);
            }
            let sparse = kind.feed == Feed::Experts;
            let chosen = if sparse { replay.next() } else { None };
            let run = || self.layer(*kind, params, &x, reach, chosen);
            let out = if kinds.len() > 1 {
                self.graph().scope(&place.to_string(), run)
            } else {
                run()
            };
            x = out.x;
            held.extend(out.held);
            routed.extend(out.routed.into_iter().flatten());
        }
        (vec![x], [held, routed].concat())
    }

    /// Each layer's own parameters, in the order of the layers, cut out of the stacked ones.
    ///
    /// A loop of [`Decoder::decode`] reads what is cut before it where it is. Cut inside, as a scan does, every layer would be
    /// copied at every step, and the copies would take as long as the products of a few rows.
    pub fn layers(&self) -> Vec<Params> {
        let mut layers = Vec::new();
        for stack in self.config.stacks() {
            let stacked = Stacked::of(self.params, &stack);
            for repeat in 0..stack.repeats {
                let cut = |all: &Tensor| {
                    let own = all.slice(0, repeat, repeat + 1);
                    own.reshape(&all.dims()[1..])
                };
                let own: Vec<Tensor> = stacked.tensors.iter().map(cut).collect();
                layers.extend(stacked.places(&own, self.params));
            }
        }
        layers
    }

    /// All layers over one more token of each row: `x`, the cache with it, and what the experts did.
    pub(super) fn run_cache(
        &self,
        layers: &[Params],
        mut x: Tensor,
        rotation: &Rotation,
        (slot, first): (&Tensor, &Tensor),
        cache: &Cache,
    ) -> (Tensor, Vec<Tensor>, Vec<LayerRouted>) {
        let g = self.graph();
        let mut held = cache.tensors.clone();
        let (mut layers, mut routed) = (layers.iter(), Vec::new());
        let mut begin = 0;
        for stack in self.config.stacks() {
            for repeat in 0..stack.repeats {
                let repeat = g.scalar(repeat as f64, DType::S32);
                for (place, kind) in stack.block.iter().enumerate() {
                    let mine = begin + 2 * place;
                    let reach = Reach::Cache(InCache {
                        rotation,
                        held: held[mine..mine + 2].to_vec(),
                        repeat: &repeat,
                        slot,
                        first,
                    });
                    let params = layers.next().expect("there are parameters of every layer");
                    let scope = stack.prefix(place);
                    let out = g.scope(&scope, || self.layer(*kind, params, &x, &reach, None));
                    x = out.x;
                    held.splice(mine..mine + 2, out.held);
                    routed.extend(out.routed);
                }
            }
            begin += 2 * stack.block.len();
        }
        (x, held, routed)
    }
}

/// The experts that a stack's tokens are sent to, `[B,T,N,J]` of all layers with experts → `[L,B,T,J]` for each place of the
/// block that has them, of which there are `sparse`; `before` layers with experts come before the stack.
fn replayed(all: &Tensor, stack: &Stack, before: usize, sparse: usize) -> Vec<Tensor> {
    let layers_first = all.transpose(&[2, 0, 1, 3]);
    let mine = layers_first.slice(0, before, before + sparse * stack.repeats);
    let tail = &all.dims()[..];
    let apart = mine.reshape(&[stack.repeats, sparse, tail[0], tail[1], tail[3]]);
    let place = |place| {
        let one = apart.slice(1, place, place + 1);
        one.reshape(&[stack.repeats, tail[0], tail[1], tail[3]])
    };
    (0..sparse).map(place).collect()
}
