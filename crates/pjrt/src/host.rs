//! Arrays in host memory, row-major.

use crate::{DType, Element, Error, Result};

/// A dense row-major array in host memory.
#[derive(Clone, PartialEq)]
pub struct HostArray {
    dtype: DType,
    dims: Vec<usize>,
    storage: Storage,
}

/// Bytes aligned for any element type: either a byte vector that happens to be, or words that have to be.
enum Storage {
    Bytes(Vec<u8>),
    Words { words: Vec<u64>, len: usize },
}

impl HostArray {
    /// An array over existing bytes; no copy unless the bytes are badly aligned.
    ///
    /// # Errors
    /// [`Error::HostBytes`] when the length disagrees with `dims`; [`Error::BadTruthValue`]; [`Error::TooLarge`].
    pub fn new(dtype: DType, dims: Vec<usize>, bytes: Vec<u8>) -> Result<HostArray> {
        let expected = byte_len(dtype, &dims)?;
        if expected != bytes.len() {
            return Err(Error::HostBytes {
                dtype,
                dims,
                expected,
                got: bytes.len(),
            });
        }
        if dtype == DType::Pred
            && let Some(index) = bytes.iter().position(|&b| b > 1)
        {
            return Err(Error::BadTruthValue {
                index,
                value: bytes[index],
            });
        }
        Ok(HostArray {
            dtype,
            dims,
            storage: Storage::from_bytes(bytes),
        })
    }

    /// A copy of a slice.
    ///
    /// # Errors
    /// [`Error::HostBytes`] when the length disagrees with `dims`; [`Error::TooLarge`].
    pub fn from_slice<T: Element>(dims: &[usize], values: &[T]) -> Result<HostArray> {
        HostArray::new(
            T::DTYPE,
            dims.to_vec(),
            bytemuck::cast_slice(values).to_vec(),
        )
    }

    /// An array of zeros.
    ///
    /// # Panics
    /// When the array cannot be addressed.
    #[must_use]
    pub fn zeros(dtype: DType, dims: &[usize]) -> HostArray {
        let len = byte_len(dtype, dims).expect("the array fits the address space");
        HostArray {
            dtype,
            dims: dims.to_vec(),
            storage: Storage::zeroed(len),
        }
    }

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

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes().len() / self.dtype.bytes()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The raw bytes, in the host's byte order.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Bytes(bytes) => bytes,
            Storage::Words { words, len } => &bytemuck::cast_slice(words)[..*len],
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.storage {
            Storage::Bytes(bytes) => bytes,
            Storage::Words { words, len } => &mut bytemuck::cast_slice_mut(words)[..*len],
        }
    }

    /// The elements.
    ///
    /// # Panics
    /// When `T` is not the array's element type.
    #[track_caller]
    #[must_use]
    pub fn as_slice<T: Element>(&self) -> &[T] {
        assert!(
            T::DTYPE == self.dtype,
            "a {} array cannot be read as {}",
            self.dtype,
            T::DTYPE
        );
        bytemuck::checked::cast_slice(self.bytes())
    }

    /// Every element converted to `f32`; truth values become 0 and 1, wide types are rounded.
    #[must_use]
    pub fn to_f32_vec(&self) -> Vec<f32> {
        fn map<T: Element>(array: &HostArray, f: impl Fn(T) -> f32) -> Vec<f32> {
            array.as_slice::<T>().iter().map(|&x| f(x)).collect()
        }
        match self.dtype {
            DType::Pred => map(self, |x: bool| f32::from(u8::from(x))),
            DType::S8 => map(self, |x: i8| f32::from(x)),
            DType::S16 => map(self, |x: i16| f32::from(x)),
            DType::S32 => map(self, |x: i32| x as f32),
            DType::S64 => map(self, |x: i64| x as f32),
            DType::U8 => map(self, |x: u8| f32::from(x)),
            DType::U16 => map(self, |x: u16| f32::from(x)),
            DType::U32 => map(self, |x: u32| x as f32),
            DType::U64 => map(self, |x: u64| x as f32),
            DType::F16 => map(self, |x: half::f16| x.to_f32()),
            DType::BF16 => map(self, |x: half::bf16| x.to_f32()),
            DType::F32 => self.as_slice::<f32>().to_vec(),
            DType::F64 => map(self, |x: f64| x as f32),
            DType::F8E4M3FN => self.bytes().iter().map(|&b| f8e4m3fn(b)).collect(),
            // The upper byte of a half-precision number, exactly.
            DType::F8E5M2 => self
                .bytes()
                .iter()
                .map(|&b| half::f16::from_bits(u16::from(b) << 8).to_f32())
                .collect(),
        }
    }
}

/// Sign, 4 exponent bits (bias 7), 3 mantissa bits; 0x7f and 0xff are the only non-numbers.
fn f8e4m3fn(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 0xf), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 0x7f) {
        (_, 0x7f) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if byte & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// The size of an array in bytes.
pub(crate) fn byte_len(dtype: DType, dims: &[usize]) -> Result<usize> {
    // A zero anywhere makes the array empty, however large the other dimensions are.
    if dims.contains(&0) {
        return Ok(0);
    }
    dims.iter()
        .try_fold(dtype.bytes(), |n, &d| n.checked_mul(d))
        .filter(|&n| n <= isize::MAX as usize)
        .ok_or_else(|| Error::TooLarge {
            dtype,
            dims: dims.to_vec(),
        })
}

impl Storage {
    fn from_bytes(bytes: Vec<u8>) -> Storage {
        if bytes.as_ptr().addr().is_multiple_of(align_of::<u64>()) {
            return Storage::Bytes(bytes);
        }
        let mut aligned = Storage::zeroed(bytes.len());
        if let Storage::Words { words, len } = &mut aligned {
            bytemuck::cast_slice_mut::<u64, u8>(words)[..*len].copy_from_slice(&bytes);
        }
        aligned
    }

    fn zeroed(len: usize) -> Storage {
        Storage::Words {
            words: vec![0; len.div_ceil(size_of::<u64>())],
            len,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Storage::Bytes(bytes) => bytes,
            Storage::Words { words, len } => &bytemuck::cast_slice(words)[..*len],
        }
    }
}

impl Clone for Storage {
    fn clone(&self) -> Storage {
        Storage::from_bytes(self.bytes().to_vec())
    }
}

impl PartialEq for Storage {
    fn eq(&self, other: &Storage) -> bool {
        self.bytes() == other.bytes()
    }
}

impl std::fmt::Debug for HostArray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 8;
        let values: Vec<String> = self
            .to_f32_vec()
            .iter()
            .take(SHOWN)
            .map(ToString::to_string)
            .collect();
        let more = if self.len() > SHOWN { ", .." } else { "" };
        write!(
            f,
            "{}{:?}[{}{more}]",
            self.dtype,
            self.dims,
            values.join(", ")
        )
    }
}

#[cfg(test)]
mod tests;
