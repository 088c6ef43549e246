//! What an operation is: four rules in one place (`infer`, `vjp`, `emit`, `cost`).
//!
//! The trait has no default for any of the four, so an operation without a derivative or a cost does not compile.

use std::fmt;

use crate::arena::{Arena, Graph, RegionId};
use crate::emit::Emitter;
use crate::remat::Saved;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// One operation of the language, with all that the tracer, the differentiator and the emitter need to know of it.
pub trait Op: fmt::Debug {
    /// Short name for dumps and error messages, such as `dot` or `exponential`.
    fn name(&self) -> &str;

    /// Result types for operand types.
    ///
    /// # Errors
    /// A sentence that says which operand is wrong and why; the tracer adds the place.
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String>;

    /// Cotangents of the operands from cotangents of the results (reverse mode).
    fn vjp(&self, cx: &VjpContext) -> Gradient;

    /// Writes StableHLO and returns the names of the results.
    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String>;

    /// Work done by one execution for the results that are read; bodies of loops are counted with their trip counts.
    fn cost(&self, cx: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost;

    /// Regions (loop bodies) that belong to this operation.
    fn regions(&self) -> Vec<RegionId> {
        Vec::new()
    }

    /// Which operands matter when only some results are used. Operations with regions narrow this.
    fn live_inputs(&self, _arena: &Arena, _live_outputs: &[bool], inputs: usize) -> Vec<bool> {
        vec![true; inputs]
    }

    /// True for constants: they have no operands and are repeated where they are used, never captured by a region.
    fn is_leaf(&self) -> bool {
        false
    }

    /// True for contractions, which [`Policy::keep_dots`](crate::Policy::keep_dots) keeps for the backward pass.
    fn is_dot(&self) -> bool {
        false
    }

    /// Checks regions against operands; called by the verifier.
    ///
    /// # Errors
    /// A sentence about the first disagreement.
    fn verify(&self, _arena: &Arena, _inputs: &[TensorType]) -> Result<(), String> {
        Ok(())
    }

    /// What it keeps for its derivative when `live_outputs` are read.
    fn saved(&self, _arena: &Arena, _live_outputs: &[bool]) -> Vec<Saved> {
        Vec::new()
    }

    /// True when no cotangent passes, so that results do not count as depending on the operands.
    fn stops_gradient(&self) -> bool {
        false
    }

    /// The name given by [`Tensor::named`], for policies and dumps.
    fn given_name(&self) -> Option<&str> {
        None
    }
}

/// Where an operation stands when it is written out: operand names, types, and which results anybody reads.
pub struct Site {
    /// SSA names of the operands; empty strings where the operand is not live.
    pub inputs: Vec<String>,
    /// Types of the operands.
    pub input_types: Vec<TensorType>,
    /// Types of the results.
    pub output_types: Vec<TensorType>,
    /// Results that are read by somebody.
    pub live_outputs: Vec<bool>,
}

/// What a reverse-mode rule may use.
pub struct VjpContext {
    /// The graph that new nodes are added to.
    pub graph: Graph,
    /// Operands of the differentiated node.
    pub inputs: Vec<Tensor>,
    /// Its results.
    pub outputs: Vec<Tensor>,
    /// Cotangent of each result; `None` is zero.
    pub cotangents: Vec<Option<Tensor>>,
    /// Which operands need a cotangent; rules may compute only these.
    pub needs: Vec<bool>,
}

impl VjpContext {
    /// The first `outputs` results that have a cotangent, by number.
    pub(crate) fn given(&self, outputs: usize) -> Vec<usize> {
        (0..outputs)
            .filter(|i| self.cotangents[*i].is_some())
            .collect()
    }

    /// An answer for some operands, by number; the others have none.
    pub(crate) fn answer(&self, found: impl IntoIterator<Item = (usize, Tensor)>) -> Gradient {
        let mut answer = vec![None; self.inputs.len()];
        for (i, cotangent) in found {
            answer[i] = Some(cotangent);
        }
        Gradient::Of(answer)
    }

    /// Cotangent of the only result of a single-result operation.
    pub fn cotangent(&self) -> &Tensor {
        self.cotangents[0]
            .as_ref()
            .expect("the differentiator calls a rule only when some result has a cotangent")
    }
}

/// Where an operation stands when its work is counted.
pub struct CostContext<'a> {
    /// The program.
    pub arena: &'a Arena,
    /// Results that are read by somebody.
    pub live_outputs: &'a [bool],
}

/// What a reverse-mode rule answers.
pub enum Gradient {
    /// One cotangent per operand; `None` is zero.
    Of(Vec<Option<Tensor>>),
    /// The derivative is zero everywhere that it exists, for this reason.
    Zero(&'static str),
    /// Differentiating through this operation is an error, for this reason.
    Refused(&'static str),
}

impl Gradient {
    /// The answer of a one-operand rule.
    pub fn one(cotangent: Tensor) -> Self {
        Self::Of(vec![Some(cotangent)])
    }
}

/// Work of an operation or a program, counted, not measured. All but `collective_bytes` is summed over the devices.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Cost {
    /// Floating-point operations; a multiply-add counts as two.
    pub flops: f64,
    /// Evaluations of exp, log, tanh and the like.
    pub transcendentals: f64,
    /// Bytes of operands read and results written, as if nothing were fused.
    pub bytes: f64,
    /// Bytes that one device sends in the collectives of manual regions, by ring algorithms. Exchanges that the
    /// partitioner adds are not counted; a tensor that it splits inside a partly manual region counts as whole.
    pub collective_bytes: f64,
}

impl Cost {
    /// Cost of an operation that only moves data.
    pub fn movement(inputs: &[TensorType], outputs: &[TensorType]) -> Self {
        let bytes = inputs.iter().chain(outputs).map(|t| t.bytes() as f64).sum();
        Self {
            bytes,
            ..Self::default()
        }
    }

    /// Cost of `per_element` operations for each element of the first result.
    pub fn elementwise(per_element: f64, inputs: &[TensorType], outputs: &[TensorType]) -> Self {
        Self {
            flops: per_element * outputs[0].elements() as f64,
            ..Self::movement(inputs, outputs)
        }
    }

    /// The sum of two costs.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            flops: self.flops + other.flops,
            transcendentals: self.transcendentals + other.transcendentals,
            bytes: self.bytes + other.bytes,
            collective_bytes: self.collective_bytes + other.collective_bytes,
        }
    }

    /// The cost of `times` executions.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        let times = times as f64;
        Self {
            flops: self.flops * times,
            transcendentals: self.transcendentals * times,
            bytes: self.bytes * times,
            collective_bytes: self.collective_bytes * times,
        }
    }
}
