//! The allocator once more, from the specification alone and as simple as possible: one flat list of
//! blocks, found by walking over it. Slow, and with no code in common with the engine.
//!
//! Figures are added up from the blocks each time they are asked for, except those that count
//! events. Section numbers are the specification's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tonnage_engine::Release;

const MIB: u64 = 1 << 20;
const GRANULE: u64 = 512;

/// The pool of what pools that are gone have left behind.
pub(crate) const NO_POOL: usize = usize::MAX;

/// Where the dry device puts segments and ranges.
const SEGMENTS_FROM: u64 = 0x7000_0000_0000;
const RANGES_FROM: u64 = 0x6000_0000_0000;

/// The settings that decide something (19.4).
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) release: Release,
    pub(crate) max_split: u64,
    pub(crate) non_split_rounding: u64,
    pub(crate) gc_threshold: f64,
    pub(crate) divisions: [u64; 16],
    pub(crate) expandable: bool,
    pub(crate) large_segment: u64,
    pub(crate) fraction: f64,
    pub(crate) rejects: bool,
    /// Of a thousand parts of the device, how many a range reserves.
    pub(crate) reserve: Option<u64>,
}

/// One setting of a settings string.
#[derive(Clone, Debug)]
pub(crate) enum Setting {
    MaxSplitMb(u64),
    NonSplitRoundingMb(u64),
    GcThreshold(f64),
    Divisions(u64),
    /// Bounds in MB with their divisions, and the divisions from there on.
    DivisionList(Vec<(u64, u64)>, Option<u64>),
    Expandable(bool),
    LargeSegmentMb(u64),
    Fraction(f64),
    Rejects(bool),
    ReserveThousandths(u64),
}

impl Settings {
    pub(crate) fn new(release: Release) -> Self {
        Self {
            release,
            max_split: u64::MAX,
            non_split_rounding: 20 * MIB,
            gc_threshold: 0.0,
            divisions: [0; 16],
            expandable: false,
            large_segment: 20 * MIB,
            fraction: 1.0,
            rejects: false,
            reserve: None,
        }
    }

    /// Reads a settings string: 19.3.
    pub(crate) fn apply(&mut self, settings: &[Setting]) {
        self.max_split = u64::MAX;
        self.divisions = [0; 16];
        self.gc_threshold = 0.0;
        for setting in settings {
            if let Setting::LargeSegmentMb(mb) = setting {
                self.large_segment = mb * MIB;
            }
        }
        if self.release >= Release::V2_11 {
            self.non_split_rounding = self.large_segment;
        }
        for setting in settings {
            match setting {
                Setting::MaxSplitMb(mb) => self.max_split = mb * MIB,
                Setting::NonSplitRoundingMb(mb) => self.non_split_rounding = mb * MIB,
                Setting::GcThreshold(threshold) => self.gc_threshold = *threshold,
                Setting::Divisions(divisions) => self.divisions = [*divisions; 16],
                Setting::DivisionList(list, rest) => self.apply_list(list, *rest),
                Setting::Expandable(on) => self.expandable = *on,
                Setting::LargeSegmentMb(_) => {}
                Setting::Fraction(fraction) => self.fraction = *fraction,
                Setting::Rejects(on) => self.rejects = *on,
                Setting::ReserveThousandths(parts) => self.reserve = Some(*parts),
            }
        }
    }

    /// 3.3
    fn apply_list(&mut self, list: &[(u64, u64)], rest: Option<u64>) {
        let slot = |mb: u64| (mb.ilog2() as usize).min(15);
        for (index, &(mb, divisions)) in list.iter().enumerate() {
            if index == 0 {
                self.divisions[..slot(mb)].fill(divisions);
            }
            self.divisions[slot(mb)] = divisions;
        }
        if let Some(divisions) = rest {
            let last = list.last().map_or(0, |&(mb, _)| slot(mb));
            let from = if self.release < Release::V2_10 { last } else { last + 1 };
            self.divisions[from..].fill(divisions);
        }
    }

    /// 16
    fn limit_of(&self, fraction: f64, total: u64) -> u64 {
        let share = fraction * total as f64;
        // Halves go up.
        (if self.release < Release::V2_13 { share } else { share + 0.5 }) as u64
    }

