//! Folders that are not as they should be: each gives an error that names the place, never a panic.

use std::os::unix::fs::FileExt;

use super::round_trip::shard;
use super::*;
use crate::error::{Error, WeightProblem};

fn text(folder: &Folder) -> String {
    folder.error().to_string()
}

#[test]
fn a_truncated_file_is_corrupt_and_says_how_much_is_missing() {
    let folder = Folder::copy_of("qwen3");
    let whole = std::fs::read(folder.weights()).unwrap();
    let header = u64::from_le_bytes(*whole.first_chunk().unwrap());
    for (length, expected) in [
        (0, "it has 0 bytes, too few for a header".to_owned()),
        (7, "it has 7 bytes, too few for a header".to_owned()),
        (
            8,
            format!("its header should have {header} bytes, but the whole file has 8"),
        ),
        (
            100,
            format!("its header should have {header} bytes, but the whole file has 100"),
        ),
        (
            whole.len() - 1,
            format!(
                "its header describes a file of {} bytes, but it has {}",
                whole.len(),
                whole.len() - 1
            ),
        ),
        (
            header as usize + 8,
            format!(
                "its header describes a file of {} bytes, but it has {}",
                whole.len(),
                header + 8
            ),
        ),
    ] {
        std::fs::write(folder.weights(), &whole[..length]).unwrap();
        let Error::Corrupt { path, problem } = folder.error() else {
            panic!("{}", text(&folder))
        };
        assert_eq!(path, folder.weights());
        assert_eq!(problem, expected);
    }
    std::fs::write(folder.weights(), [&whole[..], b"more"].concat()).unwrap();
    assert!(text(&folder).contains(&format!("but it has {}", whole.len() + 4)));
}

#[test]
fn a_flipped_byte_in_the_header_never_panics_and_is_not_taken_for_sound() {
    let folder = Folder::copy_of("llama");
    let whole = std::fs::read(folder.weights()).unwrap();
    let header = u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize;
    let metadata = br#"{"__metadata__":{"format":"pt"},"#.len();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(folder.weights())
        .unwrap();
    for at in 0..8 + header {
        for flip in [0x01, 0x10, 0x80] {
            file.write_all_at(&[whole[at] ^ flip], at as u64).unwrap();
            let loaded = folder.load();
            // A flip in the free text of the metadata changes nothing that matters.
            assert!(
                loaded.is_err() || (8..8 + metadata).contains(&at),
                "byte {at} ^ {flip:#x}"
            );
        }
        file.write_all_at(&whole[at..=at], at as u64).unwrap();
    }
    folder.load().expect("every byte is as it was");
    file.write_all_at(&[0xff], 7).unwrap();
    assert!(
        text(&folder).contains("more than can be"),
        "{}",
        text(&folder)
    );
}

#[test]
fn every_wrong_tensor_is_listed_with_both_shapes() {
    let folder = Folder::copy_of("qwen3");
    folder.change(|tensors| {
        tensors.remove("model.norm.weight");
        tensors.insert(
            "model.layers.2.mlp.up_proj.weight".into(),
            Tensor::f32(&[2], &[0.0; 2]),
        );
        tensors.insert(
            "model.layers.0.self_attn.q_proj.weight".into(),
            Tensor::f32(&[64, 32], &[0.0; 64 * 32]),
        );
        // The right number of values in the wrong order must not pass for the right shape.
        tensors
            .get_mut("model.layers.1.mlp.up_proj.weight")
            .unwrap()
            .shape
            .reverse();
        tensors.get_mut("model.embed_tokens.weight").unwrap().dtype = Dtype::I32;
    });
    let Error::Weights { dir, problems } = folder.error() else {
        panic!("{}", text(&folder))
    };
    assert_eq!(dir, folder.path());
    assert_eq!(
        problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "model.embed_tokens.weight is stored as I32, expected F32, BF16 or F16",
            "model.layers.0.self_attn.q_proj.weight has shape [64, 32], expected [64, 64]",
            "model.layers.1.mlp.up_proj.weight has shape [64, 96], expected [96, 64]",
            "model.norm.weight is missing, expected shape [64]",
            "model.layers.2.mlp.up_proj.weight is not part of the model, found shape [2]",
        ]
    );
    assert!(text(&folder).contains("\n  - model.norm.weight is missing"));
}

#[test]
fn values_that_are_not_finite_are_found_in_every_tensor() {
    let folder = Folder::copy_of("llama");
    folder.change(|tensors| {
        for (name, at, value) in [
            ("model.layers.1.mlp.down_proj.weight", 97, f32::NAN),
            ("model.layers.1.mlp.down_proj.weight", 500, f32::INFINITY),
            ("model.norm.weight", 63, f32::NEG_INFINITY),
        ] {
            let tensor = tensors.get_mut(name).unwrap();
            tensor.bytes[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes());
        }
    });
    let Error::Weights { problems, .. } = folder.error() else {
        panic!("{}", text(&folder))
    };
    let down = WeightProblem::NotFinite {
        name: "model.layers.1.mlp.down_proj.weight".into(),
        count: 2,
        // On disk [64, 96]: value 97 is in row 1, value 500 in row 5; in the tree's order 97 comes first as well.
        first: vec![1, 1],
    };
    let norm = WeightProblem::NotFinite {
        name: "model.norm.weight".into(),
        count: 1,
        first: vec![63],
    };
    assert_eq!(problems, [down, norm]);
}

