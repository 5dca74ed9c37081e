//! The operating system's memory: regions of addresses, and files to put into them.
//!
//! The only file that talks to the operating system. A [`Region`] owns its addresses, so that
//! whatever is placed inside it cannot lie on memory of anybody else.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::codes::Code;

/// The mapping granularity of NVIDIA's devices, measured on an H200.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// What may be done with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    None,
    Read,
    ReadWrite,
}

impl Access {
    fn protection(self) -> c_int {
        match self {
            Self::None => libc::PROT_NONE,
            Self::Read => libc::PROT_READ,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// Addresses of this process that nothing else uses, given back when dropped.
#[derive(Debug)]
pub(crate) struct Region {
    /// What the operating system gave: one granule more than asked, to align within.
    base: u64,
    length: u64,
    /// The first aligned address.
    address: u64,
    size: u64,
}

impl Region {
    /// `size` bytes of addresses, aligned to the granularity.
    pub(crate) fn new(size: u64, access: Access) -> Result<Self, Code> {
        let length = size.checked_add(GRANULARITY).ok_or(Code::OUT_OF_MEMORY)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let nowhere = std::ptr::null_mut();
        // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing uses.
        let base =
            unsafe { libc::mmap(nowhere, length as usize, access.protection(), flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Code::OUT_OF_MEMORY);
        }
        let base = base.expose_provenance() as u64;
        Ok(Self { base, length, address: base.next_multiple_of(GRANULARITY), size })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Whether `[address, address + size)` lies inside.
    pub(crate) fn contains(&self, address: u64, size: u64) -> bool {
        let end = address.checked_add(size);
        address >= self.address && end.is_some_and(|end| end <= self.address + self.size)
    }

    /// Puts a file at `address`, without access.
    pub(crate) fn place(&self, address: u64, file: &File) -> Result<(), Code> {
        self.replace(address, file.size, libc::MAP_SHARED, file.descriptor.as_raw_fd())
    }

    /// Takes away whatever was placed at `address`.
    pub(crate) fn clear(&self, address: u64, size: u64) -> Result<(), Code> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.replace(address, size, flags, -1)
    }

    fn replace(&self, address: u64, size: u64, flags: c_int, file: c_int) -> Result<(), Code> {
        if !self.contains(address, size) {
            return Err(Code::INVALID_VALUE);
        }
        let flags = flags | libc::MAP_FIXED;
        // SAFETY: MAP_FIXED replaces what is at these addresses, and they lie inside this region,
        // which nothing but the driver's callers uses.
        let placed =
            unsafe { libc::mmap(pointer(address), size as usize, libc::PROT_NONE, flags, file, 0) };
        if placed == libc::MAP_FAILED { Err(Code::OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// Says what may be done with `[address, address + size)`.
    pub(crate) fn protect(&self, address: u64, size: u64, access: Access) -> Result<(), Code> {
        if !self.contains(address, size) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the addresses lie inside this region, which nothing but the driver's callers
        // uses; one that touches what it was not given faults, as on a device.
        let result =
            unsafe { libc::mprotect(pointer(address), size as usize, access.protection()) };
        if result == 0 { Ok(()) } else { Err(Code::UNKNOWN) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` was given, given back once. Callers of the driver who still
        // use it fault, as on a device.
        unsafe { libc::munmap(pointer(self.base), self.length as usize) };
    }
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Memory that can be placed at several addresses. Gone when dropped and placed nowhere.
#[derive(Debug)]
pub(crate) struct File {
    descriptor: OwnedFd,
    size: u64,
}

impl File {
    pub(crate) fn new(size: u64) -> Result<Self, Code> {
        // SAFETY: the name is a constant that ends in a zero byte.
        let descriptor =
            unsafe { libc::memfd_create(c"fake-cuda page".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(Code::OUT_OF_MEMORY);
        }
        // SAFETY: the kernel has just opened it for us, and nobody else closes it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: takes no pointers; the descriptor is open.
        let result = unsafe { libc::ftruncate(descriptor.as_raw_fd(), size as libc::off_t) };
        if result != 0 {
            return Err(Code::OUT_OF_MEMORY);
        }
        Ok(Self { descriptor, size })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }
}

/// Copies between memory of the fake and memory of the caller, either way.
///
/// # Safety
///
/// 1. `from` can be read, and `to` written, for `size` bytes.
/// 2. Nobody else uses them meanwhile.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, size: u64) {
    // SAFETY: promises 1 and 2; they may overlap, where both are the fake's.
    unsafe { std::ptr::copy(from, to, size as usize) };
}

/// Fills memory of the fake.
///
/// # Safety
///
/// 1. `to` can be written for `size` bytes.
/// 2. Nobody else uses them meanwhile.
pub(crate) unsafe fn fill(to: *mut u8, value: u8, size: u64) {
    // SAFETY: promises 1 and 2.
    unsafe { std::ptr::write_bytes(to, value, size as usize) };
}
