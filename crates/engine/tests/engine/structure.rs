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

#[test]
fn all_that_is_overwritten_is_given_away_and_nothing_is_copied() {
    for data in [1, 2] {
        let mut engine = engine_on("qwen3", data, 1, config());
        let loss = Loss::cross_entropy();
        engine.compile(2, 32, &loss).unwrap();
        engine.compile_step(1, 2, 32, &loss).unwrap();
        let [params, state, accumulators] = engine.state_bytes();
        let gradients = accumulators / data;
        let program = |name: &str| {
            engine
                .programs()
                .find(|p| p.name().starts_with(name))
                .unwrap()
        };
        let metrics = 3 * 4;
        for (name, donated) in [
            ("first", 0),
            ("more", gradients + metrics),
            ("update", params + state + gradients),
            ("step", params + state),
        ] {
            assert_eq!(
                program(name).donated_bytes(),
                donated,
                "{name}, data {data}"
            );
        }
        // XLA copies one scalar: the number of updates is read after its memory is written.
        let made = program("update").operations().unwrap().unwrap();
        assert!(made.count("copy") <= 1, "data {data}: {:?}", made.counts);
        let memory = program("step").memory();
        assert!(memory.alias >= (params + state) as u64, "{memory:?}");
    }
}
