//! Calls about captured work, in the current context.

use crate::DeviceError;
use crate::cuda::context::Current;
use crate::cuda::sys::*;

impl Current<'_> {
    /// From now on what is queued on `stream` is not done but written down.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of this context, not destroyed.
    pub(in crate::cuda) unsafe fn capture_begin(
        &self,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().capture_begin)(stream, CAPTURE_RELAXED) };
        self.check("cuStreamBeginCapture", code)
    }

    /// Ends what `capture_begin` began. The graph is the caller's until `graph_destroy`.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of this context, not destroyed.
    pub(in crate::cuda) unsafe fn capture_end(
        &self,
        stream: CUstream,
    ) -> Result<CUgraph, DeviceError> {
        let mut graph = CUgraph::NULL;
        // SAFETY: `graph` is a place for one handle; the stream is good by promise.
        let code = unsafe { (self.table().capture_end)(stream, &mut graph) };
        self.check("cuStreamEndCapture", code)?;
        Ok(graph)
    }

    /// Whether what is queued on `stream` is written down.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of this context, not destroyed.
    pub(in crate::cuda) unsafe fn is_capturing(
        &self,
        stream: CUstream,
    ) -> Result<bool, DeviceError> {
        let mut status = CAPTURE_NONE;
        // SAFETY: `status` is a place for one number; the stream is good by promise.
        let code = unsafe { (self.table().capture_status)(stream, &mut status) };
        self.check("cuStreamIsCapturing", code)?;
        Ok(status != CAPTURE_NONE)
    }

    /// A graph that can be launched, the caller's until `graph_exec_destroy`.
    ///
    /// # Safety
    ///
    /// The graph is not destroyed.
    pub(in crate::cuda) unsafe fn graph_instantiate(
        &self,
        graph: CUgraph,
    ) -> Result<CUgraphExec, DeviceError> {
        let mut exec = CUgraphExec::NULL;
        // SAFETY: `exec` is a place for one handle; the graph is good by promise.
        let code = unsafe { (self.table().graph_instantiate)(&mut exec, graph, 0) };
        self.check("cuGraphInstantiate", code)?;
        Ok(exec)
    }

    /// How many pieces of work a graph has.
    ///
    /// # Safety
    ///
    /// The graph is not destroyed.
    pub(in crate::cuda) unsafe fn graph_nodes(&self, graph: CUgraph) -> Result<usize, DeviceError> {
        let (mut count, nowhere) = (0, std::ptr::null_mut());
        // SAFETY: without a place for nodes the driver writes their number alone; the graph is good
        // by promise.
        let code = unsafe { (self.table().graph_nodes)(graph, nowhere, &mut count) };
        self.check("cuGraphGetNodes", code)?;
        Ok(count)
    }

    /// Queues a graph's work.
    ///
    /// # Safety
    ///
    /// 1. The graph is not destroyed before its work is done; `stream` is a stream of this context,
    ///    not destroyed.
    /// 2. What the work reads and writes is the caller's until it is done.
    pub(in crate::cuda) unsafe fn graph_launch(
        &self,
        exec: CUgraphExec,
        stream: CUstream,
    ) -> Result<(), DeviceError> {
        // SAFETY: promises 1 and 2.
        let code = unsafe { (self.table().graph_launch)(exec, stream) };
        self.check("cuGraphLaunch", code)
    }

    /// Ends a graph that can be launched; work that is queued is still done.
    ///
    /// # Safety
    ///
    /// It is the caller's, from `graph_instantiate`, and not used from now on.
    pub(in crate::cuda) unsafe fn graph_exec_destroy(
        &self,
        exec: CUgraphExec,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().graph_exec_destroy)(exec) };
        self.check("cuGraphExecDestroy", code)
    }

    /// Ends a graph.
    ///
    /// # Safety
    ///
    /// It is the caller's, from `capture_end`, and not used from now on.
    pub(in crate::cuda) unsafe fn graph_destroy(&self, graph: CUgraph) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.table().graph_destroy)(graph) };
        self.check("cuGraphDestroy", code)
    }
}
