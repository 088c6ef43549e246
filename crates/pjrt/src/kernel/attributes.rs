//! The attributes of a call, decoded from XLA's tables when they are asked for.

use std::ffi::c_int;

use super::{Attribute, call::dtype};
use crate::{
    DType,
    abi::ffi::{self, AttrArray, AttrScalar, Attrs, ByteSpan},
    client::array_of,
};

/// The attributes of a call that is being made.
pub(super) struct Attributes<'a>(&'a Attrs);

impl<'a> Attributes<'a> {
    /// # Safety
    /// `attrs` must be those of a call that XLA is making, with whatever they point to alive as long as `'a`.
    pub(super) unsafe fn of(attrs: &'a Attrs) -> Attributes<'a> {
        Attributes(attrs)
    }

    /// The attribute of this name.
    pub(super) fn get(&self, name: &str) -> Result<Attribute, String> {
        let unknown = || format!("attribute '{name}' is of a kind that kernels cannot read");
        self.find(name)?.decode().ok_or_else(unknown)
    }

    /// The whole numbers of this name, if there are any.
    pub(super) fn find_integers(&self, name: &str) -> Result<Option<Vec<i64>>, String> {
        let Some(found) = self.look_for(name) else {
            return Ok(None);
        };
        match found.decode() {
            Some(Attribute::Integers(values)) => Ok(Some(values)),
            _ => Err(format!("attribute '{name}' is not a list of whole numbers")),
        }
    }

    /// The attribute of this name, which is text, without a copy.
    pub(super) fn text(&self, name: &str) -> Result<&'a [u8], String> {
        let found = self.find(name)?;
        if found.kind != ffi::ATTR_STRING {
            return Err(format!("attribute '{name}' is not text"));
        }
        // SAFETY: by its kind the value is a byte span, and `of` vouches for the pointers.
        Ok(unsafe { bytes_of(found.value.cast()) })
    }

    fn find(&self, name: &str) -> Result<Found, String> {
        let absent = || format!("the call has no attribute '{name}'");
        self.look_for(name).ok_or_else(absent)
    }

    fn look_for(&self, name: &str) -> Option<Found> {
        let len = self.0.size as usize;
        // SAFETY: `of` vouches for the three arrays of this length.
        let (kinds, names, values) = unsafe {
            (
                array_of(self.0.kinds, len),
                array_of(self.0.names, len),
                array_of(self.0.values, len),
            )
        };
        // SAFETY: `of` vouches for the names.
        let own = |span: &*const ByteSpan| unsafe { bytes_of(*span) };
        let index = names.iter().position(|span| own(span) == name.as_bytes())?;
        Some(Found {
            kind: kinds[index],
            value: values[index].cast(),
        })
    }
}

/// One attribute, of which `Attributes::of` vouches that the value is what the kind says.
struct Found {
    kind: c_int,
    value: *const u8,
}

impl Found {
    /// `None` when no [`Attribute`] is like it.
    fn decode(&self) -> Option<Attribute> {
        match self.kind {
            ffi::ATTR_STRING => {
                // SAFETY: by its kind the value is a byte span.
                let bytes = unsafe { bytes_of(self.value.cast()) };
                Some(Attribute::Text(String::from_utf8_lossy(bytes).into_owned()))
            }
            ffi::ATTR_SCALAR => {
                // SAFETY: by its kind the value is a scalar, which points to one element of its type.
                let AttrScalar {
                    dtype: number,
                    value,
                } = unsafe { self.value.cast::<AttrScalar>().read() };
                // SAFETY: the reads below are of the type that the scalar says.
                unsafe {
                    Some(match dtype(number)? {
                        DType::S64 => Attribute::Integer(value.cast::<i64>().read()),
                        DType::S32 => Attribute::Integer(value.cast::<i32>().read().into()),
                        DType::F64 => Attribute::Number(value.cast::<f64>().read()),
                        DType::F32 => Attribute::Number(value.cast::<f32>().read().into()),
                        DType::Pred => Attribute::Flag(value.cast::<u8>().read() != 0),
                        _ => return None,
                    })
                }
            }
            ffi::ATTR_ARRAY => {
                // SAFETY: by its kind the value is an array.
                let AttrArray {
                    dtype: number,
                    size,
                    data,
                } = unsafe { self.value.cast::<AttrArray>().read() };
                // SAFETY: the array says that it has this many elements of this type.
                unsafe {
                    Some(Attribute::Integers(match dtype(number)? {
                        DType::S64 => array_of(data.cast::<i64>(), size).to_vec(),
                        DType::S32 => {
                            let values = array_of(data.cast::<i32>(), size);
                            values.iter().copied().map(i64::from).collect()
                        }
                        _ => return None,
                    }))
                }
            }
            _ => None,
        }
    }
}

/// # Safety
/// `span` must point to a byte span whose bytes live as long as the result is used.
unsafe fn bytes_of<'a>(span: *const ByteSpan) -> &'a [u8] {
    // SAFETY: passed on to the caller.
    unsafe { array_of((*span).data, (*span).len) }
}
