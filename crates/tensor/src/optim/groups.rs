//! Parameters with their options and state, and how they get into kernels.
//!
//! In:  groups of parameters, each with its options.
//! Out: launches that cover many parameters each.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use tonnage_memory::current_stream;

use crate::dtype::DType;
use crate::error::{Call, ErrorKind, Result};
use crate::exec::{Args, Operand};
use crate::graph::{Numbers, Refreshed};
use crate::live::Role;
use crate::tensor::Tensor;

/// Parameters of one launch. Launching costs microseconds, whatever the number; but every output of
/// one is compared with every other, so the number is bounded.
const TOGETHER: usize = 64;

/// Parameters, options `O` of each group, and state `S` of each parameter.
#[derive(Debug)]
pub(super) struct Groups<O, S> {
    options: Vec<Options<O>>,
    entries: Vec<Entry<S>>,
}

#[derive(Debug)]
pub(super) struct Entry<S> {
    pub(super) parameter: Tensor,
    group: usize,
    pub(super) state: Option<S>,
}

/// The options of a group, which graphs that were captured look at too.
#[derive(Debug)]
pub(super) struct Options<O>(Arc<Mutex<O>>);

impl<O> Clone for Options<O> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<O: Copy> Options<O> {
    /// Whether both are of one group.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// As they are now.
    pub(super) fn get(&self) -> O {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A parameter about to be changed.
pub(super) struct Update<'a, O, S> {
    pub(super) parameter: &'a Tensor,
    pub(super) gradient: Tensor,
    pub(super) options: &'a Options<O>,
    pub(super) state: &'a S,
}

/// Numbers of a step that a line of a kernel knows as `s0`, ….
pub(super) const ROW: usize = 8;

/// The numbers of each parameter's step. A kernel has them with it; one in a graph finds them in memory, where they are
/// written before each replay: one row for each run.
pub(super) struct Rows {
    rows: Vec<[f64; ROW]>,
    /// Parameters one after the other that have equal numbers: in a graph, at each replay.
    runs: Vec<Range<usize>>,
    in_memory: bool,
}

impl Rows {
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn runs(&self) -> &[Range<usize>] {
        &self.runs
    }

    /// The numbers of a run, as they are with the kernel.
    pub(super) fn of_run(&self, run: &Range<usize>) -> [f64; ROW] {
        self.rows[run.start]
    }

    /// Where a GPU finds those of the `which`-th run, if in memory: in the input behind the gradients.
    pub(super) fn place(&self, inputs: &[Operand], which: usize) -> Option<u64> {
        self.in_memory
            .then(|| inputs[self.len()].first() + (which * size_of::<[f64; ROW]>()) as u64)
    }

    /// The numbers of each parameter, on the host.
    pub(super) fn found(&self, args: &Args<'_>) -> Vec<[f64; ROW]> {
        if !self.in_memory {
            return self.rows.clone();
        }
        let numbers = args.input(self.len()).to_slice::<f64>();
        let rows = numbers.as_chunks::<ROW>().0;
        self.runs.iter().zip(rows).flat_map(|(run, row)| run.clone().map(|_| *row)).collect()
    }
}

/// The number of the capture that a parameter's device writes down what is queued now for, if it does.
pub(super) fn capture_of(parameter: &Tensor) -> Option<u64> {
    let device = parameter.device();
    device.captures().id(current_stream(device))
}

/// Where runs of which each two neighbours are `alike` begin and end.
fn runs<T>(of: &[T], alike: impl FnMut(&T, &T) -> bool) -> Vec<Range<usize>> {
    let mut end = 0;
    let runs = of.chunk_by(alike).map(|run| {
        let start = end;
        end += run.len();
        start..end
    });
    runs.collect()
}

/// State cannot be made in a graph, which would make it anew at each replay.
pub(super) fn no_state(call: Call, parameter: &Tensor) -> crate::error::Error {
    call.error(
        ErrorKind::Value,
        "a parameter has no state yet, and a graph would make it at each replay",
    )
    .with_tensor("parameter", parameter)
    .help("step once before the capture")
}

impl<O: Copy + Send + 'static, S> Groups<O, S> {
    pub(super) fn new() -> Self {
        Self { options: Vec::new(), entries: Vec::new() }
    }

    /// One more group.
    pub(super) fn add(&mut self, call: Call, parameters: Vec<Tensor>, options: O) -> Result<()> {
        for parameter in &parameters {
            check(call, parameter)?;
        }
        let group = self.options.len();
        self.options.push(Options(Arc::new(Mutex::new(options))));
        let new = |parameter| Entry { parameter, group, state: None };
        self.entries.extend(parameters.into_iter().map(new));
        Ok(())
    }

