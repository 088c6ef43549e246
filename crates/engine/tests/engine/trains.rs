//! Adapters and frozen parameters: only what learns has gradients, moments, and a place in a checkpoint.

use ferrotune_engine::{Engine, EngineConfig, Error, Lora, Loss, Trains};
use ferrotune_graph::HostArray;
use ferrotune_models::{ModelConfig, init_adapter, load};
use ferrotune_nn::ParamSpec;

use crate::setup::{config, documents, engine, engine_of, engine_on, fixture, relative, rows};

type Params = Vec<(ParamSpec, HostArray)>;

fn lora(targets: &[&str]) -> Lora {
    Lora {
        rank: 3,
        alpha: 4.5,
        targets: targets.iter().map(|t| (*t).to_owned()).collect(),
        experts: false,
    }
}

/// A model, its weights, and adapters with values in both matrices.
fn with_adapters(family: &str, lora: &Lora) -> (ModelConfig, Params, Params) {
    let model = ModelConfig::load(fixture(family)).unwrap();
    let base = load(fixture(family), &model).unwrap().params;
    let mut adapters = init_adapter(&model, lora, 1).unwrap();
    for (i, (spec, array)) in adapters.iter_mut().enumerate() {
        if spec.path.ends_with("_lora_b") {
            let count: usize = spec.dims.iter().product();
            let value = |n: usize| 0.02 * ((n * 37 + i * 11) as f32).sin();
            let values: Vec<f32> = (0..count).map(value).collect();
            *array = HostArray::from_slice(&spec.dims, &values).unwrap();
        }
    }
    (model, base, adapters)
}

fn with_lora(lora: &Lora) -> EngineConfig {
    EngineConfig {
        trains: Trains::Adapters(lora.clone()),
        ..config()
    }
}

fn of<'a>(params: &'a Params, path: &str) -> &'a HostArray {
    let found = params.iter().find(|(spec, _)| spec.path == path);
    &found.unwrap_or_else(|| panic!("no {path}")).1
}

/// `[L…,M,K] · [L…,K,N]`, either transposed first.
fn product(a: &HostArray, b: &HostArray, (ta, tb): (bool, bool)) -> HostArray {
    let (x, y) = (a.as_slice::<f32>(), b.as_slice::<f32>());
    let (leading, da) = a.dims().split_at(a.dims().len() - 2);
    let db = &b.dims()[leading.len()..];
    let (m, k) = if ta { (da[1], da[0]) } else { (da[0], da[1]) };
    let n = if tb { db[0] } else { db[1] };
    let layers = leading.iter().product();
    let mut out = vec![0_f32; layers * m * n];
    for layer in 0..layers {
        let (x, y) = (&x[layer * m * k..], &y[layer * k * n..]);
        for (at, out) in out[layer * m * n..][..m * n].iter_mut().enumerate() {
            let (i, j) = (at / n, at % n);
            let term = |l: usize| {
                let left = if ta { x[l * m + i] } else { x[i * k + l] };
                let right = if tb { y[j * k + l] } else { y[l * n + j] };
                f64::from(left) * f64::from(right)
            };
            *out = (0..k).map(term).sum::<f64>() as f32;
        }
    }
    HostArray::from_slice(&[leading, &[m, n]].concat(), &out).unwrap()
}

fn combine(a: &HostArray, b: &HostArray, f: impl Fn(f32, f32) -> f32) -> HostArray {
    let pairs = a.as_slice::<f32>().iter().zip(b.as_slice::<f32>());
    let values: Vec<f32> = pairs.map(|(a, b)| f(*a, *b)).collect();
    HostArray::from_slice(a.dims(), &values).unwrap()
}

fn scores(engine: &mut Engine) -> Vec<f32> {
    let batch = rows(&documents(&[20, 13, 30]), 40, 1);
    engine.score(&batch).unwrap().logprob
}

fn gradient(engine: &mut Engine) -> Params {
    let batch = rows(&documents(&[20, 13, 30]), 40, 1);
    engine
        .forward_backward(&batch, &Loss::cross_entropy())
        .unwrap();
    engine.gradients_to_host().unwrap()
}

