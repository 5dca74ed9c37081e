//! `tonnage record`: a Python program with its memory recorded, and the report at its end.
//!
//! In:  the command line of a program. Out: its own output and exit status, a snapshot for each of its processes that
//! used a GPU, and on standard error the report on them.
//!
//! Every Python that the program starts finds a `sitecustomize` of ours first on its path (`python/_hook.py`), which
//! waits for PyTorch to be imported and a GPU to be used. Nothing has to be installed beside PyTorch.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitStatus;

use anyhow::Context;
use clap::Args;
use tonnage::Bytes;

use crate::Answer;
use crate::output::{note, plain, warning, with_causes};
use crate::passed_on::{HookFolder, answer_of, run_to_the_end};
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
    let hook = Hook(HookFolder::lay_out(&HOOK)?);
    let status = hook.run(arguments)?;
    tell(arguments, &hook.written());
    drop(hook);
    Ok(answer_of(status))
}

/// What Pythons run first, and the list of what they have written; gone with this.
struct Hook(HookFolder);

impl Hook {
    fn list(&self) -> PathBuf {
        self.0.path().join("written")
    }

    /// Runs the program to its end.
    fn run(&self, arguments: &Arguments) -> anyhow::Result<ExitStatus> {
        let mut command = self.0.command(&arguments.command)?;
        command
            .env("TONNAGE_RECORD_ENTRIES", arguments.entries.to_string())
            .env("TONNAGE_RECORD_LIST", self.list());
        if let Some(folder) = &arguments.output {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
            command.env("TONNAGE_RECORD_FOLDER", std::path::absolute(folder)?);
        }
        run_to_the_end(&mut command)
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
