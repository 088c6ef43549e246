//! Parameters as a layer sees them: tensors under their paths.

use std::rc::Rc;

use ferrotune_graph::Tensor;

/// Tensors by path, and a prefix that is already walked. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Params {
    entries: Rc<Vec<(String, Tensor)>>,
    prefix: String,
    adapter_scale: f64,
    transposed: bool,
}

impl Params {
    /// A tree of the given tensors.
    pub fn new(entries: impl IntoIterator<Item = (String, Tensor)>) -> Self {
        Self {
            entries: Rc::new(entries.into_iter().collect()),
            prefix: String::new(),
            adapter_scale: 1.0,
            transposed: false,
        }
    }

    /// The same tree, whose weights of linear layers are the other way round: `[out, in]`, as few rows read them fastest.
    #[must_use]
    pub fn with_transposed_weights(self) -> Self {
        Self {
            transposed: true,
            ..self
        }
    }

    /// Whether weights of linear layers are `[out, in]`.
    pub fn transposed_weights(&self) -> bool {
        self.transposed
    }

    /// A tree of other tensors that is to be read in the same way.
    pub fn like(&self, entries: impl IntoIterator<Item = (String, Tensor)>) -> Self {
        Self {
            adapter_scale: self.adapter_scale,
            transposed: self.transposed,
            ..Self::new(entries)
        }
    }

    /// The same tree, with the products of adapters multiplied by `scale` (LoRA: alpha / rank).
    #[must_use]
    pub fn with_adapter_scale(self, scale: f64) -> Self {
        Self {
            adapter_scale: scale,
            ..self
        }
    }

    /// What products of adapters are multiplied by.
    pub fn adapter_scale(&self) -> f64 {
        self.adapter_scale
    }

    /// The subtree under `name`.
    pub fn under(&self, name: &str) -> Self {
        Self {
            entries: self.entries.clone(),
            prefix: format!("{}{name}/", self.prefix),
            adapter_scale: self.adapter_scale,
            transposed: self.transposed,
        }
    }

    /// The tensor at `path`, if the tree has it.
    pub fn find(&self, path: &str) -> Option<&Tensor> {
        let full = format!("{}{path}", self.prefix);
        let entry = self.entries.iter().find(|(name, _)| *name == full);
        entry.map(|(_, tensor)| tensor)
    }

    /// The tensor at `path`.
    ///
    /// # Panics
    /// When the tree has no such path: the model and its parameter list disagree.
    #[track_caller]
    pub fn at(&self, path: &str) -> &Tensor {
        self.find(path)
            .unwrap_or_else(|| panic!("no parameter `{}{path}`", self.prefix))
    }

    /// Paths (below the prefix) and tensors of the subtree, in order.
    pub fn entries(&self) -> Vec<(String, Tensor)> {
        let below = self.entries.iter().filter_map(|(name, tensor)| {
            let rest = name.strip_prefix(&self.prefix)?;
            Some((rest.to_owned(), tensor.clone()))
        });
        below.collect()
    }
}
