//! Checkpoints of one family that name and pack their tensors in different ways.

use ferrotune_pjrt::DType;

use super::*;

const SPARSE: [&str; 3] = ["qwen3_moe", "qwen3_next", "qwen3_5_moe_text"];

/// Values of a tensor's bytes by rows of the first dimension, `size` bytes each.
fn joined(parts: &[&Tensor], shape: &[usize]) -> Tensor {
    Tensor {
        dtype: parts[0].dtype,
        shape: shape.to_vec(),
        bytes: parts.iter().flat_map(|part| part.bytes.clone()).collect(),
    }
}

/// The same tensors with the four experts of each layer in one: all gates and ups `[X, 2F, D]`, and all downs `[X, D, F]`.
fn fused(apart: &Tensors) -> Tensors {
    let mut tensors = Tensors::new();
    for (name, tensor) in apart {
        let Some((layer, rest)) = name.split_once(".experts.") else {
            tensors.insert(name.clone(), tensor.clone());
            continue;
        };
        if rest != "0.gate_proj.weight" {
            continue;
        }
        let of =
            |expert: usize, side: &str| &apart[&format!("{layer}.experts.{expert}.{side}.weight")];
        let (width, model) = (tensor.shape[0], tensor.shape[1]);
        let both: Vec<&Tensor> = (0..4)
            .flat_map(|expert| [of(expert, "gate_proj"), of(expert, "up_proj")])
            .collect();
        let downs: Vec<&Tensor> = (0..4).map(|expert| of(expert, "down_proj")).collect();
        tensors.insert(
            format!("{layer}.experts.gate_up_proj"),
            joined(&both, &[4, 2 * width, model]),
        );
        tensors.insert(
            format!("{layer}.experts.down_proj"),
            joined(&downs, &[4, model, width]),
        );
    }
    tensors
}

#[test]
fn experts_in_one_tensor_are_the_same_weights_and_stay_in_one() {
    for family in SPARSE {
        let folder = Folder::copy_of(family);
        let apart = folder.load().unwrap().params;
        folder.change(|tensors| *tensors = fused(tensors));
        assert_eq!(folder.load().unwrap().params, apart, "{family}");
        assert_eq!(folder.saved_again("again", DType::F32), folder.tensors());
        // In another number type too, and from there once more.
        let half = folder.saved_again("half", DType::BF16);
        assert!(half.values().all(|tensor| tensor.dtype == Dtype::BF16));
        write_file(&folder.weights(), &half);
        assert_eq!(folder.saved_again("half again", DType::BF16), half);
    }
}

#[test]
fn what_other_parts_do_with_their_experts_says_nothing_of_the_models() {
    let folder = Folder::copy_of("qwen3_5_moe_text");
    let apart = folder.load().unwrap().params;
    let name = "mtp.layers.0.mlp.experts.gate_up_proj";
    folder.change(|tensors| {
        tensors.insert(name.to_owned(), Tensor::f32(&[1, 2, 2], &[0.5; 4]));
    });
    let weights = folder.load().unwrap();
    assert_eq!(weights.params, apart);
    assert_eq!(weights.unused, [name]);
    assert_eq!(folder.saved_again("again", DType::F32), folder.tensors());
}

/// The tensors as a larger model names them.
fn renamed(tensors: Tensors, prefix: &str, head: &str) -> Tensors {
    let new = |name: String| match name.strip_prefix("model.") {
        Some(rest) => format!("{prefix}{rest}"),
        None => format!("{head}{name}"),
    };
    tensors
        .into_iter()
        .map(|(name, tensor)| (new(name), tensor))
        .collect()
}

