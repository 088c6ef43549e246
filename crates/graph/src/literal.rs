//! Constants and names in StableHLO text.
//!
//! Decimal floats need a dot and enough digits to come back as the same bits; values that are not finite are written as
//! their bits. Arrays are written as little-endian bytes.

use std::fmt::Write;

use ferrotune_pjrt::{Attribute, DType, HostArray};

/// The text in quotes, whatever it contains.
pub(crate) fn quoted(text: &str) -> String {
    Attribute::Text(text.to_owned()).to_mlir()
}

/// A name as it stands after `@`: bare where MLIR reads it so, else in quotes.
pub(crate) fn symbol(name: &str) -> String {
    let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
    let continues = |c: char| c.is_ascii_alphanumeric() || "_$.".contains(c);
    if name.starts_with(begins) && name.chars().all(continues) {
        name.to_owned()
    } else {
        quoted(name)
    }
}

/// The text of a constant that is `value` everywhere.
pub(crate) fn splat(value: f64, dtype: DType) -> String {
    match dtype {
        DType::Pred => (if value != 0.0 { "true" } else { "false" }).to_owned(),
        DType::F64 if value.is_finite() => format!("{value:.17e}"),
        DType::F64 => format!("0x{:016X}", value.to_bits()),
        DType::F32 | DType::BF16 | DType::F16
            if value.is_finite() && (value as f32).is_finite() =>
        {
            format!("{:.9e}", value as f32)
        }
        DType::F32 => format!("0x{:08X}", (value as f32).to_bits()),
        DType::BF16 => format!("0x{:04X}", (value as f32).to_bits() >> 16),
        DType::F16 if value.is_nan() => "0x7E00".to_owned(),
        DType::F16 => (if value > 0.0 { "0x7C00" } else { "0xFC00" }).to_owned(),
        DType::F8E4M3FN | DType::F8E5M2 if value.is_finite() => format!("{:.9e}", value as f32),
        // It has no infinities: they become the one non-number, as conversion makes them.
        DType::F8E4M3FN => "0x7F".to_owned(),
        DType::F8E5M2 if value.is_nan() => "0x7E".to_owned(),
        DType::F8E5M2 => (if value > 0.0 { "0x7C" } else { "0xFC" }).to_owned(),
        integer => whole(value, integer),
    }
}

/// Refuses a value that the element type does not have. Floats have every value, rounded.
pub(crate) fn check(value: f64, dtype: DType) -> Result<(), String> {
    // One above the largest, which every f64 has exactly.
    let (low, end) = match dtype {
        _ if dtype.is_float() => return Ok(()),
        DType::Pred => (0.0, 2.0),
        _ => {
            let values = 2.0_f64.powi(8 * dtype.bytes() as i32);
            if dtype.is_signed_integer() {
                (-values / 2.0, values / 2.0)
            } else {
                (0.0, values)
            }
        }
    };
    if value.fract() == 0.0 && (low..end).contains(&value) {
        Ok(())
    } else {
        Err(format!("{value} is no value of type {dtype}"))
    }
}

/// The nearest integer that the type has; 0 for NaN.
fn whole(value: f64, dtype: DType) -> String {
    let value = value.round();
    // Conversion from f64 saturates.
    match dtype {
        DType::U8 => (value as u8).to_string(),
        DType::U16 => (value as u16).to_string(),
        DType::U32 => (value as u32).to_string(),
        DType::U64 => (value as u64).to_string(),
        DType::S8 => (value as i8).to_string(),
        DType::S16 => (value as i16).to_string(),
        DType::S32 => (value as i32).to_string(),
        _ => (value as i64).to_string(),
    }
}

/// The text of an array constant, `"0x…"`.
pub(crate) fn blob(array: &HostArray) -> String {
    let bytes = array.bytes();
    let mut text = String::with_capacity(2 * bytes.len() + 4);
    text.push_str("\"0x");
    for byte in bytes {
        let _ = write!(text, "{byte:02X}");
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finite_floats_have_a_dot_and_come_back_exactly() {
        for v in [1.0, -0.0, 1e-6, 0.1, 3.402_823_4e38] {
            let text = splat(v, DType::F32);
            assert!(text.contains('.'), "{text}");
            assert_eq!(text.parse::<f32>().unwrap().to_bits(), (v as f32).to_bits());
        }
        assert_eq!(splat(0.1, DType::F64).parse::<f64>().unwrap(), 0.1);
    }

    #[test]
    fn names_are_bare_where_they_are_plain_and_in_quotes_elsewhere() {
        assert_eq!(symbol("step_2.a$b"), "step_2.a$b");
        assert_eq!(symbol("2nd"), "\"2nd\"");
        assert_eq!(symbol("a b\"c"), "\"a b\\22c\"");
    }

    #[test]
    fn a_type_has_the_whole_numbers_up_to_its_ends() {
        let (two_63, two_64) = (9_223_372_036_854_775_808.0, 18_446_744_073_709_551_616.0);
        for (dtype, inside, outside) in [
            (DType::Pred, [0.0, 1.0], [-1.0, 2.0]),
            (DType::U8, [0.0, 255.0], [-1.0, 256.0]),
            (DType::S8, [-128.0, 127.0], [-129.0, 128.0]),
            (DType::U32, [0.0, 4_294_967_295.0], [-1.0, 4_294_967_296.0]),
            (
                DType::S64,
                [-two_63, two_63 - 1024.0],
                [-two_63 - 2048.0, two_63],
            ),
            (DType::U64, [-0.0, two_64 - 2048.0], [-1.0, two_64]),
        ] {
            let never = [0.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
            assert!(inside.iter().all(|v| check(*v, dtype).is_ok()), "{dtype}");
            let wrong = outside.iter().chain(&never);
            assert!(wrong.clone().all(|v| check(*v, dtype).is_err()), "{dtype}");
        }
        assert_eq!(check(0.1, DType::BF16), Ok(()));
        assert_eq!(check(f64::NAN, DType::F8E4M3FN), Ok(()));
    }

    #[test]
    fn infinities_are_bits() {
        assert_eq!(splat(f64::NEG_INFINITY, DType::F32), "0xFF800000");
        assert_eq!(splat(f64::NEG_INFINITY, DType::BF16), "0xFF80");
        assert_eq!(splat(f64::NEG_INFINITY, DType::F16), "0xFC00");
        assert_eq!(splat(f64::NEG_INFINITY, DType::F8E5M2), "0xFC");
        assert_eq!(splat(f64::INFINITY, DType::F8E4M3FN), "0x7F");
    }

    #[test]
    fn integers_stop_at_the_ends_of_their_type() {
        assert_eq!(splat(f64::INFINITY, DType::S32), i32::MAX.to_string());
        assert_eq!(splat(-1e30, DType::S8), "-128");
        assert_eq!(splat(-1.0, DType::U32), "0");
        assert_eq!(splat(2.6, DType::S64), "3");
    }
}
