//! Building a manual region, and what may be asked inside of it.

use ferrotune_pjrt::{DType, Mesh, Sharding};

use crate::arena::{ClosedRegion, Graph, Value};
use crate::control::manual::{Manual, ManualScope};
use crate::remat::{Kept, Policy};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// The number of devices along some axes of a mesh.
pub(super) fn devices_along<S: AsRef<str>>(mesh: &Mesh, axes: &[S]) -> usize {
    let sizes = axes.iter().map(|a| mesh.axis_size(a.as_ref()));
    sizes
        .map(|size| size.expect("the axes are checked"))
        .product()
}

/// Refuses an axis that is not among `known`, or named twice. `who` begins the message.
#[track_caller]
fn check_axes(who: &str, axes: &[&str], kind: &str, known: &[String]) {
    for (i, axis) in axes.iter().enumerate() {
        assert!(
            known.iter().any(|k| k == axis),
            "{who} names the axis `{axis}`, which is not {kind}; {}",
            match known {
                [] => "there is none".to_owned(),
                known => format!("there are: {}", known.join(", ")),
            }
        );
        assert!(
            !axes[..i].contains(axis),
            "{who} names the axis `{axis}` twice"
        );
    }
}

/// Refuses a sharding of another rank, with an axis that is not manual or used twice, or that does not divide.
#[track_caller]
fn check_sharding(
    who: &str,
    ty: &TensorType,
    sharding: &Sharding,
    axes: &[&str],
    mesh: &Mesh,
) -> Vec<usize> {
    let known: Vec<String> = axes.iter().map(|a| (*a).to_owned()).collect();
    for named in &sharding.dims {
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        check_axes(
            &format!("the sharding of {who}"),
            &named,
            "a manual axis of the region",
            &known,
        );
    }
    match sharding.local_dims(mesh, &ty.dims) {
        Ok(dims) => dims,
        Err(e) => panic!("{who}, {ty} split as {sharding}: {e}"),
    }
}

impl Graph {
    /// Runs `f` on every device along the mesh axes `axes`, each with its own parts of the inputs.
    ///
    /// `inputs` says which of the axes split which dimension of each input; along axes that a sharding does not mention,
    /// every device gets the same part. `f` gets tensors with the dimensions of one part, and its results are joined by
    /// `outputs` in the same way: **along axes that the sharding of a result does not mention, all devices must compute
    /// equal values**, for instance by [`Tensor::all_reduce`]; any of them may be taken. Tensors that `f` uses from
    /// outside are inputs which no axis splits. Axes of the mesh that are not named stay automatic; inside, another region may
    /// make them manual too.
    ///
    /// **All devices must come to the same collectives in the same order**: one that does not leaves the others waiting.
    ///
    /// Derivatives are those of the whole map from inputs to results. Derivatives taken inside of `f` are, on each
    /// device, those of the sum over all devices of what is differentiated.
    ///
    /// # Panics
    /// When the mesh has no such axis or one is named twice, a sharding has another rank than its tensor, uses an axis
    /// that is not in `axes` or does not divide a dimension, `f` returns another number of tensors than `outputs` has,
    /// or when an axis is manual already, in a region around this one.
    #[track_caller]
    pub fn manual(
        &self,
        axes: &[&str],
        inputs: &[(&Tensor, Sharding)],
        outputs: &[Sharding],
        f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let mesh = self.mesh();
        self.check_manual_axes(axes, &mesh);
        let mut params = vec![TensorType::new(DType::S32, &[1]); axes.len()];
        let mut operands: Vec<Sharding> = axes
            .iter()
            .map(|axis| Sharding {
                dims: vec![vec![(*axis).to_owned()]],
            })
            .collect();
        for (i, (tensor, sharding)) in inputs.iter().enumerate() {
            let (who, ty) = (format!("input {i} of `manual`"), tensor.ty());
            let dims = check_sharding(&who, &ty, sharding, axes, &mesh);
            params.push(TensorType::new(ty.dtype, &dims));
            operands.push(sharding.clone());
        }

        let (region, kept) = self.trace_parts(axes, &params, outputs.len(), f);
        let captured = region.captures.iter().map(Tensor::rank);
        operands.extend(captured.map(Sharding::replicated));
        let parts = self.result_types(region.id);
        let hidden = parts[outputs.len()..].iter().map(|part| {
            let mut stacked = Sharding::replicated(part.rank());
            stacked.dims[0] = axes.iter().map(|a| (*a).to_owned()).collect();
            stacked
        });
        let results: Vec<Sharding> = outputs.iter().cloned().chain(hidden).collect();
        let mut types = Vec::with_capacity(parts.len());
        for (k, (part, sharding)) in parts.iter().zip(&results).enumerate() {
            types.push(joined(k, part, sharding, axes, &mesh));
        }

        let op = Manual {
            body: region.id,
            axes: axes.iter().map(|a| (*a).to_owned()).collect(),
            devices: devices_along(&mesh, axes),
            operands,
            types,
            results,
            outputs: outputs.len(),
            kept,
        };
        let positions: Vec<Tensor> = axes
            .iter()
            .map(|axis| self.iota(DType::S32, &[devices_along(&mesh, &[axis])], 0))
            .collect();
        let tensors: Vec<&Tensor> = positions
            .iter()
            .chain(inputs.iter().map(|(tensor, _)| *tensor))
            .chain(&region.captures)
            .collect();
        let mut found = self.add(op, &tensors);
        found.truncate(outputs.len());
        found
    }

