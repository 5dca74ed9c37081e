//! Losses: negative log-likelihood, cross-entropy, mean square.
//!
//! | function | what it keeps beside the logits | for whom |
//! | --- | --- | --- |
//! | [`Tensor::cross_entropy`] | the logarithms of all probabilities | bytes as in PyTorch |
//! | [`Tensor::cross_entropy_lean`] | one number for each row | large vocabularies |
//! | [`Tensor::mse_loss`] | both inputs | |
//!
//! With the profile [`MemoryProfile::Tonnage`], which GPUs have, the first is computed as the second where it can be.

mod classes;

mod lean;

mod square;

use self::classes::{class_axis, classes_of, nll};
use self::lean::lean;
use super::softmax::softmax_along;
use crate::amp::{raise, raised};
use crate::dtype::DType;
use crate::error::{Call, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::workspace::MemoryProfile;

/// What becomes of the losses of single elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// They stay as they are.
    None,
    /// Their mean; weighted, if there are weights.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// How cross-entropy and negative log-likelihood count.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CrossEntropyOptions {
    /// A weight for each class.
    pub weight: Option<Tensor>,
    /// A target that counts for nothing.
    pub ignore_index: i64,
    /// What becomes of the losses of single elements.
    pub reduction: Reduction,
}

impl Default for CrossEntropyOptions {
    fn default() -> Self {
        Self { weight: None, ignore_index: -100, reduction: Reduction::Mean }
    }
}

impl CrossEntropyOptions {
    /// With a weight for each class.
    #[must_use]
    pub fn weight(mut self, weight: Tensor) -> Self {
        self.weight = Some(weight);
        self
    }

    /// With another target that counts for nothing.
    #[must_use]
    pub fn ignore_index(mut self, target: i64) -> Self {
        self.ignore_index = target;
        self
    }

    /// With another reduction.
    #[must_use]
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }
}

/// A single number in memory for many: PyTorch makes the losses of all elements, then resizes to one
/// number, which keeps the memory.
#[track_caller]
fn first_element(call: Call, x: &Tensor) -> Result<Tensor> {
    if x.numel() == 0 {
        return Tensor::uninit(call, Shape::default(), x.dtype(), x.device());
    }
    let one = (0..x.dim()).try_fold(x.layout().clone(), |layout, axis| layout.slice(axis, 0, 1, 1));
    match one.and_then(|layout| layout.view(&Shape::default())) {
        Some(layout) => Ok(x.alias(layout).detach()),
        None => Err(call.shape_error("there is no first element").with_tensor("self", x)),
    }
}

/// Whether rows of scores are all there is.
fn has_lean_form(scores: &Tensor, options: &CrossEntropyOptions) -> bool {
    scores.dim() == 2 && options.weight.is_none()
}

impl Tensor {
    /// The negative log-likelihood of targets under logarithms of probabilities, of which classes are
    /// the second axis (or the only one).
    ///
    /// # Errors
    ///
    /// If shapes or element types do not fit, or if there is no memory. A target that is no class is
    /// reported at the next synchronisation.
    #[track_caller]
    pub fn nll_loss(&self, targets: &Tensor, options: &CrossEntropyOptions) -> Result<Tensor> {
        nll(Call::here("nll_loss"), &raise(self)?, targets, options)
    }

    /// The mean cross-entropy between scores and target classes: `log_softmax`, then
    /// [`nll_loss`](Self::nll_loss), with what PyTorch keeps of each. Classes are the second axis (or
    /// the only one). With [`MemoryProfile::Tonnage`], rows of scores go the way of
    /// [`cross_entropy_lean`](Self::cross_entropy_lean).
    ///
    /// ```
    /// # use tonnage_tensor::{Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let scores = Tensor::zeros([3, 10], &device)?;
    /// let targets = Tensor::from_slice(&[1i64, 0, 7], [3], &device)?;
    /// let loss = scores.cross_entropy(&targets)?.item::<f32>()?;
    /// assert!((loss - 10f32.ln()).abs() < 1e-6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`nll_loss`](Self::nll_loss).
    #[track_caller]
    pub fn cross_entropy(&self, targets: &Tensor) -> Result<Tensor> {
        self.cross_entropy_with(targets, &CrossEntropyOptions::default())
    }