    /// Changes the options of every group.
    pub(super) fn change(&mut self, change: impl Fn(&mut O)) {
        for options in &self.options {
            change(&mut options.0.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    pub(super) fn entries(&self) -> &[Entry<S>] {
        &self.entries
    }

    pub(super) fn parameters(&self) -> Vec<Tensor> {
        self.entries.iter().map(|entry| entry.parameter.clone()).collect()
    }

    /// The parameters that have a gradient, with their options and their state, to be made or counted up before
    /// [`step`](Self::step). No callback: through one, a state's memory would not be known by the line of the program.
    pub(super) fn changing(&mut self) -> impl Iterator<Item = (&Tensor, O, &mut Option<S>)> {
        let options = &self.options;
        let entries = self.entries.iter_mut().filter(|it| it.parameter.grad().is_some());
        entries.map(|it| (&it.parameter, options[it.group].get(), &mut it.state))
    }

    /// Changes every parameter that has a gradient and a state: `launch` gets lists of one device and element type.
    pub(super) fn step(
        &self,
        call: Call,
        launch: impl Fn(&[Update<'_, O, S>]) -> Result<()>,
    ) -> Result<()> {
        let _off = crate::autograd::no_grad_guard();
        let mut updates = Vec::new();
        for entry in &self.entries {
            let Some(gradient) = entry.parameter.grad() else { continue };
            let options = &self.options[entry.group];
            if let Some(state) = &entry.state {
                updates.push(Update { parameter: &entry.parameter, gradient, options, state });
            }
        }
        let mut rest = updates;
        while let Some(first) = rest.first() {
            let like = (first.parameter.device().clone(), first.parameter.dtype());
            let (now, later): (Vec<_>, Vec<_>) = rest.into_iter().partition(|update| {
                (update.parameter.device(), update.parameter.dtype()) == (&like.0, like.1)
            });
            for chunk in now.chunks(TOGETHER) {
                launch(chunk)?;
                chunk.iter().for_each(|it| it.parameter.storage().written_by(call));
            }
            rest = later;
        }
        Ok(())
    }
}

/// The numbers of updates by `row`; in a graph also the tensor that has them, one row for each run of updates that stay `alike`,
/// which is written by what `refresh` makes of runs and tensor.
#[track_caller]
pub(super) fn rows<O: Copy, S>(
    call: Call,
    updates: &[&Update<'_, O, S>],
    row: impl Fn(&Update<'_, O, S>) -> [f64; ROW],
    alike: impl Fn(&Update<'_, O, S>, &Update<'_, O, S>) -> bool,
    refresh: impl FnOnce(&[Range<usize>], Tensor) -> Refreshed,
) -> Result<(Rows, Option<Tensor>)> {
    let rows: Vec<_> = updates.iter().map(|it| row(it)).collect();
    let captured = updates.first().filter(|it| capture_of(it.parameter).is_some());
    let Some(first) = captured else {
        let runs = runs(&rows, |a, b| a == b);
        return Ok((Rows { rows, runs, in_memory: false }, None));
    };
    // Numbers that happen to be equal now need not be so at the next replay.
    let runs = runs(updates, |a, b| alike(a, b));
    let device = first.parameter.device();
    let numbers = Refreshed::tensor(call, [runs.len(), ROW], DType::F64, device)?;
    device.captures().refresh(current_stream(device), refresh(&runs, numbers.clone()));
    Ok((Rows { rows, runs, in_memory: true }, Some(numbers)))
}

/// Rows one after the other.
pub(super) fn floats(rows: impl Iterator<Item = [f64; ROW]>) -> Numbers {
    Numbers::Floats(rows.flatten().collect())
}

fn check(call: Call, parameter: &Tensor) -> Result<()> {
    if !parameter.is_leaf() {
        let error = call.error(ErrorKind::Autograd, "a parameter is the result of an operation");
        return Err(error.with_tensor("parameter", parameter).help("pass leaves"));
    }
    if !parameter.dtype().is_float() || !parameter.is_contiguous() {
        let error = call.error(ErrorKind::Value, "a parameter is no float, or not contiguous");
        return Err(error.with_tensor("parameter", parameter).help("make it by contiguous"));
    }
    Ok(())
}

/// State that begins as zeros and lies as its parameter does.
#[track_caller]
pub(super) fn zeros(parameter: &Tensor) -> Result<Tensor> {
    let zeros = parameter.zeros_like()?;
    zeros.set_role(Role::Optimizer);
    Ok(zeros)
}

/// What a kernel says of an element type that no parameter has.
pub(super) fn no_float(dtype: DType) -> String {
    format!("a parameter is {dtype}, not a float")
}

#[cfg(test)]
mod tests {
    use tonnage_engine::RecordOptions;
    use tonnage_events::Action;

    use super::*;
    use crate::Device;
    use crate::amp::{GradScaler, ScalerOptions};
    use crate::optim::{Adam, Optimizer, Sgd};

    /// Lines of this file at which memory was asked for since a history is recorded.
    fn lines(device: &Device) -> Vec<u32> {
        let snapshot = device.memory().snapshot();
        let asked = snapshot.entries.iter().filter(|it| it.action == Action::Alloc);
        let frames = asked.filter_map(|it| snapshot.stacks.frames(it.stack?).first());
        frames.filter(|it| it.filename.ends_with("optim/groups.rs")).map(|it| it.line).collect()
    }

    #[test]
    fn states_are_known_by_the_line_that_steps() -> Result<()> {
        let device = Device::dry("1 GiB").unwrap();
        let x = Tensor::zeros([1 << 10], &device)?.requires_grad_(true)?;
        let mut scaler = GradScaler::new(ScalerOptions::default());
        scaler.scale(&x.sum()?)?.backward()?;
        let mut adam = Adam::new(vec![x.clone()], Adam::options())?;
        let mut scaled = Adam::new(vec![x.clone()], Adam::options())?;
        let mut sgd = Sgd::new(vec![x], Sgd::options(0.1).momentum(0.9))?;
        scaler.unscale(&adam)?;
        device.memory().record_history(Some(RecordOptions::default()));
        let line = line!();
        adam.step()?;
        sgd.step()?;
        scaler.step(&mut scaled)?;
        assert_eq!(lines(&device), [1, 1, 2, 3, 3].map(|after| line + after));
        Ok(())
    }
}
