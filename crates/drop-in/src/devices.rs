//! The allocators of this process, one for each device, made when the device is first asked for: to open a GPU takes
//! memory of it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustc_hash::FxHashSet;
use tonnage_engine::{ChangeTracker, Config, Engine, RecordOptions};
use tonnage_events::{Address, DeviceId, PoolId, StreamId, TraceEntry};
use tonnage_memory::{AnyDevice, Device, DeviceOptions, Policy};

use crate::failure::{Wrong, other};

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
    pub(crate) history: Option<RecordOptions>,
    pub(crate) tracker: Option<DeviceTracker>,
}

/// One device.
pub(crate) struct Slot {
    device: Device,
    /// Streams of the framework that the device knows by now.
    streams: Mutex<FxHashSet<StreamId>>,
}

static DEVICES: OnceLock<Devices> = OnceLock::new();

/// Sets everything up, once.
pub(crate) fn open(setup: Setup) -> Result<(), Wrong> {
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
    let slot = devices.slots.get(number as usize);
    let slot = slot.ok_or_else(|| other(format!("there is no device {number}")))?;
    match slot.get() {
        Some(device) => Ok(device),
        None => devices.open(number, slot),
    }
}

/// Lets all devices read settings, and those that are opened later.
pub(crate) fn configure(settings: &str) -> Result<(), Wrong> {
    let devices = all()?;
    let mut told = devices.told.lock().unwrap_or_else(PoisonError::into_inner);
    let mut config = told.config.clone().unwrap_or_else(|| devices.setup.config.clone());
    config.apply(settings).map_err(other)?;
    told.config = Some(config);
    // They have read the same before, so that none refuses what was taken.
    opened().try_for_each(|(_, slot)| slot.device().memory().configure(settings).map_err(other))
}

/// Tells all devices something, and those that are opened later.
pub(crate) fn tell(change: impl FnOnce(&mut Told)) -> Result<(), Wrong> {
    let mut told = all()?.told.lock().unwrap_or_else(PoisonError::into_inner);
    change(&mut told);
    for (number, slot) in opened() {
        told.tell(number, slot.device());
    }
    Ok(())
}

impl Told {
    fn tell(&self, number: u32, device: &Device) {
        device.memory().record_history(self.history.clone());
        let tracker = self.tracker.clone().map(|tracker| {
            let tell = move |entry: &TraceEntry, pool: PoolId| tracker(number, entry, pool);
            Arc::new(tell) as ChangeTracker
        });
        device.with_engine(|engine| engine.track(tracker));
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
    mut answer: impl FnMut(u32, &mut Engine<AnyDevice>) -> Option<R>,
) -> Result<R, Wrong> {
    if let Some(slot) = device_if_opened(first)
        && let Some(found) = slot.with(|engine| answer(first, engine))
    {
        return Ok(found);
    }
    let mut others = opened().filter(|it| it.0 != first);
    let found = others.find_map(|(number, slot)| slot.with(|engine| answer(number, engine)));
    found.ok_or_else(|| {
        other(format!(
            "no block in use begins at {address}: it was freed before, or is not of this allocator"
        ))
    })
}

fn device_if_opened(number: u32) -> Option<&'static Slot> {
    DEVICES.get()?.slots.get(number as usize)?.get().map(|slot| &**slot)
}

impl Devices {
    #[cold]
    fn open(
        &'static self,
        number: u32,
        slot: &'static OnceLock<Arc<Slot>>,
    ) -> Result<&'static Slot, Wrong> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
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
        if setup.limit.is_some() {
            device.memory().set_limit(setup.limit);
        }
        if setup.publish {
            // Who cannot be shown works all the same.
            let _ = device.publish();
        }
        told.tell(number, &device);
        let made = Arc::new(Slot { device, streams: Mutex::default() });
        Ok(slot.get_or_init(|| made))
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

    fn adopt(&self, engine: &mut Engine<AnyDevice>, stream: StreamId) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.insert(stream)
            && let AnyDevice::Cuda(cuda) = engine.device_mut()
        {
            // SAFETY: the framework names streams of this device's primary context, which it takes from its own pool
            // and never destroys, or which their owner keeps while memory is used on them: the contract of the
            // interface, as it is PyTorch's.
            unsafe { cuda.adopt_stream(stream) };
        }
    }
}
