//! Inputs that are parts of larger arrays, and inputs whose memory outputs take over.

use std::borrow::Cow;

use super::KernelInput;
use crate::host::byte_len;

/// The attribute that says which inputs are given as part of a larger array: for each its index, its first element there, how
/// many dimensions it has, and these.
pub(super) const PARTS: &str = "parts";

/// An output, and the address and the bytes of the input that it replaces.
pub(super) type Replaced = (usize, (usize, usize));

/// The attribute that says which outputs replace which inputs: pairs of an input's index and an output's.
pub(super) const REPLACES: &str = "replaces";

/// Takes the elements of inputs that are replaced away; answers with the index of each output that replaces one, and with where
/// that input lies, its address and bytes.
pub(super) fn give_up(
    inputs: &mut [KernelInput<'_>],
    pairs: &[i64],
    outputs: usize,
) -> Result<Vec<Replaced>, String> {
    let wrong = || format!("attribute '{REPLACES}' does not list pairs of an input and an output");
    let pair = |&[input, output]: &[i64; 2]| {
        let at = |number: i64| usize::try_from(number).ok();
        let output = at(output).filter(|output| *output < outputs)?;
        let input = inputs.get_mut(at(input)?)?;
        let bytes = input.bytes;
        input.bytes = &bytes[..0];
        Some((output, (bytes.as_ptr().addr(), bytes.len())))
    };
    let (pairs, rest) = pairs.as_chunks::<2>();
    let found: Option<Vec<_>> = pairs.iter().map(pair).collect();
    found.filter(|_| rest.is_empty()).ok_or_else(wrong)
}

/// Leaves of the inputs the parts that are meant.
pub(super) fn take_parts(inputs: &mut [KernelInput<'_>], parts: &[i64]) -> Result<(), String> {
    let wrong = || format!("attribute '{PARTS}' does not describe parts of the inputs");
    let parts: Option<Vec<usize>> = parts.iter().map(|p| usize::try_from(*p).ok()).collect();
    let parts = parts.ok_or_else(wrong)?;
    let mut rest = &parts[..];
    while let &[index, first, rank, ref more @ ..] = rest {
        let (dims, more) = more.split_at_checked(rank).ok_or_else(wrong)?;
        let input = inputs.get_mut(index).ok_or_else(wrong)?;
        let begin = byte_len(input.dtype, &[first]).map_err(|error| error.to_string())?;
        let len = byte_len(input.dtype, dims).map_err(|error| error.to_string())?;
        let end = begin.checked_add(len).ok_or_else(wrong)?;
        input.bytes = input.bytes.get(begin..end).ok_or_else(wrong)?;
        input.dims = Cow::Owned(dims.to_vec());
        rest = more;
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(wrong())
    }
}
