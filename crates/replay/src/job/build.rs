//! From entries to calls.

use std::iter::Peekable;
use std::slice::Iter;

use rustc_hash::FxHashMap;
use tonnage_events::{Action, Address, BlockState, PoolId, SnapshotSegment, TraceEntry};

use super::pending::with_streams;
use super::{Call, Job, Request, Step};
use crate::recording::Reading;

/// What a reading says about places in the history, by ascending entry.
type Places<'a> = Peekable<Iter<'a, (usize, PoolId)>>;

struct Builder<'a> {
    job: Job,
    emptied: Places<'a>,
    pools: Places<'a>,
    released: Places<'a>,
    /// Where calls inside a capture begin.
    captured: Peekable<Iter<'a, usize>>,
    /// Blocks in their owners' hands: number and bytes.
    live: FxHashMap<Address, (usize, u64)>,
    live_bytes: u64,
    /// Frees that were not found complete yet: the steps.
    open: FxHashMap<Address, usize>,
    /// The last request, if it failed: its step, and the live bytes.
    failed: Option<(usize, u64)>,
    unknown_frees: usize,
    /// Steps that come before the history.
    start_steps: usize,
}

pub(super) fn build(entries: &[TraceEntry], reading: &Reading) -> Job {
    let mut builder = Builder {
        job: Job { events: entries.len(), ..Job::default() },
        emptied: reading.emptied.iter().peekable(),
        pools: reading.pools.iter().peekable(),
        released: reading.released.iter().peekable(),
        captured: reading.captured.iter().peekable(),
        live: FxHashMap::default(),
        live_bytes: 0,
        open: FxHashMap::default(),
        failed: None,
        unknown_frees: 0,
        start_steps: 0,
    };
    builder.start(&reading.start);
    for (index, entry) in entries.iter().enumerate() {
        builder.calls_before(index);
        builder.entry(index, entry);
    }
    builder.calls_before(entries.len());
    builder.finish(reading)
}

impl Builder<'_> {
    /// Asks for what is in use where the history begins, segment by segment.
    fn start(&mut self, segments: &[SnapshotSegment]) {
        for segment in segments {
            for block in segment.blocks.iter().filter(|it| it.state != BlockState::Inactive) {
                // A block that was never asked for by size is as large as it is.
                let bytes =
                    if block.requested_size > 0 { block.requested_size } else { block.size };
                let request = Request { bytes, stream: segment.stream, pool: segment.pool };
                self.allocate(0, block.address, request, false);
                if block.state == BlockState::ActivePendingFree {
                    self.free(0, block.address);
                }
            }
        }
        self.start_steps = self.job.steps.len();
    }

    /// Calls that no entry shows by itself.
    fn calls_before(&mut self, index: usize) {
        while let Some(&(_, pool)) = self.released.next_if(|&&(at, _)| at <= index) {
            self.push(index, Call::ReleasePool(pool));
        }
        while let Some(&(from, pool)) = self.emptied.next_if(|&&(at, _)| at <= index) {
            let captured = self.captured.next_if(|&&at| at <= from).is_some();
            self.push_inside(index, captured, Call::EmptyCache(pool));
        }
    }

    fn entry(&mut self, index: usize, entry: &TraceEntry) {
        let &TraceEntry { address, size: bytes, stream, .. } = entry;
        match entry.action {
            Action::Alloc => {
                let request = Request { bytes, stream, pool: self.pool_of_request(index) };
                let captured = self.captured.next_if(|&&from| from <= index).is_some();
                self.allocate(index, address, request, captured);
            }
            Action::Oom => {
                let request = Request { bytes, stream, pool: self.pool_of_request(index) };
                let captured = self.captured.next_if(|&&from| from <= index).is_some();
                self.failed = Some((self.job.steps.len() + usize::from(captured), self.live_bytes));
                self.push_inside(index, captured, Call::FailedAllocate { request, fatal: false });
            }
            Action::FreeRequested => self.free(index, address),
            Action::FreeCompleted => self.complete(index, address),
            Action::SegmentAlloc
            | Action::SegmentFree
            | Action::SegmentMap
            | Action::SegmentUnmap
            | Action::Snapshot
            | Action::Annotate => {}
        }
    }

    /// The pool of the request that ends with this entry. Every earlier one took its own.
    fn pool_of_request(&mut self, index: usize) -> PoolId {
        self.pools.next_if(|&&(from, _)| from <= index).map_or(PoolId::DEFAULT, |&(_, pool)| pool)
    }

    fn allocate(&mut self, entry: usize, address: Address, request: Request, captured: bool) {
        self.open.remove(&address);
        if request.bytes == 0 {
            // No allocator is asked for nothing; only a damaged file says so.
            return;
        }
        self.failed = None;
        let number = self.job.blocks;
        self.job.blocks += 1;
        if let Some((_, bytes)) = self.live.insert(address, (number, request.bytes)) {
            self.live_bytes = self.live_bytes.saturating_sub(bytes);
        }
        self.live_bytes = self.live_bytes.saturating_add(request.bytes);
        self.job.floor = self.job.floor.max(self.live_bytes);
        self.push_inside(entry, captured, Call::Allocate(request));
    }

    fn free(&mut self, entry: usize, address: Address) {
        let Some((block, bytes)) = self.live.remove(&address) else {
            self.unknown_frees += 1;
            return;
        };
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
        self.open.insert(address, self.job.steps.len());
        self.push(entry, Call::Free { block, complete: None });
    }

    fn complete(&mut self, entry: usize, address: Address) {
        let Some(step) = self.open.remove(&address) else { return };
        if let Call::Free { complete, .. } = &mut self.job.steps[step].call {
            *complete = Some(entry);
        }
    }

    /// A call that was made inside a capture, or not. When the capture began and ended is not known.
    fn push_inside(&mut self, entry: usize, captured: bool, call: Call) {
        if !captured {
            return self.push(entry, call);
        }
        for call in [Call::BeginCapture, call, Call::EndCapture] {
            self.push(entry, call);
        }
    }

    fn push(&mut self, entry: usize, call: Call) {
        self.job.steps.push(Step { entry, call });
    }

    fn finish(mut self, reading: &Reading) -> Job {
        if let Some((step, live)) = self.failed
            && let Call::FailedAllocate { request, fatal } = &mut self.job.steps[step].call
        {
            *fatal = true;
            self.job.floor = self.job.floor.max(live.saturating_add(request.bytes));
        }
        self.job.begins_late = !reading.start.is_empty();
        self.job.notes = notes(reading, self.unknown_frees);
        self.job.steps = with_streams(self.job.steps, self.start_steps);
        self.job
    }
}