#[test]
fn every_prefix_is_read_and_written_again() {
    for family in ["qwen3_5_text", "qwen3_5_moe_text", "llama"] {
        for (prefix, head) in [
            ("model.language_model.", ""),
            ("language_model.model.", "language_model."),
            ("language_model.", ""),
        ] {
            for fuse in [false, true] {
                let folder = Folder::copy_of(family);
                let plain = folder.load().unwrap().params;
                let packed = if fuse { fused } else { Tensors::clone };
                folder.change(|tensors| *tensors = renamed(packed(tensors), prefix, head));
                assert_eq!(folder.load().unwrap().params, plain, "{family} {prefix}");
                assert_eq!(
                    folder.saved_again("again", DType::F32),
                    folder.tensors(),
                    "{family} {prefix}"
                );
            }
        }
    }
}

#[test]
fn without_a_source_tensors_are_named_and_packed_as_transformers_does() {
    let folder = Folder::copy_of("qwen3_5_moe_text");
    let plain = folder.tensors();
    folder.change(|tensors| *tensors = renamed(fused(tensors), "model.language_model.", ""));
    let config = ModelConfig::load(folder.path()).unwrap();
    let target = folder.path().join("alone");
    let params = folder.load().unwrap().params;
    save(&target, &config, &params, DType::F32, None).unwrap();
    assert_eq!(read_file(&target.join("model.safetensors")), plain);
}

/// Rows `from..to` of each of `heads` equal parts of a matrix's rows, one after the other.
fn rows_by_head(matrix: &Tensor, heads: usize, from: usize, to: usize) -> Vec<Vec<f32>> {
    let rows: Vec<Vec<f32>> = matrix
        .values()
        .chunks(matrix.shape[1])
        .map(<[f32]>::to_vec)
        .collect();
    let heads = rows.chunks(rows.len() / heads);
    heads.flat_map(|head| head[from..to].to_vec()).collect()
}

fn columns(array: &HostArray) -> Vec<Vec<f32>> {
    let (height, width) = (array.dims()[1], array.dims()[2]);
    let values = array.as_slice::<f32>();
    let column = |c| (0..height).map(|r| values[r * width + c]).collect();
    (0..width).map(column).collect()
}

#[test]
fn packed_projections_go_by_key_head() {
    // Two key heads of 16, each with two value heads of 16: [q 16 | k 16 | v 32 | z 32] and [b 2 | a 2].
    let folder = Folder::copy_of("qwen3_next");
    let params = folder.load().unwrap().params;
    let disk = folder.tensors();
    for layer in 0..3 {
        let tensor = |name: &str| &disk[&format!("model.layers.{layer}.linear_attn.{name}.weight")];
        let tree = |name: &str| columns(array(&params, &format!("layers/{layer}/delta/{name}")));
        let (qkvz, ba) = (tensor("in_proj_qkvz"), tensor("in_proj_ba"));
        let parts = [(0, 16), (16, 32), (32, 64)];
        let qkv = parts.map(|(from, to)| rows_by_head(qkvz, 2, from, to));
        assert_eq!(tree("in_proj_qkv"), qkv.concat());
        assert_eq!(tree("in_proj_z"), rows_by_head(qkvz, 2, 64, 96));
        assert_eq!(tree("in_proj_b"), rows_by_head(ba, 2, 0, 2));
        assert_eq!(tree("in_proj_a"), rows_by_head(ba, 2, 2, 4));
    }
}

