//! The way back: from results to leaves, last operation first.
//!
//! In:  results, with the gradients to begin with.
//! Out: gradients in the leaves.
//!
//! Memory is given back on the way: an operation's saved values when it has run, a gradient when its
//! last reader has. The order is PyTorch's (by sequence number, leaves at once, ties in order of
//! arrival), and so is the order of allocations; on one device they are the same to the byte.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::accumulate::accumulate;
use super::mode::{go_back, no_grad_guard};
use super::node::{Edge, Grads, Node, NodeKind};
use crate::create::Scalar;
use crate::error::{Call, ErrorKind, Result};
use crate::tensor::Tensor;

/// How to go back.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct BackwardOptions {
    /// Keep what operations saved, so that the same graph can be walked again.
    pub retain_graph: bool,
}

impl BackwardOptions {
    /// Keeps what operations saved.
    #[must_use]
    pub fn retain_graph(mut self, on: bool) -> Self {
        self.retain_graph = on;
        self
    }
}

impl Tensor {
    /// Adds the gradient of this number to every leaf it depends on, and frees the graph.
    ///
    /// # Errors
    ///
    /// If it is not a single number, depends on no leaf that requires a gradient, if the graph was
    /// freed before or a needed value overwritten, or if there is no memory.
    #[track_caller]
    pub fn backward(&self) -> Result<()> {
        run(Call::here("backward"), &[(self.clone(), None)], BackwardOptions::default())
    }

    /// The same with a gradient to begin with, which any shape can have, and with options.
    ///
    /// # Errors
    ///
    /// As for [`backward`](Self::backward), and if the gradient's shape is another.
    #[track_caller]
    pub fn backward_with(&self, gradient: Option<&Tensor>, options: BackwardOptions) -> Result<()> {
        run(Call::here("backward"), &[(self.clone(), gradient.cloned())], options)
    }
}

/// Goes back from several results at once.
///
/// # Errors
///
/// As for [`Tensor::backward`].
#[track_caller]
pub fn backward(results: &[(Tensor, Option<Tensor>)], options: BackwardOptions) -> Result<()> {
    run(Call::here("backward"), results, options)
}

fn run(call: Call, results: &[(Tensor, Option<Tensor>)], options: BackwardOptions) -> Result<()> {
    let _off = no_grad_guard();
    let _going = go_back();
    // Gradients are computed in the types of the forward, wherever they are asked for.
    let _plain = crate::amp::Mode::off().enter();
    let mut roots = Vec::with_capacity(results.len());
    for (result, gradient) in results {
        let Some(edge) = result.gradient_edge(call) else {
            return Err(call
                .error(ErrorKind::Autograd, "nothing to differentiate: no leaf requires a gradient")
                .with_tensor("self", result)
                .help("call requires_grad_ on a leaf, and compute outside no_grad"));
        };
        // Kept until the end, as PyTorch's caller keeps it.
        roots.push((edge, first_gradient(call, result, gradient.as_ref())?));
    }
    let mut walk = Walk::new(&roots, options);
    for (edge, gradient) in &roots {
        walk.deliver(call, edge, gradient.clone())?;
    }
    while let Some(Ready { node, grads, .. }) = walk.ready.pop() {
        walk.visit(&node, grads)?;
    }
    Ok(())
}

fn first_gradient(call: Call, result: &Tensor, given: Option<&Tensor>) -> Result<Tensor> {
    match given {
        Some(given) if given.shape() == result.shape() => Ok(given.clone()),
        Some(given) => Err(call
            .shape_error("the gradient to begin with has another shape than the result")
            .with_tensor("self", result)
            .with_tensor("gradient", given)),
        None if result.numel() == 1 => {
            let shape = result.shape().clone();
            Tensor::filled(call, shape, Scalar::Integer(1), result.dtype(), result.device())
        }
        None => Err(call
            .shape_error("only a single number has a gradient of its own accord")
            .with_tensor("self", result)
            .help("sum it first, or pass a gradient to backward_with")),
    }
}

type Key = *const Node;

/// A walk under way.
struct Walk {
    options: BackwardOptions,
    /// How many edges still have to deliver to a node.
    missing: HashMap<Key, usize>,
    /// Gradients of nodes to which some edges have delivered.
    partial: HashMap<Key, Grads>,
    ready: BinaryHeap<Ready>,
    arrivals: u64,
}

/// A node that has all its gradients.
struct Ready {
    order: (u64, Reverse<u64>),
    node: Arc<Node>,
    grads: Grads,
}

impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Ready {}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ready {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

impl Walk {
    fn new(roots: &[(Edge, Tensor)], options: BackwardOptions) -> Self {
        let mut missing: HashMap<Key, usize> = HashMap::new();
        let mut open: Vec<&Node> = Vec::new();
        let count = |edge: &Edge, missing: &mut HashMap<Key, usize>| {
            let first = !missing.contains_key(&Arc::as_ptr(&edge.node));
            *missing.entry(Arc::as_ptr(&edge.node)).or_default() += 1;
            first
        };
        for (edge, _) in roots {
            if count(edge, &mut missing) {
                open.push(&edge.node);
            }
        }
        while let Some(node) = open.pop() {
            for edge in node.edges.iter().flatten() {
                if count(edge, &mut missing) {
                    open.push(&edge.node);
                }
            }
        }
        let (partial, ready) = (HashMap::new(), BinaryHeap::new());
        Self { options, missing, partial, ready, arrivals: 0 }
    }

    /// Runs a node and passes its gradients on.
    fn visit(&mut self, node: &Arc<Node>, mut grads: Grads) -> Result<()> {
        if let NodeKind::Accumulate(leaf) = &node.kind {
            return match grads.pop().flatten() {
                Some(gradient) => accumulate(node.call, leaf, gradient),
                None => Ok(()),
            };
        }
        let from = if grads.iter().any(Option::is_some) {
            self.run(node, grads)?
        } else {
            node.edges.iter().map(|_| None).collect()
        };
        for (gradient, edge) in from.into_iter().zip(&node.edges) {
            match (edge, gradient) {
                (Some(edge), Some(gradient)) => self.deliver(node.call, edge, gradient)?,
                (Some(edge), None) => self.arrived(edge),
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Runs a node. Incoming gradients go once the outgoing ones have their shapes, then what was
    /// saved: the order in which PyTorch gives memory back.
    fn run(&self, node: &Node, grads: Grads) -> Result<Grads> {
        let retain = self.options.retain_graph;
        node.run(retain, |operation| {
            let mut from = operation.backward(&grads, &node.needs(!retain))?;
            debug_assert_eq!(from.len(), node.edges.len(), "{}", node.name);
            for (gradient, edge) in from.iter_mut().zip(&node.edges) {
                *gradient = match (gradient.take(), edge) {
                    (Some(it), Some(edge)) => Some(fit(node.call, it, edge)?),
                    _ => None,
                };
            }
            drop(grads);
            Ok(from)
        })
    }

    /// Adds a gradient to what its node has, and notes that it has arrived.
    fn deliver(&mut self, call: Call, edge: &Edge, gradient: Tensor) -> Result<()> {
        let slots = slots(&mut self.partial, &edge.node);
        let slot = &mut slots[edge.output];
        *slot = Some(match slot.take() {
            None => gradient,
            Some(sum)
                if sum.handles() == 1
                    && sum.owns_storage()
                    && sum.layout().is_dense()
                    && !sum.is_conj() =>
            {
                sum.add_in_place(call, &gradient)?;
                sum
            }
            Some(sum) => sum.add(&gradient)?,
        });
        self.arrived(edge);
        Ok(())
    }

    /// One edge less to wait for; the last makes the node ready.
    fn arrived(&mut self, edge: &Edge) {
        let Entry::Occupied(mut missing) = self.missing.entry(Arc::as_ptr(&edge.node)) else {
            return;
        };
        *missing.get_mut() -= 1;
        if *missing.get() == 0 {
            missing.remove();
            slots(&mut self.partial, &edge.node);
            let grads = self.partial.remove(&Arc::as_ptr(&edge.node)).unwrap_or_default();
            let order = (edge.node.sequence, Reverse(self.arrivals));
            self.arrivals += 1;
            self.ready.push(Ready { order, node: Arc::clone(&edge.node), grads });
        }
    }
}

fn slots<'a>(partial: &'a mut HashMap<Key, Grads>, node: &Arc<Node>) -> &'a mut Grads {
    partial.entry(Arc::as_ptr(node)).or_insert_with(|| (0..node.outputs).map(|_| None).collect())
}

/// Brings a gradient to the shape and type of the input it belongs to: what was broadcast is summed.
fn fit(call: Call, gradient: Tensor, edge: &Edge) -> Result<Tensor> {
    let gradient = if gradient.shape() == &edge.shape {
        gradient
    } else {
        gradient.summed_to(call, &edge.shape)?
    };
    if gradient.dtype() == edge.dtype { Ok(gradient) } else { gradient.to(edge.dtype) }
}