/// What is not known about the job, in words.
fn notes(reading: &Reading, unknown_frees: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if !reading.start.is_empty() {
        notes.push(
            "the history does not go back to the beginning: what was in use there is asked for first, by \
             address; what was cached there would not be the same under other settings and is left out"
                .to_owned(),
        );
    }
    let seen = match reading.emptied.len() {
        0 => "no call of empty_cache was seen to release memory".to_owned(),
        1 => "empty_cache is called where it was seen to release memory, once".to_owned(),
        times => {
            format!("empty_cache is called where it was seen to release memory, {times} times")
        }
    };
    notes.push(format!(
        "{seen}; a call that released nothing is not seen, and under other settings might release something"
    ));
    if unknown_frees > 0 {
        notes
            .push(format!("frees of blocks that no entry allocated are left out: {unknown_frees}"));
    }
    notes
}

#[cfg(test)]
mod tests {
    use tonnage_events::StreamId;

    use super::*;

    fn entry(action: Action, address: u64) -> TraceEntry {
        let (stream, time_us, stack) = (StreamId(0), 0, None);
        TraceEntry { action, address: Address(address), size: 7, stream, time_us, stack }
    }

    fn calls(entries: &[TraceEntry], reading: &Reading) -> Vec<Call> {
        Job::new(entries, reading).steps().iter().map(|step| step.call).collect()
    }

    fn allocate(pool: PoolId) -> Call {
        Call::Allocate(Request { bytes: 7, stream: StreamId(0), pool })
    }

    #[test]
    fn a_free_that_completes_late_was_used_on_another_stream() {
        let entries = [
            entry(Action::SegmentAlloc, 1),
            entry(Action::Alloc, 1),
            entry(Action::Alloc, 2),
            entry(Action::FreeRequested, 2),
            entry(Action::FreeCompleted, 2),
            entry(Action::FreeRequested, 1),
            entry(Action::Snapshot, 0),
            entry(Action::FreeCompleted, 1),
            entry(Action::FreeRequested, 9),
        ];
        let job = Job::new(&entries, &Reading::default());
        let steps = job.steps();
        let at = |step: usize| (steps[step].entry, steps[step].call);
        assert_eq!(at(0), (1, allocate(PoolId::DEFAULT)));
        assert_eq!(at(1), (2, allocate(PoolId::DEFAULT)));
        assert_eq!(at(2), (3, Call::Free { block: 1, complete: Some(4) }));
        assert!(matches!(
            at(3),
            (5, Call::RecordStream { block: 0, stream }) if stream != StreamId(0)
        ));
        assert_eq!(at(4), (5, Call::Free { block: 0, complete: Some(7) }));
        assert_eq!(steps.len(), 5);
        assert_eq!((job.blocks(), job.floor()), (2, 14));
        assert!(job.notes().iter().any(|note| note.ends_with("left out: 1")), "{:?}", job.notes());
    }

