//! The way of a request, one line per stage, and the allocator's public face.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tonnage_device::{Device, DeviceError};
use tonnage_events::{
    Address, BlockEvent, DeviceId, Event, PoolId, SplitChange, StackId, StreamId,
};

use crate::block::{Block, BlockId, Blocks};
use crate::config::{Config, ConfigError};
use crate::error::{
    AllocError, CacheError, FractionError, FreeError, OutOfMemory, RecordStreamError,
};
use crate::history::{Caller, Context, History, RecordOptions};
use crate::ledger::Ledger;
use crate::parked::Parked;
use crate::pending::Pending;
use crate::policy::Policy;
use crate::pool::{PoolError, PoolRef, PoolSet, Pools, StreamFilter};
use crate::request::{ABSURD_SIZE, Request, kind_of, round};
use crate::segment::Ranges;
use crate::stats::Stats;

/// A caching allocator for one device.
///
/// A deterministic state machine: the same calls on the same device always give the same answers.
/// It asks the device for memory and keeps the books; it never touches the memory itself.
///
/// ```
/// use tonnage_device::Dry;
/// use tonnage_engine::{Config, Engine, StreamId};
///
/// let mut engine = Engine::new(Dry::new(8 << 30), Config::default());
/// let block = engine.allocate(1000, StreamId::DEFAULT)?;
/// assert_eq!(engine.stats().memory_allocated(), 1024);
/// assert_eq!(engine.stats().memory_reserved(), 2 << 20);
/// engine.free(&block)?;
/// engine.empty_cache()?;
/// assert_eq!(engine.stats().memory_reserved(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Engine<D> {
    pub(crate) device: D,
    pub(crate) config: Config,
    pub(crate) policy: Policy,
    /// Most bytes to obtain from the device.
    pub(crate) limit: Option<u64>,
    pub(crate) blocks: Blocks,
    pub(crate) pools: Pools,
    pub(crate) ranges: Ranges,
    pub(crate) pending: Pending,
    /// The block that was freed last, until something else happens.
    pub(crate) parked: Option<Parked>,
    /// Blocks in their owners' hands, by address; kept from the first time that someone names a block
    /// by its address alone.
    pub(crate) live: Option<FxHashMap<Address, BlockId>>,
    pub(crate) ledger: Ledger,
    /// Whether failures are looked into.
    pub(crate) explains: bool,
    callbacks: BTreeMap<String, FreeMemoryCallback<D>>,
    observers: Vec<OomObserver>,
}

/// Where a block for a request was found.
#[derive(Clone, Copy, Debug)]
enum Found {
    /// In the pool, where it still is.
    Cached(BlockId),
    /// At the device: it is in no set.
    New(BlockId),
}

/// Frees memory elsewhere when a pool has no block for a request, and says whether it did.
pub type FreeMemoryCallback<D> = Arc<dyn Fn(&mut Engine<D>) -> bool + Send + Sync>;

/// Is told of each failed request.
pub type OomObserver = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;

/// A block in its owner's hands.
///
/// Goes back with [`Engine::free`]. A copy that is freed twice is an error, even if the memory was
/// handed out again in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Where it begins.
    pub address: Address,
    /// Bytes that may be used.
    pub size: u64,
    /// Bytes that were asked for.
    pub requested: u64,
    /// The stream it was allocated on.
    pub stream: StreamId,
    /// The device it lies on.
    pub device: DeviceId,
    block: BlockId,
    /// Tells it from others that had the same block before or after.
    serial: u32,
}

impl<D: Device> Engine<D> {
    /// An empty allocator that follows PyTorch's placement rules.
    pub fn new(device: D, config: Config) -> Self {
        Self::with_policy(device, config, Policy::default())
    }

