//! Descriptors of a shape, and the algorithm that was chosen for it.
//!
//! The library's matrices are columns first: a matrix of ours, row by row, is its transpose to it. So it is asked for
//! Dᵀ = Bᵀ · Aᵀ: its left matrix is our B, its right one our A, and flags stay as they are.

use std::sync::Arc;

use super::product::{Epilogue, Math, Number, Product};
use super::sys::{
    Algorithm, Handle, Heuristic, Layout, Preference, ProductDescriptor, REDUCE_IN_COMPUTE_TYPE,
    Status, Table, compute, data, epilogue, layout, preference, product,
};
use crate::{Error, Result};

/// Algorithms that are asked for: the first that fits the workspace is taken.
const WANTED: usize = 8;

/// The strictest alignment that an algorithm can ask for.
const ALIGNMENT_MOST: u64 = 256;

/// What decides an algorithm: the shape, and how well addresses are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) product: Product,
    /// Of A, B, C, D, the vector and what lies beside, in bytes, up to 256.
    pub(super) alignments: [u32; 6],
}

/// The alignment of an address.
pub(super) fn alignment(address: u64) -> u32 {
    (1u64 << address.trailing_zeros().min(8)).min(ALIGNMENT_MOST) as u32
}

/// All that a product needs but its addresses.
pub(super) struct Plan {
    pub(super) descriptor: Owned<ProductDescriptor>,
    /// Of our B, our A, and D, which is C's too.
    pub(super) layouts: [Owned<Layout>; 3],
    pub(super) algorithm: Algorithm,
    /// Bytes of the workspace that the algorithm uses.
    pub(super) workspace: u64,
}

/// `cudaDataType_t` of a number.
pub(super) const fn data_type(number: Number) -> i32 {
    match number {
        Number::F16 => data::R_16F,
        Number::Bf16 => data::R_16BF,
        Number::F32 => data::R_32F,
        Number::F64 => data::R_64F,
        Number::Complex32 => data::C_32F,
        Number::Complex64 => data::C_64F,
    }
}

/// In which type the library computes, and in which it scales.
const fn computing(input: Number, math: Math) -> (i32, i32) {
    match (input, math) {
        (Number::F16 | Number::Bf16, _) | (Number::F32, Math::Full) => (compute::F32, data::R_32F),
        (Number::F32, Math::Tf32) => (compute::F32_FAST_TF32, data::R_32F),
        (Number::F64, _) => (compute::F64, data::R_64F),
        (Number::Complex32, Math::Full) => (compute::F32, data::C_32F),
        (Number::Complex32, Math::Tf32) => (compute::F32_FAST_TF32, data::C_32F),
        (Number::Complex64, _) => (compute::F64, data::C_64F),
    }
}

/// `alpha` or `beta` as the library takes it.
pub(super) fn scalar(input: Number, value: f64) -> [u8; 16] {
    let mut bytes = [0; 16];
    match input {
        Number::F64 | Number::Complex64 => bytes[..8].copy_from_slice(&value.to_ne_bytes()),
        _ => bytes[..4].copy_from_slice(&(value as f32).to_ne_bytes()),
    }
    bytes
}

/// The library's name of an epilogue. Rows of its D are our columns, and its left matrix is our B.
const fn epilogue_of(wanted: Epilogue) -> u32 {
    const fn with(base: u32, bias: bool, aside: Option<u64>) -> u32 {
        let aux = if aside.is_some() { epilogue::AUX } else { 0 };
        base | aux | if bias { epilogue::BIAS } else { 0 }
    }
    match wanted {
        Epilogue::None => epilogue::DEFAULT,
        Epilogue::Bias => epilogue::BIAS,
        Epilogue::Relu { bias, mask } => with(epilogue::RELU, bias, mask),
        Epilogue::Gelu { bias, saved } => with(epilogue::GELU, bias, saved),
        Epilogue::ReluGradient { bias_gradient, .. } => {
            epilogue::DRELU | if bias_gradient { epilogue::BGRAD } else { 0 }
        }
        Epilogue::GeluGradient { bias_gradient, .. } => {
            epilogue::DGELU | if bias_gradient { epilogue::BGRAD } else { 0 }
        }
        Epilogue::RowSumsOfA => epilogue::BGRADB,
        Epilogue::ColumnSumsOfB => epilogue::BGRADA,
    }
}

