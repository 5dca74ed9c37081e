//! Pinned host memory, from a cache of its own: what copies to and from a device read and write.
//!
//! In:  sizes; streams whose work uses a block.
//! Out: [`PinnedBlock`]s, bytes of the host that go back into the cache when dropped.
//!
//! Pinning costs a driver call that takes as long as touching every page, so memory is kept by
//! class: sizes are rounded up to powers of two, and a block serves any request of its class, last
//! in first out. On `cuda` it comes from the driver; `host` and `dry` have nothing to pin for, and
//! get ordinary memory under the same rules.
//!
//! *In use + pending + cached = reserved.* A dropped block is pending while work of a recorded
//! stream may use it: each of these becomes an event at the drop. Events are asked when the cache
//! has no block of a class, not at every allocation as in PyTorch: whoever finds a free block needs
//! neither the driver nor the engine's lock, and asking later never finds fewer.
//!
//! # Locks
//!
//! | lock | guards | held for |
//! | --- | --- | --- |
//! | a pool's `books` | cached and pending memory, figures | a few moves, never a device call |
//! | the engine's | the device | device calls |
//! | a block's `streams` | who uses it | a look |
//!
//! No two of them are held at once, so that no order can be wrong. Pending memory is out of the
//! books while its events are asked; another thread may then obtain more than it had to.

use std::alloc::{self, Layout};
use std::collections::BTreeMap;
use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use thiserror::Error;
use tonnage_device::{Device as _, DeviceError, EventId};
use tonnage_events::StreamId;

use crate::any_device::AnyDevice;
use crate::device::Device;
use crate::sync::{Mutex, lock};

/// Where ordinary memory begins: at a page, as what the driver gives does.
const PAGE: usize = 4096;

/// Pinned memory that could not be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PinnedError {
    /// No bytes were asked for.
    #[error("pinned memory has at least one byte")]
    Empty,
    /// No machine has so many bytes.
    #[error("{requested} bytes of pinned memory are more than there are addresses")]
    TooLarge {
        /// Bytes that were asked for.
        requested: u64,
    },
    /// No room at this moment: dropping blocks may help. What was cached has been given back.
    #[error(
        "no {rounded} bytes of pinned memory for {requested} (in use: {in_use}, pending: {pending})"
    )]
    OutOfMemory {
        /// Bytes that were asked for.
        requested: u64,
        /// The same, rounded up to its class.
        rounded: u64,
        /// Bytes of the blocks handed out.
        in_use: u64,
        /// Bytes of dropped blocks that a stream may still use.
        pending: u64,
    },
    /// The driver failed for a reason of its own.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A number of bytes over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Now.
    pub current: u64,
    /// The most it has been.
    pub peak: u64,
}

impl Level {
    fn rise(&mut self, by: u64) {
        self.current += by;
        self.peak = self.peak.max(self.current);
    }

    fn fall(&mut self, by: u64) {
        self.current -= by;
    }
}

/// Figures of pinned memory. Blocks count with their capacities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedStats {
    /// Blocks handed out, ever.
    pub allocations: u64,
    /// Those of them that the cache served.
    pub hits: u64,
    /// Bytes of the blocks handed out.
    pub in_use: Level,
    /// Bytes of dropped blocks that a stream may still use, when last asked.
    pub pending: u64,
    /// Bytes obtained and not given back: in use, pending or cached.
    pub reserved: Level,
}

impl PinnedStats {
    /// Bytes that wait for a request of their class.
    #[must_use]
    pub fn cached(&self) -> u64 {
        self.reserved.current - self.in_use.current - self.pending
    }
}

/// Gives out pinned host memory for one device, and keeps what comes back: a handle, like
/// [`Device`], that can be cloned and sent.
///
/// ```
/// # use tonnage_memory::Device;
/// let device = Device::host("64 MiB")?;
/// let pinned = device.pinned();
/// let mut staging = pinned.allocate(1_000)?;
/// staging.fill(7);
/// assert_eq!((staging.len(), staging.capacity()), (1_000, 1_024));
///
/// let block = device.allocate(1_000)?;
/// block.write(0, &staging)?;
/// drop(staging);
/// let mut result = pinned.allocate(600)?; // the same memory
/// block.read(0, &mut result)?;
/// assert!(result.iter().all(|byte| *byte == 7));
/// assert_eq!(pinned.stats().hits, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PinnedAllocator {
    device: Device,
}

