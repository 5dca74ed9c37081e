//! Embedding: rows of a table, by index.
//!
//! The backward allocates what PyTorch's does. For few indices that is the gradient alone; for many,
//! PyTorch sorts the indices and sums in two steps, whose scratch memory, of the size of the output,
//! belongs to the peak.

use super::index::{AddAt, AxisSplit, check_indices, selected};
use crate::autograd::{Backward, Grads, Needs, Saved, record};
use crate::create::Scalar;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Call, ErrorKind, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;

struct EmbeddingBackward {
    call: Call,
    indices: Saved,
    /// Of the table.
    shape: Shape,
    padding: Option<usize>,
}

impl Backward for EmbeddingBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(Grads::from_iter([None])) };
        let (call, indices) = (self.call, self.indices.unpack()?.contiguous()?);
        let (rows, width) = (self.shape[0], self.shape[1]);
        let grad = grad.contiguous()?.view([indices.numel(), width])?;
        let scratch = Scratch::sorting(call, grad.device(), indices.numel())?;
        let table = Tensor::zeros(&self.shape, (grad.device(), grad.dtype()))?;
        let scratch = scratch.map(|it| it.summing(call, rows, width, grad.dtype())).transpose()?;
        let kernel = AddAt {
            axis: AxisSplit { size: rows, inner: width },
            alpha: Scalar::Integer(1),
            skip: self.padding,
        };
        call.launch(kernel, &[&table], &[&grad, &indices])?;
        drop(scratch);
        Ok(Grads::from_iter([Some(table)]))
    }
}

/// Up to so many indices PyTorch adds rows directly, one block of threads for each column.
const DIRECT: usize = 3072;

/// What PyTorch 2.11 allocates to add many rows: measured on an H200 for 3,073 to 65,536 indices.
struct Scratch<'a> {
    device: &'a Device,
    count: usize,
    held: Vec<Tensor>,
}

impl<'a> Scratch<'a> {
    /// The sorted indices and the order that sorts them; none for few indices.
    fn sorting(call: Call, device: &'a Device, count: usize) -> Result<Option<Self>> {
        if count <= DIRECT {
            return Ok(None);
        }
        let mut scratch = Self { device, count, held: Vec::new() };
        let sorted = scratch.integers(call, count)?;
        let order = scratch.integers(call, count)?;
        let counted = scratch.integers(call, count)?;
        // The library's radix sort: both rows once more, and 256 counters for each tile.
        let rows = 2 * (8 * count).next_multiple_of(256);
        let sort = rows + 16_895 + 1_024 * count.div_ceil(4_608);
        drop(scratch.bytes(call, sort)?);
        drop(counted);
        scratch.held.extend([sorted, order]);
        Ok(Some(scratch))
    }

    /// Where equal indices begin, cut into parts of at most ten; and a row of sums for each part.
    fn summing(mut self, call: Call, rows: usize, width: usize, dtype: DType) -> Result<Self> {
        let starts = self.integers(call, self.count)?;
        let distinct = self.integers(call, 1)?;
        let unused = self.integers(call, self.count)?;
        drop(self.bytes(call, 1_279)?);
        drop(unused);
        let most = rows.min(self.count);
        let [parts, offsets] = [self.integers(call, most)?, self.integers(call, most)?];
        // The library's scan: 16 bytes for each tile.
        let scan = ((most.div_ceil(896) + 32) * 16).next_multiple_of(256) + 511;
        drop(self.bytes(call, scan)?);
        let total = self.integers(call, 1)?;
        let most = most + self.count / 10;
        let part_starts = self.integers(call, most)?;
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let sums = Tensor::uninit(call, [most, width].into(), wide, self.device)?;
        // Given back in this order.
        let new = [sums, part_starts, total, offsets, parts, distinct, starts];
        self.held.splice(0..0, new);
        Ok(self)
    }

    fn integers(&self, call: Call, count: usize) -> Result<Tensor> {
        Tensor::uninit(call, count.into(), DType::I64, self.device)
    }

    fn bytes(&self, call: Call, count: usize) -> Result<Tensor> {
        Tensor::uninit(call, count.into(), DType::U8, self.device)
    }
}

