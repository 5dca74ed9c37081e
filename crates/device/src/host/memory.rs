//! The operating system's memory calls, and copies from and to what they gave.
//!
//! In:  sizes, offsets and plain addresses that the callers have checked.
//! Out: a [`Span`] of addresses that goes back when it is dropped, or the system's error.
//!
//! Everything `unsafe` that the host device does to memory stands in this file. Addresses leave it
//! as numbers, with their provenance exposed, and come back as such.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::Arc;

use libc::{
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_NONE,
    PROT_READ, PROT_WRITE,
};

use crate::DeviceError;

/// Where spans begin: the mapping granularity of NVIDIA's devices, whose segments are aligned to it
/// too. It is a multiple of the system's page on every machine that we know.
pub(super) const ALIGNMENT: usize = 2 << 20;

/// What may be done with a span of addresses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    /// Nothing: touching it faults. Costs no memory.
    None,
    /// Reading and writing. Costs memory where it was touched, and is zero until written.
    ReadWrite,
}

impl Access {
    fn protection(self) -> i32 {
        match self {
            Self::None => PROT_NONE,
            Self::ReadWrite => PROT_READ | PROT_WRITE,
        }
    }
}

/// Addresses that belong to us and to nobody else, until dropped.
///
/// *The span is `[start, start + length)`; `start` is a multiple of [`ALIGNMENT`], `length` of the
/// system's page.*
#[derive(Debug)]
pub(super) struct Span {
    start: usize,
    length: usize,
    /// The span that it is part of, if it is; that one stays as long as its parts do.
    home: Option<Arc<Self>>,
}

impl Span {
    /// Takes at least `size` bytes of addresses from the system.
    ///
    /// The system aligns to its own page only, so this takes an [`ALIGNMENT`] more and returns what
    /// stands over on both sides.
    pub(super) fn obtain(size: u64, access: Access) -> io::Result<Self> {
        let too_much = || io::Error::from_raw_os_error(libc::ENOMEM);
        let size = usize::try_from(size).map_err(|_| too_much())?;
        let length = size.checked_next_multiple_of(system_page()).ok_or_else(too_much)?;
        let wide = length.checked_add(ALIGNMENT).ok_or_else(too_much)?;
        // SAFETY: without MAP_FIXED the system chooses addresses that nobody uses, so no memory
        // that exists is affected.
        let begin = unsafe {
            libc::mmap(
                ptr::null_mut(),
                wide,
                access.protection(),
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1,
                0,
            )
        };
        if begin == MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mut whole = Self { start: begin.expose_provenance(), length: wide, home: None };
        let start = whole.start.next_multiple_of(ALIGNMENT);
        whole.cut_below(start)?;
        whole.cut_above(start + length)?;
        Ok(whole)
    }

    /// Takes at least `size` bytes of `home`, which may not be touched, from `offset` on. The caller
    /// answers for it that no other part has them.
    pub(super) fn within(
        home: &Arc<Self>,
        offset: u64,
        size: u64,
        access: Access,
    ) -> io::Result<Self> {
        let (start, length) = home.part(offset, size)?;
        let length = length.next_multiple_of(system_page());
        if let Access::ReadWrite = access {
            cover(start, length, access)?;
        }
        Ok(Self { start, length, home: Some(Arc::clone(home)) })
    }

    /// The first address.
    pub(super) fn start(&self) -> u64 {
        self.start as u64
    }

