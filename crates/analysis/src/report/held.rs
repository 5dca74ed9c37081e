//! The blocks that are live when a request fails, or when most is, and what asked for each.
//!
//! In:  a device, its lifetimes, the moment.
//! Out: [`Held`]: blocks with their [`Origin`], where the pass that was under way begins, and what the peak would be without
//!      some of them.

use std::cmp::Reverse;

use rustc_hash::{FxHashMap, FxHashSet};
use tonnage_events::{StackId, StreamId, call_site};

use super::moments::live_after;
use super::origins::{Function, Origin, Origins, Work};
use super::purpose::WORKSPACES;
use crate::call_site::show_line;
use crate::device_view::DeviceView;
use crate::lifetimes::{Lifetime, Lifetimes, Moment};

/// Requests are rounded up to this before they fail.
const ROUNDED: u64 = 512;

/// A block, or the request that failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) bytes: u64,
    /// The entry that handed it out; 0 if it is older than the history.
    pub(super) event: usize,
    pub(super) stack: Option<StackId>,
    pub(super) stream: StreamId,
    pub(super) origin: Origin,
    /// Whether it is scratch memory of a library.
    pub(super) is_workspace: bool,
}

impl Block {
    pub(super) fn is_by(&self, work: Work) -> bool {
        self.origin.work == work && !self.is_workspace
    }

    pub(super) fn is_in(&self, function: Function) -> bool {
        self.origin.is_in(function)
    }

    /// Whether it is as large as this, but for rounding.
    pub(super) fn is_as_large_as(&self, bytes: u64) -> bool {
        self.bytes.abs_diff(bytes) <= ROUNDED
    }
}

/// What is live.
pub(super) struct Held<'a> {
    device: &'a DeviceView<'a>,
    lifetimes: &'a Lifetimes,
    origins: Origins,
    moment: Moment,
    /// In the order in which they were asked for.
    pub(super) blocks: Vec<Block>,
    /// The request that failed.
    pub(super) asked: Option<Block>,
    /// Where passes begin, each behind what built the model, went back or stepped before; the last is under way.
    pub(super) passes: Vec<usize>,
    /// The first request of a module.
    pub(super) first_forward: Option<usize>,
    /// Whether anything went back or stepped before the moment.
    pub(super) went_back: bool,
    /// Sizes of the model's parameters.
    sizes: FxHashSet<u64>,
}

impl<'a> Held<'a> {
    pub(super) fn of(
        device: &'a DeviceView<'a>,
        lifetimes: &'a Lifetimes,
        failed: Option<usize>,
        most_live: Moment,
    ) -> Self {
        let origins = Origins::of(&device.file.stacks);
        let moment = failed.map_or(most_live, Moment::Event);
        let asked = failed.map(|event| {
            let entry = &device.entries[event];
            Block {
                bytes: entry.size,
                event,
                stack: entry.stack,
                stream: entry.stream,
                origin: origins.get(entry.stack),
                is_workspace: false,
            }
        });
        let mut held = Self {
            device,
            lifetimes,
            origins,
            moment,
            blocks: Vec::new(),
            asked,
            passes: vec![0],
            first_forward: None,
            went_back: false,
            sizes: FxHashSet::default(),
        };
        let live = lifetimes.iter().filter(|it| it.is_live_after(moment));
        held.blocks = live.map(|it| held.block(&it)).collect();
        held.blocks.sort_by_key(|it| it.event);
        held.mark_workspaces();
        held.sizes =
            held.blocks.iter().filter(|it| it.is_by(Work::Model)).map(|it| it.bytes).collect();
        held.find_passes();
        held
    }

    /// Whether stacks tell what asked for what.
    pub(super) fn is_known(&self) -> bool {
        self.origins.are_recorded
    }

    pub(super) fn origin(&self, stack: Option<StackId>) -> Origin {
        self.origins.get(stack)
    }

