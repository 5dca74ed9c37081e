//! Where samples come from.

use super::array::Array;
use crate::error::{Call, Result};

/// Samples by number. Workers ask from several threads at once.
#[allow(clippy::len_without_is_empty, reason = "an empty dataset is no special case")]
pub trait Dataset: Send + Sync {
    /// How many samples there are.
    fn len(&self) -> usize;

    /// The parts of one sample, such as an image and its label.
    ///
    /// # Errors
    ///
    /// If it cannot be had; the loader passes the error on in its place.
    fn get(&self, index: usize) -> Result<Vec<Array>>;

    /// Several samples as one batch: each part stacked. Override it where that is faster.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get), and if samples differ in shape.
    #[track_caller]
    fn batch(&self, indices: &[usize]) -> Result<Vec<Array>> {
        let samples = indices.iter().map(|it| self.get(*it)).collect::<Result<Vec<_>>>()?;
        let parts = samples.iter().map(Vec::len).min().unwrap_or(0);
        let part = |place: usize| {
            let arrays: Vec<Array> = samples.iter().map(|sample| sample[place].clone()).collect();
            Array::stack(&arrays)
        };
        (0..parts).map(part).collect()
    }
}

/// Samples that are rows of arrays in memory.
#[derive(Clone, Debug)]
pub struct TensorDataset {
    arrays: Vec<Array>,
    rows: usize,
}

impl TensorDataset {
    /// Sample i is row i of each.
    ///
    /// # Errors
    ///
    /// If they have different numbers of rows.
    #[track_caller]
    pub fn new(arrays: Vec<Array>) -> Result<Self> {
        let call = Call::here("TensorDataset");
        let rows_of = |array: &Array| array.shape().first().copied().unwrap_or(0);
        let rows = arrays.first().map_or(0, rows_of);
        if let Some(other) = arrays.iter().find(|array| rows_of(array) != rows) {
            return Err(call
                .shape_error("the arrays have different numbers of rows")
                .with("first", rows)
                .with("other", rows_of(other)));
        }
        Ok(Self { arrays, rows })
    }
}

impl Dataset for TensorDataset {
    fn len(&self) -> usize {
        self.rows
    }

    fn get(&self, index: usize) -> Result<Vec<Array>> {
        self.batch(&[index])
    }

    fn batch(&self, indices: &[usize]) -> Result<Vec<Array>> {
        self.arrays.iter().map(|array| array.rows(indices)).collect()
    }
}

impl<D: Dataset + ?Sized> Dataset for std::sync::Arc<D> {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, index: usize) -> Result<Vec<Array>> {
        (**self).get(index)
    }

    fn batch(&self, indices: &[usize]) -> Result<Vec<Array>> {
        (**self).batch(indices)
    }
}
