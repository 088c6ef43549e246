//! From logical axis names to mesh axes.
//!
//! Every dimension of a program's arguments, results and constraints bears a logical name (`vocab`, `embed`, `batch`, …)
//! or `_`. A rule table says over which mesh axes a name is split, so that one model text serves every mesh.

use ferrotune_pjrt::{Mesh, Sharding};

/// Which mesh axes split each logical axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    rules: Vec<(String, Vec<String>)>,
}

/// A tensor that cannot be placed on the mesh.
#[derive(Clone, Debug, PartialEq)]
pub enum PlacementError {
    /// The axis list has another length than the dimensions.
    Rank {
        /// Name of the tensor.
        tensor: String,
        /// Number of its dimensions.
        rank: usize,
        /// Number of logical axes given.
        axes: usize,
    },
    /// No rule has this name.
    UnknownAxis {
        /// Name of the tensor.
        tensor: String,
        /// The logical axis without a rule.
        axis: String,
        /// Logical axes that have one.
        known: Vec<String>,
    },
    /// The mesh axes do not divide the dimension, or one is used twice.
    Mesh {
        /// Name of the tensor.
        tensor: String,
        /// Which dimension and which mesh axes.
        reason: String,
    },
}

impl std::error::Error for PlacementError {}

impl std::fmt::Display for PlacementError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rank { tensor, rank, axes } => {
                write!(
                    f,
                    "tensor `{tensor}` has {rank} dimensions but {axes} logical axes; name one axis per dimension, `_` for none"
                )
            }
            Self::UnknownAxis {
                tensor,
                axis,
                known,
            } => {
                write!(
                    f,
                    "tensor `{tensor}` names the logical axis `{axis}`, for which there is no rule (known: {})",
                    known.join(", ")
                )
            }
            Self::Mesh { tensor, reason } => write!(
                f,
                "tensor `{tensor}` cannot be placed on the mesh: {reason}"
            ),
        }
    }
}

impl Rules {
    /// Rules from (logical axis, mesh axes) pairs; an empty list of mesh axes leaves the axis whole.
    pub fn new<S: Into<String>>(rules: impl IntoIterator<Item = (S, Vec<String>)>) -> Self {
        Self {
            rules: rules
                .into_iter()
                .map(|(name, axes)| (name.into(), axes))
                .collect(),
        }
    }

    /// Rules that know the given names and split none of them.
    pub fn unsharded(names: &[&str]) -> Self {
        Self::new(names.iter().map(|n| (*n, Vec::new())))
    }

    /// The same rules without some mesh axes.
    pub(crate) fn without(&self, mesh_axes: &[String]) -> Self {
        let left = |(name, over): &(String, Vec<String>)| {
            let over = over.iter().filter(|axis| !mesh_axes.contains(axis));
            (name.clone(), over.cloned().collect())
        };
        Self {
            rules: self.rules.iter().map(left).collect(),
        }
    }

    /// The mesh axes that split a logical axis; none where there is no rule for it.
    pub fn over(&self, axis: &str) -> &[String] {
        let rule = self.rules.iter().find(|(name, _)| name == axis);
        rule.map_or(&[], |(_, over)| over)
    }

    /// The sharding of a tensor with these dimensions and logical axes.
    ///
    /// # Errors
    /// A wrong number of axes, a name without a rule, mesh axes that do not divide a dimension or appear twice: each
    /// names the tensor.
    pub fn place(
        &self,
        tensor: &str,
        dims: &[usize],
        axes: &[&str],
        mesh: &Mesh,
    ) -> Result<Sharding, PlacementError> {
        let tensor = tensor.to_owned();
        if dims.len() != axes.len() {
            return Err(PlacementError::Rank {
                tensor,
                rank: dims.len(),
                axes: axes.len(),
            });
        }
        let mut split = Vec::with_capacity(axes.len());
        for axis in axes {
            if *axis == "_" {
                split.push(Vec::new());
                continue;
            }
            match self.rules.iter().find(|(name, _)| name == axis) {
                Some((_, mesh_axes)) => split.push(mesh_axes.clone()),
                None => {
                    let known = self.rules.iter().map(|(name, _)| name.clone()).collect();
                    return Err(PlacementError::UnknownAxis {
                        tensor,
                        axis: (*axis).to_owned(),
                        known,
                    });
                }
            }
        }
        let sharding = Sharding { dims: split };
        match sharding.local_dims(mesh, dims) {
            Ok(_) => Ok(sharding),
            Err(e) => Err(PlacementError::Mesh {
                tensor,
                reason: e.to_string(),
            }),
        }
    }
}