    /// An empty allocator with other placement rules.
    pub fn with_policy(device: D, config: Config, policy: Policy) -> Self {
        let fraction = config.per_process_memory_fraction();
        let stats = Stats::new(config.max_split_size_limit());
        let mut engine = Self {
            device,
            config,
            policy,
            limit: None,
            blocks: Blocks::default(),
            pools: Pools::default(),
            ranges: Ranges::default(),
            pending: Pending::default(),
            parked: None,
            live: None,
            ledger: Ledger::new(stats),
            explains: true,
            callbacks: BTreeMap::new(),
            observers: Vec::new(),
        };
        engine.limit = engine.limit_of(fraction);
        engine
    }

    /// Serves `bytes` on `stream` from the cheapest source that can.
    ///
    /// # Errors
    ///
    /// If nothing could serve it; see [`AllocError`]. The allocator is then as usable as before.
    #[track_caller]
    pub fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Allocation, AllocError> {
        let caller = Location::caller();
        if bytes == 0 {
            return Err(AllocError::ZeroBytes);
        }
        if bytes >= ABSURD_SIZE {
            return Err(AllocError::TooLarge(bytes));
        }
        let stack = self.ledger.stack(Context::State, caller);
        let result = self.allocate_with(bytes, stream, stack);
        self.debug_walk("allocate");
        result
    }

    fn allocate_with(
        &mut self,
        bytes: u64,
        stream: StreamId,
        stack: Option<StackId>,
    ) -> Result<Allocation, AllocError> {
        if !self.pools.diverting() {
            self.poll()?;
        }
        let request = self.plan(bytes, stream);
        if let Some(allocation) = self.hand_out_parked(&request, stack) {
            return Ok(allocation);
        }
        self.settle();
        if let Some(id) = self.find_cached(&request) {
            return Ok(self.hand_out(Found::Cached(id), &request, stack));
        }
        let (found, request) = self.acquire_or_reclaim(request, stack)?;
        Ok(self.hand_out(found, &request, stack))
    }

    /// Stages 1 and 2: what the pools will deal in, and which of them.
    fn plan(&self, bytes: u64, stream: StreamId) -> Request {
        let size = round(bytes, &self.config);
        let set = self.pools.select(stream, self.config.release().newest_diversion_wins());
        Request {
            bytes,
            size,
            stream,
            pool: PoolRef { set, kind: kind_of(size) },
            segment_size: self.policy.segment_size(&self.config, size),
            expandable: self.config.expandable_segments(),
        }
    }

    /// Stage 3: a free block of the request's pool and stream.
    fn find_cached(&mut self, request: &Request) -> Option<BlockId> {
        let collecting = self.collects_garbage();
        let pool = self.pools.half_mut(request.pool);
        if collecting {
            pool.count_search();
        }
        self.policy.choose(&self.config, pool, &self.blocks, request)
    }

    /// The ladder below the cache: each rung costs more than the one before.
    #[cold]
    fn acquire_or_reclaim(
        &mut self,
        request: Request,
        stack: Option<StackId>,
    ) -> Result<(Found, Request), AllocError> {
        let mut request = request;
        if !self.callbacks.is_empty() {
            let freed = self.run_callbacks();
            self.settle();
            // They may have changed pools and settings.
            request = self.plan(request.bytes, request.stream);
            if freed && let Some(id) = self.find_cached(&request) {
                return Ok((Found::Cached(id), request));
            }
        }
        if self.collects_garbage() {
            self.collect_garbage(stack)?;
        }
        if let Some(id) = self.grow(&request, stack)? {
            return Ok((Found::New(id), request));
        }
        let spare_first = self.config.release().use_on_oom_before_reclaim();
        if spare_first && let Some(found) = self.find_in_spare_pool(&request) {
            return Ok(found);
        }
        if self.release_oversize(&request, stack)?
            && let Some(id) = self.grow(&request, stack)?
        {
            return Ok((Found::New(id), request));
        }
        if !self.pools.diverting() {
            self.flush(stack)?;
            self.emit(&Event::Retry, None);
            if let Some(id) = self.grow(&request, stack)? {
                return Ok((Found::New(id), request));
            }
        }
        if !spare_first && let Some(found) = self.find_in_spare_pool(&request) {
            return Ok(found);
        }
        Err(self.out_of_memory(&request, stack))
    }

