//! The figures of a device, and its cache.

use tonnage_device::{Device as _, DeviceError, MemoryInfo};
use tonnage_engine::{CacheError, ConfigError, FractionError, RecordOptions, Snapshot, Stats};
use tonnage_events::PoolId;

use crate::device::Device;

/// What `torch.cuda.memory_*` tells and does, for one device.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    pub(crate) device: &'a Device,
}

impl<'a> Memory<'a> {
    pub(crate) fn new(device: &'a Device) -> Self {
        Self { device }
    }

    /// Bytes of the blocks handed out.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.device.shared.engine.lock().stats().memory_allocated()
    }

    /// The most of these.
    #[must_use]
    pub fn max_allocated(&self) -> u64 {
        self.device.shared.engine.lock().stats().max_memory_allocated()
    }

    /// Bytes obtained from the device.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.device.shared.engine.lock().stats().memory_reserved()
    }

    /// The most of these.
    #[must_use]
    pub fn max_reserved(&self) -> u64 {
        self.device.shared.engine.lock().stats().max_memory_reserved()
    }

    /// All figures.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.device.shared.engine.lock().stats().clone()
    }

    /// The figures as a table, in PyTorch's layout.
    #[must_use]
    pub fn summary(&self) -> String {
        self.device.shared.engine.lock().memory_summary(false)
    }

    /// Free and total bytes, by the device's own count.
    ///
    /// # Errors
    ///
    /// If it cannot tell.
    pub fn mem_get_info(&self) -> Result<MemoryInfo, DeviceError> {
        self.device.shared.engine.lock().device_mut().memory_info()
    }

    /// Gives back to the device all cached memory that is not part of a segment in use. If there is any, or if freed
    /// blocks wait for other streams, this waits for the work that is queued by now; others allocate meanwhile.
    ///
    /// # Errors
    ///
    /// If the device fails, or failed before where nobody could be told.
    #[track_caller]
    pub fn empty_cache(&self) -> Result<(), CacheError> {
        self.device.shared.engine.take_untold()?;
        self.empty_cache_of(PoolId::DEFAULT)
    }

    /// Gives back the memory of one private pool that is no longer used; of the default pool, as
    /// [`empty_cache`](Self::empty_cache).
    ///
    /// # Errors
    ///
    /// If requests are being diverted to a pool, or if the device fails.
    #[track_caller]
    pub fn empty_cache_of(&self, pool: PoolId) -> Result<(), CacheError> {
        if pool.is_default() {
            self.device.shared.wait_before_emptying()?;
        }
        self.device.shared.engine.lock().empty_cache_of(pool)
    }

    /// Lets every peak begin again at the current value.
    pub fn reset_peak_stats(&self) {
        self.device.shared.engine.lock().reset_peak_stats();
    }

    /// Lets every sum and count begin again at zero.
    pub fn reset_accumulated_stats(&self) {
        self.device.shared.engine.lock().reset_accumulated_stats();
    }

    /// Allows this process at most this share of the device's memory; 1 removes the limit.
    ///
    /// # Errors
    ///
    /// If the fraction does not lie between 0 and 1.
    pub fn set_per_process_fraction(&self, fraction: f64) -> Result<(), FractionError> {
        self.device.shared.engine.lock().set_memory_fraction(fraction)
    }

    /// Allows this process at most this many bytes, or any number.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.device.shared.engine.lock().set_limit(limit);
    }

    /// Reads a settings string at run time.
    ///
    /// # Errors
    ///
    /// If the string is wrong.
    pub fn configure(&self, settings: &str) -> Result<(), ConfigError> {
        self.device.shared.engine.lock().configure(settings)
    }

    /// Begins to record history, or goes on with other options; with `None`, stops and forgets it.
    pub fn record_history(&self, options: Option<RecordOptions>) {
        self.device.shared.engine.record_history(options);
    }

    /// Notes in the history, if one is recorded, that the program begins something: PyTorch's tools and `tonnage report` show
    /// it as they show what `record_function` marks. An optimizer's step is `Optimizer.step` there.
    pub fn begin_scope(&self, name: &'static str) {
        if let Some(mut engine) = self.device.shared.engine.recording() {
            engine.say_scope(name, true);
        }
    }

    /// Notes in the history, if one is recorded, that the program ends what it began under this name.
    pub fn end_scope(&self, name: &'static str) {
        if let Some(mut engine) = self.device.shared.engine.recording() {
            engine.say_scope(name, false);
        }
    }

    /// The state and the history now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.device.shared.engine.lock().snapshot()
    }

    /// Walks all blocks, sets and figures, and says what does not fit: a bug in the allocator.
    ///
    /// # Errors
    ///
    /// The first broken invariant, in words.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.device.shared.engine.lock().check_invariants()
    }
}