    /// 3
    fn round(&self, bytes: u64) -> u64 {
        if bytes < GRANULE {
            return GRANULE;
        }
        let slot = (bytes.ilog2() as usize).saturating_sub(20).min(15);
        let divisions = self.divisions[slot];
        if divisions <= 1 || bytes <= GRANULE * divisions {
            return bytes.div_ceil(GRANULE) * GRANULE;
        }
        if bytes.is_power_of_two() {
            return bytes;
        }
        let floor = 1_u64 << bytes.ilog2();
        let step = floor / divisions;
        bytes.div_ceil(step) * step
    }

    /// 4
    fn segment_size(&self, size: u64) -> u64 {
        if size <= MIB {
            2 * MIB
        } else if size < 10 * MIB {
            self.large_segment
        } else {
            size.div_ceil(2 * MIB) * 2 * MIB
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Allocated,
    Pending,
    Free,
    Unmapped,
}

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) stream: u64,
    /// Index into the pools; 0 is the default one.
    pub(crate) pool: usize,
    pub(crate) small: bool,
    pub(crate) state: State,
    /// Where its segment or range begins: tells segments apart that touch.
    segment: u64,
    /// When its segment or range was made.
    born: u64,
    /// When it was made itself, as PyTorch makes blocks.
    number: u64,
    /// Bytes of a page, if its segment is expandable.
    page: Option<u64>,
    /// Searches its pool had seen when it went in.
    searches_before: u64,
    uses: BTreeSet<u64>,
    uses_while_capturing: BTreeSet<u64>,
    events: u32,
}

impl Block {
    pub(crate) fn is_expandable(&self) -> bool {
        self.page.is_some()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) uses: u64,
    pub(crate) no_split: bool,
    pub(crate) use_on_oom: bool,
    /// Whether it was freeable and seemed to hold no memory when memory was given back last.
    pub(crate) gone: bool,
    /// Growths, less what was given back: PyTorch's `cudaMalloc_count` (Q2).
    pub(crate) growths: u64,
    /// Searches of the small and of the large half (5.2).
    searches: [u64; 2],
}

impl Pool {
    fn new() -> Self {
        Self {
            uses: 1,
            no_split: false,
            use_on_oom: false,
            gone: false,
            growths: 0,
            searches: [0; 2],
        }
    }
}

/// What only counts events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) retries: i64,
    pub(crate) ooms: i64,
    pub(crate) rejections: i64,
    pub(crate) syncs: i64,
    pub(crate) device_allocs: i64,
    pub(crate) device_frees: i64,
    pub(crate) oversize_allocations: i64,
    pub(crate) oversize_segments: i64,
    /// The most that reserved, allocated and active bytes have been.
    pub(crate) peaks: [i64; 3],
}

/// A request that a setting turns down before the device is asked.
#[derive(Clone, Copy, Debug)]
struct Rejected;

/// Which part of a block that is cut in two is a new block.
#[derive(Clone, Copy, Debug)]
enum Part {
    Front,
    Back,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    bytes: u64,
    size: u64,
    stream: u64,
    pool: usize,
    small: bool,
    segment_size: u64,
    expandable: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) settings: Settings,
    pub(crate) total: u64,
    capacity: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) pools: Vec<Pool>,
    /// Pools that requests are diverted to, oldest first, each with the streams it takes.
    pub(crate) diversions: Vec<(usize, Option<Vec<u64>>)>,
    /// For each stream, the blocks that wait for an event of it, oldest first.
    events: BTreeMap<u64, VecDeque<u64>>,
    deferred: Vec<u64>,
    /// The streams whose events count as complete; none means every stream.
    complete: Option<BTreeSet<u64>>,
    /// Captures that have begun and not ended.
    pub(crate) captures: u32,
    /// Blocks, segments and ranges made so far.
    made: u64,
    pub(crate) counts: Counts,
}

impl Model {
    pub(crate) fn new(settings: Settings, total: u64, capacity: u64) -> Self {
        let limit =
            (settings.fraction < 1.0).then_some(settings.limit_of(settings.fraction, total));
        Self {
            settings,
            total,
            capacity,
            limit,
            blocks: Vec::new(),
            pools: vec![Pool::new()],
            diversions: Vec::new(),
            events: BTreeMap::new(),
            deferred: Vec::new(),
            complete: None,
            captures: 0,
            made: 0,
            counts: Counts::default(),
        }
    }

    // What the caller does.

