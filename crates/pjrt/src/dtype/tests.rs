use std::collections::HashSet;

use super::{DType, Element};

#[test]
fn names_are_distinct_and_sizes_are_in_the_names() {
    let names: HashSet<&str> = DType::ALL.iter().map(|dtype| dtype.mlir()).collect();
    assert_eq!(names.len(), DType::ALL.len());
    for dtype in DType::ALL {
        // "ui32", "bf16", "f8E4M3FN": the first number is the width; a truth value has one bit in a byte.
        let digits = dtype
            .mlir()
            .trim_start_matches(|c: char| !c.is_ascii_digit());
        let bits: usize = digits
            .split(|c: char| !c.is_ascii_digit())
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(dtype.bytes(), bits.div_ceil(8), "{dtype}");
        assert_eq!(format!("{dtype:>9}").trim(), dtype.mlir());
    }
}

#[test]
fn every_type_but_truth_is_integer_or_float() {
    for dtype in DType::ALL {
        let kinds = [
            dtype.is_float(),
            dtype.is_signed_integer(),
            dtype.is_unsigned_integer(),
        ];
        let expected = usize::from(dtype != DType::Pred);
        assert_eq!(
            kinds.into_iter().filter(|&kind| kind).count(),
            expected,
            "{dtype}"
        );
        assert_eq!(dtype.is_float(), dtype.mlir().contains('f'), "{dtype}");
        assert_eq!(
            dtype.is_unsigned_integer(),
            dtype.mlir().starts_with('u'),
            "{dtype}"
        );
    }
}

#[test]
fn rust_types_stand_for_their_namesakes() {
    assert_eq!(
        (bool::DTYPE, u8::DTYPE, i64::DTYPE),
        (DType::Pred, DType::U8, DType::S64)
    );
    assert_eq!(
        (half::f16::DTYPE, half::bf16::DTYPE, f64::DTYPE),
        (DType::F16, DType::BF16, DType::F64)
    );
}
