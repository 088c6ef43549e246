//! `scan`: a loop of known length that carries values from step to step, reads stacked inputs and stacks outputs.
//!
//! Every scan also offers, as hidden results, what its derivative needs: the values carried into each step and those that
//! the policy keeps. Nobody reads them unless the scan is differentiated, and results that nobody reads are not emitted.
//! The derivative is a scan in the opposite direction whose body repeats the forward body and walks back through it.

use std::collections::HashMap;

use ferrotune_pjrt::DType;

use crate::arena::{Arena, Graph, RegionId, Value};
use crate::emit::{Emitter, bundle_names};
use crate::liveness::Live;
use crate::op::{Cost, Gradient, Op, Site, VjpContext};
use crate::remat::Policy;
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
    kept: Vec<Value>,
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
        let g = &cx.graph;
        let (c, x) = (self.carries, self.inputs);
        let is_float = |t: &Tensor| t.dtype().is_float();
        let carry_in = &cx.inputs[..c];
        let stacked_in = &cx.inputs[c..c + x];
        let captures = &cx.inputs[c + x..];
        let hidden = &cx.outputs[c + self.outputs..];

        // Cotangents travel against the steps: those of the carry from step to step, those of captures as running sums.
        let float_carries: Vec<usize> = (0..c).filter(|i| is_float(&carry_in[*i])).collect();
        let wanted_inputs: Vec<usize> = (0..x)
            .filter(|i| cx.needs[c + i] && is_float(&stacked_in[*i]))
            .collect();
        let wanted_captures: Vec<usize> = (0..captures.len())
            .filter(|i| cx.needs[c + x + i] && is_float(&captures[*i]))
            .collect();
        let given_outputs: Vec<usize> = (0..self.outputs)
            .filter(|i| cx.cotangents[c + i].is_some())
            .collect();

        let d_carry = float_carries.iter().map(|i| {
            cx.cotangents[*i]
                .clone()
                .unwrap_or_else(|| cx.outputs[*i].zeros_like())
        });
        let d_captures = wanted_captures.iter().map(|i| captures[*i].zeros_like());
        let init: Vec<Tensor> = d_carry.chain(d_captures).collect();
        let d_outputs = given_outputs.iter().map(|i| {
            cx.cotangents[c + i]
                .clone()
                .expect("filtered to those given")
        });
        let stacked: Vec<Tensor> = hidden
            .iter()
            .cloned()
            .chain(stacked_in.iter().cloned())
            .chain(d_outputs)
            .collect();
        let kept = self.kept.len();

        let (sums, d_inputs) = g.scan_directed(
            Policy::Recompute,
            !self.reverse,
            init,
            stacked,
            self.length,
            |index, sums, slices| {
                let (saved, rest) = slices.split_at(kept);
                let (slices_in, d_out) = rest.split_at(x);
                let captured: Vec<Tensor> = captures.iter().map(|t| g.localize(t)).collect();
                let mut args = vec![index.clone()];
                args.extend(saved[..c].iter().cloned());
                args.extend(slices_in.iter().cloned());
                args.extend(captured.iter().cloned());
                let recall: HashMap<Value, Tensor> = self
                    .kept
                    .iter()
                    .copied()
                    .zip(saved.iter().cloned())
                    .skip(c)
                    .collect();
                let results = g.inline_region(self.body, &args, &recall);

                let carry_seeds = float_carries
                    .iter()
                    .enumerate()
                    .map(|(k, i)| (&results[*i], &sums[k]));
                let output_seeds = given_outputs
                    .iter()
                    .zip(d_out)
                    .map(|(i, d)| (&results[c + i], d));
                let seeds: Vec<(&Tensor, &Tensor)> = carry_seeds.chain(output_seeds).collect();
                let wrt_carry = float_carries.iter().map(|i| &saved[*i]);
                let wrt_inputs = wanted_inputs.iter().map(|i| &slices_in[*i]);
                let wrt_captures = wanted_captures.iter().map(|i| &captured[*i]);
                let wrt: Vec<&Tensor> = wrt_carry.chain(wrt_captures).chain(wrt_inputs).collect();
                let mut found = g.vjp(&seeds, &wrt);

                let d_inputs = found.split_off(float_carries.len() + wanted_captures.len());
                let d_captures = found.split_off(float_carries.len());
                let running = &sums[float_carries.len()..];
                found.extend(running.iter().zip(d_captures).map(|(sum, d)| sum + d));
                (found, d_inputs)
            },
        );

        let mut answer: Vec<Option<Tensor>> = vec![None; cx.inputs.len()];
        for (k, i) in float_carries.iter().enumerate() {
            answer[*i] = Some(sums[k].clone());
        }
        for (k, i) in wanted_captures.iter().enumerate() {
            answer[c + x + i] = Some(sums[float_carries.len() + k].clone());
        }
        for (k, i) in wanted_inputs.iter().enumerate() {
            answer[c + i] = Some(d_inputs[k].clone());
        }
        Gradient::Of(answer)
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let arena = out.arena();
        let region = &arena.regions[self.body];
        let plan = self.plan(arena, &site.live_outputs);
        let s32 = TensorType::new(DType::S32, &[]);

        out.open_block();
        for (param, name) in region.params[1 + self.carries..]
            .iter()
            .zip(&site.inputs[self.carries..])
            .skip(self.inputs)
        {
            out.bind(
                Value {
                    node: *param,
                    output: 0,
                },
                name.clone(),
            );
        }
        let hoisted = out.hoist(self.body, &plan.live);

        // Carried by the loop: the step, the live carries, a buffer for every live stacked result.
        let zero = out.assign(format!("stablehlo.constant dense<0> : {s32}"));
        let mut starts = vec![(zero, s32.clone())];
        let live_carries: Vec<usize> = (0..self.carries).filter(|i| plan.carries[*i]).collect();
        starts.extend(
            live_carries
                .iter()
                .map(|i| (site.inputs[*i].clone(), site.input_types[*i].clone())),
        );
        let live_stacks: Vec<usize> = (self.carries..self.types.len())
            .filter(|i| site.live_outputs[*i])
            .collect();
        for i in &live_stacks {
            let ty = &self.types[*i];
            let buffer = out.assign(format!(
                "stablehlo.constant dense<{}> : {ty}",
                crate::literal::splat(0.0, ty.dtype)
            ));
            starts.push((buffer, ty.clone()));
        }
        let names: Vec<String> = starts.iter().map(|_| out.fresh()).collect();
        let bindings: Vec<String> = names
            .iter()
            .zip(&starts)
            .map(|(n, (init, _))| format!("{n} = {init}"))
            .collect();
        let types: Vec<String> = starts.iter().map(|(_, ty)| ty.to_string()).collect();
        let types = types.join(", ");
        let result = out.fresh();
        let bundle = if starts.len() == 1 {
            result.clone()
        } else {
            format!("{result}:{}", starts.len())
        };
        out.raw(&format!(
            "{bundle} = stablehlo.while({}) : {types} cond {{\n",
            bindings.join(", ")
        ));
        let limit = out.assign(format!("stablehlo.constant dense<{}> : {s32}", self.length));
        let more = out.assign(format!(
            "stablehlo.compare LT, {}, {limit}, SIGNED : ({s32}, {s32}) -> tensor<i1>",
            names[0]
        ));
        out.raw(&format!("stablehlo.return {more} : tensor<i1>\n}} do {{\n"));

        out.open_block();
        let step = names[0].clone();
        let index = if self.reverse {
            let last = out.assign(format!(
                "stablehlo.constant dense<{}> : {s32}",
                self.length.saturating_sub(1)
            ));
            out.assign(format!("stablehlo.subtract {last}, {step} : {s32}"))
        } else {
            step.clone()
        };
        out.bind(
            Value {
                node: region.params[0],
                output: 0,
            },
            index.clone(),
        );
        for (name, i) in names[1..].iter().zip(&live_carries) {
            out.bind(
                Value {
                    node: region.params[1 + i],
                    output: 0,
                },
                name.clone(),
            );
        }
        for i in (0..self.inputs).filter(|i| plan.inputs[*i]) {
            let (name, ty) = (
                &site.inputs[self.carries + i],
                &site.input_types[self.carries + i],
            );
            let slice = read_step(out, name, ty, &index);
            out.bind(
                Value {
                    node: region.params[1 + self.carries + i],
                    output: 0,
                },
                slice,
            );
        }
        out.region(self.body, &plan.live, &hoisted);
        let one = out.assign(format!("stablehlo.constant dense<1> : {s32}"));
        let mut next = vec![out.assign(format!("stablehlo.add {step}, {one} : {s32}"))];
        for i in &live_carries {
            next.push(out.value(region.results[*i]));
        }
        for (buffer, i) in names[1 + live_carries.len()..].iter().zip(&live_stacks) {
            let value = out.value(region.results[*i]);
            next.push(write_step(out, buffer, &self.types[*i], &value, &index));
        }
        out.raw(&format!("stablehlo.return {} : {types}\n", next.join(", ")));
        out.close_block();
        out.close("}");
        out.close_block();

        let results = bundle_names(&result, starts.len());
        let mut answer = vec![String::new(); self.types.len()];
        for (name, i) in results[1..]
            .iter()
            .zip(live_carries.iter().chain(&live_stacks))
        {
            answer[*i] = name.clone();
        }
        answer
    }

    fn cost(&self, arena: &Arena, _: &[TensorType], _: &[TensorType]) -> Cost {
        Cost::default().plus(crate::cost::region(arena, self.body), self.length as f64)
    }

    fn regions(&self) -> Vec<RegionId> {
        vec![self.body]
    }

    fn live_inputs(&self, arena: &Arena, live_outputs: &[bool], _: usize) -> Vec<bool> {
        let plan = self.plan(arena, live_outputs);
        plan.carries.into_iter().chain(plan.inputs).collect()
    }
}

