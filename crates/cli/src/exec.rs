//! `tonnage exec`: a Python program whose GPU memory Tonnage manages, without a change to it.
//!
//! In:  the command line of a program. Out: its own output and exit status.
//!
//! Every Python that the program starts finds a `sitecustomize` of ours first on its path (`python/_exec_hook.py`), which
//! installs the allocator (`tonnage.torch.install`) once PyTorch has been imported.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use clap::builder::PossibleValuesParser;
use tonnage::Bytes;

use crate::Answer;
use crate::passed_on::{HookFolder, answer_of, run_to_the_end};
use crate::size::memory_size;

/// What Pythons of the program run first, and what that runs.
const HOOK: [(&str, &str); 2] = [
    ("sitecustomize.py", include_str!("../python/_exec_hook.py")),
    ("tonnage_after_import.py", include_str!("../python/_after_import.py")),
];

/// Run a PyTorch program on Tonnage's allocator
///
/// Runs the program as it is: `tonnage exec -- python train.py --epochs 3`. In every Python of it, PyTorch's GPU memory is
/// managed by Tonnage, as by `tonnage.torch.install()`; the package `tonnage` must be installed in that Python. PyTorch's own
/// calls answer as before.
///
/// Signals go on to the program. Exit status: the program's; 2 if it cannot be run, or not on this allocator. A
/// Python that does not take the `PYTHONPATH` it is given (`python -E`, `-I`, `-S`) runs as it is; if all did, that is said at
/// the end.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The placement rules: `pages` gives waste back by moving pages of memory, `pytorch` does what PyTorch does
    #[arg(long, value_name = "NAME", default_value = "pages", value_parser = PossibleValuesParser::new(["pages", "pytorch"]))]
    policy: String,

    /// PyTorch's settings, as in `PYTORCH_ALLOC_CONF`, which holds without this
    #[arg(long, value_name = "CONF")]
    conf: Option<String>,

    /// The most memory to obtain from each GPU. Bytes, `20GiB`, `24GB`
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    limit: Option<Bytes>,

    /// Record a history, and save it there when memory runs out; the process's rank is added to the name
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,

    /// The program and its arguments, behind `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Answer> {
    let hook = HookFolder::lay_out(&HOOK)?;
    let came_by = hook.path().join("came_by");
    let mut command = hook.command(&arguments.command)?;
    let history = arguments.history.as_ref().map(std::path::absolute).transpose()?;
    let history = history.map(|path| {
        let not_text = |path: OsString| anyhow!("{path:?} is not UTF-8: name another file");
        path.into_os_string().into_string().map_err(not_text)
    });
    let history = history.transpose()?;
    let options = serde_json::json!({
        "policy": arguments.policy,
        "conf": arguments.conf,
        "limit": arguments.limit.map(|limit| limit.0),
        "history": history,
    });
    command.env("TONNAGE_EXEC", options.to_string());
    let status = run_to_the_end(&mut command)?;
    if !came_by.exists() {
        eprintln!(
            "tonnage: no Python of this program ran Tonnage's hook, so that none was on its allocator. Under `python -E`, `-I` \
             and `-S`, or without the PYTHONPATH that is passed on, call tonnage.torch.install() in the program."
        );
    }
    drop(hook);
    Ok(answer_of(status))
}
