//! The history of an allocator: entries, call sites, snapshots, and what they add up to.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use tonnage_device::{Device, DeviceError, Dry, EventId, MemoryInfo, PageId};
use tonnage_engine::{
    Address, Allocation, Config, Context, DeviceId, Engine, PoolId, RecordOptions, Release,
    StackDepth, StreamFilter, StreamId,
};
use tonnage_events::{
    Action, BlockEvent, Event, PoolKind, SegmentEvent, SnapshotSegment, SplitChange, StackId,
    TraceEntry,
};

const MIB: u64 = 1 << 20;
const S0: StreamId = StreamId(0);
const S1: StreamId = StreamId(1);

/// An allocator that records everything.
fn recording(conf: &str, options: RecordOptions) -> Engine<Dry> {
    let config = Config::parse(conf, Release::default()).unwrap();
    let mut engine = Engine::new(Dry::new(8 << 30), config);
    engine.record_history(Some(options));
    engine
}

fn with_context(context: Context) -> RecordOptions {
    RecordOptions { context, ..RecordOptions::default() }
}

/// An entry without its time and stack.
type Bare = (Action, Address, u64, StreamId);

fn bare(entry: &TraceEntry) -> Bare {
    (entry.action, entry.address, entry.size, entry.stream)
}

/// The entries since the last look.
fn news(engine: &Engine<Dry>, seen: &mut usize) -> Vec<Bare> {
    let entries: Vec<_> = engine.history().unwrap().entries().skip(*seen).map(bare).collect();
    *seen += entries.len();
    entries
}

#[test]
fn a_block_and_its_segment_leave_five_entries() {
    let mut engine = recording("", RecordOptions::default());
    let mut seen = 0;
    let block = engine.allocate(1_000, S1).unwrap();
    let at = block.address;
    assert_eq!(
        news(&engine, &mut seen),
        [(Action::SegmentAlloc, at, 2 * MIB, S1), (Action::Alloc, at, 1_000, S1)]
    );
    engine.free(&block).unwrap();
    assert_eq!(
        news(&engine, &mut seen),
        [(Action::FreeRequested, at, 1_000, S1), (Action::FreeCompleted, at, 1_000, S1)]
    );
    engine.empty_cache().unwrap();
    assert_eq!(news(&engine, &mut seen), [(Action::SegmentFree, at, 2 * MIB, S1)]);
}

#[test]
fn a_block_from_the_cache_leaves_one_entry_at_its_own_place() {
    let mut engine = recording("", RecordOptions::default());
    let first = engine.allocate(3 * MIB, S0).unwrap();
    let mut seen = 0;
    news(&engine, &mut seen);
    let second = engine.allocate(5_000_000, S0).unwrap();
    let at = first.address.offset(3 * MIB);
    assert_eq!(news(&engine, &mut seen), [(Action::Alloc, at, 5_000_000, S0)]);
    assert_eq!(second.address, at);
}

#[test]
fn a_freed_block_reports_its_place_from_before_the_merge() {
    let mut engine = recording("", RecordOptions::default());
    let blocks = [(); 3].map(|()| engine.allocate(3 * MIB, S0).unwrap());
    engine.free(&blocks[0]).unwrap();
    let mut seen = 0;
    news(&engine, &mut seen);
    engine.free(&blocks[1]).unwrap();
    let (at, size) = (blocks[1].address, 3 * MIB);
    assert_eq!(
        news(&engine, &mut seen),
        [(Action::FreeRequested, at, size, S0), (Action::FreeCompleted, at, size, S0)]
    );
    assert_eq!(engine.segments()[0].blocks[0].size, 6 * MIB, "they have merged");
}

#[test]
fn an_expandable_segment_leaves_an_entry_for_each_run_of_pages() {
    let mut engine = recording("expandable_segments:True", RecordOptions::default());
    let mut seen = 0;
    let first = engine.allocate(5 * MIB, S0).unwrap();
    let base = first.address;
    assert_eq!(
        news(&engine, &mut seen),
        [(Action::SegmentMap, base, 20 * MIB, S0), (Action::Alloc, base, 5 * MIB, S0)]
    );
    let second = engine.allocate(50 * MIB, S0).unwrap();
    assert_eq!(
        news(&engine, &mut seen),
        [
            (Action::SegmentMap, base.offset(20 * MIB), 40 * MIB, S0),
            (Action::Alloc, base.offset(5 * MIB), 50 * MIB, S0),
        ]
    );
    engine.free(&second).unwrap();
    news(&engine, &mut seen);
    engine.empty_cache().unwrap();
    let unmapped = (Action::SegmentUnmap, base.offset(20 * MIB), 40 * MIB, S0);
    assert_eq!(news(&engine, &mut seen), [unmapped]);
}

