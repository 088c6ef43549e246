//! What a kernel sees of a call: checked views of XLA's buffers and attributes.

use std::{borrow::Cow, ffi::c_int};

use super::{
    Attribute,
    attributes::Attributes,
    in_place::{PARTS, REPLACES, give_up, take_parts},
};
use crate::{
    DType, Element,
    abi::ffi::{self, Buffer, Buffers, CallFrame},
    client::array_of,
    host::byte_len,
};

/// One call of a kernel: inputs, outputs and attributes.
pub struct KernelCall<'a> {
    inputs: Vec<KernelInput<'a>>,
    outputs: Vec<KernelOutput<'a>>,
    attributes: Attributes<'a>,
}

/// An array that a kernel reads: the part of it that the calling device holds.
#[derive(Debug)]
pub struct KernelInput<'a> {
    index: usize,
    pub(super) dtype: DType,
    pub(super) dims: Cow<'a, [usize]>,
    pub(super) bytes: &'a [u8],
}

/// An array that a kernel fills, all of it: before, it holds whatever was in that memory, or what the input held that it replaces.
#[derive(Debug)]
pub struct KernelOutput<'a> {
    index: usize,
    dtype: DType,
    dims: &'a [usize],
    bytes: &'a mut [u8],
}

impl<'a> KernelCall<'a> {
    /// The arrays to read.
    #[must_use]
    pub fn inputs(&self) -> &[KernelInput<'a>] {
        &self.inputs
    }

    /// The arrays to read and the arrays to fill, to be held together.
    pub fn parts(&mut self) -> (&[KernelInput<'a>], &mut [KernelOutput<'a>]) {
        (&self.inputs, &mut self.outputs)
    }

    /// The attribute of this name, a whole number.
    ///
    /// # Errors
    /// When there is none, or it is something else.
    pub fn integer(&self, name: &str) -> Result<i64, String> {
        match self.attributes.get(name)? {
            Attribute::Integer(value) => Ok(value),
            other => Err(unlike(name, &other, "a whole number")),
        }
    }

    /// The attribute of this name, a number.
    ///
    /// # Errors
    /// When there is none, or it is something else, whole numbers included.
    pub fn number(&self, name: &str) -> Result<f64, String> {
        match self.attributes.get(name)? {
            Attribute::Number(value) => Ok(value),
            other => Err(unlike(name, &other, "a number with a fraction")),
        }
    }

    /// The attribute of this name, yes or no.
    ///
    /// # Errors
    /// When there is none, or it is something else.
    pub fn flag(&self, name: &str) -> Result<bool, String> {
        match self.attributes.get(name)? {
            Attribute::Flag(value) => Ok(value),
            other => Err(unlike(name, &other, "true or false")),
        }
    }

    /// The attribute of this name, words.
    ///
    /// # Errors
    /// When there is none, or it is something else.
    pub fn text(&self, name: &str) -> Result<String, String> {
        match self.attributes.get(name)? {
            Attribute::Text(value) => Ok(value),
            other => Err(unlike(name, &other, "text")),
        }
    }

    /// The attribute of this name, several whole numbers.
    ///
    /// # Errors
    /// When there is none, or it is something else.
    pub fn integers(&self, name: &str) -> Result<Vec<i64>, String> {
        match self.attributes.get(name)? {
            Attribute::Integers(value) => Ok(value),
            other => Err(unlike(name, &other, "a list of whole numbers")),
        }
    }
}

fn unlike(name: &str, got: &Attribute, wanted: &str) -> String {
    format!("attribute '{name}' is {}, not {wanted}", got.to_mlir())
}

impl KernelInput<'_> {
    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions, major first; empty for a scalar.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The elements, row-major. Truth values can be read as `bool` or as bytes, 8-bit floats as bytes.
    ///
    /// # Errors
    /// When `T` is not the element type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], String> {
        if !readable::<T>(self.dtype) {
            return Err(format!(
                "input {} is {}, not {}",
                self.index,
                self.dtype,
                T::DTYPE
            ));
        }
        bytemuck::checked::try_cast_slice(self.bytes)
            .map_err(|error| format!("input {} cannot be read: {error}", self.index))
    }
}

