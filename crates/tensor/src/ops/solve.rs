//! Linear equations with Hermitian positive definite matrices, in batches, by Cholesky's decomposition.
//!
//! `A·X = B` with `A = L·Lᴴ`. Kept for the backward are L and X; A and B are not.

use std::ops::{Add, Div, Mul, Sub};
use std::sync::Mutex;

use tonnage_device::cuda::{Arguments, Extent};

use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{DType, Stored, dispatch_among};
use crate::error::{Call, Result};
use crate::exec::cuda::{Launch, Program, stored};
use crate::exec::{Args, Kernel, Operand, Operands, Plan, rows};
use crate::number::Complex64;
use crate::shape::{Shape, broadcast};
use crate::tensor::Tensor;

/// Numbers in which equations are solved.
trait Field:
    Stored + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    fn conjugate(self) -> Self;
    /// The root of a pivot, a real number; none if it is not positive.
    fn root(self) -> Option<Self>;
    fn half(self) -> Self;
}

macro_rules! real_field {
    ($($type:ty),*) => {$(
        impl Field for $type {
            fn conjugate(self) -> Self {
                self
            }
            fn root(self) -> Option<Self> {
                (self > 0.0 && self.is_finite()).then(|| self.sqrt())
            }
            fn half(self) -> Self {
                0.5 * self
            }
        }
    )*};
}

real_field!(f32, f64);

impl Field for Complex64 {
    fn conjugate(self) -> Self {
        self.conj()
    }
    fn root(self) -> Option<Self> {
        self.re.root().map(|root| Self::new(root, 0.0))
    }
    fn half(self) -> Self {
        Self::new(0.5 * self.re, 0.5 * self.im)
    }
}

/// Runs `$code` with `$T` as the type of elements that have equations.
macro_rules! dispatch_field {
    ($dtype:expr, $T:ident => $code:expr) => {
        dispatch_among!($dtype, $T: [F32 f32, F64 f64, Complex64 Complex64] => $code,
            else return Err(format!("no equations of {}", $dtype)))
    };
}

/// `output = L` with `A = L·Lᴴ`, from the lower triangle of each matrix.
struct Cholesky {
    size: usize,
}

impl Kernel for Cholesky {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (a, size) = (args.input(0), self.size);
        let area = size * size;
        // The first matrix of the batch that fails, whichever thread finds it.
        let failed: Mutex<Option<(usize, usize)>> = Mutex::new(None);
        dispatch_field!(args.output_dtype(0), T => {
            rows::<T>(args.take(0), area, &|matrix, lower| {
                let mut scratch = Vec::new();
                lower.copy_from_slice(a.chunk(matrix * area..(matrix + 1) * area, &mut scratch));
                if let Err(pivot) = decompose(lower, size) {
                    let mut failed =
                        failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    let first = failed.is_none_or(|(other, _)| matrix < other);
                    if first {
                        *failed = Some((matrix, pivot));
                    }
                }
            });
        });
        match failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            None => Ok(()),
            Some((matrix, pivot)) => Err(not_definite(matrix, pivot)),
        }
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (lower, size) = (&on.outputs[0], self.size);
        if lower.layout.numel() == 0 {
            return Plan::nothing();
        }
        // A warp finds a small matrix's columns.
        let threads = if size <= 64 { 32 } else { 256 };
        let mut arguments = views(on.inputs);
        arguments.push(lower.first());
        arguments.push(size as i64);
        let matrices = lower.layout.numel() / (size * size);
        let launch = launch("cholesky", on, (matrices, threads), arguments);
        launch.complains(move |at| not_definite(at as usize / size, at as usize % size)).into()
    }
}

fn not_definite(matrix: usize, pivot: usize) -> String {
    format!("matrix {matrix} of the batch is not positive definite: pivot {pivot} is not positive")
}

/// Where batches of matrices lie, as programs for GPUs have it: address, then strides in elements.
fn views(inputs: &[Operand]) -> Arguments {
    let mut arguments = Arguments::new();
    for input in inputs {
        let strides = input.layout.strides().iter().map(|it| *it as u64);
        let words = std::iter::once(input.first()).chain(strides);
        arguments.push_bytes(&words.flat_map(u64::to_ne_bytes).collect::<Vec<u8>>());
    }
    arguments
}

