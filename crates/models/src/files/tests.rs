//! Tests on folders that `transformers` wrote: values, round trips, and every kind of damage.

mod adapter;
mod damage;
mod elements;
mod folders;
mod other_parts;
mod packing;
mod round_trip;
mod stream;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::HostArray;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use super::*;
use crate::config::ModelConfig;
use crate::testing::fixture;

const FAMILIES: [&str; 7] = [
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
];

/// A tensor apart from any file.
#[derive(Clone, Debug, PartialEq)]
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    fn f32(shape: &[usize], values: &[f32]) -> Tensor {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Tensor {
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            bytes,
        }
    }

    fn values(&self) -> Vec<f32> {
        assert_eq!(self.dtype, Dtype::F32);
        self.bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect()
    }
}

type Tensors = HashMap<String, Tensor>;

/// All tensors of a file, read by the library alone.
fn read_file(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let own = |view: TensorView<'_>| Tensor {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    file.tensors()
        .into_iter()
        .map(|(name, view)| (name, own(view)))
        .collect()
}

/// Writes a file by the library alone.
fn write_file(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, t)| {
        (
            name,
            TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap(),
        )
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A copy of a model folder whose weights a test may change.
struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    fn copy_of(family: &str) -> Folder {
        let dir = tempfile::tempdir().unwrap();
        for name in ["config.json", "generation_config.json", "model.safetensors"] {
            std::fs::write(
                dir.path().join(name),
                std::fs::read(fixture(family).join(name)).unwrap(),
            )
            .unwrap();
        }
        Folder { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn weights(&self) -> PathBuf {
        self.path().join("model.safetensors")
    }

    fn change(&self, change: impl FnOnce(&mut Tensors)) {
        let mut tensors = read_file(&self.weights());
        change(&mut tensors);
        write_file(&self.weights(), &tensors);
    }

    fn load(&self) -> crate::Result<Weights> {
        load(self.path(), &ModelConfig::load(self.path()).unwrap())
    }

    /// Saves what the folder holds to the folder `name` in it, and reads the file of that.
    fn saved_again(&self, name: &str, dtype: ferrotune_pjrt::DType) -> Tensors {
        let config = ModelConfig::load(self.path()).unwrap();
        let params = load(self.path(), &config).unwrap().params;
        let target = self.path().join(name);
        save(&target, &config, &params, dtype, Some(self.path())).unwrap();
        read_file(&target.join("model.safetensors"))
    }

    fn tensors(&self) -> Tensors {
        read_file(&self.weights())
    }

    fn problems(&self) -> Vec<String> {
        match self.error() {
            crate::Error::Weights { problems, .. } => {
                problems.iter().map(ToString::to_string).collect()
            }
            other => panic!("{other}"),
        }
    }

    fn error(&self) -> crate::Error {
        self.load().expect_err("the folder is damaged")
    }
}

fn array<'a>(params: &'a [(ParamSpec, HostArray)], path: &str) -> &'a HostArray {
    &params
        .iter()
        .find(|(spec, _)| spec.path == path)
        .unwrap_or_else(|| panic!("no {path}"))
        .1
}
