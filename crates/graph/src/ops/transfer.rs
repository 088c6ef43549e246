//! Moving a kept value between the memory of the device and that of its host.

use ferrotune_pjrt::Platform;

use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

#[derive(Debug, Clone, Copy)]
enum Transfer {
    ToHost,
    ToDevice,
}

impl Op for Transfer {
    fn name(&self) -> &str {
        match self {
            Self::ToHost => "to_host_memory",
            Self::ToDevice => "to_device_memory",
        }
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(inputs.to_vec())
    }

    fn vjp(&self, _: &VjpContext) -> Gradient {
        Gradient::Refused("only copies that are kept for a derivative are moved")
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        if out.platform() == Platform::Cpu {
            out.chose("offloaded values stay where they are: the device's memory is the host's");
            return site.inputs.clone();
        }
        let memory = match self {
            Self::ToHost => "pinned_host",
            Self::ToDevice => "device",
        };
        vec![out.assign(format!(
            "stablehlo.custom_call @annotate_device_placement({}) {{backend_config = \"\", has_side_effect = true, \
             mhlo.frontend_attributes = {{_xla_buffer_placement = \"{memory}\"}}}} : ({}) -> {}",
            site.inputs[0], site.input_types[0], site.output_types[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::movement(inputs, outputs)
    }
}

impl Tensor {
    /// The same values in the memory of the host.
    pub(crate) fn to_host_memory(&self) -> Tensor {
        self.graph.add_one(Transfer::ToHost, &[self])
    }

    /// The same values in the memory of the device.
    pub(crate) fn to_device_memory(&self) -> Tensor {
        self.graph.add_one(Transfer::ToDevice, &[self])
    }
}