    /// [`cross_entropy`](Self::cross_entropy) with options.
    ///
    /// # Errors
    ///
    /// As for [`nll_loss`](Self::nll_loss).
    #[track_caller]
    pub fn cross_entropy_with(
        &self,
        targets: &Tensor,
        options: &CrossEntropyOptions,
    ) -> Result<Tensor> {
        let call = Call::here("cross_entropy");
        // The lean form's loss is never of 16 bits.
        let is_narrow = matches!(raised(self.dtype()), DType::Bf16 | DType::F16);
        let is_tonnage = self.device().memory_profile() == MemoryProfile::Tonnage;
        if is_tonnage && !is_narrow && has_lean_form(self, options) {
            return lean(call, self, targets, options);
        }
        classes_of(call, self, targets, options)?;
        let log = softmax_along(call, self, class_axis(self).unwrap_or(0), true)?;
        nll(call, &log, targets, options)
    }

    /// The same number as [`cross_entropy`](Self::cross_entropy) for scores `[batch, classes]`, but
    /// nothing of their size is allocated before the backward: kept are the scores and one number
    /// for each row, and the backward makes one tensor, not two. For GPT-2's 50,257 classes that is a
    /// third of the memory. Scores of 16 bits are read as they are, with or without autocast; their loss
    /// has 32.
    ///
    /// # Errors
    ///
    /// If there are weights or more axes, and as for [`nll_loss`](Self::nll_loss).
    #[track_caller]
    pub fn cross_entropy_lean(
        &self,
        targets: &Tensor,
        options: &CrossEntropyOptions,
    ) -> Result<Tensor> {
        let call = Call::here("cross_entropy_lean");
        if !has_lean_form(self, options) {
            return Err(call
                .shape_error("the lean form takes rows of scores, without weights")
                .with_tensor("self", self)
                .help("reshape to [batch, classes], or use cross_entropy_with"));
        }
        lean(call, self, targets, options)
    }
}

#[cfg(test)]
mod tests {
    use super::classes::no_class;
    use super::*;
    use crate::Device;
    use crate::autograd::BackwardOptions;
    use crate::testing::{conformance, gradcheck};

    fn device() -> Device {
        Device::host("256 MiB").unwrap()
    }

    fn options() -> CrossEntropyOptions {
        CrossEntropyOptions::default()
    }

    const REDUCTIONS: [Reduction; 3] = [Reduction::None, Reduction::Mean, Reduction::Sum];

