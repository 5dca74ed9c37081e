//! Which addresses are the device's. They are places where Linux puts no memory of a process on x86-64: programs lie
//! above 0x55…, libraries and memory above 0x7e….

/// Where segments lie, below and above the middle that [`Arenas`](tonnage_device::Arenas) begins at.
const ARENAS: std::ops::Range<u64> = 0x3000_0000_0000..0x5000_0000_0000;

/// Where segments and ranges lie by [`FirstFit`](tonnage_device::FirstFit).
const ASCENDING: std::ops::Range<u64> = 0x6000_0000_0000..0x7200_0000_0000;

/// Where ranges lie by `Arenas`: beyond what a process can have.
const RANGES: std::ops::Range<u64> = 1 << 48..1 << 60;

/// Whether an address is the device's.
pub(crate) fn on_device(address: usize) -> bool {
    let address = address as u64;
    [ARENAS, ASCENDING, RANGES].iter().any(|range| range.contains(&address))
}

#[cfg(test)]
mod tests {
    use tonnage_device::{Arenas, Device, Dry, Placement};

    use super::*;

    #[test]
    fn what_the_device_gives_is_the_devices_and_what_the_process_has_is_not() {
        let arenas = Dry::new(1 << 40).with_placement(Placement::Arenas(Arenas::default()));
        for mut device in [arenas, Dry::new(1 << 40)] {
            for _ in 0..100 {
                assert!(on_device(device.acquire(2 << 20).unwrap().0 as usize));
                assert!(on_device(device.acquire(1 << 30).unwrap().0 as usize));
                assert!(on_device(device.reserve(1 << 36).unwrap().0 as usize));
            }
        }
        let (boxed, local) = (Box::new(1), 2);
        let function =
            what_the_device_gives_is_the_devices_and_what_the_process_has_is_not as fn();
        for address in [(&raw const *boxed).addr(), (&raw const local).addr(), function as usize, 0]
        {
            assert!(!on_device(address), "{address:#x}");
        }
    }
}
