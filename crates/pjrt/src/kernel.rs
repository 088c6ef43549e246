//! Functions of this process that a program calls on the CPU.

mod attributes;
mod call;
mod handler;
mod in_place;
mod watch;

use std::fmt;

pub use call::{KernelCall, KernelInput, KernelOutput};
pub(crate) use handler::{check_platform, prepare};
pub(crate) use watch::Watch;

/// A function that programs may call through XLA's foreign function interface, on the CPU only.
///
/// A [`Module`](crate::Module) lists the kernels that its text calls; compiling it makes them known to the plugin. The text of a
/// call has the kernel's name among its attributes:
///
/// ```text
/// %y = stablehlo.custom_call @ferrotune_kernel(%x) {api_version = 4 : i32, backend_config = {kernel = "double", n = 3 : i64}}
///     : (tensor<4xf32>) -> tensor<4xf32>
/// ```
///
/// An attribute `parts` lets a kernel read an input in place that lies inside of a larger array: a list of whole numbers, for
/// each such input its index, the first element that is meant, how many dimensions there are, and these.
///
/// An attribute `replaces` lets a kernel change an input in place: a list of pairs, the index of an input and of the output that
/// takes over its memory, as `output_operand_aliases` must say too. The output then holds what the input held, and the
/// input has no elements.
///
/// The function must not keep anything between calls: several devices call it at once. Outside of a manual region
/// (`sdy.manual_computation`) every device calls it with the whole arrays.
pub struct Kernel {
    /// A name that is unique in the process.
    pub name: &'static str,
    /// Reads the inputs, fills the outputs. An error, or a panic, becomes the error of the run: on one device at once, on a mesh when
    /// a result is waited for. There, runs of the same kernel that are under way at that moment share the failure.
    pub run: fn(&mut KernelCall<'_>) -> Result<(), String>,
}

impl Kernel {
    /// The target of every `custom_call` to a kernel.
    pub const TARGET: &'static str = "ferrotune_kernel";

    /// The attribute that says which inputs are parts of larger arrays.
    pub const PARTS: &'static str = in_place::PARTS;

    /// The attribute that says which outputs take over the memory of which inputs.
    pub const REPLACES: &'static str = in_place::REPLACES;
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({})", self.name)
    }
}

impl PartialEq for Kernel {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// A constant that is part of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// A whole number.
    Integer(i64),
    /// A number.
    Number(f64),
    /// Yes or no.
    Flag(bool),
    /// Words.
    Text(String),
    /// Several whole numbers.
    Integers(Vec<i64>),
}

impl Attribute {
    /// The value as it is written in the text of a program. Reads back exactly, infinities and non-numbers too.
    #[must_use]
    pub fn to_mlir(&self) -> String {
        match self {
            Attribute::Integer(value) => format!("{value} : i64"),
            Attribute::Number(value) => format!("{} : f64", number(*value)),
            Attribute::Flag(value) => value.to_string(),
            Attribute::Text(value) => text(value),
            Attribute::Integers(values) if values.is_empty() => "array<i64>".to_owned(),
            Attribute::Integers(values) => {
                let values: Vec<String> = values.iter().map(i64::to_string).collect();
                format!("array<i64: {}>", values.join(", "))
            }
        }
    }
}

/// MLIR wants a dot in every decimal number, and spells what is none by its bits.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return format!("{:#018X}", value.to_bits()).replace("0X", "0x");
    }
    let decimal = format!("{value:e}");
    match decimal.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => decimal,
    }
}

/// A quoted string; every byte that is not plain printable ASCII is spelled in hexadecimal.
fn text(value: &str) -> String {
    let mut quoted = String::from('"');
    for byte in value.bytes() {
        match byte {
            b'"' | b'\\' | 0..=31 | 127.. => quoted.push_str(&format!("\\{byte:02X}")),
            _ => quoted.push(char::from(byte)),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests;
