//! A scan as text: a `while` that counts its steps.

use ferrotune_pjrt::DType;

use super::Scan;
use crate::arena::Value;
use crate::emit::{Emitter, bundle_names};
use crate::op::Site;
use crate::tensor_type::TensorType;

impl Scan {
    pub(super) fn write(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
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
