use super::*;

/// Offsets in the table of the C header, counted in slots: the order in which functions were appended to it.
#[test]
fn functions_sit_where_the_c_header_puts_them() {
    fn slot<A: Call>() -> usize {
        (A::OFFSET - size_of::<Table>()) / size_of::<Function>()
    }
    assert_eq!(
        [
            slot::<ErrorDestroy>(),
            slot::<ErrorMessage>(),
            slot::<ErrorGetCode>()
        ],
        [0, 1, 2]
    );
    // After Error (3): Plugin (2), Event (5).
    assert_eq!(slot::<PluginInitialize>(), 3);
    assert_eq!(
        [
            slot::<EventDestroy>(),
            slot::<EventIsReady>(),
            slot::<EventAwait>()
        ],
        [5, 6, 8]
    );
    // Client (13), DeviceDescription (6), Device (6), Memory (5).
    let client = [
        slot::<ClientCreate>(),
        slot::<ClientDestroy>(),
        slot::<ClientPlatformName>(),
        slot::<ClientPlatformVersion>(),
    ];
    assert_eq!(client, [10, 11, 12, 14]);
    assert_eq!(
        [
            slot::<ClientAddressableDevices>(),
            slot::<ClientCompile>(),
            slot::<BufferFromHostBuffer>()
        ],
        [16, 20, 22]
    );
    assert_eq!(
        [
            slot::<DeviceDescriptionId>(),
            slot::<DeviceDescriptionAttributes>(),
            slot::<DeviceGetDescription>()
        ],
        [23, 25, 29]
    );
    // Executable (10), LoadedExecutable (6), DeserializeAndLoad, Fingerprint.
    assert_eq!(
        [
            slot::<ExecutableDestroy>(),
            slot::<ExecutableNumOutputs>(),
            slot::<ExecutableGetCostAnalysis>(),
            slot::<ExecutableOptimizedProgram>(),
            slot::<ExecutableSerialize>()
        ],
        [40, 44, 46, 48, 49]
    );
    let loaded = [
        slot::<LoadedDestroy>(),
        slot::<LoadedGetExecutable>(),
        slot::<LoadedExecute>(),
        slot::<DeserializeAndLoad>(),
    ];
    assert_eq!(loaded, [50, 51, 55, 56]);
    // Buffer (19), CopyToDeviceStream (5), TopologyDescription (7), Compile, then what was appended later.
    assert_eq!(
        [
            slot::<BufferDestroy>(),
            slot::<BufferToHostBuffer>(),
            slot::<BufferReadyEvent>()
        ],
        [58, 70, 72]
    );
    let topology = [
        slot::<TopologyCreate>(),
        slot::<TopologyDestroy>(),
        slot::<TopologyPlatformName>(),
        slot::<TopologyGetDeviceDescriptions>(),
        slot::<Compile>(),
    ];
    assert_eq!(topology, [82, 83, 84, 86, 89]);
    assert_eq!(
        [
            slot::<ExecutableOutputElementTypes>(),
            slot::<ExecutableOutputDimensions>()
        ],
        [90, 91]
    );
    assert_eq!(slot::<ExecutableGetCompiledMemoryStats>(), 96);
}

#[test]
fn a_new_struct_is_zero_but_for_its_size() {
    let options = ExecuteOptions::new();
    assert_eq!(
        (
            options.struct_size,
            options.num_non_donatable_input_indices,
            options.launch_id
        ),
        (144, 0, 0)
    );
    assert!(options.non_donatable_input_indices.is_null() && options.extension_start.is_null());
    // The C size ends with the last field; Rust's adds padding.
    assert_eq!(
        (EventIsReady::new().struct_size, size_of::<EventIsReady>()),
        (25, 32)
    );
}
