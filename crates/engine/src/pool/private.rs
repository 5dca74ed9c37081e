//! Private pools, and which pool a request goes to.
//!
//! A *diversion* sends requests of some streams to a private pool: a graph capture, or a user's
//! pool in use. What a capture does besides is in `capture.rs`.
//!
//! A pool's life: made with one use, each diversion adds one, each release takes one; with none
//! left it is *freeable*, and its memory goes back to the device the next time cached memory does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use slotmap::{SlotMap, new_key_type};
use thiserror::Error;
use tonnage_events::{Address, PoolId, PoolKind, StreamId};

use super::{BlockPool, PoolRef, PoolSet};

new_key_type! {
    /// Names a private pool; ids may be used again after a pool is gone, keys are not.
    pub(crate) struct PrivateKey;
}

/// Both halves of a pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Halves {
    small: BlockPool,
    large: BlockPool,
}

impl Halves {
    pub(crate) fn half(&self, kind: PoolKind) -> &BlockPool {
        match kind {
            PoolKind::Small => &self.small,
            PoolKind::Large => &self.large,
        }
    }

    fn half_mut(&mut self, kind: PoolKind) -> &mut BlockPool {
        match kind {
            PoolKind::Small => &mut self.small,
            PoolKind::Large => &mut self.large,
        }
    }
}

/// A pool that only diverted requests use.
#[derive(Clone, Debug)]
pub(crate) struct PrivatePool {
    pub(crate) id: PoolId,
    pub(crate) uses: u64,
    /// Bytes it holds of the device.
    pub(crate) reserved: u64,
    /// Requests that made it grow, less what was given back, each segment and each run of pages once. PyTorch
    /// tells from this alone whether a pool is empty. A run of pages may be all of two growths, so that the
    /// pool never seems empty; or half of one, where PyTorch asserts and this stays 0.
    growths: u64,
    /// It is over, and there only because requests still go there: PyTorch lets a pool be released before its
    /// diversion ends, destroys it, and asserts when a request comes.
    over: bool,
    pub(crate) halves: Halves,
    /// Where its segments come from, if not from the device.
    source: Option<PoolSource>,
    /// It is paused by itself: it has no memory to give back, used or not.
    paused: bool,
}

/// Where the segments of one private pool come from, in the place of the device: of fixed addresses, and always the same place that
/// they go back to.
#[derive(Clone)]
pub struct PoolSource {
    /// So many bytes, or none if there is no memory for them.
    pub acquire: Arc<dyn Fn(u64) -> Result<Option<Address>, SourceFailed> + Send + Sync>,
    /// Takes a segment back. Waits for work that uses it.
    pub release: Arc<dyn Fn(Address) + Send + Sync>,
}

/// A source that did not say whether it has memory. What went wrong its owner knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceFailed;

impl fmt::Debug for PoolSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSource").finish_non_exhaustive()
    }
}

/// The requests that a diversion takes, by their stream.
#[derive(Clone)]
pub enum StreamFilter {
    /// All of them.
    Any,
    /// Those of these streams, as a graph capture does.
    Only(Vec<StreamId>),
    /// Those for which the function says so at the time, such as "if on this thread".
    When(Arc<dyn Fn(StreamId) -> bool + Send + Sync>),
}

impl StreamFilter {
    fn takes(&self, stream: StreamId) -> bool {
        match self {
            Self::Any => true,
            Self::Only(streams) => streams.contains(&stream),
            Self::When(takes) => takes(stream),
        }
    }
}

impl fmt::Debug for StreamFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("Any"),
            Self::Only(streams) => f.debug_tuple("Only").field(streams).finish(),
            Self::When(_) => f.write_str("When(..)"),
        }
    }
}

