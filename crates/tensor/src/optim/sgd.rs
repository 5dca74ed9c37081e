//! Gradient descent, with momentum or without, as one kernel over lists of parameters.

use std::ops::Range;

use super::Optimizer;
use super::groups::{
    Groups, Options, ROW, Rows, Update, capture_of, floats, no_float, no_state, rows, zeros,
};
use crate::dtype::{Float, Real, dispatch_float};
use crate::error::{Call, ErrorKind, Result};
use crate::exec::cuda::{MultiTensor, wide};
use crate::exec::{Args, Kernel, Operands, Plan, for_each_piece};
use crate::graph::Refreshed;
use crate::tensor::Tensor;
use crate::work::bytes_of;

/// How a group of parameters is changed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SgdOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the last direction each step keeps; 0 keeps no state.
    pub momentum: f64,
    /// How much less a gradient counts than the momentum.
    pub dampening: f64,
    /// How strongly parameters are drawn to zero.
    pub weight_decay: f64,
    /// Looks ahead by the momentum.
    pub nesterov: bool,
}

impl SgdOptions {
    /// With a momentum.
    #[must_use]
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.momentum = momentum;
        self
    }

    /// With gradients that count less.
    #[must_use]
    pub fn dampening(mut self, dampening: f64) -> Self {
        self.dampening = dampening;
        self
    }

    /// With a decay.
    #[must_use]
    pub fn weight_decay(mut self, decay: f64) -> Self {
        self.weight_decay = decay;
        self
    }

    /// Looking ahead.
    #[must_use]
    pub fn nesterov(mut self, on: bool) -> Self {
        self.nesterov = on;
        self
    }
}

/// Gradient descent.
#[derive(Debug)]
pub struct Sgd {
    groups: Groups<SgdOptions, State>,
}

#[derive(Debug)]
struct State {
    /// Whether the direction holds nothing yet.
    fresh: bool,
    /// None without momentum.
    direction: Option<Tensor>,
}

/// The numbers of one parameter's step: learning rate, decay, how much of the direction stays and of the gradient comes, the
/// momentum, and whether it looks ahead.
fn row(options: &SgdOptions, fresh: bool) -> [f64; ROW] {
    let SgdOptions { lr, momentum, dampening, weight_decay, nesterov } = *options;
    // The first direction is the gradient itself, not dampened.
    let (keep, new) = if fresh { (0.0, 1.0) } else { (momentum, 1.0 - dampening) };
    [lr, weight_decay, keep, new, momentum, f64::from(u8::from(nesterov)), 0.0, 0.0]
}

/// For each parameter: outputs parameter and, with momentum, direction; input gradient. In a graph, behind them the numbers.
struct SgdStep {
    rows: Rows,
    momentum: bool,
}

impl Kernel for SgdStep {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let numbers = self.rows.found(args);
        dispatch_float!(args.output_dtype(0), T => match self.momentum {
            true => with_momentum::<T>(&numbers, args),
            false => plain::<T>(&numbers, args),
        }, else return Err(no_float(args.output_dtype(0))));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let compute = wide(on.outputs[0].dtype);
        let list = |(which, run): (usize, Range<usize>)| {
            let numbers = self.rows.of_run(&run);
            let line = match (self.momentum, numbers[5] != 0.0) {
                (false, _) => "y0 = y0 - (C)s0 * (x0 + (C)s1 * y0);",
                (true, false) => {
                    "C g = x0 + (C)s1 * y0; y1 = (C)s2 * y1 + (C)s3 * g; y0 = y0 - (C)s0 * y1;"
                }
                (true, true) => {
                    "C g = x0 + (C)s1 * y0; y1 = (C)s2 * y1 + (C)s3 * g; y0 = y0 - (C)s0 * (g + (C)s4 * y1);"
                }
            };
            let kernel = MultiTensor::new("sgd", compute, line)
                .numbers(&numbers)
                .numbers_at(self.rows.place(on.inputs, which));
            if self.momentum {
                let tensors =
                    run.map(|it| [&on.outputs[2 * it], &on.outputs[2 * it + 1], &on.inputs[it]]);
                kernel.launches(&tensors.collect::<Vec<_>>(), 2, &[])
            } else {
                let tensors = run.map(|it| [&on.outputs[it], &on.inputs[it]]);
                kernel.launches(&tensors.collect::<Vec<_>>(), 1, &[])
            }
        };
        Plan::Launches(self.rows.runs().iter().cloned().enumerate().flat_map(list).collect())
    }

    fn bytes(&self, outputs: &[&Tensor], inputs: &[&Tensor]) -> f64 {
        2.0 * bytes_of(outputs) + bytes_of(inputs)
    }
}

