//! Everything that is tested from outside the crate, as one program.

mod autograd;

mod checkpoint;

mod errors;

mod fuzz;

mod kernels;

mod models;

mod offload;

mod properties;

mod pytorch_bytes;

mod pytorch_models;

mod pytorch_optim;

mod pytorch_requests;

mod pytorch_values;

mod streams;

mod training;
