//! What the host reads from the device: written down in one run, answered from there in another.
//!
//! In the first run values are computed beside the device, and the program is told them through
//! [`tonnage_fake_answer`]; each read goes to a file. The second run has no one who computes: it is given the reads of
//! the first, in their order. Of large reads only the length is kept, and of zeros: a script that saves its weights reads
//! gigabytes, which nothing depends on.
//!
//! A record is eight bytes, the kind in the upper two bits and the length in the others, then the bytes if it has them.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::PathBuf;

use crate::notes;
use crate::state::with_state;

/// The file that reads go to.
pub const READS_OUT_VARIABLE: &str = "TONNAGE_FAKE_READS_OUT";

/// The file that reads are answered from.
pub const READS_IN_VARIABLE: &str = "TONNAGE_FAKE_READS_IN";

/// Longer reads are not kept: the largest storage whose values are computed beside the device has half as many bytes.
const LARGEST: usize = 128 << 10;

/// What is kept of all reads together.
const MOST: u64 = 1 << 30;

/// The bytes follow.
const BYTES: u64 = 0;
/// All are zero.
const ZEROS: u64 = 1 << 62;
/// Nothing is known of them but what the device knows.
const AS_KNOWN: u64 = 2 << 62;
const KIND: u64 = 3 << 62;

/// The reads of this process.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// Whether the environment was asked.
    opened: bool,
    out: Option<Out<File>>,
    earlier: Option<BufReader<File>>,
    /// What the next reads are to answer.
    answers: Vec<Vec<u8>>,
    /// Reads by thread to which nobody knew the answer, since they were last asked for.
    unanswered: BTreeMap<u64, u64>,
}

/// Where reads are written down.
#[derive(Debug)]
struct Out<T> {
    file: T,
    written: u64,
}

impl<T: Write> Out<T> {
    /// Writes a read down; whether that was possible.
    fn put(&mut self, bytes: &[u8]) -> bool {
        let kind = match bytes {
            _ if bytes.iter().all(|byte| *byte == 0) => ZEROS,
            _ if bytes.len() > LARGEST => AS_KNOWN,
            _ => BYTES,
        };
        let kept = if kind == BYTES { bytes } else { &[] };
        self.written += 8 + kept.len() as u64;
        let head = (bytes.len() as u64 | kind).to_le_bytes();
        self.written <= MOST
            && self.file.write_all(&head).and_then(|()| self.file.write_all(kept)).is_ok()
    }
}

impl Reads {
    /// As the environment says. Of several processes the first that reads gets the files.
    fn open(&mut self) {
        let path = |variable| std::env::var_os(variable).map(PathBuf::from);
        let out = path(READS_OUT_VARIABLE).and_then(|path| File::create_new(path).ok());
        self.out = out.map(|file| Out { file, written: 0 });
        self.earlier = path(READS_IN_VARIABLE).and_then(|path| claim(&path)).map(BufReader::new);
        self.opened = true;
    }

