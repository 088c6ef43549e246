//! The rules that every program keeps, checked before it is written (in tests and debug builds).
//!
//! The tracing API makes most of them impossible to break; an operation with a wrong rule, or a change of the tracer, is
//! what the verifier is for.

use std::collections::{HashMap, HashSet};

use crate::arena::{Arena, Graph, NodeId, RegionId};
use crate::emit::Output;
use crate::tensor_type::TensorType;

impl Graph {
    /// What is wrong with the program, one sentence a fault; empty when nothing is.
    ///
    /// Checked: operands stand before their users and in the same region; types are what the operations infer; the
    /// parameters of a body have the types of what is passed to them; arguments have different names and shardings that
    /// fit the mesh; no memory is given away twice.
    pub fn verify(&self, outputs: &[Output]) -> Vec<String> {
        let arena = self.0.borrow();
        let mut faults = Vec::new();
        for region in 0..arena.regions.len() {
            arena.verify_region(region, &mut faults);
        }
        arena.verify_boundary(outputs, &mut faults);
        faults
    }
}

impl Arena {
    fn verify_region(&self, region: RegionId, faults: &mut Vec<String>) {
        let owned = &self.regions[region];
        let mut seen: HashSet<NodeId> = HashSet::new();
        for id in &owned.nodes {
            self.verify_node(*id, region, &seen, faults);
            seen.insert(*id);
        }
        for (i, value) in owned.results.iter().enumerate() {
            let there =
                seen.contains(&value.node) && value.output < self.nodes[value.node].types.len();
            if !there {
                faults.push(format!(
                    "result {i} of region {region} is not computed in it"
                ));
            }
        }
        for (i, param) in owned.params.iter().enumerate() {
            if !seen.contains(param) {
                faults.push(format!(
                    "parameter {i} of region {region} does not stand in it"
                ));
            }
        }
    }

    fn verify_node(
        &self,
        id: NodeId,
        region: RegionId,
        seen: &HashSet<NodeId>,
        faults: &mut Vec<String>,
    ) {
        let node = &self.nodes[id];
        let place = || format!("%{id} `{}` at {}", node.op.name(), node.location);
        if node.region != region {
            faults.push(format!(
                "{} stands in region {region} but says {}",
                place(),
                node.region
            ));
        }
        if let Some(v) = node.inputs.iter().find(|v| !seen.contains(&v.node)) {
            faults.push(format!(
                "{} reads %{}, which its region has not computed before",
                place(),
                v.node
            ));
            return;
        }
        if let Some(v) = node
            .inputs
            .iter()
            .find(|v| v.output >= self.nodes[v.node].types.len())
        {
            faults.push(format!(
                "{} reads result {} of %{}, which has not so many",
                place(),
                v.output,
                v.node
            ));
            return;
        }
        let types: Vec<TensorType> = node
            .inputs
            .iter()
            .map(|v| self.value_type(*v).clone())
            .collect();
        match node.op.infer(&types) {
            Err(why) => faults.push(format!("{}: {why}", place())),
            Ok(inferred) if inferred != node.types => {
                faults.push(format!(
                    "{} has types {:?}, its rule says {inferred:?}",
                    place(),
                    node.types
                ));
            }
            Ok(_) => {}
        }
        if let Err(why) = node.op.verify(self, &types) {
            faults.push(format!("{}: {why}", place()));
        }
    }

    fn verify_boundary(&self, outputs: &[Output], faults: &mut Vec<String>) {
        let mut names: HashSet<&str> = HashSet::new();
        for input in &self.inputs {
            let ty = &self.nodes[input.node].types[0];
            if !names.insert(&input.name) {
                faults.push(format!("two arguments are called `{}`", input.name));
            }
            if let Err(e) = input.sharding.local_dims(&self.mesh, &ty.dims) {
                faults.push(format!("argument `{}` of type {ty}: {e}", input.name));
            }
        }
        let mut replaced: HashMap<NodeId, &str> = HashMap::new();
        for output in outputs {
            let ty = self.value_type(output.tensor.value);
            if let Err(e) = output.sharding.local_dims(&self.mesh, &ty.dims) {
                faults.push(format!("result `{}` of type {ty}: {e}", output.name));
            }
            let Some(argument) = &output.replaces else {
                continue;
            };
            let node = argument.value.node;
            match self.inputs.iter().find(|input| input.node == node) {
                None => faults.push(format!("result `{}` replaces what is no argument", output.name)),
                Some(input) if input.sharding != output.sharding => faults.push(format!(
                    "result `{}` cannot take over the memory of `{}`, which is split in another way",
                    output.name, input.name
                )),
                Some(_) => {}
            }
            if let Some(other) = replaced.insert(node, &output.name) {
                faults.push(format!(
                    "results `{other}` and `{}` replace one argument",
                    output.name
                ));
            }
        }
    }

