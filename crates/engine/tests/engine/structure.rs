//! What the compiled programs of a step must be.

use ferrotune_engine::Loss;

use crate::setup::{config, engine_on};

#[test]
fn the_update_works_in_place_and_copies_no_parameters() {
    for fsdp in [1, 2] {
        let mut engine = engine_on("qwen3", 1, fsdp, config());
        engine.compile(2, 32, &Loss::cross_entropy()).unwrap();
        let [params, state, gradients] = engine.state_bytes();
        let memory = engine.program_memory();
        let of = |name: &str| memory.iter().find(|(n, _)| n.starts_with(name)).unwrap().1;
        // Everything is split over fsdp but norms of a head (`_`), which are small.
        let split = |bytes: usize| (bytes / fsdp) as u64;
        let update = of("update");
        assert!(
            update.alias >= split(params + state),
            "{} of {} bytes are aliased",
            update.alias,
            split(params + state)
        );
        assert!(
            update.temp < split(params) / 8,
            "{} bytes of temporaries for {params} bytes of parameters",
            update.temp
        );
        assert!(
            of("more").alias >= split(gradients),
            "gradients are accumulated in place"
        );
    }
}
