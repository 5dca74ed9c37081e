//! Host memory as a device.