impl PinnedAllocator {
    /// The allocator of a device. There is one: every handle to the device leads to the same.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone() }
    }

    /// The device it is for.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Allocates at least `bytes`, with any contents.
    ///
    /// A failure of work that dropped blocks wait for is not this request's: it is parked, for
    /// [`Device::synchronize`] or [`empty_cache`](Self::empty_cache) to report.
    ///
    /// # Errors
    ///
    /// If it cannot be served; see [`PinnedError`].
    pub fn allocate(&self, bytes: u64) -> Result<PinnedBlock, PinnedError> {
        let class = Class::of(bytes)?;
        let span = match self.take(class) {
            Some(hit) => hit,
            None => self.acquire_or_reclaim(class).map_err(|it| self.refusal(bytes, class, it))?,
        };
        let streams = Mutex::new(Vec::new());
        Ok(PinnedBlock { device: self.device.clone(), span, len: bytes as usize, streams })
    }

    /// The figures now.
    #[must_use]
    pub fn stats(&self) -> PinnedStats {
        lock(&self.pool().books).stats
    }

    /// Gives back all memory that no block and no recorded stream uses.
    ///
    /// # Errors
    ///
    /// If the device fails, or failed before where nobody could be told. What it did not take stays
    /// cached.
    pub fn empty_cache(&self) -> Result<(), DeviceError> {
        self.device.take_parked()?;
        let polled = self.poll();
        polled.and(self.release_cached())
    }

    fn pool(&self) -> &PinnedPool {
        &self.device.shared.pinned
    }

    /// Takes from the cache; if it has nothing, from what is pending no more.
    fn take(&self, class: Class) -> Option<Span> {
        let hit = lock(&self.pool().books).take(class);
        hit.or_else(|| {
            self.device.park_pinned(self.poll());
            lock(&self.pool().books).take(class)
        })
    }

    /// Obtains new memory, if need be in place of what is cached.
    fn acquire_or_reclaim(&self, class: Class) -> Result<Span, DeviceError> {
        let span = match self.acquire(class) {
            Err(DeviceError::OutOfMemory { .. }) => {
                self.device.park_pinned(self.release_cached());
                self.acquire(class)?
            }
            other => other?,
        };
        lock(&self.pool().books).add(class);
        Ok(span)
    }

    fn acquire(&self, class: Class) -> Result<Span, DeviceError> {
        let from_driver = match lock(&self.device.shared.engine).device_mut() {
            AnyDevice::Cuda(cuda) => Some(cuda.acquire_pinned(class.size())?),
            AnyDevice::Dry(_) | AnyDevice::Host(_) | AnyDevice::Other(_) => None,
        };
        match from_driver {
            Some(start) => Ok(Span { start, size: class.size(), source: Source::Driver }),
            None => Span::obtain(class),
        }
    }

    fn refusal(&self, requested: u64, class: Class, error: DeviceError) -> PinnedError {
        let DeviceError::OutOfMemory { .. } = error else { return error.into() };
        let (rounded, PinnedStats { in_use, pending, .. }) = (class.size() as u64, self.stats());
        PinnedError::OutOfMemory { requested, rounded, in_use: in_use.current, pending }
    }

    /// Asks how pending memory stands, and caches what nothing uses any more. What the device
    /// cannot tell of stays pending.
    fn poll(&self) -> Result<(), DeviceError> {
        let mut pending = mem::take(&mut lock(&self.pool().books).pending);
        if pending.is_empty() {
            return Ok(());
        }
        let mut failure = None;
        {
            let mut engine = lock(&self.device.shared.engine);
            for waiting in &mut pending {
                waiting.poll(engine.device_mut(), &mut failure);
            }
        }
        let mut books = lock(&self.pool().books);
        pending.into_iter().for_each(|waiting| books.sort(waiting));
        failure.map_or(Ok(()), Err)
    }

    /// Gives cached memory back; what the device does not take is cached again.
    fn release_cached(&self) -> Result<(), DeviceError> {
        let spans = lock(&self.pool().books).take_cached();
        let size = total(&spans);
        let (kept, released) = self.release(spans);
        let mut books = lock(&self.pool().books);
        books.stats.reserved.fall(size - total(&kept));
        kept.into_iter().for_each(|span| books.put(span));
        released
    }

    fn release(&self, spans: Vec<Span>) -> (Vec<Span>, Result<(), DeviceError>) {
        let (mut kept, mut failure) = (Vec::new(), None);
        if let AnyDevice::Cuda(cuda) = lock(&self.device.shared.engine).device_mut() {
            for span in spans {
                // SAFETY: it was cached, so its block is dropped, and of every stream that was
                // recorded for it the work up to then is done; being taken out, it is found no
                // more.
                if let Err(error) = unsafe { cuda.release_pinned(span.start) } {
                    failure.get_or_insert(error);
                    kept.push(span);
                }
            }
        }
        (kept, failure.map_or(Ok(()), Err))
    }
}