    /// Runs every callback, in the order of their names, and says whether any freed memory.
    fn run_callbacks(&mut self) -> bool {
        let callbacks: Vec<_> = self.callbacks.values().cloned().collect();
        let mut freed = false;
        for callback in callbacks {
            freed |= callback(self);
        }
        freed
    }

    /// A free block of a private pool that was set aside for this, rather than fail.
    fn find_in_spare_pool(&mut self, request: &Request) -> Option<(Found, Request)> {
        if request.pool.set != PoolSet::Default {
            return None;
        }
        self.pools.spare().into_iter().find_map(|key| {
            let pool = PoolRef { set: PoolSet::Private(key), kind: request.pool.kind };
            let request = Request { pool, expandable: false, ..*request };
            self.find_cached(&request).map(|id| (Found::Cached(id), request))
        })
    }

    /// Stage 4: cuts the block to size, puts the rest back, and hands it to its owner.
    fn hand_out(&mut self, found: Found, request: &Request, stack: Option<StackId>) -> Allocation {
        let (Found::Cached(whole) | Found::New(whole)) = found;
        let block = &self.blocks[whole];
        let was_split = block.is_split();
        let fixed = block.range.is_none();
        let old = (block.size, block.address);
        let cut = self.policy.splits(&self.config, block.size, block.pool.kind, request)
            && !self.pools.never_splits(request.pool.set);
        let mut split = SplitChange::default();
        let pool = self.pools.half_mut(request.pool);
        let id = if cut {
            let id = self.blocks.split_front(whole, request.size);
            match found {
                Found::Cached(rest) => pool.replace(old, rest, &mut self.blocks),
                Found::New(rest) => pool.put(rest, &mut self.blocks),
            }
            if fixed && was_split {
                split.bytes = -request.size.cast_signed();
            } else if fixed {
                split = SplitChange { count: 1, bytes: (old.0 - request.size).cast_signed() };
            }
            id
        } else {
            if let Found::Cached(id) = found {
                pool.take(&self.blocks[id]);
            }
            if fixed && was_split {
                split = SplitChange { count: -1, bytes: -old.0.cast_signed() };
            }
            whole
        };
        self.give_to_owner(id, request, split, stack)
    }

    /// Writes the request into the block that serves it.
    #[inline]
    pub(crate) fn give_to_owner(
        &mut self,
        id: BlockId,
        request: &Request,
        split: SplitChange,
        stack: Option<StackId>,
    ) -> Allocation {
        let block = &mut self.blocks[id];
        block.allocated = true;
        block.requested = request.bytes;
        block.stack = stack;
        block.serial = block.serial.wrapping_add(1);
        let allocation = Allocation {
            address: block.address,
            size: block.size,
            requested: block.requested,
            stream: block.stream,
            device: self.device.id(),
            block: id,
            serial: block.serial,
        };
        if let Some(live) = &mut self.live {
            live.insert(block.address, id);
        }
        let event = Event::Alloc(BlockEvent { split, ..self.block_event(id) });
        self.emit(&event, stack);
        allocation
    }

    /// Takes a block back from its owner. Memory that other streams may still use is reused only
    /// when they are done.
    ///
    /// # Errors
    ///
    /// If the block is not the owner's to free; nothing changes then. Or if the device fails; see
    /// [`FreeError::Device`].
    #[track_caller]
    pub fn free(&mut self, allocation: &Allocation) -> Result<(), FreeError> {
        let caller = Location::caller();
        let &Allocation { address, device, block, .. } = allocation;
        if device != self.device.id() {
            return Err(FreeError::WrongDevice { address, of: device, here: self.device.id() });
        }
        if !self.is_owned(allocation) {
            return Err(FreeError::DoubleFree(address));
        }
        self.free_live(address, block, caller)
    }

    /// Takes back the block that begins at `address`, as [`free`](Self::free) does.
    ///
    /// # Errors
    ///
    /// If no live block begins there, or if the device fails.
    #[track_caller]
    pub fn free_address(&mut self, address: Address) -> Result<(), FreeError> {
        let caller = Location::caller();
        let block = self.live_at(address).ok_or(FreeError::NotAllocated(address))?;
        self.free_live(address, block, caller)
    }