impl Plan {
    /// Describes a shape and asks for its algorithm. The device's context is current.
    pub(super) fn make(table: &Arc<Table>, handle: Handle, key: &Key, bound: u64) -> Result<Self> {
        let Key { product, alignments } = key;
        let descriptor = describe(table, product, alignments)?;
        let number = data_type(product.input);
        let layouts = [
            // Rows and columns as the library sees what lies there: columns first.
            lay_out(table, product, number, product.b, (product.k, product.n))?,
            lay_out(table, product, number, product.a, (product.m, product.k))?,
            lay_out(table, product, data_type(product.output), product.d, (product.m, product.n))?,
        ];
        let wishes = prefer(table, product, alignments, bound)?;
        let [left, right, result] = layouts.each_ref().map(|it| it.handle);
        let (mut found, mut count) = ([Heuristic::NONE; WANTED], 0);
        // SAFETY: all descriptors are alive; there is room for as many results as are wanted.
        let status = unsafe {
            (table.heuristic)(
                handle,
                descriptor.handle,
                left,
                right,
                result,
                result,
                wishes.handle,
                WANTED as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        table.check("cublasLtMatmulAlgoGetHeuristic", status, product)?;
        let count = usize::try_from(count).unwrap_or(0).min(WANTED);
        let fits = |it: &&Heuristic| it.state == Status::SUCCESS && it.workspace as u64 <= bound;
        let Some(best) = found[..count].iter().find(fits) else {
            return Err(Error::Refused {
                library: "cuBLASLt",
                call: "cublasLtMatmulAlgoGetHeuristic",
                status: format!("no algorithm within {bound} bytes of workspace"),
                what: product.to_string(),
            });
        };
        let (algorithm, workspace) = (best.algorithm, best.workspace as u64);
        Ok(Self { descriptor, layouts, algorithm, workspace })
    }
}

fn describe(
    table: &Arc<Table>,
    wanted: &Product,
    alignments: &[u32; 6],
) -> Result<Owned<ProductDescriptor>> {
    let (compute, scale) = computing(wanted.input, wanted.math);
    let mut handle = ProductDescriptor::NULL;
    // SAFETY: `handle` is a place for one handle, which is destroyed with its owner.
    let status = unsafe { (table.product_create)(&mut handle, compute, scale) };
    table.check("cublasLtMatmulDescCreate", status, wanted)?;
    let owned = Owned { handle, table: Arc::clone(table) };
    let transpose = |is: bool| i32::from(is).to_ne_bytes();
    owned.set(product::TRANSPOSE_A, &transpose(wanted.b.transposed), wanted)?;
    owned.set(product::TRANSPOSE_B, &transpose(wanted.a.transposed), wanted)?;
    owned.set(product::EPILOGUE, &epilogue_of(wanted.epilogue).to_ne_bytes(), wanted)?;
    if wanted.epilogue.has_vector() {
        owned.set(product::BIAS_DATA_TYPE, &data_type(wanted.output).to_ne_bytes(), wanted)?;
        // What is asked of algorithms looks at addresses for their alignment alone.
        owned.set(product::BIAS_POINTER, &u64::from(alignments[4]).to_ne_bytes(), wanted)?;
    }
    if let Some(aside) = wanted.epilogue.aside() {
        owned.set(
            product::EPILOGUE_AUX_POINTER,
            &u64::from(alignments[5]).to_ne_bytes(),
            wanted,
        )?;
        owned.set(product::EPILOGUE_AUX_LD, &(aside as i64).to_ne_bytes(), wanted)?;
        if wanted.batch > 1 {
            let stride = (aside * wanted.m) as i64;
            owned.set(product::EPILOGUE_AUX_BATCH_STRIDE, &stride.to_ne_bytes(), wanted)?;
        }
    }
    Ok(owned)
}

fn lay_out(
    table: &Arc<Table>,
    wanted: &Product,
    number: i32,
    matrix: super::Matrix,
    (rows, columns): (u64, u64),
) -> Result<Owned<Layout>> {
    // As it lies there, row by row; to the library its rows are columns.
    let (rows, columns) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
    let mut handle = Layout::NULL;
    // SAFETY: `handle` is a place for one handle, which is destroyed with its owner.
    let status =
        unsafe { (table.layout_create)(&mut handle, number, columns, rows, matrix.leading as i64) };
    table.check("cublasLtMatrixLayoutCreate", status, wanted)?;
    let owned = Owned { handle, table: Arc::clone(table) };
    if wanted.batch > 1 {
        let count = i32::try_from(wanted.batch).map_err(|_| {
            Error::Misuse(format!("{} products are more than the library takes", wanted.batch))
        })?;
        owned.set(layout::BATCH_COUNT, &count.to_ne_bytes(), wanted)?;
        let stride = (matrix.stride as i64).to_ne_bytes();
        owned.set(layout::STRIDED_BATCH_OFFSET, &stride, wanted)?;
    }
    Ok(owned)
}

fn prefer(
    table: &Arc<Table>,
    wanted: &Product,
    alignments: &[u32; 6],
    bound: u64,
) -> Result<Owned<Preference>> {
    let mut handle = Preference::NULL;
    // SAFETY: `handle` is a place for one handle, which is destroyed with its owner.
    let status = unsafe { (table.preference_create)(&mut handle) };
    table.check("cublasLtMatmulPreferenceCreate", status, wanted)?;
    let owned = Owned { handle, table: Arc::clone(table) };
    owned.set(preference::MAX_WORKSPACE_BYTES, &bound.to_ne_bytes(), wanted)?;
    if matches!(wanted.output, Number::F16 | Number::Bf16) {
        // Parts of a sum are not rounded to 16 bits on the way.
        let scheme = REDUCE_IN_COMPUTE_TYPE.to_ne_bytes();
        owned.set(preference::REDUCTION_SCHEME_MASK, &scheme, wanted)?;
    }
    // The library's A is our B.
    let [a, b, c, d, ..] = *alignments;
    for (attribute, bytes) in [
        (preference::MIN_ALIGNMENT_A_BYTES, b),
        (preference::MIN_ALIGNMENT_B_BYTES, a),
        (preference::MIN_ALIGNMENT_C_BYTES, c),
        (preference::MIN_ALIGNMENT_D_BYTES, d),
    ] {
        owned.set(attribute, &bytes.to_ne_bytes(), wanted)?;
    }
    Ok(owned)
}

/// A descriptor that goes when dropped.
pub(super) struct Owned<T: Descriptor> {
    pub(super) handle: T,
    table: Arc<Table>,
}

/// A kind of descriptor.
pub(super) trait Descriptor: Copy {
    const SET: &'static str;

    /// # Safety
    ///
    /// The descriptor is alive, and the value has the size that the attribute has.
    unsafe fn set(self, table: &Table, attribute: i32, value: &[u8]) -> Status;

    /// # Safety
    ///
    /// The descriptor is alive, and not used from now on.
    unsafe fn destroy(self, table: &Table);
}

macro_rules! descriptor {
    ($kind:ty, $set:ident = $name:literal, $destroy:ident) => {
        impl Descriptor for $kind {
            const SET: &'static str = $name;

            unsafe fn set(self, table: &Table, attribute: i32, value: &[u8]) -> Status {
                // SAFETY: the caller's promise; the library compares the size with the attribute's.
                unsafe { (table.$set)(self, attribute, value.as_ptr().cast(), value.len()) }
            }

            unsafe fn destroy(self, table: &Table) {
                // SAFETY: the caller's promise. Nobody is left to hear of an error.
                unsafe { (table.$destroy)(self) };
            }
        }
    };
}

descriptor!(ProductDescriptor, product_set = "cublasLtMatmulDescSetAttribute", product_destroy);
descriptor!(Layout, layout_set = "cublasLtMatrixLayoutSetAttribute", layout_destroy);
descriptor!(
    Preference,
    preference_set = "cublasLtMatmulPreferenceSetAttribute",
    preference_destroy
);

impl<T: Descriptor> Owned<T> {
    pub(super) fn set(&self, attribute: i32, value: &[u8], wanted: &Product) -> Result<()> {
        // SAFETY: alive as long as `self`.
        let status = unsafe { self.handle.set(&self.table, attribute, value) };
        self.table.check(T::SET, status, wanted)
    }
}

impl<T: Descriptor> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { self.handle.destroy(&self.table) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epilogues_have_the_librarys_numbers() {
        let of = |bias, saved| epilogue_of(Epilogue::Gelu { bias, saved });
        assert_eq!((of(false, None), of(true, None)), (32, 36));
        assert_eq!((of(false, Some(8)), of(true, Some(8))), (160, 164));
        let relu = epilogue_of(Epilogue::Relu { bias: true, mask: Some(128) });
        assert_eq!(relu, 2 | 4 | 128);
        let gradient = |bias_gradient| Epilogue::GeluGradient { saved: 8, bias_gradient };
        assert_eq!([gradient(false), gradient(true)].map(epilogue_of), [192, 208]);
        let gradient = |bias_gradient| Epilogue::ReluGradient { mask: 128, bias_gradient };
        assert_eq!([gradient(false), gradient(true)].map(epilogue_of), [136, 152]);
        assert_eq!(epilogue_of(Epilogue::RowSumsOfA), 512, "our A is the library's B");
    }

    #[test]
    fn alignments_stop_at_256() {
        assert_eq!([0, 1, 2, 48, 256, 1 << 40].map(alignment), [256, 1, 2, 16, 256, 256]);
    }

    #[test]
    fn scalars_have_the_type_in_which_is_scaled() {
        assert_eq!(scalar(Number::Bf16, 1.5)[..4], 1.5f32.to_ne_bytes());
        assert_eq!(scalar(Number::Complex64, 1.5)[..8], 1.5f64.to_ne_bytes());
        assert_eq!(scalar(Number::Complex32, 1.5)[4..], [0; 12]);
    }

    /// Descriptors need no device: where the library is, it takes them all.
    #[test]
    fn the_library_takes_every_description() {
        let Ok(found) = crate::find::Search::here().open(&super::super::CUBLASLT) else {
            println!("skipped: there is no cuBLASLt here");
            return;
        };
        let table = Arc::new(Table::resolve(&found).unwrap());
        let path = found.keep();
        println!("{}", path.display());
        let epilogues = [
            Epilogue::None,
            Epilogue::Bias,
            Epilogue::Relu { bias: true, mask: Some(128) },
            Epilogue::Gelu { bias: true, saved: Some(16) },
            Epilogue::GeluGradient { saved: 16, bias_gradient: true },
            Epilogue::ReluGradient { mask: 128, bias_gradient: true },
            Epilogue::RowSumsOfA,
            Epilogue::ColumnSumsOfB,
        ];
        use Number::*;
        for number in [F16, Bf16, F32, F64, Complex32, Complex64] {
            for epilogue in epilogues {
                let mut product = Product::dense([8, 16, 32], [true, false], number);
                (product.batch, product.epilogue) = (3, epilogue);
                let alignments = [256, 128, 64, 32, 16, 16];
                describe(&table, &product, &alignments).unwrap();
                lay_out(&table, &product, data_type(number), product.a, (8, 32)).unwrap();
                prefer(&table, &product, &alignments, 32 << 20).unwrap();
            }
        }
        let product = Product::dense([8, 16, 32], [false, false], F32);
        let descriptor = describe(&table, &product, &[256; 6]).unwrap();
        let error = descriptor.set(product::EPILOGUE, &[0; 3], &product).unwrap_err().to_string();
        assert_eq!(
            error,
            "cuBLASLt: cublasLtMatmulDescSetAttribute failed with CUBLAS_STATUS_INVALID_VALUE for \
             1 products of 8×32 by 32×16 in F32 to F32"
        );
    }
}
