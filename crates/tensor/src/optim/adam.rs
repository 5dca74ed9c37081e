//! Adam and AdamW, as one kernel over lists of parameters.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Optimizer;
use super::groups::{
    Groups, Options, ROW, Rows, Update, capture_of, floats, no_float, no_state, rows, zeros,
};
use crate::dtype::{Float, Real, dispatch_float};
use crate::error::{Call, Result};
use crate::exec::cuda::{MultiTensor, wide};
use crate::exec::{Args, Kernel, Operands, Plan, for_each_piece};
use crate::graph::Refreshed;
use crate::tensor::Tensor;
use crate::work::bytes_of;

/// How a group of parameters is changed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AdamOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the running mean, and of the running mean of squares, each step keeps.
    pub betas: (f64, f64),
    /// Keeps the quotient finite.
    pub eps: f64,
    /// How strongly parameters are drawn to zero.
    pub weight_decay: f64,
}

impl AdamOptions {
    /// Another learning rate.
    #[must_use]
    pub fn lr(mut self, lr: f64) -> Self {
        self.lr = lr;
        self
    }

    /// Other running means.
    #[must_use]
    pub fn betas(mut self, first: f64, second: f64) -> Self {
        self.betas = (first, second);
        self
    }

    /// Another smallest divisor.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// Another decay.
    #[must_use]
    pub fn weight_decay(mut self, decay: f64) -> Self {
        self.weight_decay = decay;
        self
    }
}

/// The numbers of one parameter's step, as [`LINE`] has them.
fn row(options: &AdamOptions, step: u64, decoupled: bool) -> [f64; ROW] {
    let power = |beta: f64| 1.0 - beta.powf(step as f64);
    let AdamOptions { lr, betas, eps, weight_decay } = *options;
    // What the parameter is multiplied with first, or what is added to the gradient.
    let (decay, shrink) =
        if decoupled { (0.0, 1.0 - lr * weight_decay) } else { (weight_decay, 1.0) };
    let (step_size, correction) = (lr / power(betas.0), power(betas.1).sqrt());
    [shrink, decay, 1.0 - betas.0, betas.1, 1.0 - betas.1, eps, step_size, correction]
}

/// A step of one number: `y0` is the parameter, `y1` the mean, `y2` the mean of squares, `x0` the gradient.
const LINE: &str = "
C p = y0 * (C)s0, g = x0 + (C)s1 * p;
y1 = y1 + (C)s2 * (g - y1);
y2 = (C)s3 * y2 + (C)s4 * g * g;
y0 = p - (C)s6 * y1 / (sqrt(y2) / (C)s7 + (C)s5);
";

/// For each parameter: outputs parameter, mean, mean of squares; input gradient. In a graph, behind them the numbers.
struct AdamStep(Rows);

impl Kernel for AdamStep {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let numbers = self.0.found(args);
        dispatch_float!(args.output_dtype(0), T => adam::<T>(&numbers, args),
            else return Err(no_float(args.output_dtype(0))));
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let list = |(which, run): (usize, Range<usize>)| {
            let kernel = MultiTensor::new("adam", wide(on.outputs[0].dtype), LINE)
                .numbers(&self.0.of_run(&run))
                .numbers_at(self.0.place(on.inputs, which));
            let tensors: Vec<_> = run
                .map(|it| {
                    let [parameter, mean, square] = [0, 1, 2].map(|k| &on.outputs[3 * it + k]);
                    [parameter, mean, square, &on.inputs[it]]
                })
                .collect();
            kernel.launches(&tensors, 3, &[])
        };
        Plan::Launches(self.0.runs().iter().cloned().enumerate().flat_map(list).collect())
    }

    fn bytes(&self, outputs: &[&Tensor], inputs: &[&Tensor]) -> f64 {
        2.0 * bytes_of(outputs) + bytes_of(inputs)
    }
}

