//! What the host reads from the device: written down in one run, answered from there in another.
//!
//! In the first run values are computed beside the device, and the program is told them through
//! [`tonnage_fake_answer`]; each read goes to a file. The second run has no one who computes: it is given the reads of
//! the first, in their order. Of large reads only the length is kept, and of zeros: a script that saves its weights reads
//! gigabytes, which nothing depends on.
//!
//! Each process has a file of its own, under the name by which it was begun (`hook/tonnage_births.py`), and the number of those
//! that had this name before it: processes that no Python began have the name of the one that began them.
//!
//! A record is eight bytes, the kind in the upper two bits, then the number of the thread that read, and the length; then the bytes
//! if it has them.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use crate::notes;
use crate::state::with_state;

/// Where reads go to: how the names of the files begin.
pub const READS_OUT_VARIABLE: &str = "TONNAGE_FAKE_READS_OUT";

/// Where reads are answered from, in the same way.
pub const READS_IN_VARIABLE: &str = "TONNAGE_FAKE_READS_IN";

/// Which of a script's processes this is.
pub const BIRTH_VARIABLE: &str = "TONNAGE_BIRTH";

/// Processes of one name that have files.
const SAME_NAME: u32 = 10_000;

/// Longer reads are not kept: the largest storage whose values are computed beside the device has half as many bytes.
const LARGEST: usize = 128 << 10;

/// What is kept of all reads together.
const MOST: u64 = 1 << 30;

/// How the head of a record is divided: a length, the number of the thread as far as there is room for it, and the kind.
const LENGTH_BITS: u32 = 48;
const LENGTH: u64 = (1 << LENGTH_BITS) - 1;
const THREADS: u64 = (1 << (62 - LENGTH_BITS)) - 1;

/// What is said where the order of reads is not the one in which values were written down.
const OTHER_TURNS: &str = "threads take turns at reading that are not those of before: whose values are whose is not known";

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
    /// The process that asked the environment: a child that is forked asks again.
    opened: Option<u32>,
    /// Whether reads are answered from an earlier run.
    answered: bool,
    out: Option<Out<File>>,
    earlier: Option<BufReader<File>>,
    /// What the next reads of each thread are to answer.
    answers: BTreeMap<u64, VecDeque<Vec<u8>>>,
    /// Threads that read, in the order in which they came.
    threads: Vec<u64>,
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
    fn put(&mut self, bytes: &[u8], thread: u64) -> bool {
        let kind = match bytes {
            _ if bytes.iter().all(|byte| *byte == 0) => ZEROS,
            _ if bytes.len() > LARGEST => AS_KNOWN,
            _ => BYTES,
        };
        let kept = if kind == BYTES { bytes } else { &[] };
        self.written += 8 + kept.len() as u64;
        let head = (bytes.len() as u64 | kind | thread << LENGTH_BITS).to_le_bytes();
        self.written <= MOST
            && self.file.write_all(&head).and_then(|()| self.file.write_all(kept)).is_ok()
    }
}

impl Reads {
    /// As the environment says.
    fn open(&mut self) {
        let birth = std::env::var(BIRTH_VARIABLE).unwrap_or_default();
        let path = |variable| std::env::var_os(variable).map(PathBuf::from);
        let out = path(READS_OUT_VARIABLE).and_then(|path| begin(&path, &birth));
        self.out = out.map(|file| Out { file, written: 0 });
        let place = path(READS_IN_VARIABLE);
        self.answered = place.is_some();
        self.earlier = place.and_then(|path| claim(&path, &birth)).map(BufReader::new);
        self.opened = Some(std::process::id());
        self.threads.clear();
    }

