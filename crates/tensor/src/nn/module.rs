//! What a module is: something with a forward, tensors with names, and a mode.
//!
//! In:  a module that shows what it is made of to a [`Visitor`].
//! Out: parameters and buffers with the names that PyTorch gives them; their state, in and out;
//!      training or evaluation.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::autograd::no_grad;
use crate::dtype::DType;
use crate::error::{Call, Error, ErrorKind, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// A layer, or a model made of layers.
pub trait Module: Send + Sync {
    /// The result for an input.
    ///
    /// # Errors
    ///
    /// If shapes or types do not fit, or if there is no memory.
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor>;

    /// Shows everything it is made of, in the order in which it was made.
    fn visit(&self, visitor: &mut Visitor<'_>);

    /// From now on it trains: dropout drops, batch norms use the batch's own statistics. New modules
    /// do.
    fn train(&self) {
        set_training(&|visitor| self.visit(visitor), true);
    }

    /// From now on it evaluates.
    fn eval(&self) {
        set_training(&|visitor| self.visit(visitor), false);
    }

    /// The parameters with their names, such as `0.weight`. Each once, also if several modules share
    /// it: what an optimizer needs.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        collect(&|visitor| self.visit(visitor), &[Kind::Parameter])
    }

    /// The buffers with their names: state that is no parameter, such as running means.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        collect(&|visitor| self.visit(visitor), &[Kind::Buffer])
    }

    /// Parameters and buffers with their names, each once: what
    /// [`safetensors::save`](crate::safetensors::save) takes.
    fn state_dict(&self) -> Vec<(String, Tensor)> {
        collect(&|visitor| self.visit(visitor), &[Kind::Parameter, Kind::Buffer])
    }

    /// Overwrites parameters and buffers with the tensors of the same names, which may be of other
    /// types and on other devices: a model moves by being made anew there and loaded.
    ///
    /// ```
    /// # use tonnage_tensor::nn::{Linear, Module};
    /// # use tonnage_tensor::{DType, Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let model = Linear::new(4, 2, &device)?;
    /// let smaller = Linear::new(4, 2, (&device, DType::Bf16))?;
    /// smaller.load_state_dict(&model.state_dict())?;
    /// # assert!((smaller.weight.sum()?.item::<f32>()? - model.weight.sum()?.item::<f32>()?).abs() < 0.1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If names or shapes differ: nothing is changed then. Or if there is no memory.
    #[track_caller]
    fn load_state_dict(&self, state: &[(String, Tensor)]) -> Result<()> {
        let call = Call::here("load_state_dict");
        let known: HashMap<&str, &Tensor> = state.iter().map(|(name, it)| (&**name, it)).collect();
        let names = state.iter().map(|(name, _)| &**name);
        let info = |name: &str| known.get(name).map(|it| (it.shape().clone(), it.dtype()));
        let places = matching((call, ErrorKind::Value), self.state_dict(), names, info)?;
        for (name, place) in &places {
            let tensor = known[&**name].detach().to_device(place.device())?;
            no_grad(|| place.copy_(&tensor))?;
        }
        Ok(())
    }

    /// The parameters, for an optimizer.
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters().into_iter().map(|(_, parameter)| parameter).collect()
    }

    /// Whether the parameters collect gradients from now on. Frozen, a layer is no part of the
    /// graph, unless something before it is.
    ///
    /// # Errors
    ///
    /// If a parameter is not a leaf.
    #[track_caller]
    fn requires_grad_(&self, on: bool) -> Result<()> {
        self.parameters().into_iter().try_for_each(|it| it.requires_grad_(on).map(drop))
    }

    /// Drops the gradients of all parameters.
    fn zero_grad(&self) {
        for parameter in self.parameters() {
            drop(parameter.take_grad());
        }
    }

    /// How many numbers the parameters are.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(Tensor::numel).sum()
    }
}

/// Whether a module trains: what [`Module::train`] and [`Module::eval`] set. Clones share it, as they
/// share parameters.
#[derive(Clone, Debug)]
pub struct Training(Arc<AtomicBool>);

impl Default for Training {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Training {
    /// Whether it does.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Parameter,
    Buffer,
}

/// One thing of which a module is made.
enum Part<'a> {
    Tensor(Kind, &'a str, &'a Tensor),
    Training(&'a Training),
}

/// Sees what a module is made of, one part after the other.
pub struct Visitor<'a> {
    prefix: String,
    see: &'a mut dyn FnMut(&str, Part<'_>),
}

impl Visitor<'_> {
    /// A tensor that is trained.
    pub fn parameter(&mut self, name: &str, tensor: &Tensor) {
        (self.see)(&self.prefix, Part::Tensor(Kind::Parameter, name, tensor));
    }

    /// A tensor that is not.
    pub fn buffer(&mut self, name: &str, tensor: &Tensor) {
        (self.see)(&self.prefix, Part::Tensor(Kind::Buffer, name, tensor));
    }

    /// What tells whether it trains.
    pub fn training(&mut self, training: &Training) {
        (self.see)(&self.prefix, Part::Training(training));
    }

    /// A module inside: its names begin with `name.`.
    pub fn module(&mut self, name: &str, module: &(impl Module + ?Sized)) {
        let length = self.prefix.len();
        self.prefix.push_str(name);
        self.prefix.push('.');
        module.visit(self);
        self.prefix.truncate(length);
    }

    /// Modules inside, named by their places: `name.0.`, `name.1.` and so on.
    pub fn modules<M: Module>(&mut self, name: &str, modules: &[M]) {
        for (place, module) in modules.iter().enumerate() {
            self.module(&format!("{name}.{place}"), module);
        }
    }
}

