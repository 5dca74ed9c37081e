//! The allocators of this process, one for each device, made when the device is first asked for: to open a GPU takes
//! memory of it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_device::Device as _;
use tonnage_engine::{ChangeTracker, Config, Engine, FractionError, RecordOptions};
use tonnage_events::{Address, DeviceId, PoolId, StreamId, TraceEntry};
use tonnage_memory::{AnyDevice, Device, DeviceOptions, Policy};

use crate::failure::{Wrong, other};
use crate::forks;

/// What an allocator gives memory of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Cuda,
    Host(u64),
    Dry(u64),
}

/// How every one is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) kind: Kind,
    pub(crate) devices: u32,
    pub(crate) policy: Option<Policy>,
    pub(crate) config: Config,
    pub(crate) limit: Option<u64>,
    pub(crate) publish: bool,
}

struct Devices {
    setup: Setup,
    slots: Vec<OnceLock<Arc<Slot>>>,
    /// What devices that are opened from now on are told; held while one is.
    told: Mutex<Told>,
}

/// Is told of the changes of every device.
pub(crate) type DeviceTracker = Arc<dyn Fn(u32, &TraceEntry, PoolId) + Send + Sync>;

/// What was said to all devices, also to those that nobody has asked for yet.
#[derive(Clone, Default)]
pub(crate) struct Told {
    /// The settings, once others than those of the setup were read.
    config: Option<Config>,
    history: Option<RecordOptions>,
    tracker: Option<DeviceTracker>,
    /// Devices whose pages others reach, each with one that does.
    shared: BTreeSet<(u32, u32)>,
}

/// One device.
pub(crate) struct Slot {
    device: Device,
    allowed: Mutex<Allowed>,
    streams: Mutex<Streams>,
    /// Whether blocks hold streams that their owners may destroy: to know without the lock.
    any_held: AtomicBool,
}

/// The most bytes to obtain from a device: by whoever set the allocator up, and by the program that runs on it. Neither
/// undoes what the other said.
#[derive(Clone, Copy, Default)]
struct Allowed {
    limit: Option<u64>,
    /// A share of the device, in bytes.
    share: Option<u64>,
}

impl Allowed {
    fn bytes(self) -> Option<u64> {
        self.limit.into_iter().chain(self.share).min()
    }
}

/// Streams of the framework.
#[derive(Default)]
struct Streams {
    /// Those that the device knows by now.
    known: FxHashSet<StreamId>,
    /// Blocks in use on streams whose owners may destroy them afterwards.
    held_by: FxHashMap<Address, Vec<StreamId>>,
    /// How many blocks hold such a stream.
    holders: FxHashMap<StreamId, usize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is done under these locks leaves anything half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

static DEVICES: OnceLock<Devices> = OnceLock::new();

/// Sets everything up, once.
pub(crate) fn open(setup: Setup) -> Result<(), Wrong> {
    forks::watch();
    let slots = (0..setup.devices).map(|_| OnceLock::new()).collect();
    DEVICES
        .set(Devices { setup, slots, told: Mutex::default() })
        .map_err(|_| other("the allocator was set up before: it is for the whole process"))
}

fn all() -> Result<&'static Devices, Wrong> {
    DEVICES.get().ok_or_else(|| other("the allocator was not set up"))
}

/// A device, opened if it was not.
#[inline]
pub(crate) fn device(number: u32) -> Result<&'static Slot, Wrong> {
    let devices = all()?;
    let slot = devices.slot(number)?;
    match slot.get() {
        Some(device) => Ok(device),
        None => devices.open(number, slot),
    }
}

/// A device, if it was opened: whoever only looks at one that nobody uses opens nothing.
pub(crate) fn if_opened(number: u32) -> Result<Option<&'static Slot>, Wrong> {
    Ok(all()?.slot(number)?.get().map(|slot| &**slot))
}

/// The settings in force.
pub(crate) fn config() -> Result<Config, Wrong> {
    let devices = all()?;
    let told = lock(&devices.told);
    Ok(told.config.clone().unwrap_or_else(|| devices.setup.config.clone()))
}

/// The share of a device that is allowed.
pub(crate) fn fraction(number: u32) -> Result<f64, Wrong> {
    let slot = if_opened(number)?;
    // The settings may allow a share themselves, as of a device that is opened.
    slot.map_or_else(|| Ok(config()?.per_process_memory_fraction()), |slot| Ok(slot.fraction()))
}

