//! A device that knows what comes before what, and an engine on it whose every answer is looked at.
//!
//! Streams have clocks, as in any account of what happened before what: a stream knows how far it comes after each other
//! one, by events that it waited for and by what the host has waited for.

use std::collections::{BTreeMap, BTreeSet};

use tonnage_device::{Device, DeviceError, Dry, EventId, MemoryInfo, PageId, PagePart};
use tonnage_engine::{AllocError, Allocation, Config, Engine, Policy, Slack};
use tonnage_events::{Address, DeviceId, PoolId, StreamId};

/// How much of each stream is done, or comes before.
type Clock = BTreeMap<StreamId, u64>;

fn join(into: &mut Clock, from: &Clock) {
    for (&stream, &time) in from {
        let known = into.entry(stream).or_default();
        *known = time.max(*known);
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Ordered {
    pub(crate) dry: Dry,
    streams: BTreeMap<StreamId, Clock>,
    events: BTreeMap<EventId, Clock>,
    /// What the host has waited for, and so everything that is queued later comes after.
    host: Clock,
    /// Someone captures: no event may be recorded, asked or waited for, by anyone.
    pub(crate) capturing: bool,
    /// Work that uses memory, by address: its stream and time.
    in_use: Vec<(Address, u64, StreamId, u64)>,
    /// The map call that finds no memory, counted from now.
    pub(crate) refuse_map: Option<u32>,
    /// Events recorded so far.
    pub(crate) recorded: u64,
}

impl Ordered {
    pub(crate) fn new(dry: Dry) -> Self {
        Self {
            dry,
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            host: Clock::new(),
            capturing: false,
            in_use: Vec::new(),
            refuse_map: None,
            recorded: 0,
        }
    }

    /// A stream ends, after its work.
    pub(crate) fn end(&mut self, stream: StreamId) {
        let now = self.now(stream);
        join(&mut self.host, &now);
        self.streams.remove(&stream);
    }

    /// Work is queued on a stream that uses these bytes. They stay mapped until the host knows that it is done.
    pub(crate) fn uses(&mut self, stream: StreamId, address: Address, size: u64) -> u64 {
        let time = self.work(stream);
        self.in_use.push((address, size, stream, time));
        time
    }

    /// Work is queued on a stream: the time of it.
    fn work(&mut self, stream: StreamId) -> u64 {
        let clock = self.streams.entry(stream).or_default();
        let time = clock.entry(stream).or_default();
        *time += 1;
        *time
    }

    /// Whether what is queued on a stream now comes after that time of another.
    fn comes_after(&self, stream: StreamId, other: StreamId, time: u64) -> bool {
        let known = self.streams.get(&stream).and_then(|clock| clock.get(&other));
        let host = self.host.get(&other);
        stream == other || known.max(host).is_some_and(|&known| known >= time)
    }

    fn now(&self, stream: StreamId) -> Clock {
        let mut clock = self.streams.get(&stream).cloned().unwrap_or_default();
        join(&mut clock, &self.host);
        clock
    }
}

impl Device for Ordered {
    fn id(&self) -> DeviceId {
        self.dry.id()
    }

    fn total(&self) -> u64 {
        self.dry.total()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.dry.memory_info()
    }

    fn acquire(&mut self, _size: u64) -> Result<Address, DeviceError> {
        panic!("this policy has no fixed segments")
    }

    fn release(&mut self, _address: Address) -> Result<(), DeviceError> {
        panic!("this policy has no fixed segments")
    }

    fn granularity(&self) -> u64 {
        self.dry.granularity()
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.dry.reserve(size)
    }

    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        self.dry.unreserve(address)
    }

    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError> {
        self.dry.create_page(size)
    }

    fn destroy_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        self.dry.destroy_page(page)
    }

    fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError> {
        self.refuse_map = self.refuse_map.map(|left| left.wrapping_sub(1));
        if self.refuse_map == Some(0) {
            return Err(DeviceError::OutOfMemory { requested: 0 });
        }
        self.dry.map(page, address)
    }

    fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        assert!(!self.capturing, "nothing is unmapped during a capture");
        let size: u64 = self.dry.pages_under(address, 1).map(|part| part.page_size).sum();
        let end = address.offset(size);
        for &(at, bytes, stream, time) in &self.in_use {
            let done = self.host.get(&stream).is_some_and(|&done| done >= time);
            let meets = at < end && address < at.offset(bytes);
            assert!(done || !meets, "{address} is unmapped while stream {stream} may use it");
        }
        let host = &self.host;
        self.in_use.retain(|(.., stream, time)| host.get(stream).is_none_or(|done| done < time));
        self.dry.unmap(address)
    }

    fn record_event(&mut self, stream: StreamId) -> Result<EventId, DeviceError> {
        assert!(!self.capturing, "no events during a capture");
        self.recorded += 1;
        let event = self.dry.record_event(stream)?;
        let now = self.now(stream);
        self.events.insert(event, now);
        Ok(event)
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        assert!(!self.capturing, "no event is asked during a capture");
        let complete = self.dry.query_event(event)?;
        if complete {
            join(&mut self.host, &self.events[&event]);
        }
        Ok(complete)
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        assert!(!self.capturing, "nothing is waited for during a capture");
        self.dry.wait_event(event)?;
        join(&mut self.host, &self.events[&event]);
        Ok(())
    }

    fn wait_on(&mut self, _stream: StreamId, _event: EventId) -> Result<(), DeviceError> {
        panic!("what a stream has queued may wait for the one that would wait for it")
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.events.remove(&event);
        self.dry.destroy_event(event)
    }

    fn synchronize(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        assert!(!self.capturing, "nothing is waited for during a capture");
        let now = self.now(stream);
        join(&mut self.host, &now);
        self.dry.synchronize(stream)
    }

    fn known_streams(&self) -> Vec<StreamId> {
        [StreamId::DEFAULT].into_iter().chain(self.streams.keys().copied()).collect()
    }
}