#[test]
fn fresh_adapters_change_nothing_and_only_they_have_gradients() {
    let lora = lora(&["q_proj", "down_proj"]);
    let model = ModelConfig::load(fixture("qwen3")).unwrap();
    let base = load(fixture("qwen3"), &model).unwrap().params;
    let adapters = init_adapter(&model, &lora, 7).unwrap();
    let all = [base, adapters].concat();
    let mut engine = engine_of(model, &all, 1, 1, with_lora(&lora));
    assert_eq!(
        scores(&mut engine),
        scores(&mut crate::setup::engine("qwen3"))
    );
    let paths: Vec<String> = gradient(&mut engine)
        .into_iter()
        .map(|(spec, _)| spec.path)
        .collect();
    assert_eq!(
        paths,
        [
            "layers/attn/q_proj_lora_a",
            "layers/attn/q_proj_lora_b",
            "layers/mlp/down_proj_lora_a",
            "layers/mlp/down_proj_lora_b",
        ]
    );
    let before = engine.params_to_host().unwrap();
    engine.update(0.1).unwrap().read().unwrap();
    let after = engine.params_to_host().unwrap();
    for ((spec, a), (_, b)) in before.iter().zip(&after) {
        let adapter = spec.path.ends_with("_lora_b");
        // With B zero, A has no gradient yet.
        let learned = a.bytes() != b.bytes();
        if spec.path.ends_with("_lora_a") {
            continue;
        }
        assert_eq!(learned, adapter, "{}", spec.path);
    }
}

/// The layer with an adapter is the layer with the weight `W + s A B`, so by the chain rule `dA = s dW Bᵀ`, `dB = s Aᵀ dW`.
#[test]
fn adapters_are_weights_of_low_rank() {
    for (family, names, experts) in [
        ("qwen2", &["q_proj", "o_proj", "up_proj"][..], false),
        ("qwen3_5_text", &["in_proj_z", "out_proj", "v_proj"], false),
        ("qwen3_moe", &["k_proj", "gate_proj", "down_proj"], true),
    ] {
        let lora = Lora {
            experts,
            ..lora(names)
        };
        let (model, base, adapters) = with_adapters(family, &lora);
        let mut merged = base.clone();
        for (spec, weight) in &mut merged {
            let a = format!("{}_lora_a", spec.path);
            if adapters.iter().any(|(spec, _)| spec.path == a) {
                let b = of(&adapters, &format!("{}_lora_b", spec.path));
                let change = product(of(&adapters, &a), b, (false, false));
                *weight = combine(weight, &change, |w, c| w + 1.5 * c);
            }
        }
        let all = [base, adapters.clone()].concat();
        let mut adapted = engine_of(model.clone(), &all, 1, 1, with_lora(&lora));
        let mut whole = engine_of(model, &merged, 1, 1, config());
        let (a, b) = (scores(&mut adapted), scores(&mut whole));
        let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs());
        assert!(worst.fold(0.0, f32::max) < 1e-5, "{family}");

        let (small, large) = (gradient(&mut adapted), gradient(&mut whole));
        let scaled = |x: HostArray| combine(&x, &x, |x, _| 1.5 * x);
        let expected = adapters.iter().map(|(spec, _)| {
            let host = &spec.path[..spec.path.len() - "_lora_a".len()];
            let dw = of(&large, host);
            let value = if spec.path.ends_with("_a") {
                product(dw, of(&adapters, &format!("{host}_lora_b")), (false, true))
            } else {
                product(of(&adapters, &format!("{host}_lora_a")), dw, (true, false))
            };
            (spec.clone(), scaled(value))
        });
        let error = relative(&expected.collect::<Params>(), &small);
        assert!(error < 1e-5, "{family}: {error}");
    }
}

#[test]
fn adapters_of_peft_have_its_numbers() {
    for family in ["llama", "qwen3_5_text", "qwen3_moe"] {
        let model = ModelConfig::load(fixture(family)).unwrap();
        let base = load(fixture(family), &model).unwrap().params;
        let folder = fixture(family).join("adapter");
        let adapter = ferrotune_models::load_adapter(&folder, &model).unwrap();
        let text = std::fs::read_to_string(folder.join("logprobs.json")).unwrap();
        let expected: Vec<Vec<f32>> = serde_json::from_str(&text).unwrap();
        let all = [base, adapter.params].concat();
        let mut engine = engine_of(model, &all, 1, 1, with_lora(&adapter.lora));
        let batch = crate::router::reference_rows(family);
        let found = engine.score(&batch).unwrap().logprob;
        let found = batch.unpack(&found).unwrap();
        for (row, expected) in found.iter().zip(&expected) {
            let worst = row[1..].iter().zip(expected).map(|(a, b)| (a - b).abs());
            assert!(worst.fold(0.0, f32::max) < 2e-5, "{family}");
        }
    }
}

