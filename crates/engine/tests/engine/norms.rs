//! Norms of parts of the gradient.

use ferrotune_engine::{Engine, EngineConfig, Error, Loss, Optimizer, Trains};
use ferrotune_models::ModelConfig;

use crate::oracle::wide;
use crate::setup::{client, config, documents, engine_on, fixture, rows};

fn with(patterns: &[&str]) -> EngineConfig {
    EngineConfig {
        // The norms are of what comes before clipping.
        optimizer: Optimizer {
            max_grad_norm: 1e-3,
            ..config().optimizer
        },
        group_norms: patterns.iter().map(|it| (*it).to_owned()).collect(),
        ..config()
    }
}

#[test]
fn a_group_has_the_norm_of_its_parameters_gradients() {
    let patterns = ["*", "*/attn/*", "embed", "*_proj", "final_norm"];
    for fsdp in [1, 2] {
        let mut engine = engine_on("qwen3", 1, fsdp, with(&patterns));
        let batch = rows(&documents(&[14, 9]), 16, 2);
        engine
            .forward_backward(&batch, &Loss::cross_entropy())
            .unwrap();
        let gradients = engine.gradients_to_host().unwrap();
        let norm = |belongs: fn(&str) -> bool| {
            let of = gradients.iter().filter(|(spec, _)| belongs(&spec.path));
            let squares = of.flat_map(|(_, array)| wide(array)).map(|v| v * v);
            squares.sum::<f64>().sqrt()
        };
        let expected = [
            norm(|_| true),
            norm(|path| path.contains("/attn/")),
            norm(|path| path == "embed"),
            norm(|path| path.ends_with("_proj")),
            norm(|path| path == "final_norm"),
        ];
        let report = engine.update(1e-2).unwrap().read().unwrap();
        assert_eq!(report.group_norms.len(), patterns.len());
        assert_eq!(report.group_norms["*"], report.grad_norm);
        for (pattern, expected) in patterns.iter().zip(expected) {
            let found = report.group_norms[*pattern];
            assert!(expected > 0.0, "{pattern}");
            assert!(
                (found - expected).abs() <= 1e-6 * expected,
                "{pattern}: {found}, not {expected}"
            );
        }
    }
}

#[test]
fn a_pattern_that_fits_nothing_that_learns_is_refused() {
    let model = ModelConfig::load(fixture("llama")).unwrap();
    let frozen = Trains::AllBut(vec!["embed".to_owned()]);
    let patterns = ["*norm".to_owned(), "embed".to_owned()];
    frozen.check_groups(&model, &patterns[..1]).unwrap();
    Trains::All.check_groups(&model, &patterns).unwrap();
    let settings = EngineConfig {
        trains: frozen,
        ..with(&["*norm", "embed"])
    };
    let params = ferrotune_models::load(fixture("llama"), &model)
        .unwrap()
        .params;
    let (mesh, rules) = (
        ferrotune_graph::Mesh::single(),
        ferrotune_graph::Rules::unsharded(&ferrotune_nn::LOGICAL_AXES),
    );
    let refused = Engine::new(client(), &mesh, &rules, model, settings, &params);
    match refused.err().unwrap() {
        Error::IdlePattern { pattern, paths } => {
            assert_eq!(pattern, "embed");
            assert!(paths.contains(&"final_norm".to_owned()) && !paths.contains(&pattern));
        }
        other => panic!("{other}"),
    }
}