impl fmt::Debug for PinnedAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedAllocator({:?})", self.device)
    }
}

/// Pinned memory of the host, in its owner's hands: bytes, as in a boxed slice.
///
/// Dropped, it goes back into the cache; memory that streams were recorded for is reused only when
/// these are done.
///
/// # Work that uses it
///
/// Copies that are queued on a stream reach the memory through [`pointer`](Self::pointer), in
/// unsafe code that promises:
///
/// 1. The stream is [recorded](Self::record_stream) before the block is dropped, and is not
///    destroyed before that.
/// 2. Until the work is done, nobody writes to the block; if the work writes, nobody reads it
///    either.
pub struct PinnedBlock {
    device: Device,
    span: Span,
    len: usize,
    streams: Mutex<Vec<StreamId>>,
}

impl PinnedBlock {
    /// The bytes that were asked for.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY:
        // - Readable: the span is this block's alone, no shorter than `len`, and stays while the
        //   device does, to which the block has a handle.
        // - Initialised: zeroed when it was obtained, or the driver's, which is foreign memory.
        // - Not written meanwhile: the slice borrows the block; nor by work, by promise 2 of its
        //   author.
        unsafe { slice::from_raw_parts(self.span.start.as_ptr(), self.len) }
    }

    /// The bytes that were asked for, to be changed.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; the slice borrows the block exclusively, and by the same
        // promise no work touches it meanwhile.
        unsafe { slice::from_raw_parts_mut(self.span.start.as_ptr(), self.len) }
    }

    /// Where work finds the bytes. What it must promise to use them is under *Work that uses it*.
    #[must_use]
    pub fn pointer(&self) -> *mut [u8] {
        ptr::slice_from_raw_parts_mut(self.span.start.as_ptr(), self.len)
    }

    /// Bytes that it occupies: those asked for, rounded up to a power of two.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.span.size
    }

    /// The device it is for.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Notes that work on `stream` uses the block: once dropped, its memory waits for what is queued
    /// there by then. Of a stream that the device does not know it waits for the device's end.
    pub fn record_stream(&self, stream: StreamId) {
        let mut streams = lock(&self.streams);
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }
}

impl Deref for PinnedBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl DerefMut for PinnedBlock {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        let streams = mem::take(&mut *lock(&self.streams));
        self.device.give_back_pinned(mem::take(&mut self.span), streams);
    }
}

impl fmt::Debug for PinnedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, capacity) = (self.span.start, self.capacity());
        write!(
            f,
            "PinnedBlock({} of {capacity} bytes at {start:p} for {:?})",
            self.len, self.device
        )
    }
}

impl Device {
    /// Pinned host memory for this device.
    #[must_use]
    pub fn pinned(&self) -> PinnedAllocator {
        PinnedAllocator::new(self)
    }

    /// Caches a dropped block's memory, or lets it wait for the streams that use it.
    fn give_back_pinned(&self, span: Span, streams: Vec<StreamId>) {
        let mut waiting = Pending::new(span, streams);
        let recorded = if waiting.marks.is_empty() {
            Ok(())
        } else {
            waiting.record(lock(&self.shared.engine).device_mut())
        };
        lock(&self.shared.pinned.books).free(waiting);
        self.park_pinned(recorded);
    }

