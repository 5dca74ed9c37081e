//! Work that is captured once and launched as a whole.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use tonnage_events::StreamId;

use super::context::Context;
use super::launcher::Launcher;
use super::sys::{CUgraph, CUgraphExec};
use crate::DeviceError;

/// A driver, by one of its functions, and a context of it: drivers number theirs alike.
type Key = (usize, usize);

/// How many captures go on in a context of the process, whichever engine they are of. To wait for a context in which one
/// goes on is refused by the driver, and breaks the capture. There are few contexts, and their counts stay for good.
fn captures_of(context: &Context) -> &'static RwLock<usize> {
    static ALL: Mutex<BTreeMap<Key, &'static RwLock<usize>>> = Mutex::new(BTreeMap::new());
    let key = (context.driver().table().context_synchronize as usize, context.handle().0.addr());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.entry(key).or_insert_with(|| Box::leak(Box::default()))
}

/// Shows that no capture goes on in a context, and none begins.
pub(super) struct NoCapture {
    _held: RwLockReadGuard<'static, usize>,
}

impl NoCapture {
    /// None if one goes on.
    pub(super) fn in_context(context: &Context) -> Option<Self> {
        let held = captures_of(context).read().unwrap_or_else(PoisonError::into_inner);
        (*held == 0).then_some(Self { _held: held })
    }
}

/// One more capture in a context, until dropped.
#[derive(Debug)]
struct OpenCapture(&'static RwLock<usize>);

impl OpenCapture {
    fn new(context: &Context) -> Self {
        let count = captures_of(context);
        *count.write().unwrap_or_else(PoisonError::into_inner) += 1;
        Self(count)
    }
}

impl Drop for OpenCapture {
    fn drop(&mut self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) -= 1;
    }
}

/// A capture that goes on: what is queued on its stream, and on streams that wait for marks of it, is written down and
/// not done. Ends with [`finish`](Self::finish); dropped, what was written down is forgotten.
#[derive(Debug)]
pub struct Capture {
    launcher: Launcher,
    stream: StreamId,
    ended: bool,
    /// Until the driver has ended it.
    _open: OpenCapture,
}

/// Captured work, ready to be launched. Threads may share it: they launch one after the other.
#[derive(Debug)]
pub struct Graph {
    /// The driver does not guard what is launched: one thread at a time may use it.
    exec: Mutex<CUgraphExec>,
    nodes: usize,
    context: Arc<Context>,
}

const _: () = {
    const fn anywhere<T: Send + Sync>() {}
    anywhere::<Graph>();
};

impl Launcher {
    /// Begins to capture what is queued on `stream`, which is not the default stream.
    ///
    /// Memory may be obtained meanwhile; to wait for the stream, or for a mark of it, is refused by the driver.
    ///
    /// # Errors
    ///
    /// If there is no such stream, or if the driver refuses, as it does for the default stream.
    pub fn capture(&self, stream: StreamId) -> Result<Capture, DeviceError> {
        let open = OpenCapture::new(&self.queues.context);
        // Held until it is noted: whoever marks a stream looks whether it is captured.
        let mut streams = self.queues.streams_mut();
        let handle = streams.get("capture", stream)?;
        let current = self.queues.context.enter()?;
        // SAFETY: the stream is alive by the book that is held.
        unsafe { current.capture_begin(handle) }?;
        streams.set_captured(stream, true);
        drop(streams);
        Ok(Capture { launcher: self.clone(), stream, ended: false, _open: open })
    }

    /// Whether what is queued on `stream` is captured.
    ///
    /// # Errors
    ///
    /// If there is no such stream.
    pub fn is_capturing(&self, stream: StreamId) -> Result<bool, DeviceError> {
        self.on("is_capturing", stream, |current, stream| {
            // SAFETY: the stream is alive by the book that is held.
            unsafe { current.is_capturing(stream) }
        })
    }

    /// Whether this began to capture a stream, and has not ended it.
    #[must_use]
    pub fn has_captured(&self, stream: StreamId) -> bool {
        self.queues.streams().captured().contains(&stream)
    }

    /// Queues the work of a graph on `stream`.
    ///
    /// # Errors
    ///
    /// If there is no such stream, or if the driver refuses.
    ///
    /// # Safety
    ///
    /// 1. The graph is of this device.
    /// 2. What was promised of each captured piece of work holds again until the work is done: memory is the caller's,
    ///    modules are loaded.
    pub unsafe fn launch_graph(&self, graph: &Graph, stream: StreamId) -> Result<(), DeviceError> {
        self.on("launch_graph", stream, |current, stream| {
            let exec = graph.exec.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: promises 1 and 2; no other thread uses the graph while its lock is held, and the driver keeps one
            // that is destroyed until its work is done. The stream is alive by the book that is held.
            unsafe { current.graph_launch(*exec, stream) }
        })
    }
}

impl Capture {
    /// The stream that is captured.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Ends the capture.
    ///
    /// # Errors
    ///
    /// If something was queued that cannot be captured, if a stream that joined did not come back, or if the driver
    /// refuses. The capture is over all the same.
    pub fn finish(mut self) -> Result<Graph, DeviceError> {
        let graph = self.end()?;
        let context = &self.launcher.queues.context;
        // Once more if it failed: the graph is to be destroyed.
        let current = context.enter().or_else(|_| context.enter())?;
        // SAFETY: the graph is the one just made.
        let made = unsafe { current.graph_nodes(graph) }.and_then(|nodes| {
            // SAFETY: as above.
            let exec = unsafe { current.graph_instantiate(graph) }?;
            Ok(Graph { exec: Mutex::new(exec), nodes, context: Arc::clone(context) })
        });
        // SAFETY: ours, destroyed once, and what is launched has all it needs.
        let destroy = || unsafe { current.graph_destroy(graph) };
        let destroyed = destroy().or_else(|_| destroy());
        let made = made?;
        destroyed.map(|()| made)
    }

    fn end(&mut self) -> Result<CUgraph, DeviceError> {
        let ended = self.launcher.on("finish", self.stream, |current, stream| {
            // SAFETY: the stream is alive by the book that is held.
            unsafe { current.capture_end(stream) }
        });
        self.ended = ended.is_ok();
        if self.ended {
            self.launcher.queues.streams_mut().set_captured(self.stream, false);
        }
        ended
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // Once more if it failed: a stream that still captures does no work. One that does not refuses.
        let ended = self.end().or_else(|_| self.end());
        self.launcher.queues.streams_mut().set_captured(self.stream, false);
        let Ok(graph) = ended else { return };
        let context = &self.launcher.queues.context;
        let Ok(current) = context.enter().or_else(|_| context.enter()) else { return };
        // SAFETY: ours, and used by nobody.
        let destroy = || unsafe { current.graph_destroy(graph) };
        // Once more if it failed; nobody is left to hear of an error.
        drop(destroy().or_else(|_| destroy()));
    }
}

impl Graph {
    /// How many pieces of work it has.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // The first try may return an error that an earlier call has parked.
        let Ok(current) = self.context.enter().or_else(|_| self.context.enter()) else { return };
        let exec = *self.exec.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: ours, destroyed once; the driver keeps it until work that is queued is done.
        let destroy = || unsafe { current.graph_exec_destroy(exec) };
        // Once more if it failed; nobody is left to hear of an error.
        drop(destroy().or_else(|_| destroy()));
    }
}
