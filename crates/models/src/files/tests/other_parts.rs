//! Tensors of parts that are not here: named once, and copied as they are.

use ferrotune_pjrt::DType;

use super::*;

/// Tensors that a larger model may have beside the decoder's, of number types that no weight here has.
fn other_parts() -> Tensors {
    let of = |dtype, shape: &[usize], bytes: usize| Tensor {
        dtype,
        shape: shape.to_vec(),
        bytes: (0..bytes).map(|b| (7 * b + 1) as u8).collect(),
    };
    [
        (
            "model.visual.patch_embed.proj.weight",
            of(Dtype::BF16, &[3, 2], 12),
        ),
        (
            "model.visual.blocks.0.attn.qkv.bias",
            of(Dtype::F8_E4M3, &[5], 5),
        ),
        ("visual.pos", of(Dtype::I64, &[2], 16)),
        ("model.vision_tower.mask", of(Dtype::U8, &[3], 3)),
        ("mtp.fc.weight", of(Dtype::F16, &[1, 2], 4)),
        (
            "mtp.layers.0.mlp.experts.0.up_proj.weight",
            of(Dtype::F32, &[1], 4),
        ),
        ("mtp.empty", of(Dtype::BOOL, &[0], 0)),
    ]
    .map(|(name, tensor)| (name.to_owned(), tensor))
    .into()
}

#[test]
fn tensors_of_other_parts_are_listed_and_copied_as_they_are() {
    for (family, dtype) in [
        ("qwen3_5_text", DType::F32),
        ("qwen3_5_moe_text", DType::BF16),
        ("llama", DType::F16),
    ] {
        let folder = Folder::copy_of(family);
        folder.change(|tensors| tensors.extend(other_parts()));
        let mut names: Vec<String> = other_parts().into_keys().collect();
        names.sort();
        let weights = folder.load().unwrap();
        assert_eq!(weights.unused, names, "{family}");
        assert_eq!(weights.stored, Some(DType::F32), "the model's own count");
        let saved = folder.saved_again("again", dtype);
        for (name, tensor) in other_parts() {
            assert_eq!(saved[&name], tensor, "{family} {name}");
        }
        assert_eq!(saved.len(), folder.tensors().len());
        let read_again = load(folder.path().join("again"), &config(&folder)).unwrap();
        assert_eq!(read_again.unused, names);
    }
}

fn config(folder: &Folder) -> ModelConfig {
    ModelConfig::load(folder.path()).unwrap()
}

#[test]
fn a_name_that_only_looks_like_another_part_is_not_part_of_the_model() {
    let folder = Folder::copy_of("llama");
    folder.change(|tensors| {
        tensors.insert("visuals.a".into(), Tensor::f32(&[1], &[0.0]));
        tensors.insert("model.layers.0.mtp.a".into(), Tensor::f32(&[1], &[0.0]));
    });
    assert_eq!(
        folder.problems(),
        [
            "model.layers.0.mtp.a is not part of the model, found shape [1]",
            "visuals.a is not part of the model, found shape [1]",
        ]
    );
}

#[test]
fn the_head_of_a_tied_model_is_kept_where_it_was() {
    let folder = Folder::copy_of("llama");
    assert!(
        !folder
            .saved_again("without", DType::F32)
            .contains_key("lm_head.weight")
    );
    folder.change(|tensors| {
        let head = tensors["model.embed_tokens.weight"].clone();
        tensors.insert("lm_head.weight".into(), head);
    });
    let mut weights = folder.load().unwrap();
    assert!(weights.unused.is_empty());
    // With other values than on disk: the head must follow the embedding.
    let (spec, embedding) = &mut weights.params[0];
    assert_eq!(spec.path, "embed");
    let moved: Vec<f32> = embedding
        .as_slice::<f32>()
        .iter()
        .map(|v| v + 1.0)
        .collect();
    *embedding = HostArray::from_slice(&spec.dims, &moved).unwrap();
    let target = folder.path().join("again");
    let source = Some(folder.path());
    save(
        &target,
        &config(&folder),
        &weights.params,
        DType::F32,
        source,
    )
    .unwrap();
    let saved = read_file(&target.join("model.safetensors"));
    assert_eq!(saved["lm_head.weight"], saved["model.embed_tokens.weight"]);
    assert_eq!(saved["lm_head.weight"].values(), moved);
    assert_eq!(
        load(&target, &config(&folder)).unwrap().params,
        weights.params
    );
}

#[test]
fn a_survey_says_what_loading_would() {
    for family in FAMILIES {
        let folder = Folder::copy_of(family);
        folder.change(|tensors| tensors.extend(other_parts()));
        let found = survey(folder.path(), &config(&folder)).unwrap();
        assert_eq!(found.unused, folder.load().unwrap().unused);
        assert_eq!(found.stored, [DType::F32]);
        let size = std::fs::metadata(folder.weights()).unwrap().len();
        assert_eq!(found.files, [(folder.weights(), size)]);
    }
    let folder = Folder::copy_of("qwen3_next");
    folder.change(|tensors| {
        let norm = tensors.get_mut("model.norm.weight").unwrap();
        (norm.dtype, norm.shape) = (Dtype::BF16, vec![64]);
        norm.bytes.truncate(128);
        tensors.remove("lm_head.weight");
    });
    let text = survey(folder.path(), &config(&folder))
        .unwrap_err()
        .to_string();
    assert!(text.contains("lm_head.weight is missing"), "{text}");
    folder.change(|tensors| {
        tensors.insert(
            "lm_head.weight".into(),
            Tensor::f32(&[128, 64], &[0.0; 8192]),
        );
    });
    let mixed = survey(folder.path(), &config(&folder)).unwrap().stored;
    assert_eq!(mixed, [DType::F32, DType::BF16]);
    folder.change(|tensors| tensors.get_mut("lm_head.weight").unwrap().bytes[3] = 0xff);
    survey(folder.path(), &config(&folder)).expect("values are not read");
}
