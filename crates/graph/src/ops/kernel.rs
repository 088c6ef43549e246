//! Calls of functions of this process, for what XLA's own code for the CPU does badly.
//!
//! A kernel runs on the CPU only, and on data that one device holds. Everywhere else the *portable form* is written, a
//! region that computes the same from operations. Neither is differentiated: a kernel is used inside of
//! [`Graph::custom_vjp`], which gives its derivative.

use ferrotune_pjrt::{Attribute, Kernel, Platform};

use crate::arena::{Arena, Graph, RegionId};
use crate::emit::{Emitter, View};
use crate::liveness::Live;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::ops::list;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Constants of a call, by name.
pub type Attributes = [(&'static str, Attribute)];

/// A kernel together with what must be known of it before it runs.
pub struct KernelRule {
    /// The function.
    pub kernel: Kernel,
    /// Types of its results for types of its operands and for attributes, checked once, when a call is traced. An error
    /// says which of them is wrong and why.
    pub infer: fn(&[TensorType], &Attributes) -> Result<Vec<TensorType>, String>,
    /// Work of one call, from the types of operands and results.
    pub cost: fn(&[TensorType], &[TensorType]) -> Cost,
}

/// Operands: those of the kernel, then captures of the portable form.
struct KernelCall {
    rule: &'static KernelRule,
    attributes: Vec<(&'static str, Attribute)>,
    operands: usize,
    portable: RegionId,
}

impl std::fmt::Debug for KernelCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "kernel `{}` {:?}",
            self.rule.kernel.name, self.attributes
        )
    }
}

impl KernelCall {
    fn write_call(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        out.needs_kernel(&self.rule.kernel);
        let names = site.inputs[..self.operands].iter();
        let replaced = replaced(&self.attributes);
        let operands: Vec<Given> = names
            .zip(&site.input_types)
            .enumerate()
            .map(|(i, (name, ty))| {
                if replaced.iter().any(|(operand, _)| *operand == i) {
                    Given::whole(name, ty)
                } else {
                    Given::new(out, name, ty)
                }
            })
            .collect();
        let text = call_text(
            &self.rule.kernel,
            &self.attributes,
            &operands,
            &site.output_types,
        );
        out.assign_many(site.output_types.len(), text)
    }
}

/// An operand, and the array that holds its elements.
pub(crate) struct Given {
    dims: Vec<usize>,
    view: View,
}

impl Given {
    pub(crate) fn new(out: &Emitter<'_>, name: &str, ty: &TensorType) -> Self {
        Self {
            dims: ty.dims.clone(),
            view: out.view(name, ty),
        }
    }

    fn whole(name: &str, ty: &TensorType) -> Self {
        Self {
            dims: ty.dims.clone(),
            view: View::whole(name, ty),
        }
    }

    /// What the attribute of parts says of operand number `index`, if it is not the whole array.
    fn part(&self, index: usize) -> Vec<usize> {
        if self.view.ty.dims == self.dims {
            return Vec::new();
        }
        let head = [index, self.view.first, self.dims.len()];
        [&head, &self.dims[..]].concat()
    }
}

/// The text of a call. Without layouts, XLA hands over whatever order it finds best. Kernels read row-major arrays.
pub(crate) fn call_text(
    kernel: &Kernel,
    kernel_attributes: &Attributes,
    operands: &[Given],
    output_types: &[TensorType],
) -> String {
    let parts = operands.iter().enumerate().flat_map(|(i, it)| it.part(i));
    let parts: Vec<i64> = parts.map(|number| number as i64).collect();
    let parts = (!parts.is_empty()).then_some((Kernel::PARTS, Attribute::Integers(parts)));
    let attributes: String = kernel_attributes
        .iter()
        .chain(&parts)
        .map(|(name, value)| format!(", {} = {}", crate::literal::quoted(name), value.to_mlir()))
        .collect();
    let aliases = aliases(&replaced(kernel_attributes), output_types.len());
    let types = |types: &[TensorType]| {
        let types: Vec<String> = types.iter().map(TensorType::to_string).collect();
        types.join(", ")
    };
    let inputs: Vec<&str> = operands.iter().map(|it| it.view.of.as_str()).collect();
    let input_types: Vec<TensorType> = operands.iter().map(|it| it.view.ty.clone()).collect();
    format!(
        "stablehlo.custom_call @{}({}) {{api_version = 4 : i32, backend_config = {{kernel = {}{attributes}}}, \
         operand_layouts = {}, {aliases}result_layouts = {}}} : ({}) -> ({})",
        Kernel::TARGET,
        inputs.join(", "),
        crate::literal::quoted(kernel.name),
        row_major(&input_types),
        row_major(output_types),
        types(&input_types),
        types(output_types),
    )
}