    /// 7
    pub(crate) fn allocate(&mut self, bytes: u64, stream: u64) -> Option<u64> {
        if !self.capturing() {
            self.process_events();
        }
        let size = self.settings.round(bytes);
        let request = Request {
            bytes,
            size,
            stream,
            pool: self.pool_for(stream),
            small: size <= MIB,
            segment_size: self.settings.segment_size(size),
            expandable: self.settings.expandable,
        };
        let found = match self.search(&request) {
            Some(found) => Ok(Some((found, request))),
            None => self.obtain(request),
        };
        match found {
            Ok(Some((found, request))) => Some(self.hand_out(found, &request)),
            Ok(None) => {
                self.counts.ooms += 1;
                None
            }
            Err(Rejected) => {
                self.counts.rejections += 1;
                None
            }
        }
    }

    /// What a capture is (the addendum): up to 2.12 any open pool scope.
    fn capturing(&self) -> bool {
        if self.settings.release <= Release::V2_12 {
            !self.diversions.is_empty()
        } else {
            self.captures > 0
        }
    }

    /// 7, from the miss on
    fn obtain(&mut self, request: Request) -> Result<Option<(u64, Request)>, Rejected> {
        if self.collects_garbage() {
            self.collect_garbage();
        }
        if let Some(found) = self.grow(&request)? {
            return Ok(Some((found, request)));
        }
        if self.settings.release >= Release::V2_11
            && let Some(found) = self.search_spare_pool(&request)
        {
            return Ok(Some(found));
        }
        if self.release_oversize(&request)
            && let Some(found) = self.grow(&request)?
        {
            return Ok(Some((found, request)));
        }
        if !self.capturing() {
            self.empty_cache();
            self.counts.retries += 1;
            if let Some(found) = self.grow(&request)? {
                return Ok(Some((found, request)));
            }
        }
        if self.settings.release < Release::V2_11 {
            return Ok(self.search_spare_pool(&request));
        }
        Ok(None)
    }

    /// 11
    pub(crate) fn free(&mut self, address: u64) {
        let max_split = self.settings.max_split;
        let block = self.block_mut(address);
        block.state = State::Pending;
        let (oversize, unused) = (block.size >= max_split, block.uses.is_empty());
        if oversize {
            self.counts.oversize_allocations -= 1;
        }
        if unused {
            self.complete_free(address);
        } else if self.capturing() {
            self.deferred.push(address);
        } else {
            self.insert_events(address);
        }
    }

    /// 12.1
    pub(crate) fn record_stream(&mut self, address: u64, stream: u64) {
        let capturing = self.capturing();
        let block = self.block_mut(address);
        if block.stream == stream {
            return;
        }
        block.uses.insert(stream);
        if capturing {
            block.uses_while_capturing.insert(stream);
        }
    }

    pub(crate) fn complete_events(&mut self) {
        self.complete = None;
    }

    pub(crate) fn hold_events(&mut self) {
        self.complete = Some(BTreeSet::new());
    }

    pub(crate) fn complete_events_of(&mut self, stream: u64) {
        if let Some(streams) = &mut self.complete {
            streams.insert(stream);
        }
    }

    /// 9.3 for the default pool, 15
    pub(crate) fn empty_cache(&mut self) {
        if !self.capturing() {
            self.synchronize(None);
            self.release_free(0, false);
            self.release_free(0, true);
        }
        for pool in 1..self.pools.len() {
            if self.pools[pool].uses == 0 {
                self.release_pool_memory(pool);
            }
        }
    }

    /// 9.3 for a private pool; whether it was possible (Q18)
    pub(crate) fn empty_cache_of(&mut self, pool: usize) -> bool {
        if self.pools[pool].uses > 0 || self.pools[pool].gone {
            return true;
        }
        if self.capturing() {
            self.counts.syncs += 1;
            return false;
        }
        self.synchronize(Some(pool));
        self.release_pool_memory(pool);
        true
    }

    fn release_pool_memory(&mut self, pool: usize) {
        self.release_free(pool, true);
        self.release_free(pool, false);
        let holds = self.holds_memory(pool) || self.pools[pool].growths > 0;
        self.pools[pool].gone = !holds;
        // A range that never got a page is left behind: nothing else will ever lie there.
        for block in self.blocks.iter_mut().filter(|it| !holds && it.pool == pool) {
            block.pool = NO_POOL;
        }
    }

