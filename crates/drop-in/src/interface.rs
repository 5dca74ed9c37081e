//! The functions, as one table: who loads this library asks for its address, and needs no symbol of it.

use std::ffi::{CStr, c_char, c_void};
use std::num::NonZeroUsize;
use std::sync::Arc;

use tonnage_engine::config::from_process_environment;
use tonnage_engine::{
    AllocError, Allocation, Capture, Config, Context, Engine, FreeError, PoolSource, PoolState,
    RecordOptions, Release, SourceFailed, StackDepth, Stat, StatArray, Stats, StreamFilter,
};
use tonnage_events::{Action, Address, PoolId, PoolKind, StackId, StreamId, TraceEntry};
use tonnage_memory::{AnyDevice, Policy};

use crate::devices::{self, DeviceTracker, Kind, Setup, Slot, device, if_opened, of_owner, opened};
use crate::failure::{self, Wrong, answer, answer_unlocked, other};
use crate::moment::{Owned, entry_of, flat};
use crate::pool_allocator::Errand;
use crate::types::{
    ContextLevel, Failure, Moment, Options, PoolName, Quantity, Status, TextFn, TrackerFn,
};
use crate::{forks, pool_allocator, sharing};

pub(crate) use crate::types::NO_STACK;

/// Declares the table: each function with its documentation, as a field, and the static that has them all.
macro_rules! interface {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $answer:ty;)*) => {
        /// Every function. All are safe to call from any thread; pointers must be valid for what they are described as.
        #[derive(Debug)]
        #[repr(C)]
        pub struct Interface {
            /// Changes whenever a field does.
            pub version: u64,
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($argument: $type),*) -> $answer,)*
        }

        /// The table.
        pub static INTERFACE: Interface = Interface { version: VERSION, $($name,)* };
    };
}

/// Of the table; `shim/tonnage.h` has the same.
const VERSION: u64 = 7;

