//! Linear layers with `relu` between them.

use crate::create::TensorOptions;
use crate::error::{Call, ErrorKind, Result};
use crate::nn::{Linear, Relu, Sequential};

/// Linear layers from each size to the next, with `relu` between them.
///
/// ```
/// use tonnage_tensor::models::mlp;
/// use tonnage_tensor::nn::Module;
/// use tonnage_tensor::{Device, Tensor};
///
/// let device = Device::dry("1 GiB")?;
/// let model = mlp(&[1024, 2048, 2048, 10], &device)?;
/// assert_eq!(model.num_parameters(), 6_316_042);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If there are fewer than two sizes, or if there is no memory.
#[track_caller]
pub fn mlp<'a>(sizes: &[usize], options: impl Into<TensorOptions<'a>>) -> Result<Sequential> {
    if sizes.len() < 2 {
        let error = Call::here("mlp").error(ErrorKind::Value, "a layer has two sizes");
        return Err(error.with("sizes", format_args!("{sizes:?}")));
    }
    let options = options.into();
    let mut model = Sequential::new();
    for (place, pair) in sizes.windows(2).enumerate() {
        if place > 0 {
            model = model.then(Relu);
        }
        model = model.then(Linear::new(pair[0], pair[1], options)?);
    }
    Ok(model)
}
