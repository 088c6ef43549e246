//! What is done to a tile of logits between products, row by row.
//!
//! On the CPU these are kernels: XLA would walk over a tile once for each sum.

use ferrotune_cpu::{LogitSlope, Number, OnlineSums, Threads, find};
use ferrotune_graph::{
    Attributes, Cost, DType, Kernel, KernelCall, KernelInput, KernelRule, Tensor, TensorType,
};
use ferrotune_pjrt::{Attribute, Element};

use super::EntropyUse;
use super::fused::Running;
use super::plain::{hits, weigh};

/// Logits of a tile, or what takes their place, and which of them are the targets'.
pub(super) struct LogitTile<'a> {
    /// `[n,v]`, in the wide type.
    pub(super) values: &'a Tensor,
    /// Entries of the vocabulary, s32 `[v]`.
    pub(super) columns: &'a Tensor,
    /// s32 `[n]`.
    pub(super) targets: &'a Tensor,
}

impl LogitTile<'_> {
    fn hits(&self) -> Tensor {
        hits(self.columns, self.targets)
    }

    /// Calls a kernel with the tile and the numbers `rows` of each row, `[n]`. In f64, and on other devices, computes
    /// `portable` of the same.
    #[track_caller]
    fn call(
        &self,
        rule: &'static KernelRule,
        rows: &[&Tensor],
        attributes: &Attributes,
        portable: impl Fn(&LogitTile<'_>, &[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let operands = [&[self.values, self.columns, self.targets], rows].concat();
        let portable = |given: &[Tensor]| {
            let [values, columns, targets, rows @ ..] = given else {
                unreachable!("three tensors of the tile")
            };
            let tile = LogitTile {
                values,
                columns,
                targets,
            };
            portable(&tile, rows)
        };
        if self.values.dtype() == DType::F64 {
            let given: Vec<Tensor> = operands.into_iter().cloned().collect();
            return portable(&given);
        }
        let g = self.values.graph();
        g.kernel(rule, &operands, attributes, portable)
    }

    /// What is known of each token after this tile, and what its exponents are shifted by, `m [n]`.
    #[track_caller]
    pub(super) fn absorbed_by(&self, before: &Running, entropy: EntropyUse) -> (Running, Tensor) {
        let found = self.absorb(before, entropy, false);
        (Running::from(&found[..4]), found[4].clone())
    }

    /// The same, and `exp(z − m) [n,v]`.
    #[track_caller]
    pub(super) fn absorbed_and_kept(
        &self,
        before: &Running,
        entropy: EntropyUse,
    ) -> (Running, Tensor, Tensor) {
        let found = self.absorb(before, entropy, true);
        (
            Running::from(&found[..4]),
            found[4].clone(),
            found[5].clone(),
        )
    }

    fn absorb(&self, before: &Running, entropy: EntropyUse, keep: bool) -> Vec<Tensor> {
        let mut before = before.clone();
        if entropy == EntropyUse::Unread {
            // A sum that begins anew with each tile is carried by no loop.
            before.weighted = before.weighted.zeros_like();
        }
        let rows = before.parts();
        let rows: Vec<&Tensor> = rows.iter().collect();
        let keep_terms = [("keep", Attribute::Flag(keep))];
        self.call(&ABSORB, &rows, &keep_terms, |tile, rows| {
            let before = Running::from(rows);
            let (after, m, terms) = before.absorb(tile.values, &tile.hits());
            let kept = keep.then_some(terms);
            after.parts().into_iter().chain([m]).chain(kept).collect()
        })
    }

    /// The gradient by these logits, times `scale`, in the element type `to`.
    ///
    /// `g·(hit − p) − h·p·(ln p + H)`, and `ln p + H = (z − m) − mean`; without a cotangent `h` of the entropy, only the
    /// first. One pass: nothing is summed over the vocabulary.
    #[track_caller]
    pub(super) fn slope(&self, by: &RowSlopes, scale: f64, to: DType) -> Tensor {
        let share = &by.logprob / &by.total;
        let mut rows = vec![&by.logprob, &share, &by.m];
        let spread = by.entropy.as_ref().map(|h| h / &by.total);
        rows.extend(spread.iter().flat_map(|spread| [&by.mean, spread]));
        self.sloped(&rows, scale, to, |tile, rows| {
            let shifted = tile.values - rows[2].expand(1);
            let exp = shifted.exp();
            let expected = &exp * rows[1].expand(1);
            match rows.get(3..) {
                Some([mean, spread]) => {
                    expected + weigh(&exp, &(shifted - mean.expand(1))) * spread.expand(1)
                }
                _ => expected,
            }
        })
    }

    /// The same where the values are `exp(z − m_tile)`, and the entropy has no cotangent.
    #[track_caller]
    pub(super) fn slope_of_terms(
        &self,
        by: &RowSlopes,
        m_tile: &Tensor,
        scale: f64,
        to: DType,
    ) -> Tensor {
        let share = (m_tile - &by.m).exp() * (&by.logprob / &by.total);
        let rows = [&by.logprob, &share];
        self.sloped(&rows, scale, to, |tile, rows| {
            tile.values * rows[1].expand(1)
        })
    }

    /// `scale·(g·hit − expected)`, with `g` the first of the rows.
    fn sloped(
        &self,
        rows: &[&Tensor],
        scale: f64,
        to: DType,
        expected: impl Fn(&LogitTile<'_>, &[Tensor]) -> Tensor,
    ) -> Tensor {
        let attributes = [
            ("scale", Attribute::Number(scale)),
            ("half", Attribute::Flag(to == DType::BF16)),
        ];
        let found = self.call(&SLOPE, rows, &attributes, |tile, rows| {
            let zero = tile.values.scalar_like(0.0);
            let target = tile.hits().select(&rows[0].expand(1), &zero);
            let dz = target - expected(tile, rows);
            let dz = if scale == 1.0 { dz } else { dz * scale };
            vec![if to == DType::BF16 {
                dz.convert(to)
            } else {
                dz
            }]
        });
        found[0].convert(to)
    }
}

/// What each token's log-prob and entropy are worth, and what its logits are compared with: `[n]`, in the wide type.
pub(super) struct RowSlopes {
    /// What the exponent is shifted by.
    pub(super) m: Tensor,
    /// `Σ exp(z − m)`.
    pub(super) total: Tensor,
    /// `Σ exp(z − m)·(z − m) / total`.
    pub(super) mean: Tensor,
    /// The cotangent of the log-prob.
    pub(super) logprob: Tensor,
    /// The cotangent of the entropy, if it has one.
    pub(super) entropy: Option<Tensor>,
}

/// Checks a tile `[n,v]` and `count` numbers of each row; answers with the type of a result of `n`.
fn check_tile(inputs: &[TensorType], count: &[usize]) -> Result<TensorType, String> {
    let [values, columns, targets, rows @ ..] = inputs else {
        return Err("takes a tile of three tensors".to_owned());
    };
    let [n, v] = values.dims[..] else {
        return Err(format!("takes logits [n,v], not {values}"));
    };
    let row = TensorType::new(DType::F32, &[n]);
    let fits = values.dtype == DType::F32
        && *columns == TensorType::new(DType::S32, &[v])
        && *targets == TensorType::new(DType::S32, &[n])
        && count.contains(&rows.len())
        && rows.iter().all(|it| *it == row);
    let takes =
        || format!("takes f32 [{n},{v}], entries s32 [{v}], targets s32 [{n}], numbers f32 [{n}]");
    if fits { Ok(row) } else { Err(takes()) }
}

fn flag(attributes: &Attributes, name: &str) -> bool {
    attributes.contains(&(name, Attribute::Flag(true)))
}

static ABSORB: KernelRule = KernelRule {
    kernel: Kernel {
        name: "head_absorb",
        run: absorb,
    },
    infer: |inputs: &[TensorType], attributes: &Attributes| {
        let row = check_tile(inputs, &[4])?;
        let terms = flag(attributes, "keep").then(|| inputs[0].clone());
        Ok(vec![row; 5].into_iter().chain(terms).collect())
    },
    cost: |inputs, outputs| Cost {
        flops: 5.0 * inputs[0].elements() as f64,
        ..Cost::movement(inputs, outputs)
    },
};

/// One row of a call that absorbs: what is known of it, and where its terms go.
struct Row<'a> {
    sums: OnlineSums,
    target: f32,
    terms: Option<&'a mut [f32]>,
}

