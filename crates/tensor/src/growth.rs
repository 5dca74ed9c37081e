//! The growth watch: what stays alive from one iteration to the next, since which line, held by what.
//!
//! In:  a mark at the end of every iteration.
//! Out: for each call whose results outlive their iterations, a [`Growth`]: the bytes of an iteration,
//!      who holds them, and, if that is the graph, from which line the graph is held.
//!
//! ```
//! use tonnage_tensor::growth::GrowthWatch;
//! use tonnage_tensor::{Device, Tensor};
//!
//! let device = Device::dry("8 GiB")?;
//! let weight = Tensor::ones([1000, 1000], &device)?.requires_grad_(true)?;
//! let mut watch = GrowthWatch::new(&device);
//! let mut total = Tensor::zeros((), &device)?;
//! for _ in 0..8 {
//!     let loss = Tensor::ones([1000], &device)?.linear(&weight, None)?.square()?.sum()?;
//!     total = total.add(&loss)?; // without item(): the graphs of all iterations stay
//!     watch.iteration();
//! }
//! let report = watch.report();
//! let text = report[0].to_string();
//! assert!(text.contains("held by the result of add at"), "{text}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A mark costs nothing; the report walks what is alive.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::autograd::Node;
use crate::device::Device;
use crate::error::Call;
use crate::live::{Holder, Live};
use crate::storage::Facts;

/// Iterations that are remembered: growth shows in the last ones as well as in all.
const KEPT: usize = 256;

/// Iterations from which results must be alive. Fewer are pipelines that hold a few batches.
const LEAST: usize = 4;

/// Watches a device over iterations.
#[derive(Debug)]
pub struct GrowthWatch {
    device: Device,
    /// The first storage of each iteration, oldest first; the last is that of the one under way.
    starts: Vec<u64>,
}

/// Results of one call that outlive their iterations.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Growth {
    /// The operation that made them.
    pub operation: &'static str,
    /// Where it was called.
    pub site: &'static Location<'static>,
    /// How many are alive.
    pub storages: usize,
    /// Their bytes.
    pub bytes: u64,
    /// From how many iterations they are.
    pub iterations: usize,
    /// Who holds them.
    pub holder: Holder,
    /// If the graph does: the operation that saved them, and where it was called.
    pub saved_by: Option<(&'static str, &'static Location<'static>)>,
    /// If the graph does: what of the program holds that graph.
    pub root: Option<Root>,
}

/// A result through which the program holds a graph.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Root {
    /// The operation that made it.
    pub operation: &'static str,
    /// Where it was called.
    pub site: &'static Location<'static>,
    /// How many operations its graph has.
    pub operations: usize,
}

impl GrowthWatch {
    /// Watches from now on.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), starts: vec![device.registry().peek_id()] }
    }

    /// Ends an iteration.
    pub fn iteration(&mut self) {
        if self.starts.len() > KEPT {
            self.starts.remove(0);
        }
        self.starts.push(self.device.registry().peek_id());
    }

    /// What grows: most bytes first. Nothing, before four iterations have ended.
    ///
    /// Meanwhile it holds the graphs that it walks: a thread that frees one then leaves the memory to this call.
    #[must_use]
    pub fn report(&self) -> Vec<Growth> {
        let storages = self.device.registry().storages();
        let ended = self.starts.len() - 1;
        let least = LEAST.max(ended / 2);
        let mut sites: BTreeMap<Site, Found> = BTreeMap::new();
        for (facts, tensors) in &storages {
            let live = facts.live(*tensors);
            let Some(iteration) = self.iteration_of(live.id) else { continue };
            let found = sites.entry(Site::of(&live)).or_default();
            found.iterations.insert(iteration);
            found.live.push(live);
        }
        let mut roots = None;
        let grown = sites.into_values().filter(|found| found.iterations.len() >= least);
        let mut report: Vec<Growth> = grown
            .filter_map(|found| {
                let first = found.live.first()?;
                let holder = first.holder();
                let root = match (holder, first.saved_by) {
                    (Holder::Graph, Some((operation, site))) => {
                        let roots = roots.get_or_insert_with(|| Roots::of(&storages));
                        roots.of_saver(operation, site)
                    }
                    _ => None,
                };
                Some(Growth {
                    operation: first.operation,
                    site: first.site,
                    storages: found.live.len(),
                    bytes: found.live.iter().map(|it| it.bytes).sum(),
                    iterations: found.iterations.len(),
                    holder,
                    saved_by: first.saved_by.filter(|_| holder == Holder::Graph),
                    root,
                })
            })
            .collect();
        report.sort_by_key(|growth| std::cmp::Reverse(growth.bytes));
        report
    }

    /// In which iteration that has ended a storage was made.
    fn iteration_of(&self, id: u64) -> Option<usize> {
        let place = self.starts.partition_point(|start| *start <= id);
        place.checked_sub(1).filter(|place| place + 1 < self.starts.len())
    }
}

/// Results that belong together: made at one place, held by the same kind of holder.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Site {
    file: &'static str,
    place: (u32, u32),
    operation: &'static str,
    holder: Holder,
}

impl Site {
    fn of(live: &Live) -> Self {
        let (site, operation, holder) = (live.site, live.operation, live.holder());
        Self { file: site.file(), place: (site.line(), site.column()), operation, holder }
    }
}

#[derive(Default)]
struct Found {
    live: Vec<Live>,
    iterations: BTreeSet<usize>,
}