/// Where the tree has a tensor of a layer: its path in the layer, and whether it is the other way round.
fn path_of(name: &str) -> Option<(String, bool)> {
    let vectors = [
        ("input_layernorm.weight", "input_norm"),
        ("post_attention_layernorm.weight", "post_attn_norm"),
        ("self_attn.q_norm.weight", "attn/q_norm"),
        ("self_attn.k_norm.weight", "attn/k_norm"),
        ("self_attn.q_proj.bias", "attn/q_proj_bias"),
        ("self_attn.k_proj.bias", "attn/k_proj_bias"),
        ("self_attn.v_proj.bias", "attn/v_proj_bias"),
        ("linear_attn.A_log", "delta/decay_log"),
        ("linear_attn.dt_bias", "delta/decay_bias"),
        ("linear_attn.norm.weight", "delta/norm"),
    ];
    let matrices = [
        ("linear_attn.conv1d.weight", "delta/taps"),
        ("mlp.gate.weight", "mlp/router"),
        ("mlp.shared_expert_gate.weight", "mlp/shared_expert_gate"),
    ];
    let find = |list: &[(&str, &str)]| {
        let found = list.iter().find(|(disk, _)| *disk == name);
        found.map(|(_, path)| (*path).to_owned())
    };
    if let Some(path) = find(&vectors) {
        return Some((path, false));
    }
    if let Some(path) = find(&matrices) {
        return Some((path, true));
    }
    // Looked at by themselves.
    if name.contains(".experts.") || name.contains("qkvz") || name.contains("_ba.") {
        return None;
    }
    let path = name.strip_suffix(".weight").unwrap().replace('.', "/");
    let path = path.replace("self_attn/", "attn/");
    Some((path.replace("linear_attn/", "delta/"), true))
}

#[test]
fn every_tensor_of_every_family_is_where_the_layer_code_looks_for_it() {
    for family in FAMILIES {
        let folder = Folder::copy_of(family);
        let params = folder.load().unwrap().params;
        let hybrid = params.iter().any(|(spec, _)| spec.path.contains("delta"));
        for (name, tensor) in folder.tensors() {
            let Some(rest) = name.strip_prefix("model.layers.") else {
                continue;
            };
            let (layer, rest) = rest.split_once('.').unwrap();
            let layer: usize = layer.parse().unwrap();
            let (prefix, repeat) = if hybrid {
                (format!("layers/{layer}"), 0)
            } else {
                ("layers".to_owned(), layer)
            };
            let Some((path, turned)) = path_of(rest) else {
                continue;
            };
            let tree = array(&params, &format!("{prefix}/{path}"));
            let values = tensor.values();
            let mine = &tree.as_slice::<f32>()[repeat * values.len()..][..values.len()];
            if turned {
                let (height, width) = (tensor.shape[0], values.len() / tensor.shape[0]);
                assert_eq!(tree.dims()[1..], [width, height], "{family} {name}");
                let turned = (0..values.len()).map(|i| values[i % height * width + i / height]);
                assert!(turned.eq(mine.iter().copied()), "{family} {name}");
            } else {
                assert_eq!(mine, values, "{family} {name}");
            }
        }
    }
}

#[test]
fn each_expert_is_in_its_place() {
    for family in SPARSE {
        let folder = Folder::copy_of(family);
        let params = folder.load().unwrap().params;
        let disk = folder.tensors();
        let (prefix, repeat) = if family == "qwen3_moe" {
            ("layers", 1)
        } else {
            ("layers/1", 0)
        };
        for side in ["gate_proj", "up_proj", "down_proj"] {
            let tree = array(&params, &format!("{prefix}/mlp/experts/{side}"));
            let (height, width) = (tree.dims()[2], tree.dims()[3]);
            for expert in 0..4 {
                let tensor = &disk[&format!("model.layers.1.mlp.experts.{expert}.{side}.weight")];
                assert_eq!(tensor.shape, [width, height]);
                let size = height * width;
                let mine = &tree.as_slice::<f32>()[(repeat * 4 + expert) * size..][..size];
                let values = tensor.values();
                let turned = (0..size).map(|i| values[i % width * height + i / width]);
                assert!(turned.eq(mine.iter().copied()), "{family} {expert} {side}");
            }
        }
    }
}