    fn park_pinned(&self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            lock(&self.shared.parked).get_or_insert(error);
        }
    }
}

/// The pinned memory of a device that is in nobody's hands. It belongs to what the device's handles
/// share, not to the allocator's: so it goes with the device, and a block can do without the
/// allocator.
#[derive(Default)]
pub(crate) struct PinnedPool {
    books: Mutex<Books>,
}

impl PinnedPool {
    /// The end, before the device's own: ordinary memory goes once nothing uses it. The driver's
    /// goes with the device, which waits for its work.
    pub(crate) fn close(&mut self, device: &mut AnyDevice) {
        if let AnyDevice::Cuda(_) = device {
            return;
        }
        let pending = mem::take(&mut lock(&self.books).pending);
        for mut waiting in pending {
            if waiting.wait(device) {
                drop(ManuallyDrop::into_inner(waiting.span));
            }
        }
    }
}

/// *Pending spans' sizes = `stats.pending`, except while some are asked; free ones' = cached.*
#[derive(Default)]
struct Books {
    /// By size, the last one put at the end.
    free: BTreeMap<usize, Vec<Span>>,
    pending: Vec<Pending>,
    stats: PinnedStats,
}

impl Books {
    fn take(&mut self, class: Class) -> Option<Span> {
        let span = self.free.get_mut(&class.size())?.pop()?;
        self.stats.hits += 1;
        self.hand_out(class);
        Some(span)
    }

    /// Counts a span that was obtained, and is handed out at once.
    fn add(&mut self, class: Class) {
        self.stats.reserved.rise(class.size() as u64);
        self.hand_out(class);
    }

    fn hand_out(&mut self, class: Class) {
        self.stats.allocations += 1;
        self.stats.in_use.rise(class.size() as u64);
    }

    fn put(&mut self, span: Span) {
        self.free.entry(span.size).or_default().push(span);
    }

    fn take_cached(&mut self) -> Vec<Span> {
        mem::take(&mut self.free).into_values().flatten().collect()
    }

    /// Takes a dropped block's memory.
    fn free(&mut self, waiting: Pending) {
        self.stats.in_use.fall(waiting.span.size());
        self.stats.pending += waiting.span.size();
        self.sort(waiting);
    }

    /// Caches what waits for nothing any more, and keeps the rest pending.
    fn sort(&mut self, waiting: Pending) {
        if waiting.marks.is_empty() {
            self.stats.pending -= waiting.span.size();
            self.put(ManuallyDrop::into_inner(waiting.span));
        } else {
            self.pending.push(waiting);
        }
    }
}

/// Memory that streams may still use. Lost on the way, by a panic or because nobody can wait, it
/// leaks rather than goes.
struct Pending {
    span: ManuallyDrop<Span>,
    /// What is not known to be done.
    marks: Vec<Mark>,
}

impl Pending {
    fn new(span: Span, streams: Vec<StreamId>) -> Self {
        let marks = streams.into_iter().map(Mark::Stream).collect();
        Self { span: ManuallyDrop::new(span), marks }
    }

    /// Marks the end of every stream's work. A stream that cannot be marked now is marked later,
    /// which is never too early.
    fn record(&mut self, device: &mut AnyDevice) -> Result<(), DeviceError> {
        let recorded = self.marks.iter_mut().map(|mark| mark.record(device).map(drop));
        recorded.fold(Ok(()), Result::and)
    }

    /// Strikes out the marks that are reached.
    fn poll(&mut self, device: &mut AnyDevice, failure: &mut Option<DeviceError>) {
        self.marks.retain_mut(|mark| match mark.is_reached(device) {
            Ok(reached) => !reached,
            Err(error) => {
                failure.get_or_insert(error);
                true
            }
        });
    }

    /// Waits for every mark; says whether that could be done.
    fn wait(&mut self, device: &mut AnyDevice) -> bool {
        self.marks.iter_mut().all(|mark| {
            // The first try may return an error of work that is done.
            mark.wait(device).or_else(|_| mark.wait(device)).is_ok()
        })
    }
}

