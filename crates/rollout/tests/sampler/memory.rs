//! What the compiled programs hold: cache and state are updated in place.

use ferrotune_graph::{DType, Mesh};
use ferrotune_rollout::SamplerConfig;

use crate::setup::{Fixture, config};

#[test]
fn decoding_overwrites_its_cache_and_state() {
    for (devices, compute) in [(1, DType::F32), (1, DType::BF16), (2, DType::F32)] {
        let fixture = Fixture::on(&Mesh::new(&[("fsdp", devices)]).unwrap(), "llama");
        let config = SamplerConfig {
            batch: 64,
            max_new_tokens: 400,
            compute,
            ..config()
        };
        let memory = fixture
            .sampler(config)
            .programs()
            .pop()
            .expect("decode")
            .memory();
        let rows = 64 / devices;
        // Keys and values of 2 layers, 2 heads of 16, 7 + 400 − 1 slots; then token, place, count, done, and the slot.
        let cache = 2 * 2 * rows * 2 * 406 * 16 * compute.bytes();
        let state = rows * (4 + 4 + 4 + 1) + 4;
        let what = format!("{devices} devices, {compute}");
        assert_eq!(memory.alias as usize, cache + state, "{what}");
        // The keys and values of one layer of two are copied out to be multiplied; a second cache there is not.
        let temp = memory.temp as usize;
        assert!(
            temp < cache / 2 + cache / 4,
            "{what}: {temp} bytes beside a cache of {cache}"
        );
    }
}
