use half::{bf16, f16};

use super::{HostArray, Storage};
use crate::{DType, Element, Error};

fn array<T: Element>(values: &[T]) -> HostArray {
    HostArray::from_slice(&[values.len()], values).unwrap()
}

#[test]
fn values_go_in_and_come_out() {
    let a = HostArray::from_slice(&[2, 2], &[1.5f32, -2.0, 0.0, 4.0]).unwrap();
    assert_eq!(
        (a.dtype(), a.dims(), a.len(), a.bytes().len()),
        (DType::F32, &[2, 2][..], 4, 16)
    );
    assert_eq!(a.as_slice::<f32>(), [1.5, -2.0, 0.0, 4.0]);
    assert_eq!(a.clone(), a);
    assert_eq!(array(&[true, false]).as_slice::<bool>(), [true, false]);
    assert_eq!(format!("{a:?}"), "f32[2, 2][1.5, -2, 0, 4]");
    let scalar = HostArray::from_slice(&[], &[7i64]).unwrap();
    assert_eq!((scalar.len(), scalar.as_slice::<i64>()), (1, &[7][..]));
}

#[test]
fn bytes_that_do_not_fill_the_dimensions_are_refused() {
    let refused =
        |dims: &[usize], n| HostArray::new(DType::BF16, dims.to_vec(), vec![0; n]).unwrap_err();
    assert!(matches!(
        refused(&[3], 5),
        Error::HostBytes {
            expected: 6,
            got: 5,
            ..
        }
    ));
    assert!(matches!(
        refused(&[], 0),
        Error::HostBytes { expected: 2, .. }
    ));
    assert!(matches!(
        refused(&[usize::MAX, 2], 0),
        Error::TooLarge { .. }
    ));
    assert!(matches!(
        HostArray::from_slice(&[2], &[1u8]),
        Err(Error::HostBytes { .. })
    ));
    // However large the rest, a zero makes it empty.
    assert!(
        HostArray::new(DType::F32, vec![usize::MAX, 0, usize::MAX], vec![])
            .unwrap()
            .is_empty()
    );
}

#[test]
fn truth_values_are_zero_or_one() {
    let error = HostArray::new(DType::Pred, vec![3], vec![0, 1, 2]).unwrap_err();
    assert!(matches!(error, Error::BadTruthValue { index: 2, value: 2 }));
}

#[test]
#[should_panic(expected = "a f32 array cannot be read as i32")]
fn reading_as_another_type_panics() {
    let _ = array(&[1.0f32]).as_slice::<i32>();
}

#[test]
fn badly_aligned_bytes_are_moved_to_where_any_type_can_read_them() {
    // A vector's own alignment cannot be chosen, so the aligned copy is made by hand here.
    let mut storage = Storage::zeroed(12);
    let Storage::Words { words, len } = &mut storage else {
        panic!("zeroed memory is in words")
    };
    bytemuck::cast_slice_mut::<u64, u8>(words)[..*len].copy_from_slice(&[7; 12]);
    assert!(storage == Storage::from_bytes(vec![7; 12]));
    assert!(storage.clone() == storage);
    assert!(storage != Storage::from_bytes(vec![7; 11]));
    assert_eq!(HostArray::zeros(DType::U16, &[3]).as_slice::<u16>(), [0; 3]);
}

#[test]
fn every_type_converts_to_f32() {
    assert_eq!(array(&[true, false]).to_f32_vec(), [1.0, 0.0]);
    assert_eq!(array(&[-3i8]).to_f32_vec(), [-3.0]);
    assert_eq!(array(&[-300i16]).to_f32_vec(), [-300.0]);
    assert_eq!(array(&[-70_000i32]).to_f32_vec(), [-70_000.0]);
    assert_eq!(array(&[1i64 << 40]).to_f32_vec(), [1_099_511_627_776.0]);
    assert_eq!(array(&[200u8]).to_f32_vec(), [200.0]);
    assert_eq!(array(&[60_000u16]).to_f32_vec(), [60_000.0]);
    assert_eq!(array(&[3_000_000_000u32]).to_f32_vec(), [3e9]);
    assert_eq!(
        array(&[1u64 << 63]).to_f32_vec(),
        [9_223_372_036_854_775_808.0]
    );
    assert_eq!(array(&[f16::from_f32(0.5)]).to_f32_vec(), [0.5]);
    assert_eq!(array(&[bf16::from_f32(-1.5)]).to_f32_vec(), [-1.5]);
    assert_eq!(array(&[0.25f32]).to_f32_vec(), [0.25]);
    assert_eq!(array(&[0.125f64]).to_f32_vec(), [0.125]);
}

#[test]
fn eight_bit_floats_decode_as_the_standard_says() {
    let decode = |dtype, bytes: &[u8]| {
        HostArray::new(dtype, vec![bytes.len()], bytes.to_vec())
            .unwrap()
            .to_f32_vec()
    };
    // 1, -1, the largest, the smallest normal, the smallest subnormal, the largest subnormal, zero (OCP FP8 specification, table 1).
    let e4m3 = decode(DType::F8E4M3FN, &[0x38, 0xb8, 0x7e, 0x08, 0x01, 0x07, 0x00]);
    assert_eq!(
        e4m3,
        [1.0, -1.0, 448.0, 0.015625, 0.001953125, 0.013671875, 0.0]
    );
    assert!(
        decode(DType::F8E4M3FN, &[0x7f, 0xff])
            .iter()
            .all(|x| x.is_nan())
    );
    let e5m2 = decode(DType::F8E5M2, &[0x3c, 0xbc, 0x7b, 0x04, 0x01, 0x7c, 0xfc]);
    assert_eq!(
        e5m2[..5],
        [1.0, -1.0, 57344.0, 6.103_515_6e-5, 1.525_878_9e-5]
    );
    assert_eq!(e5m2[5..], [f32::INFINITY, f32::NEG_INFINITY]);
}