#[test]
fn a_block_that_waits_is_completed_before_the_next_one_is_handed_out() {
    let mut engine = recording("", RecordOptions::default());
    engine.device_mut().hold_events();
    let block = engine.allocate(3 * MIB, S0).unwrap();
    engine.record_stream(block.address, S1).unwrap();
    let mut seen = 0;
    news(&engine, &mut seen);
    engine.free(&block).unwrap();
    let (at, size) = (block.address, 3 * MIB);
    assert_eq!(news(&engine, &mut seen), [(Action::FreeRequested, at, size, S0)]);
    engine.device_mut().complete_events();
    engine.allocate(size, S0).unwrap();
    assert_eq!(
        news(&engine, &mut seen),
        [(Action::FreeCompleted, at, size, S0), (Action::Alloc, at, size, S0)]
    );
}

#[test]
fn a_failure_leaves_what_it_released_and_then_an_oom_entry() {
    let config = Config::default();
    let mut engine = Engine::new(Dry::new(8 << 30).with_capacity(50 * MIB), config);
    engine.record_history(Some(RecordOptions::default()));
    let cached = engine.allocate(20 * MIB, S0).unwrap();
    engine.allocate(20 * MIB, S0).unwrap();
    engine.free(&cached).unwrap();
    let mut seen = 0;
    news(&engine, &mut seen);
    engine.allocate(40_000_001, S1).unwrap_err();
    assert_eq!(
        news(&engine, &mut seen),
        [
            (Action::SegmentFree, cached.address, 20 * MIB, S0),
            // The place says what the device has free, the size is rounded.
            (Action::Oom, Address(30 * MIB), 40_000_512, S1),
        ]
    );
}

#[test]
fn the_ring_keeps_the_last_entries_and_counts_the_others() {
    let max_entries = NonZeroUsize::new(4).unwrap();
    let mut engine = recording("", RecordOptions { max_entries, ..Default::default() });
    for round in 0..10_u64 {
        let block = engine.allocate(100 + round, S0).unwrap();
        engine.free(&block).unwrap();
    }
    let history = engine.history().unwrap();
    assert_eq!(history.entries().len(), 4);
    // One segment, then three entries a round.
    assert_eq!(history.dropped(), 1 + 30 - 4);
    let last: Vec<_> = history.entries().map(|entry| (entry.action, entry.size)).collect();
    assert_eq!(
        last,
        [
            (Action::FreeCompleted, 108),
            (Action::Alloc, 109),
            (Action::FreeRequested, 109),
            (Action::FreeCompleted, 109),
        ]
    );
}

#[test]
fn skipped_actions_leave_no_entry_and_every_other_does() {
    for skipped in [Action::Alloc, Action::SegmentAlloc, Action::FreeCompleted] {
        let options = RecordOptions { skip_actions: vec![skipped], ..Default::default() };
        let mut engine = recording("", options);
        let block = engine.allocate(100, S0).unwrap();
        engine.free(&block).unwrap();
        let got: Vec<_> = engine.history().unwrap().entries().map(|it| it.action).collect();
        let all =
            [Action::SegmentAlloc, Action::Alloc, Action::FreeRequested, Action::FreeCompleted];
        let expected: Vec<_> = all.into_iter().filter(|&it| it != skipped).collect();
        assert_eq!(got, expected);
    }
}

#[test]
fn entries_carry_the_time_of_their_clock() {
    let options = RecordOptions { clock: || 1_700_000_000_000_000, ..Default::default() };
    let mut engine = recording("", options);
    engine.allocate(100, S0).unwrap();
    let entries = engine.history().unwrap().entries();
    assert!(entries.into_iter().all(|entry| entry.time_us == 1_700_000_000_000_000));
}

