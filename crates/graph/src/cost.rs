//! Counted work of a program.

use crate::arena::{Arena, Graph, RegionId};
use crate::liveness::Live;
use crate::op::Cost;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Work of all nodes of a loop body.
pub(crate) fn region(arena: &Arena, region: RegionId) -> Cost {
    let live = Live::of(arena, region, &arena.regions[region].results);
    total(arena, region, &live)
}

fn total(arena: &Arena, region: RegionId, live: &Live) -> Cost {
    let nodes = arena.regions[region]
        .nodes
        .iter()
        .filter(|id| live.contains(**id));
    nodes.fold(Cost::default(), |sum, id| {
        let node = &arena.nodes[*id];
        let inputs: Vec<TensorType> = node
            .inputs
            .iter()
            .map(|v| arena.value_type(*v).clone())
            .collect();
        sum.plus(node.op.cost(arena, &inputs, &node.types), 1.0)
    })
}

impl Graph {
    /// Work needed for the given results: matrix products exactly, loops with their trip counts, nothing fused.
    pub fn cost(&self, results: &[&Tensor]) -> Cost {
        let arena = self.0.borrow();
        let roots: Vec<_> = results.iter().map(|t| t.value).collect();
        total(&arena, 0, &Live::of(&arena, 0, &roots))
    }
}
