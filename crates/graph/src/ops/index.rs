//! Rows by index: `take` reads rows of a table, `scatter_add_rows` adds into them. Each is the other's derivative.

use crate::arena::Arena;
use crate::emit::Emitter;
use crate::op::{Cost, Gradient, Op, Site, VjpContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

fn table_and_ids(inputs: &[TensorType]) -> Result<(&TensorType, &TensorType), String> {
    let (table, ids) = (&inputs[0], &inputs[1]);
    if table.rank() == 0 {
        return Err("the table must have rows".to_owned());
    }
    if !ids.dtype.is_integer() {
        return Err(format!("row indices must be integers, not {}", ids.dtype));
    }
    Ok((table, ids))
}

/// Row `ids[…]` of the table for every index. Indices outside of the table are clamped, as XLA does.
#[derive(Debug)]
struct Take;

impl Op for Take {
    fn name(&self) -> &str {
        "take"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (table, ids) = table_and_ids(inputs)?;
        let dims: Vec<usize> = ids.dims.iter().chain(&table.dims[1..]).copied().collect();
        Ok(vec![TensorType::new(table.dtype, &dims)])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let (table, ids) = (&cx.inputs[0], &cx.inputs[1]);
        let count: usize = ids.dims().iter().product();
        let row = &table.dims()[1..];
        let g = cx.cotangent().reshape(&[&[count], row].concat());
        let added = table
            .zeros_like()
            .scatter_add_rows(&ids.reshape(&[count]), &g);
        Gradient::Of(vec![Some(added), None])
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let (table, ids, to) = (
            &site.input_types[0],
            &site.input_types[1],
            &site.output_types[0],
        );
        let offsets: Vec<String> = (ids.rank()..to.rank()).map(|d| d.to_string()).collect();
        let mut sizes = table.dims.clone();
        sizes[0] = 1;
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        vec![out.assign(format!(
            "\"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<offset_dims = [{}], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {}>, \
             indices_are_sorted = false, slice_sizes = array<i64: {}>}}> : ({table}, {ids}) -> {to}",
            site.inputs[0],
            site.inputs[1],
            offsets.join(", "),
            ids.rank(),
            sizes.join(", ")
        ))]
    }

    fn cost(&self, _: &Arena, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let _ = inputs;
        Cost {
            bytes: 2.0 * outputs[0].bytes() as f64,
            ..Cost::default()
        }
    }
}

/// The table with `updates[i]` added to row `ids[i]`; equal indices add up.
#[derive(Debug)]
struct ScatterAddRows;

impl Op for ScatterAddRows {
    fn name(&self) -> &str {
        "scatter_add_rows"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let (table, ids) = table_and_ids(inputs)?;
        let updates = &inputs[2];
        if ids.rank() != 1 {
            return Err("row indices must have one dimension".to_owned());
        }
        if updates.dtype != table.dtype
            || updates.rank() != table.rank()
            || updates.dims[0] != ids.dims[0]
            || updates.dims[1..] != table.dims[1..]
        {
            return Err("the updates must be one row of the table for each index".to_owned());
        }
        Ok(vec![table.clone()])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let g = cx.cotangent();
        Gradient::Of(vec![Some(g.clone()), None, Some(g.take(&cx.inputs[1]))])
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let [table, ids, updates] = &site.input_types[..] else {
            unreachable!("scatter has three operands")
        };
        let scalar = TensorType::new(table.dtype, &[]);
        let window: Vec<String> = (1..table.rank()).map(|d| d.to_string()).collect();
        vec![out.assign(format!(
            "\"stablehlo.scatter\"({}) <{{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [{}], inserted_window_dims = [0], \
             scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}}> ({{ ^bb0(%x: {scalar}, %y: {scalar}): \
             %s = stablehlo.add %x, %y : {scalar} stablehlo.return %s : {scalar} }}) : ({table}, {ids}, {updates}) -> {table}",
            site.inputs.join(", "),
            window.join(", ")
        ))]
    }

    fn cost(&self, _: &Arena, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            flops: inputs[2].elements() as f64,
            ..Cost::movement(inputs, outputs)
        }
    }
}

impl Tensor {
    /// Rows of this table by index: table `[N, …]`, ids `[I…]` integers → `[I…, …]`.
    ///
    /// Indices outside of the table are clamped by XLA: check them on the host.
    #[track_caller]
    pub fn take(&self, ids: &Tensor) -> Tensor {
        self.graph.add_one(Take, &[self, ids])
    }

    /// Adds `updates[i]` to row `ids[i]`: table `[N, …]`, ids `[I]`, updates `[I, …]`.
    #[track_caller]
    pub fn scatter_add_rows(&self, ids: &Tensor, updates: &Tensor) -> Tensor {
        self.graph.add_one(ScatterAddRows, &[self, ids, updates])
    }

    /// The element of the last axis that `ids` names: `[…, V]`, `[…]` integers → `[…]`.
    ///
    /// Selected by comparison and summed, so that neither it nor its derivative gathers or scatters. An index outside of
    /// the axis picks 0.
    #[track_caller]
    pub fn pick_last(&self, ids: &Tensor) -> Tensor {
        let dims = self.dims();
        let last = dims.len() - 1;
        let hit = self
            .graph
            .iota(ids.dtype(), &dims, last)
            .eq(&ids.expand(last));
        hit.select(self, &self.scalar_like(0.0)).sum(&[last])
    }
}