interface! {
    /// Sets everything up, once in a process.
    fn open(options: Option<&Options>) -> Status;
    /// What the last call of this thread said that did not go well.
    fn failure() -> Failure;
    /// Serves a request from what is cached.
    fn allocate_cached(number: u32, bytes: u64, stream: u64, stack: u32, address: Option<&mut u64>) -> Status;
    /// Goes on with a request; `freed` if memory was freed in between.
    fn allocate_uncached(number: u32, bytes: u64, stream: u64, stack: u32, freed: u8, address: Option<&mut u64>) -> Status;
    /// Takes a block back. `first` is where it is looked for first; `number` and `bytes` are told of it, no bytes if it is taken back
    /// later.
    fn free(first: u32, address: u64, stack: u32, number: Option<&mut u32>, bytes: Option<&mut u64>) -> Status;
    /// Notes that a stream uses a block.
    fn record_stream(first: u32, address: u64, stream: u64) -> Status;
    /// Notes that a block is used on a stream whose owner keeps it only as long as blocks are: with the last of them the
    /// stream is left alone.
    fn hold_stream(number: u32, address: u64, stream: u64) -> Status;
    /// Gives cached memory of every device back; of a private pool perhaps later.
    fn empty_cache(pool: PoolName, stack: u32) -> Status;
    /// The figures of a device, all zero if nobody has asked it for memory yet: nine quantities, each of all, small and large blocks, then two of oversize blocks; and seven counts.
    fn stats(number: u32, quantities: Option<&mut [Quantity; 29]>, counts: Option<&mut [i64; 7]>) -> Status;
    /// Tells of the bytes that each private pool has reserved, also of pools that are gone: of all, small and large blocks.
    fn reserved_by_pools(
        number: u32,
        tell: unsafe extern "C" fn(*mut c_void, PoolName, &[Quantity; 3]),
        context: *mut c_void,
    ) -> Status;
    /// Lets peaks begin again.
    fn reset_peaks(number: u32) -> Status;
    /// Lets sums and counts begin again.
    fn reset_sums(number: u32) -> Status;
    /// Allows a share of the device.
    fn set_fraction(number: u32, fraction: f64) -> Status;
    /// The share that is allowed.
    fn fraction(number: u32, share: Option<&mut f64>) -> Status;
    /// Allows so many bytes; 0 for any number.
    fn set_limit(number: u32, bytes: u64) -> Status;
    /// The largest free block.
    fn largest_free(number: u32, bytes: Option<&mut u64>) -> Status;
    /// Tells of each expandable segment, in the order in which they were made: its stream, whether it is of small blocks, and the bytes
    /// of its pages.
    fn expandable_segments(number: u32, tell: unsafe extern "C" fn(*mut c_void, u64, u8, u64), context: *mut c_void) -> Status;
    /// The segment around a block in use, and whether it consists of pages.
    fn segment_of(first: u32, address: u64, begin: Option<&mut u64>, bytes: Option<&mut u64>, pages: Option<&mut u8>) -> Status;
    /// The device and the stream of a block in use.
    fn stream_of(first: u32, address: u64, number: Option<&mut u32>, stream: Option<&mut u64>) -> Status;
    /// The bytes of a block in use.
    fn size_of(first: u32, address: u64, bytes: Option<&mut u64>) -> Status;
    /// Lets another device reach the pages of a device, those there are and those to come.
    fn share_pages(number: u32, with: u32) -> Status;
    /// Takes back a block that was freed during a capture while other streams used it: the capture orders those uses before what comes
    /// next on the block's own stream. Nothing if there is no such block.
    fn finish_captured(number: u32, address: u64) -> Status;
    /// Records histories of every device, or no longer. Actions are skipped by their bits.
    fn record_history(on: u8, entries: u64, level: ContextLevel, clear: u8, skipped: u32) -> Status;
    /// The state of a device; the history notes that it was looked at.
    fn moment(number: u32, pool: PoolName, with_history: u8, moment: Option<&mut Moment>) -> Status;
    /// Takes a moment back.
    fn forget_moment(moment: Option<&mut Moment>) -> Status;
    /// Tells of each stack that is still named.
    fn stacks_in_use(number: u32, tell: unsafe extern "C" fn(*mut c_void, u32), context: *mut c_void) -> Status;
    /// Sends requests of the streams that a filter takes to a private pool. `forget` is called with the context when
    /// the filter is needed no more.
    fn begin_pool(
        number: u32,
        pool: PoolName,
        filter: unsafe extern "C" fn(*mut c_void, u64) -> u8,
        context: *mut c_void,
        forget: unsafe extern "C" fn(*mut c_void),
    ) -> Status;
    /// Ends that.
    fn end_pool(number: u32, pool: PoolName) -> Status;
    /// Makes a private pool, or adds a use to it.
    fn use_pool(number: u32, pool: PoolName) -> Status;
    /// The same of a pool whose segments come from functions of the caller's: one that gives so many bytes, or 0 if it has none, or the
    /// largest number if it failed, and one that takes them back. They are called while the allocator works: what they ask it for is
    /// refused, and what destructors ask for, of blocks and of pools, is done later. `forget` is called with the context when they are
    /// needed no more. A pool that is there already keeps what it has.
    fn use_pool_from(
        number: u32,
        pool: PoolName,
        acquire: unsafe extern "C" fn(*mut c_void, u64) -> u64,
        release: unsafe extern "C" fn(*mut c_void, u64),
        context: *mut c_void,
        forget: unsafe extern "C" fn(*mut c_void),
    ) -> Status;
    /// Takes a use from a private pool, perhaps later.
    fn release_pool(number: u32, pool: PoolName) -> Status;
    /// Its uses.
    fn pool_uses(number: u32, pool: PoolName, uses: Option<&mut u64>) -> Status;
    /// Lets it hand out whole blocks alone.
    fn set_no_split(number: u32, pool: PoolName) -> Status;
    /// Lets it serve others rather than fail them.
    fn set_use_on_oom(number: u32, pool: PoolName, on: u8) -> Status;
    /// Tells of the blocks of a pool that are in use.
    fn live_in_pool(number: u32, pool: PoolName, tell: unsafe extern "C" fn(*mut c_void, u64), context: *mut c_void) -> Status;
    /// The state of a private pool, to go back to.
    fn pool_state(number: u32, pool: PoolName, state: Option<&mut *mut c_void>) -> Status;
    /// Takes such a state back.
    fn forget_pool_state(state: *mut c_void) -> Status;
    /// Goes back to it: tells of the blocks that are free now, then of those that are in use.
    fn set_pool_state(
        number: u32,
        state: *const c_void,
        stack: u32,
        freed: unsafe extern "C" fn(*mut c_void, u64),
        in_use: unsafe extern "C" fn(*mut c_void, u64),
        context: *mut c_void,
    ) -> Status;
    /// Notes that a graph is captured, by threads for which the function says so.
    fn begin_capture(number: u32, concerns: unsafe extern "C" fn() -> u8) -> Status;
    /// Notes that it is no more.
    fn end_capture(number: u32) -> Status;
    /// Reads settings, for every device.
    fn configure(settings: *const c_char) -> Status;
    /// The settings in force: the text that was read last, then figures by name.
    fn settings(tell: TextFn, context: *mut c_void) -> Status;
    /// Tells of every change that a history shows; with null of none.
    fn track(tracker: Option<TrackerFn>, context: *mut c_void) -> Status;
    /// Gives up to so many cached bytes back, or all that a private pool caches; says how many.
    fn release(number: u32, pool: PoolName, bytes: u64, given: Option<&mut u64>) -> Status;
    /// Gives all memory back, or that of a private pool, and keeps addresses, with `keep` also contents.
    fn pause(number: u32, pool: PoolName, keep: u8, given: Option<&mut u64>) -> Status;
    /// Obtains it again: for the default pool's name all of it.
    fn resume(number: u32, pool: PoolName) -> Status;
}