/// Lets all devices read settings, and those that are opened later.
pub(crate) fn configure(settings: &str) -> Result<(), Wrong> {
    let devices = all()?;
    let mut told = lock(&devices.told);
    let mut config = told.config.clone().unwrap_or_else(|| devices.setup.config.clone());
    config.apply(settings).map_err(other)?;
    told.config = Some(config);
    // They have read the same before, so that none refuses what was taken.
    opened().try_for_each(|(_, slot)| slot.device().memory().configure(settings).map_err(other))
}

/// Lets all devices record a history, or no longer, and those that are opened later.
pub(crate) fn record_history(options: Option<RecordOptions>) -> Result<(), Wrong> {
    let mut told = lock(&all()?.told);
    for (_, slot) in opened() {
        slot.device().memory().record_history(options.clone());
    }
    // A device that is opened later has nothing to clear.
    told.history = options.map(|it| RecordOptions { clear_history: false, ..it });
    Ok(())
}

/// Lets another device reach the pages of a device, also if nobody has asked it for memory yet.
pub(crate) fn share_pages(number: u32, with: u32) -> Result<(), Wrong> {
    let devices = all()?;
    let slot = devices.slot(number)?;
    devices.slot(with)?;
    let mut told = lock(&devices.told);
    if let Some(slot) = slot.get() {
        slot.share_pages(with)?;
    }
    told.shared.insert((number, with));
    Ok(())
}

/// Lets all devices tell someone of their changes, or no one, and those that are opened later.
pub(crate) fn track(tracker: Option<DeviceTracker>) -> Result<(), Wrong> {
    let mut told = lock(&all()?.told);
    told.tracker = tracker;
    for (number, slot) in opened() {
        slot.with(|engine| engine.track(told.tracker_of(number)));
    }
    Ok(())
}

impl Told {
    fn tracker_of(&self, number: u32) -> Option<ChangeTracker> {
        let tracker = self.tracker.clone()?;
        Some(Arc::new(move |entry: &TraceEntry, pool: PoolId| tracker(number, entry, pool)))
    }
}

/// Those that were opened, in order, with their numbers.
pub(crate) fn opened() -> impl Iterator<Item = (u32, &'static Slot)> {
    let slots = DEVICES.get().map_or(&[][..], |devices| &devices.slots);
    (0..).zip(slots).filter_map(|(number, slot)| Some((number, &**slot.get()?)))
}

/// Asks the devices for an answer about the block in use at `address`, first the one where the caller works: others have
/// none.
pub(crate) fn of_owner<R>(
    address: Address,
    first: u32,
    mut answer: impl FnMut(u32, &Slot, &mut Engine<AnyDevice>) -> Option<R>,
) -> Result<R, Wrong> {
    if let Some(slot) = if_opened(first).ok().flatten()
        && let Some(found) = slot.with(|engine| answer(first, slot, engine))
    {
        return Ok(found);
    }
    let mut others = opened().filter(|it| it.0 != first);
    let found = others.find_map(|(number, slot)| slot.with(|engine| answer(number, slot, engine)));
    found.ok_or_else(|| {
        other(format!(
            "no block in use begins at {address}: it was freed before, or is not of this allocator"
        ))
    })
}

impl Devices {
    fn slot(&'static self, number: u32) -> Result<&'static OnceLock<Arc<Slot>>, Wrong> {
        let slot = self.slots.get(number as usize);
        slot.ok_or_else(|| other(format!("there is no device {number}")))
    }

    #[cold]
    fn open(
        &'static self,
        number: u32,
        slot: &'static OnceLock<Arc<Slot>>,
    ) -> Result<&'static Slot, Wrong> {
        let told = lock(&self.told);
        if let Some(device) = slot.get() {
            return Ok(device);
        }
        let setup = &self.setup;
        let options = DeviceOptions {
            config: told.config.clone().unwrap_or_else(|| setup.config.clone()),
            policy: setup.policy,
            id: DeviceId(number),
            ..DeviceOptions::default()
        };
        let device = match setup.kind {
            Kind::Cuda => Device::cuda_with(number, options),
            Kind::Host(capacity) => Device::host_with(capacity, options),
            Kind::Dry(capacity) => Device::dry_with(capacity, options),
        };
        let device = device.map_err(other)?;
        // The settings may allow a share themselves.
        let share = device.with_engine(|engine| engine.limit());
        let made = Slot {
            device,
            allowed: Mutex::new(Allowed { limit: setup.limit, share }),
            streams: Mutex::default(),
            any_held: AtomicBool::new(false),
        };
        made.set_limit(setup.limit);
        if setup.publish {
            // Who cannot be shown works all the same.
            let _ = made.device.publish();
        }
        for &(_, with) in told.shared.iter().filter(|shared| shared.0 == number) {
            made.share_pages(with)?;
        }
        made.device.memory().record_history(told.history.clone());
        made.with(|engine| engine.track(told.tracker_of(number)));
        Ok(slot.get_or_init(|| Arc::new(made)))
    }
}