#[test]
fn adapters_have_one_gradient_on_any_mesh() {
    let lora = lora(&["q_proj", "gate_proj", "down_proj"]);
    let (model, base, adapters) = with_adapters("llama", &lora);
    let all = [base, adapters].concat();
    let batch = rows(&documents(&[20, 13, 30, 11]), 40, 4);
    let mut found = Vec::new();
    for (data, fsdp) in [(1, 1), (2, 2)] {
        let mut engine = engine_of(model.clone(), &all, data, fsdp, with_lora(&lora));
        engine
            .forward_backward(&batch, &Loss::cross_entropy())
            .unwrap();
        found.push(engine.gradients_to_host().unwrap());
    }
    assert!(relative(&found[0], &found[1]) < 2e-6);
}

#[test]
fn a_checkpoint_holds_what_learns_and_knows_what_does_not() {
    let lora = lora(&["k_proj"]);
    let (model, base, adapters) = with_adapters("llama", &lora);
    let all = [base, adapters].concat();
    let fresh = |all: &Params| engine_of(model.clone(), all, 1, 1, with_lora(&lora));
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-1");
    let mut one = fresh(&all);
    gradient(&mut one);
    one.update(0.01).unwrap().read().unwrap();
    one.save(&dir, &serde_json::Value::Null).unwrap();
    let size = std::fs::metadata(dir.join("params.safetensors"))
        .unwrap()
        .len();
    // Two layers of k_proj [64,32]: (64 + 32) · 3 numbers each.
    assert!(size < 2 * 96 * 3 * 4 + 1024, "{size}");
    let mut other = fresh(&all);
    other.restore(&dir).unwrap();
    assert_eq!(
        one.params_to_host().unwrap(),
        other.params_to_host().unwrap()
    );

    let mut changed = all.clone();
    changed[0].1 = combine(&changed[0].1, &changed[0].1, |w, _| w + 1.0);
    let error = fresh(&changed).restore(&dir).unwrap_err();
    assert!(matches!(error, Error::Incompatible { .. }), "{error}");
    assert!(error.to_string().contains("frozen"), "{error}");
    let error = engine("llama").restore(&dir).unwrap_err();
    assert!(matches!(error, Error::Incompatible { .. }), "{error}");
}

#[test]
fn frozen_routers_stay_and_the_rest_learns() {
    let frozen = |patterns: &[&str]| EngineConfig {
        trains: Trains::AllBut(patterns.iter().map(|p| (*p).to_owned()).collect()),
        ..config()
    };
    let mut part = engine_on("qwen3_moe", 1, 1, frozen(&["*/router", "embed"]));
    let mut whole = engine("qwen3_moe");
    let (few, all) = (gradient(&mut part), gradient(&mut whole));
    assert_eq!(few.len() + 2, all.len());
    for (spec, array) in &few {
        assert_eq!(array.bytes(), of(&all, &spec.path).bytes(), "{}", spec.path);
    }
    let [.., accumulation] = part.state_bytes();
    assert!(accumulation < whole.state_bytes()[2]);
    let before = part.params_to_host().unwrap();
    part.update(0.1).unwrap().read().unwrap();
    let after = part.params_to_host().unwrap();
    for path in ["layers/mlp/router", "embed"] {
        assert_eq!(of(&before, path).bytes(), of(&after, path).bytes());
    }
    assert_ne!(
        of(&before, "lm_head").bytes(),
        of(&after, "lm_head").bytes()
    );
}

#[test]
fn settings_that_fit_nothing_are_refused() {
    let refuse = |trains: Trains| {
        let model = ModelConfig::load(fixture("llama")).unwrap();
        let params = load(fixture("llama"), &model).unwrap().params;
        let config = EngineConfig { trains, ..config() };
        let mesh = ferrotune_graph::Mesh::single();
        let rules = ferrotune_graph::Rules::unsharded(&ferrotune_nn::LOGICAL_AXES);
        let client = crate::setup::client();
        let engine = Engine::new(client, &mesh, &rules, model, config, &params);
        engine.err().expect("it must be refused").to_string()
    };
    let text = refuse(Trains::AllBut(vec!["*/rooter".to_owned()]));
    assert!(
        text.contains("`*/rooter`") && text.contains("layers/attn/q_proj"),
        "{text}"
    );
    assert!(refuse(Trains::AllBut(vec!["*".to_owned()])).contains("every parameter is frozen"));
    let text = refuse(Trains::Adapters(Lora {
        rank: 0,
        alpha: f64::NAN,
        targets: vec!["q_proj".to_owned(), "qq".to_owned()],
        experts: false,
    }));
    for part in [
        "rank must be at least 1",
        "alpha must be above 0",
        "\"qq\"",
        "k_proj",
    ] {
        assert!(text.contains(part), "{text}");
    }
}