    #[test]
    fn pools_and_emptied_caches_are_where_they_were_read() {
        let entries = [
            entry(Action::SegmentAlloc, 1),
            entry(Action::Alloc, 1),
            entry(Action::Alloc, 2),
            entry(Action::SegmentFree, 8),
            entry(Action::SegmentAlloc, 8),
            entry(Action::Alloc, 8),
        ];
        let pool = PoolId(0, 1);
        let reading = Reading {
            pools: vec![(0, pool), (4, pool)],
            released: vec![(3, pool)],
            emptied: vec![(3, PoolId::DEFAULT), (6, pool)],
            ..Reading::default()
        };
        let expected = [
            allocate(pool),
            allocate(PoolId::DEFAULT),
            Call::ReleasePool(pool),
            Call::EmptyCache(PoolId::DEFAULT),
            allocate(pool),
            Call::EmptyCache(pool),
        ];
        assert_eq!(calls(&entries, &reading), expected);
    }

    #[test]
    fn calls_inside_a_capture_are_made_inside_one() {
        let entries = [
            entry(Action::SegmentFree, 8),
            entry(Action::Alloc, 1),
            entry(Action::SegmentFree, 9),
            entry(Action::Oom, 2),
        ];
        let pool = PoolId(0, 1);
        let reading = Reading {
            emptied: vec![(0, PoolId::DEFAULT)],
            pools: vec![(2, pool)],
            captured: vec![0, 2],
            ..Reading::default()
        };
        let request = Request { bytes: 7, stream: StreamId(0), pool };
        let expected = [
            Call::BeginCapture,
            Call::EmptyCache(PoolId::DEFAULT),
            Call::EndCapture,
            allocate(PoolId::DEFAULT),
            Call::BeginCapture,
            Call::FailedAllocate { request, fatal: true },
            Call::EndCapture,
        ];
        assert_eq!(calls(&entries, &reading), expected);
    }

    #[test]
    fn the_last_request_was_fatal_if_it_failed() {
        let request = Request { bytes: 7, stream: StreamId(0), pool: PoolId::DEFAULT };
        let failed = |fatal| Call::FailedAllocate { request, fatal };
        let went_on = [Action::Oom, Action::Alloc].map(|action| entry(action, 1));
        let expected = [failed(false), allocate(PoolId::DEFAULT)];
        assert_eq!(calls(&went_on, &Reading::default()), expected);
        let died = [Action::Alloc, Action::Oom, Action::FreeRequested].map(|it| entry(it, 1));
        let job = Job::new(&died, &Reading::default());
        assert_eq!(job.steps()[1].call, failed(true));
        assert_eq!(job.floor(), 14, "the job needed both");
    }

    #[test]
    fn what_the_history_begins_with_is_asked_for_first() {
        use tonnage_events::{DeviceId, PoolKind, SnapshotBlock};
        let block = |address, state| SnapshotBlock {
            address: Address(address),
            size: 512,
            requested_size: 7,
            state,
            stack: None,
        };
        let segment = SnapshotSegment {
            device: DeviceId(0),
            address: Address(0),
            total_size: 1536,
            allocated_size: 512,
            active_size: 1024,
            requested_size: 14,
            stream: StreamId(0),
            kind: PoolKind::Small,
            pool: PoolId::DEFAULT,
            expandable: false,
            stack: None,
            blocks: vec![
                block(0, BlockState::ActivePendingFree),
                block(512, BlockState::Inactive),
                block(1024, BlockState::ActiveAllocated),
            ],
        };
        let reading = Reading { start: vec![segment], ..Reading::default() };
        let entries = [
            entry(Action::Alloc, 512),
            entry(Action::FreeCompleted, 0),
            entry(Action::FreeRequested, 1024),
            entry(Action::FreeCompleted, 1024),
        ];
        let calls = calls(&entries, &reading);
        assert_eq!(calls[0], allocate(PoolId::DEFAULT));
        assert!(matches!(calls[1], Call::RecordStream { block: 0, .. }));
        assert_eq!(calls[2], Call::Free { block: 0, complete: Some(1) });
        assert_eq!(calls[3..5], [allocate(PoolId::DEFAULT); 2]);
        assert_eq!(calls[5], Call::Free { block: 1, complete: Some(3) });
    }
}
