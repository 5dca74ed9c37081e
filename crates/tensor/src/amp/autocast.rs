//! Autocast: which operations compute in 16 bits, and the copies of weights they share.
//!
//! In:  a thread's mode, and the inputs of an operation that asks.
//! Out: the inputs, converted in the graph.
//!
//! PyTorch's lists, for the operations there are:
//!
//! | operations | compute in | they call |
//! | --- | --- | --- |
//! | products: `matmul`, `linear`, convolutions, attention | the 16-bit type | [`lower`] |
//! | `exp`, `log`, `rsqrt`, powers, layer, group and rms norms, losses | `f32` | [`raise`] |
//! | `sum`, softmax | `f32`, from their input as it is | [`sums`], [`raised`] |
//! | all others, batch norm among them | what they are given | |
//!
//! A leaf that collects gradients is converted once for as long as autocast is on: weights that are
//! used twice have one copy. The cache goes with the outermost autocast; the graph keeps what it needs.

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;

use crate::autograd::is_grad_enabled;
use crate::dtype::DType;
use crate::error::Result;
use crate::live::Role;
use crate::tensor::Tensor;

/// Whether a thread's operations choose their precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode(Option<DType>);

#[derive(Default)]
struct State {
    dtype: Option<DType>,
    /// How many autocasts this thread is inside of.
    depth: usize,
    copies: Copies,
}

/// The copies, in the order in which they were made: that in which their memory goes back, which
/// must be the same in every run.
#[derive(Default)]
struct Copies {
    made: Vec<Copied>,
    /// Where the copy of a leaf in a type is.
    places: HashMap<(usize, DType), usize>,
}

impl Copies {
    /// The copy of a leaf, if the leaf was not changed since.
    fn get(&self, leaf: &Tensor, dtype: DType) -> Option<Tensor> {
        let copied = &self.made[*self.places.get(&(leaf.key(), dtype))?];
        (copied.version == leaf.version()).then(|| copied.copy.clone())
    }

    /// Puts a copy in; returns the one that it replaces.
    fn put(&mut self, leaf: &Tensor, copy: &Tensor) -> Option<Copied> {
        let new = Copied { version: leaf.version(), copy: copy.clone(), _leaf: leaf.clone() };
        let next = self.made.len();
        match *self.places.entry((leaf.key(), copy.dtype())).or_insert(next) {
            place if place < next => Some(std::mem::replace(&mut self.made[place], new)),
            _ => {
                self.made.push(new);
                None
            }
        }
    }
}

/// A leaf and its 16-bit copy. The leaf is kept so that its key stays its own.
struct Copied {
    version: u64,
    copy: Tensor,
    _leaf: Tensor,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// Restores the mode when dropped. It belongs to its thread.
#[derive(Debug)]
#[must_use = "autocast ends when the guard is dropped"]
pub struct Guard {
    before: Option<DType>,
    thread: PhantomData<*const ()>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let ended = STATE.with_borrow_mut(|state| {
            state.dtype = self.before;
            state.depth -= 1;
            if state.depth == 0 { std::mem::take(&mut state.copies) } else { Copies::default() }
        });
        // Outside the borrow: memory goes back here.
        drop(ended);
    }
}

/// Puts the copies back that were there before; those made meanwhile go.
pub(crate) struct Apart {
    before: Copies,
    thread: PhantomData<*const ()>,
}

/// Until the guard is dropped, copies from before are not used, and those that are made are of no use afterwards: in a graph,
/// a copy is made at each replay, of the weight as it is then.
pub(crate) fn copies_apart() -> Apart {
    let before = STATE.with_borrow_mut(|state| std::mem::take(&mut state.copies));
    Apart { before, thread: PhantomData }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let made = STATE.with_borrow_mut(|state| {
            std::mem::replace(&mut state.copies, std::mem::take(&mut self.before))
        });
        // Outside the borrow: memory goes back here.
        drop(made);
    }
}

