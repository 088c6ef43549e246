//! Compile options: the few fields of XLA's `CompileOptionsProto` that are needed, as protobuf.
//!
//! `num_replicas` and `num_partitions` must never be missing: XLA aborts the process when one is zero.

use std::collections::BTreeMap;

use prost::Message;

use crate::Platform;

#[derive(Clone, PartialEq, Message)]
struct CompileOptions {
    #[prost(message, optional, tag = "3")]
    build: Option<BuildOptions>,
    #[prost(btree_map = "string, message", tag = "7")]
    overrides: BTreeMap<String, Override>,
}

/// A value for one of the compiler's own flags.
#[derive(Clone, PartialEq, Message)]
struct Override {
    #[prost(bool, optional, tag = "2")]
    flag: Option<bool>,
}

/// XLA's code for the CPU takes a NaN for no number in a maximum or a minimum, unless this is off.
const CPU_FAST_MIN_MAX: &str = "xla_cpu_enable_fast_min_max";

/// While it is on, XLA leaves out conversions to a narrower type and back. Where it does depends on what it fuses, so two
/// programs that compute the same would round in different places: a sampler and a trainer must not.
const EXCESS_PRECISION: &str = "xla_allow_excess_precision";

/// Without it, the TPU's compiler writes a product of groups of rows as one product of all rows with every group, and masks.
const TPU_RAGGED_DOT: &str = "xla_tpu_enable_ragged_dot_kernel";

#[derive(Clone, PartialEq, Message)]
struct BuildOptions {
    #[prost(int64, tag = "4")]
    num_replicas: i64,
    #[prost(int64, tag = "5")]
    num_partitions: i64,
    #[prost(bool, tag = "6")]
    use_spmd_partitioning: bool,
    #[prost(message, optional, tag = "9")]
    device_assignment: Option<DeviceAssignment>,
    #[prost(bool, tag = "19")]
    use_shardy_partitioner: bool,
    #[prost(int32, tag = "24")]
    optimization_level: i32,
}

#[derive(Clone, PartialEq, Message)]
struct DeviceAssignment {
    #[prost(int32, tag = "1")]
    replica_count: i32,
    #[prost(int32, tag = "2")]
    computation_count: i32,
    #[prost(message, repeated, tag = "3")]
    computations: Vec<ComputationDevice>,
}

#[derive(Clone, PartialEq, Message)]
struct ComputationDevice {
    #[prost(int64, repeated, tag = "1")]
    replica_device_ids: Vec<i64>,
}

/// How hard the compiler of a [`Topology`](crate::Topology) tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Effort {
    /// The plugin's own default.
    #[default]
    Full,
    /// XLA's lowest level: about half the time, and memory figures within a few per cent.
    Low,
}

impl Effort {
    /// The number in XLA's enumeration of levels; zero is the default, which protobuf leaves out.
    fn level(self) -> i32 {
        match self {
            Effort::Full => 0,
            Effort::Low => 9,
        }
    }
}

/// One replica, one partition per device, partitioned by Shardy; partition `i` runs on `device_ids[i]`.
pub(crate) fn encode(device_ids: &[i32], platform: Platform, effort: Effort) -> Vec<u8> {
    let partitions = device_ids.len();
    let assignment = DeviceAssignment {
        replica_count: 1,
        computation_count: partitions as i32,
        computations: device_ids
            .iter()
            .map(|&id| ComputationDevice {
                replica_device_ids: vec![i64::from(id)],
            })
            .collect(),
    };
    let build = BuildOptions {
        num_replicas: 1,
        num_partitions: partitions as i64,
        use_spmd_partitioning: true,
        device_assignment: Some(assignment),
        use_shardy_partitioner: true,
        optimization_level: effort.level(),
    };
    let flags = match platform {
        Platform::Cpu => vec![(CPU_FAST_MIN_MAX, false), (EXCESS_PRECISION, false)],
        Platform::Tpu => vec![(TPU_RAGGED_DOT, true)],
        Platform::Gpu => vec![],
    };
    let overrides = flags
        .into_iter()
        .map(|(name, on)| (name.to_owned(), Override { flag: Some(on) }));
    let options = CompileOptions {
        build: Some(build),
        overrides: overrides.collect(),
    };
    options.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::{Effort, encode};
    use crate::Platform;

    #[test]
    fn options_are_the_bytes_that_xla_expects() {
        // executable_build_options { 4: 1, 5: 2, 6: true, 9: { 1: 1, 2: 2, 3: { 1: [0] }, 3: { 1: [3] } }, 19: true }
        let assignment = [
            0x08, 0x01, 0x10, 0x02, 0x1a, 0x03, 0x0a, 0x01, 0x00, 0x1a, 0x03, 0x0a, 0x01, 0x03,
        ];
        let mut build = vec![
            0x20,
            0x01,
            0x28,
            0x02,
            0x30,
            0x01,
            0x4a,
            assignment.len() as u8,
        ];
        build.extend(assignment);
        build.extend([0x98, 0x01, 0x01]);
        let wrap = |build: &[u8]| [&[0x1a, build.len() as u8], build].concat();
        assert_eq!(encode(&[0, 3], Platform::Gpu, Effort::Full), wrap(&build));
        // 24: 9
        build.extend([0xc0, 0x01, 0x09]);
        assert_eq!(encode(&[0, 3], Platform::Gpu, Effort::Low), wrap(&build));
    }
}
