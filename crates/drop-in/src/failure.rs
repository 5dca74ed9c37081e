//! What is said when something is wrong: kept for the thread that made the call.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use tonnage_engine::{AllocError, OutOfMemory};

use crate::interface::run_errands;
use crate::types::{Failure, Status};
use crate::{forks, pool_allocator};

/// What broke the allocator.
static BROKEN: OnceLock<String> = OnceLock::new();

thread_local! {
    static LAST: RefCell<Said> = RefCell::new(Said::default());
}

#[derive(Default)]
struct Said {
    text: CString,
    asked: u64,
    total: u64,
    free: u64,
    allocated: u64,
    reserved: u64,
    rounded: u64,
    rejected: bool,
}

/// What goes wrong, on its way to the caller.
#[derive(Debug)]
pub(crate) enum Wrong {
    NotCached,
    OutOfMemory(Box<OutOfMemory>),
    Rejected(Box<OutOfMemory>),
    Other(String),
}

impl From<AllocError> for Wrong {
    fn from(error: AllocError) -> Self {
        match error {
            AllocError::OutOfMemory(moment) => Self::OutOfMemory(moment),
            AllocError::Rejected(rejected) => Self::Rejected(Box::new(rejected.moment)),
            other => Self::Other(other.to_string()),
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotCached => f.write_str("nothing cached serves the request"),
            Self::OutOfMemory(moment) | Self::Rejected(moment) => moment.fmt(f),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// Anything else is told in its own words.
pub(crate) fn other(error: impl ToString) -> Wrong {
    Wrong::Other(error.to_string())
}

/// Does what a call asks for, and keeps what is to be said of it. Panics end here.
pub(crate) fn answer(work: impl FnOnce() -> Result<(), Wrong>) -> Status {
    if pool_allocator::is_at_work() {
        keep(pool_allocator::SENTENCE, None, false);
        return Status::Failed;
    }
    answer_unlocked(|| {
        let done = work();
        // What is done may be asking such an allocator again.
        while pool_allocator::has_left() {
            run_errands();
        }
        done
    })
}

/// The same for a call that takes no lock.
pub(crate) fn answer_unlocked(work: impl FnOnce() -> Result<(), Wrong>) -> Status {
    if let Some(text) = BROKEN.get() {
        keep(text, None, false);
        return Status::Broken;
    }
    if forks::is_orphan() {
        keep(forks::SENTENCE, None, false);
        return Status::Failed;
    }
    // What a panic leaves behind is never looked at again.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(Wrong::NotCached)) => Status::NotCached,
        Ok(Err(Wrong::OutOfMemory(moment))) => {
            keep(&as_pytorch_says_it(&moment), Some(&moment), false);
            Status::OutOfMemory
        }
        Ok(Err(Wrong::Rejected(moment))) => {
            keep(&as_pytorch_says_it(&moment), Some(&moment), true);
            Status::OutOfMemory
        }
        Ok(Err(Wrong::Other(text))) => {
            keep(&text, None, false);
            Status::Failed
        }
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no word");
            let text = format!(
                "Tonnage's allocator broke, and serves nothing any more: {said}. Please report this; without \
                 tonnage.torch.install() the program runs on PyTorch's own allocator."
            );
            keep(BROKEN.get_or_init(|| text), None, false);
            Status::Broken
        }
    }
}

/// A thread whose locals are gone, as when the process ends, keeps nothing.
fn keep(text: &str, moment: Option<&OutOfMemory>, rejected: bool) {
    // A zero ends a text in C.
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let said = match moment {
        Some(it) => Said {
            text,
            asked: it.segment_size,
            // What PyTorch tells observers: under a limit, that is all there is.
            total: it.limit.unwrap_or(it.device_total),
            free: it.device_free.unwrap_or(0),
            allocated: it.allocated,
            reserved: it.reserved,
            rounded: it.rounded,
            rejected,
        },
        None => Said { text, ..Said::default() },
    };
    let _ = LAST.try_with(|last| last.replace(said));
}

/// What was kept for this thread.
pub(crate) fn last() -> Failure {
    let kept = LAST.try_with(|last| {
        let said = last.borrow();
        Failure {
            text: said.text.as_ptr(),
            asked: said.asked,
            total: said.total,
            free: said.free,
            allocated: said.allocated,
            reserved: said.reserved,
            rounded: said.rounded,
            rejected: u8::from(said.rejected),
        }
    });
    kept.unwrap_or(Failure {
        text: THREAD_IS_OVER.as_ptr(),
        asked: 0,
        total: 0,
        free: 0,
        allocated: 0,
        reserved: 0,
        rounded: 0,
        rejected: 0,
    })
}

/// Said where nothing could be kept.
const THREAD_IS_OVER: &CStr = c"a call failed while its thread, or the process, was ending";

/// The words alone.
pub(crate) fn last_words() -> String {
    let kept = LAST.try_with(|last| last.borrow().text.to_string_lossy().into_owned());
    kept.unwrap_or_else(|_| THREAD_IS_OVER.to_string_lossy().into_owned())
}

/// The message begins as PyTorch's, which programs look for; then comes the cause.
fn as_pytorch_says_it(it: &OutOfMemory) -> String {
    let mut text = format!(
        "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {}",
        size(it.segment_size),
        it.device.0,
        size(it.device_total),
    );
    // Writing to a string cannot fail.
    let _ = match it.device_free {
        Some(free) => write!(text, " of which {} is free. ", size(free)),
        None => write!(text, ". "),
    };
    if let Some(limit) = it.limit {
        let _ = write!(text, "{} allowed; ", size(limit));
    }
    let _ = write!(
        text,
        "Of the allocated memory {} is allocated by PyTorch, and {} is reserved by PyTorch but unallocated.\n{it}",
        size(it.allocated),
        size(it.reserved.saturating_sub(it.allocated)),
    );
    text
}

/// Bytes as PyTorch's messages have them.
fn size(bytes: u64) -> String {
    match bytes {
        0..=1024 => format!("{bytes} bytes"),
        1025..=0x10_0000 => format!("{:.2} KiB", bytes as f64 / 1024.0),
        0x10_0001..=0x4000_0000 => format!("{:.2} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "what is said is read as C reads it")]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_at_the_interface_and_every_call_after_it_says_so() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        assert_eq!(answer(|| panic!("the books are {}", "wrong")), Status::Broken);
        std::panic::set_hook(hook);
        assert_eq!(answer(|| Ok(())), Status::Broken);
        // SAFETY: this thread's text, which nothing has changed since.
        let text = unsafe { std::ffi::CStr::from_ptr(last().text) };
        assert!(text.to_string_lossy().contains("the books are wrong"), "{text:?}");
    }

    #[test]
    fn a_thread_that_is_ending_is_answered_too() {
        /// Makes a call when the locals of its thread go.
        struct Late;
        impl Drop for Late {
            fn drop(&mut self) {
                keep("late", None, false);
                assert!(!last().text.is_null() && !last_words().is_empty());
            }
        }
        thread_local!(static LATE: Late = const { Late });
        // Locals go in the order they were first used in, so that what is kept goes first.
        let ended = std::thread::spawn(|| {
            keep("early", None, false);
            LATE.with(|_| {});
        });
        ended.join().unwrap();
    }

    #[test]
    fn sizes_read_as_pytorchs() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1024, "1024 bytes"),
            (1025, "1.00 KiB"),
            (1 << 20, "1024.00 KiB"),
            ((1 << 20) + 1, "1.00 MiB"),
            (1 << 30, "1024.00 MiB"),
            (3 << 30, "3.00 GiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
