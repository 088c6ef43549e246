use prost::Message;

use super::{
    Collective, Operations,
    proto::{Computation, Instruction, Metadata, Module, ModuleWithConfig, Shape},
};

const F32: i32 = 11;
const TUPLE: i32 = 13;
const U32: i32 = 8;

fn array(element_type: i32, dims: &[i64]) -> Shape {
    Shape {
        element_type,
        dims: dims.to_vec(),
        parts: vec![],
    }
}

fn tuple(parts: &[Shape]) -> Shape {
    Shape {
        element_type: TUPLE,
        dims: vec![],
        parts: parts.to_vec(),
    }
}

fn instruction(opcode: &str, shape: Shape, called: &[i64]) -> Instruction {
    Instruction {
        opcode: opcode.to_owned(),
        shape: Some(shape),
        metadata: Some(Metadata {
            op_name: format!("layers/{opcode}"),
        }),
        called: called.to_vec(),
        ..Instruction::default()
    }
}

fn read(entry: i64, computations: Vec<(i64, Vec<Instruction>)>) -> Operations {
    let computations = computations
        .into_iter()
        .map(|(id, instructions)| Computation { instructions, id })
        .collect();
    let module = Module {
        computations,
        entry,
    };
    let bytes = ModuleWithConfig {
        module: Some(module),
    }
    .encode_to_vec();
    Operations::decode(&bytes).expect("these are its bytes")
}

fn only(instruction: Instruction) -> Collective {
    let mut operations = read(1, vec![(1, vec![instruction])]);
    assert_eq!(operations.collectives.len(), 1);
    operations.collectives.remove(0)
}

#[test]
fn the_size_of_a_collective_is_that_of_its_result() {
    let (part, whole) = (array(F32, &[4, 8]), array(F32, &[16, 8]));
    let context = array(U32, &[]);
    let cases = [
        ("all-gather", whole.clone(), 512),
        (
            "all-gather-start",
            tuple(&[part.clone(), whole.clone()]),
            512,
        ),
        (
            "all-gather-start",
            tuple(&[
                tuple(&[part.clone(), part.clone()]),
                tuple(&[whole.clone(), whole.clone()]),
            ]),
            1024,
        ),
        (
            "collective-permute-start",
            tuple(&[part.clone(), part.clone(), context.clone(), context]),
            128,
        ),
        ("all-reduce-start", part.clone(), 128),
        (
            "all-reduce-start",
            tuple(&[part.clone(), whole.clone()]),
            640,
        ),
        ("all-reduce", tuple(&[part.clone(), whole]), 640),
        ("ragged-all-to-all", part, 128),
    ];
    for (opcode, shape, bytes) in cases {
        let found = only(instruction(opcode, shape, &[]));
        assert_eq!(found.bytes, bytes, "{opcode}");
        assert_eq!(found.kind, opcode.trim_end_matches("-start"));
        assert_eq!(found.scope, format!("layers/{opcode}"));
    }
}

#[test]
fn elements_have_the_sizes_of_xlas_types() {
    let sizes = [
        (1, 8),    // PRED
        (2, 8),    // S8
        (3, 16),   // S16
        (4, 32),   // S32
        (5, 64),   // S64
        (6, 8),    // U8
        (7, 16),   // U16
        (8, 32),   // U32
        (9, 64),   // U64
        (10, 16),  // F16
        (11, 32),  // F32
        (12, 64),  // F64
        (14, 0),   // OPAQUE
        (15, 64),  // C64
        (16, 16),  // BF16
        (17, 0),   // TOKEN
        (18, 128), // C128
        (19, 8),   // F8E5M2
        (20, 8),   // F8E4M3FN
        (21, 4),   // S4
        (26, 2),   // S2
        (30, 1),   // S1
        (32, 4),   // F4E2M1FN
        (33, 8),   // F8E8M0FNU
    ];
    for (number, bits) in sizes {
        assert_eq!(
            array(number, &[2, 3]).bytes(),
            (6_u64 * bits).div_ceil(8),
            "{number}"
        );
    }
    assert_eq!(array(F32, &[]).bytes(), 4);
    assert_eq!(array(F32, &[3, 0]).bytes(), 0);
}