    pub(crate) fn holds_memory(&self, pool: usize) -> bool {
        self.blocks.iter().any(|it| it.pool == pool && it.state != State::Unmapped)
    }

    /// 14.2; `pool` is an existing pool or the next new one
    pub(crate) fn begin(&mut self, pool: usize, streams: Option<Vec<u64>>) {
        if pool == self.pools.len() {
            self.pools.push(Pool::new());
        } else {
            self.pools[pool].uses += 1;
        }
        self.diversions.push((pool, streams));
    }

    pub(crate) fn end(&mut self, pool: usize) {
        self.diversions.retain(|&(to, _)| to != pool);
    }

    pub(crate) fn release(&mut self, pool: usize) {
        let release = self.settings.release;
        let pool = &mut self.pools[pool];
        pool.uses -= 1;
        if pool.uses == 0 && release >= Release::V2_14 {
            pool.no_split = false;
        }
    }

    /// 16
    pub(crate) fn set_fraction(&mut self, fraction: f64) {
        let limits = fraction < 1.0 || self.settings.release < Release::V2_10;
        self.limit = limits.then_some(self.settings.limit_of(fraction, self.total));
    }

    // What the caller sees.

    pub(crate) fn with_state(&self, state: State) -> Vec<u64> {
        self.blocks.iter().filter(|it| it.state == state).map(|it| it.address).collect()
    }

    /// Bytes of a pool's small or large half.
    pub(crate) fn reserved_of(&self, pool: usize, small: bool) -> u64 {
        let of_half =
            |it: &&Block| it.pool == pool && it.small == small && it.state != State::Unmapped;
        self.blocks.iter().filter(of_half).map(|it| it.size).sum()
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.blocks.iter().filter(|it| it.state != State::Unmapped).map(|it| it.size).sum()
    }