fn adam<T: Float>(numbers: &[[f64; ROW]], args: &mut Args<'_>) {
    let gradients: Vec<_> = (0..numbers.len()).map(|place| args.input(place)).collect();
    let groups = (0..numbers.len()).map(|place| [0, 1, 2].map(|it| args.take::<T>(3 * place + it)));
    for_each_piece(groups.collect(), &|which, indices, [parameter, mean, square]| {
        let [shrink, decay, new, beta2, new2, eps, step_size, correction] =
            numbers[which].map(<T::Wide as Real>::n);
        let mut scratch = Vec::new();
        let gradient = gradients[which].chunk::<T>(indices, &mut scratch);
        let places = parameter.iter_mut().zip(mean).zip(square).zip(gradient);
        for (((parameter, mean), square), gradient) in places {
            let p = parameter.widen() * shrink;
            let g = gradient.widen() + decay * p;
            let m = mean.widen() + new * (g - mean.widen());
            let v = beta2 * square.widen() + new2 * g * g;
            *mean = T::narrow(m);
            *square = T::narrow(v);
            *parameter = T::narrow(p - step_size * m / (v.sqrt() / correction + eps));
        }
    });
}

#[derive(Debug)]
struct State {
    /// Steps so far; graphs count them too.
    steps: Arc<AtomicU64>,
    /// The last capture that stepped it, and how often before the step that is captured now.
    captured: (u64, u64),
    mean: Tensor,
    square: Tensor,
}

macro_rules! adams {
    ($($(#[$doc:meta])* $name:ident, $call:literal, $decoupled:literal, $decay:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            groups: Groups<AdamOptions, State>,
        }

        impl $name {
            /// PyTorch's defaults.
            #[must_use]
            pub fn options() -> AdamOptions {
                AdamOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: $decay }
            }

            /// For these parameters.
            ///
            /// # Errors
            ///
            /// If one of them is no leaf, no float, or not contiguous.
            #[track_caller]
            pub fn new(parameters: Vec<Tensor>, options: AdamOptions) -> Result<Self> {
                let mut groups = Groups::new();
                groups.add(Call::here($call), parameters, options)?;
                Ok(Self { groups })
            }

            /// Adds parameters with options of their own.
            ///
            /// # Errors
            ///
            /// As for [`new`](Self::new).
            #[track_caller]
            pub fn add_group(
                &mut self,
                parameters: Vec<Tensor>,
                options: AdamOptions,
            ) -> Result<()> {
                self.groups.add(Call::here("add_group"), parameters, options)
            }
        }

        impl Optimizer for $name {
            #[track_caller]
            fn step(&mut self) -> Result<()> {
                step(Call::here("step"), &mut self.groups, $decoupled)
            }

            fn parameters(&self) -> Vec<Tensor> {
                self.groups.parameters()
            }

            fn set_lr(&mut self, lr: f64) {
                self.groups.change(|options| options.lr = lr);
            }

            fn named_state(&self) -> Vec<(String, Tensor)> {
                named_state(&self.groups)
            }
        }
    )*};
}

adams! {
    /// Adam: steps of about the learning rate, whatever the gradient's size.
    Adam, "Adam", false, 0.0;
    /// Adam with the decay apart from the gradient.
    AdamW, "AdamW", true, 1e-2;
}

#[cfg(test)]
impl Adam {
    /// How often each parameter has stepped.
    pub(crate) fn steps(&self) -> Vec<u64> {
        let states = self.groups.entries().iter().filter_map(|it| it.state.as_ref());
        states.map(|it| it.steps.load(Ordering::Relaxed)).collect()
    }
}

#[track_caller]
fn step(call: Call, groups: &mut Groups<AdamOptions, State>, decoupled: bool) -> Result<()> {
    for (parameter, _, state) in groups.changing() {
        match (state, capture_of(parameter)) {
            // A graph counts when it is replayed.
            (Some(state), Some(capture)) => {
                let before = if state.captured.0 == capture { state.captured.1 + 1 } else { 0 };
                state.captured = (capture, before);
            }
            (None, Some(_)) => return Err(no_state(call, parameter)),
            (Some(state), None) => {
                state.steps.fetch_add(1, Ordering::Relaxed);
            }
            (state @ None, None) => {
                let (mean, square) = (zeros(parameter)?, zeros(parameter)?);
                let steps = Arc::new(AtomicU64::new(1));
                *state = Some(State { steps, captured: (0, 0), mean, square });
            }
        }
    }
    groups.step(call, |updates: &[Update<'_, AdamOptions, State>]| {
        let updates: Vec<_> = updates.iter().collect();
        let now = |it: &Update<'_, AdamOptions, State>| {
            row(&it.options.get(), it.state.steps.load(Ordering::Relaxed), decoupled)
        };
        let steps = |it: &Update<'_, AdamOptions, State>| {
            (Arc::clone(&it.state.steps), it.state.captured.1)
        };
        let alike = |a: &Update<'_, AdamOptions, State>, b: &Update<'_, AdamOptions, State>| {
            a.options.is(b.options) && next_of(&steps(a)) == next_of(&steps(b))
        };
        let refresh = |runs: &[Range<usize>], numbers| {
            let counted = runs.iter().map(|run| Counted {
                options: updates[run.start].options.clone(),
                steps: updates[run.clone()].iter().map(|it| steps(it)).collect(),
            });
            refreshed(counted.collect(), numbers, decoupled)
        };
        let (rows, numbers) = rows(call, &updates, now, alike, refresh)?;
        let outputs: Vec<&Tensor> = updates
            .iter()
            .flat_map(|it| [it.parameter, &it.state.mean, &it.state.square])
            .collect();
        let inputs: Vec<&Tensor> = updates.iter().map(|it| &it.gradient).chain(&numbers).collect();
        call.launch(AdamStep(rows), &outputs, &inputs)
    })
}

