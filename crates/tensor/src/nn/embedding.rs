//! The embedding as a module: a table whose rows are looked up.

use super::init::normal_;
use super::module::{Module, Visitor};
use crate::autograd::no_grad;
use crate::create::TensorOptions;
use crate::error::{Call, ErrorKind, Result};
use crate::tensor::Tensor;

/// A row of numbers for each integer.
///
/// ```
/// use tonnage_tensor::nn::{Embedding, Module};
/// use tonnage_tensor::{Device, Tensor};
///
/// let device = Device::host("64 MiB")?;
/// let table = Embedding::new(100, 16, &device)?;
/// let tokens = Tensor::randint(0, 100, [8, 32], &device)?;
/// assert_eq!(table.forward(&tokens)?.shape()[..], [8, 32, 16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[rows, width]`.
    pub weight: Tensor,
    padding: Option<usize>,
}

impl Embedding {
    /// So many rows of so many numbers, normally distributed as in PyTorch.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    #[track_caller]
    pub fn new<'a>(
        rows: usize,
        width: usize,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        let weight = Tensor::empty([rows, width], options)?.requires_grad_(true)?;
        normal_(&weight, 0.0, 1.0)?;
        Ok(Self { weight, padding: None })
    }

    /// With a row that is zero and stays so: it collects no gradient.
    ///
    /// # Errors
    ///
    /// If there is no such row.
    #[track_caller]
    pub fn padding(mut self, row: usize) -> Result<Self> {
        if row >= self.weight.shape()[0] {
            let error = Call::here("padding").error(ErrorKind::Value, format!("no row {row}"));
            return Err(error.with_tensor("weight", &self.weight));
        }
        no_grad(|| self.weight.select(0, row)?.zero_())?;
        self.padding = Some(row);
        Ok(self)
    }
}

impl Module for Embedding {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.embedding(&self.weight, self.padding)
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.parameter("weight", &self.weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn the_row_for_padding_is_zero_and_collects_nothing() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let table = Embedding::new(4, 3, &device)?.padding(1)?;
        let tokens = Tensor::from_slice(&[0i64, 1, 3], [3], &device)?;
        let rows = table.forward(&tokens)?;
        assert_eq!(rows.to_vec::<f32>()?[3..6], [0.0; 3]);
        rows.sum()?.backward()?;
        let gradient = table.weight.grad().unwrap().to_vec::<f32>()?;
        assert_eq!(gradient, [1., 1., 1., 0., 0., 0., 0., 0., 0., 1., 1., 1.]);
        assert!(table.padding(4).unwrap_err().to_string().contains("no row 4"));
        Ok(())
    }
}