fn step_indices(out: &mut Emitter<'_>, rank: usize, index: &str) -> (String, String) {
    let zero = if rank > 1 {
        out.assign("stablehlo.constant dense<0> : tensor<i32>".to_owned())
    } else {
        String::new()
    };
    let indices: Vec<&str> = std::iter::once(index)
        .chain(std::iter::repeat_n(zero.as_str(), rank - 1))
        .collect();
    (indices.join(", "), vec!["tensor<i32>"; rank].join(", "))
}

/// Element `index` of a stacked value.
fn read_step(out: &mut Emitter<'_>, stacked: &str, ty: &TensorType, index: &str) -> String {
    let (indices, index_types) = step_indices(out, ty.rank(), index);
    let mut sizes = ty.dims.clone();
    sizes[0] = 1;
    let row = TensorType::new(ty.dtype, &sizes);
    let slice = TensorType::new(ty.dtype, &ty.dims[1..]);
    let window = out.assign(format!(
        "stablehlo.dynamic_slice {stacked}, {indices}, sizes = {} : ({ty}, {index_types}) -> {row}",
        crate::ops::list(&sizes)
    ));
    out.assign(format!("stablehlo.reshape {window} : ({row}) -> {slice}"))
}

/// The stacked value with element `index` replaced.
fn write_step(
    out: &mut Emitter<'_>,
    buffer: &str,
    ty: &TensorType,
    value: &str,
    index: &str,
) -> String {
    let mut sizes = ty.dims.clone();
    sizes[0] = 1;
    let row = TensorType::new(ty.dtype, &sizes);
    let slice = TensorType::new(ty.dtype, &ty.dims[1..]);
    let window = out.assign(format!("stablehlo.reshape {value} : ({slice}) -> {row}"));
    let (indices, index_types) = step_indices(out, ty.rank(), index);
    out.assign(format!("stablehlo.dynamic_update_slice {buffer}, {window}, {indices} : ({ty}, {row}, {index_types}) -> {ty}"))
}