/// The number of a parameter's next step in a graph, of which so many come before in the same replay.
fn next_of((steps, before): &(Arc<AtomicU64>, u64)) -> u64 {
    steps.load(Ordering::Relaxed) + before + 1
}

/// Parameters of a graph whose steps have equal numbers, and how often the graph steps each of them before.
struct Counted {
    options: Options<AdamOptions>,
    steps: Vec<(Arc<AtomicU64>, u64)>,
}

impl Counted {
    /// The numbers of their next step.
    fn next(&self, decoupled: bool) -> Result<[f64; ROW], String> {
        let mut all = self.steps.iter().map(next_of);
        let first = all.next().unwrap_or(1);
        if all.any(|it| it != first) {
            let what = "parameters that step together in the graph have since stepped apart";
            return Err(what.to_owned());
        }
        Ok(row(&self.options.get(), first, decoupled))
    }
}

/// The numbers of each replay: options as they are then, and one step more.
fn refreshed(counted: Vec<Counted>, numbers: Tensor, decoupled: bool) -> Refreshed {
    let counted = Arc::new(counted);
    let same = Arc::clone(&counted);
    let next = move || {
        let rows = counted.iter().map(|it| it.next(decoupled)).collect::<Result<Vec<_>, _>>()?;
        Ok(floats(rows.into_iter()))
    };
    Refreshed::new(numbers, next).counting(move || {
        for (steps, _) in same.iter().flat_map(|it| &it.steps) {
            steps.fetch_add(1, Ordering::Relaxed);
        }
    })
}

