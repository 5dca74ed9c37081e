//! The rules of `pages`: how large pages are, how much more than what is in use may be held, what is tried in which order.

use tonnage_events::PoolKind;

use super::{Policy, Rung};
use crate::request::{MIN_BLOCK, Request};

/// The largest rounded size that the small pool serves in a small job: small blocks live long, and would keep large pages.
const SMALL_SIZE: u64 = 1 << 20;

/// The same in a large job. Its parameters may have a mebibyte each, and what they leave free must serve larger blocks.
const SMALL_SIZE_IN_LARGE_JOB: u64 = 256 << 10;

/// The smallest page, that of NVIDIA's devices.
const SMALLEST_PAGE: u64 = 2 << 20;

/// The largest page. Its mapping costs as much as that of a small one, but one live block keeps what else is free in it.
/// Copies in pages of this size lose next to nothing (H200).
const LARGEST_PAGE: u64 = 16 << 20;

/// The same where memory is tight, and driver time matters less.
const LARGEST_TIGHT_PAGE: u64 = 8 << 20;

/// From this size on pages under a large block cost no bandwidth to speak of.
const FAST_PAGE: u64 = 4 << 20;

/// From here on a block is copied so much that pages below [`FAST_PAGE`] under it cost bandwidth.
const LARGE_BLOCK: u64 = 64 << 20;

/// A large block has about this many pages, a small one half as many: few to map, and more than one to move.
const PAGES_A_BLOCK: u64 = 8;

/// Where memory is tight pages have [`FAST_PAGE`], if that is at most this share of what may be held, and one granule in smaller jobs.
const TIGHT_PAGES_A_JOB: u64 = 512;

/// A page under a block that is not large is at most this share of what is reserved: small jobs need small pages.
const PAGES_A_JOB: u64 = 80;

/// The same where the program empties the cache, and pays for every page each time that it does.
const PAGES_AN_EMPTIED_JOB: u64 = 48;

/// There a page may be all of a block of whole granules, which ends with it; at most this share of what is reserved.
const WHOLE_BLOCKS_A_JOB: u64 = 8;

/// With more than this share of what may be held, of a limit or of the device, ends of pages are used before there are more
/// pages. Of 19,200 random loops of small blocks 2 fail too early so; with 3/4 or 19/20 several times as many (`tests/pages/oom.rs`).
const NEARLY_FULL: (u64, u64) = (7, 8);

/// What slack may grow to where sizes never repeat and moving does not pay.
const MOST_SLACK: f64 = 0.12;

/// Requests after which the governor counts anew.
const WINDOW: u64 = 10_000;

/// Pages that may be moved in a window: 6 ms of the driver's time, in which programs were seen to work for 0.5 to 2 s.
const MOST_MOVED: u64 = 200;

/// What the governor adds to the slack at a time.
const STEP: f64 = 0.02;

/// Each costs more than the one before: nothing, an event, books, new memory, mappings, memory beyond the slack, waiting.
pub(super) const LADDER: [Rung; 12] = [
    Rung::Callbacks,
    Rung::Borrow,
    Rung::View,
    Rung::Leftovers,
    Rung::Ends,
    Rung::GrowWithinSlack,
    Rung::Stitch,
    Rung::Grow,
    Rung::OtherHalf,
    Rung::SparePools,
    Rung::Reclaim,
    Rung::OtherHalf,
];

#[inline]
pub(super) fn kind_of(size: u64, reserved: u64) -> PoolKind {
    let small = if is_large_job(reserved) { SMALL_SIZE_IN_LARGE_JOB } else { SMALL_SIZE };
    if size <= small { PoolKind::Small } else { PoolKind::Large }
}

/// Whether so much is reserved that pages of [`FAST_PAGE`] are a small share of it.
#[inline]
fn is_large_job(reserved: u64) -> bool {
    reserved >= FAST_PAGE * PAGES_A_JOB
}

