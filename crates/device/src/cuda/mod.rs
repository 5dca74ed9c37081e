//! NVIDIA devices through the CUDA driver.