fn named_state(groups: &Groups<AdamOptions, State>) -> Vec<(String, Tensor)> {
    let states = groups.entries().iter().enumerate();
    let states = states.filter_map(|(place, entry)| Some((place, entry.state.as_ref()?)));
    let named = states.flat_map(|(place, state)| {
        [
            (format!("{place}.exp_avg"), state.mean.clone()),
            (format!("{place}.exp_avg_sq"), state.square.clone()),
        ]
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::conformance;
    use crate::{DType, Device, Role};

    /// The rule as its authors write it, in `f64`, one number at a time.
    fn reference(x: &mut [f64], gradients: &[Vec<f64>], options: AdamOptions, decoupled: bool) {
        for (place, x) in x.iter_mut().enumerate() {
            let (mut m, mut v) = (0.0, 0.0);
            for (step, gradient) in gradients.iter().enumerate() {
                let mut g = gradient[place];
                if decoupled {
                    *x -= options.lr * options.weight_decay * *x;
                } else {
                    g += options.weight_decay * *x;
                }
                let (b1, b2) = options.betas;
                m = b1 * m + (1.0 - b1) * g;
                v = b2 * v + (1.0 - b2) * g * g;
                let t = step as i32 + 1;
                let (m_hat, v_hat) = (m / (1.0 - b1.powi(t)), v / (1.0 - b2.powi(t)));
                *x -= options.lr * m_hat / (v_hat.sqrt() + options.eps);
            }
        }
    }

    #[test]
    fn steps_are_those_of_the_papers() -> Result<()> {
        let device = Device::host("256 MiB").unwrap();
        for decoupled in [false, true] {
            // More than one piece, so that pieces meet their own gradients.
            let x = Tensor::randn([20_000], (&device, DType::F64))?.requires_grad_(true)?;
            let mut expected = x.to_vec::<f64>()?;
            let options = Adam::options().lr(0.05).betas(0.8, 0.9).weight_decay(0.1);
            let mut adam: Box<dyn Optimizer> = if decoupled {
                Box::new(AdamW::new(vec![x.clone()], options)?)
            } else {
                Box::new(Adam::new(vec![x.clone()], options)?)
            };
            let mut gradients = Vec::new();
            for _ in 0..4 {
                let gradient = Tensor::randn([20_000], (&device, DType::F64))?;
                gradients.push(gradient.to_vec::<f64>()?);
                x.set_grad(Some(gradient))?;
                adam.step()?;
            }
            reference(&mut expected, &gradients, options, decoupled);
            for (place, (got, expected)) in x.to_vec::<f64>()?.iter().zip(&expected).enumerate() {
                assert!((got - expected).abs() < 1e-12, "{decoupled} {place}: {got} {expected}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_step_takes_no_memory_but_the_state() -> Result<()> {
        let device = Device::dry("10 GiB").unwrap();
        let x = Tensor::zeros([1 << 20], &device)?.requires_grad_(true)?;
        let idle = Tensor::zeros([1 << 20], &device)?.requires_grad_(true)?;
        x.sum()?.backward()?;
        let before = device.memory().allocated();
        let mut adam = Adam::new(vec![x.clone(), idle], Adam::options())?;
        assert_eq!(device.memory().allocated(), before, "nothing before the first step");
        for _ in 0..2 {
            device.memory().reset_peak_stats();
            adam.step()?;
            assert_eq!(device.memory().max_allocated(), before + (8 << 20));
        }
        let names: Vec<_> = adam.named_state().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["0.exp_avg", "0.exp_avg_sq"]);
        assert!(adam.named_state().iter().all(|(_, state)| state.role() == Role::Optimizer));
        Ok(())
    }

    #[test]
    fn what_cannot_be_trained_is_refused() -> Result<()> {
        let device = Device::dry("1 GiB").unwrap();
        let x = Tensor::zeros([2, 3], &device)?.requires_grad_(true)?;
        assert!(Adam::new(vec![x.sin()?], Adam::options()).is_err());
        assert!(Adam::new(vec![x.detach().t()?], Adam::options()).is_err());
        assert!(Adam::new(vec![Tensor::arange(0, 3, 1, &device)?], Adam::options()).is_err());
        Ok(())
    }

    #[test]
    fn a_graph_from_before_a_step_is_not_walked_with_new_weights() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let x = Tensor::ones([3], &device)?.requires_grad_(true)?;
        let loss = x.mul(&x)?.sum()?;
        x.sum()?.backward()?;
        Adam::new(vec![x.clone()], Adam::options())?.step()?;
        assert!(loss.backward().unwrap_err().to_string().contains("changed by: step at"));
        Ok(())
    }

    conformance!(many_parameters, |device| {
        let half = (device, DType::Bf16);
        let all = (1..150).map(|size| match size % 2 {
            0 => Tensor::zeros([size * 100], half)?.requires_grad_(true),
            _ => Tensor::zeros([size * 100], device)?.requires_grad_(true),
        });
        let all: Vec<Tensor> = all.collect::<Result<_>>()?;
        let mut adam = AdamW::new(all.clone(), AdamW::options())?;
        for _ in 0..2 {
            for parameter in &all {
                parameter.sum()?.backward()?;
            }
            adam.step()?;
            adam.zero_grad(true)?;
        }
        Ok(adam.named_state().into_iter().map(|(_, state)| state).collect())
    });

    conformance!(steps_with_gradients_in_any_layout, |device| {
        let x = Tensor::randn([40, 30], device)?.requires_grad_(true)?;
        let y = Tensor::randn([1001], device)?.requires_grad_(true)?;
        let mut adam = Adam::new(vec![x.clone(), y.clone()], Adam::options().weight_decay(0.1))?;
        for _ in 0..3 {
            x.set_grad(Some(Tensor::randn([30, 40], device)?.t()?))?;
            y.set_grad(Some(Tensor::randn([1001], device)?))?;
            adam.step()?;
        }
        Ok(vec![x, y])
    });
}
