//! The time of entries of a history, for as little as PyTorch's costs: the processor's own counter, held against the system's
//! clock now and then. To ask the system for each entry is cheap on most machines, and takes a microsecond on some virtual ones.

use tonnage_engine::system_time_us;

/// Microseconds since 1970, as [`system_time_us`] to within some microseconds.
pub(crate) fn time_us() -> u64 {
    counter::time_us().unwrap_or_else(system_time_us)
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{__cpuid, _rdtsc};
    use std::cell::Cell;
    use std::sync::OnceLock;

    use super::system_time_us;

    /// How long the counter is trusted, and how long it is watched before: chosen. At a millionth of error the first gives a
    /// tenth of a microsecond.
    const TRUSTED_US: f64 = 100_000.0;
    const WATCHED_US: u64 = 10_000;

    /// A moment by both clocks, and how they go from there: no rate until the counter was watched for long enough.
    #[derive(Clone, Copy)]
    struct Anchor {
        ticks: u64,
        time_us: u64,
        us_per_tick: f64,
    }

    thread_local! {
        static ANCHOR: Cell<Option<Anchor>> = const { Cell::new(None) };
        static LAST: Cell<u64> = const { Cell::new(0) };
    }

    /// The time, if the counter goes at one rate on this machine.
    pub(super) fn time_us() -> Option<u64> {
        if !is_steady() {
            return None;
        }
        let ticks = now();
        let anchor = ANCHOR.get();
        if let Some(anchor) = anchor
            && anchor.us_per_tick > 0.0
        {
            let since = ticks.wrapping_sub(anchor.ticks) as f64 * anchor.us_per_tick;
            if since < TRUSTED_US {
                return Some(later(anchor.time_us + since as u64));
            }
        }
        let (ticks, time_us) = both();
        match anchor {
            Some(anchor) if (anchor.time_us..anchor.time_us + WATCHED_US).contains(&time_us) => {}
            Some(anchor) if anchor.time_us < time_us => {
                // A clock that was set meanwhile gives a rate that no counter has: then it is watched anew.
                let passed = (time_us - anchor.time_us) as f64;
                let rate = passed / ticks.wrapping_sub(anchor.ticks) as f64;
                let sane = (1e-5..1e-1).contains(&rate)
                    && (anchor.us_per_tick == 0.0
                        || (rate / anchor.us_per_tick - 1.0).abs() < 1e-3);
                let us_per_tick = if sane { rate } else { 0.0 };
                ANCHOR.set(Some(Anchor { ticks, time_us, us_per_tick }));
            }
            // The first time, or the clock was set back.
            _ => ANCHOR.set(Some(Anchor { ticks, time_us, us_per_tick: 0.0 })),
        }
        Some(later(time_us))
    }

    /// No entry is earlier than the one before, as long as the thread lives; after a second the clock was set, and is right.
    fn later(time_us: u64) -> u64 {
        let last = LAST.get();
        let time_us = if time_us < last && last - time_us < 1_000_000 { last } else { time_us };
        LAST.set(time_us);
        time_us
    }

    /// One moment by both clocks: of a few tries the one that took least, as the thread may be stopped in between.
    fn both() -> (u64, u64) {
        let tries = (0..4).map(|_| {
            let (before, time_us, after) = (now(), system_time_us(), now());
            (after.wrapping_sub(before), before, time_us)
        });
        tries
            .min()
            .map_or_else(|| (now(), system_time_us()), |(_, ticks, time_us)| (ticks, time_us))
    }

    fn now() -> u64 {
        // SAFETY: every processor of this architecture has the counter; whether user programs may read it is asked first
        // (`is_steady`), as far as the system tells.
        unsafe { _rdtsc() }
    }

    /// Whether the processor says that the counter goes at one rate, whatever it does to save power.
    fn is_steady() -> bool {
        static STEADY: OnceLock<bool> = OnceLock::new();
        *STEADY.get_or_init(|| {
            #[allow(unused_unsafe, reason = "safe from some release of the compiler on")]
            // SAFETY: every processor of this architecture has the instruction.
            let [most, power] = unsafe { [__cpuid(0x8000_0000).eax, __cpuid(0x8000_0007).edx] };
            most >= 0x8000_0007 && power & (1 << 8) != 0
        })
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub(super) fn time_us() -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_systems_time_and_never_goes_back() {
        let end = system_time_us() + 300_000;
        let mut last = 0;
        while last < end {
            let before = system_time_us();
            let time = time_us();
            let after = system_time_us();
            assert!(time >= last, "{time} after {last}");
            assert!(time + 5_000 > before && time < after + 5_000, "{before} {time} {after}");
            last = time;
        }
    }
}
