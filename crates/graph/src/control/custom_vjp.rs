//! `custom_vjp`: a function whose derivative is given instead of derived.
//!
//! For kernels that cannot be differentiated, loops of unknown length, and derivatives that are better than the automatic
//! one. Both functions are traced at once, into regions; what the first leaves for the second are its *residuals*.

use std::collections::HashMap;

use crate::arena::{Arena, Graph, RegionId};
use crate::emit::Emitter;
use crate::liveness::Live;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Operands: inputs, captures of the forward region, captures of the backward region. Results: outputs, hidden residuals.
/// Parameters of the backward region: residuals, cotangents of the floating-point outputs.
#[derive(Debug)]
struct CustomVjp {
    forward: RegionId,
    backward: RegionId,
    inputs: usize,
    forward_captures: usize,
    outputs: usize,
    /// Which result each residual is; one that is also an output is not repeated.
    residuals: Vec<usize>,
    /// Which inputs the backward region answers for.
    answered: Vec<bool>,
    types: Vec<TensorType>,
}

impl Op for CustomVjp {
    fn name(&self) -> &str {
        "custom_vjp"
    }

    fn infer(&self, _: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(self.types.clone())
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let captured = self.inputs..self.inputs + self.forward_captures;
        if cx.needs[captured.clone()].contains(&true) {
            return Gradient::Refused(
                "its forward function reads a tensor that is differentiated but is not among its inputs; pass it as one",
            );
        }
        let residuals = self.residuals.iter().map(|i| cx.outputs[*i].clone());
        let floats = (0..self.outputs).filter(|i| self.types[*i].dtype.is_float());
        let cotangents = floats.map(|i| {
            cx.cotangents[i]
                .clone()
                .unwrap_or_else(|| cx.outputs[i].zeros_like())
        });
        let captures = cx.inputs[captured.end..].iter().cloned();
        let args: Vec<Tensor> = residuals.chain(cotangents).chain(captures).collect();
        let mut found = cx
            .graph
            .inline_region(self.backward, &args, &HashMap::new())
            .into_iter();
        let answer = |answered: &bool| answered.then(|| found.next()).flatten();
        let mut answer: Vec<Option<Tensor>> = self.answered.iter().map(answer).collect();
        answer.resize(cx.inputs.len(), None);
        Gradient::Of(answer)
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let live = Live::of_results(out.arena(), self.forward, &site.live_outputs);
        let operands = &site.inputs[..self.inputs + self.forward_captures];
        out.inline(self.forward, operands, &live, &site.live_outputs)
    }

    fn cost(&self, cx: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        let live = Live::of_results(cx.arena, self.forward, cx.live_outputs);
        crate::cost::region(cx.arena, self.forward, &live)
    }

    fn saved(&self, arena: &Arena, live_outputs: &[bool]) -> Vec<crate::Saved> {
        let live = Live::of_results(arena, self.forward, live_outputs);
        arena.saved(self.forward, &live)
    }

    fn verify(&self, arena: &Arena, inputs: &[TensorType]) -> Result<(), String> {
        let (forward, captures) = inputs.split_at(self.inputs + self.forward_captures);
        arena.check_params(self.forward, forward)?;
        let residuals = self.residuals.iter().map(|i| &self.types[*i]);
        let floats = self.types[..self.outputs].iter();
        let cotangents = floats.filter(|ty| ty.dtype.is_float());
        arena.check_params(self.backward, residuals.chain(cotangents).chain(captures))
    }

    fn regions(&self) -> Vec<RegionId> {
        vec![self.forward, self.backward]
    }

    fn live_inputs(&self, arena: &Arena, live_outputs: &[bool], inputs: usize) -> Vec<bool> {
        let live = Live::of_results(arena, self.forward, live_outputs);
        let params = arena.regions[self.forward].params.iter();
        let mut read: Vec<bool> = params.map(|param| live.contains(*param)).collect();
        read.resize(inputs, false);
        read
    }
}

impl Graph {
    /// A function with its own derivative.
    ///
    /// `forward(inputs)` returns the outputs and the residuals. `backward(residuals, cotangents)` gets one cotangent for
    /// each floating-point output, in order, and returns one for each input: `None` is zero. Both may read tensors from
    /// outside, but those that `forward` reads get no cotangent, so that differentiating by one of them is an error.
    ///
    /// # Panics
    /// When `backward` answers for another number of inputs, or with other types than theirs.
    #[track_caller]
    pub fn custom_vjp(
        &self,
        inputs: &[&Tensor],
        forward: impl FnOnce(&[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
        backward: impl FnOnce(&[Tensor], &[Tensor]) -> Vec<Option<Tensor>>,
    ) -> Vec<Tensor> {
        let input_types: Vec<TensorType> = inputs.iter().map(|t| t.ty()).collect();
        let (mut outputs, mut residuals) = (0, Vec::new());
        let forward = self.trace_region(&input_types, |args| {
            let (results, left) = forward(args);
            outputs = results.len();
            let mut results: Vec<Tensor> = results.iter().map(|t| self.localize(t)).collect();
            for residual in left.iter().map(|t| self.localize(t)) {
                let known = results.iter().position(|t| t.value == residual.value);
                residuals.push(known.unwrap_or(results.len()));
                if known.is_none() {
                    results.push(residual);
                }
            }
            results
        });
        let types = self.result_types(forward.id);
        let floats = types[..outputs].iter().filter(|ty| ty.dtype.is_float());
        let params: Vec<TensorType> = residuals
            .iter()
            .map(|i| &types[*i])
            .chain(floats)
            .cloned()
            .collect();
        let mut answered = Vec::new();
        let backward = self.trace_region(&params, |args| {
            let (residuals, cotangents) = args.split_at(residuals.len());
            let answer = backward(residuals, cotangents);
            answered = answer.iter().map(Option::is_some).collect();
            answer.into_iter().flatten().collect()
        });
        // What the closure returns is checked outside of it, where the place of the call is known.
        assert!(
            answered.len() == inputs.len(),
            "a derivative answers for every input: {} answers for {} inputs",
            answered.len(),
            inputs.len()
        );
        let given = (0..inputs.len()).filter(|i| answered[*i]);
        for (i, found) in given.zip(self.result_types(backward.id)) {
            let ty = &input_types[i];
            assert!(
                found == *ty,
                "cotangent {i} of type {found} stands for an input of type {ty}"
            );
        }
        let operands: Vec<&Tensor> = inputs
            .iter()
            .copied()
            .chain(&forward.captures)
            .chain(&backward.captures)
            .collect();
        let op = CustomVjp {
            forward: forward.id,
            backward: backward.id,
            inputs: inputs.len(),
            forward_captures: forward.captures.len(),
            outputs,
            residuals,
            answered,
            types,
        };
        let mut results = self.add(op, &operands);
        results.truncate(outputs);
        results
    }
}
