//! The tile unit of Intel processors (AMX): products of bf16 tiles, summed in f32.
//!
//! A tile of the left operand holds 16 rows of 32 elements; one of the right operand 16 pairs of rows for 16 columns, the
//! two elements of a pair side by side; one of the sums 16 × 16 f32. `TDPBF16PS` treats subnormal numbers as zeros.
//!
//! The compiler has no stable intrinsics for it, so this is written in assembly.

use std::sync::OnceLock;

/// Rows or columns of a pair of tiles, and elements that one step sums over.
pub(crate) const BLOCK: usize = 32;

/// 16 × 32 elements of an operand, 1 KiB.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Tile(pub(crate) [u16; 512]);

impl Tile {
    pub(crate) const ZERO: Self = Self([0; 512]);
}

/// Whether this process may use tiles.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(ask)
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn ask() -> bool {
    use std::arch::x86_64::__cpuid_count;
    const BF16_AND_TILES: u32 = 1 << 22 | 1 << 24;
    const REQUEST_PERMISSION: i32 = 0x1023;
    const TILE_DATA: i32 = 18;
    if __cpuid_count(0, 0).eax < 7 || __cpuid_count(7, 0).edx & BF16_AND_TILES != BF16_AND_TILES {
        return false;
    }
    // SAFETY: the call reads two numbers. It lets the threads of this process have larger register files, or refuses.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn ask() -> bool {
    false
}

/// Where a pair of left tiles (rows 0–15 and 16–31) begins and how its rows lie; the next pair is `step` bytes further.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    pub(crate) first: *const u8,
    pub(crate) second: *const u8,
    /// Bytes from one row to the next.
    pub(crate) row: usize,
    pub(crate) step: usize,
}

impl Left {
    /// Pairs of packed tiles, one after the other.
    pub(crate) fn packed(pairs: &[Tile]) -> Self {
        let first = pairs.as_ptr().cast::<u8>();
        Self {
            first,
            second: first.wrapping_add(size_of::<Tile>()),
            row: 64,
            step: 2 * size_of::<Tile>(),
        }
    }
}

/// The calling thread's tiles, configured until this is dropped.
pub(crate) struct Tiles {
    /// Registers belong to a thread.
    not_send: std::marker::PhantomData<*const ()>,
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl Tiles {
    /// Eight tiles of 16 rows of 64 bytes.
    ///
    /// # Panics
    /// When the process may not use tiles.
    pub(crate) fn configure() -> Self {
        #[repr(C, align(64))]
        struct Config([u8; 64]);
        static CONFIG: Config = {
            let mut bytes = [0; 64];
            bytes[0] = 1;
            let mut tile = 0;
            while tile < 8 {
                bytes[16 + 2 * tile] = 64;
                bytes[48 + tile] = 16;
                tile += 1;
            }
            Config(bytes)
        };
        assert!(available(), "the process may not use tiles");
        // SAFETY: the configuration is a valid one, and the unit is there.
        unsafe {
            std::arch::asm!("ldtilecfg [{}]", in(reg) CONFIG.0.as_ptr(), options(nostack, readonly));
        }
        Self {
            not_send: std::marker::PhantomData,
        }
    }

    /// The product of 32 rows and 32 columns, as deep as there are pairs of right tiles: added to the sums, or instead of
    /// them if they are `fresh`.
    ///
    /// # Safety
    /// `left` must have as many pairs of tiles to read.
    pub(crate) unsafe fn product(
        &self,
        left: Left,
        right: &[Tile],
        sums: &mut [f32],
        columns: usize,
        fresh: bool,
    ) {
        let steps = right.len() / 2;
        assert!(sums.len() >= 31 * columns + 32, "32 rows of sums");
        if steps == 0 {
            if fresh {
                sums.chunks_mut(columns)
                    .take(BLOCK)
                    .for_each(|row| row[..BLOCK].fill(0.0));
            }
            return;
        }
        // SAFETY: the left tiles are the caller's promise, the right ones and the sums were checked. Tiles are not used by
        // compiled code, so that nothing of it is overwritten.
        unsafe {
            std::arch::asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "test {fresh}, {fresh}",
                "jnz 2f",
                "tileloadd tmm0, [{c0} + {crow}*1]",
                "tileloadd tmm1, [{c0} + {crow}*1 + 64]",
                "tileloadd tmm2, [{c1} + {crow}*1]",
                "tileloadd tmm3, [{c1} + {crow}*1 + 64]",
                "2:",
                "tileloadd tmm4, [{a0} + {arow}*1]",
                "tileloadd tmm6, [{b} + {brow}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {brow}*1 + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a1} + {arow}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a0}, {astep}",
                "add {a1}, {astep}",
                "add {b}, 2048",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{c0} + {crow}*1], tmm0",
                "tilestored [{c0} + {crow}*1 + 64], tmm1",
                "tilestored [{c1} + {crow}*1], tmm2",
                "tilestored [{c1} + {crow}*1 + 64], tmm3",
                c0 = in(reg) sums.as_mut_ptr(),
                c1 = in(reg) sums.as_mut_ptr().add(16 * columns),
                crow = in(reg) 4 * columns,
                a0 = inout(reg) left.first => _,
                a1 = inout(reg) left.second => _,
                arow = in(reg) left.row,
                astep = in(reg) left.step,
                b = inout(reg) right.as_ptr() => _,
                brow = in(reg) 64_usize,
                steps = inout(reg) steps => _,
                fresh = in(reg) usize::from(fresh),
                options(nostack),
            );
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: puts the registers back as they were before `configure`.
        unsafe { std::arch::asm!("tilerelease", options(nostack, nomem)) }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
impl Tiles {
    pub(crate) fn configure() -> Self {
        unreachable!("this processor has no tiles")
    }

    pub(crate) unsafe fn product(&self, _: Left, _: &[Tile], _: &mut [f32], _: usize, _: bool) {}
}
