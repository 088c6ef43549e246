//! What stands before attention: a norm, queries, keys and values, and their rotation.

use ferrotune_cpu::{Threads, add, lend, normalize, rotate as turn_head};
use ferrotune_graph::{Attributes, DType, Kernel, KernelCall, KernelRule, Tensor, TensorType};
use ferrotune_pjrt::Attribute;

use super::{Operand, cost, eps, rows, weight, wide, widths};
use crate::by_type::{by_type, has_kernels};
use crate::linear::{is_adapted, project};
use crate::norm::{normalize_rows, rms_norm};
use crate::params::Params;
use crate::rotary::{Rotation, rotate};

/// Queries, keys and values of one new token of each row.
pub struct HeadsStep<'a> {
    /// Weight of the norm before, `[D]`.
    pub norm: &'a Tensor,
    /// What is added to the mean of squares.
    pub eps: f64,
    /// `q_proj`, `k_proj`, `v_proj`, as [`project`] takes them, without adapters.
    pub params: &'a Params,
    /// Weights of the norms of query and key heads, `[E]` each.
    pub head_norms: Option<[&'a Tensor; 2]>,
    /// `E`.
    pub head_size: usize,
}

const PROJECTIONS: [&str; 3] = ["q_proj", "k_proj", "v_proj"];

impl HeadsStep<'_> {
    /// Whether the kernel covers what the layer has.
    pub fn fits(params: &Params, dtype: DType) -> bool {
        let biases = PROJECTIONS.map(|name| params.find(&format!("{name}_bias")).is_some());
        let plain = PROJECTIONS.iter().all(|name| !is_adapted(params, name));
        has_kernels(dtype) && plain && (biases == [true; 3] || biases == [false; 3])
    }

    /// # Shapes
    /// `x [B,1,D]` f32 or bf16 → queries `[B,1,H,E]` and keys `[B,1,K,E]`, rotated, and values `[B,1,K,E]`.
    #[track_caller]
    pub fn of(&self, x_b1d: &Tensor, by: &Rotation) -> [Tensor; 3] {
        let g = x_b1d.graph().clone();
        let (dtype, turned) = (x_b1d.dtype(), self.params.transposed_weights());
        let biases = PROJECTIONS.map(|name| self.params.find(&format!("{name}_bias")));
        let mut operands = vec![
            x_b1d.clone(),
            wide(self.norm),
            by.cos.clone(),
            by.sin.clone(),
        ];
        operands.extend(PROJECTIONS.map(|name| self.params.at(name).convert(dtype)));
        operands.extend(biases.iter().flatten().map(|bias| bias.convert(dtype)));
        operands.extend(self.head_norms.iter().flatten().map(|weight| wide(weight)));
        let attributes = [
            ("eps", Attribute::Number(self.eps)),
            ("head_size", Attribute::Integer(self.head_size as i64)),
            ("turned", Attribute::Flag(turned)),
            ("biased", Attribute::Flag(biases[0].is_some())),
            ("normed", Attribute::Flag(self.head_norms.is_some())),
        ];
        let operands: Vec<&Tensor> = operands.iter().collect();
        let found = g.kernel(&HEADS, &operands, &attributes, |given| {
            self.portable(given).to_vec()
        });
        <[Tensor; 3]>::try_from(found).expect("queries, keys and values")
    }

    fn portable(&self, given: &[Tensor]) -> [Tensor; 3] {
        let [x, norm, cos, sin, more @ ..] = given else {
            panic!("rows, a norm and angles are given")
        };
        let by = Rotation::of(cos, sin);
        let biases = PROJECTIONS.map(|name| format!("{name}_bias"));
        let names = PROJECTIONS.iter().map(|name| (*name).to_owned());
        let named = names.chain(biases).zip(more.iter().cloned());
        let params = self
            .params
            .like(named.take(more.len() - 2 * self.head_norms.iter().len()));
        let normed = rms_norm(x, norm, self.eps);
        let [q, k, v] = PROJECTIONS.map(|name| {
            let made = project(&normed, &params, name);
            let dims = made.dims();
            made.reshape(&[dims[0], 1, dims[2] / self.head_size, self.head_size])
        });
        let [q, k] = match &self.head_norms {
            Some(_) => {
                let weights = &more[more.len() - 2..];
                [
                    rms_norm(&q, &weights[0], self.eps),
                    rms_norm(&k, &weights[1], self.eps),
                ]
            }
            None => [q, k],
        };
        [rotate(&q, &by), rotate(&k, &by), v]
    }
}

