//! Products of groups of rows, each group with its own matrix: the experts of a mixture.
//!
//! The rows of a group stand together, groups in order, `sizes` says how many rows each has. A TPU has an operation for it;
//! libtpu 0.0.52 makes of it a product of all rows with all matrices and a mask, G times the work, unless it is compiled
//! with `xla_tpu_enable_ragged_dot_kernel`: then it counts 2·M·K·N, for all three forms below.
//! Elsewhere the rows are walked in tiles that never cross a group: at most M / tile + G steps, each one product of a tile
//! with the matrix of its group, so that the work is that of one M × K × N product plus the unused parts of tiles.
//!
//! Letters: `M` rows, `G` groups, `K` and `N` the dimensions of the matrices.

use ferrotune_pjrt::{DType, Platform};

use crate::arena::{Graph, RegionId};
use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::ops::einsum_text::summed_in;
use crate::ops::inline::Body;
use crate::ops::ragged_tiles::Tiles;
use crate::ops::same_dtype;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

const CHOICE: &str = "ragged product in tiles of rows";

/// What is multiplied, by the dimension that is summed over.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    /// Rows `[M,K]` with matrices `[G,K,N]` → `[M,N]`.
    Rows,
    /// Rows `[M,N]` with matrices `[G,K,N]` → `[M,K]`.
    RowsTransposed,
    /// Rows `[M,K]` with rows `[M,N]` → `[G,K,N]`, summed over the rows of each group.
    Outer,
}

#[derive(Debug)]
struct Ragged {
    form: Form,
    dtype: DType,
    /// The form for devices without an operation of their own.
    portable: Body,
}

impl Ragged {
    fn result(form: Form, dtype: DType, inputs: &[TensorType]) -> Result<TensorType, String> {
        let (a, b, sizes) = (&inputs[0], &inputs[1], &inputs[2]);
        same_dtype(&inputs[..2])?;
        if sizes.dtype != DType::S32 || sizes.rank() != 1 {
            return Err(format!(
                "the sizes of the groups must be s32 [G], not {sizes}"
            ));
        }
        let groups = sizes.dims[0];
        let dims = match (form, &a.dims[..], &b.dims[..]) {
            (Form::Rows, [m, k], [g, k2, n]) if k == k2 && *g == groups => vec![*m, *n],
            (Form::RowsTransposed, [m, n], [g, k, n2]) if n == n2 && *g == groups => vec![*m, *k],
            (Form::Outer, [m, k], [m2, n]) if m == m2 => vec![groups, *k, *n],
            _ => return Err("the dimensions do not fit".to_owned()),
        };
        Ok(TensorType::new(dtype, &dims))
    }

    /// The operation of a TPU, and zeros in the rows that no group has.
    fn emit_whole(&self, out: &mut Emitter<'_>, site: &Site) -> String {
        let (result, sizes) = (&site.output_types[0], &site.input_types[2]);
        let wide = result.with_dtype(summed_in(site.input_types[0].dtype, self.dtype));
        let (lhs, rhs, group) = match self.form {
            Form::Rows => (1, "1", "0"),
            Form::RowsTransposed => (1, "2", "0"),
            Form::Outer => (0, "0", ""),
        };
        let types: Vec<String> = site.input_types.iter().map(TensorType::to_string).collect();
        let mut name = out.assign(format!(
            "\"chlo.ragged_dot\"({}) <{{precision_config = [#chlo<precision DEFAULT>, #chlo<precision DEFAULT>], \
             ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [{lhs}], rhs_contracting_dimensions = [{rhs}], \
             lhs_ragged_dimensions = [0], rhs_group_dimensions = [{group}]>}}> : ({}) -> {wide}",
            site.inputs.join(", "),
            types.join(", ")
        ));
        if wide != *result {
            name = out.assign(format!("stablehlo.convert {name} : ({wide}) -> {result}"));
        }
        if self.form == Form::Outer {
            return name;
        }
        let count = TensorType::new(DType::S32, &[]);
        let (rows, held) = (
            result.with_dtype(DType::S32),
            result.with_dtype(DType::Pred),
        );
        let scalar = TensorType::new(self.dtype, &[]);
        let none = out.assign(format!("stablehlo.constant dense<0> : {count}"));
        let zero = out.assign(format!(
            "stablehlo.constant dense<{}> : {scalar}",
            crate::literal::splat(0.0, self.dtype)
        ));
        let total = out.assign(format!(
            "stablehlo.reduce({} init: {none}) applies stablehlo.add across dimensions = [0] : ({sizes}, {count}) -> {count}",
            site.inputs[2]
        ));
        let row = out.assign(format!("stablehlo.iota dim = 0 : {rows}"));
        let end = out.assign(format!(
            "stablehlo.broadcast_in_dim {total}, dims = [] : ({count}) -> {rows}"
        ));
        let zeros = out.assign(format!(
            "stablehlo.broadcast_in_dim {zero}, dims = [] : ({scalar}) -> {result}"
        ));
        let inside = out.assign(format!(
            "stablehlo.compare LT, {row}, {end}, SIGNED : ({rows}, {rows}) -> {held}"
        ));
        out.assign(format!(
            "stablehlo.select {inside}, {name}, {zeros} : {held}, {result}"
        ))
    }
}