/// Whether so much of what may be held at most would be held with a large block that free ends of pages are used before there are
/// more pages. Earlier than where requests fail: what is left in small pieces by then stays so.
pub(super) fn is_nearly_full(kind: PoolKind, after: u64, most: u64) -> bool {
    kind == PoolKind::Large && after > most / NEARLY_FULL.1 * NEARLY_FULL.0
}

/// What is not needed always goes back: to the byte, so that neighbours share pages.
pub(super) fn splits(size: u64, request: &Request) -> bool {
    size - request.size >= MIN_BLOCK
}

pub(super) fn granule(of_device: u64) -> u64 {
    of_device.max(SMALLEST_PAGE)
}

/// What new pages are for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    /// Bytes of the block.
    pub(crate) size: u64,
    /// The half of a pool that it is for.
    pub(crate) kind: PoolKind,
    /// Bytes that are held already.
    pub(crate) reserved: u64,
    /// The unit of pages.
    pub(crate) granule: u64,
    /// Whether there is a limit, or most of the device is reserved.
    pub(crate) tight: bool,
    /// Bytes that may be held: the limit, or all of the device.
    pub(crate) most: u64,
    /// Whether they stay where they are: those of a private pool.
    pub(crate) stay: bool,
    /// Whether the program empties the cache.
    pub(crate) emptied: bool,
}

impl Growth {
    fn is_large(&self) -> bool {
        self.size >= LARGE_BLOCK
    }

    /// Whether there are to be no small pages: under a large block, and in a large job, where large blocks will lie on them
    /// one day; where memory is tight, that is one that may become large. Small blocks have their own.
    fn avoids_small_pages(&self) -> bool {
        let in_large_job = if self.tight {
            self.most >= FAST_PAGE * TIGHT_PAGES_A_JOB
        } else {
            is_large_job(self.reserved)
        };
        self.is_large() || in_large_job && self.kind == PoolKind::Large
    }

    /// Bytes of new pages where `missing` are missing: at least that, in whole granules, and no small page where these are
    /// avoided if `ample`. None if no number is as large.
    pub(crate) fn bytes(&self, missing: u64, ample: bool) -> Option<u64> {
        let least = if ample && self.avoids_small_pages() { FAST_PAGE } else { 1 };
        missing.max(least).checked_next_multiple_of(self.granule)
    }

    /// The sizes of new pages that together have `bytes`, a multiple of the granule.
    pub(crate) fn page_sizes(&self, bytes: u64) -> Vec<u64> {
        let unit = self.unit().next_multiple_of(self.granule);
        let largest = if self.tight && !self.stay { LARGEST_TIGHT_PAGE } else { LARGEST_PAGE };
        let unit = unit.clamp(self.granule, largest.max(self.granule));
        let mut sizes = vec![unit; (bytes / unit) as usize];
        let rest = bytes % unit;
        match sizes.last_mut() {
            Some(last) if self.avoids_small_pages() && rest < FAST_PAGE => *last += rest,
            _ => sizes.extend(Some(rest).filter(|&rest| rest > 0)),
        }
        sizes
    }

    /// About how large a page is.
    fn unit(&self) -> u64 {
        let Self { size, reserved, granule, stay, emptied, .. } = *self;
        if stay {
            return LARGEST_PAGE;
        }
        if self.tight && !self.is_large() {
            return if self.avoids_small_pages() { FAST_PAGE } else { granule };
        }
        let share = (size / PAGES_A_BLOCK).max((2 * size / PAGES_A_BLOCK).min(FAST_PAGE));
        if self.is_large() {
            return share;
        }
        let share = if self.avoids_small_pages() { share.max(FAST_PAGE) } else { share };
        if !emptied {
            return share.min(reserved / PAGES_A_JOB);
        }
        let whole = if size.is_multiple_of(granule) { size } else { 0 };
        let whole = whole.min(reserved.max(LARGE_BLOCK) / WHOLE_BLOCKS_A_JOB);
        share.min(reserved / PAGES_AN_EMPTIED_JOB).max(whole)
    }
}

