//! Data: datasets, batches, and their way to the device beside the computation.
//!
//! ```
//! use tonnage_tensor::Device;
//! use tonnage_tensor::data::{Array, DataLoader, TensorDataset};
//!
//! let device = Device::host("64 MiB")?;
//! let x = Array::from_slice(&[0.0f32; 400], [100, 4])?;
//! let y = Array::from_slice(&[0i64; 100], [100])?;
//! let loader = DataLoader::new(TensorDataset::new(vec![x, y])?, &device)
//!     .batch_size(32)
//!     .shuffle(7)
//!     .drop_last(true)
//!     .workers(2);
//! for batch in loader.epoch(0)? {
//!     let batch = batch?;
//!     assert_eq!((&batch[0].shape()[..], &batch[1].shape()[..]), (&[32, 4][..], &[32][..]));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod array;

mod dataset;

mod loader;

pub use array::Array;
pub use dataset::{Dataset, TensorDataset};
pub use loader::{DataLoader, Epoch};
