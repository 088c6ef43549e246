//! Random numbers from a counter: the same key and counter give the same number, whatever else is computed.
//!
//! Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011),
//! written with 32-bit additions, rotations and exclusive ors, so that every element may have its own key.
//!
//! A [`Key`] is two words. What it gives is a stream of pairs of words: pair `i` is the cipher of the counter
//! `(i, purpose)` under the key, `i` being the row-major index of the element and `purpose` 0 for numbers, 1 for the keys
//! of [`Key::split`], 2 for those of [`Key::fold_in`]. So element `i` does not depend on how many elements there are, and
//! the three uses of a key do not meet. Drawing twice from one key gives the same numbers twice: split it, or fold
//! something in. Nothing here has a derivative, except by what the caller multiplies the numbers with.

use ferrotune_pjrt::DType;

use crate::arena::Graph;
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

/// What the second counter word says that the numbers are for.
#[derive(Clone, Copy)]
enum Purpose {
    Numbers = 0,
    Split = 1,
    FoldIn = 2,
}

/// Where random numbers come from: two words, u32 `[2]`.
#[derive(Clone, Debug)]
pub struct Key(Tensor);

impl Key {
    /// A key known while tracing: the low word of the seed, then the high word.
    #[track_caller]
    pub fn new(graph: &Graph, seed: u64) -> Self {
        let word = |bits: u64| graph.full((bits & 0xFFFF_FFFF) as f64, DType::U32, &[1]);
        let (low, high) = (word(seed), word(seed >> 32));
        Self(Tensor::concatenate(&[&low, &high], 0))
    }

    /// A key from a tensor u32 `[2]`, such as an argument of the program.
    ///
    /// # Panics
    /// When the tensor is of another type.
    #[track_caller]
    pub fn from_words(words: &Tensor) -> Self {
        assert!(
            words.dtype() == DType::U32 && words.dims() == [2],
            "a key is tensor<2xui32>, not {}",
            words.ty()
        );
        Self(words.clone())
    }

    /// The two words, u32 `[2]`.
    pub fn words(&self) -> &Tensor {
        &self.0
    }

    /// The cipher of `(counter, purpose)` for every element of `counter` (u32).
    #[track_caller]
    fn cipher(&self, counter: &Tensor, purpose: Purpose) -> [Tensor; 2] {
        let word = |i| self.0.slice(0, i, i + 1).reshape(&[]);
        let purpose = counter.scalar_like(f64::from(purpose as u8));
        threefry_2x32([&word(0), &word(1)], [counter, &purpose])
    }

    /// `count` keys whose streams are independent of each other and of this one's.
    #[track_caller]
    pub fn split(&self, count: usize) -> Vec<Key> {
        let graph = self.0.graph();
        let [low, high] = self.cipher(&graph.iota(DType::U32, &[count], 0), Purpose::Split);
        let pair = |i| Tensor::concatenate(&[&low.slice(0, i, i + 1), &high.slice(0, i, i + 1)], 0);
        (0..count).map(|i| Self(pair(i))).collect()
    }

    /// The key of this one and a number (u32 or s32 scalar), such as a step or a layer: another number, another stream.
    ///
    /// # Panics
    /// When the number is of another type.
    #[track_caller]
    pub fn fold_in(&self, number: &Tensor) -> Key {
        assert!(
            matches!(number.dtype(), DType::U32 | DType::S32) && number.rank() == 0,
            "a number to fold into a key is a scalar of 32 bits, not {}",
            number.ty()
        );
        let [low, high] = self.cipher(&number.bitcast(DType::U32), Purpose::FoldIn);
        Self(Tensor::concatenate(&[&low.expand(0), &high.expand(0)], 0))
    }

    /// Pairs of random words (u32) for tensors of `dims`.
    #[track_caller]
    fn pairs(&self, dims: &[usize]) -> [Tensor; 2] {
        let mut count = 1;
        for size in dims {
            count = usize::saturating_mul(count, *size);
        }
        assert!(
            u32::try_from(count).is_ok(),
            "random numbers of dimensions {dims:?} from one key: split it, for the counter has 32 bits"
        );
        let index = self.0.graph().iota(DType::U32, &[count], 0).reshape(dims);
        self.cipher(&index, Purpose::Numbers)
    }

    /// Random bits, u32.
    ///
    /// # Panics
    /// When there are 2³² elements or more.
    #[track_caller]
    pub fn bits(&self, dims: &[usize]) -> Tensor {
        let [bits, _] = self.pairs(dims);
        bits
    }

    /// Numbers strictly between 0 and 1, f32.
    #[track_caller]
    pub fn uniform(&self, dims: &[usize]) -> Tensor {
        open_uniform(&self.bits(dims))
    }

    /// Integers s32 in `low..high`; each has the same probability up to one part in 2³² / (high − low).
    ///
    /// # Panics
    /// When the range is empty.
    #[track_caller]
    pub fn integers(&self, low: i32, high: i32, dims: &[usize]) -> Tensor {
        assert!(low < high, "there is no integer in {low}..{high}");
        // The upper half of the 64-bit product of bits and range.
        let range = f64::from(high) - f64::from(low);
        let wide = self.bits(dims).convert(DType::U64);
        let scaled = &wide * &wide.scalar_like(range);
        let offset = scaled.shift_right(&scaled.scalar_like(32.0));
        // In 32 bits the sum may wrap around, which gives the right negative number.
        offset.convert(DType::U32).bitcast(DType::S32) + f64::from(low)
    }

    /// True with probability `p` (f32, broadcast to `dims`): never for 0, always for 1.
    #[track_caller]
    pub fn bernoulli(&self, p: &Tensor, dims: &[usize]) -> Tensor {
        self.uniform(dims).lt(&p.broadcast_to(dims))
    }

    /// Standard normal numbers, f32, none beyond ±5.8.
    ///
    /// # Source
    /// Box and Muller, "A note on the generation of random normal deviates" (1958); the cosine branch, from both words.
    #[track_caller]
    pub fn normal(&self, dims: &[usize]) -> Tensor {
        let [radius, angle] = self.pairs(dims).map(|bits| open_uniform(&bits));
        (radius.ln() * -2.0).sqrt() * (angle * std::f64::consts::TAU).cos()
    }

    /// Standard Gumbel numbers −ln(−ln u), f32, between −2.9 and 16.7.
    #[track_caller]
    pub fn gumbel(&self, dims: &[usize]) -> Tensor {
        -((-self.uniform(dims).ln()).ln())
    }
}
