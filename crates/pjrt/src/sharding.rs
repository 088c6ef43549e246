//! Shardings: which mesh axes split which dimension of an array.

use std::fmt;

use crate::{Error, Mesh, Result};

/// For each dimension, the mesh axes that split it, major first. Axes that appear nowhere replicate.
///
/// A sharding is closed: the compiler may not add axes. `[{"data", "fsdp"}, {}]` in Shardy's spelling is
/// `Sharding { dims: vec![vec!["data".into(), "fsdp".into()], vec![]] }`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Sharding {
    /// One list of axis names per dimension.
    pub dims: Vec<Vec<String>>,
}

impl Sharding {
    /// Every device holds the whole array of `rank` dimensions.
    #[must_use]
    pub fn replicated(rank: usize) -> Sharding {
        Sharding {
            dims: vec![Vec::new(); rank],
        }
    }

    /// The dimensions of one device's part of an array.
    ///
    /// # Errors
    /// [`Error::ShardingRank`], [`Error::UnknownAxis`], [`Error::AxisUsedTwice`], [`Error::Indivisible`].
    pub fn local_dims(&self, mesh: &Mesh, dims: &[usize]) -> Result<Vec<usize>> {
        if self.dims.len() != dims.len() {
            return Err(Error::ShardingRank {
                sharding: self.dims.len(),
                array: dims.len(),
            });
        }
        let mut used = vec![false; mesh.axes().len()];
        let mut local = Vec::with_capacity(dims.len());
        for (dim, (axes, &size)) in self.dims.iter().zip(dims).enumerate() {
            let mut parts = 1;
            for axis in axes {
                let index = mesh.axis(axis).ok_or_else(|| Error::UnknownAxis {
                    dim,
                    axis: axis.clone(),
                    mesh: mesh.to_string(),
                })?;
                if std::mem::replace(&mut used[index], true) {
                    return Err(Error::AxisUsedTwice { axis: axis.clone() });
                }
                parts *= mesh.axes()[index].1;
            }
            if size % parts != 0 {
                return Err(Error::Indivisible {
                    dim,
                    size,
                    parts,
                    axes: axes.join(", "),
                });
            }
            local.push(size / parts);
        }
        Ok(local)
    }
}

impl fmt::Display for Sharding {
    /// Shardy's spelling: `[{"data"}, {}]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, axes) in self.dims.iter().enumerate() {
            f.write_str(if i == 0 { "{" } else { ", {" })?;
            for (j, axis) in axes.iter().enumerate() {
                write!(f, "{}\"{axis}\"", if j == 0 { "" } else { ", " })?;
            }
            f.write_str("}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests;