    /// Refuses axes that the mesh has not got, and those of regions around.
    #[track_caller]
    fn check_manual_axes(&self, axes: &[&str], mesh: &Mesh) {
        let known: Vec<String> = mesh.axes().iter().map(|(name, _)| name.clone()).collect();
        check_axes("`manual`", axes, "an axis of the mesh", &known);
        let outer = self.manual_axes().unwrap_or_default();
        if let Some(axis) = axes.iter().find(|axis| outer.iter().any(|o| o == *axis)) {
            panic!("`manual` names the axis `{axis}`, which is manual here already");
        }
    }

    /// Traces the body on parts of the given types; its results are followed by the kept values, which are returned.
    #[track_caller]
    fn trace_parts(
        &self,
        axes: &[&str],
        params: &[TensorType],
        outputs: usize,
        f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> (ClosedRegion, Vec<Kept>) {
        let mut kept = Vec::new();
        let mut returned = 0;
        let region = self.trace_region(params, |args| {
            let (positions, inputs) = args.split_at(axes.len());
            self.open_manual_scope(ManualScope {
                axes: axes.iter().map(|a| (*a).to_owned()).collect(),
                positions: positions.iter().map(|t| t.value).collect(),
            });
            let mut results = f(inputs);
            returned = results.len();
            kept = self.choose(&Policy::keep_all(), &[]).others;
            results.extend(kept.iter().map(|k| self.kept_part(k.value)));
            results
        });
        assert!(
            returned == outputs,
            "the body of `manual` returns one tensor per output sharding: {returned} for {outputs}"
        );
        (region, kept)
    }

    /// A value as one element of the array that stacks it over all devices.
    fn kept_part(&self, value: Value) -> Tensor {
        let tensor = Tensor {
            graph: self.clone(),
            value,
        };
        tensor.reshape(&[&[1], &tensor.dims()[..]].concat())
    }

    /// Axes that are manual where the next node goes, those of the innermost region first; `None` outside of manual regions.
    pub fn manual_axes(&self) -> Option<Vec<String>> {
        let arena = self.0.borrow();
        let mut scopes = arena.manual_scopes().peekable();
        scopes.peek()?;
        Some(scopes.flat_map(|scope| scope.axes.clone()).collect())
    }

    /// Axes of the mesh that are not manual where the next node goes, in the order of the mesh.
    pub fn automatic_axes(&self) -> Vec<String> {
        let manual = self.manual_axes().unwrap_or_default();
        let mesh = self.mesh();
        let names = mesh.axes().iter().map(|(name, _)| name);
        names
            .filter(|name| !manual.contains(name))
            .cloned()
            .collect()
    }

    /// Whether tensors are whole on each device where the next node goes: there is one device, or all mesh axes are manual.
    pub fn is_local(&self) -> bool {
        devices_along(&self.mesh(), &self.automatic_axes()) == 1
    }

    /// The parameters that hold this device's index along each manual axis, s32 of one element, in the order of
    /// [`Self::manual_axes`].
    pub(super) fn positions(&self) -> Vec<Tensor> {
        let values: Vec<Value> = {
            let arena = self.0.borrow();
            let scopes = arena.manual_scopes();
            scopes.flat_map(|scope| scope.positions.clone()).collect()
        };
        values
            .into_iter()
            .map(|value| {
                self.localize(&Tensor {
                    graph: self.clone(),
                    value,
                })
            })
            .collect()
    }

    /// The number of devices along axes that must be manual here; `who` asks.
    #[track_caller]
    pub(crate) fn manual_devices(&self, who: &str, axes: &[&str]) -> usize {
        match self.manual_axes() {
            Some(known) => check_axes(&format!("`{who}`"), axes, "manual here", &known),
            None => panic!("`{who}` stands outside of any manual region"),
        }
        devices_along(&self.mesh(), axes)
    }

    /// This device's number along `axes`, row-major in the order given: an s32 scalar.
    ///
    /// # Panics
    /// Outside of a manual region, and when an axis is not manual there or is named twice.
    #[track_caller]
    pub fn axis_index(&self, axes: &[&str]) -> Tensor {
        self.manual_devices("axis_index", axes);
        let (mesh, known) = (self.mesh(), self.manual_axes().unwrap_or_default());
        let positions = self.positions();
        let position = |axis: &str| {
            let at = known
                .iter()
                .position(|k| k == axis)
                .expect("the axes are checked");
            positions[at].reshape(&[])
        };
        let mut index = None;
        for axis in axes {
            index = Some(match index {
                None => position(axis),
                Some(major) => major * devices_along(&mesh, &[axis]) as f64 + position(axis),
            });
        }
        index.unwrap_or_else(|| self.scalar(0.0, DType::S32))
    }
}

/// The type of result `k`, whose parts have type `part`.
#[track_caller]
fn joined(
    k: usize,
    part: &TensorType,
    sharding: &Sharding,
    axes: &[&str],
    mesh: &Mesh,
) -> TensorType {
    let mut whole = part.clone();
    for (size, split) in whole.dims.iter_mut().zip(&sharding.dims) {
        let parts = split.iter().filter_map(|axis| mesh.axis_size(axis));
        // Sizes that cannot be counted are refused when the node is added.
        *size = size.saturating_mul(parts.product::<usize>());
    }
    check_sharding(
        &format!("output {k} of `manual`"),
        &whole,
        sharding,
        axes,
        mesh,
    );
    whole
}