    fn block(&self, it: &Lifetime) -> Block {
        let mut origin = self.origins.get(it.stack);
        // Of what is older than the history, nothing tells.
        if it.allocated == Moment::Before && it.stack.is_none() {
            origin.work = Work::Unknown;
        }
        Block {
            bytes: it.requested,
            event: it.allocated.event().unwrap_or(0),
            stack: it.stack,
            stream: it.stream,
            origin,
            is_workspace: false,
        }
    }

    /// A library asks for scratch memory once in each stream and thread, and keeps it: the oldest block of such a size is it.
    fn mark_workspaces(&mut self) {
        let mut seen = FxHashSet::default();
        for it in self.blocks.iter_mut().chain(&mut self.asked) {
            let works = matches!(it.origin.work, Work::Forward | Work::Back | Work::Program);
            if works && WORKSPACES.contains(&it.bytes) {
                let is_back = it.origin.work == Work::Back;
                it.is_workspace = seen.insert((it.stream, is_back));
            }
        }
    }

    fn find_passes(&mut self) {
        let mut begins = 0;
        let mut forward = false;
        for it in self.lifetimes.iter() {
            let Some(event) = it.allocated.event() else { continue };
            if Moment::Event(event) > self.moment {
                break;
            }
            match self.origins.get(it.stack).work {
                Work::Forward => {
                    if !forward {
                        self.passes.push(begins);
                        self.first_forward.get_or_insert(event);
                    }
                    forward = true;
                }
                work @ (Work::Model | Work::Back | Work::Step) => {
                    self.went_back |= work != Work::Model;
                    (begins, forward) = (event + 1, false);
                }
                Work::Load | Work::Copy | Work::Program | Work::Unknown => {}
            }
        }
        if self.first_forward.is_none() {
            self.passes.push(begins);
        }
    }

    /// Where the pass that was under way begins.
    pub(super) fn pass(&self) -> usize {
        self.passes.last().copied().unwrap_or(0)
    }

    /// Blocks and the request that failed.
    pub(super) fn with_asked(&self) -> impl Iterator<Item = &Block> + Clone {
        self.blocks.iter().chain(&self.asked)
    }

    /// Bytes that are live, with the request that failed.
    pub(super) fn need(&self) -> u64 {
        sum(self.with_asked())
    }

    pub(super) fn live_by(&self, work: Work) -> impl Iterator<Item = &Block> + Clone {
        self.blocks.iter().filter(move |it| it.is_by(work))
    }

    /// Bytes of the model.
    pub(super) fn model(&self) -> u64 {
        sum(self.live_by(Work::Model))
    }

    pub(super) fn is_size_of_a_parameter(&self, bytes: u64) -> bool {
        self.sizes.contains(&bytes)
    }

    pub(super) fn is_gradient(&self, block: &Block) -> bool {
        block.is_by(Work::Back) && self.sizes.iter().any(|&size| block.is_as_large_as(size))
    }

    /// What the pass under way has live, and asks for: all that grows with its batch.
    pub(super) fn of_the_pass(&self) -> impl Iterator<Item = &Block> + Clone {
        let start = self.pass();
        self.with_asked().filter(move |it| {
            let grows = match it.origin.work {
                Work::Forward | Work::Program => true,
                Work::Back => !self.is_gradient(it),
                _ => false,
            };
            grows && !it.is_workspace && it.event >= start
        })
    }

    /// Requests since a module was first called in the pass: how many there were, and how many are live.
    pub(super) fn kept_of_the_pass(&self) -> (usize, usize) {
        let (mut all, mut kept) = (0, 0);
        for it in self.of_the_pass_ever() {
            match self.origins.get(it.stack).work {
                Work::Program if all == 0 => {}
                Work::Forward | Work::Program => {
                    all += 1;
                    kept += usize::from(it.is_live_after(self.moment));
                }
                _ => {}
            }
        }
        (all, kept)
    }

    /// How often the pass has begun anew, by its first request of a module: where nothing goes back, a pass is all batches.
    pub(super) fn rounds(&self) -> usize {
        let is_forward = |it: &Lifetime| self.origins.get(it.stack).work == Work::Forward;
        let Some(first) = self.of_the_pass_ever().find(is_forward) else { return 0 };
        let same = |it: &Lifetime| it.stack == first.stack && it.requested == first.requested;
        self.of_the_pass_ever().filter(same).count()
    }

