//! Constants in StableHLO text.
//!
//! Decimal floats need a dot and enough digits to come back as the same bits; values that are not finite are written as
//! their bits. Arrays are written as little-endian bytes.

use std::fmt::Write;

use ferrotune_pjrt::{DType, HostArray};

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
        DType::F8E4M3FN | DType::F8E5M2 => format!("{:.9e}", value as f32),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => format!("{}", value.round() as u64),
        DType::S8 | DType::S16 | DType::S32 | DType::S64 => format!("{}", value.round() as i64),
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
    fn infinities_are_bits() {
        assert_eq!(splat(f64::NEG_INFINITY, DType::F32), "0xFF800000");
        assert_eq!(splat(f64::NEG_INFINITY, DType::BF16), "0xFF80");
        assert_eq!(splat(f64::NEG_INFINITY, DType::F16), "0xFC00");
    }
}
