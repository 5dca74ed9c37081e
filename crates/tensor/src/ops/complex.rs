//! Complex numbers: conjugates, as a view, and distances from zero. Products are in `matmul.rs`.

use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::DType;
use crate::error::{Call, Result};
use crate::exec::cuda::Elementwise;
use crate::exec::{Args, Kernel, Operands, Plan, map1, map2};
use crate::number::Complex64;
use crate::tensor::Tensor;

struct ConjBackward;

impl Backward for ConjBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        grads.iter().map(|grad| grad.as_ref().map(Tensor::conj).transpose()).collect()
    }
}

impl Tensor {
    /// The conjugates: a view that shares the storage and costs nothing, as in PyTorch. Operations
    /// conjugate as they read, so `h.conj()?.transpose(-1, -2)?.matmul(&h)?` makes no copy. Real numbers
    /// are their own conjugates.
    ///
    /// # Errors
    ///
    /// If the graph has seen what it is a view of change in place.
    #[track_caller]
    pub fn conj(&self) -> Result<Tensor> {
        if self.dtype() != DType::Complex64 {
            return Ok(self.clone());
        }
        let view = self.alias_conj();
        record(Call::here("conj"), "ConjBackward", &[&view], &[self], || {
            Ok(Box::new(ConjBackward))
        })?;
        Ok(view)
    }
}

/// `output = |z|`.
struct Modulus;

impl Kernel for Modulus {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        map1::<Complex64, f32>(args.take(0), args.input(0), Complex64::abs);
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let kernel = Elementwise::new("modulus", "float", "y0 = hypotf(x0.re, x0.im);");
        kernel.inputs(&["complex"]).plan(on)
    }
}

/// `output = grad · z / |z|`, and zero at zero.
struct ModulusGrad;

impl Kernel for ModulusGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let inputs = [args.input(0), args.input(1)];
        map2::<f32, Complex64, Complex64>(args.take(0), inputs, |grad, z| {
            let modulus = z.abs();
            if modulus == 0.0 {
                return Complex64::default();
            }
            Complex64::new(grad * (z.re / modulus), grad * (z.im / modulus))
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let line = "float m = hypotf(x1.re, x1.im); \
                    y0 = m == 0 ? complex() : complex(x0 * (x1.re / m), x0 * (x1.im / m));";
        Elementwise::new("modulus_grad", "complex", line).inputs(&["float", "complex"]).plan(on)
    }
}

struct ModulusBackward {
    call: Call,
    z: Saved,
}

impl Backward for ModulusBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let z = self.z.unpack()?;
        let output = Tensor::uninit(self.call, z.shape().clone(), z.dtype(), z.device())?;
        self.call.launch(ModulusGrad, &[&output], &[grad, &z])?;
        Ok(Grads::from_iter([Some(output)]))
    }
}

/// The distance of complex numbers from zero: what [`Tensor::abs`] is for them.
#[track_caller]
pub(super) fn abs(call: Call, z: &Tensor) -> Result<Tensor> {
    let output = Tensor::uninit(call, z.shape().clone(), DType::F32, z.device())?;
    call.launch(Modulus, &[&output], &[z])?;
    record(call, "AbsBackward", &[&output], &[z], || {
        Ok(Box::new(ModulusBackward { call, z: Saved::input(call, z)? }))
    })?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{complex_gradcheck, conformance};

    fn device() -> Device {
        Device::host("256 MiB").unwrap()
    }

    fn random(shape: &[usize], device: &Device) -> Result<Tensor> {
        Tensor::randn(shape, (device, DType::Complex64))
    }

    #[test]
    fn every_reader_of_a_conjugate_view_sees_conjugates() -> Result<()> {
        let device = device();
        let z = random(&[20, 30], &device)?;
        let plain = z.to_vec::<Complex64>()?;
        let conjugates: Vec<_> = plain.iter().map(|it| it.conj()).collect();
        let view = z.conj()?;
        assert!(view.is_conj() && view.shares_storage_with(&z));
        assert_eq!(view.to_vec::<Complex64>()?, conjugates);
        assert_eq!(view.copy()?.to_vec::<Complex64>()?, conjugates);
        assert_eq!(view.t()?.copy()?.t()?.to_vec::<Complex64>()?, conjugates);
        assert_eq!(view.conj()?.to_vec::<Complex64>()?, plain);
        assert_eq!(view.mul(2.0)?.div(2.0)?.to_vec::<Complex64>()?, conjugates);
        let [sums, of_view] = [z.sum_dim(&[0], false)?, view.sum_dim(&[0], false)?];
        let close = |(a, b): (&Complex64, &Complex64)| (a.conj() - *b).abs() < 1e-5;
        assert!(sums.to_vec()?.iter().zip(&of_view.to_vec()?).all(close));
        assert!(view.mul_(2.0).unwrap_err().to_string().contains("cannot be written"));
        let real = Tensor::ones([2], &device)?;
        assert!(real.conj()?.is(&real));
        Ok(())
    }

    #[test]
    fn a_gram_matrix_is_hermitian_and_takes_the_memory_of_its_result_only() -> Result<()> {
        let device = device();
        let h = random(&[7, 16, 4], &device)?;
        let before = device.memory().allocated();
        let gram = h.conj()?.transpose(-1, -2)?.matmul(&h)?;
        assert_eq!(device.memory().max_allocated() - before, 1024);
        let adjoint = gram.conj()?.transpose(-1, -2)?.copy()?.to_vec::<Complex64>()?;
        let close = |(a, b): (&Complex64, &Complex64)| (*a - *b).abs() < 1e-4;
        assert!(gram.to_vec()?.iter().zip(&adjoint).all(close));
        let h = h.to_vec::<Complex64>()?;
        let norm: f32 = (0..16).map(|row| h[row * 4].abs().powi(2)).sum();
        assert!((gram.to_vec::<Complex64>()?[0].re - norm).abs() < 1e-4);
        Ok(())
    }

    #[test]
    fn gradients_are_right() -> Result<()> {
        complex_gradcheck(&[4, 3], (1e-2, 2e-2), |z| {
            let gram = z.conj()?.transpose(-1, -2)?.matmul(z)?;
            gram.add(&z.narrow(0, 0, 3)?)?.abs()?.sum()
        })
    }

    #[test]
    fn a_conjugate_gradient_becomes_a_plain_one_in_its_leaf() -> Result<()> {
        let device = device();
        let z = random(&[5], &device)?.requires_grad_(true)?;
        let i = Complex64::new(0.0, 1.0);
        for round in [1.0, 2.0] {
            z.conj()?.mul(i)?.abs()?.sum()?.backward()?;
            let gradient = z.grad().unwrap();
            assert!(!gradient.is_conj());
            let sign = z.to_vec::<Complex64>()?[0];
            let expected =
                Complex64::new(round * sign.re / sign.abs(), round * sign.im / sign.abs());
            assert!((gradient.to_vec::<Complex64>()?[0] - expected).abs() < 1e-5);
        }
        Ok(())
    }

    conformance!(complex_numbers, |device| {
        let z = Tensor::randn([8, 6, 4], (device, DType::Complex64))?.requires_grad_(true)?;
        let gram = z.conj()?.transpose(1, 2)?.matmul(&z)?;
        gram.abs()?.sum()?.backward()?;
        Ok(vec![gram, z.grad().unwrap()])
    });

    conformance!(moduli, |device| {
        let z = Tensor::randn([8, 6], (device, DType::Complex64))?.requires_grad_(true)?;
        let y = z.t()?.conj()?.abs()?;
        y.sum()?.backward()?;
        Ok(vec![y, z.grad().unwrap()])
    });
}
