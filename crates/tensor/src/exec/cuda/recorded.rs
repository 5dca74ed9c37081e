//! The programs that a GPU would run, written down as kernels are queued.
//!
//! In:  plans, on any device, `dry` too.
//! Out: each program once, as text: for a compiler on a machine without a GPU.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tonnage_cuda_libs::KernelSource;

use super::plan::{Operands, Program};
use crate::exec::{Kernel, Operand};

/// Those of one device.
#[derive(Default)]
pub(crate) struct RecordedPrograms {
    records: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    programs: HashSet<Program>,
    in_order: Vec<KernelSource>,
}

impl RecordedPrograms {
    pub(crate) fn record(&self) {
        self.records.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> Vec<KernelSource> {
        self.records.store(false, Ordering::Relaxed);
        let seen = std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        seen.in_order
    }

    /// Writes down what a GPU would run of this kernel.
    pub(crate) fn see(&self, kernel: &dyn Kernel, outputs: &[Operand], inputs: &[Operand]) {
        let launches = kernel.cuda(Operands { outputs, inputs }).into_launches();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for launch in launches {
            let program = launch.program;
            if seen.programs.contains(&program) {
                continue;
            }
            seen.in_order.push(program.source());
            seen.programs.insert(program);
        }
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.records.load(Ordering::Relaxed)
    }
}