/// The graphs that the program holds, by the results through which it does.
struct Roots(Vec<(Root, Calls)>);

/// How many operations of a graph were called where.
type Calls = HashMap<(&'static str, Place), usize>;

type Place = (&'static str, u32, u32);

fn place_of(site: &Location<'static>) -> Place {
    (site.file(), site.line(), site.column())
}

impl Roots {
    /// Youngest first: what a younger result leads to is no root of its own.
    fn of(storages: &[(Arc<Facts>, usize)]) -> Self {
        let mut seen: HashSet<*const Node> = HashSet::new();
        let mut roots = Vec::new();
        for (facts, _) in storages.iter().rev() {
            let Some(node) = facts.producer() else { continue };
            if !seen.insert(Arc::as_ptr(&node)) {
                continue;
            }
            let mut open = vec![node];
            let mut calls = Calls::new();
            let mut operations = 0;
            while let Some(node) = open.pop() {
                operations += 1;
                let Call { name, site, .. } = node.call;
                *calls.entry((name, place_of(site))).or_default() += 1;
                let next = node.edges.iter().flatten().map(|edge| &edge.node);
                open.extend(next.filter(|next| seen.insert(Arc::as_ptr(next))).cloned());
            }
            let Call { name: operation, site, .. } = facts.call();
            let root = Root { operation, site, operations };
            roots.push((root, calls));
        }
        Self(roots)
    }

    /// The root whose graph has most of the operations that saved something.
    fn of_saver(&self, operation: &'static str, site: &'static Location<'static>) -> Option<Root> {
        let key = (operation, place_of(site));
        let counted = self.0.iter().filter_map(|(root, calls)| Some((calls.get(&key)?, root)));
        counted.max_by_key(|(count, _)| **count).map(|(_, root)| root.clone())
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = self.bytes / self.iterations.max(1) as u64;
        write!(f, "{each} bytes stay from every iteration: {} at {}", self.operation, self.site)?;
        write!(f, "\n  alive: {} from {} iterations", self.storages, self.iterations)?;
        write!(f, ", {} bytes, held by the {}", self.bytes, self.holder.name())?;
        if let Some((operation, site)) = self.saved_by {
            write!(f, "\n  saved for the backward of {operation} at {site}")?;
        }
        if let Some(root) = &self.root {
            let Root { operation, site, operations } = root;
            write!(f, "\n  its graph has {operations} operations, held by the result of ")?;
            write!(f, "{operation} at {site}\n  = help: add its item(), or detach() it")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;
    use crate::error::Result;

    fn step(weight: &Tensor) -> Result<Tensor> {
        Tensor::ones([64, 1000], weight.device())?.linear(weight, None)?.square()?.sum()
    }

    fn watched(
        weight: &Tensor,
        mut iteration: impl FnMut(usize) -> Result<()>,
    ) -> Result<Vec<Growth>> {
        let mut watch = GrowthWatch::new(weight.device());
        for round in 0..20 {
            iteration(round)?;
            watch.iteration();
        }
        Ok(watch.report())
    }

    #[test]
    fn a_loss_summed_without_item_is_named_with_its_line_and_its_graph() -> Result<()> {
        let device = Device::dry("8 GiB").unwrap();
        let weight = Tensor::ones([1000, 1000], &device)?.requires_grad_(true)?;
        let mut total = Tensor::zeros((), &device)?;
        let mut line = 0;
        let report = watched(&weight, |_| {
            line = line!() + 1;
            total = total.add(&step(&weight)?)?;
            Ok(())
        })?;
        assert_eq!(report.len(), 2, "{report:?}");
        for growth in &report {
            assert_eq!((growth.storages, growth.iterations), (20, 20));
            assert_eq!((growth.bytes, growth.holder), (20 * 256_000, Holder::Graph));
            let root = growth.root.as_ref().unwrap();
            assert_eq!((root.operation, root.site.line()), ("add", line));
            assert_eq!(root.operations, 20 * 4 + 1, "linear, square, sum, add; and the leaf");
        }
        let savers: BTreeSet<_> = report.iter().map(|it| it.saved_by.unwrap().0).collect();
        assert_eq!(savers, BTreeSet::from(["linear", "square"]));
        let text = report[0].to_string();
        assert!(text.contains(&format!("add at {}:{line}", file!())), "{text}");
        Ok(())
    }

    #[test]
    fn a_loss_summed_with_item_does_not_grow() -> Result<()> {
        let device = Device::dry("8 GiB").unwrap();
        let weight = Tensor::ones([1000, 1000], &device)?.requires_grad_(true)?;
        let mut total = 0.0;
        let mut recent = std::collections::VecDeque::new();
        let report = watched(&weight, |_| {
            let loss = step(&weight)?;
            total += loss.item::<f64>()?;
            // A few are no growth.
            recent.push_back(loss);
            recent.truncate(3);
            Ok(())
        })?;
        assert!(report.is_empty(), "{report:?}");
        Ok(())
    }

    #[test]
    fn results_that_are_collected_are_the_caller_s() -> Result<()> {
        let device = Device::dry("8 GiB").unwrap();
        let weight = Tensor::ones([1000, 1000], &device)?;
        let mut all = Vec::new();
        let report = watched(&weight, |_| {
            all.push(weight.sin()?);
            Ok(())
        })?;
        assert_eq!((report.len(), report[0].holder), (1, Holder::Caller));
        assert!(report[0].to_string().contains("held by the caller"));
        assert!(GrowthWatch::new(&device).report().is_empty());
        Ok(())
    }
}
