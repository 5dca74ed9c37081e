//! The linear layer: `x · weightᵀ + bias`, as one operation.

use super::matmul::{product_of, product_with_bias};
use crate::amp::lower;
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::error::{Call, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;

struct LinearBackward {
    call: Call,
    /// For the weight's gradient.
    x: Option<Saved>,
    /// For the input's gradient.
    weight: Option<Saved>,
    has_bias: bool,
    shape: Shape,
}

impl LinearBackward {
    fn grad_x(&self, grad: &Tensor) -> Result<Option<Tensor>> {
        let Some(weight) = &self.weight else { return Ok(None) };
        let flat = product_of(self.call, grad, &weight.unpack()?, [false, true])?;
        flat.view(&self.shape).map(Some)
    }

    fn grad_weight(&self, grad: &Tensor) -> Result<Option<Tensor>> {
        let Some(x) = &self.x else { return Ok(None) };
        let x = as_rows(&x.unpack()?)?;
        product_of(self.call, &grad.t()?, &x, [false, true]).map(Some)
    }
}

impl Backward for LinearBackward {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok((0..3).map(|_| None).collect()) };
        let grad = as_rows(grad)?;
        let mut back = Grads::new();
        if self.has_bias {
            // PyTorch's `addmm`: the input, then the weight; the engine sums the bias's.
            let x = self.grad_x(&grad)?;
            let weight = self.grad_weight(&grad)?;
            back.extend([x, weight, needs.input(2).then_some(grad)]);
        } else {
            // PyTorch's `mm`: the weight first.
            let weight = self.grad_weight(&grad)?;
            back.extend([self.grad_x(&grad)?, weight]);
        }
        Ok(back)
    }
}

/// All axes but the last as one.
fn as_rows(x: &Tensor) -> Result<Tensor> {
    let width = x.shape()[x.dim() - 1];
    let rows = x.shape()[..x.dim() - 1].iter().product();
    if x.dim() == 2 { Ok(x.clone()) } else { x.reshape([rows, width]) }
}

impl Tensor {
    /// `self · weightᵀ + bias` over the last axis: `self` is `[…, in]`, `weight` `[out, in]`,
    /// `bias` `[out]`.
    ///
    /// # Errors
    ///
    /// If sizes or element types do not fit, or if there is no memory.
    #[track_caller]
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let x = &lower(self)?;
        let weight = &lower(weight)?;
        let bias = bias.map(lower).transpose()?;
        x.linear_in(Call::here("linear"), weight, bias.as_ref())
    }

    /// The same, whatever autocast says.
    #[track_caller]
    fn linear_in(&self, call: Call, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        call.check_products(self, weight)?;
        bias.map_or(Ok(()), |bias| call.check_products(self, bias))?;
        let fits = self.dim() >= 1
            && weight.dim() == 2
            && self.shape()[self.dim() - 1] == weight.shape()[1]
            && bias.is_none_or(|bias| bias.shape()[..] == weight.shape()[..1]);
        if !fits {
            let error = call
                .shape_error("the sizes do not fit")
                .with_tensor("self", self)
                .with_tensor("weight", weight);
            let error = match bias {
                Some(bias) => error.with_tensor("bias", bias),
                None => error,
            };
            return Err(error.help("self is […, in], weight [out, in], bias [out]"));
        }
        let off = crate::autograd::no_grad_guard();
        let rows = as_rows(self)?;
        let flat = product_with_bias(call, &rows, &weight.t()?, [false, false], bias)?;
        let sizes = self.shape()[..self.dim() - 1].iter().copied().chain([weight.shape()[0]]);
        let shape = Shape::from_iter(sizes);
        let output = flat.into_shape(call, shape)?;
        drop(off);
        let inputs: &[&Tensor] = match bias {
            Some(bias) => &[self, weight, bias],
            None => &[self, weight],
        };
        record(call, "LinearBackward", &[&output], inputs, || {
            let save = |tensor: &Tensor, wanted: bool| {
                wanted.then(|| Saved::input(call, tensor)).transpose()
            };
            Ok(Box::new(LinearBackward {
                call,
                x: save(self, weight.requires_grad())?,
                weight: save(weight, self.requires_grad())?,
                has_bias: bias.is_some(),
                shape: self.shape().clone(),
            }))
        })?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    #[test]
    fn it_is_a_product_and_a_sum() -> Result<()> {
        let device = Device::host("256 MiB").unwrap();
        let x = Tensor::randn([5, 4, 3], &device)?;
        let (weight, bias) = (Tensor::randn([2, 3], &device)?, Tensor::randn([2], &device)?);
        let expected = x.matmul(&weight.t()?)?.add(&bias)?.to_vec::<f32>()?;
        let y = x.linear(&weight, Some(&bias))?;
        assert_eq!(y.shape()[..], [5, 4, 2]);
        let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
        assert!(y.to_vec::<f32>()?.iter().zip(&expected).all(close));
        assert!(x.linear(&bias, None).unwrap_err().to_string().contains("weight [out, in]"));
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        gradcheck(&[&[4, 3], &[2, 3], &[2]], |x| x[0].linear(&x[1], Some(&x[2]))).unwrap();
        gradcheck(&[&[2, 4, 3], &[2, 3], &[2]], |x| x[0].linear(&x[1], Some(&x[2]))).unwrap();
        gradcheck(&[&[2, 4, 3], &[2, 3]], |x| x[0].linear(&x[1], None)).unwrap();
        gradcheck(&[&[3], &[2, 3]], |x| x[0].linear(&x[1], None)).unwrap();
    }

    conformance!(layers, |device| {
        let x = Tensor::ones([6, 20, 30], device)?;
        let weight = Tensor::ones([40, 30], device)?.requires_grad_(true)?;
        let bias = Tensor::ones([40], device)?.requires_grad_(true)?;
        let y = x.linear(&weight, Some(&bias))?.relu()?;
        y.sum()?.backward()?;
        Ok(vec![y, weight.grad().unwrap(), bias.grad().unwrap()])
    });
}
