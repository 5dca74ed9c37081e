//! Numbers in ordinary memory: what datasets are made of.

use std::sync::Arc;

use crate::dtype::{DType, Element, Stored};
use crate::error::{Call, ErrorKind, Result};
use crate::shape::Shape;

/// Numbers in ordinary memory with a shape. Cloning gives another handle to the same.
#[derive(Clone)]
pub struct Array {
    dtype: DType,
    shape: Shape,
    bytes: Arc<[u8]>,
}

impl Array {
    /// These numbers, rows one after the other.
    ///
    /// # Errors
    ///
    /// If the shape has another number of elements.
    #[track_caller]
    pub fn from_slice<T: Element>(numbers: &[T], shape: impl Into<Shape>) -> Result<Self> {
        let size = T::DTYPE.size();
        let mut bytes = vec![0; numbers.len() * size];
        let places = bytes.chunks_exact_mut(size).zip(numbers);
        places.for_each(|(place, number)| number.store().to_bytes(place));
        Self::new(Call::here("from_slice"), bytes, shape.into(), T::DTYPE)
    }

    /// Numbers by their bytes, in this machine's order.
    ///
    /// # Errors
    ///
    /// If the shape has another number of bytes.
    #[track_caller]
    pub fn from_bytes(bytes: Vec<u8>, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        Self::new(Call::here("from_bytes"), bytes, shape.into(), dtype)
    }

    fn new(call: Call, bytes: Vec<u8>, shape: Shape, dtype: DType) -> Result<Self> {
        let needed = shape.checked_numel().and_then(|numel| numel.checked_mul(dtype.size()));
        if needed != Some(bytes.len()) {
            let error = call.shape_error(format!("{} bytes do not fill the shape", bytes.len()));
            return Err(error.with("shape", format_args!("{dtype}{shape}")));
        }
        Ok(Self { dtype, shape, bytes: bytes.into() })
    }

    /// The sizes of its axes.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The numbers as bytes, in this machine's order.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Some rows, one after the other.
    ///
    /// # Errors
    ///
    /// If there is no such row.
    #[track_caller]
    pub fn rows(&self, indices: &[usize]) -> Result<Self> {
        let call = Call::here("rows");
        let (rows, sizes) = match self.shape.split_first() {
            Some((rows, sizes)) => (*rows, sizes),
            None => (0, &[][..]),
        };
        let width = sizes.iter().product::<usize>() * self.dtype.size();
        let mut bytes = Vec::with_capacity(indices.len() * width);
        for index in indices {
            if *index >= rows {
                let what = format!("there is no row {index}");
                return Err(call.error(ErrorKind::Value, what).with("shape", &self.shape));
            }
            bytes.extend_from_slice(&self.bytes[index * width..][..width]);
        }
        let shape = Shape::from_iter([indices.len()].into_iter().chain(sizes.iter().copied()));
        Self::new(call, bytes, shape, self.dtype)
    }

    /// Arrays of one shape as one with an axis more: how samples become a batch.
    ///
    /// # Errors
    ///
    /// If there are none, or if shapes or types differ.
    #[track_caller]
    pub fn stack(arrays: &[Self]) -> Result<Self> {
        let call = Call::here("stack");
        let Some(first) = arrays.first() else {
            return Err(call.error(ErrorKind::Value, "no arrays have no shape"));
        };
        let mut bytes = Vec::with_capacity(first.bytes.len() * arrays.len());
        for array in arrays {
            if (&array.shape, array.dtype) != (&first.shape, first.dtype) {
                return Err(call
                    .shape_error("samples of one batch differ")
                    .with("first", format_args!("{}{}", first.dtype, first.shape))
                    .with("other", format_args!("{}{}", array.dtype, array.shape)));
            }
            bytes.extend_from_slice(&array.bytes);
        }
        let sizes = [arrays.len()].into_iter().chain(first.shape.iter().copied());
        Self::new(call, bytes, Shape::from_iter(sizes), first.dtype)
    }
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Array({}{})", self.dtype, self.shape)
    }
}
