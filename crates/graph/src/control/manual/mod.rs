//! `manual`: a region that every device along some mesh axes runs for itself, on its own parts of the inputs.
//!
//! Inside, tensors have the dimensions of one device's part, and devices meet in collectives only. Mesh axes that the
//! region does not name stay automatic: the partitioner splits along them as it does elsewhere, and a region inside may make
//! them manual too. A region whose axes all have one device is written inline.
//!
//! # Derivative
//! Which devices hold equal values is not tracked. Write `y = P F B x`: `B` hands out parts, the same part to all
//! devices along axes that the input's sharding does not mention (`U` of them); `F` maps the operands of all devices to
//! their results; `P` joins parts, and where a result's sharding does not mention `n` devices, it takes their mean,
//! which is any of them, since they are promised to be equal. Transposed, term by term: a result's cotangent enters
//! every device divided by `n`; `F` is walked back, collectives by their transposes; an input's cotangent is the sum
//! over `U`. Cotangents on single devices may differ where the values are equal: only the whole is meaningful, and the
//! whole is exact. Captures are inputs whose sharding mentions no axis.
//!
//! The derivative is a manual region that walks back through the forward body. What it reads of the forward pass leaves
//! the forward region as hidden results, stacked along a new dimension 0 with one element a device; nothing is computed
//! again, unless a block inside of the region or a loop around it says so.

mod text;
mod trace;

use std::collections::{HashMap, HashSet};

use ferrotune_pjrt::Sharding;

use crate::arena::{Arena, Graph, RegionId, Value};
use crate::emit::Emitter;
use crate::liveness::Live;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::remat::{Kept, Saved};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;
use trace::devices_along;

/// What is manual in a region.
#[derive(Debug)]
pub(crate) struct ManualScope {
    pub(crate) axes: Vec<String>,
    /// For each axis, the parameter that holds this device's index along it, s32 of one element.
    pub(crate) positions: Vec<Value>,
}

/// Operands: one index array per axis, inputs, captures. Results: outputs, hidden values.
/// Body parameters and results are the parts of these on one device.
#[derive(Debug)]
struct Manual {
    body: RegionId,
    axes: Vec<String>,
    /// Devices along all the axes.
    devices: usize,
    /// Shardings of all operands over the manual axes.
    operands: Vec<Sharding>,
    /// Shardings of all results over the manual axes.
    results: Vec<Sharding>,
    outputs: usize,
    /// Values of the body that are kept, in the order of the hidden results.
    kept: Vec<Kept>,
    types: Vec<TensorType>,
}

impl Manual {
    fn live(&self, arena: &Arena, live_outputs: &[bool]) -> Live {
        Live::of_results(arena, self.body, live_outputs)
    }

    /// Operands that results with a cotangent depend on, also by way of what is read from a saved copy.
    fn reached(&self, arena: &Arena, has_cotangent: &[bool]) -> Vec<bool> {
        let region = &arena.regions[self.body];
        let given = region.results.iter().zip(has_cotangent);
        let mut reached: HashSet<usize> =
            given.filter(|(_, is)| **is).map(|(v, _)| v.node).collect();
        for id in region.nodes.iter().rev() {
            let node = &arena.nodes[*id];
            if reached.contains(id) && !node.op.stops_gradient() {
                reached.extend(node.inputs.iter().map(|v| v.node));
            }
        }
        let params = region.params.iter();
        params.map(|param| reached.contains(param)).collect()
    }

    /// Manual axes that a sharding does not mention: along them every device has a copy.
    fn unmentioned(&self, sharding: &Sharding) -> Vec<&str> {
        let mentioned: HashSet<&String> = sharding.dims.iter().flatten().collect();
        let axes = self.axes.iter().filter(|a| !mentioned.contains(a));
        axes.map(String::as_str).collect()
    }

