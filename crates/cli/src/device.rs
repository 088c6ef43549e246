//! From mesh axes to devices: plugin, client, mesh, sharding rules.

use ferrotune_graph::Rules;
use ferrotune_nn::LOGICAL_AXES;
use ferrotune_pjrt::{Client, Mesh, Plugin};

use crate::failure::{Failure, OrFail};
use crate::terminal::{counted, say};

/// Where programs run.
pub(crate) struct Device {
    pub(crate) client: Client,
    pub(crate) mesh: Mesh,
    pub(crate) rules: Rules,
}

impl Device {
    /// One device, nothing split.
    pub(crate) fn single() -> Result<Self, Failure> {
        Ok(Self {
            client: client(1)?,
            mesh: Mesh::single(),
            rules: Rules::unsharded(&LOGICAL_AXES),
        })
    }

    /// A device for every place of a mesh, with the rules that split logical axes over it.
    pub(crate) fn mesh(
        axes: &[(String, usize)],
        rules: Vec<(String, Vec<String>)>,
    ) -> Result<Self, Failure> {
        let axes: Vec<(&str, usize)> = axes
            .iter()
            .map(|(name, size)| (name.as_str(), *size))
            .collect();
        let mesh = Mesh::new(&axes).or_refuse()?;
        Ok(Self {
            client: client(mesh.device_count())?,
            mesh,
            rules: Rules::new(rules),
        })
    }

    /// Plugin, platform and number of devices in one line.
    pub(crate) fn describe(&self) -> String {
        let plugin = self.client.plugin();
        let (major, minor) = plugin.api_version();
        let device = format!("{} device", self.client.platform_name());
        format!(
            "{} (PJRT {major}.{minor}), {}",
            plugin.name(),
            counted(self.mesh.device_count(), &device)
        )
    }
}

/// A plugin that cannot be had or is not one is a matter of the user's setup, so nothing was run yet.
fn client(devices: usize) -> Result<Client, Failure> {
    let plugin = Plugin::cpu(&mut |line| say(line)).or_refuse()?;
    Client::cpu(&plugin, devices).or_refuse()
}
