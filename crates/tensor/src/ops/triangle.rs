//! Triangles of matrices: what lies above or below a diagonal becomes zero.

use crate::autograd::{Backward, Grads, Needs, record};
use crate::dtype::dispatch;
use crate::error::{Call, Result};
use crate::exec::cuda::{Elementwise, wide};
use crate::exec::{Args, Kernel, Operands, Plan, for_each_chunk};
use crate::tensor::Tensor;

/// Which part stays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Lower,
    Upper,
}

/// Copies the part that stays, zeros elsewhere.
struct Triangle {
    part: Part,
    diagonal: isize,
    rows: usize,
    columns: usize,
}

impl Triangle {
    /// Which columns of a row stay: from the first number up to the second.
    fn columns_of(&self, row: usize) -> (usize, usize) {
        let on_diagonal = (row as isize).saturating_add(self.diagonal);
        let bound = |column: isize| column.clamp(0, self.columns as isize) as usize;
        match self.part {
            Part::Lower => (0, bound(on_diagonal.saturating_add(1))),
            Part::Upper => (bound(on_diagonal), self.columns),
        }
    }
}

impl Kernel for Triangle {
    fn host(&self, args: &mut Args<'_>) -> Result<(), String> {
        let (x, width) = (args.input(0), self.columns);
        dispatch!(args.output_dtype(0), T => {
            for_each_chunk::<T>(args.take(0), &|indices, chunk| {
                let mut scratch = Vec::new();
                chunk.copy_from_slice(x.chunk(indices.clone(), &mut scratch));
                // By rows, of which the first and the last may be cut.
                let mut index = indices.start;
                while index < indices.end {
                    let (row, column) = (index / width, index % width);
                    let length = (width - column).min(indices.end - index);
                    let (first, end) = self.columns_of(row % self.rows);
                    let within = |it: usize| it.clamp(column, column + length) - column;
                    let places = &mut chunk[index - indices.start..][..length];
                    places[..within(first)].fill(T::default());
                    places[within(end)..].fill(T::default());
                    index += length;
                }
            });
        });
        Ok(())
    }

    fn cuda(&self, on: Operands<'_>) -> Plan {
        // How far a column lies beyond its row.
        let line = match self.part {
            Part::Lower => {
                "i64 by = (i64)(i % (Index)k0) - (i64)(i / (Index)k0 % (Index)k1); y0 = by <= k2 ? x0 : C(0);"
            }
            Part::Upper => {
                "i64 by = (i64)(i % (Index)k0) - (i64)(i / (Index)k0 % (Index)k1); y0 = by >= k2 ? x0 : C(0);"
            }
        };
        let numbers = [self.columns as i64, self.rows as i64, self.diagonal as i64];
        let kernel = Elementwise::new("triangle", wide(on.outputs[0].dtype), line);
        kernel.integers(&numbers).plan(on)
    }
}

struct TriangleBackward {
    call: Call,
    part: Part,
    diagonal: isize,
}

impl Backward for TriangleBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        let part = |grad: &Tensor| triangle(self.call, grad, self.part, self.diagonal);
        grads.iter().map(|grad| grad.as_ref().map(part).transpose()).collect()
    }
}

#[track_caller]
fn triangle(call: Call, x: &Tensor, part: Part, diagonal: isize) -> Result<Tensor> {
    let [.., rows, columns] = x.shape()[..] else {
        return Err(call.shape_error("only matrices have triangles").with_tensor("self", x));
    };
    let output = Tensor::uninit(call, x.shape().clone(), x.dtype(), x.device())?;
    call.launch(Triangle { part, diagonal, rows, columns }, &[&output], &[x])?;
    let name = if part == Part::Lower { "TrilBackward" } else { "TriuBackward" };
    record(call, name, &[&output], &[x], || {
        Ok(Box::new(TriangleBackward { call, part, diagonal }))
    })?;
    Ok(output)
}

impl Tensor {
    /// The lower triangle of each matrix, zeros above: up to the diagonal, or up to one that lies
    /// `diagonal` columns to the right.
    ///
    /// # Errors
    ///
    /// If it has fewer than two axes, or if there is no memory.
    #[track_caller]
    pub fn tril(&self, diagonal: isize) -> Result<Tensor> {
        triangle(Call::here("tril"), self, Part::Lower, diagonal)
    }

    /// The upper triangle of each matrix, zeros below: from the diagonal on, or from one that lies
    /// `diagonal` columns to the right.
    ///
    /// # Errors
    ///
    /// If it has fewer than two axes, or if there is no memory.
    #[track_caller]
    pub fn triu(&self, diagonal: isize) -> Result<Tensor> {
        triangle(Call::here("triu"), self, Part::Upper, diagonal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::testing::{conformance, gradcheck};

    #[test]
    fn every_diagonal_cuts_where_it_should() -> Result<()> {
        let device = Device::host("64 MiB").unwrap();
        let (count, rows, columns) = (40, 17, 23);
        let x = Tensor::ones([columns, rows, count], &device)?.permute(&[2, 1, 0])?;
        for diagonal in [-100, -17, -3, 0, 1, 22, 100] {
            let (lower, upper) = (x.tril(diagonal)?.to_vec::<f32>()?, x.triu(diagonal)?.to_vec()?);
            for index in 0..count * rows * columns {
                let (row, column) = (index / columns % rows, index % columns);
                let beyond = column as isize - row as isize - diagonal;
                let expected: (f32, f32) = (f32::from(beyond <= 0), f32::from(beyond >= 0));
                assert_eq!((lower[index], upper[index]), expected, "{diagonal} {row} {column}");
            }
        }
        assert!(Tensor::ones([3], &device)?.tril(0).is_err());
        assert_eq!(Tensor::ones([3, 0], &device)?.triu(isize::MAX)?.shape()[..], [3, 0]);
        Ok(())
    }

    #[test]
    fn gradients_are_right() {
        gradcheck(&[&[2, 3, 4]], |x| x[0].tril(-1)).unwrap();
        gradcheck(&[&[3, 4]], |x| x[0].triu(1)).unwrap();
    }

    conformance!(triangles, |device| {
        let x = Tensor::ones([20, 30], device)?.requires_grad_(true)?;
        let y = x.tril(0)?.triu(-3)?;
        y.sum()?.backward()?;
        Ok(vec![y, x.grad().unwrap()])
    });

    conformance!(triangles_of_every_type, |device| {
        let mut results = Vec::new();
        for dtype in crate::DType::ALL {
            let x = Tensor::randint(1, 9, [3, 17, 24], (device, dtype))?;
            results.extend([x.tril(1)?, x.triu(-2)?, x.transpose(1, 2)?.tril(-3)?]);
        }
        Ok(results)
    });
}