#[test]
fn switching_history_off_forgets_it_and_on_begins_anew() {
    let mut engine = recording("", RecordOptions::default());
    engine.allocate(100, S0).unwrap();
    engine.record_history(None);
    assert!(engine.history().is_none());
    engine.allocate(100, S0).unwrap();
    engine.record_history(Some(RecordOptions::default()));
    assert_eq!(engine.history().unwrap().entries().len(), 0);
    assert!(engine.snapshot().entries.is_empty());
}

#[test]
fn recording_again_goes_on_with_the_new_options_unless_told_to_clear() {
    let mut engine = recording("", RecordOptions::default());
    let kept = engine.allocate(100, S0).unwrap();
    let max_entries = 2.try_into().unwrap();
    engine.allocate(100, S0).unwrap();
    engine.record_history(Some(RecordOptions { max_entries, ..Default::default() }));
    let actions = |engine: &Engine<Dry>| -> Vec<_> {
        engine.history().unwrap().entries().map(|entry| entry.action).collect()
    };
    assert_eq!(actions(&engine), [Action::Alloc, Action::Alloc]);
    engine.free(&kept).unwrap();
    assert_eq!(actions(&engine), [Action::FreeRequested, Action::FreeCompleted]);
    assert_eq!(engine.history().unwrap().dropped(), 3);
    engine.record_history(Some(RecordOptions { clear_history: true, ..Default::default() }));
    assert!(actions(&engine).is_empty());
    assert_eq!(engine.history().unwrap().dropped(), 0);
}

/// The line of this file that a stack names, if there is one.
fn line_of(engine: &Engine<Dry>, stack: Option<StackId>) -> Option<u32> {
    let frames = engine.history()?.stacks().frames(stack?);
    assert_eq!(frames.len(), 1, "a call site is one frame");
    assert!(frames[0].filename.ends_with("tests/engine/history.rs"), "{}", frames[0].filename);
    Some(frames[0].line)
}

/// What happened, with the line it names.
fn lines(engine: &Engine<Dry>) -> Vec<(Action, Option<u32>)> {
    let entries = engine.history().unwrap().entries();
    entries.map(|entry| (entry.action, line_of(engine, entry.stack))).collect()
}

/// A block's life under one context, and the lines of the three calls.
fn life(context: Context) -> (Engine<Dry>, [u32; 3]) {
    let mut engine = recording("", with_context(context));
    let (block, allocated) = (engine.allocate(100, S0).unwrap(), line!());
    let freed = line!() + 1;
    engine.free(&block).unwrap();
    let emptied = line!() + 1;
    engine.empty_cache().unwrap();
    (engine, [allocated, freed, emptied])
}

#[test]
fn with_all_contexts_each_entry_names_the_line_that_caused_it() {
    let (engine, [allocated, freed, emptied]) = life(Context::All);
    assert_eq!(
        lines(&engine),
        [
            (Action::SegmentAlloc, Some(allocated)),
            (Action::Alloc, Some(allocated)),
            (Action::FreeRequested, Some(freed)),
            (Action::FreeCompleted, Some(freed)),
            (Action::SegmentFree, Some(emptied)),
        ]
    );
}

#[test]
fn with_allocation_contexts_frees_name_the_line_that_allocated() {
    let (engine, [allocated, ..]) = life(Context::Alloc);
    assert!(lines(&engine).iter().all(|&(_, line)| line == Some(allocated)));
}

#[test]
fn with_state_or_no_contexts_entries_name_no_line() {
    for context in [Context::State, Context::Never] {
        let (mut engine, _) = life(context);
        assert!(lines(&engine).iter().all(|&(_, line)| line.is_none()));
        let (_block, line) = (engine.allocate(100, S0).unwrap(), line!());
        let segment = &engine.segments()[0];
        let known = (context == Context::State).then_some(line);
        assert_eq!(line_of(&engine, segment.blocks[0].stack), known);
        assert_eq!(line_of(&engine, segment.stack), known);
        assert_eq!(segment.blocks[1].stack, None, "a free block was allocated nowhere");
    }
}