/// Where the table is, for those who load this library.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_interface() -> &'static Interface {
    &INTERFACE
}

/// A text of the caller's, or none.
///
/// # Safety
///
/// It is null, or ends with a zero and stays for as long as the answer is used.
unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, Wrong> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| other("a text is not UTF-8"))
}

/// Answers where the caller wants to have it.
fn put<T>(place: Option<&mut T>, value: T) {
    if let Some(place) = place {
        *place = value;
    }
}

fn pool_id(pool: PoolName) -> PoolId {
    PoolId(pool.first, pool.second)
}

fn stack_id(stack: u32) -> Option<StackId> {
    (stack != NO_STACK).then(|| StackId::new(stack)).flatten()
}

/// Does something of which the caller's stack is to be told. Afterwards no call has it: its number may soon be another's.
#[inline]
fn told<R>(
    engine: &mut Engine<AnyDevice>,
    stack: u32,
    work: impl FnOnce(&mut Engine<AnyDevice>) -> R,
) -> R {
    if stack == NO_STACK {
        return work(engine);
    }
    engine.set_stack(stack_id(stack));
    let done = work(engine);
    engine.set_stack(None);
    done
}

/// A pointer that the framework vouches for on every thread.
struct Shared(*mut c_void);

// SAFETY: what it points to is the framework's, which calls and lets itself be called from any thread: the contract of the
// interface.
unsafe impl Send for Shared {}

// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

unsafe extern "C" fn open(options: Option<&Options>) -> Status {
    answer(|| {
        let options = options.ok_or_else(|| other("no options"))?;
        // SAFETY: a text of the options, which stays during the call.
        let kind = unsafe { text(options.device) }?;
        // SAFETY: as above.
        let policy = unsafe { text(options.policy) }?;
        // SAFETY: as above.
        let settings = unsafe { text(options.settings) }?;
        // SAFETY: as above.
        let release = unsafe { text(options.release) }?;
        let release: Release = release.unwrap_or_default().parse().map_err(other)?;
        let config = match settings {
            Some(settings) => Config::parse(settings, release),
            None => from_process_environment(release),
        };
        let kind = match kind {
            Some("cuda") => Kind::Cuda,
            Some("host") => Kind::Host(options.capacity),
            Some("dry") => Kind::Dry(options.capacity),
            _ => return Err(other("the device is `cuda`, `host` or `dry`")),
        };
        devices::open(Setup {
            kind,
            devices: options.devices,
            policy: policy.map(Policy::from_conf).transpose().map_err(other)?,
            config: config.map_err(other)?,
            limit: Some(options.limit).filter(|&limit| limit > 0),
            publish: options.publish != 0,
        })
    })
}

unsafe extern "C" fn failure() -> Failure {
    failure::last()
}

fn explained(slot: &Slot, error: AllocError) -> Wrong {
    slot.device().explain_failure(error).into()
}

unsafe extern "C" fn allocate_cached(
    number: u32,
    bytes: u64,
    stream: u64,
    stack: u32,
    address: Option<&mut u64>,
) -> Status {
    answer(|| {
        let (slot, stream) = (device(number)?, StreamId(stream));
        let served = slot.on(stream, |engine| {
            told(engine, stack, |engine| engine.allocate_cached(bytes, stream))
        });
        match served.map_err(|error| explained(slot, error))? {
            Some(allocation) => {
                put(address, allocation.address.0);
                Ok(())
            }
            None => Err(Wrong::NotCached),
        }
    })
}

