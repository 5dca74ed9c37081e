//! A device and its allocator, as a handle that threads share.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;
use tonnage_device::cuda::{Cuda, Pinned};
use tonnage_device::host::{Host, Streams};
use tonnage_device::{Device as _, DeviceError, Dry};
use tonnage_engine::{AllocError, Config, Engine, Policy};
use tonnage_events::{Bytes, DeviceId, ParseBytesError, PoolId, StreamId};

use crate::any_device::AnyDevice;
use crate::block::Block;
use crate::current::current_stream_of;
use crate::oom::{Allowance, Explainer, snapshot_from_env};
use crate::pause::Kept;
use crate::pinned::PinnedPool;
use crate::publish::{forget_gone_devices, publish_from_env};
use crate::shared_engine::SharedEngine;
use crate::stream::Stream;
use crate::sync::{Arc, Mutex, lock};
use crate::view::Memory;
use crate::waiting::Events;

/// A device that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The size is none.
    #[error(transparent)]
    Size(#[from] ParseBytesError),
    /// The device cannot be had.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The environment names no policy.
    #[error("TONNAGE_CONF: {0}")]
    Policy(String),
}

/// The placement rules that the environment names.
fn policy_from_env() -> Result<Policy, OpenError> {
    let conf = std::env::var_os("TONNAGE_CONF").unwrap_or_default();
    Policy::from_conf(&conf.to_string_lossy()).map_err(OpenError::Policy)
}

impl DeviceOptions {
    /// With the policy that holds: the one that was set, or the one that the environment names.
    ///
    /// # Errors
    ///
    /// If the environment names no policy.
    pub fn resolved(mut self) -> Result<Self, OpenError> {
        if self.policy.is_none() {
            self.policy = Some(policy_from_env()?);
        }
        Ok(self)
    }
}

/// A size: bytes, or words such as `8 GiB`.
pub trait ToBytes {
    /// Its bytes.
    ///
    /// # Errors
    ///
    /// If the words are no size.
    fn to_bytes(&self) -> Result<u64, ParseBytesError>;
}

impl ToBytes for u64 {
    fn to_bytes(&self) -> Result<u64, ParseBytesError> {
        Ok(*self)
    }
}

impl ToBytes for Bytes {
    fn to_bytes(&self) -> Result<u64, ParseBytesError> {
        Ok(self.0)
    }
}

impl ToBytes for str {
    fn to_bytes(&self) -> Result<u64, ParseBytesError> {
        self.parse().map(|Bytes(bytes)| bytes)
    }
}

impl<T: ToBytes + ?Sized> ToBytes for &T {
    fn to_bytes(&self) -> Result<u64, ParseBytesError> {
        (**self).to_bytes()
    }
}

/// How a device's allocator is set up.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// PyTorch's settings.
    pub config: Config,
    /// The placement rules. By default those that the environment variable `TONNAGE_CONF` names, such as
    /// `policy:pages,slack:0.02`; without it PyTorch's.
    pub policy: Option<Policy>,
    /// The ordinal of a `host` or `dry` device, to tell several apart.
    pub id: DeviceId,
    /// On `host`: fill freed and fresh memory with patterns, so that wrong use shows.
    pub poison: bool,
    /// Where to save a snapshot when a request fails: the message then says so. By default what the
    /// environment variable `TONNAGE_OOM_SNAPSHOT` names, if it is set.
    pub snapshot_on_oom: Option<PathBuf>,
    /// Who explains failed requests by what came before them.
    pub explain: Explainer,
}

/// What the handles of one device share.
pub(crate) struct Shared {
    pub(crate) engine: SharedEngine,
    /// The streams of a `host` device, which the engine's lock does not guard.
    pub(crate) streams: Option<Streams>,
    /// The pool of the capture that is under way. Taken before the engine's lock.
    pub(crate) capture: Mutex<Option<PoolId>>,
    /// Held by whoever copies to or from a block without the engine.
    pub(crate) copies: Mutex<()>,
    /// Host memory that the device reaches.
    pub(crate) pinned: PinnedPool,
    /// Where it comes from, if a driver has it.
    pub(crate) driver_pinned: Option<Pinned>,
    /// Where to save a snapshot when a request fails.
    pub(crate) snapshot_on_oom: Option<PathBuf>,
    /// Who explains failures.
    pub(crate) explainer: Explainer,
    /// Time left to explain failures.
    pub(crate) explaining: Mutex<Allowance>,
    /// Who is told of streams that have ended.
    pub(crate) stream_ends: Mutex<Vec<StreamEnd>>,
    /// What blocks held when they were paused. Whoever pauses or resumes holds it all the time, and takes it before the engine's lock.
    pub(crate) kept: Mutex<Kept>,
}

/// Is told of a stream that has ended.
pub(crate) type StreamEnd = std::sync::Arc<dyn Fn(StreamId) + Send + Sync>;

