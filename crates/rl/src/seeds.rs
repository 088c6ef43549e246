//! Seeds of the sampler, derived from what they are for. There is no generator whose state a checkpoint would have to hold.

/// What a stream of seeds is for; keeps streams of one run apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// The order of the demonstrations.
    Demonstrations = 1,
    /// The order of the problems.
    Problems = 2,
    /// The sampled answers.
    Answers = 3,
}

/// The seed of a stream.
pub(crate) fn stream_seed(seed: u64, stream: Stream) -> u64 {
    mix(mix(seed) ^ stream as u64)
}

/// The seed of one sampled answer: `sample` of the group at place `prompt` of the step.
pub(crate) fn answer_seed(seed: u64, step: u64, prompt: usize, sample: usize) -> u64 {
    let path = [step, prompt as u64, sample as u64];
    path.into_iter()
        .fold(stream_seed(seed, Stream::Answers), |hash, part| {
            mix(hash ^ mix(part))
        })
}

/// The output function of SplitMix64 (Steele, Lea and Flood 2014, figure 17): a bijection in which every bit depends on all.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn mixing_is_the_published_function() {
        // The first outputs of SplitMix64 from state 1234567.
        let gamma = 0x9e37_79b9_7f4a_7c15_u64;
        let outputs =
            [0, 1, 2].map(|n: u64| mix(1_234_567_u64.wrapping_add(gamma.wrapping_mul(n))));
        assert_eq!(
            outputs,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn every_answer_of_a_run_has_a_seed_of_its_own() {
        let mut seen = HashSet::new();
        for seed in [0, 1, 2] {
            for step in 1..=20 {
                for prompt in 0..16 {
                    for sample in 0..8 {
                        assert!(seen.insert(answer_seed(seed, step, prompt, sample)));
                    }
                }
            }
        }
        // Neighbours in one coordinate are not neighbours in another.
        assert_ne!(answer_seed(0, 1, 2, 3), answer_seed(0, 2, 1, 3));
        assert_ne!(answer_seed(0, 1, 2, 3), answer_seed(0, 1, 3, 2));
        assert_ne!(
            stream_seed(5, Stream::Demonstrations),
            stream_seed(5, Stream::Problems)
        );
    }
}
