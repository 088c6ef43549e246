//! Element types: every conversion between every two, constants that are not finite, bit operations.

use ferrotune_graph::{DType, HostArray};

use crate::check::run;

/// Values that every number type can hold, and truth values after `min(1)`.
const COMMON: [f64; 5] = [0.0, 1.0, 2.0, 3.0, 4.0];

fn as_f64(array: &HostArray) -> Vec<f64> {
    array.to_f32_vec().into_iter().map(f64::from).collect()
}

#[test]
fn every_type_converts_to_every_other() {
    for from in DType::ALL {
        let source = HostArray::from_slice(&[5], &COMMON).unwrap();
        let out = run("convert", &[source], |_, x| {
            let x = x[0].convert(from);
            DType::ALL
                .iter()
                .map(|to| x.convert(*to).convert(DType::F64))
                .collect()
        });
        for (to, found) in DType::ALL.iter().zip(&out) {
            let truth = from == DType::Pred || *to == DType::Pred;
            let expected: Vec<f64> = COMMON
                .iter()
                .map(|v| if truth { v.min(1.0) } else { *v })
                .collect();
            assert_eq!(found.as_slice::<f64>(), expected, "{from} to {to}");
        }
    }
}

#[test]
fn signs_survive_between_types_that_have_them() {
    let signed: Vec<DType> = DType::ALL
        .into_iter()
        .filter(|t| t.is_float() || matches!(t, DType::S8 | DType::S16 | DType::S32 | DType::S64))
        .collect();
    let values = [-4.0, -1.0, 0.0, 7.0];
    for from in &signed {
        let source = HostArray::from_slice(&[4], &values).unwrap();
        let out = run("signs", &[source], |_, x| {
            let x = x[0].convert(*from);
            let back = signed.iter().map(|to| x.convert(*to).convert(DType::F64));
            back.collect()
        });
        for (to, found) in signed.iter().zip(&out) {
            assert_eq!(found.as_slice::<f64>(), values, "{from} to {to}");
        }
    }
}

#[test]
fn floats_lose_their_fraction_and_round_to_even() {
    let source = HostArray::from_slice(&[6], &[2.7_f32, -2.7, 0.5, -0.5, 2.5, -3.5]).unwrap();
    let out = run("fractions", &[source], |_, x| {
        vec![
            x[0].convert(DType::S32),
            x[0].convert(DType::Pred).convert(DType::S32),
            x[0].round_nearest_even(),
        ]
    });
    assert_eq!(out[0].as_slice::<i32>(), [2, -2, 0, 0, 2, -3]);
    assert_eq!(out[1].as_slice::<i32>(), [1; 6]);
    assert_eq!(out[2].as_slice::<f32>(), [3.0, -3.0, 0.0, -0.0, 2.0, -4.0]);
    // Halfway between neighbours of each narrow type, and just above.
    let ties = HostArray::from_slice(
        &[4],
        &[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 1.0625, 1.1875_f32],
    );
    let out = run("ties", &[ties.unwrap()], |_, x| {
        let through = |t| x[0].convert(t).convert(DType::F32);
        vec![through(DType::BF16), through(DType::F8E4M3FN)]
    });
    assert_eq!(out[0].as_slice::<f32>()[..2], [1.0, 1.015_625]);
    assert_eq!(out[1].as_slice::<f32>()[2..], [1.0, 1.25]);
}

#[test]
fn unsigned_integers_use_their_highest_bit() {
    let source = HostArray::from_slice(&[1], &[3e9_f64]).unwrap();
    let out = run("high_bit", &[source], |_, x| {
        let word = x[0].convert(DType::U32);
        vec![
            word.convert(DType::F64),
            word.bitcast(DType::S32),
            word.convert(DType::U64).convert(DType::F64),
        ]
    });
    assert_eq!(out[0].as_slice::<f64>(), [3e9]);
    assert_eq!(out[1].as_slice::<i32>(), [3_000_000_000_u32.cast_signed()]);
    assert_eq!(out[2].as_slice::<f64>(), [3e9]);
}

#[test]
fn constants_that_are_not_finite_keep_what_they_are() {
    let floats = DType::ALL.into_iter().filter(|t| t.is_float());
    for dtype in floats {
        let out = run("infinite", &[], |g, _| {
            [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.5, -0.0]
                .map(|v| g.full(v, dtype, &[1]))
                .to_vec()
        });
        let found: Vec<f64> = out.iter().map(|a| as_f64(a)[0]).collect();
        if dtype == DType::F8E4M3FN {
            assert!(found[..3].iter().all(|v| v.is_nan()), "{dtype} {found:?}");
        } else {
            assert_eq!(found[..2], [f64::INFINITY, f64::NEG_INFINITY], "{dtype}");
            assert!(found[2].is_nan(), "{dtype} {found:?}");
        }
        assert_eq!(found[3], 1.5, "{dtype}");
        assert!(found[4] == 0.0 && found[4].is_sign_negative(), "{dtype}");
    }
}

