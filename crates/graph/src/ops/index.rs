//! Elements by index along one axis: `take_along` reads them, `scatter_add_along` adds into them. Each is the other's
//! derivative. `take` and `scatter_add_rows` are the same along the first axis, and a permutation of rows needs neither.
//!
//! Letters: `B…` leading dimensions that table and indices share (batching), `N` the indexed axis, `I…` the dimensions
//! of the indices, `D…` what stands at each index. Reading: table `[B…,N,D…]`, ids `[B…,I…]` → `[B…,I…,D…]`.

use crate::arena::Arena;
use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Dimensions of what stands at the indices, `[B…,I…,D…]`.
fn indexed_dims(table: &TensorType, ids: &TensorType, axis: usize) -> Result<Vec<usize>, String> {
    if axis >= table.rank() {
        return Err(format!("axis {axis} of {table}"));
    }
    if !ids.dtype.is_integer() {
        return Err(format!("indices must be integers, not {}", ids.dtype));
    }
    if ids.rank() < axis || ids.dims[..axis] != table.dims[..axis] {
        return Err(format!(
            "the indices {ids} must begin with the dimensions {:?} that stand before axis {axis}",
            &table.dims[..axis]
        ));
    }
    if table.dims[axis] == 0 && ids.elements() > 0 {
        return Err(format!("axis {axis} has no elements to index"));
    }
    Ok([&ids.dims[..], &table.dims[axis + 1..]].concat())
}

fn numbers(items: impl Iterator<Item = usize>) -> String {
    items.map(|d| d.to_string()).collect::<Vec<_>>().join(", ")
}

/// Attributes for leading dimensions that two operands share; nothing where there are none.
fn batching(operand: &str, indices: &str, axis: usize) -> String {
    if axis == 0 {
        return String::new();
    }
    let dims = numbers(0..axis);
    format!("{operand} = [{dims}], {indices} = [{dims}], ")
}

/// What stands at `ids` along the axis.
#[derive(Debug)]
struct Take {
    axis: usize,
}

