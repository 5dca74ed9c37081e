//! Attention with several heads as a module.

use super::init::xavier_uniform_;
use super::linear::Linear;
use super::module::{Module, Visitor};
use crate::autograd::no_grad;
use crate::create::TensorOptions;
use crate::error::{Call, ErrorKind, Result};
use crate::ops::AttentionOptions;
use crate::tensor::Tensor;

/// Attention with several heads: PyTorch's module of this name, with its parameters, for inputs
/// `[batch, rows, width]` (`batch_first=True` there). Weights of attention are never in memory, so
/// none are returned and none are dropped.
///
/// ```
/// use tonnage_tensor::nn::{Module, MultiheadAttention};
/// use tonnage_tensor::{Device, Tensor};
///
/// let device = Device::host("64 MiB")?;
/// let attention = MultiheadAttention::new(32, 4, &device)?;
/// let x = Tensor::randn([2, 10, 32], &device)?;
/// assert_eq!(attention.forward(&x)?.shape(), x.shape());
/// let memory = Tensor::randn([2, 20, 32], &device)?;
/// assert_eq!(attention.attend(&x, &memory, &memory)?.shape(), x.shape());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiheadAttention {
    /// For queries, keys and values: `[3 · width, width]`.
    pub in_proj_weight: Tensor,
    /// `[3 · width]`.
    pub in_proj_bias: Tensor,
    /// What joins the heads.
    pub out_proj: Linear,
    heads: usize,
    options: AttentionOptions,
}

impl MultiheadAttention {
    /// Of this width, in so many heads, with PyTorch's first values.
    ///
    /// # Errors
    ///
    /// If the width cannot be split into the heads, or if there is no memory.
    #[track_caller]
    pub fn new<'a>(
        width: usize,
        heads: usize,
        options: impl Into<TensorOptions<'a>>,
    ) -> Result<Self> {
        check_heads(Call::here("MultiheadAttention"), width, heads)?;
        let options = options.into();
        let in_proj_weight = Tensor::empty([3 * width, width], options)?.requires_grad_(true)?;
        let in_proj_bias = Tensor::zeros([3 * width], options)?.requires_grad_(true)?;
        let out_proj = Linear::new(width, width, options)?;
        xavier_uniform_(&in_proj_weight, width, 3 * width)?;
        if let Some(bias) = &out_proj.bias {
            no_grad(|| bias.zero_())?;
        }
        let options = AttentionOptions::default();
        Ok(Self { in_proj_weight, in_proj_bias, out_proj, heads, options })
    }

    /// Query i sees only the keys up to i.
    #[must_use]
    pub fn causal(mut self, on: bool) -> Self {
        self.options = self.options.causal(on);
        self
    }

    /// Queries from one tensor, keys and values from others.
    ///
    /// # Errors
    ///
    /// If shapes or types do not fit, or if there is no memory.
    #[track_caller]
    pub fn attend(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let width = self.in_proj_bias.numel() / 3;
        let projected = |x: &Tensor, part: usize| {
            let weight = self.in_proj_weight.narrow(0, part * width, width)?;
            let bias = self.in_proj_bias.narrow(0, part * width, width)?;
            split_heads(&x.linear(&weight, Some(&bias))?, self.heads)
        };
        let (query, key, value) = (projected(query, 0)?, projected(key, 1)?, projected(value, 2)?);
        self.joined(&query, &key, &value)
    }

    #[track_caller]
    fn joined(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let attended = query.scaled_dot_product_attention(key, value, self.options)?;
        self.out_proj.forward(&join_heads(&attended)?)
    }
}

impl Module for MultiheadAttention {
    /// Each row attends to all rows.
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let all = input.linear(&self.in_proj_weight, Some(&self.in_proj_bias))?;
        let [query, key, value] = split_three(&all, self.heads)?;
        self.joined(&query, &key, &value)
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.parameter("in_proj_weight", &self.in_proj_weight);
        visitor.parameter("in_proj_bias", &self.in_proj_bias);
        visitor.module("out_proj", &self.out_proj);
    }
}

/// Refuses widths that are not so many heads.
pub(crate) fn check_heads(call: Call, width: usize, heads: usize) -> Result<()> {
    if heads == 0 || !width.is_multiple_of(heads) {
        let what = format!("a width of {width} is not {heads} equal heads");
        return Err(call.error(ErrorKind::Value, what));
    }
    Ok(())
}