#[test]
fn reductions_of_every_number_type_start_from_its_ends() {
    let numbers = DType::ALL.into_iter().filter(|t| *t != DType::Pred);
    for dtype in numbers {
        let source = HostArray::from_slice(&[3], &[2.0, 6.0, 3.0]).unwrap();
        let out = run("ends", &[source], |_, x| {
            let x = x[0].convert(dtype);
            let all = [
                x.max(&[0]),
                x.min(&[0]),
                x.sum(&[0]),
                x.cumulative_max(0).sum(&[0]),
            ];
            let places = [x.argmax(0), x.argmin(0)].map(|t| t.convert(DType::F64));
            all.iter()
                .map(|t| t.convert(DType::F64))
                .chain(places)
                .collect()
        });
        let found: Vec<f64> = out.iter().map(|a| a.as_slice::<f64>()[0]).collect();
        // 11 and 14 are 11 and 14 in f8E4M3FN too; f8E5M2 has two bits and rounds them to even.
        let sums = if dtype == DType::F8E5M2 {
            found[2..4].to_vec()
        } else {
            vec![11.0, 14.0]
        };
        assert_eq!(found, [6.0, 2.0, sums[0], sums[1], 1.0, 0.0], "{dtype}");
    }
}

#[test]
fn bits_are_counted_and_shifted() {
    let source = HostArray::from_slice(&[4], &[0_i32, 1, -1, -16]).unwrap();
    let out = run("bit_operations", &[source], |_, x| {
        let two = x[0].scalar_like(2.0);
        vec![
            x[0].popcnt(),
            x[0].count_leading_zeros(),
            x[0].shift_right_arithmetic(&two),
            x[0].shift_right(&two),
            x[0].shift_left(&two),
            x[0].not(),
        ]
    });
    assert_eq!(out[0].as_slice::<i32>(), [0, 1, 32, 28]);
    assert_eq!(out[1].as_slice::<i32>(), [32, 31, 0, 0]);
    assert_eq!(out[2].as_slice::<i32>(), [0, 0, -1, -4]);
    assert_eq!(out[3].as_slice::<i32>(), [0, 0, 0x3FFF_FFFF, 0x3FFF_FFFC]);
    assert_eq!(out[4].as_slice::<i32>(), [0, 4, -4, -64]);
    assert_eq!(out[5].as_slice::<i32>(), [-1, -2, 0, 15]);
}

#[test]
fn bits_become_any_type_of_their_width() {
    let out = run(
        "bitcast",
        &[HostArray::from_slice(&[1], &[1.0_f64]).unwrap()],
        |g, x| {
            let half = g.full(1.0, DType::F16, &[1]);
            let byte = g.full(1.0, DType::F8E4M3FN, &[1]);
            vec![
                x[0].bitcast(DType::U64),
                half.bitcast(DType::S16),
                g.full(1.0, DType::BF16, &[1]).bitcast(DType::U16),
                byte.bitcast(DType::U8),
                g.full(1.0, DType::F8E5M2, &[1]).bitcast(DType::S8),
            ]
        },
    );
    assert_eq!(out[0].as_slice::<u64>(), [1.0_f64.to_bits()]);
    assert_eq!(out[1].as_slice::<i16>(), [0x3C00]);
    assert_eq!(out[2].as_slice::<u16>(), [0x3F80]);
    assert_eq!(out[3].as_slice::<u8>(), [0x38]);
    assert_eq!(out[4].as_slice::<i8>(), [0x3C]);
}

#[test]
fn the_error_function_and_its_kin_have_their_known_values() {
    let x = HostArray::from_slice(&[3], &[0.5_f64, -8.0, 2.0]).unwrap();
    let out = run("special", &[x], |_, x| {
        vec![
            x[0].erf(),
            x[0].cbrt(),
            x[0].tan(),
            x[0].atan2(&x[0].scalar_like(-1.0)),
            (&x[0] * 3.7).remainder(&x[0].scalar_like(2.0)),
        ]
    });
    let expected = [
        [0.520_499_877_813_046_5, -1.0, 0.995_322_265_018_952_7],
        [0.5_f64.cbrt(), -2.0, 2_f64.cbrt()],
        [0.5_f64.tan(), (-8_f64).tan(), 2_f64.tan()],
        [0.5_f64.atan2(-1.0), (-8_f64).atan2(-1.0), 2_f64.atan2(-1.0)],
        [1.85, (-8.0 * 3.7) % 2.0, 7.4 % 2.0],
    ];
    for (found, expected) in out.iter().zip(expected) {
        for (a, b) in found.as_slice::<f64>().iter().zip(expected) {
            assert!((a - b).abs() < 1e-12, "{a} {b}");
        }
    }
}
