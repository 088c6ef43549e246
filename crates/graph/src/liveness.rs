//! Which nodes of a region matter for given results.

use std::collections::HashMap;

use crate::arena::{Arena, NodeId, RegionId, Value};

/// Live nodes of one region, each with the results that somebody reads.
pub(crate) struct Live {
    nodes: HashMap<NodeId, Vec<bool>>,
}

impl Live {
    /// What `roots`, values of `region`, need.
    pub(crate) fn of(arena: &Arena, region: RegionId, roots: &[Value]) -> Self {
        let mut nodes: HashMap<NodeId, Vec<bool>> = HashMap::new();
        let mark = |nodes: &mut HashMap<NodeId, Vec<bool>>, v: Value| {
            nodes
                .entry(v.node)
                .or_insert_with(|| vec![false; arena.nodes[v.node].types.len()])[v.output] = true;
        };
        for root in roots {
            mark(&mut nodes, *root);
        }
        for id in arena.regions[region].nodes.iter().rev() {
            let Some(outputs) = nodes.get(id).cloned() else {
                continue;
            };
            let node = &arena.nodes[*id];
            let inputs = node.op.live_inputs(arena, &outputs, node.inputs.len());
            for (value, _) in node.inputs.iter().zip(inputs).filter(|(_, live)| *live) {
                mark(&mut nodes, *value);
            }
        }
        Self { nodes }
    }

    /// What the results of a region that are read need.
    pub(crate) fn of_results(arena: &Arena, region: RegionId, read: &[bool]) -> Self {
        let results = arena.regions[region].results.iter().zip(read);
        let roots: Vec<Value> = results
            .filter(|(_, read)| **read)
            .map(|(v, _)| *v)
            .collect();
        Self::of(arena, region, &roots)
    }

    /// The results of a node that are read; `None` when the node is dead.
    pub(crate) fn outputs(&self, node: NodeId) -> Option<&[bool]> {
        self.nodes.get(&node).map(Vec::as_slice)
    }

    /// Whether a node is live.
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }
}
