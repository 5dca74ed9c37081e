//! Stage 1: what the caller asked for, and what the pools will deal in.
//!
//! In: bytes, as the caller wrote them. Out: a size that is never smaller and always a whole number
//! of [`MIN_BLOCK`]s. Nothing here touches a pool or a device, so that every rule can be tested on
//! plain numbers.

use tonnage_events::StreamId;

use crate::config::Config;
use crate::pool::PoolRef;

/// Granularity of sizes, and the smallest block.
pub(crate) const MIN_BLOCK: u64 = 512;

/// Requests from here on are absurd: PyTorch refuses them before rounding.
pub(crate) const ABSURD_SIZE: u64 = 1 << 60;

/// A request on its way through the stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// What the caller asked for.
    pub(crate) bytes: u64,
    /// Rounded: what the pools look for.
    pub(crate) size: u64,
    pub(crate) stream: StreamId,
    /// The pool that is to serve it.
    pub(crate) pool: PoolRef,
    /// Bytes to obtain from the device if no pool can serve it.
    pub(crate) segment_size: u64,
    /// Whether segments grow in place for this request.
    pub(crate) expandable: bool,
}

impl Config {
    /// What a request for `bytes` takes from a pool, if nothing of the block stays unsplit; none if
    /// no such request is ever served.
    #[must_use]
    pub fn rounded_size(&self, bytes: u64) -> Option<u64> {
        (0 < bytes && bytes < ABSURD_SIZE).then(|| round(bytes, self))
    }
}

/// Rounds `bytes`, which are fewer than [`ABSURD_SIZE`], up to what the pools deal in.
pub(crate) fn round(bytes: u64, config: &Config) -> u64 {
    if bytes < MIN_BLOCK {
        return MIN_BLOCK;
    }
    let divisions = config.divisions_for(bytes);
    // The product wraps around for absurd divisions, as PyTorch's does.
    if divisions > 1 && bytes > MIN_BLOCK.wrapping_mul(divisions) {
        return round_to_division(bytes, divisions);
    }
    bytes.next_multiple_of(MIN_BLOCK)
}

/// Rounds up to the next of `divisions` equal steps between two powers of two.
fn round_to_division(bytes: u64, divisions: u64) -> u64 {
    if bytes.is_power_of_two() {
        return bytes;
    }
    let floor = 1_u64 << bytes.ilog2();
    let step = floor >> divisions.ilog2();
    if step == 0 {
        return floor * 2;
    }
    bytes.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Release;

    fn config(conf: &str) -> Config {
        Config::parse(conf, Release::default()).expect("a valid setting")
    }

    #[test]
    fn every_size_up_to_two_segments_rounds_to_the_next_granule() {
        let config = Config::default();
        for bytes in 1..=(4_u64 << 20) {
            let size = round(bytes, &config);
            assert!(size >= bytes && size - bytes < MIN_BLOCK && size.is_multiple_of(MIN_BLOCK));
        }
    }

    #[test]
    fn divisions_round_up_to_equal_steps_between_powers_of_two() {
        let four = config("roundup_power2_divisions:4");
        for (bytes, size) in [
            (1, 512),
            (512, 512),
            (1_200, 1_536),
            (2_048, 2_048),
            (2_049, 2_560),
            (1_100_000, 1_310_720),
            (88_080_384, 100_663_296),
            (1 << 40, 1 << 40),
        ] {
            assert_eq!(round(bytes, &four), size, "{bytes}");
        }
    }

    #[test]
    fn a_division_never_makes_a_size_smaller_or_uneven() {
        for divisions in [1, 2, 4, 8, 16, 64, 4_096] {
            let config = config(&format!("roundup_power2_divisions:{divisions}"));
            for bytes in (1..3 << 20).step_by(37).chain([(1 << 59) + 1, ABSURD_SIZE - 1]) {
                let size = round(bytes, &config);
                assert!(size >= bytes && size.is_multiple_of(MIN_BLOCK), "{divisions}: {bytes}");
            }
        }
    }
}
