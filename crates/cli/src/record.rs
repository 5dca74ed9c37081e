//! `tonnage record`: a Python program with its memory recorded, and the report at its end.
//!
//! In:  the command line of a program. Out: its own output and exit status, a snapshot for each of its processes that
//! used a GPU, and on standard error the report on them.
//!
//! Every Python that the program starts finds a `sitecustomize` of ours first on its path (`python/_hook.py`), which
//! waits for PyTorch to be imported and a GPU to be used. Nothing has to be installed beside PyTorch.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use clap::Args;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use tempfile::TempDir;
use tonnage::Bytes;

use crate::Answer;
use crate::output::{note, plain, warning, with_causes};
use crate::report;
use crate::size::memory_size;

/// What Pythons of the program run first, and what that runs.
const HOOK: [(&str, &str); 3] = [
    ("sitecustomize.py", include_str!("../python/_hook.py")),
    ("tonnage_after_import.py", include_str!("../python/_after_import.py")),
    ("tonnage_record.py", include_str!("../python/_record.py")),
];

/// Record the memory of a Python program, and report on it
///
/// Runs the program as it is: `tonnage record -- python train.py --epochs 3`. PyTorch's memory history is recorded, with
/// Python's stacks, from the first use of a GPU on; each process saves its snapshot when it ends, named by its rank under
/// torchrun. A history that the program records itself is left alone. When memory runs out, the exception that ends the
/// program says why.
///
/// Signals go on to the program. Exit status: the program's; 2 if it cannot be run.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The folder for the snapshots. Without it that of the script, or one that can be written to
    #[arg(long, short, value_name = "FOLDER")]
    output: Option<PathBuf>,

    /// How many entries of the history are kept: the last ones
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    entries: u64,

    /// The limit that was in force, for the report. Bytes, `24GiB`, `24GB`
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    limit: Option<Bytes>,

    /// Save the snapshots, but print no report
    #[arg(long)]
    no_report: bool,

    /// The program and its arguments, behind `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let hook = Hook::lay_out()?;
    let status = hook.run(arguments)?;
    tell(arguments, &hook.written());
    if let Some(signal) = status.signal() {
        drop(hook);
        // As if there were nothing in between; where that does not end this program, a shell would say the same.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        return Ok(Answer::Passed(u8::try_from(128 + signal).unwrap_or(u8::MAX)));
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Answer::Passed(code.unwrap_or(u8::MAX)))
}

/// A folder with what Pythons run first, and with the list of what they have written; gone with this.
struct Hook(TempDir);

impl Hook {
    fn lay_out() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("tonnage-record-").tempdir();
        let folder = folder.context("cannot make a folder for temporary files")?;
        for (name, text) in HOOK {
            std::fs::write(folder.path().join(name), text)
                .with_context(|| format!("cannot write to {}", folder.path().display()))?;
        }
        Ok(Self(folder))
    }

    fn list(&self) -> PathBuf {
        self.0.path().join("written")
    }

    /// Runs the program to its end.
    fn run(&self, arguments: &Arguments) -> anyhow::Result<ExitStatus> {
        let [program, words @ ..] = &arguments.command[..] else { bail!("no program was named") };
        let mut path = vec![self.0.path().to_owned()];
        // An empty variable would be a folder: the current one.
        if let Some(given) = std::env::var_os("PYTHONPATH").filter(|it| !it.is_empty()) {
            path.extend(std::env::split_paths(&given));
        }
        let mut command = Command::new(program);
        command
            .args(words)
            .env("PYTHONPATH", std::env::join_paths(path).context("PYTHONPATH")?)
            .env("TONNAGE_RECORD_ENTRIES", arguments.entries.to_string())
            .env("TONNAGE_RECORD_LIST", self.list());
        if let Some(folder) = &arguments.output {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
            command.env("TONNAGE_RECORD_FOLDER", std::path::absolute(folder)?);
        }
        // Before the program is there, so that none is missed.
        let passing = Passing::begin()?;
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run {}", Path::new(program).display()))?;
        passing.until_the_end_of(&child)?;
        child.wait().context("cannot wait for the program")
    }

    /// The snapshots, each once.
    fn written(&self) -> Vec<PathBuf> {
        // Without a list, no process had anything to write.
        let list = std::fs::read_to_string(self.list()).unwrap_or_default();
        let mut paths: Vec<_> = list.lines().map(PathBuf::from).collect();
        paths.sort();
        paths.dedup();
        paths
    }
}

/// Signals that go on to the program while it runs, and end this one afterwards.
struct Passing {
    signals: Signals,
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
        Ok(Self { signals: Signals::new(taken).context("cannot be told of signals")?, ended })
    }

    /// Sends the program the signals that this one gets, but for those of a terminal: it has got them too. Returns when
    /// the program has ended and is not waited for yet: until then its number is no one else's.
    fn until_the_end_of(self, child: &Child) -> anyhow::Result<()> {
        let Self { mut signals, ended: has_ended } = self;
        let on_terminal = std::io::stdin().is_terminal() || std::io::stderr().is_terminal();
        let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let number = number.context("the program has no number")?;
        let handle = signals.handle();
        let passing = std::thread::spawn(move || {
            for signal in signals.forever() {
                let of_terminal = on_terminal && matches!(signal, SIGINT | SIGQUIT);
                if let (false, Some(signal)) = (of_terminal, Signal::from_named_raw(signal)) {
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

/// Says what was saved, and reports. The program has ended as it has: nothing here changes that.
fn tell(arguments: &Arguments, written: &[PathBuf]) {
    if written.is_empty() {
        note(
            "no process of the program used a GPU through PyTorch to its end: nothing was recorded",
        );
        return;
    }
    let mut out = anstream::stderr();
    if !arguments.no_report {
        match report::of_files(written, arguments.limit) {
            // Who cannot be told is not listening.
            Ok(text) => drop(write!(out, "\n{text}\n")),
            Err(error) => warning(&format!("no report: {}", with_causes(&error))),
        }
    }
    for path in written {
        let _ = writeln!(out, "saved {}", plain(&path.display().to_string()));
    }
}