unsafe extern "C" fn allocate_uncached(
    number: u32,
    bytes: u64,
    stream: u64,
    stack: u32,
    freed: u8,
    address: Option<&mut u64>,
) -> Status {
    answer(|| {
        let (slot, stream) = (device(number)?, StreamId(stream));
        let served: Result<Allocation, AllocError> = slot.on(stream, |engine| {
            told(engine, stack, |engine| engine.allocate_uncached(bytes, stream, freed != 0))
        });
        let allocation = served.map_err(|error| explained(slot, error))?;
        put(address, allocation.address.0);
        Ok(())
    })
}

unsafe extern "C" fn free(
    first: u32,
    address: u64,
    stack: u32,
    number: Option<&mut u32>,
    bytes: Option<&mut u64>,
) -> Status {
    if put_off(Errand::Free(first, address)) {
        put(number, first);
        put(bytes, 0);
        return Status::Ok;
    }
    answer(|| {
        let (on, size) = take_back(first, Address(address), stack)?;
        put(number, on);
        put(bytes, size);
        Ok(())
    })
}

/// Takes a block back, and says of which device it was, and of how many bytes.
#[inline]
fn take_back(first: u32, address: Address, stack: u32) -> Result<(u32, u64), Wrong> {
    let freed = of_owner(address, first, |number, slot, engine| {
        let size = engine.size_at(address)?;
        let freed = told(engine, stack, |engine| engine.free_address(address));
        slot.let_go(engine, address);
        match freed {
            Err(FreeError::NotAllocated(_)) => None,
            // It is freed all the same, and the device tells its next caller what is wrong with it: this one may be a destructor.
            Ok(()) | Err(FreeError::Device(_)) => Some(Ok((number, size))),
            Err(error) => Some(Err(error)),
        }
    })?;
    freed.map_err(other)
}

/// Whether what a destructor asks for is not done now: in a fork, whose memory is its parent's, nothing is, and while an allocator of the
/// program's own works it is left for later.
#[inline]
fn put_off(errand: Errand) -> bool {
    if forks::is_orphan() {
        return true;
    }
    let at_work = pool_allocator::is_at_work();
    if at_work {
        pool_allocator::leave(errand);
    }
    at_work
}

/// Does what was left to do while an allocator of the program's own worked. There is nobody to tell of a failure any more: whoever asked
/// for it has gone on.
#[cold]
pub(crate) fn run_errands() {
    for errand in pool_allocator::take_left() {
        let _ = match errand {
            Errand::Free(first, address) => take_back(first, Address(address), NO_STACK).map(drop),
            Errand::NoUseOnOom(number, pool) => use_on_oom(number, pool, false),
            Errand::Release(number, pool) => release_use(number, pool),
            Errand::Empty(pool) => empty(pool, NO_STACK),
        };
    }
}

unsafe extern "C" fn record_stream(first: u32, address: u64, stream: u64) -> Status {
    answer(|| {
        let (address, stream) = (Address(address), StreamId(stream));
        let number =
            of_owner(address, first, |number, _, engine| engine.size_at(address).map(|_| number))?;
        device(number)?.on(stream, |engine| engine.record_stream(address, stream)).map_err(other)
    })
}

unsafe extern "C" fn hold_stream(number: u32, address: u64, stream: u64) -> Status {
    answer(|| {
        device(number)?.hold(Address(address), StreamId(stream));
        Ok(())
    })
}

unsafe extern "C" fn empty_cache(pool: PoolName, stack: u32) -> Status {
    let pool = pool_id(pool);
    // No destructor asks for the default pool's.
    if !pool.is_default() && put_off(Errand::Empty(pool)) {
        return Status::Ok;
    }
    answer(|| empty(pool, stack))
}

fn empty(pool: PoolId, stack: u32) -> Result<(), Wrong> {
    opened().try_for_each(|(_, slot)| {
        slot.with(|engine| told(engine, stack, |engine| engine.empty_cache_of(pool))).map_err(other)
    })
}

fn quantity(stat: Stat) -> Quantity {
    let Stat { current, peak, allocated, freed } = stat;
    Quantity { current, peak, allocated, freed }
}