impl Drop for Shared {
    fn drop(&mut self) {
        self.pinned.close(&mut Events::of(self.streams.as_ref(), &self.engine));
        forget_gone_devices();
    }
}

/// A device with its allocator. Cloning gives another handle to the same.
#[derive(Clone)]
pub struct Device {
    pub(crate) shared: Arc<Shared>,
    id: DeviceId,
    kind: &'static str,
}

impl Device {
    /// This machine's memory up to `capacity`, such as `"8 GiB"`.
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
        Ok(Self::of(AnyDevice::Host(Box::new(host)), options))
    }

    /// The memory of a GPU.
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
        Ok(Self::of(AnyDevice::Cuda(Box::new(Cuda::open(ordinal)?)), options))
    }

    /// No memory at all: the same decisions, for predictions.
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
        Ok(Self::of(AnyDevice::Dry(Box::new(dry)), options))
    }

    /// A handle to a device that was made elsewhere. It does not look into the environment: without a policy, PyTorch's.
    #[must_use]
    pub fn of(device: AnyDevice, options: DeviceOptions) -> Self {
        let (id, kind, streams) = (device.id(), device.kind(), device.streams());
        let driver_pinned = device.driver_pinned();
        let engine =
            Engine::with_policy(device, options.config, options.policy.unwrap_or_default());
        let shared = Shared {
            engine: SharedEngine::new(engine),
            streams,
            capture: Mutex::default(),
            copies: Mutex::new(()),
            pinned: PinnedPool::default(),
            driver_pinned,
            snapshot_on_oom: options.snapshot_on_oom.or_else(snapshot_from_env),
            explainer: options.explain,
            explaining: Mutex::new(Allowance::new()),
            stream_ends: Mutex::default(),
            kept: Mutex::default(),
        };
        let device = Self { shared: Arc::new(shared), id, kind };
        publish_from_env(&device);
        device
    }

    /// Its ordinal.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// `dry`, `host`, `cuda`, or `other` for one that was made elsewhere.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Allocates on the thread's current stream of this device.
    ///
    /// # Errors
    ///
    /// If it cannot be served; see [`AllocError`].
    #[track_caller]
    #[inline]
    pub fn allocate(&self, bytes: u64) -> Result<Block, AllocError> {
        self.allocate_on(bytes, current_stream_of(self))
    }

    /// Allocates on a stream: the memory may be reused on it as soon as the block is dropped, after
    /// what is queued there by then.
    ///
    /// # Errors
    ///
    /// If it cannot be served; see [`AllocError`].
    #[track_caller]
    #[inline]
    pub fn allocate_on(&self, bytes: u64, stream: StreamId) -> Result<Block, AllocError> {
        let served = self.shared.engine.lock().allocate(bytes, stream);
        let allocation = served.map_err(|error| self.explained(error))?;
        Ok(Block::new(self.clone(), allocation))
    }

    /// Lends the engine, for those who bring an interface of their own and keep their blocks themselves. What is allocated
    /// there is freed there; nothing that takes long should happen meanwhile, and nothing that asks for this device.
    pub fn with_engine<R>(&self, work: impl FnOnce(&mut Engine<AnyDevice>) -> R) -> R {
        work(&mut self.shared.engine.lock())
    }

    /// A failure of the [lent engine](Self::with_engine), with what its history has to say of it, as those of
    /// [`allocate`](Self::allocate) have it.
    #[must_use]
    pub fn explain_failure(&self, error: AllocError) -> AllocError {
        self.explained(error)
    }

    /// Obtains `bytes` from the device now and keeps them cached, so that later allocations find them.
    ///
    /// # Errors
    ///
    /// If it cannot be served; see [`AllocError`].
    #[track_caller]
    pub fn preallocate(&self, bytes: u64) -> Result<(), AllocError> {
        self.allocate(bytes).map(drop)
    }

    /// The figures and the cache.
    #[must_use]
    pub fn memory(&self) -> Memory<'_> {
        Memory::new(self)
    }

    /// A new stream.
    ///
    /// # Errors
    ///
    /// If the device has none to give.
    pub fn create_stream(&self) -> Result<Stream, DeviceError> {
        Stream::create(self)
    }

    /// From now on, calls `tell` with each stream of this device that its owner drops, before it ends: for those who keep
    /// something for each stream.
    pub fn on_stream_end(&self, tell: impl Fn(StreamId) + Send + Sync + 'static) {
        lock(&self.shared.stream_ends).push(std::sync::Arc::new(tell));
    }

    /// Waits for everything queued on a stream, and reports what went wrong before where nobody could
    /// be told.
    ///
    /// # Errors
    ///
    /// If work on the stream failed, or something before did.
    pub fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.shared.engine.take_untold()?;
        self.shared.synchronize(stream)
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
        write!(f, "{}:{}", self.kind, self.id)
    }
}