/// `[batch, rows, heads · width]` as `[batch, heads, rows, width]`.
#[track_caller]
fn split_heads(x: &Tensor, heads: usize) -> Result<Tensor> {
    let &[batch, rows, width] = &x.shape()[..] else { return Err(not_rows(x)) };
    x.view([batch, rows, heads, width / heads])?.transpose(1, 2)
}

/// Queries, keys and values, which lie beside each other in each row, by heads.
#[track_caller]
pub(crate) fn split_three(x: &Tensor, heads: usize) -> Result<[Tensor; 3]> {
    let &[batch, rows, width] = &x.shape()[..] else { return Err(not_rows(x)) };
    let parts = x.view([batch, rows, 3, heads, width / 3 / heads])?.permute(&[2, 0, 3, 1, 4])?;
    Ok([parts.select(0, 0)?, parts.select(0, 1)?, parts.select(0, 2)?])
}

/// `[batch, heads, rows, width]` as `[batch, rows, heads · width]`.
#[track_caller]
pub(crate) fn join_heads(x: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)?.flatten(2, 3)
}

#[track_caller]
fn not_rows(x: &Tensor) -> crate::error::Error {
    let error = Call::here("attention").shape_error("inputs have three axes: batch, row, width");
    error.with_tensor("self", x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{conformance, gradcheck};
    use crate::{DType, Device};

    /// Softmax of products, with the matrix of weights in memory.
    fn by_definition(module: &MultiheadAttention, x: &Tensor, causal: bool) -> Result<Tensor> {
        let all = x.linear(&module.in_proj_weight, Some(&module.in_proj_bias))?;
        let parts = all.split(all.shape()[2] / 3, 2)?;
        let [q, k, v] = [0, 1, 2].map(|part| split_heads(&parts[part].contiguous()?, module.heads));
        let (q, k, v) = (q?, k?, v?);
        let width = q.shape()[3] as f64;
        let mut scores = q.matmul(&k.transpose(-1, -2)?)?.div(width.sqrt())?;
        if causal {
            let ones = Tensor::ones([x.shape()[1], x.shape()[1]], (x.device(), x.dtype()))?;
            scores = scores.masked_fill(&ones.triu(1)?.gt(0.0)?, f64::NEG_INFINITY)?;
        }
        let joined = scores.softmax(-1)?.matmul(&v)?.transpose(1, 2)?.reshape(x.shape())?;
        module.out_proj.forward(&joined)
    }

    #[test]
    fn it_is_the_definition() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        for causal in [false, true] {
            let module = MultiheadAttention::new(12, 3, (&device, DType::F64))?.causal(causal);
            let x = Tensor::randn([2, 7, 12], (&device, DType::F64))?;
            let expected = by_definition(&module, &x, causal)?.to_vec::<f64>()?;
            for y in [module.forward(&x)?, module.attend(&x, &x, &x)?] {
                let y = y.to_vec::<f64>()?;
                let close = y.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-12);
                assert!(close, "causal: {causal}");
            }
        }
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        gradcheck(&[&[2, 3, 4], &[12, 4], &[12], &[4, 4], &[4]], |x| {
            let out_proj = Linear { weight: x[3].clone(), bias: Some(x[4].clone()) };
            let module = MultiheadAttention {
                in_proj_weight: x[1].clone(),
                in_proj_bias: x[2].clone(),
                out_proj,
                heads: 2,
                options: AttentionOptions::default().causal(true),
            };
            module.forward(&x[0])
        })
        .unwrap();
    }

    #[test]
    fn names_are_pytorch_s_and_odd_widths_are_refused() -> Result<()> {
        let device = Device::dry("64 MiB").unwrap();
        let module = MultiheadAttention::new(8, 2, &device)?;
        let names: Vec<_> = module.named_parameters().into_iter().map(|(name, _)| name).collect();
        let expected = ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"];
        assert_eq!(names, expected);
        let error = MultiheadAttention::new(8, 3, &device).unwrap_err().to_string();
        assert!(error.contains("a width of 8 is not 3 equal heads"), "{error}");
        let error = module.forward(&Tensor::zeros([3, 8], &device)?).unwrap_err().to_string();
        assert!(error.contains("batch, row, width"), "{error}");
        Ok(())
    }

    conformance!(heads, |device| {
        let module = MultiheadAttention::new(32, 4, device)?;
        let x = Tensor::ones([2, 10, 32], device)?;
        let y = module.forward(&x)?;
        y.sum()?.backward()?;
        Ok(vec![y, module.in_proj_weight.grad().unwrap()])
    });
}