unsafe extern "C" fn stats(
    number: u32,
    quantities: Option<&mut [Quantity; 29]>,
    counts: Option<&mut [i64; 7]>,
) -> Status {
    answer(|| {
        let stats = match if_opened(number)? {
            Some(slot) => slot.with(|engine| engine.stats().clone()),
            None => Stats::of_no_use(&devices::config()?),
        };
        let it = &stats;
        let arrays: [StatArray; 9] = [
            it.allocation,
            it.segment,
            it.active,
            it.inactive_split,
            it.allocated_bytes,
            it.reserved_bytes,
            it.active_bytes,
            it.inactive_split_bytes,
            it.requested_bytes,
        ];
        let oversize = [it.oversize_allocations, it.oversize_segments];
        let numbers = [
            it.num_alloc_retries,
            it.num_ooms,
            it.num_sync_all_streams,
            it.num_device_alloc,
            it.num_device_free,
            it.max_split_size,
            it.num_oom_rejections,
        ];
        let all = arrays.iter().flat_map(|it| [it.all, it.small_pool, it.large_pool]);
        if let Some(places) = quantities {
            for (place, stat) in places.iter_mut().zip(all.chain(oversize)) {
                *place = quantity(stat);
            }
        }
        put(counts, numbers);
        Ok(())
    })
}

unsafe extern "C" fn reserved_by_pools(
    number: u32,
    tell: unsafe extern "C" fn(*mut c_void, PoolName, &[Quantity; 3]),
    context: *mut c_void,
) -> Status {
    answer(|| {
        let Some(slot) = if_opened(number)? else { return Ok(()) };
        let pools = slot.with(|engine| engine.stats().reserved_bytes_by_private_pools.clone());
        for (PoolId(first, second), of_pool) in pools {
            let quantities = [of_pool.all, of_pool.small_pool, of_pool.large_pool].map(quantity);
            // SAFETY: the caller's function with its own context, as often as it takes.
            unsafe { tell(context, PoolName { first, second }, &quantities) };
        }
        Ok(())
    })
}

unsafe extern "C" fn reset_peaks(number: u32) -> Status {
    answer(|| {
        if let Some(slot) = if_opened(number)? {
            slot.with(|engine| engine.reset_peak_stats());
        }
        Ok(())
    })
}

unsafe extern "C" fn reset_sums(number: u32) -> Status {
    answer(|| {
        if let Some(slot) = if_opened(number)? {
            slot.with(|engine| engine.reset_accumulated_stats());
        }
        Ok(())
    })
}

unsafe extern "C" fn set_fraction(number: u32, fraction: f64) -> Status {
    answer(|| device(number)?.set_fraction(fraction).map_err(other))
}

unsafe extern "C" fn fraction(number: u32, share: Option<&mut f64>) -> Status {
    answer(|| {
        let is = devices::fraction(number)?;
        put(share, is);
        Ok(())
    })
}

unsafe extern "C" fn set_limit(number: u32, bytes: u64) -> Status {
    answer(|| {
        device(number)?.set_limit(Some(bytes).filter(|&bytes| bytes > 0));
        Ok(())
    })
}

unsafe extern "C" fn largest_free(number: u32, bytes: Option<&mut u64>) -> Status {
    answer(|| {
        let slot = if_opened(number)?;
        put(bytes, slot.map_or(0, |slot| slot.with(|engine| engine.largest_free())));
        Ok(())
    })
}

unsafe extern "C" fn expandable_segments(
    number: u32,
    tell: unsafe extern "C" fn(*mut c_void, u64, u8, u64),
    context: *mut c_void,
) -> Status {
    answer(|| {
        let Some(slot) = if_opened(number)? else { return Ok(()) };
        for (stream, kind, bytes) in slot.with(|engine| engine.expandable_segments()) {
            let small = u8::from(kind == PoolKind::Small);
            // SAFETY: the caller's function with its own context, as often as it takes.
            unsafe { tell(context, stream.0, small, bytes) };
        }
        Ok(())
    })
}

unsafe extern "C" fn segment_of(
    first: u32,
    address: u64,
    begin: Option<&mut u64>,
    bytes: Option<&mut u64>,
    pages: Option<&mut u8>,
) -> Status {
    answer(|| {
        let address = Address(address);
        let segment = of_owner(address, first, |_, _, engine| engine.segment_of(address))?;
        put(begin, segment.address.0);
        put(bytes, segment.size);
        put(pages, u8::from(segment.pages));
        Ok(())
    })
}

unsafe extern "C" fn stream_of(
    first: u32,
    address: u64,
    number: Option<&mut u32>,
    stream: Option<&mut u64>,
) -> Status {
    answer(|| {
        let address = Address(address);
        let (on, of) =
            of_owner(address, first, |on, _, engine| Some((on, engine.stream_at(address)?)))?;
        put(number, on);
        put(stream, of.0);
        Ok(())
    })
}

