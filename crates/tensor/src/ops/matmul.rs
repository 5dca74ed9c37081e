//! Matrix products: of matrices, of batches of them, with vectors, complex ones too.
//!
//! [`Tensor::matmul`] sorts the cases as PyTorch does, because the sorting decides about copies:
//! everything becomes views around `mm` (two matrices) or `bmm` (two batches of them).

use rayon::prelude::*;
use tonnage_cuda_libs::blas;
use tonnage_device::cuda::{Arguments, Extent};
use tonnage_events::Address;

use crate::amp::lower;
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::dtype::{DType, Float};
use crate::error::{Call, Result};
use crate::exec::cuda::{Launch, LibraryProduct, Program, stored, wide};
use crate::exec::{Args, Input, Kernel, Matrix, Operand, Operands, Plan, Product, product};
use crate::number::{Bf16, Complex64, F16};
use crate::shape::{Shape, broadcast};
use crate::tensor::Tensor;
use crate::work::numbers;

/// `output = a · b` over a batch: three axes each, the output in order. With a third input, `output = a
/// · b + bias`, the bias a row.
pub(crate) struct Gemm {
    /// Numbers in a row of `a` and in a column of `b`.
    pub(crate) terms: usize,
    pub(crate) conj: [bool; 2],
    pub(crate) bias: bool,
}

impl Kernel for Gemm {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        match args.output_dtype(0) {
            DType::F32 => self.run::<f32>(args),
            DType::F64 => self.run::<f64>(args),
            DType::Complex64 => self.run::<Complex64>(args),
            DType::Bf16 => self.run_wide::<Bf16>(args),
            DType::F16 => self.run_wide::<F16>(args),
            other => return Err(format!("no products of {other}")),
        }
        Ok(())
    }

    fn operations(&self, outputs: &[&Tensor]) -> f64 {
        outputs.iter().map(|it| 2.0 * numbers(it.shape()) * self.terms as f64).sum()
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        let rows = on.outputs[0].layout.shape()[on.outputs[0].layout.shape().len() - 2];
        if on.outputs[0].layout.numel() == 0 {
            return Plan::nothing();
        }
        match self.by_library(on, rows) {
            Some(product) => Plan::Product(Box::new(product)),
            None => self.by_tiles(on, rows),
        }
    }
}

/// A product that the library does not have: any strides, conjugates, no terms at all.
const TILES: &str = include_str!("matmul.cu");

/// Rows and columns that a block of [`TILES`] computes.
const TILE: usize = 16;

impl Gemm {
    /// As the library has it, if it does.
    fn by_library(&self, on: Operands<'_>, m: usize) -> Option<LibraryProduct> {
        let (d, [a, b, ..]) = (&on.outputs[0], on.inputs) else { return None };
        let number = match d.dtype {
            DType::F32 => blas::Number::F32,
            DType::F64 => blas::Number::F64,
            DType::Bf16 => blas::Number::Bf16,
            DType::F16 => blas::Number::F16,
            _ => return None,
        };
        let bias = self.bias.then(|| &on.inputs[2]);
        let fits = |it: &Operand| it.dtype == d.dtype && it.layout.is_contiguous();
        if self.terms == 0 || bias.is_some_and(|it| !fits(it)) {
            return None;
        }
        let (n, k) = (b.layout.shape()[2], self.terms);
        let matrix = |it: &Operand, rows: usize, columns: usize| {
            let strides = it.layout.strides();
            let [batch, row, column] = [strides[0], strides[1], strides[2]];
            let lies = |inner: usize, width: usize, outer: usize| {
                (inner == 1 || width == 1) && outer >= width.max(1)
            };
            let (transposed, leading) = match () {
                () if lies(column, columns, row) => (false, row),
                () if lies(row, rows, column) => (true, column),
                () => return None,
            };
            Some(blas::Matrix { transposed, leading: leading as u64, stride: batch as u64 })
        };
        let product = blas::Product {
            m: m as u64,
            n: n as u64,
            k: k as u64,
            batch: a.layout.shape()[0] as u64,
            a: matrix(a, m, k)?,
            b: matrix(b, k, n)?,
            d: blas::Matrix { transposed: false, leading: n as u64, stride: (m * n) as u64 },
            input: number,
            output: number,
            math: blas::Math::Full,
            epilogue: if bias.is_some() { blas::Epilogue::Bias } else { blas::Epilogue::None },
        };
        let at = |it: &Operand| Address(it.first());
        let operands = blas::Operands {
            a: at(a),
            b: at(b),
            c: at(d),
            d: at(d),
            vector: bias.map(at),
            aside: None,
            alpha: 1.0,
            beta: 0.0,
            workspace: Address(0),
        };
        Some(LibraryProduct { product, operands })
    }

