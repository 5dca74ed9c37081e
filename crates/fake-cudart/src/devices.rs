//! How many devices there are, and where they are plugged in.

use std::cell::Cell;
use std::ffi::{c_char, c_int};

use tonnage_cuda_codes::Code;

use crate::state::State;

thread_local! {
    /// The device of this thread. All are alike; a rank of a job uses one of them.
    static CURRENT: Cell<c_int> = const { Cell::new(0) };
}

/// What programs hide devices with.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The device that is current.
pub(crate) fn current() -> c_int {
    CURRENT.try_with(Cell::get).unwrap_or(0)
}

/// Makes a device current.
pub(crate) fn make_current(device: c_int) {
    // A thread that is ending has no device any more.
    let _ = CURRENT.try_with(|current| current.set(device));
}

impl State {
    /// How many devices there are: those of the profile, unless the environment hides some. Once there were any it is not asked
    /// again: a driver reads it when it is initialised, which counting devices does.
    pub(crate) fn devices(&self) -> c_int {
        self.devices_by(|| std::env::var(VISIBLE).ok())
    }

    fn devices_by(&self, environment: impl FnOnce() -> Option<String>) -> c_int {
        if let Some(devices) = self.visible.get() {
            return devices;
        }
        let there = self.profile.devices.max(1);
        let devices = environment().map_or(there, |text| visible_by(&text, there));
        if devices > 0 {
            self.visible.set(Some(devices));
        }
        devices
    }

    /// Whether a device reads another's memory by itself. Cards for games do not.
    pub(crate) fn reaches(&self, device: c_int, other: c_int) -> bool {
        device != other && !self.profile.name.contains("GeForce")
    }

    /// Whether there is one of this number.
    pub(crate) fn has_device(&self, device: c_int) -> bool {
        (0..self.devices()).contains(&device)
    }
}

fn visible_by(text: &str, there: c_int) -> c_int {
    let is_device = |word: &&str| match word.trim().parse::<c_int>() {
        // Whoever names one device of another machine means one.
        Ok(number) => number >= 0 && (number < there || there == 1),
        Err(_) => word.trim().starts_with("GPU-") || word.trim().starts_with("MIG-"),
    };
    // A list ends where something is no device.
    let named = text.split(',').take_while(is_device).count();
    c_int::try_from(named).unwrap_or(there).min(there)
}

/// Writes where a device is plugged in, as far as there is room.
///
/// # Safety
///
/// `text` is null, which is refused, or can be written for `length`.
pub(crate) unsafe fn bus_id(text: *mut c_char, length: c_int, device: c_int) -> Result<(), Code> {
    let id = format!("0000:{:02x}:00.0\0", device + 1);
    // SAFETY: the caller's promise.
    unsafe { put_text(text, length, id.as_bytes()) }
}

/// Writes a text that ends in a zero byte, if there is room for it.
///
/// # Safety
///
/// `place` is null, which is refused, or can be written for `length`.
pub(crate) unsafe fn put_text(place: *mut c_char, length: c_int, text: &[u8]) -> Result<(), Code> {
    if place.is_null() || usize::try_from(length).map_or(true, |length| length < text.len()) {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: there is room, by the caller's promise, and texts of ours lie elsewhere.
    unsafe { place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_can_be_hidden() {
        for (text, of_one, of_eight) in [
            ("0", 1, 1),
            ("0,1,2", 1, 3),
            ("7, 3", 1, 2),
            ("0,9,1", 1, 1),
            ("", 0, 0),
            ("-1", 0, 0),
            ("GPU-5ebe9f43", 1, 1),
            ("NoDevFiles", 0, 0),
        ] {
            assert_eq!((visible_by(text, 1), visible_by(text, 8)), (of_one, of_eight), "{text:?}");
        }
    }

    #[test]
    fn what_the_environment_hides_after_devices_were_counted_is_there() {
        let state = State::of_many(1 << 30, 1 << 30, 8);
        let text = |text: &'static str| || Some(text.to_owned());
        assert_eq!((state.devices_by(text("")), state.devices_by(text("-1"))), (0, 0));
        assert_eq!(state.devices_by(text("3,1")), 2, "there were none before");
        assert_eq!((state.devices_by(text("")), state.devices_by(|| None)), (2, 2));
        assert_eq!([0, 1, 2, -1].map(|it| state.has_device(it)), [true, true, false, false]);
    }

    #[test]
    fn a_text_is_written_only_where_there_is_room() {
        let mut place = [1 as c_char; 16];
        // SAFETY: that is its length.
        unsafe { bus_id(place.as_mut_ptr(), 16, 0) }.unwrap();
        // SAFETY: as above; nothing is written.
        assert_eq!(unsafe { bus_id(place.as_mut_ptr(), 4, 0) }, Err(Code::INVALID_VALUE));
        assert_eq!(place.map(|it| it as u8)[..13], *b"0000:01:00.0\0");
    }
}