impl Op for Ragged {
    fn name(&self) -> &str {
        match self.form {
            Form::Rows | Form::RowsTransposed => "ragged_dot",
            Form::Outer => "ragged_outer",
        }
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(vec![Self::result(self.form, self.dtype, inputs)?])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let (a, b, sizes) = (&cx.inputs[0], &cx.inputs[1], &cx.inputs[2]);
        let operand = a.dtype();
        let g = &cx.cotangent().convert(operand);
        let of = |form, x: &Tensor, y: &Tensor| ragged(form, x, y, sizes, operand);
        let to_a = || match self.form {
            Form::Rows => of(Form::RowsTransposed, g, b),
            Form::RowsTransposed => of(Form::Rows, g, b),
            Form::Outer => of(Form::RowsTransposed, b, g),
        };
        let to_b = || match self.form {
            Form::Rows => of(Form::Outer, a, g),
            Form::RowsTransposed => of(Form::Outer, g, a),
            Form::Outer => of(Form::Rows, a, g),
        };
        Gradient::Of(vec![cx.needs[0].then(to_a), cx.needs[1].then(to_b), None])
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        if out.platform() == Platform::Tpu {
            return vec![self.emit_whole(out, site)];
        }
        out.chose(CHOICE);
        self.portable.emit(out, &site.inputs, &site.live_outputs)
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let matrix = if self.form == Form::Outer {
            &outputs[0]
        } else {
            &inputs[1]
        };
        let products = inputs[0].dims[0] * matrix.dims[1] * matrix.dims[2];
        Cost {
            flops: 2.0 * products as f64,
            ..Cost::movement(inputs, outputs)
        }
    }

    fn regions(&self) -> Vec<RegionId> {
        vec![self.portable.region()]
    }

    fn is_dot(&self) -> bool {
        true
    }
}

#[track_caller]
fn ragged(form: Form, a: &Tensor, b: &Tensor, sizes: &Tensor, dtype: DType) -> Tensor {
    let types = [a.ty(), b.ty(), sizes.ty()];
    let result = Ragged::result(form, dtype, &types).unwrap_or_else(|why| {
        panic!(
            "`ragged_dot` of {}, {}, {}: {why}",
            types[0], types[1], types[2]
        )
    });
    let portable = Body::trace(a.graph(), &types, |args| {
        let tiles = Tiles::new(&args[2], types[0].dims[0]);
        vec![match form {
            Form::Rows => tiles.rows(&args[0], &args[1], "tk,kn->tn", &result),
            Form::RowsTransposed => tiles.rows(&args[0], &args[1], "tn,kn->tk", &result),
            Form::Outer => tiles.outer(&args[0], &args[1], &result),
        }]
    });
    let op = Ragged {
        form,
        dtype,
        portable,
    };
    a.graph.add_one(op, &[a, b, sizes])
}

/// Sizes between 0 and the number of rows, so that no running sum of them overflows.
#[track_caller]
fn cut(sizes: &Tensor, rows: &Tensor) -> Tensor {
    assert!(
        rows.rank() == 2,
        "grouped rows are [M,K], not {}",
        rows.ty()
    );
    if sizes.dtype() != DType::S32 {
        return sizes.clone(); // `infer` says what is wrong
    }
    let most = sizes.scalar_like(rows.dim(0) as f64);
    sizes.maximum(&sizes.scalar_like(0.0)).minimum(&most)
}

impl Graph {
    /// Rows times the matrix of their group: rows `[M,K]`, matrices `[G,K,N]`, sizes s32 `[G]` → `[M,N]` of `dtype`.
    ///
    /// The first `sizes[0]` rows belong to group 0, the next to group 1, and so on; a group may be empty. Rows after the
    /// last group give zeros; sizes that add up to more than `M` are cut, a negative size counts as 0. `G · M` must fit in s32.
    /// Summed as [`Self::einsum`] sums.
    ///
    /// # Panics
    /// When the dimensions or element types do not fit.
    #[track_caller]
    pub fn ragged_dot(
        &self,
        rows: &Tensor,
        matrices: &Tensor,
        sizes: &Tensor,
        dtype: DType,
    ) -> Tensor {
        ragged(Form::Rows, rows, matrices, &cut(sizes, rows), dtype)
    }

    /// Sum of outer products over the rows of each group: rows `[M,K]` and `[M,N]`, sizes s32 `[G]` → `[G,K,N]` of
    /// `dtype`; the derivative of [`Self::ragged_dot`] by its matrices. An empty group gives zeros.
    ///
    /// # Panics
    /// When the dimensions or element types do not fit.
    #[track_caller]
    pub fn ragged_outer(&self, lhs: &Tensor, rhs: &Tensor, sizes: &Tensor, dtype: DType) -> Tensor {
        ragged(Form::Outer, lhs, rhs, &cut(sizes, lhs), dtype)
    }
}