impl Op for Take {
    fn name(&self) -> &str {
        "take"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let dims = indexed_dims(&inputs[0], &inputs[1], self.axis)?;
        Ok(vec![TensorType::new(inputs[0].dtype, &dims)])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let (table, ids) = (&cx.inputs[0], &cx.inputs[1]);
        let added = table
            .zeros_like()
            .scatter_add_along(self.axis, ids, cx.cotangent());
        Gradient::Of(vec![Some(added), None])
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let (table, ids) = (&site.input_types[0], &site.input_types[1]);
        let (to, axis) = (&site.output_types[0], self.axis);
        if to.elements() == 0 {
            // A gather reads one element at least, which an empty table has not got.
            let zero = crate::literal::splat(0.0, to.dtype);
            return vec![out.assign(format!("stablehlo.constant dense<{zero}> : {to}"))];
        }
        let mut sizes = vec![1; axis + 1];
        sizes.extend(&table.dims[axis + 1..]);
        vec![out.assign(format!(
            "\"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<offset_dims = [{}], collapsed_slice_dims = [{axis}], {}start_index_map = [{axis}], index_vector_dim = {}>, \
             indices_are_sorted = false, slice_sizes = array<i64: {}>}}> : ({table}, {ids}) -> {to}",
            site.inputs[0],
            site.inputs[1],
            numbers(ids.rank()..to.rank()),
            batching("operand_batching_dims", "start_indices_batching_dims", axis),
            ids.rank(),
            numbers(sizes.into_iter())
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            bytes: (inputs[1].bytes() + 2 * outputs[0].bytes()) as f64,
            ..Cost::default()
        }
    }
}

/// The table with updates added where `ids` say; equal indices add up.
#[derive(Debug)]
struct ScatterAdd {
    axis: usize,
}

impl Op for ScatterAdd {
    fn name(&self) -> &str {
        "scatter_add"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (table, updates) = (&inputs[0], &inputs[2]);
        let dims = indexed_dims(table, &inputs[1], self.axis)?;
        if updates.dtype != table.dtype || updates.dims != dims {
            return Err(format!(
                "the updates must be {}",
                TensorType::new(table.dtype, &dims)
            ));
        }
        Ok(vec![table.clone()])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let g = cx.cotangent();
        let read = cx.needs[2].then(|| g.take_along(self.axis, &cx.inputs[1]));
        Gradient::Of(vec![Some(g.clone()), None, read])
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let [table, ids, updates] = &site.input_types[..] else {
            unreachable!("scatter has three operands")
        };
        let axis = self.axis;
        let scalar = TensorType::new(table.dtype, &[]);
        vec![out.assign(format!(
            "\"stablehlo.scatter\"({}) <{{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [{}], inserted_window_dims = [{axis}], \
             {}scatter_dims_to_operand_dims = [{axis}], index_vector_dim = {}>, unique_indices = false}}> ({{ ^bb0(%x: {scalar}, %y: {scalar}): \
             %s = stablehlo.add %x, %y : {scalar} stablehlo.return %s : {scalar} }}) : ({table}, {ids}, {updates}) -> {table}",
            site.inputs.join(", "),
            numbers(ids.rank()..updates.rank()),
            batching("input_batching_dims", "scatter_indices_batching_dims", axis),
            ids.rank(),
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            flops: inputs[2].elements() as f64,
            ..Cost::movement(inputs, outputs)
        }
    }
}

/// Rows in another order. Operands: the rows, the permutation, its inverse.
#[derive(Debug)]
struct PermuteRows;

impl Op for PermuteRows {
    fn name(&self) -> &str {
        "permute_rows"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        for ids in &inputs[1..] {
            let dims = indexed_dims(&inputs[0], ids, 0)?;
            if dims != inputs[0].dims {
                return Err(format!("a permutation has one index per row, not {ids}"));
            }
        }
        Ok(vec![inputs[0].clone()])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let back = cx.cotangent().permute_rows(&cx.inputs[2], &cx.inputs[1]);
        Gradient::Of(vec![Some(back), None, None])
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        Take { axis: 0 }.emit(out, site)
    }

    fn cost(&self, cx: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Take { axis: 0 }.cost(cx, inputs, outputs)
    }

    fn live_inputs(&self, _: &Arena, _: &[bool], _: usize) -> Vec<bool> {
        vec![true, true, false]
    }
}

impl Tensor {
    /// What stands at `ids` along `axis`: `[B…,N,D…]`, ids `[B…,I…]` integers → `[B…,I…,D…]`, with `B…` all dimensions
    /// before the axis.
    ///
    /// The label pick `[T,V]`, `[T]` → `[T]` is `take_along(1, labels)`. Indices outside of `0..N` are clamped by XLA when
    /// they are read and dropped when their cotangents are added: check them on the host.
    ///
    /// # Panics
    /// When the axis is not there, the indices are not integers, or do not begin with `B…`.
    #[track_caller]
    pub fn take_along(&self, axis: usize, ids: &Tensor) -> Tensor {
        self.graph.add_one(Take { axis }, &[self, ids])
    }

    /// This tensor with `updates` added where `ids` say: `[B…,N,D…]`, ids `[B…,I…]`, updates `[B…,I…,D…]`.
    ///
    /// Equal indices add up, in no stated order. Updates whose index is outside of `0..N` are dropped.
    ///
    /// # Panics
    /// As [`Self::take_along`] does, and when the updates are of another type.
    #[track_caller]
    pub fn scatter_add_along(&self, axis: usize, ids: &Tensor, updates: &Tensor) -> Tensor {
        let scatter = ScatterAdd { axis };
        self.graph.add_one(scatter, &[self, ids, updates])
    }

    /// Rows of this table by index: table `[N,D…]`, ids `[I…]` integers → `[I…,D…]`; see [`Self::take_along`].
    #[track_caller]
    pub fn take(&self, ids: &Tensor) -> Tensor {
        self.take_along(0, ids)
    }

    /// Adds `updates[i]` to row `ids[i]`: table `[N,D…]`, ids `[I…]`, updates `[I…,D…]`; see [`Self::scatter_add_along`].
    #[track_caller]
    pub fn scatter_add_rows(&self, ids: &Tensor, updates: &Tensor) -> Tensor {
        self.scatter_add_along(0, ids, updates)
    }

    /// Rows `[N,D…]` in another order: row `i` of the result is row `permutation[i]`.
    ///
    /// `inverse` undoes `permutation` (`inverse[permutation[i]] = i`; both `[N]` integers). With it the derivative reads
    /// rows instead of scattering them. That the two fit is not checked.
    #[track_caller]
    pub fn permute_rows(&self, permutation: &Tensor, inverse: &Tensor) -> Tensor {
        let operands = [self, permutation, inverse];
        self.graph.add_one(PermuteRows, &operands)
    }

    /// The element of the last axis that `ids` names: `[…,V]`, `[…]` integers → `[…]`.
    ///
    /// Selected by comparison and summed, so that neither it nor its derivative gathers or scatters. An index outside of
    /// the axis picks 0.
    ///
    /// # Panics
    /// When this is a scalar, or the ids are not integers with all dimensions but the last.
    #[track_caller]
    pub fn pick_last(&self, ids: &Tensor) -> Tensor {
        let dims = self.dims();
        assert!(
            !dims.is_empty(),
            "`pick_last`: a scalar has no axis to pick from"
        );
        let last = dims.len() - 1;
        assert!(
            ids.dtype().is_integer() && ids.dims() == dims[..last],
            "`pick_last` of {}: the ids must be integers of dimensions {:?}, not {}",
            self.ty(),
            &dims[..last],
            ids.ty()
        );
        let hit = self
            .graph
            .iota(ids.dtype(), &dims, last)
            .eq(&ids.expand(last));
        hit.select(self, &self.scalar_like(0.0)).sum(&[last])
    }
}