impl KernelOutput<'_> {
    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions, major first; empty for a scalar.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        self.dims
    }

    /// The elements, row-major, to be filled. Truth values are written as bytes, 0 or 1, since what is there before may be neither;
    /// 8-bit floats are written as bytes too.
    ///
    /// # Errors
    /// When `T` is not the element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], String> {
        let (index, dtype) = (self.index, self.dtype);
        if !readable::<T>(dtype) {
            return Err(format!("output {index} is {dtype}, not {}", T::DTYPE));
        }
        if T::DTYPE == DType::Pred {
            return Err(format!(
                "output {index} holds truth values: write it as u8, 0 or 1"
            ));
        }
        bytemuck::checked::try_cast_slice_mut(self.bytes)
            .map_err(|error| format!("output {index} cannot be written: {error}"))
    }
}

fn readable<T: Element>(dtype: DType) -> bool {
    let bytes = matches!(dtype, DType::Pred | DType::F8E4M3FN | DType::F8E5M2);
    T::DTYPE == dtype || (bytes && T::DTYPE == DType::U8)
}

impl<'a> KernelCall<'a> {
    /// # Safety
    /// `frame` must be a call that XLA is making: buffers of the stated element types and dimensions that stay where they are until it
    /// returns, the inputs unchanged, the outputs left to us.
    pub(super) unsafe fn of(frame: &'a CallFrame) -> Result<KernelCall<'a>, String> {
        // SAFETY: passed on to the caller.
        let (args, rets) = unsafe {
            (
                buffers(&frame.args, "input")?,
                buffers(&frame.rets, "output")?,
            )
        };
        let inputs = args.iter().enumerate().map(|(index, &buffer)| {
            // SAFETY: as above.
            let (Shape { dtype, dims, len }, data) = unsafe { shape(buffer, "input", index)? };
            // SAFETY: as above; what a program reads has been written, and nobody writes it during the call.
            let bytes = unsafe { array_of(data.cast_const(), len) };
            Ok(KernelInput {
                index,
                dtype,
                dims: Cow::Borrowed(dims),
                bytes,
            })
        });
        let mut inputs = inputs.collect::<Result<Vec<_>, String>>()?;
        // SAFETY: passed on to the caller.
        let attributes = unsafe { Attributes::of(&frame.attrs) };
        let replaced = match attributes.find_integers(REPLACES)? {
            Some(pairs) => give_up(&mut inputs, &pairs, rets.len())?,
            None => Vec::new(),
        };
        let mut outputs: Vec<KernelOutput<'a>> = Vec::with_capacity(rets.len());
        for (index, &buffer) in rets.iter().enumerate() {
            // SAFETY: as above.
            let (Shape { dtype, dims, len }, data) = unsafe { shape(buffer, "output", index)? };
            let mut before = replaced.iter().filter(|(output, _)| *output == index);
            if before.any(|(_, input)| *input != (data.addr(), len)) {
                return Err(format!(
                    "output {index} does not lie where the input does that it replaces; say so in output_operand_aliases"
                ));
            }
            // A text may have asked XLA for an output in an input's memory without telling us.
            let mut others = inputs
                .iter()
                .map(|input| input.bytes)
                .chain(outputs.iter().map(|output| &*output.bytes));
            if others.any(|other| overlap(other, data.addr(), len)) {
                return Err(format!(
                    "output {index} shares memory with another array of the call; remove output_operand_aliases, or say with \
                     '{REPLACES}' which input it replaces"
                ));
            }
            // SAFETY: XLA gives `len` bytes for the result, which nobody else touches during the call, and which by the check above
            // lie apart from every other slice. They were allocated outside of Rust, so to the compiler they hold some values
            // already; any value is a valid byte, and `as_mut_slice` gives them out only as types for which any bytes are valid.
            let bytes = unsafe { slice_mut(data, len) };
            outputs.push(KernelOutput {
                index,
                dtype,
                dims,
                bytes,
            });
        }
        if let Some(parts) = attributes.find_integers(PARTS)? {
            take_parts(&mut inputs, &parts)?;
        }
        Ok(KernelCall {
            inputs,
            outputs,
            attributes,
        })
    }

    /// Fills the outputs of a failed call, so that nobody takes them for results: with non-numbers where there are any.
    pub(super) fn poison(&mut self) {
        for output in &mut self.outputs {
            // All bits set is a non-number in every floating-point type; zero is a harmless index and a truth value.
            output
                .bytes
                .fill(if output.dtype.is_float() { 0xff } else { 0 });
        }
    }

    /// XLA takes other bytes than 0 and 1 for truth values without asking, and computes nonsense.
    pub(super) fn check_truth_values(&self) -> Result<(), String> {
        let truth = self
            .outputs
            .iter()
            .filter(|output| output.dtype == DType::Pred);
        for output in truth {
            if let Some(at) = output.bytes.iter().position(|&byte| byte > 1) {
                let (index, byte) = (output.index, output.bytes[at]);
                return Err(format!(
                    "output {index} holds truth values, but element {at} was set to {byte}"
                ));
            }
        }
        Ok(())
    }
}

/// # Safety
/// As for [`KernelCall::of`].
unsafe fn buffers<'a>(of: &'a Buffers, what: &str) -> Result<&'a [*const Buffer], String> {
    let len = of.size as usize;
    // SAFETY: the caller vouches for the frame, which says that there are this many.
    let (kinds, buffers) = unsafe { (array_of(of.kinds, len), array_of(of.buffers, len)) };
    match kinds.iter().position(|&kind| kind != ffi::BUFFER) {
        Some(index) => Err(format!("{what} {index} is not an array")),
        None => Ok(buffers),
    }
}