#[test]
fn wrong_experts_and_packed_projections_are_listed_with_both_shapes() {
    let layer = "model.layers.0";
    let folder = Folder::copy_of("qwen3_next");
    folder.change(|tensors| {
        for gone in [
            "mlp.experts.2.up_proj.weight",
            "linear_attn.in_proj_ba.weight",
        ] {
            tensors.remove(&format!("{layer}.{gone}"));
        }
        for (name, shape) in [
            ("mlp.experts.1.down_proj.weight", [32, 64]),
            ("linear_attn.in_proj_qkvz.weight", [96, 128]),
            ("mlp.shared_expert_gate.weight", [64, 1]),
        ] {
            let tensor = tensors.get_mut(&format!("{layer}.{name}")).unwrap();
            tensor.shape = shape.to_vec();
        }
        let extra = format!("{layer}.mlp.experts.4.up_proj.weight");
        tensors.insert(extra, Tensor::f32(&[1], &[0.0]));
    });
    let mut found = folder.problems();
    found.sort();
    assert_eq!(
        found,
        [
            "model.layers.0.linear_attn.in_proj_ba.weight is missing, expected shape [8, 64]",
            "model.layers.0.linear_attn.in_proj_qkvz.weight has shape [96, 128], expected [192, 64]",
            "model.layers.0.mlp.experts.1.down_proj.weight has shape [32, 64], expected [64, 32]",
            "model.layers.0.mlp.experts.2.up_proj.weight is missing, expected shape [32, 64]",
            "model.layers.0.mlp.experts.4.up_proj.weight is not part of the model, found shape [1]",
            "model.layers.0.mlp.shared_expert_gate.weight has shape [64, 1], expected [1, 64]",
        ]
    );

    let folder = Folder::copy_of("qwen3_moe");
    folder.change(|tensors| {
        *tensors = fused(tensors);
        tensors.remove(&format!("{layer}.mlp.experts.down_proj"));
        let both = tensors.get_mut(&format!("{layer}.mlp.experts.gate_up_proj"));
        both.unwrap().shape = vec![4, 32, 128];
    });
    assert_eq!(
        folder.problems(),
        [
            "model.layers.0.mlp.experts.gate_up_proj has shape [4, 32, 128], expected [4, 64, 64]",
            "model.layers.0.mlp.experts.down_proj is missing, expected shape [4, 64, 32]",
        ]
    );
}

#[test]
fn values_that_are_not_finite_are_named_by_their_place_on_disk() {
    let spoil = |folder: &Folder, name: &str, at: usize| {
        folder.change(|tensors| {
            let tensor = tensors.get_mut(name).unwrap();
            tensor.bytes[4 * at..4 * at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        });
    };
    let folder = Folder::copy_of("qwen3_next");
    // Row 121 of [192, 64]: the second key head's rows begin at 96, so 25 is among its keys.
    let qkvz = "model.layers.1.linear_attn.in_proj_qkvz.weight";
    spoil(&folder, qkvz, 121 * 64 + 7);
    spoil(&folder, qkvz, 190 * 64 + 63);
    let ba = "model.layers.2.linear_attn.in_proj_ba.weight";
    spoil(&folder, ba, 6 * 64 + 1);
    let taps = "model.layers.0.linear_attn.conv1d.weight";
    spoil(&folder, taps, 100 * 4 + 3);
    let mut found = folder.problems();
    found.sort();
    let one = |name: &str, place: &str| {
        format!("{name} holds 1 NaN or infinite value(s), the first at {place}")
    };
    assert_eq!(
        found,
        [
            one(taps, "[100, 0, 3]"),
            one(qkvz, "[121, 7]"),
            one(qkvz, "[190, 63]"),
            one(ba, "[6, 1]"),
        ]
    );

    let folder = Folder::copy_of("qwen3_5_moe_text");
    folder.change(|tensors| *tensors = fused(tensors));
    let both = "model.layers.3.mlp.experts.gate_up_proj";
    // Expert 2 of [4, 64, 64]: row 5 is of its gate, row 40 of its up.
    spoil(&folder, both, (2 * 64 + 5) * 64 + 9);
    spoil(&folder, both, (2 * 64 + 40) * 64 + 10);
    assert_eq!(
        folder.problems(),
        [one(both, "[2, 5, 9]"), one(both, "[2, 40, 10]")]
    );
}
