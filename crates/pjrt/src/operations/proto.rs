//! The few fields of XLA's `HloModuleProtoWithConfig` that are needed, as protobuf; all others are skipped while reading.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModuleWithConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) module: Option<Module>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Module {
    #[prost(message, repeated, tag = "3")]
    pub(super) computations: Vec<Computation>,
    #[prost(int64, tag = "6")]
    pub(super) entry: i64,
}

/// A list of instructions: the program itself, the body of a loop, the inside of a fusion, the sum of an all-reduce.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Computation {
    #[prost(message, repeated, tag = "2")]
    pub(super) instructions: Vec<Instruction>,
    #[prost(int64, tag = "5")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Instruction {
    #[prost(string, tag = "2")]
    pub(super) opcode: String,
    #[prost(message, optional, tag = "3")]
    pub(super) shape: Option<Shape>,
    #[prost(message, optional, tag = "7")]
    pub(super) metadata: Option<Metadata>,
    #[prost(int64, tag = "35")]
    pub(super) id: i64,
    #[prost(int64, repeated, tag = "36")]
    pub(super) operands: Vec<i64>,
    #[prost(int64, repeated, tag = "38")]
    pub(super) called: Vec<i64>,
}

impl Instruction {
    pub(super) fn op_name(&self) -> &str {
        self.metadata.as_ref().map_or("", |m| m.op_name.as_str())
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metadata {
    /// The location that the text gives to an operation, handed on to what the compiler makes of it.
    #[prost(string, tag = "2")]
    pub(super) op_name: String,
}

/// An array, or a tuple when it has parts.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Shape {
    #[prost(int32, tag = "2")]
    pub(super) element_type: i32,
    #[prost(int64, repeated, tag = "3")]
    pub(super) dims: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    pub(super) parts: Vec<Shape>,
}

impl Shape {
    /// Bytes of all arrays in it, without padding.
    pub(super) fn bytes(&self) -> u64 {
        let elements: u64 = self
            .dims
            .iter()
            .map(|&d| u64::try_from(d).unwrap_or(0))
            .product();
        let own = (elements * bits(self.element_type)).div_ceil(8);
        own + self.parts.iter().map(Shape::bytes).sum::<u64>()
    }
}

/// Bits of an element, by the numbers of XLA's `PrimitiveType`; a tuple, a token or what is not known has none of its own.
fn bits(element_type: i32) -> u64 {
    match element_type {
        30 | 31 => 1,                          // S1, U1
        26 | 27 => 2,                          // S2, U2
        21 | 22 | 32 => 4,                     // S4, U4, F4E2M1FN
        1 | 2 | 6 => 8,                        // PRED, S8, U8
        19 | 20 | 23..=25 | 28 | 29 | 33 => 8, // the F8 types
        3 | 7 | 10 | 16 => 16,                 // S16, U16, F16, BF16
        4 | 8 | 11 => 32,                      // S32, U32, F32
        5 | 9 | 12 | 15 => 64,                 // S64, U64, F64, C64
        18 => 128,                             // C128
        _ => 0,
    }
}
