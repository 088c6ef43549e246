//! `cond`: one of two branches, as a boolean says at run time. Only that branch is computed.

use std::collections::HashMap;

use ferrotune_pjrt::DType;

use crate::arena::{Arena, Graph, RegionId};
use crate::control::check_equal;
use crate::emit::{Emitter, bundle_names};
use crate::liveness::Live;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Operands: the predicate, captures of the branch for true, captures of the branch for false.
#[derive(Debug)]
struct Cond {
    branches: [RegionId; 2],
    /// Number of captures of the branch for true.
    captures: usize,
    types: Vec<TensorType>,
}

impl Cond {
    /// The captures of each branch among the operands after the predicate.
    fn split<'a, T>(&self, operands: &'a [T]) -> [&'a [T]; 2] {
        operands[1..].split_at(self.captures).into()
    }
}

impl Op for Cond {
    fn name(&self) -> &str {
        "cond"
    }

    fn infer(&self, _: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(self.types.clone())
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let g = &cx.graph;
        let given = cx.given(self.types.len());
        let wanted: Vec<usize> = (1..cx.inputs.len()).filter(|i| cx.needs[*i]).collect();
        // The branch that was taken is repeated and walked back; what only the other one read gets zeros.
        let pull_back = |branch: usize| {
            let first = 1 + branch * self.captures;
            let local: Vec<Tensor> = self.split(&cx.inputs)[branch]
                .iter()
                .map(|t| g.localize(t))
                .collect();
            let results = g.inline_region(self.branches[branch], &local, &HashMap::new());
            let cotangents = given.iter().filter_map(|i| cx.cotangents[*i].as_ref());
            let seeds: Vec<(&Tensor, &Tensor)> =
                given.iter().map(|i| &results[*i]).zip(cotangents).collect();
            let own = |i: usize| (first..first + local.len()).contains(&i);
            let wrt: Vec<&Tensor> = wanted
                .iter()
                .filter(|i| own(**i))
                .map(|i| &local[i - first])
                .collect();
            let mut found = g.vjp(&seeds, &wrt).into_iter();
            let answer = wanted.iter().map(|i| {
                let d = own(*i).then(|| found.next()).flatten();
                d.unwrap_or_else(|| cx.inputs[*i].zeros_like())
            });
            answer.collect::<Vec<Tensor>>()
        };
        let found = g.cond(&cx.inputs[0], || pull_back(0), || pull_back(1));
        cx.answer(wanted.into_iter().zip(found))
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let live_types: Vec<String> = self
            .types
            .iter()
            .zip(&site.live_outputs)
            .filter(|(_, live)| **live)
            .map(|(ty, _)| ty.to_string())
            .collect();
        let types = live_types.join(", ");
        let result = out.fresh();
        let bundle = if live_types.len() == 1 {
            result.clone()
        } else {
            format!("{result}:{}", live_types.len())
        };
        out.raw(&format!(
            "{bundle} = \"stablehlo.if\"({}) ({{\n",
            site.inputs[0]
        ));
        let captures = self.split(&site.inputs);
        for (i, (branch, captures)) in self.branches.iter().zip(captures).enumerate() {
            if i == 1 {
                out.raw("}, {\n");
            }
            let live = Live::of_results(out.arena(), *branch, &site.live_outputs);
            let mut names = out.inline(*branch, captures, &live, &site.live_outputs);
            names.retain(|name| !name.is_empty());
            out.raw(&format!(
                "stablehlo.return {} : {types}\n",
                names.join(", ")
            ));
        }
        out.close(&format!("}}) : (tensor<i1>) -> ({types})"));
        let mut names = bundle_names(&result, live_types.len()).into_iter();
        let name = |live: &bool| live.then(|| names.next()).flatten().unwrap_or_default();
        site.live_outputs.iter().map(name).collect()
    }

    fn cost(&self, cx: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        // Which branch is taken is not known: the dearer one is counted.
        let [a, b] = self.branches.map(|branch| {
            let live = Live::of_results(cx.arena, branch, cx.live_outputs);
            crate::cost::region(cx.arena, branch, &live)
        });
        if a.flops >= b.flops { a } else { b }
    }

    fn verify(&self, arena: &Arena, inputs: &[TensorType]) -> Result<(), String> {
        let [a, b] = self.split(inputs);
        arena.check_params(self.branches[0], a)?;
        arena.check_params(self.branches[1], b)
    }

    fn regions(&self) -> Vec<RegionId> {
        self.branches.to_vec()
    }

    fn live_inputs(&self, arena: &Arena, live_outputs: &[bool], _: usize) -> Vec<bool> {
        let read = self.branches.iter().flat_map(|branch| {
            let live = Live::of_results(arena, *branch, live_outputs);
            let params = &arena.regions[*branch].params;
            params
                .iter()
                .map(|param| live.contains(*param))
                .collect::<Vec<_>>()
        });
        std::iter::once(true).chain(read).collect()
    }
}

impl Graph {
    /// The results of `on_true` where the boolean scalar `predicate` holds at run time, else those of `on_false`.
    ///
    /// Inside of a manual region a branch may hold collectives only if all devices take the same branch: a device that does
    /// not come to a collective leaves the others waiting for it.
    ///
    /// # Panics
    /// When the predicate is not a boolean scalar or the branches return different types.
    #[track_caller]
    pub fn cond(
        &self,
        predicate: &Tensor,
        on_true: impl FnOnce() -> Vec<Tensor>,
        on_false: impl FnOnce() -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        assert!(
            predicate.ty() == TensorType::new(DType::Pred, &[]),
            "the predicate of a cond is a boolean scalar, not {}",
            predicate.ty()
        );
        let on_true = self.trace_region(&[], |_| on_true());
        let on_false = self.trace_region(&[], |_| on_false());
        let types = self.result_types(on_true.id);
        check_equal(
            "the branches of a cond return the same types",
            (&types, "where the predicate holds"),
            (&self.result_types(on_false.id), "where it does not"),
        );
        let operands: Vec<&Tensor> = std::iter::once(predicate)
            .chain(&on_true.captures)
            .chain(&on_false.captures)
            .collect();
        let op = Cond {
            branches: [on_true.id, on_false.id],
            captures: on_true.captures.len(),
            types,
        };
        self.add(op, &operands)
    }
}
