//! An operation in the graph: what it needs for its backward, and where its gradients go.
//!
//! In:  an operation's outputs, inputs and its [`Backward`].
//! Out: a [`Node`] that the outputs lead to, with an [`Edge`] for each input.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::copy_slices;
use super::mode::is_grad_enabled;
use super::turns::{InUse, Turns};
use crate::dtype::DType;
use crate::error::{Call, ErrorKind, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Gradients, one for each output or input; none where nothing flows.
pub(crate) type Grads = SmallVec<[Option<Tensor>; 3]>;

/// Which inputs want a gradient, and whether anyone will ask again.
pub(crate) struct Needs<'a> {
    edges: &'a [Option<Edge>],
    is_last: bool,
}

impl Needs<'_> {
    /// Whether the `place`-th input wants one.
    pub(crate) fn input(&self, place: usize) -> bool {
        self.edges[place].is_some()
    }

    /// Whether this backward is not run again: the graph is not retained.
    pub(crate) fn is_last(&self) -> bool {
        self.is_last
    }
}

/// The way back through one operation. It is dropped, with what it saved, as soon as it has run,
/// unless the graph is retained.
pub(crate) trait Backward: Send {
    /// The gradients of the inputs, from those of the outputs, for inputs that want one.
    ///
    /// Gradients of inputs that were broadcast may have the output's shape: the engine sums them. The
    /// order of allocations is part of the contract with PyTorch: by the names of its arguments.
    ///
    /// # Errors
    ///
    /// If a saved value was overwritten, or if there is no memory.
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads>;
}

/// Where the gradient of an input goes.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(crate) node: Arc<Node>,
    /// Which output of that node the input was.
    pub(crate) output: usize,
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
}

impl Edge {
    pub(super) fn new(node: Arc<Node>, output: usize, tensor: &Tensor) -> Self {
        Self { node, output, shape: tensor.shape().clone(), dtype: tensor.dtype() }
    }
}

/// An operation in the graph, or the end of it at a leaf.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) call: Call,
    /// Later operations have larger numbers; the way back goes from large to small. Leaves come
    /// first of all.
    pub(crate) sequence: u64,
    pub(crate) edges: Vec<Option<Edge>>,
    pub(crate) outputs: usize,
    pub(super) kind: NodeKind,
}

/// What a node does with the gradients that come to it.
pub(super) enum NodeKind {
    /// Passes them on through an operation; none after it has run.
    Operation(Turns<Option<Box<dyn Backward>>>),
    /// Adds them to what this leaf has.
    Accumulate(Tensor),
}

thread_local! {
    static SEQUENCE: Cell<u64> = const { Cell::new(0) };
}

impl Node {
    pub(super) fn operation(
        name: &'static str,
        call: Call,
        edges: Vec<Option<Edge>>,
        outputs: usize,
        backward: Box<dyn Backward>,
    ) -> Arc<Self> {
        let sequence = SEQUENCE.replace(SEQUENCE.get() + 1);
        let kind = NodeKind::Operation(Turns::new(Some(backward)));
        Arc::new(Self { name, call, sequence, edges, outputs, kind })
    }

    pub(super) fn accumulate(call: Call, leaf: &Tensor) -> Arc<Self> {
        let (name, kind) = ("AccumulateGrad", NodeKind::Accumulate(leaf.clone()));
        Arc::new(Self { name, call, sequence: u64::MAX, edges: Vec::new(), outputs: 1, kind })
    }

    /// Runs `back` on the operation's backward, after which that is gone, unless it is retained.
    ///
    /// One that is retained stays in its place meanwhile, so that it is there if `back` fails and for
    /// other threads that walk the same graph, which take turns.
    ///
    /// # Errors
    ///
    /// Those of `back`, if the backward is gone, and if this thread runs it already: a hook may walk any graph but
    /// the one that needs its value.
    pub(super) fn run(
        &self,
        retain: bool,
        back: impl FnOnce(&dyn Backward) -> Result<Grads>,
    ) -> Result<Grads> {
        let NodeKind::Operation(slot) = &self.kind else { return Ok(Grads::new()) };
        if retain {
            let run = |slot: &mut Option<Box<dyn Backward>>| slot.as_deref().map(back);
            let ran = slot.with(run).map_err(|InUse| self.is_running())?;
            return ran.ok_or_else(|| self.is_gone())?;
        }
        let operation = slot.with(Option::take).map_err(|InUse| self.is_running())?;
        back(&*operation.ok_or_else(|| self.is_gone())?)
    }