    /// By a program of our own.
    fn by_tiles(&self, on: Operands<'_>, m: usize) -> Plan {
        let (d, a, b) = (&on.outputs[0], &on.inputs[0], &on.inputs[1]);
        let (batch, n) = (a.layout.shape()[0], b.layout.shape()[2]);
        let bias = self.bias.then(|| &on.inputs[2]);
        let program = Program::new(
            "product",
            TILES,
            &[
                ("T", &stored(d.dtype)),
                ("C", &wide(d.dtype)),
                ("BIAS", &bias.map_or(stored(d.dtype), |it| stored(it.dtype))),
                ("A_OF(it)", &if self.conj[0] ^ a.conj { "conj(it)" } else { "(it)" }),
                ("B_OF(it)", &if self.conj[1] ^ b.conj { "conj(it)" } else { "(it)" }),
                ("TILE", &TILE),
            ],
        );
        let mut arguments = Arguments::new();
        for it in [d.first(), a.first(), b.first(), bias.map_or(0, Operand::first)] {
            arguments.push(it);
        }
        let stride = bias.and_then(|it| it.layout.strides().last()).copied().unwrap_or(0);
        for it in [m, n, self.terms, stride] {
            arguments.push(it as u64);
        }
        for it in a.layout.strides().iter().chain(b.layout.strides()) {
            arguments.push(*it as u64);
        }
        let blocks = |size: usize| size.div_ceil(TILE) as u32;
        let extent = Extent {
            grid: [blocks(n), blocks(m).min(65_535), batch.min(65_535) as u32],
            block: [TILE as u32, TILE as u32, 1],
            shared: 0,
        };
        arguments.push(batch as u64);
        Launch::new(program, extent, arguments).into()
    }
}

impl Gemm {
    fn run<T: Product + crate::dtype::Stored>(&self, args: &mut Args<'_>) {
        let bias = self.bias.then(|| args.input(2).to_slice::<T>());
        let (a, b) = (args.input(0), args.input(1));
        let to = args.take::<T>(0).slice();
        if let Some(bias) = &bias {
            to.chunks_mut(bias.len().max(1)).for_each(|row| row.copy_from_slice(bias));
        }
        let strides = [a.layout().strides(), b.layout().strides()];
        self.batches(to, bias.is_some(), (a, a.data(), strides[0]), (b, b.data(), strides[1]));
    }

    /// Of 16-bit floats: in 32 bits, rounded once at the end.
    fn run_wide<T: Float<Wide = f32>>(&self, args: &mut Args<'_>) {
        let bias = self.bias.then(|| args.input(2).to_slice::<f32>());
        let (a, b) = (args.input(0), args.input(1));
        let (wide_a, wide_b) = (a.to_slice::<f32>(), b.to_slice::<f32>());
        let to = args.take::<T>(0).slice();
        let mut wide = vec![0.0; to.len()];
        if let Some(bias) = &bias {
            wide.chunks_mut(bias.len().max(1)).for_each(|row| row.copy_from_slice(bias));
        }
        let in_order = |x: Input<'_>| {
            let [_, rows, columns] = x.layout().shape()[..] else { return [0; 3] };
            [rows * columns, columns, 1]
        };
        let (strides_a, strides_b) = (in_order(a), in_order(b));
        self.batches(&mut wide, bias.is_some(), (a, &wide_a, &strides_a), (b, &wide_b, &strides_b));
        to.par_iter_mut().zip(&wide).with_min_len(8192).for_each(|(to, it)| *to = T::narrow(*it));
    }

    /// Each matrix of the batch: many at a time if there are many, otherwise each on all cores.
    fn batches<T: Product>(
        &self,
        to: &mut [T],
        add: bool,
        (a, data_a, strides_a): (Input<'_>, &[T], &[usize]),
        (b, data_b, strides_b): (Input<'_>, &[T], &[usize]),
    ) {
        let ([_, m, k], [_, _, n]) = (&a.layout().shape()[..], &b.layout().shape()[..]) else {
            return;
        };
        let size = (*m, *n, *k);
        if to.is_empty() {
            return;
        }
        let one = |batch: usize, to: &mut [T], alone: bool| {
            let matrix = |data, strides: &[usize], conj| Matrix {
                data: from(data, batch * strides[0]),
                strides: (strides[1], strides[2]),
                conj,
            };
            let a = matrix(data_a, strides_a, self.conj[0] ^ a.conj());
            let b = matrix(data_b, strides_b, self.conj[1] ^ b.conj());
            product(size, to, add, a, b, alone);
        };
        if to.len() / (m * n) >= 2 * rayon::current_num_threads() {
            to.par_chunks_mut(m * n).enumerate().for_each(|(batch, to)| one(batch, to, true));
        } else {
            to.chunks_mut(m * n).enumerate().for_each(|(batch, to)| one(batch, to, false));
        }
    }
}

/// The rest of a slice; nothing where matrices have no elements.
fn from<T>(data: &[T], start: usize) -> &[T] {
    data.get(start..).unwrap_or_default()
}

/// The kinds of [`product_of`]: how many axes, under which name in the graph.
fn node(axes: usize) -> &'static str {
    if axes == 2 { "MmBackward" } else { "BmmBackward" }
}