    fn free_live(
        &mut self,
        address: Address,
        id: BlockId,
        caller: Caller,
    ) -> Result<(), FreeError> {
        if let Some(live) = &mut self.live {
            live.remove(&address);
        }
        let result = self.give_back(id, caller);
        self.debug_walk("free");
        result.map_err(FreeError::Device)
    }

    /// Notes that `stream` uses the block too: when it is freed, its memory waits for what is queued
    /// there by then.
    ///
    /// # Errors
    ///
    /// If no live block begins at `address`.
    pub fn record_stream(
        &mut self,
        address: Address,
        stream: StreamId,
    ) -> Result<(), RecordStreamError> {
        let id = self.live_at(address).ok_or(RecordStreamError(address))?;
        self.record_use(id, stream);
        Ok(())
    }

    /// Notes that `stream` uses the block too, as [`record_stream`](Self::record_stream) does.
    ///
    /// # Errors
    ///
    /// If the block was freed.
    pub fn record_stream_of(
        &mut self,
        allocation: &Allocation,
        stream: StreamId,
    ) -> Result<(), RecordStreamError> {
        if !self.is_owned(allocation) {
            return Err(RecordStreamError(allocation.address));
        }
        self.record_use(allocation.block, stream);
        Ok(())
    }

    fn record_use(&mut self, id: BlockId, stream: StreamId) {
        let diverting = self.pools.diverting();
        let block = &mut self.blocks[id];
        if stream == block.stream {
            return;
        }
        let foreign = block.foreign_mut();
        if !foreign.streams.contains(&stream) {
            foreign.streams.push(stream);
        }
        if diverting && !foreign.while_diverted.contains(&stream) {
            foreign.while_diverted.push(stream);
        }
    }

    /// Whether the owner of the allocation still has its block.
    #[inline]
    fn is_owned(&self, allocation: &Allocation) -> bool {
        self.blocks.get(allocation.block).is_some_and(|block| {
            block.allocated
                && block.serial == allocation.serial
                && block.address == allocation.address
        })
    }

    /// The live block that begins at `address`.
    fn live_at(&mut self, address: Address) -> Option<BlockId> {
        let blocks = &self.blocks;
        let live = self.live.get_or_insert_with(|| {
            let live = blocks.iter().filter(|(_, block)| block.allocated);
            live.map(|(id, block)| (block.address, id)).collect()
        });
        live.get(&address).copied()
    }

    /// Gives back to the device all cached memory that is not part of a segment in use.
    ///
    /// # Errors
    ///
    /// If the device fails; what had been given back by then stays so.
    #[track_caller]
    pub fn empty_cache(&mut self) -> Result<(), CacheError> {
        self.empty_cache_of(PoolId::DEFAULT)
    }

    /// Gives back the memory of one private pool that is no longer used. For the default pool, the
    /// same as [`empty_cache`](Self::empty_cache). A pool that is still used, or unknown, is left
    /// alone.
    ///
    /// # Errors
    ///
    /// If requests are being diverted to a pool, so that events cannot be waited for, or if the
    /// device fails.
    #[track_caller]
    pub fn empty_cache_of(&mut self, pool: PoolId) -> Result<(), CacheError> {
        let stack = self.ledger.stack(Context::All, Location::caller());
        self.settle();
        let result = if pool.is_default() {
            self.flush(stack).map_err(CacheError::Device)
        } else {
            self.flush_pool(pool, stack)
        };
        self.debug_walk("empty_cache");
        result
    }

    /// Sends the requests that `filter` takes to a private pool, which is made if there is none.
    ///
    /// # Errors
    ///
    /// If requests already go there, or if the pool has no uses left.
    pub fn begin_allocate_to_pool(
        &mut self,
        pool: PoolId,
        filter: StreamFilter,
    ) -> Result<(), PoolError> {
        self.pools.begin(pool, filter)
    }

