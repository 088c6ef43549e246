//! The derivative of a scan: a scan in the opposite direction.

use std::collections::HashMap;

use super::Scan;
use crate::arena::Value;
use crate::op::{Gradient, VjpContext};
use crate::remat::{Policy, from_copies};
use crate::tensor::Tensor;

impl Scan {
    pub(super) fn derivative(&self, cx: &VjpContext) -> Gradient {
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
            Policy::recompute(),
            !self.reverse,
            init,
            stacked,
            self.length,
            |index, sums, slices| {
                let (copies, rest) = slices.split_at(kept);
                let saved = from_copies(&self.kept, copies);
                let (slices_in, d_out) = rest.split_at(x);
                let captured: Vec<Tensor> = captures.iter().map(|t| g.localize(t)).collect();
                let mut args = vec![index.clone()];
                args.extend(saved[..c].iter().cloned());
                args.extend(slices_in.iter().cloned());
                args.extend(captured.iter().cloned());
                let recall: HashMap<Value, Tensor> = self
                    .kept
                    .iter()
                    .map(|k| k.value)
                    .zip(saved.iter().cloned())
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

        // The sums are those of the carry, then those of captures.
        let places = float_carries.into_iter();
        let places = places.chain(wanted_captures.into_iter().map(|i| c + x + i));
        let inputs = wanted_inputs.into_iter().map(|i| c + i).zip(d_inputs);
        cx.answer(places.zip(sums).chain(inputs))
    }
}