    /// A read of what the device holds, all of which it knows or not; `bytes` becomes what the program is told.
    pub(crate) fn read(&mut self, bytes: &mut [u8], known: bool) {
        if self.opened != Some(std::process::id()) {
            self.open();
            if self.answered && self.earlier.is_none() && !known {
                notes::note(
                    notes::READS_FILE,
                    "a process reads that read nothing before: it is told zeros",
                );
            }
        }
        // The count of a selection is asked for in four or eight bytes.
        let fits = |answer: &&Vec<u8>| {
            answer.len() == bytes.len() || (answer.len() == 8 && bytes.len() == 4)
        };
        let answers = self.answers.entry(this_thread()).or_default();
        match answers.front().filter(fits) {
            Some(answer) => {
                bytes.copy_from_slice(&answer[..bytes.len()]);
                answers.pop_front();
            }
            None if known => {}
            None => *self.unanswered.entry(this_thread()).or_default() += 1,
        }
        let thread = self.number_of(this_thread());
        if self.out.as_mut().is_some_and(|out| !out.put(bytes, thread)) {
            self.out = None;
            notes::note(
                notes::GUESSES_FILE,
                "more is read from the device than can be written down: values are zeros from there on",
            );
        }
        match self.earlier.as_mut().map(|earlier| answer_from(earlier, bytes)) {
            Some(None) => {
                self.earlier = None;
                notes::note(
                    notes::READS_FILE,
                    &format!("{} bytes were read that were not read before", bytes.len()),
                );
            }
            Some(Some(before)) if before != thread => notes::note(notes::READS_FILE, OTHER_TURNS),
            _ => {}
        }
    }

    /// Which of the threads that read this one is.
    fn number_of(&mut self, thread: u64) -> u64 {
        let known = self.threads.iter().position(|it| *it == thread);
        let number = known.unwrap_or_else(|| {
            self.threads.push(thread);
            self.threads.len() - 1
        });
        number as u64 & THREADS
    }
}

/// The files of processes of this name.
fn files(place: &Path, birth: &str) -> impl Iterator<Item = PathBuf> {
    // A name of ours has digits and points; it comes out of the environment.
    let safe = birth.chars().filter(|it| it.is_ascii_digit() || *it == '.').take(200);
    let name = format!("{}-{}", place.to_string_lossy(), safe.collect::<String>());
    (0..SAME_NAME).map(move |number| PathBuf::from(format!("{name}-{number}")))
}

/// A file of this process's own.
fn begin(place: &Path, birth: &str) -> Option<File> {
    files(place, birth).find_map(|path| File::create_new(path).ok())
}

/// The file of earlier reads, which only one process gets: the first of its name that asks. It moves away by that.
fn claim(place: &Path, birth: &str) -> Option<File> {
    let mut held_before = false;
    for path in files(place, birth) {
        let with = |end: &str| PathBuf::from(format!("{}{end}", path.to_string_lossy()));
        let mine = with(".taken");
        if std::fs::rename(&path, &mine).is_ok() {
            if held_before {
                notes::note(
                    notes::GUESSES_FILE,
                    "processes that run at once and were not begun by Python read values: whose are whose is not known",
                );
            }
            let file = File::open(&mine).ok();
            // Who has it, for the next of this name.
            let _ = std::fs::write(with(".by"), std::process::id().to_string());
            return file;
        }
        if !mine.exists() {
            return None;
        }
        held_before = is_held(std::fs::read_to_string(with(".by")).ok().as_deref());
    }
    None
}

/// Whether the process is still there that took reads and wrote down that it has them. It writes a moment after it took them: as long
/// as nothing is there it is.
fn is_held(by: Option<&str>) -> bool {
    by.and_then(|process| process.parse().ok()).is_none_or(is_alive)
}

fn is_alive(process: i32) -> bool {
    // SAFETY: no signal is sent by 0.
    unsafe { libc::kill(process, 0) == 0 }
}