/// The operands whose memory results take over, and these results.
fn replaced(attributes: &Attributes) -> Vec<(usize, usize)> {
    let found = attributes
        .iter()
        .find(|(name, _)| *name == Kernel::REPLACES);
    let Some((_, Attribute::Integers(numbers))) = found else {
        return Vec::new();
    };
    let pairs = numbers.as_chunks::<2>().0.iter();
    pairs
        .map(|[operand, result]| (*operand as usize, *result as usize))
        .collect()
}

fn aliases(replaced: &[(usize, usize)], results: usize) -> String {
    if replaced.is_empty() {
        return String::new();
    }
    let alias = |(operand, result): &(usize, usize)| {
        let result = if results == 1 {
            String::new()
        } else {
            result.to_string()
        };
        format!(
            "#stablehlo.output_operand_alias<output_tuple_indices = [{result}], operand_index = {operand}, \
             operand_tuple_indices = []>"
        )
    };
    let aliases: Vec<String> = replaced.iter().map(alias).collect();
    format!("output_operand_aliases = [{}], ", aliases.join(", "))
}

/// `[dense<[1, 0]> : tensor<2xindex>]`, minor dimension first.
fn row_major(types: &[TensorType]) -> String {
    let layout = |ty: &TensorType| {
        let order: Vec<usize> = (0..ty.rank()).rev().collect();
        format!("dense<{}> : tensor<{}xindex>", list(&order), ty.rank())
    };
    let layouts: Vec<String> = types.iter().map(layout).collect();
    format!("[{}]", layouts.join(", "))
}

impl Op for KernelCall {
    fn name(&self) -> &str {
        self.rule.kernel.name
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        (self.rule.infer)(&inputs[..self.operands], &self.attributes)
    }

    fn vjp(&self, _: &VjpContext) -> Gradient {
        Gradient::Refused("a kernel has no derivative of its own; give it one with custom_vjp")
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        if out.platform() == Platform::Cpu && out.is_local() {
            out.chose("kernels of this process are called");
            return self.write_call(out, site);
        }
        out.chose("kernels are written in their portable form");
        let live = Live::of_results(out.arena(), self.portable, &site.live_outputs);
        out.inline(self.portable, &site.inputs, &live, &site.live_outputs)
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        (self.rule.cost)(&inputs[..self.operands], outputs)
    }

    fn regions(&self) -> Vec<RegionId> {
        vec![self.portable]
    }

    fn verify(&self, arena: &Arena, inputs: &[TensorType]) -> Result<(), String> {
        arena.check_params(self.portable, inputs)
    }
}

impl Graph {
    /// Calls a kernel on the CPU; elsewhere, and on data that is split over devices, computes `portable(operands)`.
    ///
    /// Inside of a region that is manual over all axes of the mesh, every device calls the kernel with its own parts. With an
    /// attribute [`Kernel::REPLACES`], results take over the memory of operands; if others read these too, XLA copies them
    /// first.
    ///
    /// # Panics
    /// When the kernel's rule refuses the operands or the attributes, when the portable form returns other types, and when a
    /// result is to replace an operand of another type.
    #[track_caller]
    pub fn kernel(
        &self,
        rule: &'static KernelRule,
        operands: &[&Tensor],
        attributes: &Attributes,
        portable: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let types: Vec<TensorType> = operands.iter().map(|t| t.ty()).collect();
        for (i, (name, _)) in attributes.iter().enumerate() {
            let again = attributes[..i].iter().any(|(other, _)| other == name);
            assert!(
                !["kernel", Kernel::PARTS].contains(name) && !again,
                "an attribute of the kernel `{}` cannot be called `{name}`: the name is taken",
                rule.kernel.name
            );
        }
        let region = self.trace_region(&types, portable);
        let op = KernelCall {
            rule,
            attributes: attributes.to_vec(),
            operands: operands.len(),
            portable: region.id,
        };
        let inputs: Vec<&Tensor> = operands.iter().copied().chain(&region.captures).collect();
        let results = self.add(op, &inputs);
        let found: Vec<TensorType> = results.iter().map(Tensor::ty).collect();
        assert_eq!(
            found,
            self.result_types(region.id),
            "the portable form of the kernel `{}` returns what its rule says",
            rule.kernel.name
        );
        for (operand, result) in replaced(attributes) {
            assert_eq!(
                types.get(operand),
                found.get(result),
                "what the kernel `{}` replaces",
                rule.kernel.name
            );
        }
        results
    }
}