struct MatmulBackward {
    call: Call,
    a: Option<Saved>,
    b: Option<Saved>,
    /// Whether `b` lay by columns: then its gradient is made so too, as PyTorch does.
    by_columns: bool,
}

impl Backward for MatmulBackward {
    fn backward(&self, grads: &[Option<Tensor>], needs: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None, None])) };
        let call = self.call;
        // `mat2` comes before `self`, as in PyTorch.
        let mut grad_b = None;
        if let Some(a) = self.a.as_ref().filter(|_| needs.input(1)) {
            let a = a.unpack()?;
            grad_b = Some(if self.by_columns {
                product_of(call, &flipped(grad)?, &a, [false, true])?.t()?
            } else {
                product_of(call, &flipped(&a)?, grad, [true, false])?
            });
        }
        let mut grad_a = None;
        if let Some(b) = self.b.as_ref().filter(|_| needs.input(0)) {
            grad_a = Some(product_of(call, grad, &flipped(&b.unpack()?)?, [false, true])?);
        }
        Ok(Grads::from_iter([grad_a, grad_b]))
    }
}

fn flipped(matrices: &Tensor) -> Result<Tensor> {
    matrices.transpose(-1, -2)
}

/// The product of two matrices or two equal batches of them, outside the graph. Operands that the
/// library cannot read as they lie are copied, on a GPU and here alike.
#[track_caller]
pub(crate) fn product_of(call: Call, a: &Tensor, b: &Tensor, conj: [bool; 2]) -> Result<Tensor> {
    product_with_bias(call, a, b, conj, None)
}

#[track_caller]
pub(crate) fn product_with_bias(
    call: Call,
    a: &Tensor,
    b: &Tensor,
    conj: [bool; 2],
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let axes = a.dim();
    let sizes = a.shape()[..axes - 1].iter().chain(&b.shape()[axes - 1..]).copied();
    let output = Tensor::uninit(call, Shape::from_iter(sizes), a.dtype(), a.device())?;
    let [a, b] = [readable(call, a)?, readable(call, b)?];
    let three = |tensor: &Tensor| match tensor.layout().unsqueeze(0) {
        Some(layout) if axes == 2 => tensor.alias(layout),
        _ => tensor.clone(),
    };
    let (a, b) = (three(&a), three(&b));
    output.device().workspaces().for_product(call, output.device(), bias.is_some())?;
    let terms = a.shape()[2];
    let kernel = Gemm { terms, conj, bias: bias.is_some() };
    match bias {
        Some(bias) => call.launch(kernel, &[&output], &[&a, &b, bias])?,
        None => call.launch(kernel, &[&output], &[&a, &b])?,
    }
    Ok(output)
}

/// Matrices as the library reads them: by rows or by columns, otherwise copied.
#[track_caller]
fn readable(call: Call, matrices: &Tensor) -> Result<Tensor> {
    let axes = matrices.dim();
    let (sizes, strides) = (&matrices.shape()[axes - 2..], &matrices.strides()[axes - 2..]);
    let lies = |inner: usize, outer: usize| {
        (strides[inner] == 1 || sizes[inner] == 1) && strides[outer] >= sizes[inner].max(1)
    };
    if lies(1, 0) || lies(0, 1) { Ok(matrices.detach()) } else { matrices.copied(call) }
}

/// The product of two matrices or two equal batches of them, in the graph.
#[track_caller]
fn recorded_product(call: Call, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let output = product_of(call, a, b, [false, false])?;
    record(call, node(a.dim()), &[&output], &[a, b], || {
        let save =
            |tensor: &Tensor, wanted: bool| wanted.then(|| Saved::input(call, tensor)).transpose();
        let by_columns = b.dim() == 2 && b.strides() == [1, b.shape()[0]];
        let (a, b) = (save(a, b.requires_grad())?, save(b, a.requires_grad())?);
        Ok(Box::new(MatmulBackward { call, a, b, by_columns }))
    })?;
    Ok(output)
}

