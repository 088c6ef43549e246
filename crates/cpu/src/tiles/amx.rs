//! The tile registers of Intel's processors (AMX).
//!
//! The compiler has no stable intrinsics for them, so this is written in assembly.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use std::sync::OnceLock;

use super::{Left, Tile};

/// Whether this process may use them.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) fn available() -> bool {
    use std::arch::x86_64::__cpuid_count;
    const BF16_AND_TILES: u32 = 1 << 22 | 1 << 24;
    const REQUEST_PERMISSION: i32 = 0x1023;
    const TILE_DATA: i32 = 18;
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        if __cpuid_count(0, 0).eax < 7 || __cpuid_count(7, 0).edx & BF16_AND_TILES != BF16_AND_TILES
        {
            return false;
        }
        // SAFETY: the call reads two numbers. It lets the threads of this process have larger register files, or refuses.
        unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
    })
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(super) fn available() -> bool {
    false
}

/// Eight tiles of 16 rows of 64 bytes, for the calling thread.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) fn configure() {
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
    // SAFETY: the configuration is a valid one, and the unit is there.
    unsafe {
        std::arch::asm!("ldtilecfg [{}]", in(reg) CONFIG.0.as_ptr(), options(nostack, readonly));
    }
}

/// Puts the registers back as they were before [`configure`].
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) fn release() {
    // SAFETY: no tile is in use.
    unsafe { std::arch::asm!("tilerelease", options(nostack, nomem)) }
}

/// As [`super::Tiles::product`], of at least one pair of right tiles.
///
/// # Safety
/// The thread must have [configured](configure) its registers, `left` must have as many pairs as `right`, and the sums 32
/// rows of `columns`, or as much of the last as 32.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) unsafe fn product(
    left: Left,
    right: &[Tile],
    sums: &mut [f32],
    columns: usize,
    fresh: bool,
) {
    let steps = right.len() / 2;
    // SAFETY: the tiles and the sums are the caller's promise. Tiles are not used by compiled code, so that nothing of
    // it is overwritten.
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

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(super) fn configure() {}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(super) fn release() {}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(super) unsafe fn product(_: Left, _: &[Tile], _: &mut [f32], _: usize, _: bool) {}
