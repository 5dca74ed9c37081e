//! Which addresses are the device's. With [`Arenas`](tonnage_device::Arenas), which scripts have, they are places where Linux puts no
//! memory of a process on x86-64: programs lie above 0x55…, libraries and memory above 0x6f….

use crate::state::State;

/// Where segments lie, below and above the middle that [`Arenas`](tonnage_device::Arenas) begins at.
const ARENAS: std::ops::Range<u64> = 0x3000_0000_0000..0x5000_0000_0000;

/// Where segments and ranges lie by [`FirstFit`](tonnage_device::FirstFit). The process's own memory may lie there too, where the
/// kernel draws addresses from as many as it can (`vm.mmap_rnd_bits` is 32 on Ubuntu 24.04).
const ASCENDING: std::ops::Range<u64> = 0x6000_0000_0000..0x7200_0000_0000;

/// Where ranges lie by `Arenas`: beyond what a process can have.
const RANGES: std::ops::Range<u64> = 1 << 48..1 << 60;

impl State {
    /// Whether an address is the device's.
    pub(crate) fn on_device(&self, address: usize) -> bool {
        let address = address as u64;
        [ARENAS, RANGES].iter().any(|range| range.contains(&address))
            || (self.ascends && ASCENDING.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use tonnage_device::Device;

    use super::*;
    use crate::profile::Profile;

    #[test]
    fn what_the_device_gives_is_the_devices_and_what_the_process_has_is_not() {
        let of = |ascending| {
            State::of(Profile {
                total: 1 << 40,
                capacity: 1 << 40,
                ascending,
                ..Profile::default()
            })
        };
        for mut state in [of(false), of(true)] {
            for _ in 0..100 {
                for size in [2 << 20, 1 << 30] {
                    let address = state.device.acquire(size).unwrap().0 as usize;
                    assert!(state.on_device(address));
                }
                let range = state.device.reserve(1 << 36).unwrap().0 as usize;
                assert!(state.on_device(range));
            }
        }
        let (boxed, local) = (Box::new(1), 2);
        let function =
            what_the_device_gives_is_the_devices_and_what_the_process_has_is_not as fn();
        let own = [(&raw const *boxed).addr(), (&raw const local).addr(), function as usize, 0];
        // Where the kernel may put programs and libraries.
        let drawn = [0x6000_0000_0000, 0x6555_5555_4000, 0x7000_0000_0000, 0x71ff_ffff_f000];
        for address in own.into_iter().chain(drawn) {
            assert!(!of(false).on_device(address), "{address:#x}");
        }
    }
}
