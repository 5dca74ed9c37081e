//! How many devices there are, and where they are plugged in.

use std::ffi::{c_char, c_int};

use tonnage_cuda_codes::Code;

/// The device that is current, since there is no other.
pub(crate) const CURRENT: c_int = 0;

/// What programs hide devices with.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// How many devices there are: one, or none if the environment hides all.
pub(crate) fn visible() -> c_int {
    std::env::var(VISIBLE).map_or(1, |text| visible_by(&text))
}

fn visible_by(text: &str) -> c_int {
    // A list ends where something is no device.
    let first = text.split(',').next().unwrap_or_default().trim();
    let hidden = first.is_empty() || first.starts_with('-') || first == "NoDevFiles";
    c_int::from(!hidden)
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
        for (text, count) in
            [("0", 1), ("0,1,2", 1), ("", 0), ("-1", 0), ("GPU-5ebe9f43", 1), ("NoDevFiles", 0)]
        {
            assert_eq!(visible_by(text), count, "{text:?}");
        }
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
