//! Philox4x32-10: random numbers from a key and a counter, with no state in between.
//!
//! Salmon, Moraes, Dror and Shaw, *Parallel random numbers: as easy as 1, 2, 3* (2011). Number n of a
//! seed can be had without those before it, so every thread and every device gets the same.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;

/// Four numbers of 32 bits.
#[inline(always)]
pub(crate) fn philox(key: u64, counter: u128) -> [u32; 4] {
    let mut key = [key as u32, (key >> 32) as u32];
    let mut c = [0, 32, 64, 96].map(|shift| (counter >> shift) as u32);
    for _ in 0..ROUNDS {
        let [low, high] = [0, 1].map(|lane| {
            let product = u64::from(MULTIPLIERS[lane]) * u64::from(c[2 * lane]);
            ((product >> 32) as u32, product as u32)
        });
        c = [high.0 ^ c[1] ^ key[0], high.1, low.0 ^ c[3] ^ key[1], low.1];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors publish with their library.
    #[test]
    fn the_published_answers_come_out() {
        assert_eq!(philox(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = philox(u64::MAX, u128::MAX);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = philox(0x299f_31d0_a409_3822, 0x0370_7344_1319_8a2e_85a3_08d3_243f_6a88);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
