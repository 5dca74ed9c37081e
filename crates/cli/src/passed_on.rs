//! Another program in the place of this one: what its Pythons run first, its signals, its end.
//!
//! In:  a command line. Out: its own output and exit status, or its death by a signal.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;
use tempfile::TempDir;

use crate::Answer;

/// A folder with what Pythons of a program run first; gone with this.
pub(crate) struct HookFolder(TempDir);

impl HookFolder {
    /// Writes files into a folder.
    pub(crate) fn lay_out(files: &[(&str, &str)]) -> anyhow::Result<Self> {
        let folder = match own_folder() {
            Some(own) => tempfile::Builder::new().prefix("tonnage-hook-").tempdir_in(own),
            None => tempfile::Builder::new().prefix("tonnage-hook-").tempdir(),
        };
        let folder = folder.context("cannot make a folder for temporary files")?;
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text)
                .with_context(|| format!("cannot write to {}", folder.path().display()))?;
        }
        Ok(Self(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The command of these words, whose Pythons find the folder first.
    pub(crate) fn command(&self, words: &[OsString]) -> anyhow::Result<Command> {
        let [program, words @ ..] = words else { bail!("no program was named") };
        let mut path = vec![self.path().to_owned()];
        // An empty variable would be a folder: the current one.
        if let Some(given) = std::env::var_os("PYTHONPATH").filter(|it| !it.is_empty()) {
            path.extend(std::env::split_paths(&given));
        }
        let mut command = Command::new(program);
        command.args(words).env("PYTHONPATH", std::env::join_paths(path).context("PYTHONPATH")?);
        Ok(command)
    }
}

/// A folder that nobody else writes to: what outlives the program goes on to look for its hook where it was, and must not find
/// anyone else's there. None, where there is no such folder.
fn own_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let cache = cache.map(|cache| cache.join("tonnage"));
    let me = rustix::process::geteuid().as_raw();
    // The cache first: the other goes when the user logs out, and programs may go on.
    cache.into_iter().chain(set("XDG_RUNTIME_DIR")).find(|folder| {
        std::fs::create_dir_all(folder).is_ok()
            && std::fs::metadata(folder).is_ok_and(|it| it.uid() == me && it.mode() & 0o022 == 0)
            // Pythons could not be told of it.
            && !folder.as_os_str().as_encoded_bytes().contains(&b':')
            && tempfile::tempfile_in(folder).is_ok()
    })
}

/// Runs a program to its end; signals go on to it.
pub(crate) fn run_to_the_end(command: &mut Command) -> anyhow::Result<ExitStatus> {
    // Before the program is there, so that none is missed.
    let passing = Passing::begin()?;
    let program = Path::new(command.get_program()).display().to_string();
    let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    passing.until_the_end_of(&child)?;
    child.wait().context("cannot wait for the program")
}

/// Ends as the program did.
pub(crate) fn answer_of(status: ExitStatus) -> Answer {
    if let Some(signal) = status.signal() {
        // As if there were nothing in between; where that does not end this program, a shell would say the same.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        return Answer::Passed(u8::try_from(128 + signal).unwrap_or(u8::MAX));
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Answer::Passed(code.unwrap_or(u8::MAX))
}

/// Signals that go on to the program while it runs, and end this one afterwards.
struct Passing {
    signals: SignalsInfo<WithRawSiginfo>,
    /// Whether the program has ended: signals are for this one then.
    ended: Arc<AtomicBool>,
}

impl Passing {
    /// Takes the signals. One that is ignored, as `nohup` has it, stays so for both.
    fn begin() -> anyhow::Result<Self> {
        let ignored = ignored_signals();
        let is_ours = |signal: &i32| (ignored >> (signal - 1)) & 1 == 0;
        let taken =
            [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2].into_iter().filter(is_ours);
        let ended = Arc::new(AtomicBool::new(false));
        for signal in taken.clone() {
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&ended))
                .context("cannot be told of signals")?;
        }
        let signals = SignalsInfo::new(taken).context("cannot be told of signals")?;
        Ok(Self { signals, ended })
    }

    /// Sends the program the signals that this one gets, but for those of a terminal, which come from the system and not from
    /// a process: it has got them too. Returns when
    /// the program has ended and is not waited for yet: until then its number is no one else's.
    fn until_the_end_of(self, child: &Child) -> anyhow::Result<()> {
        let Self { mut signals, ended: has_ended } = self;
        let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let number = number.context("the program has no number")?;
        let handle = signals.handle();
        let passing = std::thread::spawn(move || {
            for told in signals.forever() {
                let of_terminal = told.si_code > 0 && matches!(told.si_signo, SIGINT | SIGQUIT);
                if let (false, Some(signal)) = (of_terminal, Signal::from_named_raw(told.si_signo))
                {
                    // It may have ended in between.
                    let _ = kill_process(number, signal);
                }
            }
        });
        let ended = loop {
            let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            match waitid(WaitId::Pid(number), how) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        has_ended.store(true, Ordering::Relaxed);
        handle.close();
        // It passes nothing on any more, even if it has panicked.
        let _ = passing.join();
        ended.map(drop).context("cannot wait for the program")
    }
}

/// Signals that whoever started this one has it ignore: the bit of each. None, where the system does not tell.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
