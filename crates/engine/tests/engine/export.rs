//! Weights leave the engine under the names of Hugging Face.

use std::collections::BTreeMap;
use std::fs;

use ferrotune_engine::{Engine, EngineConfig, Error, HfLayout, Lora, Loss, Trains};
use ferrotune_graph::DType;
use ferrotune_models::{ModelConfig, init_adapter, save, save_adapter};
use safetensors::SafeTensors;

use crate::setup::{config, documents, engine_of, engine_on, fixture, rows};

fn learn(engine: &mut Engine) {
    let batch = rows(&documents(&[14, 9]), 16, 2);
    let loss = Loss::cross_entropy();
    engine.forward_backward(&batch, &loss).unwrap();
    engine.update(1e-2).unwrap();
}

/// Bytes of the tensors of a file by their names.
fn read(file: &std::path::Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = fs::read(file).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors().into_iter();
    tensors
        .map(|(name, it)| (name, it.data().to_vec()))
        .collect()
}

fn streamed(engine: &Engine, layout: &HfLayout, dtype: DType) -> BTreeMap<String, Vec<u8>> {
    let mut tensors = BTreeMap::new();
    let mut keep = |name: &str, array: ferrotune_graph::HostArray| {
        tensors.insert(name.to_owned(), array.bytes().to_vec());
        Ok(())
    };
    engine.weights_for(layout, dtype, &mut keep).unwrap();
    tensors
}

#[test]
fn a_stream_and_a_folder_have_the_weights_after_the_last_update() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    let mut engine = engine_on("qwen3", 1, 2, config());
    learn(&mut engine);
    let source = fixture("qwen3");
    let (model, source) = (engine.model(), Some(source.as_path()));
    let params = engine.params_to_host().unwrap();
    save(&whole, model, &params, DType::BF16, source).unwrap();
    engine.save_model(&parts, DType::BF16, source).unwrap();
    let name = "model.safetensors";
    assert!(fs::read(whole.join(name)).unwrap() == fs::read(parts.join(name)).unwrap());
    let layout = HfLayout::of(model);
    assert!(streamed(&engine, &layout, DType::BF16) == read(&whole.join(name)));
    // Whoever takes the tensors may stop, and is told what is not there.
    let mut count = 0;
    let stopped = engine.weights_for(&layout, DType::F32, &mut |_, _| {
        count += 1;
        Err(Error::NoGradient)
    });
    assert!(matches!(stopped, Err(Error::NoGradient)) && count == 1);
    assert!(matches!(
        engine.param_to_host("layers/attn/w_proj"),
        Err(Error::Parameter { .. })
    ));
}

#[test]
fn adapters_leave_under_the_names_of_peft() {
    let folder = tempfile::tempdir().unwrap();
    let model = ModelConfig::load(fixture("llama")).unwrap();
    let lora = Lora {
        rank: 2,
        alpha: 4.0,
        targets: vec!["q_proj".to_owned()],
        experts: false,
    };
    let mut params = ferrotune_models::load(fixture("llama"), &model)
        .unwrap()
        .params;
    let base = params.len();
    params.extend(init_adapter(&model, &lora, 1).unwrap());
    let settings = EngineConfig {
        trains: Trains::Adapters(lora.clone()),
        ..config()
    };
    let mut engine = engine_of(model, &params, 1, 1, settings);
    learn(&mut engine);
    let adapters = &engine.params_to_host().unwrap()[base..];
    save_adapter(folder.path(), engine.model(), &lora, adapters, "llama").unwrap();
    let layout = HfLayout::of_adapters(engine.model(), &lora).unwrap();
    let found = streamed(&engine, &layout, DType::F32);
    let name = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight";
    assert!(found[name].iter().any(|byte| *byte != 0), "it has learned");
    assert!(found == read(&folder.path().join("adapter_model.safetensors")));
}
