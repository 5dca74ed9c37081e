//! What held the memory when most was live.
//!
//! In:  lifetimes, the moment, purposes.
//! Out: [`PeakReport`]: bytes by call site, by module, by a library's line, by stack, by purpose, and the largest allocations.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;
use tonnage_events::StackId;

use super::held_modules::{HeldModule, held_modules};
use super::lines::Lines;
use super::purpose::{Confidence, Purpose, Purposes};
use crate::call_site::{library_frame, show_in_library};
use crate::device_view::DeviceView;
use crate::layers::ModulePaths;
use crate::lifetimes::{Lifetime, Lifetimes, Moment};
use crate::phases::{Phase, Phases};

/// How many sites, stacks and allocations are listed.
pub(super) const SITES: usize = 12;
const STACKS: usize = 200;
const TOP: usize = 10;

/// Longest stack that is listed, and longest name in it: a stranger's file can have any.
const DEEPEST: usize = 64;
const LONGEST: usize = 200;

/// The peak: when, how much, what held it.
#[derive(Clone, Debug, Serialize)]
pub struct PeakReport {
    /// The entry after which most requested bytes are live; 0 if the history begins with them.
    pub event: usize,
    /// When, in microseconds since 1970; none if not known.
    pub time_us: Option<u64>,
    /// The iteration, from 0; none outside all.
    pub iteration: Option<usize>,
    /// Live requested bytes: no allocator can do with less.
    pub requested: u64,
    /// Live blocks.
    pub blocks: usize,
    /// Where reserved memory first peaks.
    pub reserved: ReservedPeak,
    /// By line of the program, largest first.
    pub sites: Vec<Held>,
    /// By the modules that asked, largest first; empty if no stack tells of one.
    pub modules: Vec<HeldModule>,
    /// By the innermost line of a library inside the program's line, largest first; empty if no stack has one.
    pub libraries: Vec<Held>,
    /// By purpose, largest first.
    pub purposes: Vec<HeldFor>,
    /// The largest allocations.
    pub top: Vec<Holder>,
    /// By whole stack, outermost call first, largest first.
    pub stacks: Vec<HeldStack>,
    /// By the phase in which it was asked for, largest first; what ranks are compared by, and no part of the JSON.
    #[serde(skip)]
    pub phases: Vec<HeldIn>,
}

/// Bytes that were asked for in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldIn {
    /// The phase; none if it is not known, as for what is older than the history.
    pub phase: Option<Phase>,
    /// Requested bytes.
    pub bytes: u64,
}

/// Where reserved memory first peaks. *Requested + waste = reserved.*
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReservedPeak {
    /// The entry that ends the request which grew it.
    pub event: usize,
    /// Bytes reserved.
    pub bytes: u64,
    /// Live requested bytes then.
    pub requested: u64,
    /// The stream that grew.
    pub stream: u64,
}

/// Bytes that a line held.
#[derive(Clone, Debug, Serialize)]
pub struct Held {
    /// The line; none for requests without a line of the program.
    pub line: Option<String>,
    /// Requested bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: usize,
}

/// Bytes that a purpose held.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HeldFor {
    /// The purpose.
    pub purpose: Purpose,
    /// Requested bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: usize,
    /// How sure that is, for most of the bytes.
    pub confidence: Confidence,
}

/// One allocation.
#[derive(Clone, Debug, Serialize)]
pub struct Holder {
    /// Requested bytes.
    pub bytes: u64,
    /// Who asked for it.
    pub line: Option<String>,
    /// What it is for.
    pub purpose: Purpose,
    /// How sure that is.
    pub confidence: Confidence,
    /// The entry that handed it out; none if it is older than the history.
    pub allocated: Option<usize>,
    /// The entry at which its owner gave it back; none if it never did.
    pub freed: Option<usize>,
    /// How long it lived, in microseconds; none if not known.
    pub lived_us: Option<u64>,
}

/// Bytes that a stack held.
#[derive(Clone, Debug, Serialize)]
pub struct HeldStack {
    /// `file:line function`, outermost call first; empty for requests without a stack.
    pub frames: Vec<String>,
    /// Requested bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: usize,
}

/// Bytes and blocks.
pub(super) type Sum = (u64, usize);

/// Bytes by how sure their purpose is, in the order of [`Confidence::ALL`].
type ByConfidence = [u64; Confidence::ALL.len()];

fn add(sum: &mut Sum, bytes: u64) {
    *sum = (sum.0.saturating_add(bytes), sum.1 + 1);
}