impl Graph {
    /// Runs `body` for each of `length` steps.
    ///
    /// `body(index, carry, slices)` gets the step (s32), the carried tensors and element `index` of every stacked input,
    /// and returns the carry for the next step (types unchanged) and this step's outputs. Returns the final carry and
    /// the outputs stacked along a new first dimension. `policy` says what the derivative may read instead of recompute.
    ///
    /// # Panics
    /// When a stacked input is not `length` long, the carry changes its types, or the policy names a tensor that the
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
        let mut kept = Vec::new();
        let region = self.trace_region(&params, |args| {
            let (carry_in, slices) = args[1..].split_at(c);
            let (next, stacked) = body(&args[0], carry_in, slices);
            let before: Vec<TensorType> = params[1..=c].to_vec();
            let after: Vec<TensorType> = next.iter().map(Tensor::ty).collect();
            assert_eq!(before, after, "the carry of a scan keeps its types");
            outputs = stacked.len();
            kept = carry_in.iter().map(|t| t.value).collect();
            kept.extend(self.kept_by(&policy));
            let hidden = kept.iter().map(|value| Tensor {
                graph: self.clone(),
                value: *value,
            });
            next.into_iter()
                .chain(stacked)
                .chain(hidden.collect::<Vec<_>>())
                .collect()
        });
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

    /// Values of the open region that the policy keeps.
    #[track_caller]
    fn kept_by(&self, policy: &Policy) -> Vec<Value> {
        let arena = self.0.borrow();
        let nodes = &arena.regions[self.current_region()].nodes;
        let all = |wanted: &dyn Fn(usize) -> bool| {
            nodes
                .iter()
                .copied()
                .filter(|id| wanted(*id))
                .map(|node| Value { node, output: 0 })
                .collect::<Vec<_>>()
        };
        match policy {
            Policy::Recompute => Vec::new(),
            Policy::SaveDots => all(&|id| arena.nodes[id].op.is_dot()),
            Policy::SaveNames(names) => {
                for name in names {
                    let borne = nodes
                        .iter()
                        .any(|id| arena.nodes[*id].op.given_name() == Some(name));
                    assert!(
                        borne,
                        "the policy keeps `{name}`, but no tensor of the scan's body bears that name"
                    );
                }
                all(&|id| {
                    arena.nodes[id]
                        .op
                        .given_name()
                        .is_some_and(|n| names.iter().any(|m| m == n))
                })
            }
        }
    }
}
