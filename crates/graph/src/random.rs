//! Random numbers from a counter: the same key and counter give the same number, whatever else is computed.
//!
//! Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011),
//! written with 32-bit additions, rotations and exclusive ors, so that every element may have its own key.

use ferrotune_pjrt::DType;

use crate::tensor::Tensor;

const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
const PARITY: f64 = 0x1BD1_1BDA_u32 as f64;

fn rotate_left(x: &Tensor, bits: u32) -> Tensor {
    x.shift_left(&x.scalar_like(f64::from(bits)))
        .or(&x.shift_right(&x.scalar_like(f64::from(32 - bits))))
}

/// Two words (u32) of random bits per element from two key words and two counter words (u32, broadcast together).
#[track_caller]
pub fn threefry_2x32(key: [&Tensor; 2], counter: [&Tensor; 2]) -> [Tensor; 2] {
    let third = key[0].xor(key[1]).xor(&key[0].scalar_like(PARITY));
    let keys = [key[0].clone(), key[1].clone(), third];
    let mut x = [counter[0] + &keys[0], counter[1] + &keys[1]];
    for group in 0..5 {
        for bits in ROTATIONS[group % 2] {
            let sum = &x[0] + &x[1];
            let mixed = rotate_left(&x[1], bits).xor(&sum);
            x = [sum, mixed];
        }
        let inject = group + 1;
        x = [
            &x[0] + &keys[inject % 3],
            &x[1] + &keys[(inject + 1) % 3] + inject as f64,
        ];
    }
    x
}

/// Numbers strictly between 0 and 1 (f32) from random bits (u32): the middles of 2²³ equal intervals.
#[track_caller]
pub fn open_uniform(bits: &Tensor) -> Tensor {
    let mantissa = bits.shift_right(&bits.scalar_like(9.0)).convert(DType::F32);
    (mantissa + 0.5) * (1.0 / f64::from(1_u32 << 23))
}