/// A block and what it stood on when it was handed out.
struct Live {
    block: Allocation,
    parts: Vec<PagePart>,
    pool: PoolId,
    /// Streams besides its own that use it.
    others: Vec<StreamId>,
}

/// Memory that was used: by whom, and until when.
struct Used {
    part: PagePart,
    pool: PoolId,
    by: Vec<(StreamId, u64)>,
}

/// An engine, and everything that it has promised so far.
pub(crate) struct Watched {
    pub(crate) engine: Engine<Ordered>,
    live: Vec<Live>,
    used: Vec<Used>,
}

impl Watched {
    pub(crate) fn new(total: u64, slack: f64) -> Self {
        let policy = Policy::Pages(Slack::new(slack).unwrap());
        let device = Ordered::new(Dry::new(total));
        let engine = Engine::with_policy(device, Config::default(), policy);
        Self { engine, live: Vec::new(), used: Vec::new() }
    }

    pub(crate) fn live(&self) -> usize {
        self.live.len()
    }

    /// Asks for a block, and looks at it: whether it overlaps another one in physical memory, and whether its stream comes
    /// after everyone who used that memory.
    pub(crate) fn allocate(
        &mut self,
        bytes: u64,
        stream: StreamId,
        pool: PoolId,
        who: &str,
    ) -> bool {
        let block = match self.engine.allocate(bytes, stream) {
            Ok(block) => block,
            Err(AllocError::OutOfMemory(_)) => return false,
            Err(error) => panic!("{who}: {error}"),
        };
        let device = self.engine.device();
        let parts: Vec<_> = device.dry.pages_under(block.address, block.size).collect();
        let covered: u64 = parts.iter().map(|part| part.bytes).sum();
        assert_eq!(covered, block.size, "{who}: not all of the block is memory");
        for live in &self.live {
            let overlap = live.parts.iter().any(|one| parts.iter().any(|other| meet(one, other)));
            assert!(!overlap, "{who}: shares bytes with {:?}", live.block);
        }
        for used in self.used.iter().filter(|it| parts.iter().any(|part| meet(&it.part, part))) {
            assert!(
                used.pool.is_default() || used.pool == pool,
                "{who}: memory of pool {} was lent",
                used.pool
            );
            for &(by, time) in &used.by {
                let after = device.comes_after(stream, by, time);
                assert!(after, "{who}: does not come after stream {by}, which used the memory");
            }
        }
        self.engine.device_mut().uses(stream, block.address, block.size);
        self.live.push(Live { block, parts, pool, others: Vec::new() });
        true
    }