#[test]
fn a_loop_is_everything_that_a_while_calls_however_deep() {
    let x = || array(F32, &[2]);
    let operations = read(
        7,
        vec![
            (1, vec![instruction("add", x(), &[])]),
            (2, vec![instruction("all-gather", x(), &[])]),
            (3, vec![instruction("fusion", x(), &[2])]),
            (
                4,
                vec![
                    instruction("compare", x(), &[]),
                    instruction("all-to-all", x(), &[]),
                ],
            ),
            (5, vec![instruction("all-reduce", x(), &[1])]),
            (
                7,
                vec![
                    instruction("call", x(), &[5]),
                    instruction("while", x(), &[3, 4]),
                    instruction("all-gather", x(), &[]),
                    instruction("all-gather-done", x(), &[]),
                ],
            ),
        ],
    );
    let found: Vec<_> = operations
        .collectives
        .iter()
        .map(|c| (c.kind.as_str(), c.in_loop))
        .collect();
    assert_eq!(
        found,
        [
            ("all-gather", true),
            ("all-to-all", true),
            ("all-reduce", false),
            ("all-gather", false)
        ]
    );
    assert_eq!(
        ["all-gather", "all-gather-done", "while", "fusion", "dot"].map(|o| operations.count(o)),
        [2, 1, 1, 1, 0]
    );
}

#[test]
fn what_is_called_inside_and_outside_of_loops_is_in_a_loop() {
    let x = || array(F32, &[2]);
    // The call outside is met last, and first.
    for callees in [[3, 2], [2, 3]] {
        let entry = callees.map(|callee| {
            let opcode = if callee == 3 { "while" } else { "call" };
            instruction(opcode, x(), &[callee])
        });
        let operations = read(
            1,
            vec![
                (1, entry.to_vec()),
                (2, vec![instruction("all-reduce", x(), &[])]),
                (3, vec![instruction("call", x(), &[2])]),
            ],
        );
        assert!(operations.collectives[0].in_loop);
    }
}

#[test]
fn bytes_that_are_no_program_are_refused() {
    assert!(Operations::decode(&[0x0a, 0xff]).is_err());
    assert_eq!(Operations::decode(&[]), Ok(Operations::default()));
}

/// An instruction of one element with this number, name and operands.
fn node(id: i64, opcode: &str, name: &str, operands: &[i64]) -> Instruction {
    Instruction {
        metadata: Some(Metadata {
            op_name: name.to_owned(),
        }),
        id,
        operands: operands.to_vec(),
        ..instruction(opcode, array(F32, &[]), &[])
    }
}

fn scope_of(computations: Vec<(i64, Vec<Instruction>)>) -> String {
    read(1, computations).collectives.remove(0).scope
}

#[test]
fn a_collective_without_a_name_is_known_by_what_it_is_for_or_what_it_sums() {
    let named = |opcode, name| {
        scope_of(vec![(
            1,
            vec![
                node(1, "parameter", "Arg_0.1", &[]),
                node(2, "dot", "before", &[1]),
                node(3, "copy", "", &[2]),
                node(4, opcode, name, &[3]),
                node(5, "copy", "Arg_0.1", &[4]),
                node(6, "add", "after", &[5]),
                node(7, "add", "later", &[6]),
            ],
        )])
    };
    assert_eq!(named("all-gather", "own"), "own");
    for name in ["", "Arg_0.1"] {
        assert_eq!(named("all-gather", name), "after");
        assert_eq!(named("all-reduce-start", name), "before");
        assert_eq!(named("reduce-scatter", name), "before");
    }
    // With nothing on the one side, the other counts.
    let end = vec![
        node(1, "parameter", "", &[]),
        node(2, "dot", "before", &[1]),
        node(3, "all-gather", "", &[2]),
    ];
    assert_eq!(scope_of(vec![(1, end)]), "before");
}

#[test]
fn inside_a_fusion_without_names_its_caller_counts() {
    let call = |name| Instruction {
        called: vec![2],
        ..node(2, "fusion", name, &[1])
    };
    let inside = vec![
        node(3, "parameter", "", &[]),
        node(4, "all-reduce", "", &[3]),
    ];
    let outside = |name| {
        vec![
            node(1, "parameter", "Arg_0.1", &[]),
            call(name),
            node(5, "add", "after", &[2]),
        ]
    };
    assert_eq!(
        scope_of(vec![(2, inside.clone()), (1, outside("fused"))]),
        "fused"
    );
    assert_eq!(
        scope_of(vec![(2, inside.clone()), (1, outside(""))]),
        "after"
    );
    // A computation that calls itself is no program; reading it ends all the same.
    let mut round = inside;
    round.push(Instruction {
        called: vec![2],
        ..node(6, "call", "", &[])
    });
    assert_eq!(scope_of(vec![(2, round)]), "");
}