/// The next answer, and the number of the thread that it was given to before.
fn answer_from(earlier: &mut impl Read, bytes: &mut [u8]) -> Option<u64> {
    let mut head = [0; 8];
    earlier.read_exact(&mut head).ok()?;
    let head = u64::from_le_bytes(head);
    if head & LENGTH != bytes.len() as u64 {
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
    Some(head >> LENGTH_BITS & THREADS)
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

/// The next read of so many bytes by this thread is to answer these.
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
    with_state(|state| {
        state.reads.answers.entry(this_thread()).or_default().push_back(bytes.to_vec());
    });
}

/// Answers that this thread did not ask for are forgotten.
#[unsafe(no_mangle)]
pub extern "C" fn tonnage_fake_answers_end() {
    with_state(|state| state.reads.answers.remove(&this_thread()));
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
        Reads { opened: Some(std::process::id()), out, ..Reads::default() }
    }

    #[test]
    fn reads_of_one_run_are_the_answers_of_the_next() {
        let path = path("reads");
        let mut first = writing(&path);
        first.answers = [(this_thread(), [vec![1, 2, 3, 4, 5, 6, 7, 8], vec![9; 4]].into())].into();
        let (mut count, mut other, mut unknown) = ([0; 4], [0; 4], [6; 2]);
        first.read(&mut count, false);
        first.read(&mut unknown, true);
        first.read(&mut other, false);
        assert_eq!((count, other, unknown), ([1, 2, 3, 4], [9; 4], [6; 2]));
        assert!(first.unanswered.is_empty());
        first.read(&mut [0; 2], false);
        assert_eq!(first.unanswered[&this_thread()], 1);

        let earlier = Some(BufReader::new(File::open(&path).unwrap()));
        let opened = Some(std::process::id());
        let mut second = Reads { opened, earlier, ..Reads::default() };
        let (mut count, mut unknown, mut three) = ([0; 4], [0; 2], [5; 3]);
        second.read(&mut count, false);
        second.read(&mut unknown, false);
        assert_eq!((count, unknown), ([1, 2, 3, 4], [6; 2]));
        second.read(&mut three, false);
        assert_eq!(three, [5; 3]);
        assert!(second.earlier.is_none(), "another length ends it");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_a_thread_is_to_be_told_is_told_to_no_other() {
        let mut reads = Reads { opened: Some(std::process::id()), ..Reads::default() };
        reads.answers.insert(this_thread(), [vec![5; 4]].into());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut bytes = [0; 4];
                reads.read(&mut bytes, false);
                bytes
            });
            assert_eq!(other.join().unwrap(), [0; 4]);
        });
        let mut bytes = [0; 4];
        reads.read(&mut bytes, false);
        assert_eq!((bytes, reads.threads.len()), ([5; 4], 2));
    }

    #[test]
    fn records_tell_which_thread_read() {
        let mut out = Out { file: Vec::new(), written: 0 };
        for (bytes, thread) in [(&[1, 2][..], 0), (&[0; 3], 1), (&[7; 4], THREADS)] {
            assert!(out.put(bytes, thread));
        }
        let mut earlier = &out.file[..];
        let (mut two, mut three, mut four) = ([0; 2], [1; 3], [0; 4]);
        assert_eq!(answer_from(&mut earlier, &mut two), Some(0));
        assert_eq!(answer_from(&mut earlier, &mut three), Some(1));
        assert_eq!(answer_from(&mut earlier, &mut four), Some(THREADS));
        assert_eq!((two, three, four), ([1, 2], [0; 3], [7; 4]));
    }

    #[test]
    fn each_process_has_the_reads_of_its_name() {
        let folder = path("births");
        std::fs::create_dir(&folder).unwrap();
        let place = folder.join("reads");
        for (birth, byte) in [("0.1", 1), ("0.2", 2), ("0.2", 3), ("../0.4", 4)] {
            begin(&place, birth).unwrap().write_all(&[byte]).unwrap();
        }
        let claimed = |birth: &str| {
            let mut bytes = Vec::new();
            claim(&place, birth)
                .map(|mut file| file.read_to_end(&mut bytes).map(|_| bytes[0]).unwrap())
        };
        let births = ["0.2", "0.1", "0.3", "0.2", "0.2", "0.1", "..0.4"];
        let got = births.map(claimed);
        assert_eq!(got, [Some(2), Some(1), None, Some(3), None, None, Some(4)]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn who_has_taken_reads_and_not_said_so_yet_is_there() {
        let own = std::process::id().to_string();
        // No process has the last number.
        let last = i32::MAX.to_string();
        let held = [None, Some(""), Some(&own[..]), Some(&last[..])].map(is_held);
        assert_eq!(held, [true, true, true, false]);
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
        let opened = Some(std::process::id());
        let mut second = Reads { opened, earlier, ..Reads::default() };
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
        assert!(out.put(&[1; 4], 0));
        assert!(!out.put(&[1; 4], 0));
        assert_eq!(out.file.len(), 12);
    }
}