    /// Ends what [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) began. The pool keeps its
    /// use until [`release_pool`](Self::release_pool).
    ///
    /// # Errors
    ///
    /// If no requests go there.
    pub fn end_allocate_to_pool(&mut self, pool: PoolId) -> Result<(), PoolError> {
        self.pools.end(pool)
    }

    /// Makes a private pool with one use, or adds a use to it.
    ///
    /// # Errors
    ///
    /// If the pool has no uses left.
    pub fn create_or_use_pool(&mut self, pool: PoolId) -> Result<(), PoolError> {
        self.pools.add_use(pool)
    }

    /// Takes one use from a private pool. With none left, its memory goes back to the device the next
    /// time cached memory does.
    ///
    /// # Errors
    ///
    /// If there is no such pool or it has no uses.
    pub fn release_pool(&mut self, pool: PoolId) -> Result<(), PoolError> {
        self.pools.release(pool)
    }

    /// Uses of a private pool; 0 if it has none or does not exist.
    #[must_use]
    pub fn pool_use_count(&self, pool: PoolId) -> u64 {
        self.pools.uses(pool)
    }

    /// Lets a pool hand out whole free blocks only, never parts of them.
    ///
    /// # Errors
    ///
    /// If the release of PyTorch that is followed knows no such pools.
    pub fn set_pool_no_split(&mut self, pool: PoolId) -> Result<(), PoolError> {
        if !self.config.release().no_split_pools() {
            return Err(PoolError::NoSplitUnsupported);
        }
        self.settle();
        self.pools.set_no_split(pool);
        Ok(())
    }

    /// Lets the free blocks of a private pool serve other requests rather than fail them, or no
    /// longer.
    pub fn set_pool_use_on_oom(&mut self, pool: PoolId, on: bool) {
        self.pools.set_use_on_oom(pool, on);
    }

    /// Calls `callback` whenever a pool has no block for a request, before the device is asked. It may
    /// free blocks. Callbacks run in the order of their names; one of the same name is replaced.
    pub fn set_free_memory_callback(
        &mut self,
        name: impl Into<String>,
        callback: FreeMemoryCallback<D>,
    ) {
        self.callbacks.insert(name.into(), callback);
    }

    /// Whether a failed request is looked into: who holds the memory, what is cached and why it did not
    /// serve. That takes a walk over all blocks; whoever fails requests by the thousand, and reads no
    /// errors, switches it off.
    pub fn explain_failures(&mut self, on: bool) {
        self.explains = on;
    }

