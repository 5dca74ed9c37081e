//! First values of parameters: PyTorch's rules, with the device's counter-based numbers.

use crate::autograd::no_grad;
use crate::error::{Call, Result};
use crate::random::{Distribution, Draw, Random};
use crate::tensor::Tensor;

/// Overwrites a tensor with random numbers, evenly over `low ≤ x < high`, outside the graph.
///
/// # Errors
///
/// If it is no float.
#[track_caller]
pub fn uniform_(tensor: &Tensor, low: f64, high: f64) -> Result<()> {
    fill(Call::here("uniform_"), tensor, Distribution::Uniform)?;
    no_grad(|| tensor.mul_(high - low).and_then(|()| tensor.add_(low)))
}

/// Overwrites a tensor with random numbers of this mean and standard deviation, outside the graph.
///
/// # Errors
///
/// If it is no float.
#[track_caller]
pub fn normal_(tensor: &Tensor, mean: f64, deviation: f64) -> Result<()> {
    fill(Call::here("normal_"), tensor, Distribution::Normal)?;
    no_grad(|| tensor.mul_(deviation).and_then(|()| tensor.add_(mean)))
}

/// Kaiming's uniform rule as PyTorch's layers use it, with a gain of `√(1/3)`: within `±1/√fan_in`,
/// where `fan_in` is how many numbers each result sums.
///
/// # Errors
///
/// If it is no float.
#[track_caller]
pub fn kaiming_uniform_(tensor: &Tensor, fan_in: usize) -> Result<()> {
    let bound = fan_in_bound(fan_in);
    uniform_(tensor, -bound, bound)
}

/// `1/√fan_in`: where PyTorch's layers begin, their biases too.
pub(super) fn fan_in_bound(fan_in: usize) -> f64 {
    if fan_in == 0 { 0.0 } else { (fan_in as f64).sqrt().recip() }
}

/// Kaiming's normal rule for layers before a `relu`: a deviation of `√(2/fan)`, where `fan` is how
/// many numbers each result sums, or how many results each number goes to.
///
/// # Errors
///
/// If it is no float.
#[track_caller]
pub fn kaiming_normal_(tensor: &Tensor, fan: usize) -> Result<()> {
    normal_(tensor, 0.0, std::f64::consts::SQRT_2 * fan_in_bound(fan))
}

/// Xavier's uniform rule: within `±√(6/(fan_in + fan_out))`.
///
/// # Errors
///
/// If it is no float.
#[track_caller]
pub fn xavier_uniform_(tensor: &Tensor, fan_in: usize, fan_out: usize) -> Result<()> {
    let bound = 6f64.sqrt() * fan_in_bound(fan_in.saturating_add(fan_out));
    uniform_(tensor, -bound, bound)
}

#[track_caller]
fn fill(call: Call, tensor: &Tensor, distribution: Distribution) -> Result<()> {
    if !tensor.dtype().is_float() {
        let error = call.dtype_error("random fractions are floats");
        return Err(error.with_tensor("self", tensor));
    }
    let draw = Draw::new(call, tensor.device())?;
    call.launch(Random { draw: draw.state, distribution }, &[tensor], &draw.inputs())?;
    tensor.storage().written_by(call);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn numbers_lie_where_they_should_and_depend_on_the_seed_alone() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let weight = Tensor::empty([100, 64], &device)?.requires_grad_(true)?;
        device.manual_seed(3);
        kaiming_uniform_(&weight, 64)?;
        let numbers = weight.to_vec::<f32>()?;
        assert!(numbers.iter().all(|it| it.abs() <= 0.125));
        assert!(numbers.iter().any(|it| *it > 0.12) && numbers.iter().any(|it| *it < -0.12));
        device.manual_seed(3);
        kaiming_uniform_(&weight, 64)?;
        assert_eq!(weight.to_vec::<f32>()?, numbers);
        normal_(&weight, 5.0, 0.1)?;
        let mean = weight.mean()?.item::<f64>()?;
        assert!((mean - 5.0).abs() < 0.01, "{mean}");
        assert!(uniform_(&Tensor::arange(0, 3, 1, &device)?, 0.0, 1.0).is_err());
        Ok(())
    }
}