    /// Where nothing goes back in between: what was live when the pass first began, and the most that one round of it, from
    /// its first request of a module to the next one's, has live beyond what was there.
    pub(super) fn one_round(&self) -> Option<(u64, u64)> {
        let is_forward = |it: &Lifetime| self.origins.get(it.stack).work == Work::Forward;
        let first = self.of_the_pass_ever().find(is_forward)?;
        let same = |it: &Lifetime| it.stack == first.stack && it.requested == first.requested;
        let starts = self.of_the_pass_ever().filter(same);
        let starts: Vec<usize> = starts.filter_map(|it| it.allocated.event()).collect();
        let until = self.lifetimes.iter().filter(|it| it.allocated <= self.moment);
        let live = live_after(until, self.device.entries.len());
        let before = |event: usize| event.checked_sub(1).map_or(0, |event| live[event]);
        let rounds = starts.windows(2).map(|pair| {
            let most = live[pair[0]..pair[1]].iter().copied().max().unwrap_or(0);
            most.saturating_sub(before(pair[0]))
        });
        Some((before(*starts.first()?), rounds.max()?))
    }

    /// Whether no pass has come before the one under way, by what modules ask for; layers that are alike leave it open.
    pub(super) fn is_first_pass(&self) -> bool {
        self.is_known() && self.passes.len() <= 2 && self.rounds() == 1
    }

    /// Everything that was asked for since the pass began.
    fn of_the_pass_ever(&self) -> impl Iterator<Item = Lifetime> {
        let during = Moment::Event(self.pass())..=self.moment;
        self.lifetimes.iter().filter(move |it| during.contains(&it.allocated))
    }

    /// All requests before the moment that a test passes, live or not.
    pub(super) fn ever(&self, test: impl Fn(&Block) -> bool) -> impl Iterator<Item = Lifetime> {
        let until = self.lifetimes.iter().filter(|it| it.allocated <= self.moment);
        until.filter(move |it| test(&self.block(it)))
    }

    /// What would be saved at the peak if blocks that pass a test were never there, but for `instead` all the time.
    pub(super) fn saved_without(&self, test: impl Fn(&Block) -> bool, instead: u64) -> u64 {
        let until = self.lifetimes.iter().filter(|it| it.allocated <= self.moment);
        let rest = until.filter(|it| !test(&self.block(it)));
        let levels = live_after(rest, self.device.entries.len());
        let end = self.moment.event().map_or(0, |event| event + 1).min(levels.len());
        let asked = self.asked.iter().filter(|it| !test(it)).map(|it| it.bytes).sum::<u64>();
        let at_the_end = levels[..end].last().map_or(0, |level| level.saturating_add(asked));
        let most = levels[..end].iter().copied().max().unwrap_or(0).max(at_the_end);
        self.need().saturating_sub(most).saturating_sub(instead)
    }

    /// How many times most requests of the pass come: its layers.
    pub(super) fn layers(&self) -> u64 {
        let mut times = FxHashMap::<Option<StackId>, u64>::default();
        for it in self.of_the_pass().filter(|it| it.is_by(Work::Forward)) {
            *times.entry(it.stack).or_default() += 1;
        }
        let mut votes = FxHashMap::<u64, u64>::default();
        for &count in times.values().filter(|&&count| count > 1) {
            *votes.entry(count).or_default() += 1;
        }
        votes.into_iter().max_by_key(|&(count, votes)| (votes, Reverse(count))).map_or(1, |it| it.0)
    }

    /// The line of the program that asked for a block.
    pub(super) fn line(&self, block: &Block) -> Option<String> {
        call_site(self.device.file.stacks.frames(block.stack?)).map(show_line)
    }
}

/// Bytes of all blocks.
pub(super) fn sum<'b>(blocks: impl Iterator<Item = &'b Block>) -> u64 {
    blocks.fold(0, |sum, it| sum.saturating_add(it.bytes))
}