static HEADS: KernelRule = KernelRule {
    kernel: Kernel {
        name: "heads_step",
        run: by_type!(run),
    },
    infer,
    cost,
};

fn infer(inputs: &[TensorType], attributes: &Attributes) -> Result<Vec<TensorType>, String> {
    let [x, norm, cos, sin, q, k, v, more @ ..] = inputs else {
        return Err("takes rows, a norm, angles and three weights".to_owned());
    };
    let find = |name| {
        attributes
            .iter()
            .find(|(own, _)| *own == name)
            .map(|(_, value)| value)
    };
    let (Some(Attribute::Integer(size)), Some(Attribute::Flag(turned))) =
        (find("head_size"), find("turned"))
    else {
        return Err("has a head size and a way in which weights lie".to_owned());
    };
    let (&[b, 1, d], size) = (&x.dims[..], *size as usize) else {
        return Err("rows are [B,1,D]".to_owned());
    };
    if !has_kernels(x.dtype) || norm.dims != [d] || more.iter().any(|it| it.rank() != 1) {
        return Err("rows are f32 or bf16; norms and biases have one dimension".to_owned());
    }
    if cos != sin || cos.rank() != 4 || cos.dims[0] != b || 2 * cos.dims[3] > size {
        return Err("angles are [B,1,1,≤E/2]".to_owned());
    }
    let heads = |weight: &TensorType| match widths(weight, *turned)? {
        [from, to] if from == d && to % size == 0 && weight.dtype == x.dtype => {
            Ok(TensorType::new(x.dtype, &[b, 1, to / size, size]))
        }
        _ => Err(format!(
            "a weight is {weight}: rows have {d} elements, heads {size}"
        )),
    };
    Ok(vec![heads(q)?, heads(k)?, heads(v)?])
}

fn run<T: Operand>(call: &mut KernelCall<'_>) -> Result<(), String> {
    let (eps, turned) = (eps(call)?, call.flag("turned")?);
    let (biased, with_norms) = (call.flag("biased")?, call.flag("normed")?);
    let (inputs, outputs) = call.parts();
    let (x, norm) = (inputs[0].as_slice::<T>()?, inputs[1].as_slice::<f32>()?);
    let mut stream = lend::<T>(x.len());
    normalize_rows(x, norm, eps, &mut stream);
    let half = inputs[2].dims()[3];
    let angles = [inputs[2].as_slice::<f32>()?, inputs[3].as_slice::<f32>()?];
    let weights: Result<Vec<_>, String> = (4..7).map(|i| weight(&inputs[i], turned)).collect();
    let size = outputs[0].dims()[3];
    let outputs: Result<Vec<_>, String> = outputs.iter_mut().map(|it| it.as_mut_slice()).collect();
    let mut products: Vec<_> = weights?.into_iter().zip(outputs?).collect();
    T::products(rows(&stream, norm.len()), &mut products);
    for (i, (weight, out)) in products.iter_mut().enumerate() {
        let after = After {
            bias: match biased {
                true => Some(inputs[7 + i].as_slice::<T>()?),
                false => None,
            },
            norm: match with_norms && i < 2 {
                true => Some(inputs[if biased { 10 } else { 7 } + i].as_slice::<f32>()?),
                false => None,
            },
            eps,
            turns: i < 2,
        };
        let width = weight.columns();
        if !after.does_nothing() {
            Threads::All.for_each_chunk(out, width.max(1), |row, heads| {
                after.apply(heads, size, angles.map(|all| &all[row * half..][..half]));
            });
        }
    }
    Ok(())
}

/// What follows on one product.
struct After<'a, T> {
    bias: Option<&'a [T]>,
    /// Weight of the norm of each head.
    norm: Option<&'a [f32]>,
    eps: f32,
    turns: bool,
}

impl<T: Operand> After<'_, T> {
    fn does_nothing(&self) -> bool {
        self.bias.is_none() && self.norm.is_none() && !self.turns
    }

    /// To the heads of one row, of `size` elements each.
    fn apply(&self, heads: &mut [T], size: usize, [cos, sin]: [&[f32]; 2]) {
        if let Some(bias) = self.bias {
            add(heads, bias);
        }
        let mut before = lend::<T>(size);
        for head in heads.chunks_mut(size) {
            if let Some(weight) = self.norm {
                before.copy_from_slice(head);
                normalize(&before, weight, self.eps, head);
            }
            if self.turns {
                turn_head(head, cos, sin);
            }
        }
    }
}