impl Mode {
    /// This thread's.
    pub(crate) fn current() -> Self {
        Self(autocast_dtype())
    }

    /// No operation converts.
    pub(crate) fn off() -> Self {
        Self(None)
    }

    /// Makes it this thread's until the guard is dropped.
    pub(crate) fn enter(self) -> Guard {
        STATE.with_borrow_mut(|state| {
            state.depth += 1;
            let before = std::mem::replace(&mut state.dtype, self.0);
            Guard { before, thread: PhantomData }
        })
    }
}

/// The type that products compute in on this thread, if autocast is on.
#[must_use]
pub fn autocast_dtype() -> Option<DType> {
    STATE.with_borrow(|state| state.dtype)
}

/// Until the guard is dropped, products compute in `dtype`: `Bf16` or `F16`. Any other type
/// leaves operations as they are.
pub fn autocast_guard(dtype: DType) -> Guard {
    Mode(matches!(dtype, DType::Bf16 | DType::F16).then_some(dtype)).enter()
}

/// Runs `work` as [`autocast_guard`] says.
pub fn autocast<T>(dtype: DType, work: impl FnOnce() -> T) -> T {
    let _guard = autocast_guard(dtype);
    work()
}

/// Runs `work` without autocast, inside one.
pub fn no_autocast<T>(work: impl FnOnce() -> T) -> T {
    let _guard = Mode::off().enter();
    work()
}

/// What autocast converts: PyTorch leaves `f64`, integers and complex numbers alone.
fn is_eligible(tensor: &Tensor) -> bool {
    tensor.dtype().is_float() && tensor.dtype() != DType::F64
}

/// The input of a product: in 16 bits under autocast, otherwise itself.
#[track_caller]
pub(crate) fn lower(tensor: &Tensor) -> Result<Tensor> {
    match autocast_dtype() {
        Some(dtype) if is_eligible(tensor) && tensor.dtype() != dtype => lowered(tensor, dtype),
        _ => Ok(tensor.clone()),
    }
}

#[track_caller]
fn lowered(tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    let is_weight = tensor.is_leaf() && tensor.requires_grad() && tensor.view_of().is_none();
    // A copy made while nothing is recorded would lead no gradient to its leaf later.
    if !is_weight || tensor.dtype() != DType::F32 || !is_grad_enabled() {
        return tensor.to(dtype);
    }
    if let Some(copy) = STATE.with_borrow(|state| state.copies.get(tensor, dtype)) {
        return Ok(copy);
    }
    let copy = tensor.to(dtype)?;
    copy.set_role(Role::Cache);
    let old = STATE.with_borrow_mut(|state| state.copies.put(tensor, &copy));
    drop(old);
    Ok(copy)
}

/// The input of an operation that needs digits: in `f32` under autocast, otherwise itself.
#[track_caller]
pub(crate) fn raise(tensor: &Tensor) -> Result<Tensor> {
    match autocast_dtype() {
        Some(_) if is_eligible(tensor) => tensor.to(DType::F32),
        _ => Ok(tensor.clone()),
    }
}

/// What results of `dtype` are in that need digits while their inputs do not: `f32` for 16-bit floats
/// under autocast.
pub(crate) fn raised(dtype: DType) -> DType {
    match dtype {
        DType::Bf16 | DType::F16 if autocast_dtype().is_some() => DType::F32,
        _ => dtype,
    }
}

