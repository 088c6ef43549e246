//! Operations that leave values alone and tell the compiler, the differentiator or the reader something.

use ferrotune_pjrt::Sharding;

use crate::arena::{Arena, Graph};
use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Gives a tensor a name that remat policies and dumps use.
#[derive(Debug)]
struct Named {
    name: String,
}

impl Op for Named {
    fn name(&self) -> &str {
        "named"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(inputs.to_vec())
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        Gradient::one(cx.cotangent().clone())
    }

    fn emit(&self, _: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        site.inputs.clone()
    }

    fn cost(&self, _: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        Cost::default()
    }

    fn given_name(&self) -> Option<&str> {
        Some(&self.name)
    }
}

#[derive(Debug)]
struct StopGradient;

impl Op for StopGradient {
    fn name(&self) -> &str {
        "stop_gradient"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(inputs.to_vec())
    }

    fn vjp(&self, _: &VjpContext) -> Gradient {
        Gradient::Zero("the gradient is stopped here on purpose")
    }

    fn emit(&self, _: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        site.inputs.clone()
    }

    fn cost(&self, _: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        Cost::default()
    }

    fn stops_gradient(&self) -> bool {
        true
    }
}

/// A value that was saved for the backward pass: reads the saved copy (operand 1), differentiates through the node that
/// computed it (operand 0), which is then dead code unless something else needs it.
#[derive(Debug)]
pub(crate) struct Recall;

impl Op for Recall {
    fn name(&self) -> &str {
        "recall"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if inputs[0] != inputs[1] {
            return Err("a saved value has another type than its recomputation".to_owned());
        }
        Ok(vec![inputs[0].clone()])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        Gradient::Of(vec![Some(cx.cotangent().clone()), None])
    }

    fn emit(&self, _: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        vec![site.inputs[1].clone()]
    }

    fn cost(&self, _: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        Cost::default()
    }

    fn live_inputs(&self, _: &Arena, _: &[bool], _: usize) -> Vec<bool> {
        vec![false, true]
    }
}

/// Keeps XLA from moving or merging computations across it.
#[derive(Debug)]
struct Barrier;

impl Op for Barrier {
    fn name(&self) -> &str {
        "optimization_barrier"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(inputs.to_vec())
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        Gradient::Of(cx.cotangents.clone())
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let types: Vec<String> = site.input_types.iter().map(TensorType::to_string).collect();
        out.assign_many(
            site.inputs.len(),
            format!(
                "stablehlo.optimization_barrier {} : {}",
                site.inputs.join(", "),
                types.join(", ")
            ),
        )
    }

    fn cost(&self, _: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        Cost::default()
    }
}

/// Asks the partitioner for a sharding.
#[derive(Debug)]
struct Constraint {
    sharding: Sharding,
}

impl Op for Constraint {
    fn name(&self) -> &str {
        "sharding_constraint"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(inputs.to_vec())
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        Gradient::one(cx.graph.add_one(
            Self {
                sharding: self.sharding.clone(),
            },
            &[cx.cotangent()],
        ))
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        if out.is_local() {
            return site.inputs.clone();
        }
        // Axes of one device split nothing, and a region around may have them for its own.
        let mesh = &out.arena().mesh;
        let splits = |axis: &&String| mesh.axis_size(axis) != Some(1);
        let split = |axes: &Vec<String>| axes.iter().filter(splits).cloned().collect();
        let dims = self.sharding.dims.iter().map(split).collect();
        let dims = crate::emit::sharding_dims(&Sharding { dims });
        vec![out.assign(format!(
            "sdy.sharding_constraint {} <@mesh, {dims}> : {}",
            site.inputs[0], site.output_types[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        Cost::default()
    }
}

impl Tensor {
    /// The same tensor under a name that remat policies and dumps use.
    #[track_caller]
    pub fn named(&self, name: &str) -> Tensor {
        self.graph.add_one(
            Named {
                name: name.to_owned(),
            },
            &[self],
        )
    }

    /// The same values, through which no cotangent passes.
    #[track_caller]
    pub fn stop_gradient(&self) -> Tensor {
        self.graph.add_one(StopGradient, &[self])
    }

    /// Asks for the placement that the rules give to these logical axes (`_` for none).
    ///
    /// # Panics
    /// When an axis has no rule, or the mesh does not divide a dimension.
    #[track_caller]
    pub fn shard(&self, axes: &[&str]) -> Tensor {
        let name = format!("{}/activation", self.graph.name());
        let sharding = self.graph.placement(&name, &self.dims(), axes);
        self.graph.add_one(Constraint { sharding }, &[self])
    }

    /// Asks for this placement.
    ///
    /// # Panics
    /// When it has another rank, an axis that the mesh has not got, one that is manual here, or does not divide a dimension.
    #[track_caller]
    pub fn shard_as(&self, sharding: &Sharding) -> Tensor {
        let manual = self.graph.manual_axes().unwrap_or_default();
        if let Some(axis) = sharding.dims.iter().flatten().find(|a| manual.contains(a)) {
            panic!("`shard_as` would split along the axis `{axis}`, which is manual here");
        }
        if let Err(e) = sharding.local_dims(&self.graph.mesh(), &self.dims()) {
            panic!("{} split as {sharding}: {e}", self.ty());
        }
        let sharding = sharding.clone();
        self.graph.add_one(Constraint { sharding }, &[self])
    }
}

impl Graph {
    /// Passes tensors through a barrier that XLA moves nothing across.
    #[track_caller]
    pub fn barrier(&self, tensors: &[&Tensor]) -> Vec<Tensor> {
        self.add(Barrier, tensors)
    }
}
