//! The seam for placement rules: which free block serves, when it is split, how a pool grows, and what is tried
//! when nothing serves.
//!
//! A policy looks and decides; it changes nothing. Pools, blocks, statistics and history work the
//! same under each, so that another policy is another file here and another arm below.

mod ladder;

mod pytorch;

use std::fmt;
use std::str::FromStr;

use tonnage_events::PoolKind;

use crate::block::{BlockId, Blocks};
use crate::config::{Config, Release};
use crate::pool::BlockPool;
use crate::request::Request;

pub(crate) use ladder::Rung;

/// A set of placement rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// PyTorch's, to the byte.
    #[default]
    Pytorch,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 1] = [Self::Pytorch];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pytorch => "pytorch",
        }
    }

    /// The half of a pool that serves this rounded size.
    #[inline]
    pub(crate) fn kind_of(self, size: u64) -> PoolKind {
        match self {
            Self::Pytorch => pytorch::kind_of(size),
        }
    }

    /// What is tried when a pool has no block for a request, in order.
    pub(crate) fn ladder(self, release: Release) -> &'static [Rung] {
        match self {
            Self::Pytorch => pytorch::ladder(release),
        }
    }

    /// The page of expandable segments of this kind of pool.
    pub(crate) fn page_size(self, config: &Config, kind: PoolKind) -> u64 {
        match self {
            Self::Pytorch => pytorch::page_size(config, kind),
        }
    }

    /// Bytes of addresses that an expandable segment reserves on a device of `total` bytes, no more than `most`; in
    /// whole pages. None if that is nothing, or if no address space is that large, as with absurd page sizes.
    pub(crate) fn range_size(self, total: u64, most: u64, page_size: u64) -> Option<u64> {
        match self {
            Self::Pytorch => pytorch::range_size(total, most, page_size),
        }
    }

    /// The block from which on an expandable segment of the pool can grow to hold the request, if there is one.
    pub(crate) fn find_room(
        self,
        pool: &BlockPool,
        blocks: &Blocks,
        request: &Request,
    ) -> Option<BlockId> {
        match self {
            Self::Pytorch => pytorch::find_room(pool, blocks, request),
        }
    }

    /// Bytes to obtain from the device for a rounded size that no pool can serve.
    pub(crate) fn segment_size(self, config: &Config, size: u64) -> u64 {
        match self {
            Self::Pytorch => pytorch::segment_size(config, size),
        }
    }

    /// The free block that serves the request, if any.
    pub(crate) fn choose(
        self,
        config: &Config,
        pool: &BlockPool,
        blocks: &Blocks,
        request: &Request,
    ) -> Option<BlockId> {
        match self {
            Self::Pytorch => pytorch::choose(config, pool, blocks, request),
        }
    }

    /// Whether a block of this size that was chosen for the request gives back what the request does not need.
    pub(crate) fn splits(
        self,
        config: &Config,
        size: u64,
        kind: PoolKind,
        request: &Request,
    ) -> bool {
        match self {
            Self::Pytorch => pytorch::splits(config, size, kind, request),
        }
    }

    /// Whether the first free block that is large enough serves the request, if it has this size.
    pub(crate) fn accepts(self, config: &Config, size: u64, request: &Request) -> bool {
        match self {
            Self::Pytorch => pytorch::accepts(config, size, request),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|policy| policy.name()).collect();
            format!("there is no policy `{name}`; there is: {}", known.join(", "))
        })
    }
}