    /// Compares what an operation passes to a region with the region's parameters.
    pub(crate) fn check_params<'a>(
        &self,
        region: RegionId,
        passed: impl IntoIterator<Item = &'a TensorType>,
    ) -> Result<(), String> {
        let params = self.regions[region].params.iter();
        let params: Vec<&TensorType> = params.map(|id| &self.nodes[*id].types[0]).collect();
        let passed: Vec<&TensorType> = passed.into_iter().collect();
        if params == passed {
            Ok(())
        } else {
            Err(format!(
                "region {region} takes {params:?} but is passed {passed:?}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use ferrotune_pjrt::{DType, Mesh, Sharding};

    use super::*;
    use crate::{Policy, Rules, Tensor};

    /// A program with a loop, and its only result.
    fn program() -> (Graph, Tensor) {
        let g = Graph::new(
            "p",
            Mesh::new(&[("x", 2)]).unwrap(),
            Rules::new([("split", vec!["x".to_owned()])]),
        );
        let x = g.input("x", DType::F32, &[4], &["split"]);
        let (carry, _) = g.scan(Policy::recompute(), vec![x.exp()], vec![], 3, |_, c, _| {
            (vec![&c[0] * &x], vec![])
        });
        let y = carry[0].tanh();
        (g, y)
    }

    fn output(y: &Tensor, axes: &[&str], replaces: Option<Tensor>) -> Output {
        let dims = axes.iter().map(|a| vec![(*a).to_owned()]).collect();
        Output {
            name: "y".into(),
            tensor: y.clone(),
            sharding: Sharding { dims },
            replaces,
        }
    }

    /// The only fault after `damage`.
    fn fault(damage: impl FnOnce(&mut Arena)) -> String {
        let (g, y) = program();
        let result = [output(&y, &["x"], None)];
        assert_eq!(g.verify(&result), Vec::<String>::new());
        damage(&mut g.0.borrow_mut());
        g.verify(&result).join("; ")
    }

    /// The node of an operation.
    fn node(arena: &Arena, name: &str) -> NodeId {
        arena
            .nodes
            .iter()
            .position(|n| n.op.name() == name)
            .unwrap()
    }

    #[test]
    fn wrong_types_are_found() {
        let found = fault(|arena| {
            let id = node(arena, "tanh");
            arena.nodes[id].types[0].dims = vec![5];
        });
        assert!(
            found.contains("`tanh`") && found.contains("its rule says"),
            "{found}"
        );
    }

    #[test]
    fn operands_from_later_or_from_elsewhere_are_found() {
        let later = fault(|arena| {
            let (exp, tanh) = (node(arena, "exponential"), node(arena, "tanh"));
            arena.nodes[exp].inputs[0].node = tanh;
        });
        assert!(later.contains("has not computed before"), "{later}");
        let elsewhere = fault(|arena| {
            let (exp, times) = (node(arena, "exponential"), node(arena, "multiply"));
            arena.nodes[times].inputs[1].node = exp;
        });
        assert!(elsewhere.contains("has not computed before"), "{elsewhere}");
    }

    #[test]
    fn bodies_that_are_passed_other_types_are_found() {
        let found = fault(|arena| {
            let param = arena.regions[1].params[1];
            arena.nodes[param].types[0].dims = vec![4, 1];
        });
        assert!(found.contains("region 1 takes"), "{found}");
    }

    #[test]
    fn results_that_are_not_in_their_region_are_found() {
        let found = fault(|arena| arena.regions[1].results[0].node = 0);
        assert!(found.contains("result 0 of region 1"), "{found}");
    }

    #[test]
    fn the_boundary_is_checked_against_the_mesh() {
        let (g, y) = program();
        let x = Tensor {
            graph: g.clone(),
            value: crate::arena::Value { node: 0, output: 0 },
        };
        let faults = g.verify(&[
            output(&y, &["z"], Some(y.clone())),
            output(&y, &["x"], Some(x.clone())),
            output(&y, &["x"], Some(x)),
        ]);
        let text = faults.join("; ");
        for part in [
            "result `y` of type tensor<4xf32>",
            "replaces what is no argument",
            "replace one argument",
        ] {
            assert!(text.contains(part), "{text}");
        }
        g.input("x", DType::F32, &[4], &["_"]);
        assert!(
            g.verify(&[])
                .join("; ")
                .contains("two arguments are called `x`")
        );
    }
}