impl Slot {
    /// Whose memory it is.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Lends the engine.
    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Engine<AnyDevice>) -> R) -> R {
        self.device.with_engine(work)
    }

    /// Lends the engine, which from then on knows a stream of the framework's.
    #[inline]
    pub(crate) fn on<R>(
        &self,
        stream: StreamId,
        work: impl FnOnce(&mut Engine<AnyDevice>) -> R,
    ) -> R {
        self.device.with_engine(|engine| {
            if stream != StreamId::DEFAULT {
                self.adopt(engine, stream);
            }
            work(engine)
        })
    }

    /// Lets another device reach its pages; those of a device without memory nobody can.
    fn share_pages(&self, with: u32) -> Result<(), Wrong> {
        self.with(|engine| match engine.device_mut() {
            AnyDevice::Cuda(cuda) => cuda.share_pages_with(with).map_err(other),
            _ => Ok(()),
        })
    }

    /// Allows so many bytes, or any number; less, if the program allowed itself less.
    pub(crate) fn set_limit(&self, limit: Option<u64>) {
        let mut allowed = lock(&self.allowed);
        allowed.limit = limit;
        self.with(|engine| engine.set_limit(allowed.bytes()));
    }

    /// Allows a share of the device; less, if whoever set the allocator up allowed less.
    pub(crate) fn set_fraction(&self, fraction: f64) -> Result<(), FractionError> {
        let mut allowed = lock(&self.allowed);
        self.with(|engine| {
            engine.set_memory_fraction(fraction)?;
            allowed.share = engine.limit();
            engine.set_limit(allowed.bytes());
            Ok(())
        })
    }

    /// The share that the program allowed itself.
    fn fraction(&self) -> f64 {
        let share = lock(&self.allowed).share;
        let total = self.with(|engine| engine.device().total());
        share.map_or(1.0, |share| share as f64 / total as f64)
    }

    fn adopt(&self, engine: &mut Engine<AnyDevice>, stream: StreamId) {
        if lock(&self.streams).known.insert(stream)
            && let AnyDevice::Cuda(cuda) = engine.device_mut()
        {
            // SAFETY: the framework names streams of this device's primary context, and of no other device. It takes them from
            // its own pool and never destroys them; one of another owner, who may destroy it when no block uses it any
            // more, is held by its blocks (`hold`) and left with the last of them (`let_go`).
            unsafe { cuda.adopt_stream(stream) };
        }
    }

    /// Notes that a block is used on a stream whose owner keeps it only as long as blocks are. If the stream was left meanwhile, it is
    /// known again.
    pub(crate) fn hold(&self, address: Address, stream: StreamId) {
        self.on(stream, |_| self.note_held(address, stream));
    }

    fn note_held(&self, address: Address, stream: StreamId) {
        let mut streams = lock(&self.streams);
        let held = streams.held_by.entry(address).or_default();
        if !held.contains(&stream) {
            held.push(stream);
            *streams.holders.entry(stream).or_default() += 1;
            self.any_held.store(true, Ordering::Relaxed);
        }
    }

    /// A block was taken back. Streams that no other holds are left: their owners may destroy them now.
    #[inline]
    pub(crate) fn let_go(&self, engine: &mut Engine<AnyDevice>, address: Address) {
        if self.any_held.load(Ordering::Relaxed) {
            self.leave_streams_of(engine, address);
        }
    }

    #[cold]
    fn leave_streams_of(&self, engine: &mut Engine<AnyDevice>, address: Address) {
        let mut streams = lock(&self.streams);
        for stream in streams.held_by.remove(&address).unwrap_or_default() {
            let Some(holders) = streams.holders.get_mut(&stream) else { continue };
            *holders -= 1;
            if *holders > 0 {
                continue;
            }
            streams.holders.remove(&stream);
            // In a capture events are left alone: the stream is one of those that stay known. So is one that blocks use which came by
            // a name of the framework's own, or whose caller is about to hold it: what they queue there must be waited for.
            if !engine.leaves_events_alone()
                && !engine.is_used_on(stream)
                && let AnyDevice::Cuda(cuda) = engine.device_mut()
                && cuda.leave_stream(stream).is_ok()
            {
                streams.known.remove(&stream);
            }
        }
        self.any_held.store(!streams.held_by.is_empty(), Ordering::Relaxed);
    }
}
