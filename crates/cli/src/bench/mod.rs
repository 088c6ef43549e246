//! `ferrotune bench`: numbers about this machine and this build. Synthetic data, nothing is saved.

mod attention;
mod dispatch;
mod engine;
mod exact_memory;
mod head;
mod pack;
mod sampler;
mod step;
mod trace;

use std::time::Duration;

use crate::args::BenchCommand;
use crate::failure::Failure;

pub(crate) fn run(command: &BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Step(args) => step::run(args),
        BenchCommand::Engine(args) => engine::run(args),
        BenchCommand::Attention(args) => attention::run(args),
        BenchCommand::Dispatch(args) => dispatch::run(args),
        BenchCommand::Trace(args) => trace::run(args),
        BenchCommand::Head(args) => head::run(args),
        BenchCommand::Pack(args) => pack::run(args),
        BenchCommand::Sampler(args) => sampler::run(args),
    }
}

/// Sizes of a training step.
struct StepSizes {
    parameters: f64,
    /// How often parameters, or arrays of their size, are there at a time.
    copies: f64,
    /// Numbers of a token that enter the layers, of all of them together.
    stream: f64,
    /// Tokens of a micro-batch.
    tokens: f64,
    micro_batches: f64,
}

impl StepSizes {
    /// What is held at least. Tokens keep what enters a layer, in each.
    fn bytes(&self) -> f64 {
        // Ids, places, documents, targets and weights of every token, on the host and on the device.
        let batch = 2.0 * 20.0 * self.tokens * self.micro_batches;
        4.0 * (self.copies * self.parameters + self.tokens * self.stream) + batch
    }
}

/// The middle one of some durations, in seconds; of none, NaN.
fn median(durations: &[Duration]) -> f64 {
    let mut seconds: Vec<f64> = durations.iter().map(Duration::as_secs_f64).collect();
    seconds.sort_by(f64::total_cmp);
    let middle = seconds.len() / 2;
    match seconds.len() {
        0 => f64::NAN,
        n if n % 2 == 0 => (seconds[middle - 1] + seconds[middle]) / 2.0,
        _ => seconds[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let of = |ms: &[u64]| {
            median(
                &ms.iter()
                    .map(|&it| Duration::from_millis(it))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(of(&[3, 100, 1]), 0.003);
        assert_eq!(of(&[4, 2]), 0.003);
        assert!(of(&[]).is_nan());
    }
}
