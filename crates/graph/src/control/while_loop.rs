//! `while_loop`: a loop that ends when its state says so.

use std::collections::HashSet;

use ferrotune_pjrt::DType;

use crate::arena::{Arena, Graph, RegionId, Value};
use crate::control::check_equal;
use crate::emit::{Emitter, bundle_names};
use crate::liveness::Live;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Operands: initial state, captures of the condition, captures of the body. Results: final state.
#[derive(Debug)]
struct While {
    condition: RegionId,
    body: RegionId,
    state: usize,
    condition_captures: usize,
    types: Vec<TensorType>,
}

impl While {
    fn bind(
        &self,
        out: &mut Emitter<'_>,
        region: RegionId,
        state: &[String],
        captures: &[String],
    ) -> Live {
        let arena = out.arena();
        let names = state.iter().chain(captures);
        for (param, name) in arena.regions[region].params.iter().zip(names) {
            out.bind(
                Value {
                    node: *param,
                    output: 0,
                },
                name.clone(),
            );
        }
        Live::of(arena, region, &arena.regions[region].results)
    }
}

impl Op for While {
    fn name(&self) -> &str {
        "while_loop"
    }

    fn infer(&self, _: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(self.types.clone())
    }

    fn vjp(&self, _: &VjpContext) -> Gradient {
        Gradient::Refused(
            "the number of steps is not known, so nothing can be kept for the way back; use scan",
        )
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let arena = out.arena();
        let (init, captures) = site.inputs.split_at(self.state);
        let (for_condition, for_body) = captures.split_at(self.condition_captures);
        let names: Vec<String> = init.iter().map(|_| out.fresh()).collect();
        let bindings: Vec<String> = names
            .iter()
            .zip(init)
            .map(|(n, i)| format!("{n} = {i}"))
            .collect();
        let types: Vec<String> = self.types.iter().map(TensorType::to_string).collect();
        let types = types.join(", ");
        let result = out.fresh();
        let bundle = if self.state == 1 {
            result.clone()
        } else {
            format!("{result}:{}", self.state)
        };
        out.raw(&format!(
            "{bundle} = stablehlo.while({}) : {types} cond {{\n",
            bindings.join(", ")
        ));
        out.open_block();
        let live = self.bind(out, self.condition, &names, for_condition);
        out.region(self.condition, &live, &HashSet::new());
        let more = out.value(arena.regions[self.condition].results[0]);
        out.raw(&format!("stablehlo.return {more} : tensor<i1>\n}} do {{\n"));
        out.close_block();
        out.open_block();
        let live = self.bind(out, self.body, &names, for_body);
        out.region(self.body, &live, &HashSet::new());
        let next: Vec<String> = arena.regions[self.body]
            .results
            .iter()
            .map(|v| out.value(*v))
            .collect();
        out.raw(&format!("stablehlo.return {} : {types}\n", next.join(", ")));
        out.close_block();
        out.close("}");
        bundle_names(&result, self.state)
    }

    fn cost(&self, cx: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        // The number of steps is not known: one step is counted.
        let work = |region: RegionId| {
            let live = Live::of(cx.arena, region, &cx.arena.regions[region].results);
            crate::cost::region(cx.arena, region, &live)
        };
        work(self.body).plus(work(self.condition))
    }

    fn verify(&self, arena: &Arena, inputs: &[TensorType]) -> Result<(), String> {
        let (state, captures) = inputs.split_at(self.state);
        let (condition, body) = captures.split_at(self.condition_captures);
        arena.check_params(self.condition, state.iter().chain(condition))?;
        arena.check_params(self.body, state.iter().chain(body))
    }

    fn regions(&self) -> Vec<RegionId> {
        vec![self.condition, self.body]
    }
}

impl Graph {
    /// Repeats `body` while `condition` holds; both get the state, `body` returns the next one (types unchanged).
    ///
    /// Inside of a manual region the body may hold collectives only if all devices take the same number of steps.
    ///
    /// It has no derivative: the number of steps is not known beforehand.
    ///
    /// # Panics
    /// When the condition is not a boolean scalar or the state changes its types.
    #[track_caller]
    pub fn while_loop(
        &self,
        state: Vec<Tensor>,
        condition: impl FnOnce(&[Tensor]) -> Tensor,
        body: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        assert!(!state.is_empty(), "a while loop has a state");
        let types: Vec<TensorType> = state.iter().map(Tensor::ty).collect();
        // What a closure returns is checked outside of it, where the place of the call is known.
        let condition = self.trace_region(&types, |args| vec![condition(args)]);
        let more = self.result_types(condition.id).remove(0);
        assert!(
            more == TensorType::new(DType::Pred, &[]),
            "the condition of a while loop is a boolean scalar, not {more}"
        );
        let body = self.trace_region(&types, body);
        check_equal(
            "the state of a while loop keeps its types",
            (&types, "before a step"),
            (&self.result_types(body.id), "after it"),
        );
        let operands: Vec<&Tensor> = state
            .iter()
            .chain(&condition.captures)
            .chain(&body.captures)
            .collect();
        let op = While {
            condition: condition.id,
            body: body.id,
            state: state.len(),
            condition_captures: condition.captures.len(),
            types: types.clone(),
        };
        self.add(op, &operands)
    }
}