    pub(crate) fn use_elsewhere(&mut self, at: usize, stream: StreamId) {
        let live = &mut self.live[at];
        self.engine.record_stream_of(&live.block, stream).unwrap();
        live.others.push(stream);
        let Allocation { address, size, .. } = live.block;
        self.engine.device_mut().uses(stream, address, size);
    }

    pub(crate) fn free(&mut self, at: usize) {
        let Live { block, parts, pool, others } = self.live.swap_remove(at);
        let streams = [block.stream].into_iter().chain(others);
        let device = self.engine.device_mut();
        let by: Vec<_> = streams
            .map(|stream| (stream, device.uses(stream, block.address, block.size)))
            .collect();
        self.engine.free(&block).unwrap();
        self.used.extend(parts.into_iter().map(|part| Used { part, pool, by: by.clone() }));
    }

    /// All memory is new: live blocks are where they were, on other pages, and whoever used the old ones is done.
    pub(crate) fn after_resume(&mut self) {
        let dry = &self.engine.device().dry;
        for live in &mut self.live {
            let Allocation { address, size, .. } = live.block;
            live.parts = dry.pages_under(address, size).collect();
            assert_eq!(live.parts.iter().map(|part| part.bytes).sum::<u64>(), size);
        }
        self.used.clear();
    }

    /// A pool has no uses left: its memory is anyone's.
    pub(crate) fn forget_pool(&mut self, pool: PoolId) {
        let used = self.used.iter_mut().map(|used| &mut used.pool);
        let live = self.live.iter_mut().map(|live| &mut live.pool);
        for of in used.chain(live).filter(|of| **of == pool) {
            *of = PoolId::DEFAULT;
        }
    }

    /// How many pages are in use in two places, each with a part of it.
    pub(crate) fn shared_pages(&self) -> usize {
        shared_pages(&self.engine.device().dry, self.live.iter().map(|live| &live.block))
    }

    /// No live block has moved, and the engine's own walk finds nothing.
    pub(crate) fn check(&self, who: &str) {
        if let Err(broken) = self.engine.check_invariants() {
            panic!("{who}: {broken}");
        }
        let dry = &self.engine.device().dry;
        for live in &self.live {
            let now = dry.pages_under(live.block.address, live.block.size);
            assert!(now.eq(live.parts.iter().copied()), "{who}: {:?} moved", live.block);
        }
        let held = self.engine.stats().memory_reserved() + self.engine.stranded_bytes();
        assert_eq!(dry.used(), held, "{who}: reserved is not what the device gave");
        let shown: u64 = self.engine.segments().iter().map(|segment| segment.total_size).sum();
        assert_eq!(
            shown,
            self.engine.stats().memory_reserved(),
            "{who}: shown twice, or not at all"
        );
    }
}

fn meet(one: &PagePart, other: &PagePart) -> bool {
    one.page == other.page
        && one.offset < other.offset + other.bytes
        && other.offset < one.offset + one.bytes
}

/// How many pages under live blocks are in use in two places.
pub(crate) fn shared_pages<'a>(dry: &Dry, live: impl Iterator<Item = &'a Allocation>) -> usize {
    let mut bases = BTreeSet::new();
    for block in live {
        let mut address = block.address;
        for part in dry.pages_under(block.address, block.size) {
            bases.insert((part.page, address.0 - part.offset));
            address = address.offset(part.bytes);
        }
    }
    let pages: BTreeSet<_> = bases.iter().map(|(page, _)| page).collect();
    bases.len() - pages.len()
}
