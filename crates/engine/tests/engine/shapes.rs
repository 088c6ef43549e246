//! Each shape of rows is compiled once, is told of, and is one of few.

use ferrotune_engine::{EngineConfig, Error, Loss};

use crate::setup::{config, documents, engine_on, rows};

#[test]
fn a_shape_is_compiled_once_and_told_of_once() {
    let mut engine = engine_on("llama", 1, 1, config());
    let loss = Loss::cross_entropy();
    let batch = rows(&documents(&[5, 7]), 16, 2);
    for _ in 0..2 {
        engine.forward_backward(&batch, &loss).unwrap();
        engine.forward_backward(&batch, &loss).unwrap();
        engine.update(0.0).unwrap().read().unwrap();
        engine.evaluate(&batch, &loss).unwrap();
        engine.score(&batch).unwrap();
        engine.snapshot().unwrap();
    }
    let compiled = engine.take_compiled();
    let told: Vec<_> = compiled
        .iter()
        .map(|it| (it.program.as_str(), it.shape))
        .collect();
    let shape = Some([2, 16]);
    assert_eq!(
        told,
        [
            ("first_cross_entropy", shape),
            ("more_cross_entropy", shape),
            ("update", None),
            ("evaluate_cross_entropy", shape),
            ("score", shape),
            ("snapshot", None),
        ]
    );
    assert!(compiled.iter().all(|it| !it.time.is_zero()));
    assert_eq!(engine.take_compiled(), []);
    engine.score(&rows(&documents(&[5]), 8, 1)).unwrap();
    assert_eq!(engine.take_compiled()[0].shape, Some([1, 8]));
    engine.compile_step(2, 1, 9, &loss).unwrap();
    assert_eq!(engine.take_compiled()[0].program, "step_cross_entropy");
}

#[test]
fn one_shape_too_many_is_refused_with_those_before_it() {
    let two = EngineConfig {
        max_shapes: 2,
        ..config()
    };
    let mut engine = engine_on("llama", 1, 1, two);
    let loss = Loss::cross_entropy();
    let of = |width| rows(&documents(&[5]), width, 1);
    engine.forward_backward(&of(8), &loss).unwrap();
    engine.score(&of(9)).unwrap();
    let gathered = engine.gradients_to_host().unwrap();
    let refusals = [
        engine.forward_backward(&of(10), &loss).unwrap_err(),
        engine.evaluate(&of(10), &loss).unwrap_err(),
        engine.score(&of(10)).unwrap_err(),
        engine.compile(1, 10, &loss).unwrap_err(),
        engine.compile_step(2, 1, 10, &loss).unwrap_err(),
    ];
    for error in refusals {
        assert!(matches!(&error, Error::TooManyShapes { .. }), "{error}");
        let text = error.to_string();
        for part in ["1 x 10", "1 x 8, 1 x 9", "max_shapes"] {
            assert!(text.contains(part), "no {part} in: {text}");
        }
    }
    // Nothing is lost, and other programs for shapes that are known are compiled as before.
    assert_eq!(engine.gradients_to_host().unwrap(), gathered);
    engine.forward_backward(&of(9), &loss).unwrap();
    engine.evaluate(&of(8), &loss).unwrap();
}