    fn is_running(&self) -> crate::error::Error {
        self.call
            .error(
                ErrorKind::Autograd,
                "a hook on a saved value walks the graph that needs the value",
            )
            .with("node", self.name)
            .help("compute what the hook needs in a graph of its own")
    }

    fn is_gone(&self) -> crate::error::Error {
        self.call
            .error(ErrorKind::Autograd, "this part of the graph was walked and freed before")
            .with("node", self.name)
            .help("pass retain_graph to the first backward, or compute the result again")
    }

    pub(super) fn needs(&self, is_last: bool) -> Needs<'_> {
        Needs { edges: &self.edges, is_last }
    }
}

impl Drop for Node {
    /// Graphs are as deep as programs are long: a list of what is left, not recursion.
    fn drop(&mut self) {
        let mut rest = std::mem::take(&mut self.edges);
        // While the list holds what saved values lead to: checkpoints keep their inputs' nodes.
        if let NodeKind::Operation(slot) = &mut self.kind {
            *slot.get_mut() = None;
        }
        while let Some(edge) = rest.pop() {
            // The last reference to a node: its edges join the list, so its own drop finds none. What
            // it saved may lead to the same nodes, which the list still holds.
            if let Some(mut node) = edge.and_then(|edge| Arc::into_inner(edge.node)) {
                rest.append(&mut node.edges);
            }
        }
    }
}

/// Notes in the graph that `outputs` came from `inputs`, if this thread records and some input
/// requires a gradient. `make` then saves what the backward needs.
pub(crate) fn record(
    call: Call,
    name: &'static str,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    make: impl FnOnce() -> Result<Box<dyn Backward>>,
) -> Result<()> {
    let Some(edges) = edges(call, inputs)? else { return Ok(()) };
    let node = Node::operation(name, call, edges, outputs.len(), make()?);
    for (output, tensor) in outputs.iter().enumerate() {
        if tensor.dtype().is_differentiable() {
            tensor.set_grad_fn(Arc::clone(&node), output);
        }
    }
    Ok(())
}

/// The same for an operation that changes `target` in place. Call it after the change is queued;
/// `inputs` names `target` where its old value was an input.
pub(crate) fn record_in_place(
    call: Call,
    name: &'static str,
    target: &Tensor,
    inputs: &[&Tensor],
    make: impl FnOnce() -> Result<Box<dyn Backward>>,
) -> Result<()> {
    target.storage().written_by(call);
    if let Some(base) = target.base() {
        return copy_slices::record(call, name, (target, &base), inputs, make);
    }
    let Some(edges) = edges(call, inputs)? else { return Ok(()) };
    let node = Node::operation(name, call, edges, 1, make()?);
    target.storage().recorded();
    target.renew_view();
    target.set_grad_fn(node, 0);
    Ok(())
}

/// Whether an operation on these inputs is recorded.
pub(crate) fn records(inputs: &[&Tensor]) -> bool {
    is_grad_enabled() && inputs.iter().any(|tensor| tensor.requires_grad())
}

pub(super) fn edges(call: Call, inputs: &[&Tensor]) -> Result<Option<Vec<Option<Edge>>>> {
    if !is_grad_enabled() {
        return Ok(None);
    }
    inputs.iter().try_for_each(|tensor| tensor.check_view(call))?;
    if !records(inputs) {
        return Ok(None);
    }
    Ok(Some(inputs.iter().map(|tensor| tensor.gradient_edge(call)).collect()))
}