fn absorb(call: &mut KernelCall<'_>) -> Result<(), String> {
    let (inputs, outputs) = call.parts();
    let tile = GivenTile::of(inputs)?;
    let given = |i: usize| inputs[3 + i].as_slice::<f32>();
    let [peak, total, weighted, target] = [given(0)?, given(1)?, given(2)?, given(3)?];
    let (found, terms) = outputs.split_at_mut(5);
    let terms = terms.first_mut().map(|it| it.as_mut_slice::<f32>());
    let mut terms = terms.transpose()?.map(|it| it.chunks_mut(tile.width()));
    let mut rows: Vec<Row<'_>> = (0..tile.targets.len())
        .map(|i| Row {
            sums: OnlineSums {
                peak: peak[i],
                total: total[i],
                weighted: weighted[i],
            },
            target: target[i],
            terms: terms.as_mut().and_then(Iterator::next),
        })
        .collect();
    Threads::All.for_each_share(&mut rows, 1, |first, rows| {
        for (i, row) in rows.iter_mut().enumerate() {
            let logits = tile.row(first + i);
            row.target += tile.hit(first + i).map_or(0.0, |at| logits[at]);
            match &mut row.terms {
                Some(terms) => {
                    terms.copy_from_slice(logits);
                    row.sums.absorb_and_exponentiate(terms);
                }
                None => row.sums.absorb(logits),
            }
        }
    });
    let of_row: [fn(&Row<'_>) -> f32; 5] = [
        |row| row.sums.peak,
        |row| row.sums.total,
        |row| row.sums.weighted,
        |row| row.target,
        |row| row.sums.shift(),
    ];
    for (to, of_row) in found.iter_mut().zip(of_row) {
        let to = to.as_mut_slice::<f32>()?.iter_mut();
        to.zip(&rows).for_each(|(to, row)| *to = of_row(row));
    }
    Ok(())
}

static SLOPE: KernelRule = KernelRule {
    kernel: Kernel {
        name: "head_slope",
        run: |call| {
            if call.flag("half")? {
                slope::<half::bf16>(call)
            } else {
                slope::<f32>(call)
            }
        },
    },
    infer: |inputs: &[TensorType], attributes: &Attributes| {
        check_tile(inputs, &[TERMS, LOGITS, WITH_ENTROPY])?;
        let half = flag(attributes, "half");
        let dtype = if half { DType::BF16 } else { DType::F32 };
        Ok(vec![TensorType::new(dtype, &inputs[0].dims)])
    },
    cost: |inputs, outputs| Cost {
        flops: 4.0 * inputs[0].elements() as f64,
        ..Cost::movement(inputs, outputs)
    },
};

/// Numbers of each row for a gradient from terms: `g` and the share of each term.
const TERMS: usize = 2;
/// From logits: those, and what logits are shifted by.
const LOGITS: usize = 3;
/// With a cotangent of the entropy: those, the mean, and the cotangent over the total.
const WITH_ENTROPY: usize = 5;

fn slope<T: Number + Element>(call: &mut KernelCall<'_>) -> Result<(), String> {
    let scale = call.number("scale")? as f32;
    let (inputs, outputs) = call.parts();
    let tile = GivenTile::of(inputs)?;
    let rows: Result<Vec<&[f32]>, String> = inputs[3..].iter().map(|it| it.as_slice()).collect();
    let rows = rows?;
    let to = outputs[0].as_mut_slice::<T>()?;
    Threads::All.for_each_share(to, tile.width(), |first, to| {
        for (i, to) in to.chunks_mut(tile.width()).enumerate() {
            let i = first + i;
            let of = LogitSlope {
                logprob: rows[0][i],
                share: rows[1][i],
                shift: if rows.len() >= LOGITS {
                    rows[2][i]
                } else {
                    0.0
                },
                entropy: (rows.len() == WITH_ENTROPY).then(|| [rows[3][i], rows[4][i]]),
                scale,
            };
            if rows.len() == TERMS {
                of.by_exponentials(tile.row(i), tile.hit(i), to);
            } else {
                of.by_logits(tile.row(i), tile.hit(i), to);
            }
        }
    });
    Ok(())
}

/// The tile of a call.
struct GivenTile<'a> {
    values: &'a [f32],
    columns: &'a [i32],
    targets: &'a [i32],
}

impl<'a> GivenTile<'a> {
    fn of(inputs: &'a [KernelInput<'_>]) -> Result<Self, String> {
        Ok(Self {
            values: inputs[0].as_slice()?,
            columns: inputs[1].as_slice()?,
            targets: inputs[2].as_slice()?,
        })
    }

    fn width(&self) -> usize {
        self.columns.len()
    }

    fn row(&self, i: usize) -> &'a [f32] {
        &self.values[i * self.width()..][..self.width()]
    }

    /// Where in the tile the target of a row lies.
    fn hit(&self, i: usize) -> Option<usize> {
        find(self.columns, self.targets[i])
    }
}