impl std::fmt::Debug for Visitor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Visitor").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// What shows a module's parts.
type Visit<'a> = &'a dyn Fn(&mut Visitor<'_>);

/// The tensors of some kinds, each once.
fn collect(visit: Visit<'_>, wanted: &[Kind]) -> Vec<(String, Tensor)> {
    let mut found: Vec<(String, Tensor)> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut see = |prefix: &str, part: Part<'_>| {
        if let Part::Tensor(kind, name, tensor) = part
            && wanted.contains(&kind)
            && seen.insert(tensor.key())
        {
            found.push((format!("{prefix}{name}"), tensor.clone()));
        }
    };
    visit(&mut Visitor { prefix: String::new(), see: &mut see });
    found
}

fn set_training(visit: Visit<'_>, on: bool) {
    let mut see = |_: &str, part: Part<'_>| {
        if let Part::Training(training) = part {
            training.set(on);
        }
    };
    visit(&mut Visitor { prefix: String::new(), see: &mut see });
}

/// The places to load into, once it is clear that each has a tensor of its name and shape, and that
/// no tensor is left over.
pub(crate) fn matching<'n>(
    (call, kind): (Call, ErrorKind),
    places: Vec<(String, Tensor)>,
    mut names: impl Iterator<Item = &'n str>,
    info: impl Fn(&str) -> Option<(Shape, DType)>,
) -> Result<Vec<(String, Tensor)>> {
    let fails = |what: String| -> Error { call.error(kind.clone(), what) };
    let known: std::collections::HashSet<&str> = places.iter().map(|(name, _)| &**name).collect();
    if let Some(name) = names.find(|name| !known.contains(name)) {
        return Err(fails(format!("the module has no tensor named {name}")));
    }
    for (name, place) in &places {
        let Some((shape, dtype)) = info(name) else {
            return Err(fails(format!("there is no tensor named {name} for the module")));
        };
        if &shape != place.shape() {
            return Err(fails(format!("{name} has another shape"))
                .with("there", format_args!("{dtype}{shape}"))
                .with_tensor("here", place));
        }
    }
    Ok(places)
}

impl<M: Module + ?Sized> Module for Arc<M> {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        (**self).forward(input)
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        (**self).visit(visitor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::nn::{BatchNorm2d, Dropout, Linear, Sequential};

    fn model(device: &Device) -> Result<Sequential> {
        let shared = Linear::new(4, 4, device)?;
        Ok(Sequential::new()
            .then(shared.clone())
            .then(Dropout::new(0.5))
            .then(shared)
            .then(BatchNorm2d::new(4, device)?))
    }

    #[test]
    fn what_is_shared_has_one_name_and_buffers_are_no_parameters() -> Result<()> {
        let model = model(&Device::dry("64 MiB").unwrap())?;
        let names = |list: Vec<(String, Tensor)>| -> Vec<String> {
            list.into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(model.named_parameters()), ["0.weight", "0.bias", "3.weight", "3.bias"]);
        let buffers = ["3.running_mean", "3.running_var", "3.num_batches_tracked"];
        assert_eq!(names(model.named_buffers()), buffers);
        assert_eq!(model.state_dict().len(), 7);
        assert_eq!(model.num_parameters(), 4 * 4 + 4 + 4 + 4);
        Ok(())
    }

    #[test]
    fn a_mode_reaches_everything_inside() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let (dropout, x) = (Dropout::new(0.5), Tensor::ones([100], &device)?);
        let model = Sequential::new().then(Sequential::new().then(dropout.clone()));
        model.eval();
        assert!(dropout.forward(&x)?.is(&x));
        model.train();
        assert!(!dropout.forward(&x)?.is(&x));
        Ok(())
    }

    #[test]
    fn state_is_loaded_as_a_whole_or_not_at_all() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let (from, to) = (model(&device)?, model(&device)?);
        let mut state = from.state_dict();
        to.load_state_dict(&state)?;
        let weight = |model: &Sequential| model.parameters()[0].to_vec::<f32>();
        assert_eq!(weight(&to)?, weight(&from)?);
        let to = model(&device)?;
        let before = weight(&to)?;
        state[6].1 = Tensor::zeros([3], &device)?;
        let error = to.load_state_dict(&state).unwrap_err().to_string();
        assert!(error.contains("num_batches_tracked has another shape"), "{error}");
        state.pop();
        let error = to.load_state_dict(&state).unwrap_err().to_string();
        assert!(error.contains("no tensor named 3.num_batches_tracked"), "{error}");
        state.push(("more".to_owned(), Tensor::zeros([1], &device)?));
        let error = to.load_state_dict(&state).unwrap_err().to_string();
        assert!(error.contains("the module has no tensor named more"), "{error}");
        assert_eq!(weight(&to)?, before);
        Ok(())
    }

    #[test]
    fn frozen_parameters_collect_no_gradients() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let (first, last) = (Linear::new(4, 4, &device)?, Linear::new(4, 1, &device)?);
        first.requires_grad_(false)?;
        let hidden = first.forward(&Tensor::ones([2, 4], &device)?)?;
        assert!(!hidden.requires_grad());
        last.forward(&hidden)?.sum()?.backward()?;
        assert!(first.weight.grad().is_none() && last.weight.grad().is_some());
        Ok(())
    }
}
