//! Parameters with their options and state, and how they get into kernels.
//!
//! In:  groups of parameters, each with its options.
//! Out: launches that cover many parameters each.

use crate::dtype::DType;
use crate::error::{Call, ErrorKind, Result};
use crate::live::Role;
use crate::tensor::Tensor;

/// Parameters of one launch. Launching costs microseconds, whatever the number; but every output of
/// one is compared with every other, so the number is bounded.
const TOGETHER: usize = 64;

/// Parameters, options `O` of each group, and state `S` of each parameter.
#[derive(Debug)]
pub(super) struct Groups<O, S> {
    options: Vec<O>,
    entries: Vec<Entry<S>>,
}

#[derive(Debug)]
pub(super) struct Entry<S> {
    pub(super) parameter: Tensor,
    group: usize,
    pub(super) state: Option<S>,
}

/// A parameter about to be changed.
pub(super) struct Update<'a, O, S> {
    pub(super) parameter: &'a Tensor,
    pub(super) gradient: Tensor,
    pub(super) options: &'a O,
    pub(super) state: &'a S,
}

impl<O, S> Groups<O, S> {
    pub(super) fn new() -> Self {
        Self { options: Vec::new(), entries: Vec::new() }
    }

    /// One more group.
    pub(super) fn add(&mut self, call: Call, parameters: Vec<Tensor>, options: O) -> Result<()> {
        for parameter in &parameters {
            check(call, parameter)?;
        }
        let group = self.options.len();
        self.options.push(options);
        let new = |parameter| Entry { parameter, group, state: None };
        self.entries.extend(parameters.into_iter().map(new));
        Ok(())
    }

    pub(super) fn options_mut(&mut self) -> &mut [O] {
        &mut self.options
    }

    pub(super) fn entries(&self) -> &[Entry<S>] {
        &self.entries
    }

    pub(super) fn parameters(&self) -> Vec<Tensor> {
        self.entries.iter().map(|entry| entry.parameter.clone()).collect()
    }

    /// The parameters that have a gradient, with their options and their state, to be made or counted up before
    /// [`step`](Self::step). No callback: through one, a state's memory would not be known by the line of the program.
    pub(super) fn changing(&mut self) -> impl Iterator<Item = (&Tensor, &O, &mut Option<S>)> {
        let options = &self.options;
        let entries = self.entries.iter_mut().filter(|it| it.parameter.grad().is_some());
        entries.map(|it| (&it.parameter, &options[it.group], &mut it.state))
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