#[test]
fn frees_by_address_and_pools_name_their_lines_too() {
    let mut engine = recording("", RecordOptions::default());
    let pool = PoolId(0, 1);
    engine.begin_allocate_to_pool(pool, StreamFilter::Any).unwrap();
    let block = engine.allocate(100, S0).unwrap();
    engine.end_allocate_to_pool(pool).unwrap();
    let freed = line!() + 1;
    engine.free_address(block.address).unwrap();
    engine.release_pool(pool).unwrap();
    let emptied = line!() + 1;
    engine.empty_cache_of(pool).unwrap();
    let lines = lines(&engine);
    assert_eq!(lines[2], (Action::FreeRequested, Some(freed)));
    assert_eq!(lines[4], (Action::SegmentFree, Some(emptied)));
}

#[test]
fn a_segment_keeps_the_line_that_obtained_it() {
    let mut engine = recording("", RecordOptions::default());
    let (first, obtained) = (engine.allocate(3 * MIB, S0).unwrap(), line!());
    let second = engine.allocate(3 * MIB, S0).unwrap();
    engine.free(&first).unwrap();
    assert_eq!(line_of(&engine, engine.segments()[0].stack), Some(obtained));
    engine.free(&second).unwrap();
    assert_eq!(line_of(&engine, engine.segments()[0].stack), Some(obtained));
    let _third = engine.allocate(4 * MIB, S0).unwrap();
    assert_eq!(line_of(&engine, engine.segments()[0].stack), Some(obtained));
}

#[test]
fn one_call_site_is_one_stack_however_often_it_calls() {
    let mut engine = recording("", RecordOptions::default());
    for _ in 0..20 {
        engine.allocate(100, S0).unwrap();
    }
    assert_eq!(engine.history().unwrap().stacks().len(), 1);
}

#[test]
fn blocks_of_an_earlier_recording_name_no_line_of_the_next() {
    let mut engine = recording("", RecordOptions::default());
    let (_early, early) = (engine.allocate(100, S0).unwrap(), line!());
    engine.record_history(Some(RecordOptions::default()));
    let (_late, late) = (engine.allocate(100, S0).unwrap(), line!());
    let segment = &engine.segments()[0];
    for stack in [segment.stack, segment.blocks[0].stack] {
        let line = line_of(&engine, stack);
        assert!(line.is_none_or(|line| line == early), "{line:?}, not {early}");
    }
    assert_eq!(line_of(&engine, segment.blocks[1].stack), Some(late));
    engine.record_history(None);
    let snapshot = engine.snapshot();
    let stacks = snapshot.segments[0].blocks.iter().filter_map(|block| block.stack);
    assert_eq!(stacks.count(), 0, "a snapshot without stacks names none");
}

#[test]
fn a_backtrace_reaches_up_to_the_caller() {
    let stacks = StackDepth::Backtrace;
    let mut engine = recording("", RecordOptions { stacks, ..Default::default() });
    engine.allocate(100, S0).unwrap();
    let history = engine.history().unwrap();
    let stack = history.entries().next().unwrap().stack.unwrap();
    let frames = history.stacks().frames(stack);
    assert!(
        frames.iter().any(|frame| frame.filename.ends_with("tests/engine/history.rs")),
        "{frames:?}"
    );
}

#[test]
fn a_snapshot_has_the_state_and_the_entries_up_to_it() {
    let mut engine = recording("", RecordOptions::default());
    let block = engine.allocate(3 * MIB, S0).unwrap();
    engine.allocate(100, S1).unwrap();
    engine.free(&block).unwrap();
    let entries: Vec<_> = engine.history().unwrap().entries().copied().collect();
    let segments = engine.segments();
    let snapshot = engine.snapshot();
    assert_eq!(snapshot.segments, segments);
    assert_eq!(snapshot.entries, entries);
    assert_eq!(snapshot.config, *engine.config());
    assert_eq!(snapshot.stacks.len(), engine.history().unwrap().stacks().len());
    assert!(snapshot.entries.iter().all(|entry| entry.action != Action::Snapshot));
    assert_eq!(engine.segments(), segments, "a look changes nothing");
}