/// Whether a free page of this size is of use in a view for a block of `size` in this half of a pool.
pub(super) fn stitches(page: u64, kind: PoolKind, size: u64, granule: u64) -> bool {
    match kind {
        // A small block would keep all of a larger one.
        PoolKind::Small => page == granule,
        PoolKind::Large => size < LARGE_BLOCK || page >= FAST_PAGE,
    }
}

/// How much free memory is held beyond what is in use, as a share of it, before pages are moved rather than made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slack {
    per_mille: u16,
}

impl Default for Slack {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Slack {
    /// A fiftieth: see `docs/notes/pages.md` for what others give.
    pub const DEFAULT: Self = Self { per_mille: 20 };

    /// This share, between 0 and 1, to the thousandth. None if it is no such share.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then(|| Self { per_mille: (share * 1000.0).round() as u16 })
    }

    /// The share.
    #[must_use]
    pub fn share(self) -> f64 {
        f64::from(self.per_mille) / 1000.0
    }
}

/// Raises the slack of loops whose sizes never repeat: they would move pages for ever.
///
/// Counted in requests, not in time, so that the same requests are always served in the same way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Governor {
    /// Requests when the window began.
    since: u64,
    /// Pages moved in it.
    moved: u64,
    /// What is added to the slack.
    more: f64,
}

impl Governor {
    pub(crate) fn slack(&self, policy: Policy) -> f64 {
        let slack = policy.slack().share();
        (slack + self.more).min(MOST_SLACK.max(slack))
    }

