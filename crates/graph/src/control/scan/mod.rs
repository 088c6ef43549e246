//! `scan`: a loop of known length that carries values from step to step, reads stacked inputs and stacks outputs.
//!
//! Every scan also offers, as hidden results, what its derivative needs: the values carried into each step and those that
//! the policy keeps. Nobody reads them unless the scan is differentiated, and results that nobody reads are not emitted.
//! The derivative is a scan in the opposite direction whose body repeats the forward body and walks back through it.

mod derivative;
mod emission;

use ferrotune_pjrt::DType;

use crate::arena::{Arena, Graph, RegionId, Value};
use crate::control::check_equal;
use crate::emit::Emitter;
use crate::liveness::Live;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::remat::{Kept, Policy, Saved};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Operands: initial carry, stacked inputs, captures. Results: final carry, stacked outputs, hidden stacked values.
/// Body parameters: step index (s32), carry, input slices, captures. Body results: carry, outputs, kept values.
#[derive(Debug)]
struct Scan {
    body: RegionId,
    length: usize,
    reverse: bool,
    carries: usize,
    inputs: usize,
    outputs: usize,
    /// Values of the body that are kept, in the order of the hidden results; the first are the carried-in values.
    kept: Vec<Kept>,
    types: Vec<TensorType>,
}

/// What of a scan must be computed for some of its results.
struct Plan {
    live: Live,
    carries: Vec<bool>,
    inputs: Vec<bool>,
}

impl Scan {
    fn plan(&self, arena: &Arena, live_outputs: &[bool]) -> Plan {
        let region = &arena.regions[self.body];
        let mut carries = live_outputs[..self.carries].to_vec();
        loop {
            // A carry that any live value reads must itself be carried, which may make more values live.
            let wanted = carries.iter().chain(&live_outputs[self.carries..]);
            let roots: Vec<Value> = region
                .results
                .iter()
                .zip(wanted)
                .filter(|(_, w)| **w)
                .map(|(v, _)| *v)
                .collect();
            let live = Live::of(arena, self.body, &roots);
            let used = |param: usize| live.contains(region.params[param]);
            let grown: Vec<bool> = (0..self.carries)
                .map(|i| carries[i] || used(1 + i))
                .collect();
            if grown == carries {
                let inputs = (1 + self.carries..region.params.len()).map(used).collect();
                return Plan {
                    carries,
                    inputs,
                    live,
                };
            }
            carries = grown;
        }
    }
}

impl Op for Scan {
    fn name(&self) -> &str {
        "scan"
    }

    fn infer(&self, _: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(self.types.clone())
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        self.derivative(cx)
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        self.write(out, site)
    }

    fn cost(&self, cx: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        let plan = self.plan(cx.arena, cx.live_outputs);
        crate::cost::region(cx.arena, self.body, &plan.live).times(self.length)
    }

    fn saved(&self, arena: &Arena, live_outputs: &[bool]) -> Vec<Saved> {
        let hidden = self.carries + self.outputs;
        let live = self.plan(arena, live_outputs).live;
        let (types, read) = (&self.types[hidden..], &live_outputs[hidden..]);
        arena.kept(&self.kept, types, read, self.body, &live)
    }

    fn verify(&self, arena: &Arena, inputs: &[TensorType]) -> Result<(), String> {
        let (carry, rest) = inputs.split_at(self.carries);
        let (stacked, captures) = rest.split_at(self.inputs);
        let slice = |ty: &TensorType| TensorType::new(ty.dtype, &ty.dims[1..]);
        let slices: Vec<TensorType> = stacked.iter().map(slice).collect();
        let index = TensorType::new(DType::S32, &[]);
        let passed = std::iter::once(&index).chain(carry).chain(&slices);
        arena.check_params(self.body, passed.chain(captures))
    }

    fn regions(&self) -> Vec<RegionId> {
        vec![self.body]
    }

    fn live_inputs(&self, arena: &Arena, live_outputs: &[bool], _: usize) -> Vec<bool> {
        let plan = self.plan(arena, live_outputs);
        plan.carries.into_iter().chain(plan.inputs).collect()
    }
}

