//! What every kernel may use, in CUDA C++: short names of numbers, 16-bit floats, packs, warps and blocks, random numbers.
//!
//! NVRTC knows the language and its intrinsics, and none of the toolkit's headers; those lie in a folder that users of its
//! library need not have. So the little that kernels need of them stands in `prelude.cuh`, which they include as
//! `"tonnage.cuh"`.

/// The name by which kernels include it.
pub const NAME: &str = "tonnage.cuh";

/// The text.
pub const TEXT: &str = include_str!("prelude.cuh");