unsafe extern "C" fn size_of(first: u32, address: u64, bytes: Option<&mut u64>) -> Status {
    answer(|| {
        let size =
            of_owner(Address(address), first, |_, _, engine| engine.size_at(Address(address)))?;
        put(bytes, size);
        Ok(())
    })
}

unsafe extern "C" fn share_pages(number: u32, with: u32) -> Status {
    answer(|| devices::share_pages(number, with))
}

unsafe extern "C" fn finish_captured(number: u32, address: u64) -> Status {
    answer(|| {
        device(number)?.with(|engine| engine.finish_captured(Address(address)));
        Ok(())
    })
}

unsafe extern "C" fn record_history(
    on: u8,
    entries: u64,
    level: ContextLevel,
    clear: u8,
    skipped: u32,
) -> Status {
    answer(|| {
        let context = match level {
            0 => Context::Never,
            1 => Context::State,
            2 => Context::Alloc,
            3 => Context::All,
            _ => return Err(other(format!("there is no level {level} of stacks"))),
        };
        // PyTorch keeps one entry at least.
        let most = usize::try_from(entries).unwrap_or(usize::MAX).max(1);
        let options = RecordOptions {
            max_entries: NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN),
            context,
            stacks: StackDepth::Foreign,
            skip_actions: Action::ALL
                .into_iter()
                .filter(|&it| skipped & (1 << it as u32) != 0)
                .collect(),
            clear_history: clear != 0,
            ..RecordOptions::default()
        };
        devices::record_history((on != 0).then_some(options))
    })
}

unsafe extern "C" fn moment(
    number: u32,
    pool: PoolName,
    with_history: u8,
    moment: Option<&mut Moment>,
) -> Status {
    answer(|| {
        let with_history = with_history != 0;
        let pool = pool_id(pool);
        let both = if_opened(number)?.map(|slot| {
            slot.with(|engine| (engine.snapshot_of(pool, with_history), engine.segment_numbers()))
        });
        let (snapshot, numbers) = both.unwrap_or_default();
        let flat = flat(&snapshot, &numbers, with_history);
        if let Some(place) = moment {
            *place = flat.give();
        }
        Ok(())
    })
}

unsafe extern "C" fn forget_moment(moment: Option<&mut Moment>) -> Status {
    answer_unlocked(|| {
        if let Some(moment) = moment
            && !moment.owner.is_null()
        {
            // SAFETY: it was given by `Owned::give`, and is taken back once: it is null then.
            drop(unsafe { Box::from_raw(moment.owner.cast::<Owned>()) });
            moment.owner = std::ptr::null_mut();
        }
        Ok(())
    })
}

unsafe extern "C" fn stacks_in_use(
    number: u32,
    tell: unsafe extern "C" fn(*mut c_void, u32),
    context: *mut c_void,
) -> Status {
    answer(|| {
        let Some(slot) = if_opened(number)? else { return Ok(()) };
        for stack in slot.with(|engine| engine.stacks_in_use()) {
            // SAFETY: the caller's function with its own context, as often as it takes.
            unsafe { tell(context, stack.number()) };
        }
        Ok(())
    })
}

/// A filter of the framework's, until it is dropped.
struct Filter {
    takes: unsafe extern "C" fn(*mut c_void, u64) -> u8,
    context: Shared,
    forget: unsafe extern "C" fn(*mut c_void),
}

impl Drop for Filter {
    fn drop(&mut self) {
        // SAFETY: the caller's function with its own context, once.
        unsafe { (self.forget)(self.context.get()) };
    }
}

unsafe extern "C" fn begin_pool(
    number: u32,
    pool: PoolName,
    filter: unsafe extern "C" fn(*mut c_void, u64) -> u8,
    context: *mut c_void,
    forget: unsafe extern "C" fn(*mut c_void),
) -> Status {
    let filter = Filter { takes: filter, context: Shared(context), forget };
    answer(|| {
        let takes = move |stream: StreamId| {
            // SAFETY: the caller's function with its own context, which it keeps until it is forgotten.
            unsafe { (filter.takes)(filter.context.get(), stream.0) != 0 }
        };
        let filter = StreamFilter::When(Arc::new(takes));
        let begun =
            device(number)?.with(|engine| engine.begin_allocate_to_pool(pool_id(pool), filter));
        begun.map_err(other)
    })
}

unsafe extern "C" fn end_pool(number: u32, pool: PoolName) -> Status {
    answer(|| {
        device(number)?.with(|engine| engine.end_allocate_to_pool(pool_id(pool))).map_err(other)
    })
}