    /// Current values of a half, or of both: the nine arrays of 18.2, under their names.
    pub(crate) fn figures(&self, small: Option<bool>) -> [(&'static str, i64); 9] {
        let of_half = |it: &&Block| small.is_none_or(|small| it.small == small);
        let mut figures = [
            ("allocation", 0),
            ("segment", 0),
            ("active", 0),
            ("inactive_split", 0),
            ("allocated_bytes", 0),
            ("reserved_bytes", 0),
            ("active_bytes", 0),
            ("inactive_split_bytes", 0),
            ("requested_bytes", 0),
        ];
        for (index, block) in self.blocks.iter().enumerate().filter(|(_, it)| of_half(it)) {
            let size = block.size as i64;
            let allocated = i64::from(block.state == State::Allocated);
            let active = allocated + i64::from(block.state == State::Pending);
            let first_of_fixed = block.page.is_none() && block.address == block.segment;
            let split = block.state == State::Free
                && block.page.is_none()
                && (self.before(index).is_some() || self.behind(index).is_some());
            figures[0].1 += allocated;
            figures[1].1 += i64::from(first_of_fixed);
            figures[2].1 += active;
            figures[3].1 += i64::from(split);
            figures[4].1 += allocated * size;
            figures[5].1 += i64::from(block.state != State::Unmapped) * size;
            figures[6].1 += active * size;
            figures[7].1 += i64::from(split) * size;
            figures[8].1 += active * block.requested as i64;
        }
        figures
    }

    /// Mapped runs (24.2): where each begins, with its blocks by address.
    pub(crate) fn runs(&self) -> Vec<Vec<&Block>> {
        let mut blocks: Vec<_> = self.blocks.iter().collect();
        blocks.sort_by_key(|it| it.address);
        let mut runs: Vec<Vec<&Block>> = Vec::new();
        for block in blocks.into_iter().filter(|it| it.state != State::Unmapped) {
            match runs.last_mut() {
                Some(run) if continues(run, block) => run.push(block),
                _ => runs.push(vec![block]),
            }
        }
        runs
    }

    fn note_peaks(&mut self) {
        let figures = self.figures(None);
        for (peak, index) in self.counts.peaks.iter_mut().zip([5, 4, 6]) {
            *peak = (*peak).max(figures[index].1);
        }
    }

    // Blocks.

    fn index(&self, address: u64) -> usize {
        self.blocks.iter().position(|it| it.address == address).expect("the model knows its blocks")
    }

    pub(crate) fn block(&self, address: u64) -> &Block {
        &self.blocks[self.index(address)]
    }

    fn block_mut(&mut self, address: u64) -> &mut Block {
        let index = self.index(address);
        &mut self.blocks[index]
    }

    fn before(&self, index: usize) -> Option<usize> {
        let block = &self.blocks[index];
        self.blocks
            .iter()
            .position(|it| it.segment == block.segment && it.address + it.size == block.address)
    }

    fn behind(&self, index: usize) -> Option<usize> {
        let block = &self.blocks[index];
        self.blocks
            .iter()
            .position(|it| it.segment == block.segment && it.address == block.address + block.size)
    }

    fn is_whole(&self, address: u64) -> bool {
        let index = self.index(address);
        self.before(index).is_none() && self.behind(index).is_none()
    }

    /// Cuts a block in two; returns where the second part begins. The part that is `new` counts as made now.
    fn cut(&mut self, address: u64, size: u64, new: Part) -> u64 {
        let searches = self.searches_of(address);
        let number = self.make();
        let block = self.block_mut(address);
        let mut rest = block.clone();
        rest.address += size;
        rest.size -= size;
        rest.searches_before = searches;
        block.size = size;
        block.searches_before = searches;
        match new {
            Part::Front => block.number = number,
            Part::Back => rest.number = number,
        }
        let address = rest.address;
        self.blocks.push(rest);
        address
    }

    fn make(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    /// 11.1: merges with the neighbours that are in the same state, and begins to age anew.
    fn merge(&mut self, address: u64) -> u64 {
        let mut address = address;
        let index = self.index(address);
        let state = self.blocks[index].state;
        if let Some(before) = self.before(index).filter(|&it| self.blocks[it].state == state) {
            let gained = self.blocks[index].size;
            address = self.blocks[before].address;
            self.blocks[before].size += gained;
            self.blocks[before].number = self.blocks[index].number;
            self.blocks.remove(index);
        }
        let index = self.index(address);
        if let Some(behind) = self.behind(index).filter(|&it| self.blocks[it].state == state) {
            let gained = self.blocks[behind].size;
            self.blocks[index].size += gained;
            self.blocks.remove(behind);
        }
        let searches = self.searches_of(address);
        self.block_mut(address).searches_before = searches;
        address
    }

    fn searches_of(&self, address: u64) -> u64 {
        let block = self.block(address);
        self.pools[block.pool].searches[usize::from(block.small)]
    }

    /// The free blocks of half a pool, in the order of 5.1.
    fn free_blocks(&self, pool: usize, small: bool) -> Vec<&Block> {
        let of_half = |it: &&Block| it.pool == pool && it.small == small && it.state == State::Free;
        let mut free: Vec<_> = self.blocks.iter().filter(of_half).collect();
        free.sort_by_key(|it| (it.stream, it.size, self.tie(it)));
        free
    }

    /// Which of two equal blocks comes first (the addendum).
    fn tie(&self, block: &Block) -> (u64, u64) {
        match self.settings.release {
            Release::V2_12 => (block.number, 0),
            release if release > Release::V2_12 => (block.born, block.address),
            _ => (0, block.address),
        }
    }

    // A request's way.

    /// 14.2
    fn pool_for(&self, stream: u64) -> usize {
        let takes = |(_, streams): &&(usize, Option<Vec<u64>>)| {
            streams.as_ref().is_none_or(|streams| streams.contains(&stream))
        };
        let found = if self.settings.release < Release::V2_10 {
            self.diversions.iter().find(takes)
        } else {
            self.diversions.iter().rev().find(takes)
        };
        found.map_or(0, |&(pool, _)| pool)
    }

    /// 5.2
    fn search(&mut self, request: &Request) -> Option<u64> {
        if self.collects_garbage() {
            self.pools[request.pool].searches[usize::from(request.small)] += 1;
        }
        let free = self.free_blocks(request.pool, request.small);
        let fits = |it: &&Block| it.stream == request.stream && it.size >= request.size;
        let candidates: Vec<_> = free.into_iter().filter(fits).collect();
        let mut at = 0;
        if candidates.first()?.page.is_some() {
            if request.expandable {
                while candidates[at].page.is_some()
                    && let Some(next) = candidates.get(at + 1)
                    && self.reach(next) < self.reach(candidates[at])
                {
                    at += 1;
                }
            } else {
                at = candidates.iter().position(|it| it.page.is_none())?;
            }
        }
        let found = candidates[at];
        let max_split = self.settings.max_split;
        if request.size < max_split && found.size >= max_split {
            return None;
        }
        if request.size >= max_split
            && found.size >= request.size + self.settings.non_split_rounding
        {
            return None;
        }
        Some(found.address)
    }

    fn reach(&self, block: &Block) -> u64 {
        let behind = self.behind(self.index(block.address)).map(|it| &self.blocks[it]);
        let unmapped = behind.filter(|it| it.state == State::Unmapped);
        block.size + unmapped.map_or(0, |it| it.size)
    }

    /// 14.5
    fn search_spare_pool(&mut self, request: &Request) -> Option<(u64, Request)> {
        if request.pool != 0 {
            return None;
        }
        (1..self.pools.len()).find_map(|pool| {
            if !self.pools[pool].use_on_oom {
                return None;
            }
            let expandable = request.expandable && self.settings.release < Release::V2_10;
            let request = Request { pool, expandable, ..*request };
            self.search(&request).map(|found| (found, request))
        })
    }

    /// 6
    fn hand_out(&mut self, found: u64, request: &Request) -> u64 {
        let block = self.block(found);
        let remaining = block.size - request.size;
        let split = if self.pools[block.pool].no_split {
            false
        } else if block.small || request.expandable {
            remaining >= GRANULE
        } else {
            request.size < self.settings.max_split && remaining > MIB
        };
        if split {
            self.cut(found, request.size, Part::Front);
        }
        let max_split = self.settings.max_split;
        let block = self.block_mut(found);
        block.state = State::Allocated;
        block.requested = request.bytes;
        if block.size >= max_split {
            self.counts.oversize_allocations += 1;
        }
        self.note_peaks();
        found
    }

    // More memory.

    /// 8
    fn grow(&mut self, request: &Request) -> Result<Option<u64>, Rejected> {
        let after = self.reserved() + request.segment_size;
        if self.limit.is_some_and(|limit| after > limit) {
            return Ok(None);
        }
        let Settings { rejects, fraction, .. } = self.settings;
        if rejects && after > (fraction * self.total as f64) as u64 {
            return Err(Rejected);
        }
        if request.expandable {
            let grown = self.grow_range(request);
            if grown.is_some() {
                self.pools[request.pool].growths += 1;
            }
            return Ok(grown);
        }
        let size = request.segment_size;
        if self.reserved() + size > self.capacity {
            return Ok(None);
        }
        let address = self.first_gap(SEGMENTS_FROM, size, false);
        self.new_segment(request, address, size, None);
        self.pools[request.pool].growths += 1;
        self.counts.device_allocs += 1;
        if size >= self.settings.max_split {
            self.counts.oversize_segments += 1;
        }
        self.note_peaks();
        Ok(Some(address))
    }

    fn new_segment(&mut self, request: &Request, address: u64, size: u64, page: Option<u64>) {
        let number = self.make();
        // Where it was gone and still diverted to, PyTorch asserts.
        self.pools[request.pool].gone = false;
        self.blocks.push(Block {
            born: number,
            number,
            address,
            size,
            requested: 0,
            stream: request.stream,
            pool: request.pool,
            small: request.small,
            state: if page.is_some() { State::Unmapped } else { State::Free },
            segment: address,
            page,
            searches_before: self.pools[request.pool].searches[usize::from(request.small)],
            uses: BTreeSet::new(),
            uses_while_capturing: BTreeSet::new(),
            events: 0,
        });
    }

    /// The lowest gap between live segments, or between live ranges.
    fn first_gap(&self, from: u64, size: u64, ranges: bool) -> u64 {
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        for block in self.blocks.iter().filter(|it| it.page.is_some() == ranges) {
            let end = live.entry(block.segment).or_default();
            *end = (*end).max(block.address + block.size);
        }
        let mut place = from;
        for (start, end) in live {
            if start >= place + size {
                break;
            }
            place = place.max(end.div_ceil(2 * MIB) * 2 * MIB);
        }
        place
    }

    /// 13.4
    fn grow_range(&mut self, request: &Request) -> Option<u64> {
        let start = self.find_room(request)?;
        let block = self.block(start);
        if block.state == State::Unmapped && !self.map(start, block.size.min(request.size)) {
            return None;
        }
        while self.block(start).size < request.size {
            let missing = request.size - self.block(start).size;
            let next = start + self.block(start).size;
            if !self.map(next, missing.min(self.block(next).size)) {
                return None;
            }
        }
        Some(start)
    }

    /// 13.3
    fn find_room(&mut self, request: &Request) -> Option<u64> {
        let idle = |it: &Block| matches!(it.state, State::Free | State::Unmapped);
        let mut unmapped = self.with_state(State::Unmapped);
        unmapped.sort_unstable();
        for address in unmapped {
            let index = self.index(address);
            let block = &self.blocks[index];
            if (block.pool, block.small, block.stream)
                != (request.pool, request.small, request.stream)
            {
                continue;
            }
            let before = self.before(index).filter(|&it| idle(&self.blocks[it]));
            let first = before.unwrap_or(index);
            let mut room = 0;
            let mut at = Some(first);
            while let Some(index) = at
                && idle(&self.blocks[index])
                && room < request.size
            {
                room += self.blocks[index].size;
                at = self.behind(index);
            }
            if room >= request.size {
                return Some(self.blocks[first].address);
            }
        }
        let page = if request.small { 2 * MIB } else { self.settings.large_segment };
        let reserve = self.settings.reserve.map(|parts| parts as f64 / 1000.0 * self.total as f64);
        let most = reserve.map_or(u64::MAX, |bytes| bytes as u64);
        let size = (self.total + self.total / 8).min(most).div_ceil(page) * page;
        // From 2.15 on a range that is too small goes back at once.
        if size < request.size && self.settings.release >= Release::V2_15 {
            return None;
        }
        let address = self.first_gap(RANGES_FROM, size, true);
        self.new_segment(request, address, size, Some(page));
        Some(address)
    }

    /// Maps pages for the first `bytes` of an unmapped block.
    fn map(&mut self, address: u64, bytes: u64) -> bool {
        let block = self.block(address);
        let page = block.page.expect("only ranges have unmapped blocks");
        let mapped = bytes.div_ceil(page) * page;
        if self.reserved() + mapped > self.capacity {
            return false;
        }
        if mapped < block.size {
            self.cut(address, mapped, Part::Back);
        }
        self.block_mut(address).state = State::Free;
        self.merge(address);
        self.counts.device_allocs += 1;
        self.note_peaks();
        true
    }

    // Back to the device.

    /// 9.1
    fn release_segment(&mut self, address: u64) {
        let index = self.index(address);
        let block = self.blocks.remove(index);
        self.note_given_back(block.pool);
        if block.size >= self.settings.max_split {
            self.counts.oversize_segments -= 1;
        }
    }

    fn note_given_back(&mut self, pool: usize) {
        self.counts.device_frees += 1;
        let growths = &mut self.pools[pool].growths;
        // Where this would go below 0, PyTorch asserts.
        *growths = growths.saturating_sub(1);
    }

    /// 9.3, `release_blocks`
    fn release_free(&mut self, pool: usize, small: bool) {
        let free = self.free_blocks(pool, small);
        let places = |expandable: bool| {
            let kind = free.iter().filter(|it| it.page.is_some() == expandable);
            kind.map(|it| it.address).collect::<Vec<_>>()
        };
        let (segments, parts) = (places(false), places(true));
        for address in segments {
            if self.is_whole(address) {
                self.release_segment(address);
            }
        }
        for address in parts {
            self.unmap(address);
        }
    }

    /// 13.5
    fn unmap(&mut self, address: u64) {
        let block = self.block(address).clone();
        let page = block.page.expect("only ranges are unmapped");
        let offset = address - block.segment;
        let first = offset.div_ceil(page) * page;
        let last = (offset + block.size) / page * page;
        if last <= first {
            return;
        }
        let start =
            if first > offset { self.cut(address, first - offset, Part::Front) } else { address };
        if last < offset + block.size {
            self.cut(start, last - first, Part::Back);
        }
        self.block_mut(start).state = State::Unmapped;
        self.note_given_back(block.pool);
        let merged = self.merge(start);
        if self.is_whole(merged) {
            let index = self.index(merged);
            self.blocks.remove(index);
        }
    }

    /// 9.2. A block that is split is passed over, where PyTorch would hand an inner address to the
    /// driver (Q1).
    fn release_oversize(&mut self, request: &Request) -> bool {
        let max_split = self.settings.max_split;
        if max_split == u64::MAX {
            return false;
        }
        let want = request.size.max(max_split);
        let own = |it: &&Block| it.stream == request.stream;
        let free = self.free_blocks(request.pool, request.small);
        let free: Vec<_> = free.into_iter().filter(own).cloned().collect();
        let releasable = |model: &Self, it: &Block| it.page.is_none() && model.is_whole(it.address);
        if let Some(enough) = free.iter().find(|it| it.size >= want)
            && releasable(self, enough)
        {
            self.release_segment(enough.address);
            return true;
        }
        let mut released = 0;
        for block in free.iter().rev().filter(|it| it.size < want) {
            if released >= want || block.size < max_split {
                break;
            }
            if releasable(self, block) {
                released += block.size;
                self.release_segment(block.address);
            }
        }
        released >= want
    }

    fn collects_garbage(&self) -> bool {
        self.limit.is_some() && self.settings.gc_threshold > 0.0
    }

    /// 9.4
    fn collect_garbage(&mut self) {
        let limit = self.limit.expect("only with a limit");
        let threshold = (self.settings.gc_threshold * limit as f64) as u64;
        if self.reserved() <= threshold {
            return;
        }
        let target = self.reserved() - threshold;
        let clock = self.pools[0].searches[0];
        let age = |it: &Block| clock - it.searches_before;
        let mut reclaimed = 0;
        loop {
            let free = self.free_blocks(0, false);
            let whole: Vec<_> =
                free.into_iter().filter(|it| self.is_whole(it.address)).cloned().collect();
            if whole.is_empty() || reclaimed >= target {
                return;
            }
            let mean = whole.iter().map(age).sum::<u64>() as f64 / whole.len() as f64;
            let mut freed = false;
            for block in whole.iter().filter(|it| it.page.is_none() && age(it) as f64 >= mean) {
                freed = true;
                reclaimed += block.size;
                self.release_segment(block.address);
            }
            if !freed {
                return;
            }
        }
    }

    // Other streams.

    /// 11, `free_block`
    fn complete_free(&mut self, address: u64) {
        let block = self.block_mut(address);
        block.state = State::Free;
        block.uses_while_capturing.clear();
        self.merge(address);
    }

    /// 12.2
    fn insert_events(&mut self, address: u64) {
        let uses = std::mem::take(&mut self.block_mut(address).uses);
        for stream in uses {
            self.block_mut(address).events += 1;
            self.events.entry(stream).or_default().push_back(address);
        }
    }

    /// 12.5
    fn settle_deferred(&mut self) {
        for address in std::mem::take(&mut self.deferred) {
            let block = self.block_mut(address);
            let forgotten = std::mem::take(&mut block.uses_while_capturing);
            block.uses.retain(|stream| !forgotten.contains(stream));
            self.insert_events(address);
            if self.block(address).events == 0 {
                self.complete_free(address);
            }
        }
    }

    /// 12.3
    fn process_events(&mut self) {
        self.settle_deferred();
        let streams: Vec<_> = self.events.keys().copied().collect();
        for stream in streams {
            if self.complete.as_ref().is_none_or(|complete| complete.contains(&stream)) {
                for address in self.events.remove(&stream).unwrap_or_default() {
                    self.event_complete(address);
                }
            }
        }
    }

    /// 12.4
    fn synchronize(&mut self, pool: Option<usize>) {
        self.counts.syncs += 1;
        self.settle_deferred();
        for (stream, queue) in std::mem::take(&mut self.events) {
            for address in queue {
                if pool.is_none_or(|pool| self.block(address).pool == pool) {
                    self.event_complete(address);
                } else {
                    self.events.entry(stream).or_default().push_back(address);
                }
            }
        }
    }

    fn event_complete(&mut self, address: u64) {
        let block = self.block_mut(address);
        block.events -= 1;
        if block.events == 0 && block.uses.is_empty() {
            self.complete_free(address);
        }
    }
}

/// Whether a block follows a run's last one, mapped, in the same segment.
fn continues(run: &[&Block], block: &Block) -> bool {
    run.last().is_some_and(|last| {
        last.segment == block.segment && last.address + last.size == block.address
    })
}
