//! Bodies written in place: for operations that are made of others but bring their own derivative.

use std::collections::HashSet;

use crate::arena::{Arena, Graph, RegionId, Value};
use crate::emit::Emitter;
use crate::liveness::Live;
use crate::op::Cost;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// A traced body without captures: all that it uses are its parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Body {
    region: RegionId,
}

impl Body {
    /// Traces `f` over parameters of the given types.
    #[track_caller]
    pub(crate) fn trace(
        graph: &Graph,
        params: &[TensorType],
        f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Self {
        let closed = graph.trace_region(params, f);
        assert!(
            closed.captures.is_empty(),
            "a body that is written in place takes everything as a parameter"
        );
        Self { region: closed.id }
    }

    /// Writes what the live results need, reading `inputs` for the parameters, and returns the names of the results.
    pub(crate) fn emit(
        self,
        out: &mut Emitter<'_>,
        inputs: &[String],
        live_outputs: &[bool],
    ) -> Vec<String> {
        let region = &out.arena().regions[self.region];
        let wanted: Vec<Value> = region
            .results
            .iter()
            .zip(live_outputs)
            .filter(|(_, live)| **live)
            .map(|(value, _)| *value)
            .collect();
        out.open_block();
        for (node, name) in region.params.iter().zip(inputs) {
            let (node, output) = (*node, 0);
            out.bind(Value { node, output }, name.clone());
        }
        let live = Live::of(out.arena(), self.region, &wanted);
        out.region(self.region, &live, &HashSet::new());
        let names = region
            .results
            .iter()
            .zip(live_outputs)
            .map(|(value, live)| {
                if *live {
                    out.value(*value)
                } else {
                    String::new()
                }
            })
            .collect();
        out.close_block();
        names
    }

    /// Work of all that the results need.
    pub(crate) fn cost(self, arena: &Arena) -> Cost {
        crate::cost::region(arena, self.region)
    }

    pub(crate) fn region(self) -> RegionId {
        self.region
    }
}