/// One of the programs of this file for a GPU: so many blocks of so many threads. More blocks than a grid can have are
/// refused at the launch.
fn launch(
    name: &'static str,
    on: Operands<'_>,
    (blocks, threads): (usize, u32),
    arguments: Arguments,
) -> Launch {
    let conj = |place: usize| on.inputs.get(place).is_some_and(|it| it.conj);
    let constants: [(&str, &dyn std::fmt::Display); 4] = [
        ("T", &stored(on.outputs[0].dtype)),
        ("THREADS", &threads),
        ("CONJ0", &conj(0)),
        ("CONJ1", &conj(1)),
    ];
    let program = Program::new(name, include_str!("solve.cu"), &constants);
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    Launch::new(program, Extent::line(blocks, threads), arguments)
}

/// Replaces a matrix by its lower factor, row by row; or says which pivot is not positive.
fn decompose<T: Field>(a: &mut [T], size: usize) -> Result<(), usize> {
    for row in 0..size {
        for column in 0..=row {
            let products =
                (0..column).map(|it| a[row * size + it] * a[column * size + it].conjugate());
            let rest = products.fold(a[row * size + column], |rest, it| rest - it);
            a[row * size + column] = if row == column {
                rest.root().ok_or(row)?
            } else {
                rest / a[column * size + column]
            };
        }
        a[row * size + row + 1..(row + 1) * size].fill(T::default());
    }
    Ok(())
}

/// `output = (L·Lᴴ)⁻¹·B`. Inputs: L, B.
struct Substitute {
    size: usize,
    /// Columns of B.
    width: usize,
}

impl Kernel for Substitute {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (lower, b) = (args.input(0), args.input(1));
        let Self { size, width } = *self;
        let area = size * size;
        dispatch_field!(args.output_dtype(0), T => {
            rows::<T>(args.take(0), size * width, &|matrix, x| {
                let (mut for_lower, mut for_b) = (Vec::new(), Vec::new());
                let lower = lower.chunk(matrix * area..(matrix + 1) * area, &mut for_lower);
                let range = matrix * size * width..(matrix + 1) * size * width;
                x.copy_from_slice(b.chunk::<T>(range, &mut for_b));
                substitute(lower, x, size, width);
            });
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let x = &on.outputs[0];
        if x.layout.numel() == 0 {
            return Plan::nothing();
        }
        let columns = x.layout.numel() / self.size;
        let mut arguments = views(on.inputs);
        arguments.push(x.first());
        [self.size, self.width, columns].iter().for_each(|it| arguments.push(*it as i64));
        // A warp has a column.
        launch("substitute", on, (columns.div_ceil(4), 128), arguments).into()
    }
}

/// Forward with L, then backward with its adjoint; all columns side by side.
fn substitute<T: Field>(lower: &[T], x: &mut [T], size: usize, width: usize) {
    for row in 0..size {
        for other in 0..row {
            subtract(x, (row, other), lower[row * size + other], width);
        }
        divide(x, row, lower[row * size + row], width);
    }
    for row in (0..size).rev() {
        for other in row + 1..size {
            subtract(x, (row, other), lower[other * size + row].conjugate(), width);
        }
        divide(x, row, lower[row * size + row], width);
    }
}

/// Takes `factor` times another row off a row.
fn subtract<T: Field>(x: &mut [T], (row, other): (usize, usize), factor: T, width: usize) {
    for column in 0..width {
        x[row * width + column] = x[row * width + column] - factor * x[other * width + column];
    }
}

fn divide<T: Field>(x: &mut [T], row: usize, by: T, width: usize) {
    x[row * width..][..width].iter_mut().for_each(|it| *it = *it / by);
}

/// `output = -(G·Xᴴ + X·Gᴴ) / 2`. Inputs: G, X.
struct HermitianGrad {
    size: usize,
    width: usize,
}

impl Kernel for HermitianGrad {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (g, x) = (args.input(0), args.input(1));
        let Self { size, width } = *self;
        dispatch_field!(args.output_dtype(0), T => {
            rows::<T>(args.take(0), size * size, &|matrix, to| {
                let (mut for_g, mut for_x) = (Vec::new(), Vec::new());
                let range = matrix * size * width..(matrix + 1) * size * width;
                let g = g.chunk::<T>(range.clone(), &mut for_g);
                let x = x.chunk::<T>(range, &mut for_x);
                let dot = |a: &[T], b: &[T]| {
                    let products = a.iter().zip(b).map(|(a, b)| *a * b.conjugate());
                    products.fold(T::default(), |sum, it| sum - it)
                };
                for (row, column) in (0..size).flat_map(|row| (0..size).map(move |it| (row, it))) {
                    let [g, x] = [g, x].map(|it| {
                        [row, column].map(|line| &it[line * width..][..width])
                    });
                    to[row * size + column] = (dot(g[0], x[1]) + dot(x[0], g[1])).half();
                }
            });
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let (to, all) = (&on.outputs[0], on.outputs[0].layout.numel());
        if all == 0 {
            return Plan::nothing();
        }
        let mut arguments = views(on.inputs);
        arguments.push(to.first());
        [self.size, self.width, all].iter().for_each(|it| arguments.push(*it as i64));
        let blocks = all.div_ceil(256).min(i32::MAX as usize);
        launch("hermitian_grad", on, (blocks, 256), arguments).into()
    }
}

struct SolveBackward {
    call: Call,
    lower: Saved,
    x: Saved,
}

impl Backward for SolveBackward {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None, None])) };
        let (lower, x) = (self.lower.unpack()?, self.x.unpack()?);
        let grad_b = substituted(self.call, &lower, grad)?;
        let mut grad_a = None;
        if needs.input(0) {
            let new = Tensor::uninit(self.call, lower.shape().clone(), x.dtype(), x.device())?;
            let (size, width) = (x.shape()[1], x.shape()[2]);
            self.call.launch(HermitianGrad { size, width }, &[&new], &[&grad_b, &x])?;
            grad_a = Some(new);
        }
        Ok(Grads::from_iter([grad_a, needs.input(1).then_some(grad_b)]))
    }
}

