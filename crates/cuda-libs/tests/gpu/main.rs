//! What only a GPU can answer: compiled kernels give the right numbers, and so do cuBLASLt and cuDNN, for every type, layout and
//! epilogue. Runs where `TONNAGE_TEST_CUDA=1` is set, on device 0; elsewhere says that it is skipped.
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
    if std::env::var_os("TONNAGE_TEST_CUDA").is_none_or(|value| value != "1") {
        println!("skipped: TONNAGE_TEST_CUDA=1 is not set");
        return ExitCode::SUCCESS;
    }
    let gpu = match Gpu::open() {
        Ok(gpu) => gpu,
        Err(error) => {
            println!("FAILED: TONNAGE_TEST_CUDA=1 promises a device: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut cases =
        Cases::new(std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect());
    kernels::run(&gpu, &mut cases);
    blas::run(&gpu, &mut cases);
    dnn::run(&gpu, &mut cases);
    cases.summary()
}
