//! `remat`: a block whose values the derivative computes again, but for those that a policy keeps.

use std::collections::HashMap;

use crate::arena::{Arena, Graph, RegionId};
use crate::emit::Emitter;
use crate::liveness::Live;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::remat::{Kept, Policy, Saved, from_copies};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Operands: captures. Results: those of the block, then, hidden, the kept values.
#[derive(Debug)]
struct Block {
    body: RegionId,
    outputs: usize,
    kept: Vec<Kept>,
    types: Vec<TensorType>,
}

impl Block {
    fn live(&self, arena: &Arena, live_outputs: &[bool]) -> Live {
        Live::of_results(arena, self.body, live_outputs)
    }
}

impl Op for Block {
    fn name(&self) -> &str {
        "remat"
    }

    fn infer(&self, _: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(self.types.clone())
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let g = &cx.graph;
        let given = cx.given(self.outputs);
        let cotangents = given.iter().filter_map(|i| cx.cotangents[*i].as_ref());
        // The barrier ties the repetition to the cotangents: without it XLA would merge it with the first computation,
        // and everything would be kept after all.
        let held = g.barrier(&cx.inputs.iter().chain(cotangents).collect::<Vec<_>>());
        let (operands, cotangents) = held.split_at(cx.inputs.len());
        let saved = from_copies(&self.kept, &cx.outputs[self.outputs..]);
        let recall: HashMap<_, _> = self.kept.iter().map(|k| k.value).zip(saved).collect();
        let results = g.inline_region(self.body, operands, &recall);
        let seeds: Vec<(&Tensor, &Tensor)> =
            given.iter().map(|i| &results[*i]).zip(cotangents).collect();
        let wanted: Vec<usize> = (0..operands.len()).filter(|i| cx.needs[*i]).collect();
        let wrt: Vec<&Tensor> = wanted.iter().map(|i| &operands[*i]).collect();
        let found = g.vjp(&seeds, &wrt);
        cx.answer(wanted.iter().copied().zip(found))
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let live = self.live(out.arena(), &site.live_outputs);
        out.inline(self.body, &site.inputs, &live, &site.live_outputs)
    }

    fn cost(&self, cx: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        crate::cost::region(cx.arena, self.body, &self.live(cx.arena, cx.live_outputs))
    }

    fn saved(&self, arena: &Arena, live_outputs: &[bool]) -> Vec<Saved> {
        let live = self.live(arena, live_outputs);
        let (types, read) = (&self.types[self.outputs..], &live_outputs[self.outputs..]);
        arena.kept(&self.kept, types, read, self.body, &live)
    }

    fn verify(&self, arena: &Arena, inputs: &[TensorType]) -> Result<(), String> {
        arena.check_params(self.body, inputs)
    }

    fn regions(&self) -> Vec<RegionId> {
        vec![self.body]
    }

    fn live_inputs(&self, arena: &Arena, live_outputs: &[bool], _: usize) -> Vec<bool> {
        let live = self.live(arena, live_outputs);
        let params = &arena.regions[self.body].params;
        params.iter().map(|param| live.contains(*param)).collect()
    }
}

impl Graph {
    /// Runs `f`, whose values the derivative computes again instead of keeping them, but for those that `policy` keeps.
    ///
    /// # Panics
    /// When the policy decides about a name that no tensor of the block bears.
    #[track_caller]
    pub fn remat(&self, policy: &Policy, f: impl FnOnce() -> Vec<Tensor>) -> Vec<Tensor> {
        let mut kept = Vec::new();
        let mut outputs = 0;
        let region = self.trace_region(&[], |_| {
            let results: Vec<Tensor> = f().iter().map(|t| self.localize(t)).collect();
            outputs = results.len();
            kept = self.choose(policy, &[]).others;
            results.into_iter().chain(self.kept_copies(&kept)).collect()
        });
        let op = Block {
            body: region.id,
            outputs,
            kept,
            types: self.result_types(region.id),
        };
        let mut results = self.add(op, &region.captures.iter().collect::<Vec<_>>());
        results.truncate(outputs);
        results
    }
}
