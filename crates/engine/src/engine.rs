//! The allocator as its callers see it: what can be asked of it, and what it is made of.
//!
//! Each call refuses what cannot be, goes its way (`allocate.rs`, `give_back.rs`, `reclaim.rs`), and is followed by the
//! walk in debug builds. Private pools have a face of their own (`private_pools.rs`).

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tonnage_device::Device;
use tonnage_events::{Address, PoolId, StreamId};

use crate::block::{BlockId, Blocks};
use crate::capture::Captures;
use crate::config::{Config, ConfigError};
use crate::error::{
    AllocError, CacheError, FractionError, FreeError, OutOfMemory, RecordStreamError,
};
use crate::history::{Context, History, RecordOptions, StackDepth};
use crate::last_freed::LastFreed;
use crate::ledger::Ledger;
use crate::owner::Allocation;
use crate::pages::PageStore;
use crate::pause::Paused;
use crate::pending::Pending;
use crate::policy::Policy;
use crate::pool::Pools;
use crate::request::ABSURD_SIZE;
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
    /// Pages that move, under policies that move them.
    pub(crate) store: PageStore,
    pub(crate) captures: Captures,
    /// The classes that streams are tagged with.
    pub(crate) reserve_classes: BTreeMap<StreamId, String>,
    pub(crate) pending: Pending,
    /// The block that was freed last, until something else happens.
    pub(crate) last_freed: Option<LastFreed>,
    /// Blocks in their owners' hands, by address; kept from the first time that someone names a block
    /// by its address alone.
    pub(crate) live: Option<FxHashMap<Address, BlockId>>,
    pub(crate) ledger: Ledger,
    /// Whether requests ask how events stand.
    pub(crate) polls: bool,
    /// Requests are for at most so many bytes; for none while paused.
    pub(crate) most_bytes: u64,
    /// What is to be obtained again, while paused.
    pub(crate) paused: Option<Paused>,
    /// The same of pools that are paused by themselves.
    pub(crate) paused_pools: BTreeMap<PoolId, Paused>,
    /// Calls since the last walk.
    pub(crate) since_walk: usize,
    /// Whether failures are looked into.
    pub(crate) explains: bool,
    pub(crate) callbacks: BTreeMap<String, FreeMemoryCallback<D>>,
    observers: Vec<OomObserver>,
}

/// Frees memory elsewhere when a pool has no block for a request, and says whether it did.
pub type FreeMemoryCallback<D> = Arc<dyn Fn(&mut Engine<D>) -> bool + Send + Sync>;

/// Is told of each failed request.
pub type OomObserver = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;

impl<D: Device> Engine<D> {
    /// An empty allocator that follows PyTorch's placement rules.
    pub fn new(device: D, config: Config) -> Self {
        Self::with_policy(device, config, Policy::default())
    }

    /// An empty allocator with other placement rules.
    pub fn with_policy(device: D, config: Config, policy: Policy) -> Self {
        // A share of 1 is no limit at the start, whatever it is at run time.
        let limit = Some(config.per_process_memory_fraction()).filter(|&fraction| fraction < 1.0);
        let limit = limit.map(|fraction| config.release().memory_limit(device.total(), fraction));
        let stats = Stats::of_no_use(&config);
        let blocks = Blocks::ordered_by(config.release().tie());
        let captures = Captures::new(config.release());
        Self {
            device,
            config,
            policy,
            limit,
            blocks,
            pools: Pools::default(),
            ranges: Ranges::default(),
            store: PageStore::default(),
            captures,
            reserve_classes: BTreeMap::new(),
            pending: Pending::default(),
            last_freed: None,
            live: None,
            ledger: Ledger::new(stats),
            polls: true,
            most_bytes: ABSURD_SIZE - 1,
            paused: None,
            paused_pools: BTreeMap::new(),
            since_walk: 0,
            explains: true,
            callbacks: BTreeMap::new(),
            observers: Vec::new(),
        }
    }

