//! Which streams are being captured into which graph, and the nodes of these graphs: what comes right behind what.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of a capture in which a test has put every stream.
const TOLD: u64 = 7;

/// Nodes have handles from here on, away from those of graphs and events.
const FIRST_NODE: u64 = 0xA000_0000;

/// Captures that are under way.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    /// Whether a test has said that every stream is being captured.
    pub(crate) everything: bool,
    /// Where each stream is in its capture.
    streams: BTreeMap<u64, Place>,
    /// What each capture has.
    under_way: BTreeMap<u64, Capture>,
    last: u64,
    last_node: u64,
}

/// A capture that is under way.
#[derive(Debug, Default)]
struct Capture {
    /// Its nodes, with those that each comes right behind.
    nodes: BTreeMap<u64, Arc<[u64]>>,
    /// What streams came behind before they waited for others. Who was told where a stream is may look there until the capture ends,
    /// whatever other threads do.
    left: Vec<Arc<[u64]>>,
}

/// A capture, and the nodes that what is captured next comes behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) capture: u64,
    pub(crate) behind: Arc<[u64]>,
}

impl Captures {
    /// The capture that a stream is part of.
    pub(crate) fn of(&self, stream: u64) -> Option<u64> {
        if self.everything { Some(TOLD) } else { self.at(stream).map(|place| place.capture) }
    }

    /// Where a stream is in the capture that it is part of. The nodes lie where they are until the capture ends.
    pub(crate) fn at(&self, stream: u64) -> Option<&Place> {
        self.streams.get(&stream)
    }

    /// Whether there is any.
    pub(crate) fn any(&self) -> bool {
        self.everything || !self.streams.is_empty()
    }

    /// A capture begins on this stream.
    pub(crate) fn begin(&mut self, stream: u64) {
        self.last += 1;
        let capture = TOLD + self.last;
        self.streams.insert(stream, Place { capture, behind: Arc::default() });
        self.under_way.insert(capture, Capture::default());
    }

    /// The stream starts work: a node, if it is captured.
    pub(crate) fn add_node(&mut self, stream: u64) {
        let Some(place) = self.streams.get_mut(&stream) else { return };
        self.last_node += 1;
        let node = FIRST_NODE + 0x10 * self.last_node;
        let before = std::mem::replace(&mut place.behind, Arc::new([node]));
        self.under_way.entry(place.capture).or_default().nodes.insert(node, before);
    }

    /// Work starts, and on which stream is not known: a node on each that is captured. Too many say that memory is used for longer
    /// than it is; too few, for less.
    pub(crate) fn add_node_everywhere(&mut self) {
        let streams: Vec<u64> = self.streams.keys().copied().collect();
        for stream in streams {
            self.add_node(stream);
        }
    }

    /// The nodes that a node comes right behind.
    pub(crate) fn before(&self, node: u64) -> &[u64] {
        self.under_way.values().find_map(|it| it.nodes.get(&node)).map_or(&[], |before| before)
    }

    /// The stream goes on behind a place of a capture, if that is still under way, and is part of it from now on.
    pub(crate) fn join(&mut self, stream: u64, other: &Place) {
        let Some(capture) = self.under_way.get_mut(&other.capture) else { return };
        let place = self.streams.entry(stream).or_default();
        place.capture = other.capture;
        let new = other.behind.iter().filter(|node| !place.behind.contains(node));
        let all: Arc<[u64]> = place.behind.iter().chain(new).copied().collect();
        capture.left.push(std::mem::replace(&mut place.behind, all));
    }

    /// The capture of this stream ends, for all of its streams; its number.
    pub(crate) fn end(&mut self, stream: u64) -> Option<u64> {
        let ended = self.streams.get(&stream)?.capture;
        self.streams.retain(|_, place| place.capture != ended);
        self.under_way.remove(&ended);
        Some(ended)
    }
}

/// Held by tests that capture in this process's state, or start work on all that is captured there.
#[cfg(test)]
pub(crate) static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(captures: &Captures, stream: u64) -> Vec<u64> {
        captures.at(stream).map(|place| place.behind.to_vec()).unwrap_or_default()
    }

    #[test]
    fn nodes_come_behind_what_their_stream_has_captured_and_waited_for() {
        let mut captures = Captures::default();
        captures.add_node(1);
        captures.begin(1);
        assert!(behind(&captures, 1).is_empty());
        captures.add_node(1);
        let first = behind(&captures, 1);
        let fork = captures.at(1).unwrap().clone();
        captures.join(2, &fork);
        captures.add_node(2);
        captures.add_node(1);
        let (own, other) = (behind(&captures, 1), behind(&captures, 2));
        assert_eq!((captures.before(own[0]), captures.before(other[0])), (&first[..], &first[..]));
        let back = captures.at(2).unwrap().clone();
        captures.join(1, &back);
        captures.join(1, &back);
        assert_eq!(behind(&captures, 1), [own[0], other[0]]);
        captures.add_node(1);
        assert_eq!(captures.before(behind(&captures, 1)[0]), [own[0], other[0]]);
        captures.end(2).unwrap();
        assert_eq!((captures.of(1), captures.before(own[0])), (None, &[][..]));
        captures.join(3, &back);
        assert_eq!(captures.of(3), None, "that capture has ended");
    }

    #[test]
    fn work_on_a_stream_that_is_not_known_is_a_node_on_each() {
        let mut captures = Captures::default();
        captures.add_node_everywhere();
        captures.begin(1);
        captures.begin(2);
        captures.add_node(2);
        let second = behind(&captures, 2);
        captures.add_node_everywhere();
        let (one, two) = (behind(&captures, 1), behind(&captures, 2));
        assert_eq!((one.len(), two.len()), (1, 1));
        assert_eq!((captures.before(one[0]), captures.before(two[0])), (&[][..], &second[..]));
        assert_eq!(captures.of(3), None);
    }

    #[test]
    fn nodes_that_were_told_lie_where_they_are_until_their_capture_ends() {
        let mut captures = Captures::default();
        captures.begin(1);
        captures.add_node(1);
        let fork = captures.at(1).unwrap().clone();
        captures.join(2, &fork);
        captures.add_node(2);
        let aside = captures.at(2).unwrap().clone();
        let told = [1, 2].map(|stream| Arc::downgrade(&captures.at(stream).unwrap().behind));
        drop(fork);
        captures.join(1, &aside);
        drop(aside);
        captures.add_node(1);
        captures.add_node(2);
        assert!(told.iter().all(|nodes| nodes.upgrade().is_some()), "others went on");
        captures.end(1).unwrap();
        assert!(told.iter().all(|nodes| nodes.upgrade().is_none()));
    }
}
