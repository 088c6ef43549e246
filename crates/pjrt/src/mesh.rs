//! The mesh: devices as a named grid.

use std::{fmt, sync::Arc};

use crate::{Error, Result};

/// A named grid of devices. Cheap to clone.
///
/// Devices are row-major over the axes: the last axis varies fastest.
///
/// ```
/// # fn main() -> ferrotune_pjrt::Result<()> {
/// let mesh = ferrotune_pjrt::Mesh::new(&[("data", 2), ("fsdp", 4)])?;
/// assert_eq!((mesh.device_count(), mesh.axis_size("fsdp")), (8, Some(4)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Mesh(Arc<Inner>);

#[derive(PartialEq, Eq)]
struct Inner {
    axes: Vec<(String, usize)>,
    device_count: usize,
}

impl Mesh {
    /// A mesh of the given axes, major first.
    ///
    /// # Errors
    /// [`Error::AxisName`], [`Error::AxisRepeated`], [`Error::AxisSize`].
    pub fn new<S: AsRef<str>>(axes: &[(S, usize)]) -> Result<Mesh> {
        let mut device_count = 1usize;
        let mut owned: Vec<(String, usize)> = Vec::with_capacity(axes.len());
        for (name, size) in axes {
            let (name, size) = (name.as_ref(), *size);
            if !is_name(name) {
                return Err(Error::AxisName {
                    name: name.to_owned(),
                });
            }
            if owned.iter().any(|(other, _)| other == name) {
                return Err(Error::AxisRepeated {
                    name: name.to_owned(),
                });
            }
            // Device numbers are C `int`s in PJRT.
            device_count = device_count
                .checked_mul(size)
                .filter(|&n| n >= 1 && n <= i32::MAX as usize)
                .ok_or_else(|| Error::AxisSize {
                    name: name.to_owned(),
                    size,
                })?;
            owned.push((name.to_owned(), size));
        }
        Ok(Mesh(Arc::new(Inner {
            axes: owned,
            device_count,
        })))
    }

    /// One device and no axes.
    #[must_use]
    pub fn single() -> Mesh {
        Mesh(Arc::new(Inner {
            axes: Vec::new(),
            device_count: 1,
        }))
    }

    /// Names and sizes, major first.
    #[must_use]
    pub fn axes(&self) -> &[(String, usize)] {
        &self.0.axes
    }

    /// The size of one axis, if the mesh has it.
    #[must_use]
    pub fn axis_size(&self, name: &str) -> Option<usize> {
        self.axis(name).map(|i| self.0.axes[i].1)
    }

    /// The number of devices: the product of all axis sizes.
    #[must_use]
    pub fn device_count(&self) -> usize {
        self.0.device_count
    }

    pub(crate) fn axis(&self, name: &str) -> Option<usize> {
        self.0.axes.iter().position(|(other, _)| other == name)
    }

    /// Where a device sits on every axis.
    pub(crate) fn coordinates(&self, device: usize) -> Vec<usize> {
        let mut rest = device;
        let mut coordinates = vec![0; self.0.axes.len()];
        for (coordinate, (_, size)) in coordinates.iter_mut().zip(&self.0.axes).rev() {
            *coordinate = rest % size;
            rest /= size;
        }
        coordinates
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

impl PartialEq for Mesh {
    fn eq(&self, other: &Mesh) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for Mesh {}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.axes.is_empty() {
            return f.write_str("one device");
        }
        for (i, (name, size)) in self.0.axes.iter().enumerate() {
            write!(f, "{}{name}={size}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mesh({self})")
    }
}

#[cfg(test)]
mod tests;
