//! Tensors come one after the other, as files have them, and no parameter is held for longer than its turn.

use std::borrow::Cow;
use std::cell::RefCell;

use ferrotune_pjrt::DType;

use super::*;
use crate::error::{Error, WeightProblem};

/// The array of a parameter among others.
fn find<'a>(params: &'a [(ParamSpec, HostArray)], spec: &ParamSpec) -> &'a HostArray {
    &params.iter().find(|it| it.0.path == spec.path).unwrap().1
}

/// All tensors of a stream of f32.
fn gathered(layout: &HfLayout, params: &[(ParamSpec, HostArray)]) -> Tensors {
    let mut tensors = Tensors::new();
    let mut keep = |name: &str, array: HostArray| {
        let tensor = Tensor::f32(array.dims(), array.as_slice());
        assert!(tensors.insert(name.to_owned(), tensor).is_none(), "{name}");
        Ok::<_, Error>(())
    };
    let mut fetch = |spec: &ParamSpec| Ok(Cow::Borrowed(find(params, spec)));
    layout.stream(DType::F32, &mut fetch, &mut keep).unwrap();
    tensors
}

#[test]
fn a_stream_is_what_transformers_wrote() {
    for family in FAMILIES {
        let source = fixture(family);
        let config = ModelConfig::load(&source).unwrap();
        let params = load(&source, &config).unwrap().params;
        let expected = read_file(&source.join("model.safetensors"));
        for layout in [
            HfLayout::of(&config),
            HfLayout::of_folder(&config, &source).unwrap(),
        ] {
            assert!(gathered(&layout, &params) == expected, "{family}");
        }
    }
    for family in ["llama", "qwen3_5_text"] {
        let (source, config) = (fixture(family), ModelConfig::load(fixture(family)).unwrap());
        let adapter = load_adapter(source.join("adapter"), &config).unwrap();
        let layout = HfLayout::of_adapters(&config, &adapter.lora).unwrap();
        let expected = read_file(&source.join("adapter/adapter_model.safetensors"));
        assert!(gathered(&layout, &adapter.params) == expected, "{family}");
    }
}

#[test]
fn tensors_of_a_parameter_come_before_the_next_is_asked_for() {
    let config = ModelConfig::load(fixture("llama")).unwrap();
    let params = load(fixture("llama"), &config).unwrap().params;
    let events = RefCell::new(Vec::new());
    let mut fetch = |spec: &ParamSpec| {
        events.borrow_mut().push(spec.path.clone());
        Ok::<_, Error>(Cow::Borrowed(find(&params, spec)))
    };
    let mut each = |name: &str, _: HostArray| {
        events.borrow_mut().push(format!("  {name}"));
        Ok(())
    };
    let layout = HfLayout::of(&config);
    layout.stream(DType::BF16, &mut fetch, &mut each).unwrap();
    let events = events.into_inner();
    assert_eq!(
        events[..8],
        [
            "embed",
            "  model.embed_tokens.weight",
            "layers/input_norm",
            "  model.layers.0.input_layernorm.weight",
            "  model.layers.1.input_layernorm.weight",
            "layers/attn/q_proj",
            "  model.layers.0.self_attn.q_proj.weight",
            "  model.layers.1.self_attn.q_proj.weight",
        ]
    );
    let asked: Vec<&String> = events.iter().filter(|it| !it.starts_with(' ')).collect();
    let paths: Vec<&String> = params.iter().map(|(spec, _)| &spec.path).collect();
    assert_eq!(asked, paths, "each once");
}

#[test]
fn what_cannot_be_written_ends_the_stream_and_leaves_the_files() {
    let folder = Folder::copy_of("llama");
    let config = ModelConfig::load(folder.path()).unwrap();
    let mut params = folder.load().unwrap().params;
    let (sound, names) = (params.clone(), |problems: Vec<WeightProblem>| {
        let name = |it: &WeightProblem| it.to_string().split(' ').next().unwrap().to_owned();
        problems.iter().map(name).collect::<Vec<_>>()
    });
    for (i, (_, array)) in params.iter_mut().enumerate() {
        if [1, 3].contains(&i) {
            let values = vec![f32::NAN; array.as_slice::<f32>().len()];
            *array = HostArray::from_slice(array.dims(), &values).unwrap();
        }
    }
    let paths = [params[1].0.path.clone(), params[3].0.path.clone()];
    let mut fetch = |spec: &ParamSpec| Ok::<_, Error>(Cow::Borrowed(find(&params, spec)));
    let mut heard = Vec::new();
    let mut each = |name: &str, _: HostArray| {
        heard.push(name.to_owned());
        Ok(())
    };
    let layout = HfLayout::of(&config);
    let refused = layout.stream(DType::F32, &mut fetch, &mut each);
    let Error::Unfit { problems } = refused.unwrap_err() else {
        panic!("another error");
    };
    assert_eq!(names(problems), paths);
    assert_eq!(heard, ["model.embed_tokens.weight"]);
    // Over a folder that has weights: they stay, and nothing lies beside them.
    let before = std::fs::read_dir(folder.path()).unwrap().count();
    let (dir, source) = (folder.path(), Some(folder.path()));
    let refused = save_from(dir, &config, DType::F32, source, &mut fetch);
    let Error::Arrays { problems, .. } = refused.unwrap_err() else {
        panic!("another error");
    };
    assert_eq!(names(problems), paths);
    assert_eq!(folder.load().unwrap().params, sound);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), before);
    // A failure of whoever gives the arrays is passed on.
    let mut broken = |_: &ParamSpec| {
        let dtype = DType::S32;
        Err::<Cow<'_, HostArray>, _>(Error::SaveDtype { dtype })
    };
    let refused = save_from(dir, &config, DType::F32, source, &mut broken);
    assert!(matches!(refused, Err(Error::SaveDtype { .. })));
    assert_eq!(folder.load().unwrap().params, sound);
}
