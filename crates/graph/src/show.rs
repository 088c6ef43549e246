//! The graph in readable form: one line a node, bodies indented, with scope and source location.
//!
//! ```text
//! %0 = param 0 : tensor<4x8xf32>  x
//! %2 = scan(%0, %1) {
//!     %3 = param 0 : tensor<i32>
//!     %7 = einsum(%4, %5) : tensor<4x8xf32>  layers/mlp  nn/src/linear.rs:40
//! } -> %9 : tensor<4x8xf32>
//! ```

use std::fmt::Write;

use crate::arena::{Arena, Graph, RegionId, Value};
use crate::liveness::Live;
use crate::tensor::Tensor;

impl Graph {
    /// The live nodes of a program with the given results, for people.
    #[track_caller]
    pub fn show(&self, results: &[&Tensor]) -> String {
        let roots = self.own_values(results);
        let arena = self.0.borrow();
        let mut text = String::new();
        arena.show(0, &Live::of(&arena, 0, &roots), 0, &mut text);
        let names: Vec<String> = roots.iter().map(|v| arena.label(*v)).collect();
        let _ = writeln!(text, "return {}", names.join(", "));
        text
    }
}

/// An operation with its settings, or its name alone where those are long.
fn shown(op: &dyn crate::Op) -> String {
    let whole = format!("{op:?}");
    if whole.len() <= 100 {
        whole
    } else {
        op.name().to_owned()
    }
}

impl Arena {
    fn input_name(&self, id: usize) -> Option<String> {
        let input = self.inputs.iter().find(|input| input.node == id)?;
        Some(format!("argument `{}`", input.name.escape_debug()))
    }

    fn label(&self, value: Value) -> String {
        if self.nodes[value.node].types.len() == 1 {
            format!("%{}", value.node)
        } else {
            format!("%{}.{}", value.node, value.output)
        }
    }

    fn show(&self, region: RegionId, live: &Live, depth: usize, text: &mut String) {
        let indent = "    ".repeat(depth);
        for id in &self.regions[region].nodes {
            let node = &self.nodes[*id];
            let Some(outputs) = live.outputs(*id) else {
                continue;
            };
            let inputs: Vec<String> = node.inputs.iter().map(|v| self.label(*v)).collect();
            let types: Vec<String> = node
                .types
                .iter()
                .zip(outputs)
                .map(|(ty, live)| {
                    if *live {
                        ty.to_string()
                    } else {
                        "_".to_owned()
                    }
                })
                .collect();
            let what = self.input_name(*id).unwrap_or_else(|| shown(&*node.op));
            let _ = write!(text, "{indent}%{id} = {what}({})", inputs.join(", "));
            for inner in node.op.regions() {
                let roots = &self.regions[inner].results;
                let _ = writeln!(text, " {{");
                self.show(inner, &Live::of(self, inner, roots), depth + 1, text);
                let results: Vec<String> = roots.iter().map(|v| self.label(*v)).collect();
                let _ = write!(text, "{indent}}} -> ({})", results.join(", "));
            }
            let place = format!("{}:{}", node.location.file(), node.location.line());
            let _ = writeln!(
                text,
                " : {}  {} {place}",
                types.join(", "),
                if node.scope.is_empty() {
                    "-"
                } else {
                    &node.scope
                }
            );
        }
    }
}