    /// Calls `observer` for each failed request, before the error is returned.
    pub fn add_oom_observer(&mut self, observer: OomObserver) {
        self.observers.push(observer);
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Reads a settings string at run time, as PyTorch does: some keys go back to their defaults
    /// first, others stay.
    ///
    /// # Errors
    ///
    /// If the string is wrong. Keys before the wrong one are in force then, as in PyTorch.
    pub fn configure(&mut self, settings: &str) -> Result<(), ConfigError> {
        self.settle();
        self.config.apply(settings)
    }

    /// Allows at most this share of the device's memory to be reserved; 1 removes the limit.
    ///
    /// # Errors
    ///
    /// If the fraction does not lie between 0 and 1.
    pub fn set_memory_fraction(&mut self, fraction: f64) -> Result<(), FractionError> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(FractionError(fraction));
        }
        self.set_limit(self.limit_of(fraction));
        Ok(())
    }

    /// The share of the device's memory that may be reserved; 1 without a limit.
    #[must_use]
    pub fn memory_fraction(&self) -> f64 {
        self.limit.map_or(1.0, |limit| limit as f64 / self.device.total() as f64)
    }

    /// Allows at most this many bytes to be reserved, or any number.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        // Under a limit, garbage may be collected.
        self.settle();
        self.limit = limit;
    }

    /// Most bytes that may be reserved.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    fn limit_of(&self, fraction: f64) -> Option<u64> {
        // A product of doubles, cut off: as PyTorch computes it.
        (fraction < 1.0).then(|| (fraction * self.device.total() as f64) as u64)
    }

    /// The figures.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.ledger.stats
    }

    /// `torch.cuda.memory_summary()` of this device.
    #[must_use]
    pub fn memory_summary(&self, abbreviated: bool) -> String {
        self.ledger.stats.memory_summary(self.device.id(), abbreviated)
    }

    /// Lets every peak begin again at the current value.
    pub fn reset_peak_stats(&mut self) {
        self.ledger.stats.reset_peak();
    }

    /// Lets every sum and count begin again at zero.
    pub fn reset_accumulated_stats(&mut self) {
        self.ledger.stats.reset_accumulated();
    }

    /// Begins to record history, or goes on with other options; with `None`, stops and forgets it.
    pub fn record_history(&mut self, options: Option<RecordOptions>) {
        if let (Some(history), Some(options)) = (&mut self.ledger.history, &options)
            && !options.clear_history
        {
            history.go_on(options.clone());
            return;
        }
        // Their stacks go with the history that knew them.
        self.blocks.forget_stacks();
        self.ledger.history = options.map(|options| Box::new(History::new(options)));
    }

    /// What was recorded, if history is on.
    #[must_use]
    pub fn history(&self) -> Option<&History> {
        self.ledger.history.as_deref()
    }

    /// The device behind.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device behind. Memory taken from it directly is unknown to the allocator.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Bytes of pages that went out of use but that the device failed to take back. They are not
    /// reserved, and serve again before new ones are obtained.
    #[must_use]
    pub fn stranded_bytes(&self) -> u64 {
        self.ranges.stranded_bytes()
    }

    /// Bytes obtained from the device.
    pub(crate) fn reserved(&self) -> u64 {
        self.ledger.stats.memory_reserved()
    }

    pub(crate) fn is_oversize(&self, size: u64) -> bool {
        size >= self.config.max_split_size()
    }

    #[inline(always)]
    pub(crate) fn emit(&mut self, event: &Event, stack: Option<StackId>) {
        self.ledger.emit(&mut self.device, event, stack);
    }

    pub(crate) fn block_event(&self, id: BlockId) -> BlockEvent {
        let block = &self.blocks[id];
        BlockEvent {
            address: block.address,
            size: block.size,
            requested: block.requested,
            stream: block.stream,
            kind: block.pool.kind,
            oversize: self.is_oversize(block.size),
            split: SplitChange::default(),
        }
    }

    pub(crate) fn observers(&self) -> Vec<OomObserver> {
        self.observers.clone()
    }

    /// Puts an idle block into its pool.
    pub(crate) fn put(&mut self, id: BlockId) {
        let pool = self.blocks[id].pool;
        self.pools.half_mut(pool).put(id, &mut self.blocks);
    }

    /// Takes an idle block out of its pool.
    pub(crate) fn take(&mut self, id: BlockId) {
        let block: &Block = &self.blocks[id];
        self.pools.half_mut(block.pool).take(block);
    }

    /// The neighbour, if `id` may absorb it: idle, and mapped or unmapped like it.
    #[inline]
    pub(crate) fn mergeable(&self, id: BlockId, neighbour: Option<BlockId>) -> Option<BlockId> {
        let other = &self.blocks[neighbour?];
        (other.is_idle() && other.mapped == self.blocks[id].mapped).then_some(neighbour?)
    }

    /// Lets `id`, which is in no set, absorb a neighbour, if it may.
    pub(crate) fn try_merge(&mut self, id: BlockId, neighbour: Option<BlockId>) {
        if let Some(neighbour) = self.mergeable(id, neighbour) {
            self.take(neighbour);
            self.blocks.absorb(id, neighbour);
        }
    }
}

impl<D: Device> Engine<D> {
    /// Asks the device how events stand, and takes back the blocks that nothing uses any more.
    fn poll(&mut self) -> Result<(), DeviceError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.settle_deferred()?;
        self.collect_complete()
    }
}

impl<D: fmt::Debug> fmt::Debug for Engine<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("device", &self.device)
            .field("config", &self.config)
            .field("limit", &self.limit)
            .field("stats", &self.ledger.stats)
            .finish_non_exhaustive()
    }
}