impl Call {
    /// Refuses element types without products.
    pub(crate) fn check_products(self, a: &Tensor, b: &Tensor) -> Result<()> {
        let what = if a.dtype() != b.dtype() {
            "the element types differ"
        } else if !a.dtype().is_differentiable() {
            "integers and truths have no matrix product"
        } else if a.device() != b.device() {
            return Err(self.devices_differ(a, b));
        } else {
            return Ok(());
        };
        let error = self.dtype_error(what).with_tensor("self", a).with_tensor("other", b);
        Err(error.help("convert with to"))
    }
}

impl Tensor {
    /// The matrix product: of the last two axes, the others broadcast as a batch. A vector on the left
    /// is a row, on the right a column, and its axis goes.
    ///
    /// ```
    /// # use tonnage_tensor::{Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let a = Tensor::ones([8, 2, 3], &device)?;
    /// let b = Tensor::ones([3, 4], &device)?;
    /// assert_eq!(a.matmul(&b)?.shape()[..], [8, 2, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the inner sizes or the element types differ, the batches do not broadcast, or there is no
    /// memory.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        lower(self)?.matmul_in(Call::here("matmul"), &lower(other)?)
    }

    /// The same, whatever autocast says.
    #[track_caller]
    fn matmul_in(&self, call: Call, other: &Tensor) -> Result<Tensor> {
        call.check_products(self, other)?;
        if self.dim() == 0 || other.dim() == 0 {
            let error = call.shape_error("a single number has no matrix product");
            return Err(error
                .with_tensor("self", self)
                .with_tensor("other", other)
                .help("use mul"));
        }
        let (a, b) = (self.row_of_vector()?, other.column_of_vector()?);
        let inner = (a.shape()[a.dim() - 1], b.shape()[b.dim() - 2]);
        if inner.0 != inner.1 {
            return Err(call
                .shape_error("the inner sizes differ")
                .with_tensor("self", self)
                .with_tensor("other", other)
                .help(format!(
                    "the last size of self ({}) must equal the {} of other ({})",
                    inner.0,
                    if other.dim() == 1 { "size" } else { "second last" },
                    inner.1
                )));
        }
        let mut output = match (a.dim(), b.dim()) {
            (2, 2) => recorded_product(call, &a, &b)?,
            (_, 2) => folded(call, &a, &b)?,
            _ => batched(call, &a, &b)?,
        };
        if other.dim() == 1 {
            output = output.squeeze(-1)?;
        }
        if self.dim() == 1 {
            output = output.squeeze(if other.dim() == 1 { -1 } else { -2 })?;
        }
        Ok(output)
    }

    fn row_of_vector(&self) -> Result<Tensor> {
        if self.dim() == 1 { self.unsqueeze(0) } else { Ok(self.clone()) }
    }

    fn column_of_vector(&self) -> Result<Tensor> {
        if self.dim() == 1 { self.unsqueeze(1) } else { Ok(self.clone()) }
    }
}

/// A batch times one matrix is one product with more rows.
#[track_caller]
fn folded(call: Call, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (inner, sizes) = (b.shape()[0], a.shape().to_vec());
    let rows = sizes[..sizes.len() - 1].iter().product();
    let output = recorded_product(call, &a.reshape([rows, inner])?, b)?;
    let axes = sizes[..sizes.len() - 1].iter().copied().chain([b.shape()[1]]);
    output.into_shape(call, Shape::from_iter(axes))
}

