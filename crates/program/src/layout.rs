//! What the arrays of a group are: names, types, placement.

use std::sync::Arc;

use ferrotune_graph::{DType, Graph, Mesh, PlacementError, Rules, Tensor, TensorType};
use ferrotune_pjrt::ArraySpec;

/// One array of a group before it is placed on a mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf {
    /// Path, such as `layers/attn/q_proj`.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Global dimensions.
    pub dims: Vec<usize>,
    /// A logical axis per dimension, `_` for none.
    pub axes: Vec<String>,
}

impl Leaf {
    /// A leaf from borrowed parts.
    pub fn new(name: &str, dtype: DType, dims: &[usize], axes: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            dtype,
            dims: dims.to_vec(),
            axes: axes.iter().map(|a| (*a).to_owned()).collect(),
        }
    }
}

/// The arrays of a group in order, placed on a mesh. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Layout {
    specs: Arc<[Arc<ArraySpec>]>,
    mesh: Mesh,
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.specs, &other.specs)
            || (self.specs == other.specs && self.mesh == other.mesh)
    }
}

impl Layout {
    /// Places leaves on a mesh by the rules.
    ///
    /// # Errors
    /// The first leaf that cannot be placed: an unknown logical axis, an indivisible dimension, more bytes than can be
    /// counted.
    pub fn new(mesh: &Mesh, rules: &Rules, leaves: &[Leaf]) -> Result<Self, PlacementError> {
        let place = |leaf: &Leaf| {
            let axes: Vec<&str> = leaf.axes.iter().map(String::as_str).collect();
            let sharding = rules.place(&leaf.name, &leaf.dims, &axes, mesh)?;
            let checked = TensorType::new(leaf.dtype, &leaf.dims).check_size();
            checked.map_err(|reason| PlacementError::Mesh {
                tensor: leaf.name.clone(),
                reason,
            })?;
            Ok(Arc::new(ArraySpec {
                name: leaf.name.clone(),
                dtype: leaf.dtype,
                dims: leaf.dims.clone(),
                sharding,
            }))
        };
        let specs: Result<Vec<_>, PlacementError> = leaves.iter().map(place).collect();
        Ok(Self {
            specs: specs?.into(),
            mesh: mesh.clone(),
        })
    }

    /// Number of arrays.
    pub fn len(&self) -> usize {
        self.specs.len()
    }

    /// Whether the group has no arrays.
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    /// What each array is, in order.
    pub fn specs(&self) -> &[Arc<ArraySpec>] {
        &self.specs
    }

    /// The mesh that the arrays are placed on.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Names of the arrays, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.specs.iter().map(|s| s.name.as_str())
    }

    /// Place of the array called `name`.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.specs.iter().position(|s| s.name == name)
    }

    /// Global size of all arrays in bytes; `usize::MAX` where they are more.
    pub fn bytes(&self) -> usize {
        let bytes = |s: &Arc<ArraySpec>| {
            let elements = s.dims.iter().product::<usize>();
            elements.saturating_mul(s.dtype.bytes())
        };
        self.specs.iter().map(bytes).fold(0, usize::saturating_add)
    }

    /// `count` of each array, along a new first dimension that these mesh axes split.
    ///
    /// # Panics
    /// When the axes do not divide `count`, or split an array already.
    #[must_use]
    #[track_caller]
    pub fn stacked(&self, count: usize, axes: &[String]) -> Self {
        self.map(|spec| {
            let mut sharding = spec.sharding.clone();
            sharding.dims.insert(0, axes.to_vec());
            let dims = [&[count], &spec.dims[..]].concat();
            if let Err(e) = sharding.local_dims(&self.mesh, &dims) {
                panic!("{count} of `{}` cannot be stacked: {e}", spec.name);
            }
            ArraySpec {
                dims,
                sharding,
                ..spec.clone()
            }
        })
    }

    /// The same arrays, those that `which` tells of split further along these mesh axes: each along its first dimension that
    /// they divide, if it has one.
    #[must_use]
    pub fn split_further(&self, axes: &[String], which: impl Fn(&ArraySpec) -> bool) -> Self {
        self.map(|spec| {
            let split = |dim: usize| {
                let mut sharding = spec.sharding.clone();
                sharding.dims[dim].extend_from_slice(axes);
                let divides = sharding.local_dims(&self.mesh, &spec.dims).is_ok();
                divides.then_some(sharding)
            };
            let dims = if which(spec) { spec.dims.len() } else { 0 };
            let further = (0..dims).find_map(split);
            ArraySpec {
                sharding: further.unwrap_or_else(|| spec.sharding.clone()),
                ..spec.clone()
            }
        })
    }

    /// The same arrays in another element type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        self.map(|spec| ArraySpec {
            dtype,
            ..spec.clone()
        })
    }

    fn map(&self, f: impl Fn(&ArraySpec) -> ArraySpec) -> Self {
        Self {
            specs: self.specs.iter().map(|spec| Arc::new(f(spec))).collect(),
            mesh: self.mesh.clone(),
        }
    }

    /// Arguments of a program, one per array; `group` prefixes their names.
    pub(crate) fn inputs(&self, g: &Graph, group: &str) -> Vec<Tensor> {
        let input = |s: &Arc<ArraySpec>| {
            g.input_placed(
                &format!("{group}/{}", s.name),
                TensorType::new(s.dtype, &s.dims),
                s.sharding.clone(),
            )
        };
        self.specs.iter().map(input).collect()
    }
}
