//! The seam for placement rules: which free block serves, when it is split, how a pool grows, and what is tried
//! when nothing serves.
//!
//! A policy looks and decides; it changes nothing. Pools, blocks, statistics and history work the
//! same under each, so that another policy is another file here and another arm below.

mod ladder;

mod pages;

mod pytorch;

use std::fmt;
use std::str::FromStr;

use tonnage_events::PoolKind;

use crate::block::{BlockId, Blocks};
use crate::config::{Config, Release};
use crate::pool::BlockPool;
use crate::request::Request;

pub(crate) use ladder::Rung;
pub use pages::Slack;
pub(crate) use pages::{Governor, Growth};

/// A set of placement rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// PyTorch's, to the byte.
    #[default]
    Pytorch,
    /// Physical pages go where they are needed, and this share of what is in use may lie free before they do.
    Pages(Slack),
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 2] = [Self::Pytorch, Self::Pages(Slack::DEFAULT)];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pytorch => "pytorch",
            Self::Pages(_) => "pages",
        }
    }

    /// The half of a pool that serves this rounded size, where so many bytes are reserved.
    #[inline]
    pub(crate) fn kind_of(self, size: u64, reserved: u64) -> PoolKind {
        match self {
            Self::Pytorch => pytorch::kind_of(size),
            Self::Pages(_) => pages::kind_of(size, reserved),
        }
    }

    /// What is tried when a pool has no block for a request, in order.
    pub(crate) fn ladder(self, release: Release) -> &'static [Rung] {
        match self {
            Self::Pytorch => pytorch::ladder(release),
            Self::Pages(_) => &pages::LADDER,
        }
    }

    /// The page of expandable segments of this kind of pool.
    pub(crate) fn page_size(self, config: &Config, kind: PoolKind) -> u64 {
        match self {
            Self::Pytorch => pytorch::page_size(config, kind),
            Self::Pages(_) => pages::granule(0),
        }
    }

    /// Bytes of addresses that an expandable segment reserves on a device of `total` bytes, no more than `most`; in
    /// whole pages. None if that is nothing, or if no address space is that large, as with absurd page sizes.
    pub(crate) fn range_size(self, total: u64, most: u64, page_size: u64) -> Option<u64> {
        match self {
            Self::Pytorch | Self::Pages(_) => pytorch::range_size(total, most, page_size),
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
            Self::Pages(_) => None,
        }
    }

    /// Bytes to obtain from the device for a rounded size that no pool can serve.
    pub(crate) fn segment_size(self, config: &Config, size: u64) -> u64 {
        match self {
            Self::Pytorch => pytorch::segment_size(config, size),
            Self::Pages(_) => size.next_multiple_of(pages::granule(0)),
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
            Self::Pages(_) => pool.free().best(request.stream, request.size),
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
            Self::Pages(_) => pages::splits(size, request),
        }
    }

    /// Whether the first free block that is large enough serves the request, if it has this size.
    pub(crate) fn accepts(self, config: &Config, size: u64, request: &Request) -> bool {
        match self {
            Self::Pytorch => pytorch::accepts(config, size, request),
            Self::Pages(_) => true,
        }
    }
}

/// What only matters where pages move.
impl Policy {
    /// Whether pages move, rather than stay in their segment.
    #[inline]
    pub(crate) fn moves_pages(self) -> bool {
        matches!(self, Self::Pages(_))
    }

    /// How much may lie free before pages are moved.
    pub(crate) fn slack(self) -> Slack {
        match self {
            Self::Pytorch => Slack::DEFAULT,
            Self::Pages(slack) => slack,
        }
    }

    /// The unit of pages, on a device that maps units of `of_device`.
    pub(crate) fn granule(self, of_device: u64) -> u64 {
        pages::granule(of_device)
    }

    /// Whether free ends of pages serve the request before there are more pages, where so much would be held after it, of so much at
    /// most.
    pub(crate) fn is_nearly_full(self, request: &Request, after: u64, most: u64) -> bool {
        pages::is_nearly_full(request.pool.kind, after, most)
    }

    /// Whether a free page is of use in a view for the request.
    pub(crate) fn stitches(self, page: u64, request: &Request, granule: u64) -> bool {
        pages::stitches(page, request.pool.kind, request.size, granule)
    }
}

impl fmt::Display for Policy {
    /// As it is read: the name, and settings that are not the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages(slack) if *slack != Slack::DEFAULT => {
                write!(f, "{},slack:{}", self.name(), slack.share())
            }
            _ => f.write_str(self.name()),
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    /// A name, and for `pages` perhaps how much may lie free: `pages,slack:0.05`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, settings) = text.split_once(',').unwrap_or((text, ""));
        let policy =
            Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| {
                let known: Vec<_> = Self::ALL.iter().map(|policy| policy.name()).collect();
                format!("there is no policy `{name}`; there is: {}", known.join(", "))
            })?;
        match (policy, settings) {
            (policy, "") => Ok(policy),
            (Self::Pages(_), settings) => {
                let share = settings.strip_prefix("slack:").and_then(|share| share.parse().ok());
                share.and_then(Slack::new).map(Self::Pages).ok_or_else(|| {
                    format!("`{settings}` is no setting of the policy `pages`; it takes `slack:` and a share from 0 to 1, such as `slack:0.02`")
                })
            }
            (policy, settings) => {
                Err(format!("the policy `{policy}` has no settings such as `{settings}`"))
            }
        }
    }
}

impl Policy {
    /// The policy that a settings string such as `policy:pages,slack:0.05` names, as in the environment variable
    /// `TONNAGE_CONF`; the default one if it is empty.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and what is allowed.
    pub fn from_conf(conf: &str) -> Result<Self, String> {
        if conf.is_empty() {
            return Ok(Self::default());
        }
        let name = conf.strip_prefix("policy:").ok_or_else(|| {
            format!("`{conf}` does not begin with `policy:`, such as `policy:pages,slack:0.02`")
        })?;
        name.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_named_with_their_settings_and_wrong_ones_are_refused_with_what_is_right() {
        assert_eq!(Policy::from_conf(""), Ok(Policy::Pytorch));
        assert_eq!(Policy::from_conf("policy:pytorch"), Ok(Policy::Pytorch));
        assert_eq!(Policy::from_conf("policy:pages"), Ok(Policy::Pages(Slack::DEFAULT)));
        let wide = Policy::Pages(Slack::new(0.05).unwrap());
        assert_eq!(Policy::from_conf("policy:pages,slack:0.05"), Ok(wide));
        for policy in [Policy::Pytorch, Policy::ALL[1], wide] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for (wrong, right) in [
            ("pages", "policy:pages"),
            ("policy:page", "pytorch, pages"),
            ("policy:pages,slack:2", "from 0 to 1"),
            ("policy:pages,slack:", "from 0 to 1"),
            ("policy:pages,lack:0.1", "slack:0.02"),
            ("policy:pytorch,slack:0.1", "has no settings"),
        ] {
            let error = Policy::from_conf(wrong).unwrap_err();
            assert!(error.contains(right), "{wrong}: {error}");
        }
    }
}
