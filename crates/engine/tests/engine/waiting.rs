//! A host that waits for the device says so.

use std::sync::atomic::{AtomicBool, Ordering};

use ferrotune_engine::{Awaited, EngineConfig, Loss};

use crate::setup::{config, documents, engine_on, rows};

#[test]
fn what_is_waited_for_is_seen_while_it_is_waited_for() {
    const MICRO_BATCHES: u64 = 24;
    let settings = EngineConfig {
        max_inflight: 1,
        ..config()
    };
    let mut engine = engine_on("qwen3", 1, 1, settings);
    let loss = Loss::cross_entropy();
    let batch = rows(&documents(&[60; 16]), 64, 16);
    engine.compile(batch.row_count(), 64, &loss).unwrap();
    let wait = engine.device_wait();
    assert_eq!(wait.current(), None);
    let over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let now = wait.current().map(|(what, _)| what);
                seen.extend(now.filter(|it| seen.last() != Some(it)));
                std::thread::yield_now();
            }
            seen
        });
        for _ in 0..MICRO_BATCHES {
            engine.forward_backward(&batch, &loss).unwrap();
        }
        engine.update(0.0).unwrap().read().unwrap();
        over.store(true, Ordering::Relaxed);
        watcher.join().unwrap()
    });
    assert_eq!(wait.current(), None);
    // The last of them is never waited for, being the one that may be in flight.
    let mut last = 0;
    for awaited in seen {
        let Awaited::MicroBatch(number) = awaited else {
            assert_eq!(awaited, Awaited::Update(1));
            continue;
        };
        assert!(
            last < number && number < MICRO_BATCHES,
            "{number} after {last}"
        );
        last = number;
    }
    assert!(last > 0, "no wait was seen");
}