fn plain<T: Float>(numbers: &[[f64; ROW]], args: &mut Args<'_>) {
    let gradients: Vec<_> = (0..numbers.len()).map(|place| args.input(place)).collect();
    let groups = (0..numbers.len()).map(|place| [args.take::<T>(place)]);
    for_each_piece(groups.collect(), &|which, indices, [parameter]| {
        let [lr, decay, ..] = numbers[which].map(<T::Wide as Real>::n);
        let mut scratch = Vec::new();
        let gradient = gradients[which].chunk::<T>(indices, &mut scratch);
        for (parameter, gradient) in parameter.iter_mut().zip(gradient) {
            let p = parameter.widen();
            *parameter = T::narrow(p - lr * (gradient.widen() + decay * p));
        }
    });
}

fn with_momentum<T: Float>(numbers: &[[f64; ROW]], args: &mut Args<'_>) {
    let gradients: Vec<_> = (0..numbers.len()).map(|place| args.input(place)).collect();
    let groups = (0..numbers.len()).map(|place| [0, 1].map(|it| args.take::<T>(2 * place + it)));
    for_each_piece(groups.collect(), &|which, indices, [parameter, direction]| {
        let nesterov = numbers[which][5] != 0.0;
        let [lr, decay, keep, new, momentum, ..] = numbers[which].map(<T::Wide as Real>::n);
        let mut scratch = Vec::new();
        let gradient = gradients[which].chunk::<T>(indices, &mut scratch);
        for ((parameter, direction), gradient) in parameter.iter_mut().zip(direction).zip(gradient)
        {
            let p = parameter.widen();
            let g = gradient.widen() + decay * p;
            let d = keep * direction.widen() + new * g;
            *direction = T::narrow(d);
            let along = if nesterov { g + momentum * d } else { d };
            *parameter = T::narrow(p - lr * along);
        }
    });
}

/// The numbers of each replay: options as they are then. What is captured is never the first step.
fn refreshed(options: Vec<Options<SgdOptions>>, numbers: Tensor) -> Refreshed {
    Refreshed::new(numbers, move || Ok(floats(options.iter().map(|it| row(&it.get(), false)))))
}

impl Sgd {
    /// With this learning rate, and nothing else.
    #[must_use]
    pub fn options(lr: f64) -> SgdOptions {
        SgdOptions { lr, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }

    /// For these parameters.
    ///
    /// # Errors
    ///
    /// If one of them is no leaf, no float, or not contiguous; or for Nesterov's form without
    /// momentum, or with dampening.
    #[track_caller]
    pub fn new(parameters: Vec<Tensor>, options: SgdOptions) -> Result<Self> {
        let mut sgd = Self { groups: Groups::new() };
        sgd.add(Call::here("Sgd"), parameters, options)?;
        Ok(sgd)
    }

    /// Adds parameters with options of their own.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    #[track_caller]
    pub fn add_group(&mut self, parameters: Vec<Tensor>, options: SgdOptions) -> Result<()> {
        self.add(Call::here("add_group"), parameters, options)
    }

    fn add(&mut self, call: Call, parameters: Vec<Tensor>, options: SgdOptions) -> Result<()> {
        if options.nesterov && (options.momentum <= 0.0 || options.dampening != 0.0) {
            let what = "Nesterov's form needs a momentum and no dampening";
            return Err(call
                .error(ErrorKind::Value, what)
                .with("momentum", options.momentum)
                .with("dampening", options.dampening));
        }
        self.groups.add(call, parameters, options)
    }
}

impl Optimizer for Sgd {
    #[track_caller]
    fn step(&mut self) -> Result<()> {
        let call = Call::here("step");
        for (parameter, options, state) in self.groups.changing() {
            match state {
                Some(state) => state.fresh = false,
                None if capture_of(parameter).is_some() => return Err(no_state(call, parameter)),
                None => {
                    let keeps = options.momentum != 0.0;
                    let direction = if keeps { Some(zeros(parameter)?) } else { None };
                    *state = Some(State { fresh: true, direction });
                }
            }
        }
        self.groups.step(call, |updates: &[Update<'_, SgdOptions, State>]| {
            // With momentum or without: two lists of outputs, so two launches.
            for momentum in [true, false] {
                let these: Vec<_> =
                    updates.iter().filter(|it| it.state.direction.is_some() == momentum).collect();
                let now =
                    |it: &Update<'_, SgdOptions, State>| row(&it.options.get(), it.state.fresh);
                let alike = |a: &Update<'_, SgdOptions, State>,
                             b: &Update<'_, SgdOptions, State>| {
                    a.options.is(b.options)
                };
                let refresh = |runs: &[Range<usize>], numbers| {
                    let options = runs.iter().map(|run| these[run.start].options.clone());
                    refreshed(options.collect(), numbers)
                };
                let (rows, numbers) = rows(call, &these, now, alike, refresh)?;
                let outputs: Vec<&Tensor> = these
                    .iter()
                    .flat_map(|it| [Some(it.parameter), it.state.direction.as_ref()])
                    .flatten()
                    .collect();
                let inputs: Vec<&Tensor> =
                    these.iter().map(|it| &it.gradient).chain(&numbers).collect();
                call.launch(SgdStep { rows, momentum }, &outputs, &inputs)?;
            }
            Ok(())
        })
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.groups.parameters()
    }