struct Shape<'a> {
    dtype: DType,
    dims: &'a [usize],
    /// In bytes.
    len: usize,
}

/// What a buffer is, and where.
///
/// # Safety
/// `buffer` must be a live buffer of a call.
unsafe fn shape<'a>(
    buffer: *const Buffer,
    what: &str,
    index: usize,
) -> Result<(Shape<'a>, *mut u8), String> {
    // SAFETY: passed on to the caller.
    let (buffer, dims) = unsafe { (&*buffer, array_of((*buffer).dims, (*buffer).rank as usize)) };
    let dtype = dtype(buffer.dtype).ok_or_else(|| {
        let number = buffer.dtype;
        format!("{what} {index} has XLA's element type number {number}, which kernels cannot use")
    })?;
    // Dimensions are never negative, and XLA runs on machines of 64 bits.
    let dims: &[usize] = bytemuck::cast_slice(dims);
    let len = byte_len(dtype, dims).map_err(|error| error.to_string())?;
    Ok((Shape { dtype, dims, len }, buffer.data))
}

fn overlap(other: &[u8], start: usize, len: usize) -> bool {
    let from = other.as_ptr().addr();
    len > 0 && !other.is_empty() && start < from + other.len() && from < start + len
}

/// # Safety
/// `data` must be valid for `len` bytes that nobody else touches while the result is used.
unsafe fn slice_mut<'a>(data: *mut u8, len: usize) -> &'a mut [u8] {
    if len == 0 {
        // An empty array may have no memory at all.
        return &mut [];
    }
    // SAFETY: passed on to the caller.
    unsafe { std::slice::from_raw_parts_mut(data, len) }
}

/// The element type behind XLA's own number, which is not that of the PJRT C API.
pub(super) fn dtype(number: c_int) -> Option<DType> {
    Some(match number {
        1 => DType::Pred,
        2 => DType::S8,
        3 => DType::S16,
        4 => DType::S32,
        5 => DType::S64,
        6 => DType::U8,
        7 => DType::U16,
        8 => DType::U32,
        9 => DType::U64,
        10 => DType::F16,
        11 => DType::F32,
        12 => DType::F64,
        16 => DType::BF16,
        19 => DType::F8E5M2,
        20 => DType::F8E4M3FN,
        _ => return None,
    })
}
