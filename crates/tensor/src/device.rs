//! A device as tensors see it: its allocator, its queue of work, its random numbers, its books of
//! what is alive.
//!
//! [`Device`] is a handle, like the [`memory::Device`](tonnage_memory::Device) inside, to which it
//! dereferences: `device.memory()`, `device.create_stream()`, `device.pinned()`.

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tonnage_cuda_libs::KernelSource;
use tonnage_cuda_libs::cache::Cache;
use tonnage_cuda_libs::find::Search;
use tonnage_device::Dry;
use tonnage_device::cuda::Cuda;
use tonnage_device::host::Host;
use tonnage_memory::{AnyDevice, DeviceOptions, OpenError, ToBytes, current_stream};

use crate::error::{Call, Result};
use crate::exec::cuda::{RecordedPrograms, WorkTime};
use crate::exec::{CudaQueue, Queue};
use crate::graph::Captures;
use crate::levels::Levels;
use crate::live::{Live, Registry};
use crate::peak::Peak;
use crate::random::Generator;
use crate::work::QueuedWork;
use crate::workspace::{MemoryProfile, Workspaces};

/// A device on which tensors live. Cloning gives another handle to the same.
///
/// ```
/// use tonnage_tensor::{Device, Tensor};
///
/// let device = Device::host("1 GiB")?; // Device::dry("80 GiB")?
/// let x = Tensor::randn([1000, 1000], &device)?;
/// assert_eq!(device.memory().allocated(), 4_000_256);
/// drop(x);
/// assert_eq!(device.memory().allocated(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Device {
    shared: Arc<Shared>,
}

struct Shared {
    memory: tonnage_memory::Device,
    queue: Queue,
    generator: Arc<Generator>,
    captures: Captures,
    live: Registry,
    workspaces: Workspaces,
    work: Mutex<QueuedWork>,
    programs: RecordedPrograms,
    tf32: AtomicBool,
}

impl Device {
    /// This machine's memory up to `capacity`, such as `"8 GiB"`; operations run on threads,
    /// asynchronously as on a GPU.
    ///
    /// # Errors
    ///
    /// If the capacity is no size.
    pub fn host(capacity: impl ToBytes) -> Result<Self, OpenError> {
        Self::host_with(capacity, DeviceOptions::default())
    }

    /// The same with other options.
    ///
    /// # Errors
    ///
    /// If the capacity is no size.
    pub fn host_with(capacity: impl ToBytes, options: DeviceOptions) -> Result<Self, OpenError> {
        let options = options.resolved()?;
        let host = Host::new(capacity.to_bytes()?).with_id(options.id).poison(options.poison);
        let queue = Queue::host(host.streams());
        Ok(Self::of(tonnage_memory::Device::of(AnyDevice::Host(Box::new(host)), options), queue))
    }

    /// A GPU: operations run on its streams. Its compiler and libraries are looked for when the first kernel or product
    /// needs them.
    ///
    /// # Errors
    ///
    /// If there is no driver, or no such GPU.
    pub fn cuda(ordinal: u32) -> Result<Self, OpenError> {
        Self::cuda_with(ordinal, DeviceOptions::default())
    }

    /// The same with other options.
    ///
    /// # Errors
    ///
    /// If there is no driver, or no such GPU.
    pub fn cuda_with(ordinal: u32, options: DeviceOptions) -> Result<Self, OpenError> {
        let options = options.resolved()?;
        Self::on_cuda(Cuda::open(ordinal)?, options, (Search::here(), Cache::of_user()))
    }

    /// A GPU behind any driver, with compiler and libraries from there, and kernels kept there.
    pub(crate) fn on_cuda(
        cuda: Cuda,
        options: DeviceOptions,
        (search, cache): (Search, Cache),
    ) -> Result<Self, OpenError> {
        let queue = CudaQueue::new(cuda.launcher(), search, cache)?;
        let memory = tonnage_memory::Device::of(AnyDevice::Cuda(Box::new(cuda)), options);
        let device = Self::of(memory, Queue::Cuda(Box::new(queue)));
        device.set_memory_profile(MemoryProfile::Tonnage);
        Ok(device)
    }

    /// No memory at all: every operation runs its shape rule and its allocations, and no arithmetic.
    ///
    /// # Errors
    ///
    /// If the capacity is no size.
    pub fn dry(capacity: impl ToBytes) -> Result<Self, OpenError> {
        Self::dry_with(capacity, DeviceOptions::default())
    }

    /// The same with other options.
    ///
    /// # Errors
    ///
    /// If the capacity is no size.
    pub fn dry_with(capacity: impl ToBytes, options: DeviceOptions) -> Result<Self, OpenError> {
        let options = options.resolved()?;
        let dry = Dry::new(capacity.to_bytes()?).with_id(options.id);
        let memory = tonnage_memory::Device::of(AnyDevice::Dry(Box::new(dry)), options);
        Ok(Self::of(memory, Queue::Dry))
    }