    /// The body of the derivative, on one device: repeats the forward body with `operands`, reads what was `kept`, and
    /// walks back from the cotangents of the outputs `given` to the operands `wanted`.
    fn walk_back(
        &self,
        g: &Graph,
        operands: &[Tensor],
        kept: &[Tensor],
        given: &[(usize, &Tensor)],
        wanted: &[usize],
    ) -> Vec<Tensor> {
        let recall: HashMap<Value, Tensor> = self
            .kept
            .iter()
            .zip(kept)
            .map(|(kept, saved)| (kept.value, saved.reshape(&saved.dims()[1..])))
            .collect();
        let results = g.inline_region(self.body, operands, &recall);
        let mesh = g.mesh();
        let shares: Vec<Tensor> = given
            .iter()
            .map(|(k, cotangent)| {
                let copies = devices_along(&mesh, &self.unmentioned(&self.results[*k]));
                if copies == 1 {
                    (*cotangent).clone()
                } else {
                    *cotangent / copies as f64
                }
            })
            .collect();
        let seeds: Vec<(&Tensor, &Tensor)> = given
            .iter()
            .zip(&shares)
            .map(|((k, _), share)| (&results[*k], share))
            .collect();
        let wrt: Vec<&Tensor> = wanted.iter().map(|i| &operands[*i]).collect();
        g.vjp(&seeds, &wrt)
            .iter()
            .zip(wanted)
            .map(|(part, i)| match self.unmentioned(&self.operands[*i])[..] {
                [] => part.clone(),
                ref copies => part.all_reduce(copies),
            })
            .collect()
    }
}

impl Op for Manual {
    fn name(&self) -> &str {
        "manual"
    }

    fn infer(&self, _: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(self.types.clone())
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let g = &cx.graph;
        let given: Vec<(usize, &Tensor)> = cx.cotangents[..self.outputs]
            .iter()
            .enumerate()
            .filter_map(|(k, d)| d.as_ref().map(|d| (k, d)))
            .collect();
        let positions = self.axes.len();
        let wanted: Vec<usize> = {
            // An operand that no such output reads gets no zeros, which would be summed over devices.
            let has_cotangent: Vec<bool> = cx.cotangents[..self.outputs]
                .iter()
                .map(Option::is_some)
                .collect();
            let read = self.reached(&g.0.borrow(), &has_cotangent);
            (positions..cx.inputs.len())
                .filter(|i| cx.needs[*i] && read[*i])
                .collect()
        };

        let forward = cx.inputs.iter().zip(&self.operands).skip(positions);
        let hidden = cx.outputs.iter().zip(&self.results).skip(self.outputs);
        let cotangents = given.iter().map(|(k, d)| (*d, &self.results[*k]));
        let inputs: Vec<(&Tensor, Sharding)> = forward
            .chain(hidden)
            .chain(cotangents)
            .map(|(tensor, sharding)| (tensor, sharding.clone()))
            .collect();
        let outputs: Vec<Sharding> = wanted.iter().map(|i| self.operands[*i].clone()).collect();
        let axes: Vec<&str> = self.axes.iter().map(String::as_str).collect();
        let found = g.manual(&axes, &inputs, &outputs, |args| {
            let (forward, rest) = args.split_at(cx.inputs.len() - positions);
            let (kept, cotangents) = rest.split_at(self.kept.len());
            let operands = [&g.positions()[..positions], forward].concat();
            let given: Vec<(usize, &Tensor)> =
                given.iter().map(|(k, _)| *k).zip(cotangents).collect();
            self.walk_back(g, &operands, kept, &given, &wanted)
        });

        cx.answer(wanted.into_iter().zip(found))
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        self.write(out, site)
    }

    fn cost(&self, cx: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        let one = crate::cost::region(cx.arena, self.body, &self.live(cx.arena, cx.live_outputs));
        Cost {
            collective_bytes: one.collective_bytes,
            ..one.times(self.devices)
        }
    }

    fn saved(&self, arena: &Arena, live_outputs: &[bool]) -> Vec<Saved> {
        let live = self.live(arena, live_outputs);
        let (types, read) = (&self.types[self.outputs..], &live_outputs[self.outputs..]);
        arena.kept(&self.kept, types, read, self.body, &live)
    }

    fn verify(&self, arena: &Arena, inputs: &[TensorType]) -> Result<(), String> {
        let part = |(ty, sharding): (&TensorType, &Sharding)| {
            let dims = sharding.local_dims(&arena.mesh, &ty.dims);
            dims.map(|dims| TensorType::new(ty.dtype, &dims))
                .map_err(|e| e.to_string())
        };
        let parts: Result<Vec<TensorType>, String> =
            inputs.iter().zip(&self.operands).map(part).collect();
        arena.check_params(self.body, &parts?)
    }

    fn regions(&self) -> Vec<RegionId> {
        vec![self.body]
    }

    fn live_inputs(&self, arena: &Arena, live_outputs: &[bool], _: usize) -> Vec<bool> {
        let live = self.live(arena, live_outputs);
        let params = arena.regions[self.body].params.iter();
        params.map(|param| live.contains(*param)).collect()
    }
}