    #[test]
    fn cross_entropy_is_the_definition_with_weights_and_ignored_targets() -> Result<()> {
        let device = device();
        let x = Tensor::randn([6, 4], (&device, DType::F64))?;
        let targets = [1i64, 3, -100, 0, 0, 2];
        let class_weights = [0.5, 2.0, 1.0, 0.25];
        let scores = x.to_vec::<f64>()?;
        let loss_of = |row: usize, class: usize| {
            let scores = &scores[row * 4..][..4];
            scores.iter().map(|it| it.exp()).sum::<f64>().ln() - scores[class]
        };
        let classes = || {
            let each = targets.iter().enumerate();
            each.filter_map(|(row, it)| usize::try_from(*it).ok().map(|class| (row, class)))
        };
        let sum: f64 =
            classes().map(|(row, class)| class_weights[class] * loss_of(row, class)).sum();
        let total: f64 = classes().map(|(_, class)| class_weights[class]).sum();
        let plain: f64 = classes().map(|(row, class)| loss_of(row, class)).sum();
        let targets = Tensor::from_slice(&targets, [6], &device)?;
        let weight = Tensor::from_slice(&class_weights, [4], &device)?;
        let weighted = x.cross_entropy_with(&targets, &options().weight(weight))?;
        assert!((weighted.item::<f64>()? - sum / total).abs() < 1e-12);
        assert!((x.cross_entropy(&targets)?.item::<f64>()? - plain / 5.0).abs() < 1e-12);
        for reduction in REDUCTIONS {
            let options = options().reduction(reduction);
            let [a, b] = [
                x.cross_entropy_with(&targets, &options)?.to_vec::<f64>()?,
                x.cross_entropy_lean(&targets, &options)?.to_vec::<f64>()?,
            ];
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-12), "{reduction:?}");
        }
        Ok(())
    }

    #[test]
    fn classes_may_lie_in_the_middle_or_alone() -> Result<()> {
        let device = device();
        let x = Tensor::randn([2, 5, 3, 4], (&device, DType::F64))?;
        let targets = Tensor::randint(0, 5, [2, 3, 4], &device)?;
        let flat = x.permute(&[0, 2, 3, 1])?.reshape([24, 5])?;
        let expected = flat.cross_entropy(&targets.reshape([24])?)?.item::<f64>()?;
        assert!((x.cross_entropy(&targets)?.item::<f64>()? - expected).abs() < 1e-12);
        let one = Tensor::randn([5], &device)?;
        let target = Tensor::from_slice(&[2i64], (), &device)?;
        let loss = one.cross_entropy(&target)?.item::<f32>()?;
        assert!((loss + one.log_softmax(0)?.to_vec::<f32>()?[2]).abs() < 1e-6);
        Ok(())
    }

    #[test]
    fn a_target_that_is_no_class_is_named_at_the_next_synchronisation() -> Result<()> {
        let device = device();
        let x = Tensor::zeros([2, 3], &device)?;
        for wrong in [3i64, -1] {
            let targets = Tensor::from_slice(&[0, wrong], [2], &device)?;
            for lean in [false, true] {
                let loss = if lean {
                    x.cross_entropy_lean(&targets, &options())?
                } else {
                    x.cross_entropy(&targets)?
                };
                let error = loss.item::<f32>().unwrap_err().to_string();
                assert!(error.contains(&format!("target {wrong} at element 1")), "{error}");
            }
        }
        let targets = Tensor::zeros([3], (&device, DType::I64))?;
        let error = x.cross_entropy(&targets).unwrap_err().to_string();
        assert!(error.contains("one target for each element"), "{error}");
        assert!(x.cross_entropy(&x).is_err());
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        for reduction in REDUCTIONS {
            let options = options().reduction(reduction).ignore_index(1);
            gradcheck(&[&[4, 5]], |x| {
                let targets = Tensor::from_slice(&[0i64, 1, 4, 2], [4], x[0].device())?;
                x[0].cross_entropy_with(&targets, &options)
            })
            .unwrap();
            gradcheck(&[&[4, 5]], |x| {
                let targets = Tensor::from_slice(&[0i64, 1, 4, 2], [4], x[0].device())?;
                x[0].cross_entropy_lean(&targets, &options)
            })
            .unwrap();
            gradcheck(&[&[3, 4], &[3, 4]], |x| x[0].mse_loss(&x[1], reduction)).unwrap();
        }
        gradcheck(&[&[2, 3, 2]], |x| {
            let device = x[0].device();
            let targets = Tensor::from_slice(&[0i64, 1, 2, 2], [2, 2], device)?;
            let weight = Tensor::from_slice(&[0.5, 2.0, 1.5], [3], device)?;
            x[0].cross_entropy_with(&targets, &options().weight(weight))
        })
        .unwrap();
    }

    #[test]
    fn squared_errors_are_the_definition() -> Result<()> {
        let device = device();
        let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &device)?;
        let b = Tensor::from_slice(&[1.0f32, 4.0, 2.0], [3], &device)?;
        let loss = |reduction| a.mse_loss(&b, reduction)?.to_vec::<f32>();
        assert_eq!(loss(Reduction::None)?, [0.0, 4.0, 1.0]);
        assert_eq!(loss(Reduction::Sum)?, [5.0]);
        assert_eq!(loss(Reduction::Mean)?, [5.0 / 3.0]);
        let empty = Tensor::zeros([0, 3], &device)?;
        assert!(empty.mse_loss(&empty, Reduction::Mean)?.item::<f32>()?.is_nan());
        assert!(a.mse_loss(&b.view([3, 1])?, Reduction::Mean).is_err());
        Ok(())
    }

    conformance!(losses_of_every_type_and_reduction, |device| {
        let mut results = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
            let random = |shape: &[usize]| Tensor::randn(shape, device)?.to(dtype);
            for reduction in REDUCTIONS {
                let options = options().reduction(reduction).ignore_index(3);
                for classes in [5, 64, 1001, 9001, 50_304] {
                    let x = random(&[9, classes])?.requires_grad_(true)?;
                    let targets = Tensor::randint(0, 5, [9], device)?;
                    let lean = x.cross_entropy_lean(&targets, &options)?;
                    lean.sum()?.backward()?;
                    let full = x.cross_entropy_with(&targets.to(DType::I32)?, &options)?;
                    results.extend([lean, x.grad().unwrap()]);
                    full.sum()?.backward()?;
                    results.extend([full, x.grad().unwrap()]);
                    // Scores that nobody else has.
                    let lean = x.mul(0.5)?.cross_entropy_lean(&targets, &options)?;
                    lean.sum()?.backward()?;
                    results.extend([lean, x.grad().unwrap()]);
                }
                let weight = random(&[4])?.square()?;
                let options = options.weight(weight);
                let x = random(&[2, 4, 3, 8])?.requires_grad_(true)?;
                let targets = Tensor::randint(0, 4, [2, 3, 8], device)?;
                let full = x.cross_entropy_with(&targets, &options)?;
                full.sum()?.backward()?;
                results.extend([full, x.grad().unwrap()]);
                let [a, b] = [random(&[30, 7])?, random(&[7, 30])?];
                let a = a.requires_grad_(true)?;
                let square = a.mse_loss(&b.t()?, reduction)?;
                square.sum()?.backward()?;
                results.extend([square, a.grad().unwrap()]);
            }
        }
        Ok(results)
    });

    #[test]
    fn a_gpu_names_a_target_and_its_place() {
        let packed = |target: i64, place: i64| no_class((target << 32) | place, 7);
        assert_eq!(packed(9, 4), "target 9 at element 4 is none of the 7 classes");
        assert_eq!(packed(-1, 70_000), "target -1 at element 70000 is none of the 7 classes");
        assert!(packed(i64::from(i32::MAX), 0).contains("2147483647 or more"));
    }

    #[test]
    fn the_gradient_takes_the_place_of_scores_that_nobody_else_has() -> Result<()> {
        let device = device();
        let bytes = 64 * 1000 * 4;
        for (profile, is_kept, peak) in [
            (MemoryProfile::Bare, false, 2 * bytes),
            (MemoryProfile::Tonnage, false, bytes),
            (MemoryProfile::Tonnage, true, 2 * bytes),
        ] {
            device.set_memory_profile(profile);
            let x = Tensor::randn([64, 1000], (&device, DType::F32))?.requires_grad_(true)?;
            let targets = Tensor::randint(0, 1000, [64], &device)?;
            let expected = {
                let x = x.detach().requires_grad_(true)?;
                x.cross_entropy_lean(&targets, &options())?.backward()?;
                x.grad().unwrap().to_vec::<f32>()?
            };
            let scores = x.add(0.0)?;
            let loss = scores.cross_entropy_lean(&targets, &options())?;
            let kept = is_kept.then_some(scores);
            device.synchronize()?;
            device.memory().reset_peak_stats();
            let before = device.memory().allocated() - bytes;
            loss.backward()?;
            // The scores and their gradient, which becomes that of `x` as it is.
            let most = device.memory().max_allocated() - before;
            assert!((peak..peak + 4096).contains(&most), "{profile} {is_kept}: {most}");
            assert_eq!(x.grad().unwrap().to_vec::<f32>()?, expected);
            if let Some(kept) = kept {
                assert_eq!(kept.to_vec::<f32>()?, x.to_vec::<f32>()?);
            }
        }
        Ok(())
    }

    #[test]
    fn scores_that_are_read_again_stay() -> Result<()> {
        let device = device();
        device.set_memory_profile(MemoryProfile::Tonnage);
        let x = Tensor::randn([8, 100], (&device, DType::F32))?.requires_grad_(true)?;
        let targets = Tensor::randint(0, 100, [8], &device)?;
        let loss = x.add(0.0)?.cross_entropy(&targets)?;
        loss.backward_with(None, BackwardOptions::default().retain_graph(true))?;
        let once = x.grad().unwrap().to_vec::<f32>()?;
        loss.backward()?;
        let twice = x.grad().unwrap().to_vec::<f32>()?;
        assert!(once.iter().zip(&twice).all(|(once, twice)| 2.0 * once == *twice));
        // A view of them; and another operation that saved them.
        let scores = x.add(0.0)?;
        let (view, loss) = (scores.narrow(0, 0, 2)?.detach(), scores.cross_entropy(&targets)?);
        let both = loss.add(&scores.square()?.sum()?)?;
        drop(scores);
        both.backward()?;
        assert_eq!(view.to_vec::<f32>()?, x.to_vec::<f32>()?[..200]);
        Ok(())
    }

    #[test]
    fn the_loss_has_one_type_with_every_profile() -> Result<()> {
        let device = device();
        for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
            let x = Tensor::zeros([4, 5], (&device, dtype))?;
            let targets = Tensor::zeros([4], (&device, DType::I64))?;
            for profile in MemoryProfile::ALL {
                device.set_memory_profile(profile);
                assert_eq!(x.cross_entropy(&targets)?.dtype(), dtype, "{profile}");
                let wide = crate::amp::autocast(DType::Bf16, || x.cross_entropy(&targets))?.dtype();
                let expected = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
                assert_eq!(wide, expected, "{profile} {dtype}");
            }
        }
        Ok(())
    }

    conformance!(losses, |device| {
        let x = Tensor::ones([20, 30], device)?.requires_grad_(true)?;
        let targets = Tensor::zeros([20], (device, DType::I64))?;
        let loss = x.cross_entropy(&targets)?;
        let lean = x.cross_entropy_lean(&targets, &CrossEntropyOptions::default())?;
        let square = x.mse_loss(&x.detach(), Reduction::Mean)?;
        loss.add(&lean)?.add(&square)?.backward()?;
        Ok(vec![loss, lean, square, x.grad().unwrap()])
    });
}
