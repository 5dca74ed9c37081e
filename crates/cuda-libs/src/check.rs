//! Every kernel compiled for every architecture, as tests do where there is no GPU.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kernels::KernelSource;
use crate::nvrtc::{Architecture, Compiler};

/// Compiles every source for every architecture, on all cores; what does not compile, with the compiler's words.
#[must_use]
pub fn failures(
    compiler: &Compiler,
    sources: &[KernelSource],
    architectures: &[Architecture],
) -> Vec<String> {
    let work: Vec<_> = sources
        .iter()
        .flat_map(|source| architectures.iter().map(move |it| (source, *it)))
        .collect();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(work.len()) {
            scope.spawn(|| {
                while let Some(&(source, architecture)) =
                    work.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    if let Err(error) = compiler.compile(source, architecture) {
                        failed.lock().unwrap_or_else(|it| it.into_inner()).push(error.to_string());
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap_or_else(|it| it.into_inner());
    failed.sort();
    failed
}