impl Graph {
    /// Runs `body` for each of `length` steps.
    ///
    /// `body(index, carry, slices)` gets the step (s32), the carried tensors and element `index` of every stacked input,
    /// and returns the carry for the next step (types unchanged) and this step's outputs. Returns the final carry and
    /// the outputs stacked along a new first dimension. `policy` says what the derivative may read instead of recompute.
    ///
    /// # Panics
    /// When `length` is 0 or above 2³¹ − 1, a stacked input is not `length` long, the carry changes its types, or the policy names a tensor that the
    /// body has not got.
    #[track_caller]
    pub fn scan(
        &self,
        policy: Policy,
        carry: Vec<Tensor>,
        inputs: Vec<Tensor>,
        length: usize,
        body: impl FnOnce(&Tensor, &[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
    ) -> (Vec<Tensor>, Vec<Tensor>) {
        self.scan_directed(policy, false, carry, inputs, length, body)
    }

    /// The same from the last step to the first.
    #[track_caller]
    pub fn scan_reverse(
        &self,
        policy: Policy,
        carry: Vec<Tensor>,
        inputs: Vec<Tensor>,
        length: usize,
        body: impl FnOnce(&Tensor, &[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
    ) -> (Vec<Tensor>, Vec<Tensor>) {
        self.scan_directed(policy, true, carry, inputs, length, body)
    }

    #[track_caller]
    fn scan_directed(
        &self,
        policy: Policy,
        reverse: bool,
        carry: Vec<Tensor>,
        inputs: Vec<Tensor>,
        length: usize,
        body: impl FnOnce(&Tensor, &[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
    ) -> (Vec<Tensor>, Vec<Tensor>) {
        assert!(
            length > 0 && i32::try_from(length).is_ok(),
            "a scan has at least one step and at most {}, not {length}",
            i32::MAX
        );
        let mut params = vec![TensorType::new(DType::S32, &[])];
        params.extend(carry.iter().map(Tensor::ty));
        for x in &inputs {
            let ty = x.ty();
            assert!(
                ty.dims.first() == Some(&length),
                "a scan of {length} steps reads a stacked input of type {ty}"
            );
            params.push(TensorType::new(ty.dtype, &ty.dims[1..]));
        }
        let (c, x) = (carry.len(), inputs.len());
        let mut outputs = 0;
        let mut after = Vec::new();
        let mut kept = Vec::new();
        let region = self.trace_region(&params, |args| {
            let (carry_in, slices) = args[1..].split_at(c);
            let (next, stacked) = body(&args[0], carry_in, slices);
            after = next.iter().map(Tensor::ty).collect();
            outputs = stacked.len();
            let carried: Vec<Value> = carry_in.iter().map(|t| t.value).collect();
            let choice = self.choose(&policy, &carried);
            kept = [choice.carry, choice.others].concat();
            let hidden = self.kept_copies(&kept);
            next.into_iter().chain(stacked).chain(hidden).collect()
        });
        // What the closure returns is checked outside of it, where the place of the call is known.
        check_equal(
            "the carry of a scan keeps its types",
            (&params[1..=c], "before a step"),
            (&after, "after it"),
        );
        let types: Vec<TensorType> = {
            let arena = self.0.borrow();
            let results = arena.regions[region.id]
                .results
                .iter()
                .map(|v| arena.value_type(*v).clone());
            results
                .enumerate()
                .map(|(i, ty)| {
                    if i < c {
                        ty
                    } else {
                        TensorType::new(ty.dtype, &[&[length], &ty.dims[..]].concat())
                    }
                })
                .collect()
        };
        let operands: Vec<&Tensor> = carry
            .iter()
            .chain(&inputs)
            .chain(&region.captures)
            .collect();
        let op = Scan {
            body: region.id,
            length,
            reverse,
            carries: c,
            inputs: x,
            outputs,
            kept,
            types,
        };
        let mut results = self.add(op, &operands);
        results.truncate(c + outputs);
        let stacked = results.split_off(c);
        (results, stacked)
    }
}