    /// Serves `bytes` on `stream` from the cheapest source that can.
    ///
    /// # Errors
    ///
    /// If nothing could serve it; see [`AllocError`]. The allocator is then as usable as before.
    #[track_caller]
    pub fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Allocation, AllocError> {
        let caller = Location::caller();
        self.check_size(bytes)?;
        let stack = self.ledger.stack(Context::State, caller);
        let result = self.allocate_with(bytes, stream, stack);
        self.debug_walk("allocate");
        result
    }

    /// Refuses sizes that are not looked at.
    #[inline(always)]
    pub(crate) fn check_size(&self, bytes: u64) -> Result<(), AllocError> {
        if bytes.wrapping_sub(1) >= self.most_bytes {
            return Err(self.refusal(bytes));
        }
        Ok(())
    }

    /// Why a request of this size is not looked at.
    #[cold]
    fn refusal(&self, bytes: u64) -> AllocError {
        match bytes {
            0 => AllocError::ZeroBytes,
            ABSURD_SIZE.. => AllocError::TooLarge(bytes),
            _ => AllocError::Paused,
        }
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
    /// If a capture is under way, so that events cannot be waited for, or if the device fails.
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

    /// Calls `callback` whenever a pool has no block for a request, before the device is asked. It may
    /// free blocks. Callbacks run in the order of their names; one of the same name is replaced.
    pub fn set_free_memory_callback(
        &mut self,
        name: impl Into<String>,
        callback: FreeMemoryCallback<D>,
    ) {
        self.callbacks.insert(name.into(), callback);
    }

    /// Whether requests first ask the device which events are complete, as they do by default. Who knows that
    /// otherwise switches it off, and takes blocks back with [`complete_pending`](Self::complete_pending); calls that wait
    /// for events do so as ever.
    pub fn poll_events(&mut self, on: bool) {
        self.polls = on;
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

    /// Allows at most this share of the device's memory to be reserved. 1 removes the limit; before PyTorch 2.10 it is a
    /// limit of the whole device.
    ///
    /// # Errors
    ///
    /// If the fraction does not lie between 0 and 1.
    pub fn set_memory_fraction(&mut self, fraction: f64) -> Result<(), FractionError> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(FractionError(fraction));
        }
        let release = self.config.release();
        let unlimited = fraction == 1.0 && release.fraction_of_one_removes_limit();
        let limit = (!unlimited).then(|| release.memory_limit(self.device.total(), fraction));
        self.set_limit(limit);
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
        self.note_peak();
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
        // Their stacks go with the history that knew them; those that callers bring no history knows.
        let brought =
            |stacks: Option<StackDepth>| stacks.is_none_or(|it| it == StackDepth::Foreign);
        let before = self.ledger.history.as_ref().map(|it| it.stack_depth());
        if !brought(before) || !brought(options.as_ref().map(|it| it.stacks)) {
            self.blocks.forget_stacks();
        }
        self.ledger.history = options.map(|options| Box::new(History::new(options)));
    }

    /// Notes in the history, if it is on, what the block in use at this address is for, in a word. It may change.
    pub fn say_purpose(&mut self, address: Address, purpose: &'static str) {
        if let Some(history) = &mut self.ledger.history {
            history.say_purpose(address, purpose);
        }
    }

    /// Notes in the history, if it is on, that the program begins or ends something.
    pub fn say_scope(&mut self, name: &'static str, begins: bool) {
        if let Some(history) = &mut self.ledger.history {
            history.say_scope(name, begins);
        }
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

    pub(crate) fn observers(&self) -> Vec<OomObserver> {
        self.observers.clone()
    }
}

/// A share of a device: a product of doubles, cut off, as PyTorch computes it.
pub(crate) fn share_of(total: u64, fraction: f64) -> u64 {
    (fraction * total as f64) as u64
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