    /// A device on this allocator, whose work goes to that queue.
    pub(crate) fn of(memory: tonnage_memory::Device, queue: Queue) -> Self {
        let (generator, live) = (Arc::default(), Registry::default());
        let captures = Captures::default();
        let (workspaces, work) = (Workspaces::default(), Mutex::default());
        let (programs, tf32) = (RecordedPrograms::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared {
            memory,
            queue,
            generator,
            captures,
            live,
            workspaces,
            work,
            programs,
            tf32,
        });
        let weak = Arc::downgrade(&shared);
        shared.memory.on_stream_end(move |stream| {
            if let Some(shared) = weak.upgrade() {
                shared.workspaces.forget(stream);
            }
        });
        Self { shared }
    }

    /// Waits for everything queued on any stream of this device.
    ///
    /// # Errors
    ///
    /// If queued work failed: the error names the call that queued it.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let call = Call::here("synchronize");
        let what = "captured work is written down and not done: there is nothing to wait for";
        self.captures().refuse(call, current_stream(self), what)?;
        self.queue().synchronize(call)
    }

    /// Begins the random numbers of this device again from `seed`. The same seed gives the same
    /// numbers on every device.
    pub fn manual_seed(&self, seed: u64) {
        self.shared.generator.manual_seed(seed);
    }

    /// The source of this device's random numbers.
    #[must_use]
    pub fn generator(&self) -> &Generator {
        &self.shared.generator
    }

    /// The figures, the cache, and what is alive.
    #[must_use]
    pub fn memory(&self) -> Memory<'_> {
        Memory { figures: self.shared.memory.memory(), live: self.registry() }
    }

    /// What the most allocated bytes of tensors were for, and which call reached them; none if there was
    /// never a tensor.
    ///
    /// ```
    /// use tonnage_tensor::{Device, Role, Tensor};
    ///
    /// let device = Device::dry("80 GiB")?;
    /// let weight = Tensor::randn([1024, 1024], &device)?.requires_grad_(true)?;
    /// weight.sin()?.sum()?.backward()?;
    /// let peak = device.peak().ok_or("no tensor")?;
    /// assert_eq!(peak.allocated(), device.memory().max_allocated());
    /// assert_eq!(peak.of(Role::Parameters), 4 << 20);
    /// println!("{} at {}", peak.operation, peak.site);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn peak(&self) -> Option<Peak> {
        self.registry().peak()
    }

    /// Records what memory is for from now on, after every allocation and free, in at most about so many
    /// points: see [`take_levels`](Self::take_levels). What was recorded before is forgotten.
    ///
    /// ```
    /// use tonnage_tensor::{Device, Role, Tensor};
    ///
    /// let device = Device::dry("80 GiB")?;
    /// let weight = Tensor::randn([1024, 1024], &device)?.requires_grad_(true)?;
    /// device.record_levels(100);
    /// weight.sin()?.sum()?.backward()?;
    /// let levels = device.take_levels();
    /// let highest = levels.points.iter().map(|it| it.allocated()).max();
    /// assert_eq!(highest, Some(device.memory().max_allocated()));
    /// assert_eq!(levels.points.last().map(|it| it.of(Role::Gradients)), Some(4 << 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_levels(&self, points: usize) {
        self.registry().record(points, self.memory().reserved());
    }

    /// How many allocations and frees were recorded so far.
    #[must_use]
    pub fn recorded_events(&self) -> u64 {
        self.registry().recorded()
    }

    /// Ends recording, and returns what was recorded.
    #[must_use]
    pub fn take_levels(&self) -> Levels {
        self.registry().take_levels()
    }

    /// From now on, products also allocate what this profile has for them, and losses keep what it lets them keep. A GPU needs [`MemoryProfile::Tonnage`], which
    /// it has from the beginning; on `dry`, the profile decides whose bytes are predicted.
    pub fn set_memory_profile(&self, profile: MemoryProfile) {
        self.workspaces().set_profile(profile);
    }

    /// Whose scratch memory is counted.
    #[must_use]
    pub fn memory_profile(&self) -> MemoryProfile {
        self.workspaces().profile()
    }

    /// From now on, products and convolutions of `f32` on a GPU may round what they multiply to TF32, which has ten bits
    /// after the point where `f32` has 23: tensor cores then compute them, several times as fast. Off until it is
    /// allowed. No byte depends on it, and no number on devices without tensor cores.
    pub fn allow_tf32(&self, allowed: bool) {
        self.shared.tf32.store(allowed, Ordering::Relaxed);
    }

    /// Whether products of `f32` may be rounded: see [`allow_tf32`](Self::allow_tf32).
    #[must_use]
    pub fn allows_tf32(&self) -> bool {
        self.shared.tf32.load(Ordering::Relaxed)
    }

    /// How much was computed so far, or would have been on a device that computes. While a graph is captured, with what it
    /// would compute.
    #[must_use]
    pub fn work(&self) -> QueuedWork {
        let mut work = *self.shared.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.add_all(self.captures().work());
        work
    }

    /// One kernel more, of so many operations and bytes; `is_half` says whether its numbers have 16 bits.
    pub(crate) fn count_work(&self, operations: f64, bytes: f64, is_half: bool) {
        let mut work = self.shared.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.add(operations, bytes, is_half);
    }

    /// From now on, what a GPU would run of the kernels that are queued is written down, on `dry` and anywhere else:
    /// see [`take_programs`](Self::take_programs).
    pub fn record_programs(&self) {
        self.shared.programs.record();
    }

    /// Ends recording, and returns the programs that a GPU would have run, each once: to compile them on a machine
    /// without one.
    ///
    /// ```
    /// use tonnage_tensor::{Device, Tensor};
    ///
    /// let device = Device::dry("80 GiB")?;
    /// device.record_programs();
    /// Tensor::zeros([1000], &device)?.sin()?;
    /// let programs = device.take_programs();
    /// assert!(programs.iter().any(|it| it.name == "sin" && it.text.contains("__global__")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn take_programs(&self) -> Vec<KernelSource> {
        self.shared.programs.take()
    }

    /// From now on, the time that each kernel, product and convolution takes is measured on a GPU: see
    /// [`take_profile`](Self::take_profile). Other devices measure nothing.
    pub fn start_profile(&self) {
        if let Queue::Cuda(queue) = self.queue() {
            queue.start_profile();
        }
    }

    /// Ends measuring, and returns what took how long, the longest first; waits until it is done.
    ///
    /// # Errors
    ///
    /// If the driver refuses.
    #[track_caller]
    pub fn take_profile(&self) -> Result<Vec<WorkTime>> {
        match self.queue() {
            Queue::Cuda(queue) => queue.take_profile(Call::here("take_profile")),
            Queue::Host(_) | Queue::Dry => Ok(Vec::new()),
        }
    }

    /// What a graph computes is queued.
    pub(crate) fn add_work(&self, work: QueuedWork) {
        self.shared.work.lock().unwrap_or_else(PoisonError::into_inner).add_all(work);
    }

    pub(crate) fn captures(&self) -> &Captures {
        &self.shared.captures
    }

    pub(crate) fn generator_handle(&self) -> &Arc<Generator> {
        &self.shared.generator
    }

    pub(crate) fn programs(&self) -> &RecordedPrograms {
        &self.shared.programs
    }

    pub(crate) fn workspaces(&self) -> &Workspaces {
        &self.shared.workspaces
    }

    /// Whether operations compute: not on `dry`.
    #[must_use]
    pub fn computes(&self) -> bool {
        !matches!(self.shared.queue, Queue::Dry)
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.shared.queue
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.shared.live
    }
}