unsafe extern "C" fn use_pool(number: u32, pool: PoolName) -> Status {
    answer(|| {
        device(number)?.with(|engine| engine.create_or_use_pool(pool_id(pool))).map_err(other)
    })
}

/// What a function that gives memory answers where it did not come to an answer.
const FAILED: u64 = u64::MAX;

/// Functions of the framework's, until they are dropped.
struct Source {
    acquire: unsafe extern "C" fn(*mut c_void, u64) -> u64,
    release: unsafe extern "C" fn(*mut c_void, u64),
    context: Shared,
    forget: unsafe extern "C" fn(*mut c_void),
}

impl Drop for Source {
    fn drop(&mut self) {
        // An allocator of the program's own may go with it, while the engine works.
        // SAFETY: the caller's function with its own context, once.
        pool_allocator::ask(|| unsafe { (self.forget)(self.context.get()) });
    }
}

unsafe extern "C" fn use_pool_from(
    number: u32,
    pool: PoolName,
    acquire: unsafe extern "C" fn(*mut c_void, u64) -> u64,
    release: unsafe extern "C" fn(*mut c_void, u64),
    context: *mut c_void,
    forget: unsafe extern "C" fn(*mut c_void),
) -> Status {
    let source = Arc::new(Source { acquire, release, context: Shared(context), forget });
    answer(|| {
        let taker = Arc::clone(&source);
        let source = PoolSource {
            acquire: Arc::new(move |bytes| {
                // SAFETY: the caller's function with its own context, which it keeps until it is forgotten.
                let ask = || unsafe { (source.acquire)(source.context.get(), bytes) };
                match pool_allocator::ask(ask) {
                    0 => Ok(None),
                    FAILED => Err(SourceFailed),
                    address => Ok(Some(Address(address))),
                }
            }),
            release: Arc::new(move |address| {
                // SAFETY: as above.
                pool_allocator::ask(|| unsafe { (taker.release)(taker.context.get(), address.0) });
            }),
        };
        device(number)?
            .with(|engine| engine.create_or_use_pool_from(pool_id(pool), source))
            .map_err(other)
    })
}

unsafe extern "C" fn release_pool(number: u32, pool: PoolName) -> Status {
    let pool = pool_id(pool);
    if put_off(Errand::Release(number, pool)) {
        return Status::Ok;
    }
    answer(|| release_use(number, pool))
}

fn release_use(number: u32, pool: PoolId) -> Result<(), Wrong> {
    device(number)?.with(|engine| engine.release_pool(pool)).map_err(other)
}

unsafe extern "C" fn pool_uses(number: u32, pool: PoolName, uses: Option<&mut u64>) -> Status {
    answer(|| {
        let slot = if_opened(number)?;
        let uses_of = |slot: &Slot| slot.with(|engine| engine.pool_use_count(pool_id(pool)));
        put(uses, slot.map_or(0, uses_of));
        Ok(())
    })
}

unsafe extern "C" fn set_no_split(number: u32, pool: PoolName) -> Status {
    answer(|| device(number)?.with(|engine| engine.set_pool_no_split(pool_id(pool))).map_err(other))
}

unsafe extern "C" fn set_use_on_oom(number: u32, pool: PoolName, on: u8) -> Status {
    let pool = pool_id(pool);
    if on == 0 && put_off(Errand::NoUseOnOom(number, pool)) {
        return Status::Ok;
    }
    answer(|| use_on_oom(number, pool, on != 0))
}

fn use_on_oom(number: u32, pool: PoolId, on: bool) -> Result<(), Wrong> {
    device(number)?.with(|engine| engine.set_pool_use_on_oom(pool, on));
    Ok(())
}

unsafe extern "C" fn live_in_pool(
    number: u32,
    pool: PoolName,
    tell: unsafe extern "C" fn(*mut c_void, u64),
    context: *mut c_void,
) -> Status {
    answer(|| {
        let Some(slot) = if_opened(number)? else { return Ok(()) };
        for address in slot.with(|engine| engine.live_in_pool(pool_id(pool))) {
            // SAFETY: the caller's function with its own context, as often as it takes.
            unsafe { tell(context, address.0) };
        }
        Ok(())
    })
}

unsafe extern "C" fn pool_state(
    number: u32,
    pool: PoolName,
    state: Option<&mut *mut c_void>,
) -> Status {
    answer(|| {
        let is = device(number)?.with(|engine| engine.pool_state(pool_id(pool)));
        if let Some(place) = state {
            *place = Box::into_raw(Box::new(is)).cast();
        }
        Ok(())
    })
}

