//! Where each value goes: the mapping from disk to tree.

use ferrotune_pjrt::DType;
use half::{bf16, f16};

use super::*;

#[test]
fn every_value_is_where_the_layer_code_looks_for_it() {
    for family in ["llama", "qwen3"] {
        let folder = Folder::copy_of(family);
        let params = folder.load().unwrap().params;
        let disk = read_file(&folder.weights());
        let mut seen = 0;
        for (path, name, rows, columns) in [
            ("attn/q_proj", "self_attn.q_proj", 64, 64),
            ("attn/k_proj", "self_attn.k_proj", 64, 32),
            ("attn/v_proj", "self_attn.v_proj", 64, 32),
            ("attn/o_proj", "self_attn.o_proj", 64, 64),
            ("mlp/gate_proj", "mlp.gate_proj", 64, 96),
            ("mlp/up_proj", "mlp.up_proj", 64, 96),
            ("mlp/down_proj", "mlp.down_proj", 96, 64),
        ] {
            let stacked = array(&params, &format!("layers/{path}"));
            assert_eq!(stacked.dims(), [2, rows, columns]);
            for layer in 0..2 {
                let tensor = &disk[&format!("model.layers.{layer}.{name}.weight")];
                assert_eq!(tensor.shape, [columns, rows]);
                let (tree, disk) = (stacked.as_slice::<f32>(), tensor.values());
                for (row, column) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
                    assert_eq!(
                        tree[(layer * rows + row) * columns + column],
                        disk[column * rows + row],
                        "{name}"
                    );
                }
                seen += tensor.values().len();
            }
        }
        for (path, name) in [
            ("input_norm", "input_layernorm"),
            ("post_attn_norm", "post_attention_layernorm"),
            ("attn/q_norm", "self_attn.q_norm"),
            ("attn/k_norm", "self_attn.k_norm"),
        ] {
            if path.contains("attn/") && family == "llama" {
                continue;
            }
            let both = [0, 1]
                .map(|layer| disk[&format!("model.layers.{layer}.{name}.weight")].values())
                .concat();
            assert_eq!(
                array(&params, &format!("layers/{path}")).as_slice::<f32>(),
                both
            );
            seen += both.len();
        }
        for (path, name) in [
            ("embed", "model.embed_tokens.weight"),
            ("final_norm", "model.norm.weight"),
        ] {
            assert_eq!(array(&params, path).as_slice::<f32>(), disk[name].values());
            seen += disk[name].values().len();
        }
        if family == "qwen3" {
            let (head, disk) = (array(&params, "lm_head"), disk["lm_head.weight"].values());
            assert_eq!(head.dims(), [64, 128]);
            assert!(
                (0..64 * 128).all(|i| head.as_slice::<f32>()[i] == disk[i % 128 * 64 + i / 128])
            );
            seen += disk.len();
        }
        assert_eq!(
            seen,
            disk.values().map(|t| t.values().len()).sum::<usize>(),
            "every value was looked at"
        );
    }
}

#[test]
fn the_tree_is_that_of_the_configuration() {
    let folder = Folder::copy_of("qwen3");
    let weights = folder.load().unwrap();
    let specs: Vec<_> = weights
        .params
        .iter()
        .map(|(spec, _)| spec.clone())
        .collect();
    assert_eq!(specs, ModelConfig::load(folder.path()).unwrap().params());
    assert!(
        weights
            .params
            .iter()
            .all(|(spec, array)| spec.dims == array.dims() && array.dtype() == DType::F32)
    );
    assert!(specs.iter().all(|spec| spec.dims.len() == spec.axes.len()));
    let axes = |path: &str| {
        specs
            .iter()
            .find(|spec| spec.path == path)
            .unwrap()
            .axes
            .join(",")
    };
    assert_eq!(axes("embed"), "vocab,embed");
    assert_eq!(axes("layers/attn/k_proj"), "layers,embed,kv_heads");
    assert_eq!(axes("layers/attn/o_proj"), "layers,heads,embed");
    assert_eq!(axes("layers/attn/q_norm"), "layers,_");
    assert_eq!(axes("layers/mlp/down_proj"), "layers,mlp,embed");
    assert_eq!(axes("final_norm"), "_");
    assert_eq!(axes("lm_head"), "embed,vocab");
    assert_eq!(weights.stored, Some(DType::F32));
    assert!(weights.unused.is_empty());
}

/// Every weight of a folder, stored in a number type of two bytes, is read as the value that `rounded` gives.
fn check_half_precision(
    (disk_type, dtype): (Dtype, DType),
    to_bytes: impl Fn(f32) -> [u8; 2] + Copy,
    rounded: impl Fn(f32) -> f32,
) {
    let folder = Folder::copy_of("qwen3");
    let exact = folder.load().unwrap().params;
    folder.change(|tensors| {
        for tensor in tensors.values_mut() {
            tensor.bytes = tensor.values().into_iter().flat_map(to_bytes).collect();
            tensor.dtype = disk_type;
        }
    });
    let weights = folder.load().unwrap();
    assert_eq!(weights.stored, Some(dtype));
    for ((spec, half), (_, full)) in weights.params.iter().zip(&exact) {
        let expected: Vec<f32> = full.as_slice::<f32>().iter().map(|&v| rounded(v)).collect();
        assert_eq!(half.as_slice::<f32>(), expected, "{}", spec.path);
    }
}

#[test]
fn half_precision_is_read_exactly() {
    let (b, h) = (bf16::from_f32, f16::from_f32);
    check_half_precision(
        (Dtype::BF16, DType::BF16),
        |v| b(v).to_le_bytes(),
        |v| b(v).to_f32(),
    );
    check_half_precision(
        (Dtype::F16, DType::F16),
        |v| h(v).to_le_bytes(),
        |v| h(v).to_f32(),
    );
}

#[test]
fn mixed_number_types_are_read_and_reported_as_mixed() {
    let folder = Folder::copy_of("qwen3");
    folder.change(|tensors| {
        let norm = tensors.get_mut("model.norm.weight").unwrap();
        norm.bytes = norm
            .values()
            .into_iter()
            .flat_map(|v| bf16::from_f32(v).to_le_bytes())
            .collect();
        norm.dtype = Dtype::BF16;
    });
    assert_eq!(folder.load().unwrap().stored, None);
}

#[test]
fn transposition_of_odd_shapes_is_its_own_inverse() {
    use crate::files::element::{Stored, from_disk, to_disk};
    use crate::layout::{Piece, one_run};
    for (rows, columns) in [
        (1, 1),
        (1, 7),
        (7, 1),
        (31, 33),
        (32, 32),
        (33, 65),
        (100, 3),
    ] {
        let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        let piece = Piece {
            name: String::new(),
            dims: vec![columns, rows],
            rows: one_run(0..columns),
        };
        let mut disk = vec![0; 4 * values.len()];
        to_disk(&values, Stored::F32, &piece, true, &mut disk);
        for (i, bytes) in disk.as_chunks().0.iter().enumerate() {
            assert_eq!(
                f32::from_le_bytes(*bytes),
                values[i % rows * columns + i / rows],
                "{rows}x{columns}"
            );
        }
        let mut back = vec![[0; 4]; values.len()];
        from_disk(&disk, Stored::F32, &piece, true, &mut back, |_| ());
        assert!(
            back.iter()
                .zip(&values)
                .all(|(b, v)| f32::from_ne_bytes(*b) == *v),
            "{rows}x{columns}"
        );
    }
}
