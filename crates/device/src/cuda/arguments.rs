//! The arguments of a kernel, by value.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use tonnage_events::Address;

/// The strictest alignment of a parameter.
const ALIGNMENT: usize = 16;

/// Sixteen bytes at a multiple of sixteen.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
struct Unit([u8; ALIGNMENT]);

/// The arguments of a launch, in the order of the kernel's parameters.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    units: Vec<Unit>,
    /// Where each begins, in units, and its size in bytes.
    places: Vec<(u32, u32)>,
}

/// A value that a kernel can be given: plain numbers and addresses.
pub trait Argument: Copy {
    /// Hands its bytes to `sink`.
    fn with_bytes(self, sink: impl FnOnce(&[u8]));
}

macro_rules! arguments {
    ($($kind:ty),*) => {
        $(impl Argument for $kind {
            fn with_bytes(self, sink: impl FnOnce(&[u8])) {
                sink(&self.to_ne_bytes());
            }
        })*
    };
}

arguments!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, f32, f64);

impl Argument for Address {
    fn with_bytes(self, sink: impl FnOnce(&[u8])) {
        self.0.with_bytes(sink);
    }
}

impl Argument for bool {
    fn with_bytes(self, sink: impl FnOnce(&[u8])) {
        u8::from(self).with_bytes(sink);
    }
}

impl Arguments {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One more.
    pub fn push(&mut self, value: impl Argument) {
        value.with_bytes(|bytes| self.push_bytes(bytes));
    }

    /// One more, of a structure: its bytes as C lays them out, padding as zeros.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.places.push((self.units.len() as u32, bytes.len() as u32));
        for part in bytes.chunks(ALIGNMENT) {
            let mut unit = Unit([0; ALIGNMENT]);
            unit.0[..part.len()].copy_from_slice(part);
            self.units.push(unit);
        }
    }

    /// One more.
    #[must_use]
    pub fn with(mut self, value: impl Argument) -> Self {
        self.push(value);
        self
    }

    /// One more, of a structure.
    #[must_use]
    pub fn with_bytes(mut self, bytes: &[u8]) -> Self {
        self.push_bytes(bytes);
        self
    }

    /// Their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Their sizes in bytes.
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.places.iter().map(|(_, size)| *size as usize)
    }

    /// Where each lies, as long as `self` is there and stays as it is. The driver reads through them, and never writes.
    pub(super) fn pointers(&self) -> Vec<*mut c_void> {
        let at = |&(start, _): &(u32, u32)| match self.units.get(start as usize) {
            Some(unit) => (&raw const *unit).cast_mut().cast(),
            // A value of no bytes, which nothing reads.
            None => std::ptr::dangling_mut::<MaybeUninit<Unit>>().cast(),
        };
        self.places.iter().map(at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argument_is_aligned_and_whole() {
        let long: Vec<u8> = (0..100).collect();
        let arguments = Arguments::new()
            .with(Address(0x7000))
            .with(3u8)
            .with_bytes(&long)
            .with(true)
            .with(2.5f64)
            .with_bytes(&[]);
        assert_eq!(arguments.sizes().collect::<Vec<_>>(), [8, 1, 100, 1, 8, 0]);
        let pointers = arguments.pointers();
        assert!(pointers.iter().all(|pointer| pointer.addr().is_multiple_of(ALIGNMENT)));
        // SAFETY: the third argument has a hundred bytes, which `arguments` keeps.
        let third = unsafe { std::slice::from_raw_parts(pointers[2].cast::<u8>(), 100) };
        assert_eq!(third, long);
        // SAFETY: the fifth is eight bytes, aligned as seen above.
        assert_eq!(unsafe { pointers[4].cast::<f64>().read() }, 2.5);
    }
}