    /// Notes that pages were mapped for a view when so many requests had been made.
    pub(crate) fn note_moved(&mut self, pages: u64, requests: u64) {
        if requests.saturating_sub(self.since) > WINDOW || requests < self.since {
            *self = Self { since: requests, moved: 0, more: self.more };
        }
        self.moved += pages;
        if self.moved > MOST_MOVED {
            let more = (self.more + STEP).min(MOST_SLACK);
            *self = Self { since: requests, moved: 0, more };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn pages_are_a_share_of_their_block_within_bounds_and_add_up() {
        let job = Growth {
            size: 0,
            kind: PoolKind::Large,
            reserved: 0,
            granule: 2 * MIB,
            tight: false,
            most: 512 * MIB,
            stay: false,
            emptied: false,
        };
        let large = Growth { reserved: 4096 * MIB, ..job };
        let emptied = Growth { emptied: true, ..job };
        for (bytes, size, growth, expected) in [
            (2, MIB / 2, job, vec![2]),
            // A job that has little yet has small pages.
            (10, 10 * MIB, job, vec![2; 5]),
            (10, 10 * MIB, large, vec![4, 6]),
            (32, 32 * MIB, large, vec![4; 8]),
            (64, 64 * MIB, job, vec![8; 8]),
            (302, 302 * MIB, job, [vec![16; 18], vec![14]].concat()),
            // Where memory is tight more of it can move.
            (302, 302 * MIB, Growth { tight: true, ..job }, [vec![8; 37], vec![6]].concat()),
            (32, 32 * MIB, Growth { tight: true, ..large }, vec![2; 16]),
            (
                34,
                34 * MIB,
                Growth { tight: true, most: 2048 * MIB, ..job },
                [vec![4; 7], vec![6]].concat(),
            ),
            (
                2,
                MIB / 4,
                Growth { tight: true, most: 2048 * MIB, kind: PoolKind::Small, ..job },
                vec![2],
            ),
            (32, 32 * MIB, Growth { tight: true, stay: true, ..job }, vec![16; 2]),
            // A large block has no small rest.
            (66, 66 * MIB, job, vec![10, 10, 10, 10, 10, 10, 6]),
            (82, 82 * MIB, job, vec![12, 12, 12, 12, 12, 12, 10]),
            (130, 130 * MIB, job, vec![16, 16, 16, 16, 16, 16, 16, 18]),
            // Only the end is missing.
            (6, 300 * MIB, job, vec![6]),
            // What goes back again and again has few pages, and what stays.
            (32, 32 * MIB, emptied, vec![8; 4]),
            (32, 32 * MIB - 512, emptied, vec![2; 16]),
            (32, 32 * MIB, Growth { stay: true, ..job }, vec![16; 2]),
        ] {
            let sizes = Growth { size, ..growth }.page_sizes(bytes * MIB);
            let sizes: Vec<_> = sizes.into_iter().map(|it| it / MIB).collect();
            assert_eq!(sizes, expected, "{bytes} MiB of {size}");
        }
    }

    #[test]
    fn a_large_block_gets_no_small_page_where_there_is_room() {
        let growth = Growth {
            size: 300 * MIB,
            kind: PoolKind::Large,
            reserved: 0,
            granule: 2 * MIB,
            tight: false,
            most: 512 * MIB,
            stay: false,
            emptied: false,
        };
        assert_eq!(
            [true, false].map(|ample| growth.bytes(MIB, ample)),
            [4, 2].map(|it| Some(it * MIB))
        );
        assert_eq!(growth.bytes(9 * MIB, true), Some(10 * MIB));
        assert_eq!(Growth { size: 3 * MIB, ..growth }.bytes(MIB, true), Some(2 * MIB));
        assert_eq!(growth.bytes(u64::MAX, true), None);
    }

    #[test]
    fn a_parameter_of_a_mebibyte_is_small_in_a_small_job_alone() {
        for (size, reserved, kind) in [
            (MIB, 319 * MIB, PoolKind::Small),
            (MIB, 320 * MIB, PoolKind::Large),
            (MIB / 4, 4096 * MIB, PoolKind::Small),
            (MIB + 512, 0, PoolKind::Large),
        ] {
            assert_eq!(kind_of(size, reserved), kind, "{size} of {reserved}");
        }
    }

    #[test]
    fn pages_are_stitched_by_their_size_whatever_the_unit() {
        assert!(!stitches(2 * MIB, PoolKind::Large, 64 * MIB, 2 * MIB));
        assert!(stitches(4 * MIB, PoolKind::Large, 64 * MIB, 2 * MIB));
        assert!(stitches(32 * MIB, PoolKind::Large, 64 * MIB, 32 * MIB));
    }

    #[test]
    fn pages_add_up_and_are_whole_granules_for_all_sizes() {
        for granule in [2 * MIB, 32 * MIB] {
            for bytes in (1..400).map(|it| it * granule) {
                for size in [1, bytes / 2, bytes, 4 * bytes] {
                    for (stay, emptied) in [(false, false), (false, true), (true, false)] {
                        let kind = kind_of(size, 3 * bytes);
                        let growth = Growth {
                            size,
                            kind,
                            reserved: 3 * bytes,
                            granule,
                            tight: bytes % 3 == 0,
                            most: 4 * bytes,
                            stay,
                            emptied,
                        };
                        let sizes = growth.page_sizes(bytes);
                        assert_eq!(sizes.iter().sum::<u64>(), bytes);
                        assert!(sizes.iter().all(|it| *it > 0 && it.is_multiple_of(granule)));
                    }
                }
            }
        }
    }

    #[test]
    fn the_governor_raises_the_slack_of_those_who_move_without_end_and_no_further_than_its_bound() {
        let policy = Policy::Pages(Slack::default());
        let mut seldom = Governor::default();
        let mut often = Governor::default();
        for requests in (0..100).map(|it| it * WINDOW / 10) {
            seldom.note_moved(15, requests);
            often.note_moved(60, requests);
        }
        assert_eq!(seldom.slack(policy), 0.02);
        assert_eq!(often.slack(policy), MOST_SLACK);
        // Who asks for more has it.
        assert_eq!(often.slack(Policy::Pages(Slack::new(0.5).unwrap())), 0.5);
    }

    #[test]
    fn a_slack_is_a_share() {
        assert_eq!([-0.1, 1.5, f64::NAN].map(Slack::new), [None; 3]);
        assert_eq!(Slack::new(0.0304).map(Slack::share), Some(0.03));
    }
}