impl PeakReport {
    pub(super) fn of(
        device: &DeviceView<'_>,
        lifetimes: &Lifetimes,
        moment: Moment,
        reserved: ReservedPeak,
        purposes: &Purposes<'_>,
        lines: &mut Lines<'_>,
    ) -> Self {
        let mut by_stack = FxHashMap::<Option<StackId>, Sum>::default();
        let mut by_purpose = BTreeMap::<Purpose, (Sum, ByConfidence)>::new();
        let mut paths = ModulePaths::of(device);
        let mut by_path = BTreeMap::<u32, Sum>::new();
        let (phases, mut by_phase) = (Phases::of(device), BTreeMap::<Option<Phase>, u64>::new());
        let mut total = Sum::default();
        let mut top: Vec<(usize, Lifetime)> = Vec::new();
        for (row, it) in lifetimes.iter().enumerate().filter(|(_, it)| it.is_live_after(moment)) {
            add(by_stack.entry(it.stack).or_default(), it.requested);
            add(by_path.entry(paths.number(&it)).or_default(), it.requested);
            let phase = by_phase.entry(it.allocated.event().and_then(|event| phases.at(event)));
            let held = phase.or_default();
            *held = held.saturating_add(it.requested);
            let (purpose, sure) = purposes.at(row, &it, moment);
            let (sum, by_confidence) = by_purpose.entry(purpose).or_default();
            add(sum, it.requested);
            let place = &mut by_confidence[sure as usize];
            *place = place.saturating_add(it.requested);
            add(&mut total, it.requested);
            top.push((row, it));
            if top.len() > 1 << 10 {
                keep_largest(&mut top);
            }
        }
        keep_largest(&mut top);
        let event = moment.event().unwrap_or(0);
        let time =
            |event: usize| device.entries.get(event).map(|it| it.time_us).filter(|&it| it > 0);
        let top = top.into_iter().map(|(row, it)| {
            let (from, to) = (it.allocated.event(), it.free_requested.event());
            let lived = || Some(time(to?)?.saturating_sub(time(from?)?));
            let (purpose, confidence) = purposes.at(row, &it, moment);
            Holder {
                bytes: it.requested,
                line: lines.of(it.stack),
                purpose,
                confidence,
                allocated: from,
                freed: to,
                lived_us: lived(),
            }
        });
        Self {
            event,
            time_us: time(event),
            iteration: None,
            requested: total.0,
            blocks: total.1,
            reserved,
            top: top.collect(),
            sites: sites(&by_stack, lines),
            modules: held_modules(&by_path, &paths),
            libraries: libraries(&by_stack, lines),
            purposes: held_for(by_purpose),
            stacks: stacks(&by_stack, lines),
            phases: held_in(by_phase),
        }
    }
}

fn keep_largest(top: &mut Vec<(usize, Lifetime)>) {
    top.sort_by_key(|(row, it)| (u64::MAX - it.requested, *row));
    top.truncate(TOP);
}

fn sites(by_stack: &FxHashMap<Option<StackId>, Sum>, lines: &mut Lines<'_>) -> Vec<Held> {
    let mut by_line = BTreeMap::<Option<String>, Sum>::new();
    for (&stack, &(bytes, blocks)) in by_stack {
        let sum = by_line.entry(lines.of(stack)).or_default();
        *sum = (sum.0.saturating_add(bytes), sum.1 + blocks);
    }
    let sites = by_line.into_iter().map(|(line, (bytes, blocks))| Held { line, bytes, blocks });
    let mut sites: Vec<_> = sites.collect();
    sites.sort_by_key(|it| u64::MAX - it.bytes);
    sites.truncate(SITES);
    sites
}

fn libraries(by_stack: &FxHashMap<Option<StackId>, Sum>, lines: &Lines<'_>) -> Vec<Held> {
    let mut by_line = BTreeMap::<Option<String>, Sum>::new();
    for (&stack, &(bytes, blocks)) in by_stack {
        let frames = stack.map_or(&[][..], |stack| lines.stacks().frames(stack));
        let sum = by_line.entry(library_frame(frames).map(show_in_library)).or_default();
        *sum = (sum.0.saturating_add(bytes), sum.1 + blocks);
    }
    if by_line.keys().all(Option::is_none) {
        return Vec::new();
    }
    let held = by_line.into_iter().map(|(line, (bytes, blocks))| Held { line, bytes, blocks });
    let mut held: Vec<_> = held.collect();
    held.sort_by_key(|it| u64::MAX - it.bytes);
    held.truncate(SITES);
    held
}

fn held_for(by_purpose: BTreeMap<Purpose, (Sum, ByConfidence)>) -> Vec<HeldFor> {
    let held = by_purpose.into_iter().map(|(purpose, ((bytes, blocks), by_confidence))| {
        let most = Confidence::ALL.into_iter().max_by_key(|&it| by_confidence[it as usize]);
        HeldFor { purpose, bytes, blocks, confidence: most.unwrap_or(Confidence::Low) }
    });
    let mut held: Vec<_> = held.collect();
    held.sort_by_key(|it| u64::MAX - it.bytes);
    held
}

fn held_in(by_phase: BTreeMap<Option<Phase>, u64>) -> Vec<HeldIn> {
    let held = by_phase.into_iter().map(|(phase, bytes)| HeldIn { phase, bytes });
    let mut held: Vec<_> = held.collect();
    held.sort_by_key(|it| u64::MAX - it.bytes);
    held
}

fn stacks(by_stack: &FxHashMap<Option<StackId>, Sum>, lines: &Lines<'_>) -> Vec<HeldStack> {
    let mut largest: Vec<_> = by_stack.iter().map(|(&stack, &sum)| (stack, sum)).collect();
    largest.sort_by_key(|&(stack, (bytes, _))| (u64::MAX - bytes, stack));
    largest.truncate(STACKS);
    let shown = |frame: &tonnage_events::Frame| {
        let text = crate::call_site::show(frame);
        text.chars().take(LONGEST).collect::<String>()
    };
    let held = largest.into_iter().map(|(stack, (bytes, blocks))| {
        let frames = stack.map_or(&[][..], |stack| lines.stacks().frames(stack));
        let frames = frames.iter().take(DEEPEST).rev().map(shown).collect();
        HeldStack { frames, bytes, blocks }
    });
    held.collect()
}