    /// Gives the addresses back. If the system refuses, they stay ours, and leave with the error.
    pub(super) fn release(mut self) -> Result<(), (Self, io::Error)> {
        match self.leave() {
            Ok(()) => {
                self.length = 0;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Puts `length` bytes of `file`, from `file_offset` on, at `offset` of the span, in place of
    /// what lies there.
    pub(super) fn map_file(
        &mut self,
        offset: u64,
        length: u64,
        file: &File,
        file_offset: u64,
    ) -> io::Result<()> {
        let (start, length) = self.part(offset, length)?;
        let file_offset = libc::off_t::try_from(file_offset)
            .map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
        // SAFETY: MAP_FIXED replaces `[start, start + length)`, which lies inside this span: its
        // addresses are ours alone, and `&mut self` keeps others from changing them meanwhile. Who
        // uses what lies there is the caller's account: `pages` maps over empty places only.
        let placed = unsafe {
            libc::mmap(
                ptr::with_exposed_provenance_mut(start),
                length,
                PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                file.as_raw_fd(),
                file_offset,
            )
        };
        expose(placed)
    }

    /// Takes away what lies in `length` bytes at `offset`: touching them faults again. The
    /// addresses stay ours.
    ///
    /// Not `munmap`: it would leave a hole in the reservation that any other thread's `mmap` could
    /// fill.
    pub(super) fn clear(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let (start, length) = self.part(offset, length)?;
        cover(start, length, Access::None)
    }

    /// Gives the addresses back: to the home they are part of, or to the system.
    fn leave(&self) -> io::Result<()> {
        match &self.home {
            Some(_) if self.length > 0 => cover(self.start, self.length, Access::None),
            Some(_) => Ok(()),
            None => give_up(self.start, self.length),
        }
    }

    /// The addresses of `length` bytes at `offset`, if they lie inside.
    fn part(&self, offset: u64, length: u64) -> io::Result<(usize, usize)> {
        let outside = || io::Error::from_raw_os_error(libc::EINVAL);
        let offset = usize::try_from(offset).map_err(|_| outside())?;
        let length = usize::try_from(length).map_err(|_| outside())?;
        let end = offset.checked_add(length).ok_or_else(outside)?;
        if end > self.length {
            return Err(outside());
        }
        Ok((self.start + offset, length))
    }

    fn cut_below(&mut self, start: usize) -> io::Result<()> {
        give_up(self.start, start - self.start)?;
        self.length -= start - self.start;
        self.start = start;
        Ok(())
    }

    fn cut_above(&mut self, end: usize) -> io::Result<()> {
        let length = end - self.start;
        give_up(end, self.length - length)?;
        self.length = length;
        Ok(())
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // A refusal cannot be told to anyone here; the addresses then stay taken until the process
        // ends, which harms nobody else.
        let _ = self.leave();
    }
}

/// Puts fresh memory, or none, in the place of what lies there. Private to this file: only a [`Span`]
/// covers parts of itself.
fn cover(start: usize, length: usize, access: Access) -> io::Result<()> {
    // SAFETY: MAP_FIXED replaces `[start, start + length)`, which lies inside the span of the caller:
    // its addresses are ours alone, and no other part of a home has them, by `within`. That nobody uses
    // the bytes any more is the contract of `unmap`, `release`, `unreserve` and of dropping the device,
    // written at `Host`.
    let placed = unsafe {
        libc::mmap(
            ptr::with_exposed_provenance_mut(start),
            length,
            access.protection(),
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
            -1,
            0,
        )
    };
    expose(placed)
}

/// Returns addresses to the system. Private to this file: only a [`Span`] gives up parts of itself.
fn give_up(start: usize, length: usize) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    // SAFETY: the range is (a part of) the span of the caller, who owns it and forgets it when this
    // succeeds. That nobody uses the bytes any more is the contract of `release`, `unreserve` and
    // of dropping the device, written at `Host`.
    let result = unsafe { libc::munmap(ptr::with_exposed_provenance_mut(start), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn expose(placed: *mut libc::c_void) -> io::Result<()> {
    if placed == MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    placed.expose_provenance();
    Ok(())
}

fn system_page() -> usize {
    // SAFETY: `sysconf` reads a number and touches no memory of ours.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // It is fixed and always known; if it were not, whole alignments are whole pages too.
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(ALIGNMENT)
}

/// An empty file that lives in memory only.
pub(super) fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a C string that lives for the whole program.
    let fd = unsafe { libc::memfd_create(c"tonnage-host".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above opened `fd` for us, and nobody else has it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Gives the memory behind a part of `file` back to the system; the part reads as zero afterwards.
pub(super) fn punch_hole(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let number = |value: u64| {
        libc::off_t::try_from(value).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))
    };
    let (offset, length) = (number(offset)?, number(length)?);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open as long as `file` lives. Memory changes only where this part
    // is mapped, and `pages` punches only pages that are mapped nowhere.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Copies `into.len()` bytes at `address`.
///
/// # Safety
///
/// 1. The range is mapped, readable, until this returns.
/// 2. Until this returns, nothing writes it: no thread, and no work on any stream.
pub(super) unsafe fn copy_from(address: u64, into: &mut [u8]) {
    let from = ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY:
    // - Readable and not written meanwhile: promises 1 and 2. Memory of the system is initialised.
    // - Writable: `into` is an exclusive slice. `copy` lets the two overlap.
    unsafe { ptr::copy(from, into.as_mut_ptr(), into.len()) }
}

/// Copies `bytes` to `address`.
///
/// # Safety
///
/// 1. The range is mapped, writable, until this returns.
/// 2. Until this returns, nothing else touches it: no thread, and no work on any stream.
pub(super) unsafe fn copy_to(address: u64, bytes: &[u8]) {
    let to = ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY:
    // - Writable and not touched meanwhile: promises 1 and 2.
    // - Readable: `bytes` is a slice. `copy` lets the two overlap.
    unsafe { ptr::copy(bytes.as_ptr(), to, bytes.len()) }
}

/// Writes `byte` to `length` bytes at `address`.
///
/// # Safety
///
/// As for [`copy_to`].
pub(super) unsafe fn fill(address: u64, byte: u8, length: u64) {
    let to = ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: writable and not touched meanwhile: promises 1 and 2. A mapped range is no longer
    // than the address space, so `length` fits.
    unsafe { ptr::write_bytes(to, byte, length as usize) }
}

/// What the caller of the device is told about a call of the system that failed.
pub(super) fn driver(call: &'static str, error: &io::Error) -> DeviceError {
    DeviceError::Driver {
        call,
        code: error.raw_os_error().unwrap_or(0),
        message: error.to_string(),
    }
}

/// As [`driver`], for calls that need `requested` bytes of memory: lack of it is told as such.
pub(super) fn memory_or_driver(
    call: &'static str,
    requested: u64,
    error: &io::Error,
) -> DeviceError {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => DeviceError::OutOfMemory { requested },
        _ => driver(call, error),
    }
}