#[test]
fn a_snapshots_own_entry_shows_only_in_the_next_one() {
    let mut engine = recording("", RecordOptions::default());
    engine.device_mut().hold_events();
    let pending = engine.allocate(100, S1).unwrap();
    engine.record_stream(pending.address, S0).unwrap();
    engine.free(&pending).unwrap();
    engine.allocate(3_000, S0).unwrap();
    let count = engine.snapshot().entries.len();
    let next = engine.snapshot();
    assert_eq!(next.entries.len(), count + 1);
    // Active bytes: the live block's 3,072 and the pending one's 512.
    let expected = (Action::Snapshot, Address(0), 3_584, StreamId(0));
    assert_eq!(bare(next.entries.last().unwrap()), expected);
}

#[test]
fn without_history_a_snapshot_has_segments_only() {
    let mut engine = Engine::new(Dry::new(8 << 30), Config::default());
    engine.allocate(100, S0).unwrap();
    let snapshot = engine.snapshot();
    assert_eq!((snapshot.segments.len(), snapshot.entries.len()), (1, 0));
    assert!(snapshot.stacks.is_empty());
}

/// A dry device that keeps the events it is told of.
#[derive(Debug)]
struct Watching {
    inner: Dry,
    events: Vec<Event>,
}

impl Device for Watching {
    fn id(&self) -> DeviceId {
        self.inner.id()
    }

    fn total(&self) -> u64 {
        self.inner.total()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DeviceError> {
        self.inner.memory_info()
    }

    fn acquire(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.inner.acquire(size)
    }

    fn release(&mut self, address: Address) -> Result<(), DeviceError> {
        self.inner.release(address)
    }

    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.inner.reserve(size)
    }

    fn unreserve(&mut self, address: Address) -> Result<(), DeviceError> {
        self.inner.unreserve(address)
    }

    fn create_page(&mut self, size: u64) -> Result<PageId, DeviceError> {
        self.inner.create_page(size)
    }

    fn destroy_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        self.inner.destroy_page(page)
    }

    fn map(&mut self, page: PageId, address: Address) -> Result<(), DeviceError> {
        self.inner.map(page, address)
    }

    fn unmap(&mut self, address: Address) -> Result<(), DeviceError> {
        self.inner.unmap(address)
    }

    fn record_event(&mut self, stream: StreamId) -> Result<EventId, DeviceError> {
        self.inner.record_event(stream)
    }

    fn query_event(&mut self, event: EventId) -> Result<bool, DeviceError> {
        self.inner.query_event(event)
    }

    fn wait_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.inner.wait_event(event)
    }

    fn wait_on(&mut self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.inner.wait_on(stream, event)
    }

    fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        self.inner.destroy_event(event)
    }

    fn synchronize(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.inner.synchronize(stream)
    }

    fn observe(&mut self, event: &Event) {
        self.events.push(*event);
    }
}

/// The figures of `memory_stats`, added up from events, by name.
#[derive(Default)]
struct Tally(BTreeMap<String, i64>);

impl Tally {
    fn new() -> Self {
        let mut tally = Self(BTreeMap::from([("max_split_size".to_owned(), -1)]));
        for name in ["alloc_retries", "ooms", "sync_all_streams", "device_alloc", "device_free"] {
            tally.count(&format!("num_{name}"), 0);
        }
        for name in ["allocation", "segment", "active", "inactive_split"] {
            for kind in [PoolKind::Small, PoolKind::Large] {
                tally.change(name, kind, 0);
            }
        }
        for name in ["allocated", "reserved", "active", "inactive_split", "requested"] {
            for kind in [PoolKind::Small, PoolKind::Large] {
                tally.change(&format!("{name}_bytes"), kind, 0);
            }
        }
        for name in ["oversize_allocations", "oversize_segments"] {
            tally.change_one(name, 0);
        }
        tally
    }

    fn count(&mut self, name: &str, by: i64) {
        *self.0.entry(name.to_owned()).or_default() += by;
    }

    fn change_one(&mut self, name: &str, by: i64) {
        self.count(&format!("{name}.current"), by);
        self.count(&format!("{name}.allocated"), by.max(0));
        self.count(&format!("{name}.freed"), (-by).max(0));
        let current = self.0[&format!("{name}.current")];
        let peak = self.0.entry(format!("{name}.peak")).or_default();
        *peak = (*peak).max(current);
    }

    fn change(&mut self, name: &str, kind: PoolKind, by: i64) {
        self.change_one(&format!("{name}.all"), by);
        self.change_one(&format!("{name}.{kind}_pool"), by);
    }

