//! A sample of a device: its figures, under the lock for as long as it takes to copy them.

use std::time::Instant;

use tonnage_device::Device as _;
use tonnage_engine::{LiveLine, Stat};
use tonnage_monitor::{CallSite, DeviceFigures, MOST_CALL_SITES, NowAndPeak};

use crate::device::Shared;
use crate::publish::past::{Past, SPAN_US};

/// Going over all blocks takes longer the more there are: it may take this share of the time.
const SHARE_OF_TIME: u64 = 100;

/// Call sites are counted no more often than this.
const CALL_SITES_EVERY_US: u64 = 1_000_000;

/// What is known of one device from the samples before.
#[derive(Default)]
pub(super) struct Sampler {
    past: Past,
    call_sites: Option<Vec<CallSite>>,
    /// When call sites may be counted again.
    next_call_sites_us: u64,
}

impl Sampler {
    /// The figures of a device now.
    pub(super) fn sample(&mut self, name: &str, shared: &Shared, now_us: u64) -> DeviceFigures {
        let (stats, total, limit) = {
            let engine = shared.engine.lock();
            (engine.stats().clone(), engine.device().total(), engine.limit())
        };
        if now_us >= self.next_call_sites_us {
            self.call_sites = self.find_call_sites(shared, now_us);
        }
        let allocations = count(stats.allocation.all.allocated);
        self.past.add(now_us, allocations, stats.memory_allocated());
        DeviceFigures {
            name: name.to_owned(),
            total,
            limit,
            requested: level(stats.requested_bytes.all),
            allocated: level(stats.allocated_bytes.all),
            active: level(stats.active_bytes.all),
            reserved: level(stats.reserved_bytes.all),
            blocks: count(stats.allocation.all.current),
            allocations,
            frees: count(stats.allocation.all.freed),
            allocations_per_second: self.past.rate(),
            ooms: count(stats.failed_requests()),
            retries: count(stats.num_alloc_retries),
            past: self.past.points(),
            span_us: SPAN_US,
            call_sites: self.call_sites.clone(),
        }
    }

    fn find_call_sites(&mut self, shared: &Shared, now_us: u64) -> Option<Vec<CallSite>> {
        let begin = Instant::now();
        let lines = shared.engine.lock().live_lines(MOST_CALL_SITES);
        let took_us = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        let pause = took_us.saturating_mul(SHARE_OF_TIME).max(CALL_SITES_EVERY_US);
        self.next_call_sites_us = now_us.saturating_add(pause);
        Some(lines?.into_iter().map(call_site).collect())
    }
}

fn call_site(LiveLine { frame, bytes, blocks }: LiveLine) -> CallSite {
    let mut line = format!("{}:{}", frame.filename, frame.line);
    if !frame.name.is_empty() {
        line += " ";
        line += &frame.name;
    }
    CallSite { line, bytes, blocks }
}

fn level(stat: Stat) -> NowAndPeak {
    NowAndPeak { now: count(stat.current), peak: count(stat.peak) }
}

/// None of these figures lies below zero.
fn count(figure: i64) -> u64 {
    figure.try_into().unwrap_or(0)
}
