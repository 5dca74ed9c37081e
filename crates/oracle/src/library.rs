//! The released binary as a subject: a driver process that plays one stream after the other.

use std::io::{BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command as Process, Stdio};

use anyhow::Context;

use crate::command::Stream;
use crate::transcript::Transcript;
use crate::{Subject, protocol};

/// A driver over the libraries of one release.
#[derive(Debug)]
pub struct Library {
    process: Child,
    commands: Option<BufWriter<ChildStdin>>,
    answers: BufReader<ChildStdout>,
}

impl Library {
    /// Starts the driver that [`setup`](crate::setup) built.
    ///
    /// # Errors
    ///
    /// If it cannot be run.
    pub fn start(driver: &Path) -> anyhow::Result<Self> {
        let mut process = Process::new(driver);
        // What the libraries would read is said by each stream. Their warnings are no answers.
        for name in ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] {
            process.env_remove(name);
        }
        let mut process = process
            .env_remove("PYTORCH_NO_CUDA_MEMORY_CACHING")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {}", driver.display()))?;
        let commands = process.stdin.take().context("the driver's input")?;
        let answers = process.stdout.take().context("the driver's output")?;
        Ok(Self {
            process,
            commands: Some(BufWriter::with_capacity(1 << 18, commands)),
            answers: BufReader::with_capacity(1 << 18, answers),
        })
    }
}

impl Subject for Library {
    /// The driver reads a whole stream before it answers, so that neither waits for the other.
    fn play(&mut self, stream: &Stream) -> anyhow::Result<Transcript> {
        let commands = self.commands.as_mut().context("the driver was ended")?;
        writeln!(commands, "{stream}").context("the driver takes no more commands")?;
        commands.flush().context("the driver takes no more commands")?;
        protocol::read(&mut self.answers, stream)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // The end of its input ends the driver.
        self.commands = None;
        drop(self.process.wait());
    }
}