unsafe extern "C" fn forget_pool_state(state: *mut c_void) -> Status {
    answer_unlocked(|| {
        if !state.is_null() {
            // SAFETY: it was given by `pool_state`; the caller gives it back once.
            drop(unsafe { Box::from_raw(state.cast::<PoolState>()) });
        }
        Ok(())
    })
}

unsafe extern "C" fn set_pool_state(
    number: u32,
    state: *const c_void,
    stack: u32,
    freed: unsafe extern "C" fn(*mut c_void, u64),
    in_use: unsafe extern "C" fn(*mut c_void, u64),
    context: *mut c_void,
) -> Status {
    answer(|| {
        // SAFETY: it was given by `pool_state`, and not taken back yet.
        let state = unsafe { state.cast::<PoolState>().as_ref() };
        let state = state.ok_or_else(|| other("no state to go back to"))?;
        let change = device(number)?
            .with(|engine| told(engine, stack, |engine| engine.set_pool_state(state)));
        let change = change.map_err(other)?;
        for address in change.freed {
            // SAFETY: the caller's function with its own context, as often as it takes.
            unsafe { freed(context, address.0) };
        }
        for allocation in change.handed_out {
            // SAFETY: as above.
            unsafe { in_use(context, allocation.address.0) };
        }
        Ok(())
    })
}

unsafe extern "C" fn begin_capture(number: u32, concerns: unsafe extern "C" fn() -> u8) -> Status {
    answer(|| {
        // SAFETY: the caller's function, for as long as the process lives.
        let when = move || unsafe { concerns() != 0 };
        device(number)?.with(|engine| engine.begin_capture(Capture::When(Arc::new(when))));
        Ok(())
    })
}

unsafe extern "C" fn end_capture(number: u32) -> Status {
    answer(|| device(number)?.with(|engine| engine.end_capture()).map_err(other))
}

unsafe extern "C" fn configure(settings: *const c_char) -> Status {
    answer(|| {
        // SAFETY: the caller's text, during the call.
        let settings = unsafe { text(settings)? }.unwrap_or_default();
        devices::configure(settings)
    })
}

unsafe extern "C" fn settings(tell: TextFn, context: *mut c_void) -> Status {
    answer(|| {
        let config = devices::config()?;
        let divisions = config.roundup_power2_divisions().iter().map(u64::to_string);
        let lines = [
            config.last_settings().to_owned(),
            config.garbage_collection_threshold().to_string(),
            config.max_split_size().to_string(),
            u8::from(config.expandable_segments()).to_string(),
            u8::from(config.release_lock_on_cudamalloc()).to_string(),
            u8::from(config.pinned_use_cuda_host_register()).to_string(),
            config.pinned_num_register_threads().to_string(),
            u8::from(config.graph_capture_record_stream_reuse()).to_string(),
            divisions.collect::<Vec<_>>().join(","),
        ];
        for line in lines {
            // SAFETY: the caller's function with its own context; it copies what it is given.
            unsafe { tell(context, line.as_ptr().cast(), line.len()) };
        }
        Ok(())
    })
}

unsafe extern "C" fn track(tracker: Option<TrackerFn>, context: *mut c_void) -> Status {
    answer(|| {
        let context = Shared(context);
        let tracker = tracker.map(|tracker| {
            let tell = move |number: u32, entry: &TraceEntry, pool: PoolId| {
                // SAFETY: the caller's function with its own context, for as long as the process lives.
                unsafe { tracker(context.get(), number, &entry_of(entry, pool)) };
            };
            Arc::new(tell) as DeviceTracker
        });
        devices::track(tracker)
    })
}

/// A private pool; none for the default one's name, which stands for the device.
fn private(pool: PoolName) -> Option<PoolId> {
    Some(pool_id(pool)).filter(|pool| !pool.is_default())
}

unsafe extern "C" fn release(
    number: u32,
    pool: PoolName,
    bytes: u64,
    given: Option<&mut u64>,
) -> Status {
    answer(|| {
        let gone = sharing::released(number, private(pool), bytes)?;
        put(given, gone);
        Ok(())
    })
}

unsafe extern "C" fn pause(
    number: u32,
    pool: PoolName,
    keep: u8,
    given: Option<&mut u64>,
) -> Status {
    answer(|| {
        let gone = sharing::paused(number, private(pool), keep != 0)?;
        put(given, gone);
        Ok(())
    })
}

unsafe extern "C" fn resume(number: u32, pool: PoolName) -> Status {
    answer(|| Ok(sharing::resumed(number, private(pool))?))
}
