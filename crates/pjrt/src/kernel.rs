//! Functions of this process that a program calls on the CPU.

use std::fmt;

/// A function that programs may call through XLA's foreign function interface, on the CPU only.
///
/// A program names a kernel; compiling the program makes it known to the plugin. The function must not keep anything
/// between calls: several devices call it at once.
pub struct Kernel {
    /// A name that is unique in the process.
    pub name: &'static str,
    /// Reads the inputs, fills the outputs. An error, or a panic, becomes the error of the run.
    pub run: fn(&mut KernelCall<'_>) -> Result<(), String>,
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

/// One call of a kernel: inputs, outputs and attributes.
pub struct KernelCall<'a> {
    _frame: std::marker::PhantomData<&'a mut ()>,
}
