//! Every kernel compiled for every architecture, as tests do where there is no GPU.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cache::Cache;
use crate::kernels::KernelSource;
use crate::nvrtc::{Architecture, Compiler};

/// Compiles every source for every architecture, on all cores; what does not compile, with the compiler's words. What the
/// cache remembers to have compiled is not compiled again; it keeps the fact, and no image.
#[must_use]
pub fn failures(
    compiler: &Compiler,
    compiled: &Cache,
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
                    let compile = || compiler.compile(source, architecture).map(|_| Vec::new());
                    let parts = compiler.parts(source, architecture);
                    if let Err(error) = compiled.get_or(&parts, compile) {
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
