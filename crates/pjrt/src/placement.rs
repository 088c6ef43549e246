//! Where each device's part lies inside the global row-major array, and copying between the two.
//!
//! Pure arithmetic: no device, no plugin.

use crate::{Mesh, Result, Sharding};

/// How one array is cut over one mesh.
pub(crate) struct Placement {
    global: Vec<usize>,
    /// Dimensions of every part.
    pub(crate) local: Vec<usize>,
    /// For each device, the first index of its part in every dimension.
    starts: Vec<Vec<usize>>,
    /// For each device, whether no device before it holds the same part.
    pub(crate) first_holder: Vec<bool>,
}

impl Placement {
    pub(crate) fn new(mesh: &Mesh, sharding: &Sharding, dims: &[usize]) -> Result<Placement> {
        let local = sharding.local_dims(mesh, dims)?;
        let axes: Vec<Vec<usize>> = sharding
            .dims
            .iter()
            .map(|names| names.iter().filter_map(|name| mesh.axis(name)).collect())
            .collect();
        let mut starts = Vec::with_capacity(mesh.device_count());
        let mut first_holder = Vec::with_capacity(mesh.device_count());
        for device in 0..mesh.device_count() {
            let at = mesh.coordinates(device);
            let part = |axes: &[usize]| axes.iter().fold(0, |n, &i| n * mesh.axes()[i].1 + at[i]);
            starts.push(
                axes.iter()
                    .zip(&local)
                    .map(|(axes, &size)| part(axes) * size)
                    .collect(),
            );
            // Of all devices that differ only on axes which split nothing, the one at zero on each of them comes first.
            let splits = |i: usize| axes.iter().any(|axes| axes.contains(&i));
            first_holder.push((0..at.len()).all(|i| at[i] == 0 || splits(i)));
        }
        Ok(Placement {
            global: dims.to_vec(),
            local,
            starts,
            first_holder,
        })
    }

    /// The byte offset of a device's part, if the part is one contiguous run of the global array.
    pub(crate) fn contiguous(&self, device: usize, element_bytes: usize) -> Option<usize> {
        let split = self.last_split();
        self.local[..split]
            .iter()
            .all(|&size| size == 1)
            .then(|| self.offset(device, element_bytes))
    }

    /// Copies a device's part out of the global bytes.
    pub(crate) fn cut(&self, device: usize, element_bytes: usize, global: &[u8], part: &mut [u8]) {
        self.runs(device, element_bytes, |at, part_at, len| {
            part[part_at..part_at + len].copy_from_slice(&global[at..at + len]);
        });
    }

    /// Copies a device's part into the global bytes.
    pub(crate) fn paste(
        &self,
        device: usize,
        element_bytes: usize,
        part: &[u8],
        global: &mut [u8],
    ) {
        self.runs(device, element_bytes, |at, part_at, len| {
            global[at..at + len].copy_from_slice(&part[part_at..part_at + len]);
        });
    }

    /// The last dimension that is split; 0 when none is.
    fn last_split(&self) -> usize {
        (0..self.local.len())
            .rev()
            .find(|&i| self.local[i] != self.global[i])
            .unwrap_or(0)
    }

    /// The byte offset of a device's first element.
    pub(crate) fn offset(&self, device: usize, element_bytes: usize) -> usize {
        let index = |n, (&size, &start): (&usize, &usize)| n * size + start;
        self.global.iter().zip(&self.starts[device]).fold(0, index) * element_bytes
    }

    /// Calls `f(global offset, part offset, length)`, in bytes, for every contiguous run of a part.
    fn runs(&self, device: usize, element_bytes: usize, mut f: impl FnMut(usize, usize, usize)) {
        if self.local.contains(&0) {
            return;
        }
        let split = self.last_split();
        let run = self.local[split.min(self.local.len())..]
            .iter()
            .product::<usize>()
            * element_bytes;
        let outer = &self.local[..split];
        // Global bytes from one index to the next, per outer dimension.
        let stride = |dim: usize| self.global[dim + 1..].iter().product::<usize>() * element_bytes;
        let strides: Vec<usize> = (0..split).map(stride).collect();
        let mut index = vec![0; split];
        let mut at = self.offset(device, element_bytes);
        for part_at in (0..).step_by(run).take(outer.iter().product()) {
            f(at, part_at, run);
            for dim in (0..split).rev() {
                index[dim] += 1;
                at += strides[dim];
                if index[dim] < outer[dim] {
                    break;
                }
                at -= strides[dim] * outer[dim];
                index[dim] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests;
