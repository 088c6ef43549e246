//! Counted work of a program.

use crate::arena::{Arena, Graph, RegionId};
use crate::liveness::Live;
use crate::op::{Cost, CostContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Work of the live nodes of a region.
pub(crate) fn region(arena: &Arena, region: RegionId, live: &Live) -> Cost {
    let nodes = arena.regions[region].nodes.iter();
    nodes
        .filter_map(|id| Some((&arena.nodes[*id], live.outputs(*id)?)))
        .fold(Cost::default(), |sum, (node, outputs)| {
            let inputs: Vec<TensorType> = node
                .inputs
                .iter()
                .map(|v| arena.value_type(*v).clone())
                .collect();
            let cx = CostContext {
                arena,
                live_outputs: outputs,
            };
            sum.plus(node.op.cost(&cx, &inputs, &node.types))
        })
}

impl Graph {
    /// Work needed for the given results: matrix products exactly, loops with their trip counts, nothing fused.
    #[track_caller]
    pub fn cost(&self, results: &[&Tensor]) -> Cost {
        let roots = self.own_values(results);
        let arena = self.0.borrow();
        region(&arena, 0, &Live::of(&arena, 0, &roots))
    }
}