#[track_caller]
fn batched(call: Call, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let split = |tensor: &Tensor| {
        let (batch, matrix) = tensor.shape().split_at(tensor.dim() - 2);
        (Shape::from(batch), [matrix[0], matrix[1]])
    };
    let ((batch_a, [m, k]), (batch_b, [_, n])) = (split(a), split(b));
    let Some(batch) = broadcast(&batch_a, &batch_b) else {
        return Err(call
            .shape_error("the batches do not broadcast")
            .with_tensor("self", a)
            .with_tensor("other", b));
    };
    let Some(count) = batch.checked_numel() else {
        return Err(call.shape_error("more matrices than can be counted"));
    };
    let with = |matrix: [usize; 2]| Shape::from_iter(batch.iter().copied().chain(matrix));
    let a = a.expanded(call, &with([m, k]))?.reshape([count, m, k])?;
    let b = b.expanded(call, &with([k, n]))?.reshape([count, k, n])?;
    recorded_product(call, &a, &b)?.into_shape(call, with([m, n]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    fn device() -> Device {
        Device::host("256 MiB").unwrap()
    }

    #[test]
    fn every_combination_of_axes_has_the_right_shape_and_value() -> Result<()> {
        let device = device();
        for (a, b, shape) in [
            (&[3][..], &[3][..], &[][..]),
            (&[3], &[3, 4], &[4]),
            (&[2, 3], &[3], &[2]),
            (&[2, 3], &[3, 4], &[2, 4]),
            (&[5, 2, 3], &[3, 4], &[5, 2, 4]),
            (&[5, 2, 3], &[5, 3, 4], &[5, 2, 4]),
            (&[2, 3], &[5, 3, 4], &[5, 2, 4]),
            (&[6, 1, 2, 3], &[5, 3, 4], &[6, 5, 2, 4]),
            (&[0, 3], &[3, 4], &[0, 4]),
            (&[2, 0], &[0, 4], &[2, 4]),
        ] {
            let (a, b) = (Tensor::ones(a, &device)?, Tensor::ones(b, &device)?);
            let product = a.matmul(&b)?;
            let inner = a.shape()[a.dim() - 1] as f32;
            assert_eq!(&product.shape()[..], shape, "{a:?} · {b:?}");
            assert!(product.to_vec::<f32>()?.iter().all(|it| *it == inner), "{a:?} · {b:?}");
        }
        Ok(())
    }

    #[test]
    fn sixteen_bit_products_are_rounded_once() -> Result<()> {
        let device = device();
        for dtype in [DType::Bf16, DType::F16] {
            let a = Tensor::randn([3, 20, 30], &device)?.to(dtype)?;
            let b = Tensor::randn([3, 10, 30], &device)?.to(dtype)?.transpose(1, 2)?;
            let wide = a.to(DType::F32)?.matmul(&b.to(DType::F32)?)?.to(dtype)?.to(DType::F32)?;
            let narrow = a.matmul(&b)?.to(DType::F32)?;
            assert_eq!(narrow.to_vec::<f32>()?, wide.to_vec::<f32>()?);
        }
        Ok(())
    }

    #[test]
    fn complex_products_are_right() -> Result<()> {
        let device = device();
        let a = Tensor::randn([2, 2], (&device, DType::Complex64))?;
        let [numbers, product] = [a.to_vec::<Complex64>()?, a.matmul(&a)?.to_vec()?];
        let expected = numbers[0] * numbers[1] + numbers[1] * numbers[3];
        assert!((product[1] - expected).abs() < 1e-5);
        Ok(())
    }

    #[test]
    fn wrong_sizes_say_which() {
        let device = Device::dry("1 GiB").unwrap();
        let a = Tensor::zeros([2, 3], &device).unwrap();
        let b = Tensor::zeros([4, 5], &device).unwrap();
        let text = a.matmul(&b).unwrap_err().to_string();
        let help = "the last size of self (3) must equal the second last of other (4)";
        assert!(
            text.starts_with("matmul: the inner sizes differ\n") && text.contains(help),
            "{text}"
        );
        let b = Tensor::zeros([3, 5], (&device, DType::F64)).unwrap();
        assert!(a.matmul(&b).unwrap_err().to_string().contains("element types differ"));
    }

    #[test]
    fn gradients_are_right() {
        for (a, b) in [
            (&[2, 3][..], &[3, 4][..]),
            (&[3], &[3]),
            (&[2, 3], &[3]),
            (&[5, 2, 3], &[3, 4]),
            (&[5, 2, 3], &[5, 3, 4]),
            (&[2, 1, 2, 3], &[3, 3, 4]),
        ] {
            gradcheck(&[a, b], |x| x[0].matmul(&x[1])).unwrap();
        }
        gradcheck(&[&[2, 3], &[4, 3]], |x| x[0].matmul(&x[1].t()?)).unwrap();
        gradcheck(&[&[3, 3]], |x| x[0].matmul(&x[0])).unwrap();
    }

    conformance!(products, |device| {
        let a = Tensor::ones([4, 20, 30], device)?.requires_grad_(true)?;
        let b = Tensor::ones([40, 30], device)?.requires_grad_(true)?;
        let c = a.matmul(&b.t()?)?;
        let d = c.matmul(&c.transpose(1, 2)?)?;
        d.mean()?.backward()?;
        Ok(vec![d, a.grad().unwrap(), b.grad().unwrap()])
    });
}