impl Deref for Device {
    type Target = tonnage_memory::Device;
    fn deref(&self) -> &Self::Target {
        &self.shared.memory
    }
}

/// The memory of a device: the figures and the cache of [`tonnage_memory::Memory`], to which it
/// dereferences, and what is alive.
///
/// ```
/// use tonnage_tensor::{Device, Tensor};
///
/// let device = Device::dry("1 GiB")?;
/// let weight = Tensor::zeros([1000, 1000], &device)?.requires_grad_(true)?;
/// for it in device.memory().live() {
///     println!("{} bytes since {}, held by {:?}", it.bytes, it.site, it.holder());
/// }
/// assert_eq!(device.memory().live().len(), 1);
/// # drop(weight);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Memory<'a> {
    figures: tonnage_memory::Memory<'a>,
    live: &'a Registry,
}

impl Memory<'_> {
    /// What is alive now, oldest first: how large, since which line, held by whom.
    #[must_use]
    pub fn live(&self) -> Vec<Live> {
        self.live.live()
    }
}

impl<'a> Deref for Memory<'a> {
    type Target = tonnage_memory::Memory<'a>;
    fn deref(&self) -> &Self::Target {
        &self.figures
    }
}

impl fmt::Debug for Memory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures.fmt(f)
    }
}

/// Handles are equal if they are to the same device.
impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.memory.fmt(f)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind(), self.id())
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Device>> = const { RefCell::new(None) };
}

/// Makes a device this thread's current one.
pub fn set_device(device: &Device) {
    tonnage_memory::set_current_device(device);
    CURRENT.set(Some(device.clone()));
}

/// This thread's current device, if one was set.
#[must_use]
pub fn current_device() -> Option<Device> {
    CURRENT.with_borrow(Clone::clone)
}
