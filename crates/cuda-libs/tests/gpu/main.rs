//! What only a GPU can answer: compiled kernels give the right numbers, and so do cuBLASLt and cuDNN, for every type, layout and
//! epilogue. Runs where `TONNAGE_TEST_CUDA=1` is set, on device 0. Elsewhere products alone run, on the fake driver and its
//! cuBLASLt: whether shapes, transpositions and epilogues are put into the library's words as its manual has them.
//!
//! One line for each case: whether it is right, its largest error against a plain loop in `f64` and what is allowed, its time on the
//! device. Every case runs, whatever became of those before; the program fails if any did. Arguments choose cases by a part of
//! their name.

mod blas;
mod dnn;
mod kernels;
mod support;

use std::process::ExitCode;

use support::{Cases, Gpu};

fn main() -> ExitCode {
    let is_real = std::env::var_os("TONNAGE_TEST_CUDA").is_some_and(|value| value == "1");
    let gpu = match if is_real { Gpu::open() } else { Gpu::open_fake() } {
        Ok(gpu) => gpu,
        Err(error) => {
            println!("FAILED: there is no device: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut cases =
        Cases::new(std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect());
    if gpu.is_real {
        kernels::run(&gpu, &mut cases);
        dnn::run(&gpu, &mut cases);
    }
    blas::run(&gpu, &mut cases);
    cases.summary()
}
