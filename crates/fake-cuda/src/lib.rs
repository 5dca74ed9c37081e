//! A CUDA driver made of host memory, to test CUDA code without a GPU.
