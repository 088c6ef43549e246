//! Bodies written in place: for operations that are made of others but bring their own derivative.

use crate::arena::{Arena, Graph, RegionId};
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
        let live = Live::of_results(out.arena(), self.region, live_outputs);
        out.inline(self.region, inputs, &live, live_outputs)
    }

    /// Work of all that the results need.
    pub(crate) fn cost(self, arena: &Arena) -> Cost {
        let live = Live::of(arena, self.region, &arena.regions[self.region].results);
        crate::cost::region(arena, self.region, &live)
    }

    pub(crate) fn region(self) -> RegionId {
        self.region
    }
}