/// A pool operation that does not fit the pool's state. It changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// There is no such pool.
    #[error("there is no pool {0}: it was never made, or all its memory has gone back")]
    Unknown(PoolId),
    /// The default pool can be neither diverted to nor released.
    #[error("pool (0, 0) is the default pool and always in use")]
    Default,
    /// The pool was released as often as it was used.
    #[error("pool {0} has no uses left: it was released as often as it was begun")]
    Released(PoolId),
    /// Requests already go there.
    #[error("requests are being diverted to pool {0} already: end that first")]
    Diverting(PoolId),
    /// Requests do not go there.
    #[error("no requests are being diverted to pool {0}: begin that first")]
    NotDiverting(PoolId),
    /// The release of PyTorch that is being followed has no such thing.
    #[error("the release followed has no `no_split` pools: they came with PyTorch 2.10")]
    NoSplitUnsupported,
    /// Segments of a source of their own have fixed addresses.
    #[error(
        "pool {0} cannot have memory of an allocator of its own under the policy `pages`, which moves pages of the device: \
         take the policy `pytorch`"
    )]
    SourceUnderPages(PoolId),
}

/// All pools of a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    default: Halves,
    private: SlotMap<PrivateKey, PrivatePool>,
    by_id: BTreeMap<PoolId, PrivateKey>,
    diversions: Vec<(PoolId, StreamFilter)>,
    no_split: BTreeSet<PoolId>,
    use_on_oom: BTreeSet<PoolId>,
    /// Pools that give nothing back while they have uses.
    keeping: BTreeSet<PoolId>,
    /// Pools of a program's tags, with their names.
    tags: BTreeMap<PoolId, Arc<str>>,
}

impl Pools {
    pub(crate) fn half(&self, pool: PoolRef) -> &BlockPool {
        match pool.set {
            PoolSet::Default => self.default.half(pool.kind),
            PoolSet::Private(key) => self.private[key].halves.half(pool.kind),
        }
    }

    pub(crate) fn half_mut(&mut self, pool: PoolRef) -> &mut BlockPool {
        match pool.set {
            PoolSet::Default => self.default.half_mut(pool.kind),
            PoolSet::Private(key) => self.private[key].halves.half_mut(pool.kind),
        }
    }

    pub(crate) fn id(&self, set: PoolSet) -> PoolId {
        match set {
            PoolSet::Default => PoolId::DEFAULT,
            PoolSet::Private(key) => self.private[key].id,
        }
    }

    /// The private pool of this id, if there is one.
    pub(crate) fn set_of(&self, id: PoolId) -> Option<PoolSet> {
        self.by_id.get(&id).map(|&key| PoolSet::Private(key))
    }

    /// The pool that serves a request on `stream`. Under a tag the newest diversion has it whatever the release: PyTorch has no tags.
    pub(crate) fn select(&self, stream: StreamId, newest_first: bool) -> PoolSet {
        if self.diversions.is_empty() {
            return PoolSet::Default;
        }
        let takes = |(_, filter): &&(PoolId, StreamFilter)| filter.takes(stream);
        let tagged = |it: &(PoolId, StreamFilter)| self.tags.contains_key(&it.0) && takes(&it);
        let found = if newest_first || self.diversions.iter().any(tagged) {
            self.diversions.iter().rev().find(takes)
        } else {
            self.diversions.iter().find(takes)
        };
        found.map_or(PoolSet::Default, |(id, _)| PoolSet::Private(self.by_id[id]))
    }

    /// Whether requests go to a private pool that is no tag's.
    pub(crate) fn diverting_untagged(&self) -> bool {
        self.diversions.iter().any(|(to, _)| !self.tags.contains_key(to))
    }

    /// Notes that a pool holds what is allocated under a tag, as long as there is such a pool.
    pub(crate) fn set_tag(&mut self, id: PoolId, name: &str) -> Result<(), PoolError> {
        if !self.by_id.contains_key(&id) {
            return Err(PoolError::Unknown(id));
        }
        self.tags.insert(id, name.into());
        Ok(())
    }

    /// The tag that a pool is of, if it is of one.
    pub(crate) fn tag(&self, id: PoolId) -> Option<&Arc<str>> {
        self.tags.get(&id)
    }

    /// Makes the pool with one use, or adds one to those it has.
    pub(crate) fn add_use(&mut self, id: PoolId) -> Result<(), PoolError> {
        if id.is_default() {
            return Err(PoolError::Default);
        }
        if let Some(&key) = self.by_id.get(&id) {
            let pool = &mut self.private[key];
            if pool.uses == 0 {
                // One that only seems to hold memory begins anew; PyTorch asserts.
                let seems_full = pool.reserved == 0 && pool.growths > 0;
                if !seems_full && !pool.over {
                    return Err(PoolError::Released(id));
                }
                pool.growths = 0;
                pool.over = false;
            }
            pool.uses += 1;
        } else {
            let pool = PrivatePool {
                id,
                uses: 1,
                reserved: 0,
                growths: 0,
                over: false,
                halves: Halves::default(),
                source: None,
                paused: false,
            };
            self.by_id.insert(id, self.private.insert(pool));
        }
        Ok(())
    }

