//! Arrays on the device that belong together.

use ferrotune_pjrt::{Array, Client, HostArray, Memory};

use crate::layout::Layout;
use crate::program::Error;

/// Arrays in the order of their layout. Not `Clone`: a group that is given away is gone.
pub struct Group {
    layout: Layout,
    arrays: Vec<Array>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.layout.names()).finish()
    }
}

impl Group {
    pub(crate) fn new(layout: Layout, arrays: Vec<Array>) -> Self {
        Self { layout, arrays }
    }

    /// Copies host arrays, in the order of the layout, to the devices.
    ///
    /// # Errors
    /// Another number of arrays than the layout has, an array of another type, or a failure of the device.
    pub fn upload(client: &Client, layout: &Layout, host: &[HostArray]) -> Result<Self, Error> {
        if host.len() != layout.len() {
            return Err(Error::Count {
                what: "arrays of a group".to_owned(),
                expected: layout.len(),
                found: host.len(),
            });
        }
        let arrays: Result<Vec<Array>, _> = host
            .iter()
            .zip(layout.specs())
            .map(|(h, spec)| client.upload(h, spec.clone(), layout.mesh()))
            .collect();
        Ok(Self {
            layout: layout.clone(),
            arrays: arrays?,
        })
    }

    /// What the arrays are.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Number of arrays.
    pub fn len(&self) -> usize {
        self.arrays.len()
    }

    /// Whether there are no arrays.
    pub fn is_empty(&self) -> bool {
        self.arrays.is_empty()
    }

    /// The arrays in order.
    pub fn arrays(&self) -> &[Array] {
        &self.arrays
    }

    pub(crate) fn into_arrays(self) -> Vec<Array> {
        self.arrays
    }

    /// The array called `name`.
    pub fn get(&self, name: &str) -> Option<&Array> {
        self.layout.position(name).map(|i| &self.arrays[i])
    }

    /// Copies all arrays to the host, in order; waits for the computations that make them.
    ///
    /// # Errors
    /// The failure of any of those computations.
    pub fn to_host(&self) -> Result<Vec<HostArray>, Error> {
        self.arrays
            .iter()
            .map(|a| a.to_host().map_err(Error::from))
            .collect()
    }

    /// Where the arrays lie: with the host if any of them does.
    pub fn memory(&self) -> Memory {
        let away = |a: &Array| a.memory() == Memory::Host;
        match self.arrays.iter().any(away) {
            true => Memory::Host,
            false => Memory::Device,
        }
    }

    /// Moves the arrays to a memory, if they do not lie there. Returns before it is done; what they took is free as soon as they
    /// are copied.
    ///
    /// # Errors
    /// A plugin without host memory, or a memory without room.
    pub fn moved_to(self, memory: Memory) -> Result<Self, Error> {
        let moved = |a: Array| match a.memory() == memory {
            true => Ok(a),
            false => a.copy_to(memory),
        };
        let arrays = self.arrays.into_iter().map(moved);
        let arrays: Result<Vec<Array>, _> = arrays.collect();
        Ok(Self {
            layout: self.layout,
            arrays: arrays?,
        })
    }

    /// Waits until all arrays are computed.
    ///
    /// # Errors
    /// The failure of any of the computations.
    pub fn wait(&self) -> Result<(), Error> {
        self.arrays
            .iter()
            .try_for_each(|a| a.wait().map_err(Error::from))
    }

    /// Whether all arrays are computed.
    pub fn is_ready(&self) -> bool {
        self.arrays.iter().all(Array::is_ready)
    }
}
