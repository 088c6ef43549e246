//! The text of a manual region: `sdy.manual_computation`, or the body inline where there is one device along its axes.

use std::collections::HashSet;

use ferrotune_pjrt::{Mesh, Sharding};

use crate::arena::Value;
use crate::control::manual::Manual;
use crate::control::manual::trace::devices_along;
use crate::emit::{Emitter, bundle_names};
use crate::literal::quoted;
use crate::op::Site;
use crate::tensor_type::TensorType;

/// How shardings are written for one region.
struct Axes<'a> {
    /// Manual axes in the order of the mesh, with those of one device, which may be manual or not. An axis is manual in one
    /// region, so a region in a region has none of the outer one's.
    manual: Vec<&'a str>,
    /// Whether the partitioner may split dimensions further, along automatic axes.
    open: bool,
}

impl<'a> Axes<'a> {
    /// `outer` are those that regions around name.
    fn new(mesh: &'a Mesh, named: &[String], outer: &[String]) -> Self {
        let all = mesh.axes();
        let written = devices_along(mesh, outer) > 1;
        let single = |size: usize| size == 1 && !written;
        let manual: Vec<&str> = all
            .iter()
            .filter(|(name, size)| single(*size) || (*size > 1 && named.contains(name)))
            .map(|(name, _)| name.as_str())
            .collect();
        let mut automatic = all
            .iter()
            .filter(|(name, size)| *size > 1 && !named.contains(name) && !outer.contains(name));
        let open = automatic.next().is_some();
        Self { manual, open }
    }

    /// `<@mesh, [{"x"}, {}]>`, or `<@mesh, [{"x", ?}, {?}]>` where other axes are automatic.
    fn sharding(&self, sharding: &Sharding) -> String {
        let dim = |axes: &Vec<String>| {
            let named = axes.iter().filter(|a| self.manual.contains(&a.as_str()));
            let named = named.map(|a| quoted(a));
            let rest = self.open.then(|| "?".to_owned());
            format!("{{{}}}", named.chain(rest).collect::<Vec<_>>().join(", "))
        };
        let dims: Vec<String> = sharding.dims.iter().map(dim).collect();
        format!("<@mesh, [{}]>", dims.join(", "))
    }

    fn shardings<'s>(&self, shardings: impl Iterator<Item = &'s Sharding>) -> String {
        let all: Vec<String> = shardings.map(|s| self.sharding(s)).collect();
        all.join(", ")
    }
}

fn joined<'t>(types: impl Iterator<Item = &'t TensorType>) -> String {
    types
        .map(TensorType::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

impl Manual {
    /// Writes what the live results need and returns the names of the results.
    pub(super) fn write(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let arena = out.arena();
        let region = &arena.regions[self.body];
        let live = self.live(arena, &site.live_outputs);
        let params: Vec<usize> = (0..region.params.len())
            .filter(|i| live.contains(region.params[*i]))
            .collect();
        let results: Vec<usize> = (0..self.types.len())
            .filter(|k| site.live_outputs[*k])
            .collect();

        let result = out.fresh();
        let mut names: Vec<String> = params.iter().map(|i| site.inputs[*i].clone()).collect();
        if self.devices > 1 {
            let axes = Axes::new(&arena.mesh, &self.axes, out.manual_axes());
            let bundle = match results.len() {
                1 => result.clone(),
                count => format!("{result}:{count}"),
            };
            let quoted: Vec<String> = axes.manual.iter().map(|a| quoted(a)).collect();
            out.raw(&format!(
                "{bundle} = sdy.manual_computation({}) in_shardings=[{}] out_shardings=[{}] manual_axes={{{}}}",
                names.join(", "),
                axes.shardings(params.iter().map(|i| &self.operands[*i])),
                axes.shardings(results.iter().map(|k| &self.results[*k])),
                quoted.join(", ")
            ));
            names = params.iter().map(|_| out.fresh()).collect();
            let typed: Vec<String> = params
                .iter()
                .zip(&names)
                .map(|(i, name)| format!("{name}: {}", arena.nodes[region.params[*i]].types[0]))
                .collect();
            out.raw(&format!(" ({}) {{\n", typed.join(", ")));
        }

        let before = out.enter_manual(&self.axes);
        out.open_block();
        for (i, name) in params.iter().zip(names) {
            let value = Value {
                node: region.params[*i],
                output: 0,
            };
            out.bind(value, name);
        }
        out.region(self.body, &live, &HashSet::new());
        let mut found: Vec<String> = results
            .iter()
            .map(|k| out.value(region.results[*k]))
            .collect();
        out.close_block();
        out.leave_manual(before);
        if self.devices > 1 {
            let local = results.iter().map(|k| arena.value_type(region.results[*k]));
            out.raw(&format!(
                "sdy.return {} : {}\n",
                found.join(", "),
                joined(local)
            ));
            out.close(&format!(
                "}} : ({}) -> ({})",
                joined(params.iter().map(|i| &site.input_types[*i])),
                joined(results.iter().map(|k| &self.types[*k]))
            ));
            found = bundle_names(&result, results.len());
        }

        let mut answer = vec![String::new(); self.types.len()];
        for (k, name) in results.into_iter().zip(found) {
            answer[k] = name;
        }
        answer
    }
}
