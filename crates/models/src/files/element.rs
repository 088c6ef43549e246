//! Values as they are moved between disk and tree: number types, transposition, and the search for values that are not finite.
//!
//! Everything works on one tensor at a time, little-endian as safetensors is. Shapes are checked by the callers.

use std::ops::Range;

use ferrotune_pjrt::DType;
use half::{bf16, f16};
use safetensors::Dtype as DiskType;

use crate::layout::Piece;

/// A number type in which weights may be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    F32,
    BF16,
    F16,
}

impl Stored {
    /// For messages.
    pub(crate) const NAMES: &str = "F32, BF16 or F16";

    pub(crate) fn from_disk(dtype: DiskType) -> Option<Self> {
        match dtype {
            DiskType::F32 => Some(Self::F32),
            DiskType::BF16 => Some(Self::BF16),
            DiskType::F16 => Some(Self::F16),
            _ => None,
        }
    }

    pub(crate) fn from_dtype(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::BF16 => Some(Self::BF16),
            DType::F16 => Some(Self::F16),
            _ => None,
        }
    }

    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::BF16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    pub(crate) fn disk(self) -> DiskType {
        match self {
            Self::F32 => DiskType::F32,
            Self::BF16 => DiskType::BF16,
            Self::F16 => DiskType::F16,
        }
    }

    pub(crate) fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::BF16 | Self::F16 => 2,
        }
    }

    /// Reads every value of `bytes` into `out`; exact for all three types.
    fn read(self, bytes: &[u8], out: &mut [F32Bytes]) {
        match self {
            Self::F32 => read_all(bytes, out, f32::from_le_bytes),
            Self::BF16 => read_all(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
            Self::F16 => read_all(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        }
    }

    /// Writes every value of `values`, rounded to nearest even.
    fn write(self, values: &[f32], out: &mut [u8]) {
        match self {
            Self::F32 => write_all(values, out, f32::to_le_bytes),
            Self::BF16 => write_all(values, out, |v| bf16::from_f32(v).to_le_bytes()),
            Self::F16 => write_all(values, out, |v| f16::from_f32(v).to_le_bytes()),
        }
    }
}

/// The bytes of one f32 in host order: the parts of an array that is still a plain byte vector, with no alignment to care for.
pub(crate) type F32Bytes = [u8; 4];

fn read_all<const N: usize>(bytes: &[u8], out: &mut [F32Bytes], read: impl Fn([u8; N]) -> f32) {
    let (values, rest) = bytes.as_chunks::<N>();
    assert!(
        rest.is_empty() && values.len() == out.len(),
        "the caller checked the length"
    );
    for (slot, value) in out.iter_mut().zip(values) {
        *slot = read(*value).to_ne_bytes();
    }
}

fn write_all<const N: usize>(values: &[f32], out: &mut [u8], write: impl Fn(f32) -> [u8; N]) {
    let (slots, rest) = out.as_chunks_mut::<N>();
    assert!(
        rest.is_empty() && slots.len() == values.len(),
        "a piece has as many values as its rows"
    );
    for (slot, value) in slots.iter_mut().zip(values) {
        *slot = write(*value);
    }
}

/// Writes the values of `piece`, some rows of a tensor with these bytes on disk, to `out` in the tree's order.
///
/// If `transposed`, `out` gets the rows as columns. `was_read` is told of every range of bytes that is no longer needed.
pub(crate) fn from_disk(
    bytes: &[u8],
    stored: Stored,
    piece: &Piece,
    transposed: bool,
    out: &mut [F32Bytes],
    mut was_read: impl FnMut(Range<usize>),
) {
    let (columns, height) = (piece.columns(), piece.height());
    let row_bytes = columns * stored.size();
    let bands = piece.rows.iter().flat_map(|run| {
        let begins = run.clone().step_by(BAND);
        begins.map(|first| first..run.end.min(first + BAND))
    });
    let mut band = Vec::new();
    let mut done = 0;
    for rows in bands {
        let range = rows.start * row_bytes..rows.end * row_bytes;
        if transposed {
            band.resize(rows.len() * columns, [0; 4]);
            stored.read(&bytes[range.clone()], &mut band);
            scatter_columns(&band, columns, &mut out[done..], height);
        } else {
            let part = &mut out[done * columns..][..rows.len() * columns];
            stored.read(&bytes[range.clone()], part);
        }
        done += rows.len();
        was_read(range);
    }
}

/// Writes the values of `piece`, in the tree's order, to their rows of the tensor with these bytes on disk.
pub(crate) fn to_disk(
    values: &[f32],
    stored: Stored,
    piece: &Piece,
    transposed: bool,
    bytes: &mut [u8],
) {
    let (columns, height) = (piece.columns(), piece.height());
    let row_bytes = columns * stored.size();
    let mut turned = Vec::new();
    let mut done = 0;
    for run in &piece.rows {
        let out = &mut bytes[run.start * row_bytes..run.end * row_bytes];
        if transposed {
            turned.resize(run.len() * columns, 0.0);
            gather_columns(&values[done..], height, columns, &mut turned);
            stored.write(&turned, out);
        } else {
            stored.write(&values[done * columns..][..run.len() * columns], out);
        }
        done += run.len();
    }
}

/// Rows that are read together: enough to fill a cache line of the result.
const BAND: usize = 32;

/// Writes `band`, some rows of `columns` values, as columns of `out`, whose rows are `stride` apart.
fn scatter_columns<T: Copy>(band: &[T], columns: usize, out: &mut [T], stride: usize) {
    for column in 0..columns {
        let target = &mut out[column * stride..];
        for (slot, row) in target.iter_mut().zip(band.chunks_exact(columns)) {
            *slot = row[column];
        }
    }
}

/// Fills `out`, rows of `columns` values, from the first columns of `values`, whose rows are `stride` apart.
fn gather_columns(values: &[f32], stride: usize, columns: usize, out: &mut [f32]) {
    let height = out.len() / columns;
    for first in (0..height).step_by(BAND) {
        let count = BAND.min(height - first);
        for column in 0..columns {
            let source = &values[column * stride + first..][..count];
            for (row, value) in source.iter().enumerate() {
                out[(first + row) * columns + column] = *value;
            }
        }
    }
}

/// How many values are NaN or infinite, and the index of the first.
pub(crate) fn not_finite(mut values: impl Iterator<Item = f32>) -> Option<(usize, usize)> {
    let first = values.position(|v| !v.is_finite())?;
    Some((1 + values.filter(|v| !v.is_finite()).count(), first))
}

/// The first finite value that rounds to infinity in `stored`.
pub(crate) fn first_out_of_range(values: &[f32], stored: Stored) -> Option<f32> {
    let fits = |value: f32| match stored {
        Stored::F32 => true,
        Stored::BF16 => bf16::from_f32(value).is_finite(),
        Stored::F16 => f16::from_f32(value).is_finite(),
    };
    values.iter().copied().find(|&value| !fits(value))
}

/// The index along each dimension of the value at `offset`.
pub(crate) fn unravel(mut offset: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (slot, &size) in index.iter_mut().zip(dims).rev() {
        *slot = offset % size;
        offset /= size;
    }
    index
}