    /// The same with a source of segments. A pool that is there already keeps what it has.
    pub(crate) fn add_use_from(&mut self, id: PoolId, source: PoolSource) -> Result<(), PoolError> {
        let is_new = !self.by_id.contains_key(&id);
        self.add_use(id)?;
        if is_new && let Some(key) = self.by_id.get(&id) {
            self.private[*key].source = Some(source);
        }
        Ok(())
    }

    /// Where the segments of a pool come from, if not from the device.
    pub(crate) fn source(&self, set: PoolSet) -> Option<&PoolSource> {
        match set {
            PoolSet::Default => None,
            PoolSet::Private(key) => self.private[key].source.as_ref(),
        }
    }

    pub(crate) fn begin(&mut self, id: PoolId, filter: StreamFilter) -> Result<(), PoolError> {
        if self.diversions.iter().any(|&(to, _)| to == id) {
            return Err(PoolError::Diverting(id));
        }
        self.add_use(id)?;
        self.diversions.push((id, filter));
        Ok(())
    }

    pub(crate) fn end(&mut self, id: PoolId) -> Result<(), PoolError> {
        let at = self
            .diversions
            .iter()
            .position(|&(to, _)| to == id)
            .ok_or(PoolError::NotDiverting(id))?;
        self.diversions.remove(at);
        if let Some(&key) = self.by_id.get(&id)
            && self.private[key].over
        {
            self.forget(key);
        }
        Ok(())
    }

    /// Takes one use. With the last one the pool may lose its `no_split` mark.
    pub(crate) fn release(&mut self, id: PoolId, loses_no_split: bool) -> Result<(), PoolError> {
        if id.is_default() {
            return Err(PoolError::Default);
        }
        let key = *self.by_id.get(&id).ok_or(PoolError::Unknown(id))?;
        let pool = &mut self.private[key];
        pool.uses = pool.uses.checked_sub(1).ok_or(PoolError::Released(id))?;
        if pool.uses == 0 {
            self.keeping.remove(&id);
            if loses_no_split {
                self.no_split.remove(&id);
            }
        }
        Ok(())
    }

    /// From now on the pool gives nothing back, until it has no uses.
    pub(crate) fn keep(&mut self, id: PoolId) {
        self.keeping.insert(id);
    }

    /// Whether a pool gives nothing back now.
    pub(crate) fn keeps(&self, set: PoolSet) -> bool {
        !self.keeping.is_empty() && self.keeping.contains(&self.id(set))
    }

    /// Uses of a pool; 0 if there is no such pool.
    pub(crate) fn uses(&self, id: PoolId) -> u64 {
        self.by_id.get(&id).map_or(0, |&key| self.private[key].uses)
    }

    /// Bytes that a private pool holds of the device.
    pub(crate) fn reserved_by(&self, id: PoolId) -> u64 {
        self.by_id.get(&id).map_or(0, |&key| self.private[key].reserved)
    }

    pub(crate) fn private(&self) -> impl Iterator<Item = (PrivateKey, &PrivatePool)> {
        self.by_id.values().map(|&key| (key, &self.private[key]))
    }

    /// Notes that a pool is paused by itself, or no longer.
    pub(crate) fn set_paused(&mut self, id: PoolId, paused: bool) {
        if let Some(&key) = self.by_id.get(&id) {
            self.private[key].paused = paused;
        }
    }

    /// Pools without uses that are not over yet, by id; without those that are paused.
    pub(crate) fn freeable(&self) -> Vec<PrivateKey> {
        let freeable = |(_, pool): &(_, &PrivatePool)| pool.uses == 0 && !pool.over && !pool.paused;
        self.private().filter(freeable).map(|(key, _)| key).collect()
    }

