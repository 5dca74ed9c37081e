//! What the host reads from the device: written down in one run, answered from there in another.
//!
//! In the first run values are computed beside the device, and the program is told them through
//! [`tonnage_fake_answer`]; each read goes to a file. The second run has no one who computes: it is given the reads of
//! the first, in their order.

use std::ffi::c_void;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::PathBuf;

use crate::notes;
use crate::state::with_state;

/// The file that reads go to.
pub const READS_OUT_VARIABLE: &str = "TONNAGE_FAKE_READS_OUT";

/// The file that reads are answered from.
pub const READS_IN_VARIABLE: &str = "TONNAGE_FAKE_READS_IN";

/// The reads of this process.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// Whether the environment was asked.
    opened: bool,
    out: Option<File>,
    earlier: Option<BufReader<File>>,
    /// What the next reads are to answer.
    answers: Vec<Vec<u8>>,
}

impl Reads {
    /// As the environment says. Of several processes the first that reads gets the files.
    fn open(&mut self) {
        let path = |variable| std::env::var_os(variable).map(PathBuf::from);
        self.out = path(READS_OUT_VARIABLE).and_then(|path| File::create_new(path).ok());
        self.earlier = path(READS_IN_VARIABLE).and_then(|path| claim(&path)).map(BufReader::new);
        self.opened = true;
    }

    /// A read of what the device holds as far as it is known; `bytes` becomes what the program is told.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) {
        if !self.opened {
            self.open();
        }
        if let Some(answer) = self.answers.first() {
            // The count of a selection is asked for in four or eight bytes.
            if answer.len() == bytes.len() || (answer.len() == 8 && bytes.len() == 4) {
                bytes.copy_from_slice(&answer[..bytes.len()]);
                self.answers.remove(0);
            }
        }
        if let Some(out) = &mut self.out {
            let length = (bytes.len() as u64).to_le_bytes();
            let written = out.write_all(&length).and_then(|()| out.write_all(bytes));
            if written.is_err() {
                self.out = None;
                notes::note(notes::READS_FILE, "reads could not be written down");
            }
        }
        if let Some(earlier) = &mut self.earlier
            && answer_from(earlier, bytes).is_none()
        {
            self.earlier = None;
            notes::note(
                notes::READS_FILE,
                &format!("{} bytes were read that were not read before", bytes.len()),
            );
        }
    }
}

/// The file of earlier reads, which only one process gets: the first that asks. It moves away by that.
fn claim(path: &PathBuf) -> Option<File> {
    let mine = path.with_extension(std::process::id().to_string());
    std::fs::rename(path, &mine).ok()?;
    File::open(mine).ok()
}

fn answer_from(earlier: &mut impl Read, bytes: &mut [u8]) -> Option<()> {
    let mut length = [0; 8];
    earlier.read_exact(&mut length).ok()?;
    if u64::from_le_bytes(length) != bytes.len() as u64 {
        return None;
    }
    let mut answer = vec![0; bytes.len()];
    earlier.read_exact(&mut answer).ok()?;
    bytes.copy_from_slice(&answer);
    Some(())
}

/// The next read of so many bytes is to answer these.
///
/// # Safety
///
/// `bytes` can be read for `length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_fake_answer(bytes: *const c_void, length: usize) {
    if bytes.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
    with_state(|state| state.reads.answers.push(bytes.to_vec()));
}

/// Answers that nobody asked for are forgotten.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_fake_answers_end() {
    with_state(|state| state.reads.answers.clear());
}

/// What is known of the device's bytes, with zeros for the rest. Not a read of the program's.
///
/// # Safety
///
/// `into` can be written for `length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tonnage_fake_peek(into: *mut c_void, address: u64, length: usize) {
    if into.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), length) };
    with_state(|state| state.shadow.read(address, into));
}

/// What the device's bytes are is no longer known.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_fake_forget(address: u64, length: usize) {
    with_state(|state| state.shadow.forget(address, length));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_one_run_are_the_answers_of_the_next() {
        let path = std::env::temp_dir().join(format!("tonnage-reads-{}", std::process::id()));
        let out = Some(File::create(&path).unwrap());
        let mut first = Reads { opened: true, out, ..Reads::default() };
        first.answers = vec![vec![1, 2, 3, 4, 5, 6, 7, 8], vec![9; 4]];
        let (mut count, mut other, mut unknown) = ([0; 4], [0; 4], [6; 2]);
        first.read(&mut count);
        first.read(&mut unknown);
        first.read(&mut other);
        assert_eq!((count, other, unknown), ([1, 2, 3, 4], [9; 4], [6; 2]));

        let earlier = claim(&path).map(BufReader::new);
        assert!(earlier.is_some());
        assert!(claim(&path).is_none(), "a second process gets none");
        let mut second = Reads { opened: true, earlier, ..Reads::default() };
        let (mut count, mut unknown, mut three) = ([0; 4], [0; 2], [5; 3]);
        second.read(&mut count);
        second.read(&mut unknown);
        assert_eq!((count, unknown), ([1, 2, 3, 4], [6; 2]));
        second.read(&mut three);
        assert_eq!(three, [5; 3]);
        assert!(second.earlier.is_none(), "another length ends it");
        std::fs::remove_file(path.with_extension(std::process::id().to_string())).unwrap();
    }
}