/// What sums of `dtype` are kept in.
pub(crate) fn sums(dtype: DType) -> DType {
    raised(dtype).of_sums()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::autograd::no_grad;
    use crate::testing::conformance;

    fn device() -> Device {
        Device::host("256 MiB").unwrap()
    }

    #[test]
    fn operations_compute_in_pytorch_s_types() -> Result<()> {
        let device = device();
        let x = Tensor::randn([4, 4], &device)?;
        for dtype in [DType::Bf16, DType::F16] {
            autocast(dtype, || {
                assert_eq!(autocast_dtype(), Some(dtype));
                let y = x.matmul(&x)?;
                assert_eq!(y.dtype(), dtype);
                assert_eq!(y.relu()?.dtype(), dtype);
                assert_eq!(y.exp()?.dtype(), DType::F32);
                assert_eq!(y.sum()?.dtype(), DType::F32);
                assert_eq!(y.add(&x)?.dtype(), DType::F32);
                assert_eq!(no_autocast(|| x.matmul(&x))?.dtype(), DType::F32);
                let double = x.to(DType::F64)?;
                assert_eq!(double.matmul(&double)?.dtype(), DType::F64);
                Ok::<_, crate::Error>(())
            })?;
            assert_eq!(autocast_dtype(), None);
        }
        assert_eq!(x.matmul(&x)?.dtype(), DType::F32);
        autocast(DType::F32, || assert_eq!(autocast_dtype(), None));
        Ok(())
    }

    #[test]
    fn products_are_lowered_and_norms_softmax_and_losses_raised() -> Result<()> {
        let device = device();
        let images = Tensor::randn([2, 4, 6, 6], &device)?;
        let filters = Tensor::randn([4, 4, 3, 3], &device)?.requires_grad_(true)?;
        let heads = Tensor::randn([2, 2, 8, 4], &device)?.requires_grad_(true)?;
        let scores = Tensor::randn([4, 8], (&device, DType::Bf16))?.requires_grad_(true)?;
        let targets = Tensor::from_slice(&[1i64, 0, 7, 3], [4], &device)?;
        autocast(DType::Bf16, || {
            let low = [
                images.conv2d(&filters, None, crate::ConvOptions::default())?,
                heads.scaled_dot_product_attention(&heads, &heads, Default::default())?,
            ];
            let high = [
                scores.softmax(1)?,
                scores.log_softmax(1)?,
                scores.layer_norm([8], None, None, 1e-5)?,
                scores.rms_norm([8], None, 1e-5)?,
                scores.group_norm(2, None, None, 1e-5)?,
                scores.cross_entropy(&targets)?,
                scores.cross_entropy_lean(&targets, &Default::default())?,
                scores.mse_loss(&scores.detach(), Default::default())?,
                scores.square()?,
                scores.rsqrt()?,
            ];
            for (dtype, results) in [(DType::Bf16, &low[..]), (DType::F32, &high[..])] {
                for result in results {
                    assert_eq!(result.dtype(), dtype, "{:?}", result.grad_fn());
                }
            }
            for result in low.iter().chain(&high[..8]) {
                result.to(DType::F32)?.sum()?.backward()?;
            }
            Ok::<_, crate::Error>(())
        })?;
        assert_eq!(filters.grad().unwrap().dtype(), DType::F32);
        assert_eq!(heads.grad().unwrap().dtype(), DType::F32);
        assert_eq!(scores.grad().unwrap().dtype(), DType::Bf16);
        Ok(())
    }

    /// The largest difference between two gradients, as a share of the largest number.
    fn error(exact: &Tensor, other: &Tensor) -> Result<f64> {
        let difference = exact.sub(other)?.abs()?.max()?.item::<f64>()?;
        Ok(difference / exact.abs()?.max()?.item::<f64>()?)
    }

    #[test]
    fn gradients_of_images_and_attention_are_close_to_those_in_full_precision() -> Result<()> {
        let device = device();
        let images = Tensor::randn([4, 8, 8, 8], &device)?;
        let filters = Tensor::randn([8, 8, 3, 3], &device)?.mul(0.1)?.requires_grad_(true)?;
        let options = crate::ConvOptions::default().padding(1);
        let conv = || {
            let y = images.conv2d(&filters, None, options)?.relu()?;
            y.conv2d(&filters, None, options)?.square()?.mean()
        };
        let rows = Tensor::randn([4, 12, 16], &device)?;
        let weight = Tensor::randn([48, 16], &device)?.mul(0.3)?.requires_grad_(true)?;
        let attention = || {
            let parts = rows.linear(&weight, None)?.view([4, 12, 3, 2, 8])?;
            let parts = parts.permute(&[2, 0, 3, 1, 4])?;
            let [q, k, v] = [parts.select(0, 0)?, parts.select(0, 1)?, parts.select(0, 2)?];
            let y = q.scaled_dot_product_attention(&k, &v, Default::default())?;
            y.transpose(1, 2)?.flatten(2, 3)?.layer_norm([16], None, None, 1e-5)?.pow(3)?.mean()
        };
        type Loss<'a> = &'a dyn Fn() -> Result<Tensor>;
        let cases: [(&Tensor, Loss<'_>); 2] = [(&filters, &conv), (&weight, &attention)];
        for (leaf, loss) in cases {
            loss()?.backward()?;
            let exact = leaf.take_grad().unwrap();
            for (dtype, most) in [(DType::Bf16, 0.05), (DType::F16, 0.01)] {
                autocast(dtype, loss)?.backward()?;
                let error = error(&exact, &leaf.take_grad().unwrap())?;
                assert!(error > 0.0 && error < most, "{dtype}: {error}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_weight_is_converted_once_and_its_gradients_are_in_its_own_type() -> Result<()> {
        let device = device();
        let weight = Tensor::randn([64, 64], &device)?.requires_grad_(true)?;
        let x = Tensor::randn([8, 64], (&device, DType::Bf16))?;
        let copies = || -> u64 {
            device
                .memory()
                .live()
                .iter()
                .filter(|it| it.role == Role::Cache)
                .map(|it| it.bytes)
                .sum()
        };
        let y = autocast(DType::Bf16, || {
            let y = x.linear(&weight, None)?;
            assert_eq!(copies(), 64 * 64 * 2);
            let y = y.linear(&weight, None)?;
            assert_eq!(copies(), 64 * 64 * 2, "shared");
            no_grad(|| weight.mul_(1.0))?;
            x.linear(&weight, None)?;
            no_grad(|| x.linear(&weight, None))?;
            Ok::<_, crate::Error>(y)
        })?;
        assert_eq!(copies(), 64 * 64 * 2, "the graph keeps it");
        y.sum()?.backward()?;
        assert_eq!(copies(), 0);
        assert_eq!(weight.grad().unwrap().dtype(), DType::F32);
        Ok(())
    }

    #[test]
    fn gradients_are_close_to_those_in_full_precision() -> Result<()> {
        let device = device();
        let weight = Tensor::randn([32, 32], &device)?.requires_grad_(true)?;
        let x = Tensor::randn([16, 32], &device)?;
        let loss = || x.linear(&weight, None)?.tanh()?.linear(&weight, None)?.mean();
        loss()?.backward()?;
        let exact = weight.take_grad().unwrap().to_vec::<f32>()?;
        autocast(DType::Bf16, loss)?.backward()?;
        let lower = weight.take_grad().unwrap().to_vec::<f32>()?;
        let largest = exact.iter().fold(0.0f32, |most, it| most.max(it.abs()));
        let error = exact.iter().zip(&lower).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(error < 0.1 * largest && error > 0.0, "{error} of {largest}");
        Ok(())
    }

    conformance!(mixed_precision, |device| {
        let weight = Tensor::ones([64, 64], device)?.requires_grad_(true)?;
        let x = Tensor::ones([8, 64], device)?;
        let y = autocast(DType::Bf16, || {
            // Copies of many sizes, which go back in the same order on each device.
            for size in 1..20 {
                let weight = Tensor::ones([64 * size, 64], device)?.requires_grad_(true)?;
                x.linear(&weight, None)?;
            }
            x.linear(&weight, None)?.relu()?.linear(&weight, None)
        })?;
        y.sum()?.backward()?;
        Ok(vec![y, weight.grad().unwrap()])
    });
}