    fn split(&mut self, kind: PoolKind, SplitChange { count, bytes }: SplitChange) {
        self.change("inactive_split", kind, count);
        self.change("inactive_split_bytes", kind, bytes);
    }

    fn allocated(&mut self, block: &BlockEvent, sign: i64) {
        self.change("allocation", block.kind, sign);
        self.change("allocated_bytes", block.kind, sign * block.size as i64);
        if block.oversize {
            self.change_one("oversize_allocations", sign);
        }
    }

    fn active(&mut self, block: &BlockEvent, sign: i64) {
        self.change("active", block.kind, sign);
        self.change("active_bytes", block.kind, sign * block.size as i64);
        self.change("requested_bytes", block.kind, sign * block.requested as i64);
        self.split(block.kind, block.split);
    }

    fn reserved(&mut self, it: &SegmentEvent, whole: bool, sign: i64) {
        self.change("reserved_bytes", it.kind, sign * it.size as i64);
        let call = if sign > 0 { "num_device_alloc" } else { "num_device_free" };
        self.count(call, 1);
        if whole {
            self.change("segment", it.kind, sign);
            if it.oversize {
                self.change_one("oversize_segments", sign);
            }
        }
    }

    fn add(&mut self, event: &Event) {
        match event {
            Event::Alloc(block) => {
                self.allocated(block, 1);
                self.active(block, 1);
            }
            Event::FreeRequested(block) => self.allocated(block, -1),
            Event::FreeCompleted(block) => self.active(block, -1),
            Event::SegmentAlloc(it) => self.reserved(it, true, 1),
            Event::SegmentFree(it) => self.reserved(it, true, -1),
            Event::SegmentMap(it) => self.reserved(it, false, 1),
            Event::SegmentUnmap(it) => self.reserved(it, false, -1),
            Event::Oom { .. } => self.count("num_ooms", 1),
            Event::Retry => self.count("num_alloc_retries", 1),
            Event::Synchronize => self.count("num_sync_all_streams", 1),
            Event::Rejected => self.count("num_oom_rejections", 1),
            Event::Snapshot { .. } => {}
        }
    }
}

/// Blocks and segments, rebuilt from a history.
#[derive(Default)]
struct RebuiltState {
    /// Live blocks: where, and what was asked for.
    live: BTreeMap<Address, u64>,
    /// Freed and not yet completed.
    pending: BTreeMap<Address, u64>,
    /// What was obtained from the device and not given back, page runs joined where they touch.
    reserved: BTreeMap<Address, u64>,
}

impl RebuiltState {
    fn add(&mut self, entry: &TraceEntry) {
        let TraceEntry { action, address, size, .. } = *entry;
        match action {
            Action::Alloc => assert_eq!(self.live.insert(address, size), None, "{entry}"),
            Action::FreeRequested => {
                assert_eq!(self.live.remove(&address), Some(size), "{entry}");
                assert_eq!(self.pending.insert(address, size), None, "{entry}");
            }
            Action::FreeCompleted => {
                assert_eq!(self.pending.remove(&address), Some(size), "{entry}");
            }
            Action::SegmentAlloc | Action::SegmentMap => {
                assert_eq!(self.reserved.insert(address, size), None, "{entry}");
            }
            Action::SegmentFree => {
                assert_eq!(self.reserved.remove(&address), Some(size), "{entry}");
            }
            Action::SegmentUnmap => self.unmap(address, size),
            Action::Snapshot | Action::Oom | Action::Annotate => {}
        }
    }

    /// Takes pages out of the runs that hold them.
    fn unmap(&mut self, address: Address, size: u64) {
        let end = address.offset(size);
        let runs: Vec<_> = self.reserved.range(..end).map(|(&at, &of)| (at, of)).collect();
        for (at, of) in runs {
            let run_end = at.offset(of);
            if run_end <= address {
                continue;
            }
            self.reserved.remove(&at);
            if at < address {
                self.reserved.insert(at, address.distance_from(at));
            }
            if run_end > end {
                self.reserved.insert(end, run_end.distance_from(end));
            }
        }
    }

