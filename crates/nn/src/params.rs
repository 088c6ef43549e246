//! Parameters as a layer sees them: tensors under their paths.

use std::rc::Rc;

use ferrotune_graph::Tensor;

/// Tensors by path, and a prefix that is already walked. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Params {
    entries: Rc<Vec<(String, Tensor)>>,
    prefix: String,
}

impl Params {
    /// A tree of the given tensors.
    pub fn new(entries: impl IntoIterator<Item = (String, Tensor)>) -> Self {
        Self {
            entries: Rc::new(entries.into_iter().collect()),
            prefix: String::new(),
        }
    }

    /// The subtree under `name`.
    pub fn under(&self, name: &str) -> Self {
        Self {
            entries: self.entries.clone(),
            prefix: format!("{}{name}/", self.prefix),
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