#[track_caller]
fn substituted(call: Call, lower: &Tensor, b: &Tensor) -> Result<Tensor> {
    let x = Tensor::uninit(call, b.shape().clone(), b.dtype(), b.device())?;
    let (size, width) = (b.shape()[1], b.shape()[2]);
    call.launch(Substitute { size, width }, &[&x], &[lower, b])?;
    Ok(x)
}

impl Tensor {
    /// Solves `A·X = B` for a batch of Hermitian (or symmetric) positive definite matrices: `self` is
    /// `[…, n, n]`, of which the lower triangle is read, `b` is `[…, n, k]`; batches broadcast.
    ///
    /// ```
    /// # use tonnage_tensor::{Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let a = Tensor::from_slice(&[4.0f64, 2.0, 2.0, 3.0], [2, 2], &device)?;
    /// let b = Tensor::from_slice(&[2.0f64, 5.0], [2, 1], &device)?;
    /// let x = a.solve_hermitian(&b)?.to_vec::<f64>()?;
    /// assert!((x[0] + 0.5).abs() < 1e-12 && (x[1] - 2.0).abs() < 1e-12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If shapes or types do not fit, or if there is no memory. A matrix that is not positive definite
    /// is reported at the next synchronisation.
    #[track_caller]
    pub fn solve_hermitian(&self, b: &Tensor) -> Result<Tensor> {
        let call = Call::here("solve_hermitian");
        let wrong =
            |error: crate::error::Error| error.with_tensor("self", self).with_tensor("b", b);
        let solvable = matches!(self.dtype(), DType::F32 | DType::F64 | DType::Complex64);
        if !solvable || self.dtype() != b.dtype() {
            let error = call.dtype_error("both are float32, float64 or complex64");
            return Err(wrong(error).help("convert with to"));
        }
        let shape = "self is […, n, n], b […, n, k]";
        let ([before @ .., n, m], [before_b @ .., rows, width]) =
            (&self.shape()[..], &b.shape()[..])
        else {
            return Err(wrong(call.shape_error("there are no matrices")).help(shape));
        };
        if n != m || rows != n {
            return Err(wrong(call.shape_error("the matrices do not fit")).help(shape));
        }
        let Some(batch) = broadcast(before, before_b) else {
            return Err(wrong(call.shape_error("the batches do not broadcast")).help(shape));
        };
        let Some(count) = batch.checked_numel() else {
            return Err(wrong(call.shape_error("more matrices than can be counted")));
        };
        let with = |sizes: [usize; 2]| Shape::from_iter(batch.iter().copied().chain(sizes));
        let (square, right) = (with([*n, *n]), with([*n, *width]));
        let a = self.expanded(call, &square)?.reshape([count, *n, *n])?;
        let b = b.expanded(call, &right)?.reshape([count, *n, *width])?;
        let lower = Tensor::uninit(call, a.shape().clone(), a.dtype(), a.device())?;
        call.launch(Cholesky { size: *n }, &[&lower], &[&a])?;
        let x = substituted(call, &lower, &b)?;
        record(call, "SolveHermitianBackward", &[&x], &[&a, &b], || {
            let (lower, x) = (Saved::output(call, &lower)?, Saved::output(call, &x)?);
            Ok(Box::new(SolveBackward { call, lower, x }))
        })?;
        x.into_shape(call, right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{complex_gradcheck, conformance, gradcheck};

    fn device() -> Device {
        Device::host("256 MiB").unwrap()
    }

    /// Hermitian and positive definite.
    fn definite(x: &Tensor) -> Result<Tensor> {
        let size = x.shape()[x.dim() - 1];
        let rows = Tensor::arange(0, size as i64, 1, x.device())?;
        let identity = rows.one_hot(size)?.to(x.dtype())?;
        x.conj()?.transpose(-1, -2)?.matmul(x)?.add(&identity)
    }

    #[test]
    fn the_solution_fulfils_the_equations_for_every_type() -> Result<()> {
        let device = device();
        for (dtype, tolerance) in
            [(DType::F32, 1e-4), (DType::F64, 1e-12), (DType::Complex64, 1e-4)]
        {
            let a = definite(&Tensor::randn([50, 12, 7], (&device, dtype))?)?;
            let b = Tensor::randn([50, 7, 3], (&device, dtype))?;
            let x = a.solve_hermitian(&b)?;
            let far = a.matmul(&x)?.sub(&b)?.abs()?.to(DType::F64)?.to_vec::<f64>()?;
            assert!(far.iter().all(|it| *it < tolerance), "{dtype}");
        }
        Ok(())
    }

    #[test]
    fn batches_broadcast() -> Result<()> {
        let device = device();
        let a = definite(&Tensor::randn([4, 1, 5, 3], (&device, DType::F64))?)?;
        let b = Tensor::randn([6, 3, 2], (&device, DType::F64))?;
        let x = a.solve_hermitian(&b)?;
        assert_eq!(x.shape()[..], [4, 6, 3, 2]);
        let far = a.matmul(&x)?.sub(&b)?.abs()?.to_vec::<f64>()?;
        assert!(far.iter().all(|it| *it < 1e-12));
        assert_eq!(a.narrow(0, 0, 0)?.solve_hermitian(&b)?.shape()[..], [0, 6, 3, 2]);
        Ok(())
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_is_named() -> Result<()> {
        let device = device();
        let numbers = [1.0f32, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 1.0, -1.0, 0.0, 0.0, 1.0];
        let a = Tensor::from_slice(&numbers, [3, 2, 2], &device)?;
        let b = Tensor::ones([3, 2, 1], &device)?;
        let error = a.solve_hermitian(&b)?.to_vec::<f32>().unwrap_err().to_string();
        assert!(error.contains("matrix 1 of the batch"), "{error}");
        assert!(error.contains("pivot 1 is not positive"), "{error}");
        assert!(a.solve_hermitian(&Tensor::ones([3, 3, 1], &device)?).is_err());
        assert!(a.solve_hermitian(&b.to(DType::F64)?).is_err());
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        gradcheck(&[&[2, 5, 3], &[2, 3, 2]], |x| definite(&x[0])?.solve_hermitian(&x[1])).unwrap();
        gradcheck(&[&[4, 3], &[2, 3, 1]], |x| definite(&x[0])?.solve_hermitian(&x[1])).unwrap();
    }

    #[test]
    fn complex_gradients_are_right() -> Result<()> {
        let b = Tensor::randn([3, 2], (&device(), DType::Complex64))?.to_vec::<Complex64>()?;
        complex_gradcheck(&[4, 3], (3e-3, 1e-2), |z| {
            let b = Tensor::from_slice(&b, [3, 2], z.device())?;
            definite(z)?.solve_hermitian(&b)?.abs()?.sum()
        })
    }

    conformance!(equations, |device| {
        let z = Tensor::randn([8, 6, 4], (device, DType::Complex64))?.requires_grad_(true)?;
        let gram = definite(&z)?;
        let x = gram.solve_hermitian(&Tensor::ones([4, 2], (device, DType::Complex64))?)?;
        x.abs()?.sum()?.backward()?;
        Ok(vec![x, z.grad().unwrap()])
    });

    conformance!(equations_of_every_type_and_size, |device| {
        let mut results = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::Complex64] {
            for (batch, size, width) in [(1, 1, 1), (3, 5, 2), (2, 33, 40), (2, 70, 3)] {
                let x = Tensor::randn([batch, size + 4, size], (device, dtype))?;
                let a = definite(&x)?.detach().requires_grad_(true)?;
                let b = Tensor::randn([batch, width, size], (device, dtype))?;
                let b = b.conj()?.transpose(1, 2)?.detach().requires_grad_(true)?;
                let x = a.solve_hermitian(&b)?;
                x.abs()?.sum()?.backward()?;
                results.extend([x.detach(), a.grad().unwrap(), b.grad().unwrap()]);
            }
        }
        Ok(results)
    });
}