impl Tensor {
    /// The rows of `table` that these integers name: `[…]` and `[rows, width]` give `[…, width]`. The
    /// row `padding` collects no gradient.
    ///
    /// ```
    /// # use tonnage_tensor::{Device, Tensor};
    /// # let device = Device::host("64 MiB")?;
    /// let table = Tensor::randn([100, 16], &device)?;
    /// let tokens = Tensor::randint(0, 100, [8, 32], &device)?;
    /// assert_eq!(tokens.embedding(&table, None)?.shape()[..], [8, 32, 16]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If shapes or types do not fit, or if there is no memory. A row that does not exist is reported
    /// at the next synchronisation.
    #[track_caller]
    pub fn embedding(&self, table: &Tensor, padding: Option<usize>) -> Result<Tensor> {
        let call = Call::here("embedding");
        check_indices(call, self)?;
        if table.dim() != 2 {
            let error = call.shape_error("a table has rows and columns");
            return Err(error.with_tensor("self", self).with_tensor("table", table));
        }
        if let Some(row) = padding.filter(|row| *row >= table.shape()[0]) {
            let error = call.error(ErrorKind::Value, format!("there is no row {row} for padding"));
            return Err(error.with_tensor("table", table));
        }
        let sizes = self.shape().iter().copied().chain([table.shape()[1]]);
        let rows = selected(call, table, 0, self)?;
        let off = crate::autograd::no_grad_guard();
        let output = rows.into_shape(call, Shape::from_iter(sizes))?;
        drop(off);
        record(call, "EmbeddingBackward", &[&output], &[table], || {
            let (indices, shape) = (Saved::input(call, self)?, table.shape().clone());
            Ok(Box::new(EmbeddingBackward { call, indices, shape, padding }))
        })?;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{conformance, gradcheck, requests};
    use tonnage_engine::RecordOptions;
    use tonnage_events::Action;

    #[test]
    fn rows_come_out_and_their_gradients_add_up() -> Result<()> {
        let device = Device::host("256 MiB").unwrap();
        let table = Tensor::randn([50, 7], &device)?.requires_grad_(true)?;
        let tokens = Tensor::randint(0, 50, [40, 100], &device)?;
        let y = tokens.embedding(&table, Some(3))?;
        let (rows, tokens) = (table.to_vec::<f32>()?, tokens.to_vec::<i64>()?);
        let expected: Vec<f32> =
            tokens.iter().flat_map(|row| rows[*row as usize * 7..][..7].to_vec()).collect();
        assert_eq!(y.to_vec::<f32>()?, expected);
        y.sum()?.backward()?;
        let gradient = table.grad().unwrap().to_vec::<f32>()?;
        for row in 0..50 {
            let count = tokens.iter().filter(|it| **it == row as i64).count();
            let expected = if row == 3 { 0.0 } else { count as f32 };
            assert_eq!(gradient[row * 7..][..7], [expected; 7], "{row}");
        }
        Ok(())
    }

    #[test]
    fn wrong_tokens_and_tables_are_refused_or_reported() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let table = Tensor::zeros([4, 2], &device)?;
        let tokens = Tensor::from_slice(&[0i64, 4], [2], &device)?;
        let error = tokens.embedding(&table, None)?.to_vec::<f32>().unwrap_err();
        assert_eq!(error.operation(), "embedding");
        assert!(error.to_string().contains("index 4 at element 1 is not below 4"), "{error}");
        assert!(table.embedding(&table, None).is_err() && tokens.embedding(&tokens, None).is_err());
        assert!(tokens.embedding(&table, Some(4)).is_err());
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        gradcheck(&[&[4, 3]], |x| {
            let tokens = Tensor::from_slice(&[1i64, 3, 1, 0], [2, 2], x[0].device())?;
            tokens.embedding(&x[0], None)
        })
        .unwrap();
    }

    /// PyTorch 2.11 on an H200: what is requested (+) and freed (-) in the backward.
    #[test]
    fn the_backward_asks_for_what_pytorch_s_asks_for() -> Result<()> {
        for (rows, width, count, expected) in [
            (1000, 200, 2000, "+800000"),
            (
                1000,
                200,
                4096,
                "+32768 +32768 +32768 +83455 -83455 -32768 +800000 +32768 +8 +32768 +1279 -1279 \
                 -32768 +8000 +8000 +1279 -1279 +8 +11272 +1127200 -1127200 -11272 -8 -8000 -8000 \
                 -8 -32768 -32768 -32768",
            ),
            (
                50_257,
                8,
                20_000,
                "+160000 +160000 +160000 +342015 -342015 -160000 +1608224 +160000 +8 +160000 +1279 \
                 -1279 -160000 +160000 +160000 +1535 -1535 +8 +176000 +704000 -704000 -176000 -8 \
                 -160000 -160000 -8 -160000 -160000 -160000",
            ),
        ] {
            let device = Device::dry("8 GiB").unwrap();
            let table = Tensor::zeros([rows, width], &device)?.requires_grad_(true)?;
            let y = Tensor::zeros([count], (&device, DType::I64))?.embedding(&table, None)?;
            let ones = y.ones_like()?;
            device.memory().record_history(Some(RecordOptions::default()));
            y.backward_with(Some(&ones), crate::autograd::BackwardOptions::default())?;
            let text: Vec<String> = requests(&device)
                .iter()
                .filter(|(action, ..)| *action != Action::FreeCompleted)
                .map(|(action, size, _)| {
                    format!("{}{size}", if *action == Action::Alloc { '+' } else { '-' })
                })
                .collect();
            // The indices go with the graph, in PyTorch a moment later.
            let text = text.join(" ");
            assert!(text.starts_with(expected), "{count} of {rows}:\n{text}\n{expected}");
        }
        Ok(())
    }

    conformance!(tables, |device| {
        let table = Tensor::ones([20, 30], device)?.requires_grad_(true)?;
        let tokens = Tensor::zeros([50, 100], (device, DType::I64))?;
        let y = tokens.embedding(&table, None)?;
        y.sum()?.backward()?;
        Ok(vec![y, table.grad().unwrap()])
    });
}
