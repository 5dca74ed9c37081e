//! Matrix products on this machine, by the `gemm` crate.
//!
//! In:  matrices as slices with strides.
//! Out: their product, on all cores.

use gemm::Parallelism;

use crate::number::Complex64;

/// A matrix: element (row, column) lies at `data[row·strides.0 + column·strides.1]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) strides: (usize, usize),
    /// Whether to take the conjugate of each element.
    pub(crate) conj: bool,
}

/// An element type that has products.
pub(crate) trait Product: Copy + Send + Sync + Default + 'static {
    /// The type that `gemm` knows; it has the same bits.
    type Gemm: Copy + Send + Sync + 'static;
    const ONE: Self::Gemm;
}

impl Product for f32 {
    type Gemm = f32;
    const ONE: f32 = 1.0;
}

impl Product for f64 {
    type Gemm = f64;
    const ONE: f64 = 1.0;
}

impl Product for Complex64 {
    type Gemm = gemm::c32;
    const ONE: gemm::c32 = gemm::c32::new(1.0, 0.0);
}

/// Multiplications below which one thread is faster than waking others: measured on two cores, where
/// 64³ costs the same either way.
const ALONE: usize = 64 * 64 * 64;

impl<T> Matrix<'_, T> {
    /// Whether all of `rows × columns` lies inside the slice.
    fn holds(&self, rows: usize, columns: usize) -> bool {
        let last = |size: usize, stride: usize| (size.saturating_sub(1)).checked_mul(stride);
        let place = last(rows, self.strides.0)
            .zip(last(columns, self.strides.1))
            .and_then(|(row, column)| row.checked_add(column));
        rows == 0 || columns == 0 || place.is_some_and(|place| place < self.data.len())
    }
}

/// `to = a · b`, or `to += a · b`, for `to` of m rows of n, `a` m × k, `b` k × n. `alone`: on this
/// thread only.
///
/// # Panics
///
/// If a matrix does not lie inside its slice: a bug in the kernel that calls.
pub(crate) fn product<T: Product>(
    (m, n, k): (usize, usize, usize),
    to: &mut [T],
    add: bool,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    alone: bool,
) {
    assert!(a.holds(m, k) && b.holds(k, n), "matrices lie inside their memory");
    assert_eq!(m.checked_mul(n), Some(to.len()), "the product fills its memory");
    if to.is_empty() {
        return;
    }
    if k == 0 {
        if !add {
            to.fill(T::default());
        }
        return;
    }
    let small = m.saturating_mul(n).saturating_mul(k) <= ALONE;
    // Zero means as many threads as there are.
    let parallelism = if alone || small { Parallelism::None } else { Parallelism::Rayon(0) };
    let signed = |stride: usize| stride as isize;
    // SAFETY:
    // - The three matrices lie inside their slices: asserted above.
    // - `to` is an exclusive slice, so neither `a` nor `b` overlaps it.
    // - `T::Gemm` has the same bits as `T`: the type itself, or two `f32`s one after the other.
    // - All elements are initialised, since slices are.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            to.as_mut_ptr().cast::<T::Gemm>(),
            1,
            signed(n),
            add,
            a.data.as_ptr().cast::<T::Gemm>(),
            signed(a.strides.1),
            signed(a.strides.0),
            b.data.as_ptr().cast::<T::Gemm>(),
            signed(b.strides.1),
            signed(b.strides.0),
            T::ONE,
            T::ONE,
            false,
            a.conj,
            b.conj,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strided_products_equal_the_definition() {
        let (m, n, k) = (5, 7, 3);
        let a: Vec<f64> = (0..m * k).map(|it| it as f64).collect();
        let b: Vec<f64> = (0..k * n).map(|it| (it * it) as f64).collect();
        let mut expected = vec![0.0; m * n];
        for (row, column, inner) in (0..m).flat_map(|row| {
            (0..n).flat_map(move |column| (0..k).map(move |inner| (row, column, inner)))
        }) {
            // `a` by columns, `b` by rows.
            expected[row * n + column] += a[inner * m + row] * b[inner * n + column];
        }
        let [a, b] = [(&a, (1, m)), (&b, (n, 1))].map(|(data, strides)| Matrix {
            data,
            strides,
            conj: false,
        });
        let mut to = vec![f64::NAN; m * n];
        product((m, n, k), &mut to, false, a, b, false);
        assert_eq!(to, expected);
        product((m, n, k), &mut to, true, a, b, true);
        assert!(to.iter().zip(&expected).all(|(twice, once)| *twice == 2.0 * once));
        product((m, n, 0), &mut to, false, a, b, false);
        assert_eq!(to, vec![0.0; m * n]);
    }

    #[test]
    fn conjugates_are_taken() {
        let a = [Complex64::new(1.0, 2.0)];
        let b = [Complex64::new(3.0, -1.0)];
        let mut to = [Complex64::default()];
        let [a, b] = [(&a, true), (&b, false)].map(|(data, conj)| Matrix {
            data: data.as_slice(),
            strides: (1, 1),
            conj,
        });
        product((1, 1, 1), &mut to, false, a, b, false);
        assert_eq!(to[0], Complex64::new(1.0, -2.0) * Complex64::new(3.0, -1.0));
    }
}