    fn set_lr(&mut self, lr: f64) {
        self.groups.change(|options| options.lr = lr);
    }

    fn named_state(&self) -> Vec<(String, Tensor)> {
        let entries = self.groups.entries().iter().enumerate();
        let named = entries.filter_map(|(place, entry)| {
            let direction = entry.state.as_ref()?.direction.clone()?;
            Some((format!("{place}.momentum_buffer"), direction))
        });
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::conformance;
    use crate::{DType, Device};

    #[test]
    fn steps_are_those_of_the_formulas() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let all = [
            Sgd::options(0.1),
            Sgd::options(0.1).weight_decay(0.3),
            Sgd::options(0.1).momentum(0.9),
            Sgd::options(0.1).momentum(0.9).dampening(0.5).weight_decay(0.3),
            Sgd::options(0.1).momentum(0.9).nesterov(true),
        ];
        for options in all {
            let x = Tensor::randn([10], (&device, DType::F64))?.requires_grad_(true)?;
            let mut expected = x.to_vec::<f64>()?;
            let mut directions = vec![0.0; 10];
            let mut sgd = Sgd::new(vec![x.clone()], options)?;
            for step in 0..3 {
                x.square()?.sum()?.backward()?;
                sgd.step()?;
                sgd.zero_grad(false)?;
                for (x, direction) in expected.iter_mut().zip(&mut directions) {
                    let g = 2.0 * *x + options.weight_decay * *x;
                    let dampened = if step == 0 { 1.0 } else { 1.0 - options.dampening };
                    *direction = options.momentum * *direction + dampened * g;
                    let ahead = options.momentum * *direction;
                    *x -= options.lr * if options.nesterov { g + ahead } else { *direction };
                }
            }
            for (got, expected) in x.to_vec::<f64>()?.iter().zip(&expected) {
                assert!((got - expected).abs() < 1e-12, "{options:?}: {got} {expected}");
            }
            assert_eq!(x.grad().unwrap().to_vec::<f64>()?, [0.0; 10]);
        }
        assert!(Sgd::new(Vec::new(), Sgd::options(0.1).nesterov(true)).is_err());
        Ok(())
    }

    #[test]
    fn groups_have_options_of_their_own() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let [a, b, c] = [0, 1, 2].map(|_| Tensor::ones([2], &device));
        let [a, b, c] = [a?.requires_grad_(true)?, b?.requires_grad_(true)?, c?];
        let mut sgd = Sgd::new(vec![a.clone()], Sgd::options(0.5))?;
        sgd.add_group(vec![b.clone(), c], Sgd::options(0.25).momentum(0.9))?;
        a.add(&b)?.sum()?.backward()?;
        sgd.step()?;
        assert_eq!((a.to_vec::<f32>()?, b.to_vec::<f32>()?), (vec![0.5; 2], vec![0.75; 2]));
        assert_eq!(sgd.named_state().len(), 1);
        sgd.set_lr(1.0);
        sgd.step()?;
        assert_eq!(a.to_vec::<f32>()?, [-0.5; 2]);
        Ok(())
    }

    conformance!(momentum, |device| {
        let x = Tensor::zeros([1000], device)?.requires_grad_(true)?;
        let mut sgd = Sgd::new(vec![x.clone()], Sgd::options(0.1).momentum(0.9))?;
        x.sum()?.backward()?;
        sgd.step()?;
        Ok(vec![x])
    });

    conformance!(steps_of_every_kind, |device| {
        let mut all = Vec::new();
        for options in [
            Sgd::options(0.1),
            Sgd::options(0.1).momentum(0.9).dampening(0.1),
            Sgd::options(0.1).momentum(0.9),
        ] {
            let mut these = Vec::new();
            for size in [3, 129, 9001] {
                these.push(Tensor::randn([size], device)?.requires_grad_(true)?);
            }
            let nesterov = options.momentum != 0.0 && options.dampening == 0.0;
            let options = options.weight_decay(0.01);
            let options = if nesterov { options.nesterov(true) } else { options };
            let mut sgd = Sgd::new(these.clone(), options)?;
            for _ in 0..2 {
                for it in &these {
                    it.set_grad(Some(Tensor::randn(it.shape(), device)?))?;
                }
                sgd.step()?;
            }
            all.extend(these);
        }
        Ok(all)
    });
}