    /// A read of what the device holds, all of which it knows or not; `bytes` becomes what the program is told.
    pub(crate) fn read(&mut self, bytes: &mut [u8], known: bool) {
        if !self.opened {
            self.open();
        }
        // The count of a selection is asked for in four or eight bytes.
        let fits = |answer: &&Vec<u8>| {
            answer.len() == bytes.len() || (answer.len() == 8 && bytes.len() == 4)
        };
        match self.answers.first().filter(fits) {
            Some(answer) => {
                bytes.copy_from_slice(&answer[..bytes.len()]);
                self.answers.remove(0);
            }
            None if known => {}
            None => *self.unanswered.entry(this_thread()).or_default() += 1,
        }
        if self.out.as_mut().is_some_and(|out| !out.put(bytes)) {
            self.out = None;
            notes::note(
                notes::GUESSES_FILE,
                "more is read from the device than can be written down: values are zeros from there on",
            );
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
    let mut head = [0; 8];
    earlier.read_exact(&mut head).ok()?;
    let head = u64::from_le_bytes(head);
    if head & !KIND != bytes.len() as u64 {
        return None;
    }
    match head & KIND {
        AS_KNOWN => {}
        ZEROS => bytes.fill(0),
        _ => {
            let mut answer = vec![0; bytes.len()];
            earlier.read_exact(&mut answer).ok()?;
            bytes.copy_from_slice(&answer);
        }
    }
    Some(())
}

fn this_thread() -> u64 {
    // SAFETY: it always succeeds, and takes nothing.
    unsafe { libc::pthread_self() as u64 }
}

/// Reads that nobody knew the answer to, of this thread or of all, since they were last asked for.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_fake_unanswered(all: c_int) -> u64 {
    let take = |unanswered: &mut BTreeMap<u64, u64>| match all {
        0 => unanswered.remove(&this_thread()).unwrap_or(0),
        _ => std::mem::take(unanswered).into_values().sum(),
    };
    with_state(|state| take(&mut state.reads.unanswered)).unwrap_or(0)
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

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("tonnage-{name}-{}", std::process::id()))
    }

    fn writing(path: &PathBuf) -> Reads {
        let out = Some(Out { file: File::create(path).unwrap(), written: 0 });
        Reads { opened: true, out, ..Reads::default() }
    }

    #[test]
    fn reads_of_one_run_are_the_answers_of_the_next() {
        let path = path("reads");
        let mut first = writing(&path);
        first.answers = vec![vec![1, 2, 3, 4, 5, 6, 7, 8], vec![9; 4]];
        let (mut count, mut other, mut unknown) = ([0; 4], [0; 4], [6; 2]);
        first.read(&mut count, false);
        first.read(&mut unknown, true);
        first.read(&mut other, false);
        assert_eq!((count, other, unknown), ([1, 2, 3, 4], [9; 4], [6; 2]));
        assert!(first.unanswered.is_empty());
        first.read(&mut [0; 2], false);
        assert_eq!(first.unanswered[&this_thread()], 1);

        let earlier = claim(&path).map(BufReader::new);
        assert!(earlier.is_some());
        assert!(claim(&path).is_none(), "a second process gets none");
        let mut second = Reads { opened: true, earlier, ..Reads::default() };
        let (mut count, mut unknown, mut three) = ([0; 4], [0; 2], [5; 3]);
        second.read(&mut count, false);
        second.read(&mut unknown, false);
        assert_eq!((count, unknown), ([1, 2, 3, 4], [6; 2]));
        second.read(&mut three, false);
        assert_eq!(three, [5; 3]);
        assert!(second.earlier.is_none(), "another length ends it");
        std::fs::remove_file(path.with_extension(std::process::id().to_string())).unwrap();
    }

    #[test]
    fn large_reads_and_zeros_take_no_room() {
        let path = path("large-reads");
        let mut first = writing(&path);
        let mut large = vec![3; LARGEST + 1];
        first.read(&mut large, true);
        first.read(&mut vec![0; 100 << 20], false);
        first.read(&mut [7; 4], true);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 * 8 + 4);

        let earlier = Some(BufReader::new(File::open(&path).unwrap()));
        let mut second = Reads { opened: true, earlier, ..Reads::default() };
        let (mut zeros, mut four) = (vec![1; 100 << 20], [0; 4]);
        let mut large = vec![8; LARGEST + 1];
        second.read(&mut large, true);
        assert!(large.iter().all(|byte| *byte == 8), "what the device knows stays");
        second.read(&mut zeros, false);
        assert!(zeros.iter().all(|byte| *byte == 0));
        second.read(&mut four, false);
        assert_eq!(four, [7; 4]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut out = Out { file: Vec::new(), written: MOST - 12 };
        assert!(out.put(&[1; 4]));
        assert!(!out.put(&[1; 4]));
        assert_eq!(out.file.len(), 12);
    }
}