    /// Notes that a pool holds `bytes` more of the device.
    pub(crate) fn add_reserved(&mut self, set: PoolSet, bytes: u64) {
        if let PoolSet::Private(key) = set {
            self.private[key].reserved += bytes;
        }
    }

    /// Notes that a pool holds `bytes` fewer of the device.
    pub(crate) fn sub_reserved(&mut self, set: PoolSet, bytes: u64) {
        if let PoolSet::Private(key) = set {
            self.private[key].reserved -= bytes;
        }
    }

    /// Notes that a pool has a segment or range: it is not over then, whatever it was.
    pub(crate) fn revive(&mut self, set: PoolSet) {
        if let PoolSet::Private(key) = set {
            self.private[key].over = false;
        }
    }

    /// Notes that a request made a pool grow.
    pub(crate) fn add_growth(&mut self, set: PoolSet) {
        if let PoolSet::Private(key) = set {
            self.private[key].growths += 1;
        }
    }

    /// Notes that a segment or a run of pages of a pool was given back.
    pub(crate) fn sub_growth(&mut self, set: PoolSet) {
        if let PoolSet::Private(key) = set {
            let growths = &mut self.private[key].growths;
            *growths = growths.saturating_sub(1);
        }
    }

    /// Whether a pool has no uses, no memory, and by PyTorch's count none either.
    pub(crate) fn is_over(&self, key: PrivateKey) -> bool {
        let is_over =
            |pool: &PrivatePool| pool.uses == 0 && pool.reserved == 0 && pool.growths == 0;
        self.private.get(key).is_some_and(is_over)
    }

    /// Whether a pool without uses holds memory, and by PyTorch's count none.
    pub(crate) fn holds_uncounted_memory(&self) -> bool {
        self.private.values().any(|it| it.uses == 0 && it.growths == 0 && it.reserved > 0)
    }

    /// Forgets a pool that is over and has no blocks left; while requests still go there, as soon as they do not.
    pub(crate) fn forget(&mut self, key: PrivateKey) {
        debug_assert!(self.is_over(key), "a pool in use is not forgotten");
        let id = self.private[key].id;
        if self.diversions.iter().any(|&(to, _)| to == id) {
            self.private[key].over = true;
        } else if let Some(pool) = self.private.remove(key) {
            self.by_id.remove(&pool.id);
            self.tags.remove(&pool.id);
        }
    }

    pub(crate) fn set_no_split(&mut self, id: PoolId) {
        self.no_split.insert(id);
    }

    pub(crate) fn never_splits(&self, set: PoolSet) -> bool {
        !self.no_split.is_empty() && self.no_split.contains(&self.id(set))
    }

    pub(crate) fn set_use_on_oom(&mut self, id: PoolId, on: bool) {
        if on {
            self.use_on_oom.insert(id);
        } else {
            self.use_on_oom.remove(&id);
        }
    }

