//! What is to be known of a row of logits.

use ferrotune_cpu::{Threads, exponential_sum, largest};
use ferrotune_graph::{
    Attributes, Cost, DType, Kernel, KernelCall, KernelRule, Tensor, TensorType,
};

/// Of each row of logits.
pub struct LogitSummary {
    /// The first entry that no other exceeds, s32 `[B]`.
    pub best: Tensor,
    /// Its logit, f32 `[B]`.
    pub peak: Tensor,
    /// ln Σ exp(z − peak), f32 `[B]`. Not a number if any logit is none.
    pub log_sum: Tensor,
}

impl LogitSummary {
    /// # Shapes
    /// `logits` f32 `[B,V]`.
    #[track_caller]
    pub fn of(logits_bv: &Tensor) -> Self {
        let g = logits_bv.graph();
        let portable = |x: &[Tensor]| {
            let peak = x[0].max_keep(&[1]);
            let log_sum = (&x[0] - &peak).exp().sum(&[1]).ln();
            vec![x[0].argmax(1), peak.reshape(&log_sum.dims()), log_sum]
        };
        let found = g.kernel(&SUMMARY, &[logits_bv], &[], portable);
        let [best, peak, log_sum] = <[Tensor; 3]>::try_from(found).expect("three of each row");
        Self {
            best,
            peak,
            log_sum,
        }
    }

    /// The log-probs of one entry of each row, s32 `[B]` → f32 `[B]`.
    #[track_caller]
    pub fn log_prob(&self, logits_bv: &Tensor, entry: &Tensor) -> Tensor {
        logits_bv.pick_last(entry) - &self.peak - &self.log_sum
    }
}

static SUMMARY: KernelRule = KernelRule {
    kernel: Kernel {
        name: "logit_summary",
        run,
    },
    infer: |inputs: &[TensorType], _: &Attributes| match inputs {
        [logits] if logits.rank() == 2 && logits.dtype == DType::F32 && logits.dims[1] > 0 => {
            let of_row = |dtype| TensorType::new(dtype, &logits.dims[..1]);
            Ok(vec![
                of_row(DType::S32),
                of_row(DType::F32),
                of_row(DType::F32),
            ])
        }
        _ => Err("takes logits f32 [B,V]".to_owned()),
    },
    cost: |inputs, outputs| Cost {
        flops: 4.0 * inputs[0].elements() as f64,
        ..Cost::movement(inputs, outputs)
    },
};

fn run(call: &mut KernelCall<'_>) -> Result<(), String> {
    let (inputs, outputs) = call.parts();
    let width = inputs[0].dims()[1];
    let logits = inputs[0].as_slice::<f32>()?;
    let mut found = vec![(0, 0.0, 0.0); inputs[0].dims()[0]];
    Threads::All.for_each_chunk(&mut found, 1, |row, found| {
        let row = &logits[row * width..][..width];
        let peak = largest(row);
        let best = row.iter().position(|z| *z == peak).unwrap_or(0);
        found[0] = (best as i32, peak, exponential_sum(row, peak).ln());
    });
    let [best, peak, log_sum] = outputs else {
        return Err("has three results".to_owned());
    };
    let best = best.as_mut_slice::<i32>()?.iter_mut();
    let sums = peak
        .as_mut_slice::<f32>()?
        .iter_mut()
        .zip(log_sum.as_mut_slice::<f32>()?);
    for ((best, (peak, log_sum)), found) in best.zip(sums).zip(found) {
        (*best, *peak, *log_sum) = found;
    }
    Ok(())
}