/// The end of a stream's work at some moment.
enum Mark {
    /// Not recorded yet.
    Stream(StreamId),
    Event(EventId),
}

impl Mark {
    fn record(&mut self, device: &mut AnyDevice) -> Result<EventId, DeviceError> {
        let event = match *self {
            Self::Stream(stream) => device.record_event(stream)?,
            Self::Event(event) => event,
        };
        *self = Self::Event(event);
        Ok(event)
    }

    /// Whether the work is done; the event is forgotten then.
    fn is_reached(&mut self, device: &mut AnyDevice) -> Result<bool, DeviceError> {
        let event = self.record(device)?;
        let reached = device.query_event(event)?;
        if reached {
            device.destroy_event(event)?;
        }
        Ok(reached)
    }

    fn wait(&mut self, device: &mut AnyDevice) -> Result<(), DeviceError> {
        let event = self.record(device)?;
        device.wait_event(event)
    }
}

/// Sizes that share memory: a power of two, and how it is aligned.
#[derive(Clone, Copy)]
struct Class(Layout);

impl Class {
    fn of(bytes: u64) -> Result<Self, PinnedError> {
        if bytes == 0 {
            return Err(PinnedError::Empty);
        }
        let rounded = bytes.checked_next_power_of_two().and_then(|size| usize::try_from(size).ok());
        let layout = rounded.and_then(|size| Layout::from_size_align(size, PAGE).ok());
        layout.map(Self).ok_or(PinnedError::TooLarge { requested: bytes })
    }

    fn size(self) -> usize {
        self.0.size()
    }
}

#[derive(Clone, Copy)]
enum Source {
    /// Nobody's: there are no bytes.
    Nowhere,
    /// Ordinary memory: it goes with its span.
    System { allocated: NonNull<u8>, layout: Layout },
    /// The driver's: it goes when the device is asked, or with the device.
    Driver,
}

/// A piece of host memory, and its owner. The default one has no bytes.
struct Span {
    start: NonNull<u8>,
    size: usize,
    source: Source,
}

impl Span {
    /// Ordinary memory, from the beginning of a page on.
    ///
    /// Asked for with a page's alignment, zeroed memory would be written to its last byte at once, on
    /// a dry device too, where nobody ever touches it. So a page more is asked for, with no alignment
    /// to speak of.
    fn obtain(class: Class) -> Result<Self, DeviceError> {
        let (size, refused) =
            (class.size(), DeviceError::OutOfMemory { requested: class.size() as u64 });
        let with_page = size.checked_add(PAGE).and_then(|it| Layout::from_size_align(it, 1).ok());
        let Some(layout) = with_page else { return Err(refused) };
        // SAFETY: the layout has at least a page's bytes.
        let allocated = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or(refused)?;
        // SAFETY: the offset is less than a page, and the allocation a page larger than the class.
        let start = unsafe { allocated.add(allocated.align_offset(PAGE)) };
        Ok(Self { start, size, source: Source::System { allocated, layout } })
    }

    fn size(&self) -> u64 {
        self.size as u64
    }
}

impl Default for Span {
    fn default() -> Self {
        Self { start: NonNull::dangling(), size: 0, source: Source::Nowhere }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Source::System { allocated, layout } = self.source {
            // SAFETY:
            // - From `obtain`, with this layout: the source says so.
            // - Once: a span is neither copied nor taken apart.
            // - Used by nobody: its block is gone, and spans that work may use are `Pending`, which
            //   are not dropped.
            unsafe { alloc::dealloc(allocated.as_ptr(), layout) };
        }
    }
}

// SAFETY: `start` is memory that the span owns, as a box does: nothing about it belongs to a thread,
// the driver's included, which every context can reach. The other fields are plain values.
unsafe impl Send for Span {}

// SAFETY: a shared span gives its address and size only; what reads the bytes there borrows the
// block.
unsafe impl Sync for Span {}

fn total(spans: &[Span]) -> u64 {
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

    const _: () = {
        const fn anywhere<T: Send + Sync>() {}
        anywhere::<PinnedAllocator>();
        anywhere::<PinnedBlock>();
    };
}
