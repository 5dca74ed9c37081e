//! `tonnage-on-fakes [--limit BYTES] COMMAND…`: the command in the place of this program, on the fake libraries of an H200.
//!
//! In:  a command whose first word is a Python with PyTorch for CUDA. Out: that command, with its own exit status.

#![forbid(unsafe_code)]

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use tonnage_scripts::{Environment, Gpu, plain_run};

type Failed = Box<dyn std::error::Error>;

fn run() -> Result<ExitCode, Failed> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut limit = None;
    if words.first().is_some_and(|word| word == "--limit") {
        limit = Some(words.get(1).ok_or("--limit needs bytes")?.parse()?);
        words.drain(..2);
    }
    let (program, rest) = words.split_first().ok_or("tonnage-on-fakes [--limit BYTES] COMMAND…")?;
    let environment = Environment::of(&words)?;
    // The process that follows uses it to its end.
    let folder = tempfile::Builder::new().prefix("tonnage-fakes-").tempdir()?.keep();
    let variables = plain_run(&folder, &Gpu::find("h200")?, limit, &environment)?;
    let failed = Command::new(program).args(rest).envs(variables).exec();
    Err(format!("cannot run {program}: {failed}").into())
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(2)
    })
}
