//! Pieces of host memory, by the class of their size: every unsafe line about where they come from.

use std::alloc::{self, Layout};
use std::ptr::NonNull;
use std::sync::OnceLock;

use tonnage_device::DeviceError;

use crate::pinned::PinnedError;

/// Where ordinary memory begins: at a page, as what the driver gives does.
const PAGE: usize = 4096;

/// Sizes that share memory: a power of two.
#[derive(Clone, Copy)]
pub(super) struct Class(usize);

impl Class {
    pub(super) fn of(bytes: u64) -> Result<Self, PinnedError> {
        if bytes == 0 {
            return Err(PinnedError::Empty);
        }
        let rounded = bytes.checked_next_power_of_two().and_then(|size| usize::try_from(size).ok());
        // What has no layout has no addresses either.
        let possible = rounded.filter(|size| Layout::from_size_align(*size, PAGE).is_ok());
        possible.map(Self).ok_or(PinnedError::TooLarge { requested: bytes })
    }

    pub(super) fn size(self) -> usize {
        self.0
    }
}

/// A piece of host memory, and its owner. The default one has no bytes.
#[derive(Default)]
pub(super) struct Span {
    size: usize,
    source: Source,
}

#[derive(Default)]
enum Source {
    /// Nobody's: there are no bytes.
    #[default]
    Nowhere,
    /// Ordinary memory: it goes with its span.
    System(System),
    /// Counted only, for a device without memory: nothing copies there. Whoever looks at the bytes all
    /// the same gets ordinary memory, from then on.
    Counted(OnceLock<System>),
    /// The driver's: it goes when the device is asked, or with the device.
    Driver(NonNull<u8>),
}

impl Span {
    /// Ordinary memory.
    pub(super) fn obtain(class: Class) -> Result<Self, DeviceError> {
        let size = class.size();
        let system = System::obtain(size);
        let system = system.ok_or(DeviceError::OutOfMemory { requested: size as u64 })?;
        Ok(Self { size, source: Source::System(system) })
    }

    /// No memory until someone looks.
    pub(super) fn counted(class: Class) -> Self {
        Self { size: class.size(), source: Source::Counted(OnceLock::new()) }
    }

    /// The driver's, from `start` on.
    pub(super) fn of_driver(class: Class, start: NonNull<u8>) -> Self {
        Self { size: class.size(), source: Source::Driver(start) }
    }

    pub(super) fn capacity(&self) -> usize {
        self.size
    }

    pub(super) fn size(&self) -> u64 {
        self.size as u64
    }

    pub(super) fn is_the_drivers(&self) -> bool {
        self.driver_start().is_some()
    }

    /// Where it begins, if it is the driver's.
    pub(super) fn driver_start(&self) -> Option<NonNull<u8>> {
        match self.source {
            Source::Driver(start) => Some(start),
            _ => None,
        }
    }

    /// Where it begins; its bytes are there from now on.
    ///
    /// # Errors
    ///
    /// If it was only counted so far, and this machine has not so many bytes.
    pub(super) fn start(&self) -> Result<NonNull<u8>, PinnedError> {
        match &self.source {
            Source::Nowhere => Ok(NonNull::dangling()),
            Source::System(system) => Ok(system.start),
            Source::Driver(start) => Ok(*start),
            Source::Counted(memory) => match memory.get() {
                Some(system) => Ok(system.start),
                None => {
                    let system = System::obtain(self.size);
                    let system = system.ok_or(PinnedError::Counted { bytes: self.size() })?;
                    // Another thread may have been first: then this one's goes, and theirs counts.
                    Ok(memory.get_or_init(|| system).start)
                }
            },
        }
    }
}

/// Ordinary memory from the beginning of a page on, given back when dropped.
struct System {
    start: NonNull<u8>,
    allocated: NonNull<u8>,
    layout: Layout,
}

impl System {
    /// Zeroed memory.
    ///
    /// Asked for with a page's alignment, it would be written to its last byte at once. So a page more
    /// is asked for, with no alignment to speak of.
    fn obtain(size: usize) -> Option<Self> {
        let layout = Layout::from_size_align(size.checked_add(PAGE)?, 1).ok()?;
        // SAFETY: the layout has at least a page's bytes.
        let allocated = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        // SAFETY: the offset is less than a page, and the allocation a page larger than `size`.
        let start = unsafe { allocated.add(allocated.align_offset(PAGE)) };
        Some(Self { start, allocated, layout })
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // SAFETY:
        // - From `obtain`, with this layout.
        // - Once: it is neither copied nor taken apart.
        // - Used by nobody: its span's block is gone, and spans that work may use are `Pending`, which
        //   are not dropped.
        unsafe { alloc::dealloc(self.allocated.as_ptr(), self.layout) };
    }
}

// SAFETY: `start` and `allocated` are memory that the value owns, as a box does: nothing about it
// belongs to a thread. The layout is a plain value.
unsafe impl Send for System {}

// SAFETY: shared, it gives its address only; what reads the bytes there borrows the block.
unsafe impl Sync for System {}

// SAFETY: the driver's memory is what every thread can reach, with its context or without; it is the
// span's alone. Ordinary memory is `System`, which says the same of itself.
unsafe impl Send for Source {}

// SAFETY: a shared span gives its address and size only; what reads the bytes there borrows the
// block.
unsafe impl Sync for Source {}

pub(super) fn total(spans: &[Span]) -> u64 {
    spans.iter().map(Span::size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_the_powers_of_two_and_end_before_the_addresses_do() {
        for exponent in 0..62 {
            let power = 1_u64 << exponent;
            assert_eq!(Class::of(power).map(Class::size), Ok(power as usize));
            let above = Class::of(power + 1).map(Class::size);
            assert_eq!(above, Ok(2 * power as usize), "2^{exponent} + 1");
        }
        assert_eq!(Class::of(0).map(Class::size), Err(PinnedError::Empty));
        for requested in [(1 << 62) + 1, 1 << 63, (1 << 63) + 1, u64::MAX] {
            assert_eq!(
                Class::of(requested).map(Class::size),
                Err(PinnedError::TooLarge { requested })
            );
        }
    }
}
