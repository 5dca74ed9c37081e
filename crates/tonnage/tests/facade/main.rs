//! The crates together: histories that are dumped and replayed, failures that explain themselves.

mod dump;

mod oom_blocks;

mod oom_tensors;
