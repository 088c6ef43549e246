//! The passes over the vocabulary as kernels of this process, for the CPU: there XLA would write logits to memory, and walk over
//! them once for each sum.

use ferrotune_cpu::{Lent, LogitSlope, Matrix, Number, Scored, Threads, Vocabulary, lend};
use ferrotune_graph::{
    Attributes, Cost, DType, Kernel, KernelCall, KernelInput, KernelOutput, KernelRule, Tensor,
    TensorType,
};
use ferrotune_pjrt::{Attribute, Element};
use half::bf16;

use super::projection::Projection;
use super::slopes::RowSlopes;
use crate::by_type::has_kernels;

/// Entries of a tile, at most: it is read, multiplied and differentiated in a core's cache.
const TILE: usize = 512;

/// What a pass is made of.
pub(super) struct Pass<'a> {
    /// Hidden states `[…,D]`.
    pub(super) x: &'a Tensor,
    /// `[…]`: targets, and which tokens count.
    pub(super) targets: &'a Tensor,
    pub(super) mask: &'a Tensor,
    pub(super) projection: &'a Projection,
    pub(super) temperature: f64,
    /// Entries that may be looked at together.
    pub(super) vocab_chunk: usize,
}

impl Pass<'_> {
    /// Whether there are kernels for it: not for f64, nor where weights have to be gathered.
    pub(super) fn has_kernels(&self) -> bool {
        let here = self.projection;
        let types = [self.x.dtype(), here.weight.dtype()];
        here.is_whole() && types.into_iter().all(has_kernels)
    }

    fn attributes(&self) -> [(&'static str, Attribute); 3] {
        [
            ("tied", Attribute::Flag(self.projection.tied)),
            ("scale", Attribute::Number(1.0 / self.temperature)),
            (
                "tile",
                Attribute::Integer(self.vocab_chunk.min(TILE) as i64),
            ),
        ]
    }

    fn operands(&self) -> [&Tensor; 4] {
        [self.x, &self.projection.weight, self.targets, self.mask]
    }

    /// What [`Running`](super::fused::Running) knows in the end.
    #[track_caller]
    pub(super) fn score(&self, portable: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> Vec<Tensor> {
        let g = self.x.graph();
        g.kernel(&SCORE, &self.operands(), &self.attributes(), portable)
    }

    /// The same, and what [`Self::gradients_of_kept`] wants: `[n,V]` of the logits, and `tiles × n` more numbers. What they
    /// are is between the two: kernels keep logits, whose exponentials they form again, and leave the other numbers alone.
    #[track_caller]
    pub(super) fn score_and_keep(
        &self,
        tiles: usize,
        portable: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let [tied, scale, tile] = self.attributes();
        let attributes = [
            tied,
            scale,
            tile,
            ("tiles", Attribute::Integer(tiles as i64)),
        ];
        let g = self.x.graph();
        g.kernel(&SCORE_AND_KEEP, &self.operands(), &attributes, portable)
    }

    /// Gradients by hidden states and by weights, in f32.
    #[track_caller]
    pub(super) fn gradients(
        &self,
        rows: &RowSlopes,
        portable: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let operands = [&self.operands()[..], &rows.parts()].concat();
        let g = self.x.graph();
        g.kernel(&GRADIENTS, &operands, &self.attributes(), portable)
    }

    /// The same from what was kept; the gradient by weights is added to `dw`.
    #[track_caller]
    pub(super) fn gradients_of_kept(
        &self,
        rows: &RowSlopes,
        kept: [&Tensor; 2],
        dw: &Tensor,
        portable: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let [tied, scale, tile] = self.attributes();
        let operands = [&self.operands()[..], &[dw], &kept, &rows.parts()].concat();
        let in_place = (Kernel::REPLACES, Attribute::Integers(vec![4, 1]));
        let attributes = [tied, scale, tile, in_place];
        let g = self.x.graph();
        g.kernel(&GRADIENTS_OF_KEPT, &operands, &attributes, portable)
    }
}

/// The sizes of a call: `[…]` of its tokens, how many these are, and entries.
struct Sizes {
    tokens: Vec<usize>,
    count: usize,
    entries: usize,
}

impl Sizes {
    /// Checks what every pass gets, and `rows` after it.
    fn of(
        inputs: &[TensorType],
        attributes: &Attributes,
        rows: &[TensorType],
    ) -> Result<Self, String> {
        let takes = || "takes hidden states [..,D], weights [D,V], or [V,D] when tied, and targets, mask and f32 numbers [..]";
        let [x, weight, targets, mask, ..] = inputs else {
            return Err(takes().to_owned());
        };
        let tied = attributes.contains(&("tied", Attribute::Flag(true)));
        let (Some((width, tokens)), [a, b]) = (x.dims.split_last(), &weight.dims[..]) else {
            return Err(takes().to_owned());
        };
        let (from, entries) = if tied { (b, a) } else { (a, b) };
        let fits = from == width
            && has_kernels(x.dtype)
            && has_kernels(weight.dtype)
            && *targets == TensorType::new(DType::S32, tokens)
            && *mask == TensorType::new(DType::Pred, tokens)
            && rows
                .iter()
                .all(|it| *it == TensorType::new(DType::F32, tokens));
        let sizes = Self {
            tokens: tokens.to_vec(),
            count: tokens.iter().product(),
            entries: *entries,
        };
        if fits {
            Ok(sizes)
        } else {
            Err(takes().to_owned())
        }
    }
}

/// Of the gradients by hidden states and by weights.
fn gradient_types(inputs: &[TensorType]) -> Vec<TensorType> {
    let wide = |it: &TensorType| TensorType::new(DType::F32, &it.dims);
    inputs[..2].iter().map(wide).collect()
}

/// So many products of hidden states and weights.
fn cost(inputs: &[TensorType], outputs: &[TensorType], products: f64) -> Cost {
    let (x, weight) = (&inputs[0], &inputs[1]);
    let tokens = (x.elements() / x.dims.last().map_or(1, |it| (*it).max(1))) as f64;
    Cost {
        flops: 2.0 * products * tokens * weight.elements() as f64,
        ..Cost::movement(inputs, outputs)
    }
}

/// A kernel's function: `run::<T, W>` for the types of hidden states and of weights.
macro_rules! by_types {
    ($run:ident) => {
        |call| match (call.inputs()[0].dtype(), call.inputs()[1].dtype()) {
            (DType::BF16, DType::BF16) => $run::<bf16, bf16>(call),
            (DType::BF16, _) => $run::<bf16, f32>(call),
            (_, DType::BF16) => $run::<f32, bf16>(call),
            _ => $run::<f32, f32>(call),
        }
    };
}

static SCORE: KernelRule = KernelRule {
    kernel: Kernel {
        name: "head_score",
        run: by_types!(score),
    },
    infer: |inputs: &[TensorType], attributes: &Attributes| {
        let sizes = Sizes::of(inputs, attributes, &[])?;
        Ok(vec![TensorType::new(DType::F32, &sizes.tokens); 4])
    },
    cost: |inputs, outputs| cost(inputs, outputs, 1.0),
};

static SCORE_AND_KEEP: KernelRule = KernelRule {
    kernel: Kernel {
        name: "head_score_and_keep",
        run: by_types!(score),
    },
    infer: |inputs: &[TensorType], attributes: &Attributes| {
        let sizes = Sizes::of(inputs, attributes, &[])?;
        let tiles = attributes.iter().find(|(name, _)| *name == "tiles");
        let Some((_, Attribute::Integer(tiles))) = tiles else {
            return Err("keeps numbers of as many tiles as the attribute `tiles` says".to_owned());
        };
        let of_token = TensorType::new(DType::F32, &sizes.tokens);
        let kept = [[sizes.count, sizes.entries], [*tiles as usize, sizes.count]];
        let kept = kept.iter().map(|dims| TensorType::new(DType::F32, dims));
        Ok(vec![of_token; 4].into_iter().chain(kept).collect())
    },
    cost: |inputs, outputs| cost(inputs, outputs, 1.0),
};

static GRADIENTS: KernelRule = KernelRule {
    kernel: Kernel {
        name: "head_gradients",
        run: by_types!(gradients),
    },
    infer: |inputs: &[TensorType], attributes: &Attributes| {
        Sizes::of(inputs, attributes, inputs.get(4..).unwrap_or(&[]))?;
        Ok(gradient_types(inputs))
    },
    cost: |inputs, outputs| cost(inputs, outputs, 3.0),
};

static GRADIENTS_OF_KEPT: KernelRule = KernelRule {
    kernel: Kernel {
        name: "head_gradients_of_kept",
        run: by_types!(gradients_of_kept),
    },
    infer: |inputs: &[TensorType], attributes: &Attributes| {
        let sizes = Sizes::of(inputs, attributes, inputs.get(7..).unwrap_or(&[]))?;
        let types = gradient_types(inputs);
        let kept = TensorType::new(DType::F32, &[sizes.count, sizes.entries]);
        if inputs.get(4..6) != Some(&[types[1].clone(), kept.clone()]) {
            return Err(format!(
                "adds to an f32 gradient by weights, and reads logits {kept}"
            ));
        }
        Ok(types)
    },
    cost: |inputs, outputs| cost(inputs, outputs, 2.0),
};

/// Runs `with` on the vocabulary of a call, in which the hidden states of tokens that do not count are zeros, and on its other
/// inputs and its outputs.
fn with_vocabulary<T: Number + Element + Lent, W: Number + Element>(
    call: &mut KernelCall<'_>,
    with: impl FnOnce(
        &Vocabulary<'_, T, W>,
        &[KernelInput<'_>],
        &mut [KernelOutput<'_>],
    ) -> Result<(), String>,
) -> Result<(), String> {
    let (tied, scale) = (call.flag("tied")?, call.number("scale")? as f32);
    let tile = usize::try_from(call.integer("tile")?).map_err(|it| it.to_string())?;
    let (inputs, outputs) = call.parts();
    let &[rows, columns] = inputs[1].dims() else {
        return Err("takes weights of two dimensions".to_owned());
    };
    let weight = Matrix::new(inputs[1].as_slice::<W>()?, [rows, columns], [columns, 1]);
    let weight = if tied { weight.transposed() } else { weight };
    let (x, mask) = (inputs[0].as_slice::<T>()?, inputs[3].as_slice::<bool>()?);
    let width = weight.rows();
    let mut masked;
    let x = if mask.contains(&false) {
        masked = lend(x.len());
        masked.copy_from_slice(x);
        let rows = masked.chunks_mut(width.max(1)).zip(mask);
        rows.filter(|(_, counts)| !**counts)
            .for_each(|(row, _)| row.fill(T::nearest(0.0)));
        &masked[..]
    } else {
        x
    };
    let vocabulary = Vocabulary::new(x, weight, inputs[2].as_slice()?, scale, tile);
    with(&vocabulary, &inputs[4..], outputs)
}

fn score<T: Number + Element + Lent, W: Number + Element>(
    call: &mut KernelCall<'_>,
) -> Result<(), String> {
    with_vocabulary::<T, W>(call, |vocabulary, _, outputs| {
        let (found, kept) = outputs.split_at_mut(4);
        let keep = match kept {
            [logits, unused] => {
                // Logits are all that is wanted later.
                unused.as_mut_slice::<f32>()?.fill(0.0);
                Some(logits.as_mut_slice::<f32>()?)
            }
            _ => None,
        };
        let scored = vocabulary.score(keep, Threads::All);
        let of_token: [fn(&Scored) -> f32; 4] = [
            |it| it.sums.peak,
            |it| it.sums.total,
            |it| it.sums.weighted,
            |it| it.target,
        ];
        for (to, of_token) in found.iter_mut().zip(of_token) {
            let to = to.as_mut_slice::<f32>()?.iter_mut();
            to.zip(&scored).for_each(|(to, it)| *to = of_token(it));
        }
        Ok(())
    })
}

fn gradients<T: Number + Element + Lent, W: Number + Element>(
    call: &mut KernelCall<'_>,
) -> Result<(), String> {
    backward::<T, W>(call, |rest| Ok((None, rest)))
}

fn gradients_of_kept<T: Number + Element + Lent, W: Number + Element>(
    call: &mut KernelCall<'_>,
) -> Result<(), String> {
    backward::<T, W>(call, |rest| {
        Ok((Some(rest[1].as_slice::<f32>()?), &rest[3..]))
    })
}

/// `find` tells kept logits, and numbers of each token, from the inputs of one pass alone.
fn backward<T: Number + Element + Lent, W: Number + Element>(
    call: &mut KernelCall<'_>,
    find: impl for<'a> FnOnce(
        &'a [KernelInput<'a>],
    ) -> Result<(Option<&'a [f32]>, &'a [KernelInput<'a>]), String>,
) -> Result<(), String> {
    let scale = call.number("scale")? as f32;
    with_vocabulary::<T, W>(call, |vocabulary, rest, outputs| {
        let (kept, rows) = find(rest)?;
        let rows: Result<Vec<&[f32]>, String> = rows.iter().map(|it| it.as_slice()).collect();
        let rows = rows?;
        let slope = |token: usize| {
            let of = |row: usize| rows[row][token];
            let (shift, total, logprob) = (of(0), of(1), of(2));
            LogitSlope {
                shift,
                logprob,
                share: logprob / total,
                entropy: (rows.len() > 3).then(|| [of(4), of(3) / total]),
                scale,
            }
        };
        let [dx, dw] = outputs else {
            return Err("has two results".to_owned());
        };
        let to = [dx.as_mut_slice()?, dw.as_mut_slice()?];
        vocabulary.gradients(kept, slope, to, kept.is_some(), Threads::All);
        Ok(())
    })
}