#[test]
fn a_tied_model_may_have_its_head_on_disk_if_it_is_the_embedding() {
    let folder = Folder::copy_of("llama");
    let head = read_file(&folder.weights())["model.embed_tokens.weight"].clone();
    folder.change(|tensors| {
        tensors.insert("lm_head.weight".into(), head.clone());
    });
    folder.load().unwrap();
    folder.change(|tensors| tensors.get_mut("lm_head.weight").unwrap().bytes[0] ^= 1);
    assert!(
        text(&folder).contains("lm_head.weight differs from model.embed_tokens.weight"),
        "{}",
        text(&folder)
    );
}

#[test]
fn a_head_that_is_not_tied_must_be_there() {
    let folder = Folder::copy_of("qwen3");
    folder.change(|tensors| {
        tensors.remove("lm_head.weight");
    });
    assert!(text(&folder).contains("lm_head.weight is missing, expected shape [128, 64]"));
}

#[test]
fn old_rotary_tables_are_reported_as_unused() {
    let folder = Folder::copy_of("llama");
    let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    folder.change(|tensors| {
        tensors.insert(name.into(), Tensor::f32(&[8], &[0.0; 8]));
    });
    assert_eq!(folder.load().unwrap().unused, [name]);
}

#[test]
fn folders_without_weights_or_with_a_bad_index_say_so() {
    let folder = Folder::copy_of("qwen3");
    std::fs::remove_file(folder.weights()).unwrap();
    assert!(matches!(folder.error(), Error::NoWeights { .. }));
    let index = folder.path().join("model.safetensors.index.json");
    for (content, expected) in [
        ("nonsense", "is not valid JSON"),
        ("{}", "it has no weight_map"),
        (r#"{"weight_map": {}}"#, "its weight_map is empty"),
        (
            r#"{"weight_map": {"a": "../b"}}"#,
            "the file of a must be a plain file name, found \"../b\"",
        ),
        (
            r#"{"weight_map": {"a": ".."}}"#,
            "the file of a must be a plain file name",
        ),
        (
            r#"{"weight_map": {"a": 3}}"#,
            "the file of a must be a plain file name, found 3",
        ),
        (
            r#"{"weight_map": {"a": "gone.safetensors"}}"#,
            "gone.safetensors: No such file",
        ),
    ] {
        std::fs::write(&index, content).unwrap();
        assert!(
            text(&folder).contains(expected),
            "{content}: {}",
            text(&folder)
        );
    }
    let config = ModelConfig::load(folder.path()).unwrap();
    let absent = load(folder.path().join("absent"), &config)
        .unwrap_err()
        .to_string();
    assert!(
        absent.starts_with("cannot open") && absent.contains("absent"),
        "{absent}"
    );
}

#[test]
fn a_tensor_in_two_shards_is_an_error() {
    let folder = Folder::copy_of("qwen3");
    shard(&folder);
    let (a, b) = (
        folder.path().join("a.safetensors"),
        folder.path().join("b.safetensors"),
    );
    let mut second = read_file(&b);
    second.insert(
        "model.norm.weight".into(),
        read_file(&a)["model.norm.weight"].clone(),
    );
    write_file(&b, &second);
    let text = text(&folder);
    assert!(
        text.contains("tensor model.norm.weight is also in") && text.contains("a.safetensors"),
        "{text}"
    );
}

#[test]
fn a_folder_that_cannot_be_written_is_named_and_nothing_is_left() {
    let folder = Folder::copy_of("llama");
    let config = ModelConfig::load(folder.path()).unwrap();
    let params = folder.load().unwrap().params;
    // A file where the folder should be: refused to every user, root included.
    let target = folder.path().join("config.json/model");
    let error = save(&target, &config, &params, ferrotune_pjrt::DType::F32, None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot create") && error.contains("config.json/model"),
        "{error}"
    );
    let gone = folder.path().join("gone/grad.safetensors");
    let error = export_gradients(&gone, &config, &params)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot write") && error.contains("gone/grad.safetensors"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn a_model_too_large_for_memory_is_an_error() {
    let text = std::fs::read_to_string(fixture("llama").join("config.json")).unwrap();
    let text = text
        .replace("\"vocab_size\": 128", "\"vocab_size\": 2000000000")
        .replace("\"hidden_size\": 64", "\"hidden_size\": 2000000000");
    let config = ModelConfig::parse(&text, "").unwrap();
    assert!(config.param_count() > 4_000_000_000_000_000_000);
    assert!(matches!(
        crate::init_params(&config, 0),
        Err(Error::Memory { .. })
    ));
}