    fn assert_is(&self, segments: &[SnapshotSegment], seed: u64) {
        use tonnage_events::BlockState;
        let in_state = |state| {
            let blocks = segments.iter().flat_map(|segment| &segment.blocks);
            let of_state = blocks.filter(move |block| block.state == state);
            of_state.map(|it| (it.address, it.requested_size)).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(self.live, in_state(BlockState::ActiveAllocated), "seed {seed}");
        assert_eq!(self.pending, in_state(BlockState::ActivePendingFree), "seed {seed}");
        let total: u64 = segments.iter().map(|segment| segment.total_size).sum();
        assert_eq!(self.reserved.values().sum::<u64>(), total, "seed {seed}");
    }
}

/// Random work on an allocator that is watched and recorded.
fn worked(seed: u64) -> Engine<Watching> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 8) % below
    };
    let conf = ["", "expandable_segments:True", "max_split_size_mb:30", ""][seed as usize % 4];
    let config = Config::parse(conf, Release::ALL[seed as usize % 3]).unwrap();
    let inner = Dry::new(8 << 30).with_capacity(300 * MIB);
    let mut engine = Engine::new(Watching { inner, events: Vec::new() }, config);
    engine.record_history(Some(RecordOptions::default()));
    let pool = PoolId(0, 1);
    let mut live: Vec<Allocation> = Vec::new();
    for _ in 0..400 {
        match random(20) {
            0..=9 => {
                let largest = [5_000, 3 * MIB, 60 * MIB][random(3) as usize];
                let bytes = 1 + random(largest);
                // It may fail: the history tells of that too.
                live.extend(engine.allocate(bytes, StreamId(random(2))));
            }
            10..=15 if !live.is_empty() => {
                let block = live.swap_remove(random(live.len() as u64) as usize);
                engine.free(&block).unwrap();
            }
            16 if !live.is_empty() => {
                let block = live[random(live.len() as u64) as usize];
                engine.record_stream(block.address, StreamId(random(3))).unwrap();
            }
            17 => engine.device_mut().inner.hold_events(),
            18 => engine.device_mut().inner.complete_events(),
            19 if random(3) == 0 => engine.empty_cache().unwrap(),
            // One or the other fits.
            19 if engine.end_allocate_to_pool(pool).is_err() => {
                engine.begin_allocate_to_pool(pool, StreamFilter::Only(vec![S1])).unwrap();
            }
            _ => {}
        }
    }
    engine
}

#[test]
fn the_figures_are_what_the_events_add_up_to() {
    for seed in 0..60 {
        let engine = worked(seed);
        let mut tally = Tally::new();
        for event in &engine.device().events {
            tally.add(event);
        }
        // Not set by an event: what it was when the allocator was made.
        tally.0.insert("max_split_size".to_owned(), engine.stats().max_split_size);
        let figures: BTreeMap<_, _> = engine.stats().memory_stats().into_iter().collect();
        assert_eq!(figures, tally.0, "seed {seed}");
    }
}

#[test]
fn the_entries_are_those_events_that_pytorch_shows() {
    for seed in 0..60 {
        let engine = worked(seed);
        let events = engine.device().events.iter().filter_map(TraceEntry::of);
        let expected: Vec<_> = events.map(|entry| bare(&entry)).collect();
        let got: Vec<_> = engine.history().unwrap().entries().map(bare).collect();
        assert_eq!(got, expected, "seed {seed}");
    }
}

#[test]
fn the_entries_tell_which_blocks_live_wait_and_are_reserved() {
    for seed in 0..60 {
        let engine = worked(seed);
        let mut rebuilt = RebuiltState::default();
        for entry in engine.history().unwrap().entries() {
            rebuilt.add(entry);
        }
        let (live, pending) =
            (rebuilt.live.values().sum::<u64>(), rebuilt.pending.values().sum::<u64>());
        let stats = engine.stats();
        assert_eq!((live + pending) as i64, stats.requested_bytes.all.current, "seed {seed}");
        assert_eq!(rebuilt.live.len() as i64, stats.allocation.all.current, "seed {seed}");
        assert_eq!(
            (rebuilt.live.len() + rebuilt.pending.len()) as i64,
            stats.active.all.current,
            "seed {seed}"
        );
        let reserved = rebuilt.reserved.values().sum::<u64>();
        assert_eq!(reserved, stats.memory_reserved(), "seed {seed}");
        rebuilt.assert_is(&engine.segments(), seed);
    }
}
