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
            max_new_tokens: 100,
            compute,
            ..config()
        };
        let memory = fixture.sampler(config.clone()).decode_program().memory();
        let rows = 64 / devices;
        // Keys and values of 2 layers, 2 heads of 16, 7 + 100 − 1 slots; then token, done, and the scalar count.
        let cache = 2 * 2 * rows * 2 * 106 * 16 * compute.bytes();
        let state = rows * 4 + rows + 4;
        assert_eq!(
            memory.alias as usize,
            cache + state,
            "{devices} devices, {compute}"
        );
        // No second copy of the keys or of the values.
        assert!(
            (memory.temp as usize) < cache / 2,
            "{devices} devices, {compute}: {} bytes beside a cache of {cache}",
            memory.temp
        );
    }
}