    /// Pools whose free blocks may serve requests of the default pool, rather than fail. Ones that
    /// have no uses left cannot be diverted to; ones that were marked before they were made are made now and
    /// released again, which is PyTorch's way to look into them.
    pub(crate) fn spare(&mut self, loses_no_split: bool) -> Vec<PrivateKey> {
        let marked = self.use_on_oom.iter().copied();
        let unmade: Vec<_> = marked.filter(|id| !self.by_id.contains_key(id)).collect();
        for id in unmade {
            // The default pool may be marked too, and is neither made nor released.
            let _ = self.add_use(id).and_then(|()| self.release(id, loses_no_split));
        }
        let keys = self.use_on_oom.iter().filter_map(|id| self.by_id.get(id));
        keys.copied().filter(|&key| self.private[key].uses > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PoolId = PoolId(0, 7);
    const B: PoolId = PoolId(0, 8);

    fn selected(pools: &Pools, newest_first: bool) -> PoolId {
        pools.id(pools.select(StreamId(0), newest_first))
    }

    #[test]
    fn nested_diversions_go_to_the_newest_or_the_oldest_by_release() {
        let mut pools = Pools::default();
        assert_eq!(selected(&pools, true), PoolId::DEFAULT);
        pools.begin(A, StreamFilter::Any).unwrap();
        pools.begin(B, StreamFilter::Any).unwrap();
        assert_eq!(selected(&pools, true), B);
        assert_eq!(selected(&pools, false), A);
        pools.end(B).unwrap();
        assert_eq!(selected(&pools, true), A);
    }

    #[test]
    fn under_a_tag_the_newest_diversion_has_the_request_in_every_release() {
        for tagged in [&[A][..], &[B], &[A, B]] {
            let mut pools = Pools::default();
            pools.begin(A, StreamFilter::Any).unwrap();
            pools.begin(B, StreamFilter::Only(vec![StreamId(0)])).unwrap();
            for &pool in tagged {
                pools.set_tag(pool, "weights").unwrap();
            }
            assert_eq!(selected(&pools, true), B, "{tagged:?}");
            assert_eq!(selected(&pools, false), B, "{tagged:?}");
            assert_eq!(pools.id(pools.select(StreamId(4), false)), A, "{tagged:?}");
        }
    }

    #[test]
    fn a_tag_that_does_not_take_a_request_changes_nothing_for_it() {
        let mut pools = Pools::default();
        for pool in [A, B] {
            pools.begin(pool, StreamFilter::Any).unwrap();
        }
        let other_thread = PoolId(0, 9);
        pools.begin(other_thread, StreamFilter::When(Arc::new(|_| false))).unwrap();
        pools.set_tag(other_thread, "weights").unwrap();
        assert_eq!(selected(&pools, false), A);
        assert_eq!(selected(&pools, true), B);
    }

    #[test]
    fn a_diversion_takes_only_the_streams_of_its_filter() {
        let mut pools = Pools::default();
        pools.begin(A, StreamFilter::Only(vec![StreamId(4)])).unwrap();
        assert_eq!(selected(&pools, true), PoolId::DEFAULT);
        pools.begin(B, StreamFilter::When(Arc::new(|stream| stream.0 < 4))).unwrap();
        assert_eq!(selected(&pools, true), B);
        assert_eq!(pools.id(pools.select(StreamId(4), true)), A);
    }

    #[test]
    fn a_tag_goes_with_its_pool() {
        let mut pools = Pools::default();
        assert_eq!(pools.set_tag(A, "weights"), Err(PoolError::Unknown(A)));
        pools.begin(A, StreamFilter::Any).unwrap();
        assert!(pools.diverting_untagged());
        pools.set_tag(A, "weights").unwrap();
        assert!(!pools.diverting_untagged());
        assert_eq!(pools.tag(A).map(|it| &**it), Some("weights"));
        pools.end(A).unwrap();
        pools.release(A, false).unwrap();
        let [key] = pools.freeable()[..] else { panic!("one pool") };
        pools.forget(key);
        assert_eq!(pools.tag(A), None);
    }

    #[test]
    fn operations_that_do_not_fit_are_refused_and_change_nothing() {
        let mut pools = Pools::default();
        assert_eq!(pools.release(A, false), Err(PoolError::Unknown(A)));
        assert_eq!(pools.end(A), Err(PoolError::NotDiverting(A)));
        assert_eq!(pools.begin(PoolId::DEFAULT, StreamFilter::Any), Err(PoolError::Default));
        pools.begin(A, StreamFilter::Any).unwrap();
        assert_eq!(pools.begin(A, StreamFilter::Any), Err(PoolError::Diverting(A)));
        assert_eq!(pools.uses(A), 1);
        pools.end(A).unwrap();
        pools.release(A, false).unwrap();
        assert_eq!(pools.release(A, false), Err(PoolError::Released(A)));
        assert_eq!(pools.begin(A, StreamFilter::Any), Err(PoolError::Released(A)));
    }

    #[test]
    fn a_freeable_pool_is_over_once_it_holds_nothing() {
        let mut pools = Pools::default();
        pools.add_use(A).unwrap();
        pools.release(A, false).unwrap();
        let [key] = pools.freeable()[..] else { panic!("one pool") };
        pools.add_reserved(PoolSet::Private(key), 1);
        assert!(!pools.is_over(key));
        pools.sub_reserved(PoolSet::Private(key), 1);
        assert!(pools.is_over(key));
        pools.forget(key);
        assert!(pools.freeable().is_empty());
        pools.add_use(A).unwrap();
    }
}
