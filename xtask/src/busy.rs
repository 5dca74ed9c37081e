//! `cargo xtask busy`: every test that waits for a screen, a port, a clock or a thread, many times, beside processes that
//! leave no core idle.
//!
//! In:  how often, and the list below.
//! Out: how often each failed and how long it took, as a table. What a failure printed lies under `target/busy`, and there,
//!      as `table.txt`, the table so far.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::install;
use crate::shell::root;

/// Processes that do nothing, as fast as they can.
const BUSY: usize = 8;

/// Tests of a program that run at once: as many as there are busy processes, whatever the machine has.
const AT_ONCE: &str = "8";

/// A program that takes longer hangs: chosen, far above what any takes beside these.
const HANGS: Duration = Duration::from_secs(3600);

/// Tests that wait.
struct Waiting {
    /// The crate's folder.
    folder: &'static str,
    /// The test program, or `lib` for the tests inside the crate.
    program: &'static str,
    /// Parts of the names of the tests; none means all.
    names: &'static [&'static str],
}

const fn waiting(
    folder: &'static str,
    program: &'static str,
    names: &'static [&'static str],
) -> Waiting {
    Waiting { folder, program, names }
}

/// All of them. Whoever writes a test that waits adds it here.
const WAITING: [Waiting; 14] = [
    // A terminal, a server, signals and pipes.
    waiting("cli", "suite", &["top::"]),
    waiting("cli", "suite", &["view::"]),
    waiting("cli", "suite", &["after_ctrl_c", "goes_away", "closed", "a_pipe", "killed"]),
    // Signals to Python programs.
    waiting("python", "suite", &[]),
    // Another process that publishes.
    waiting("monitor", "lib", &[]),
    waiting("monitor", "two_processes", &[]),
    waiting("memory", "lib", &[]),
    // A browser.
    waiting("html", "suite", &["browser::"]),
    waiting("view", "browser", &[]),
    // Sockets.
    waiting("view", "all", &[]),
    // Streams, which are threads.
    waiting("device", "host", &[]),
    waiting("memory", "memory", &[]),
    waiting("memory", "soak", &[]),
    waiting("tensor", "suite", &["streams::", "offload::", "fuzz::"]),
];

impl Waiting {
    /// What it is called in the table.
    fn name(&self) -> String {
        let Self { folder, program, names } = self;
        match names {
            [] => format!("{folder}/{program}"),
            names => format!("{folder}/{program} {}", names.join(" ")),
        }
    }

    /// Whether this message of cargo's is about its program.
    fn is_built_by(&self, message: &Value) -> bool {
        let manifest = format!("crates/{}/Cargo.toml", self.folder);
        let is_kind = |kind: &str| message["target"]["kind"][0] == kind;
        message["manifest_path"].as_str().is_some_and(|it| it.ends_with(&manifest))
            && message["profile"]["test"] == true
            && match self.program {
                "lib" => is_kind("lib"),
                name => is_kind("test") && message["target"]["name"] == name,
            }
    }

    /// Its program, among what cargo says it has built.
    fn executable(&self, built: &[Value]) -> anyhow::Result<PathBuf> {
        let message = built.iter().find(|it| self.is_built_by(it));
        let path = message.and_then(|it| it["executable"].as_str());
        path.map(PathBuf::from)
            .with_context(|| format!("{}: there is no such test program", self.name()))
    }
}

/// One of them, and what happened to it so far.
struct Tried {
    waiting: &'static Waiting,
    executable: PathBuf,
    outcomes: Mutex<Outcomes>,
}

#[derive(Clone, Default)]
struct Outcomes {
    took: Vec<Duration>,
    failed: usize,
}

/// Runs all of them so many times, or those with this in their name.
pub(crate) fn run(rounds: &str, only: Option<&str>) -> anyhow::Result<()> {
    let rounds: usize =
        rounds.parse().with_context(|| format!("`{rounds}` is no number of rounds"))?;
    let wanted = |it: &&Waiting| only.is_none_or(|part| it.name().contains(part));
    let chosen: Vec<_> = WAITING.iter().filter(wanted).collect();
    if chosen.is_empty() {
        bail!("no test that waits has `{}` in its name", only.unwrap_or_default());
    }
    install::what_tests_need()?;
    let built = build(&chosen)?;
    let mut tried = Vec::new();
    for waiting in chosen {
        let executable = waiting.executable(&built)?;
        tried.push(Tried { waiting, executable, outcomes: Mutex::default() });
    }
    fs::create_dir_all(folder()).with_context(|| folder().display().to_string())?;
    let busy = Busy::start()?;
    let tried = &tried;
    std::thread::scope(|scope| {
        let begun: Vec<_> =
            tried.iter().map(|it| scope.spawn(move || it.rounds(rounds, tried))).collect();
        begun.into_iter().try_for_each(|it| it.join().expect("a round does not panic"))
    })?;
    drop(busy);
    print!("{}", table(tried));
    match tried.iter().map(|it| it.outcomes().failed).sum::<usize>() {
        0 => Ok(()),
        failed => bail!("{failed} runs failed: see {}", folder().display()),
    }
}

/// Where the output of what failed goes.
fn folder() -> PathBuf {
    root().join("target/busy")
}

/// Builds their programs as `cargo xtask test` does, and says what cargo said.
fn build(chosen: &[&Waiting]) -> anyhow::Result<Vec<Value>> {
    let programs: BTreeSet<_> = chosen.iter().map(|it| it.program).collect();
    let targets = programs.iter().flat_map(|&it| match it {
        "lib" => vec!["--lib"],
        name => vec!["--test", name],
    });
    let output = Command::new("cargo")
        // With the workspace: one package by itself would have its dependencies built with other features.
        .args(["test", "--workspace", "--locked", "--no-run", "--message-format=json"])
        .args(targets)
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the tests do not build");
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    Ok(messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

impl Tried {
    fn outcomes(&self) -> MutexGuard<'_, Outcomes> {
        self.outcomes.lock().expect("nothing panics while it holds this")
    }

    /// Runs it so many times, and keeps the table of all.
    fn rounds(&self, rounds: usize, all: &[Self]) -> anyhow::Result<()> {
        for round in 1..=rounds {
            self.once(round)?;
            fs::write(folder().join("table.txt"), table(all))?;
        }
        Ok(())
    }

    /// Runs it once more.
    fn once(&self, round: usize) -> anyhow::Result<()> {
        let name = self.waiting.name();
        let log = folder().join(format!("{}.{round}.txt", name.replace(['/', ' ', ':'], "-")));
        let out = File::create(&log).with_context(|| log.display().to_string())?;
        let began = Instant::now();
        let mut program = Command::new(&self.executable)
            .args(self.waiting.names)
            .args(["--test-threads", AT_ONCE])
            .current_dir(root().join("crates").join(self.waiting.folder))
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot run {}", self.executable.display()))?;
        let passed = loop {
            if let Some(status) = program.try_wait()? {
                break status.success();
            }
            if began.elapsed() > HANGS {
                program.kill()?;
                program.wait()?;
                break false;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut outcomes = self.outcomes();
        outcomes.took.push(began.elapsed());
        if passed {
            fs::remove_file(&log)?;
        } else {
            outcomes.failed += 1;
            eprintln!("{name} failed in round {round}: {}", log.display());
        }
        Ok(())
    }
}

impl Outcomes {
    /// How long it took: in the middle, and at most.
    fn times(&self) -> (Duration, Duration) {
        let mut took = self.took.clone();
        took.sort_unstable();
        let most = took.last().copied().unwrap_or_default();
        (took.get(took.len() / 2).copied().unwrap_or_default(), most)
    }
}

/// How often each failed and how long it took.
fn table(tried: &[Tried]) -> String {
    let mut table =
        format!("beside {BUSY} busy processes and each other, {AT_ONCE} tests of each at once\n");
    table += &format!(
        "{:>8} {:>8} {:>10} {:>10}  tests\n",
        "rounds", "failures", "median s", "slowest s"
    );
    for it in tried {
        let outcomes = it.outcomes().clone();
        let (median, most) = outcomes.times();
        let (median, most) = (median.as_secs_f64(), most.as_secs_f64());
        let (rounds, failed) = (outcomes.took.len(), outcomes.failed);
        let name = it.waiting.name();
        table += &format!("{rounds:>8} {failed:>8} {median:>10.1} {most:>10.1}  {name}\n");
    }
    table
}

/// Processes that take what they can get; gone with this.
struct Busy(Vec<Child>);

impl Busy {
    fn start() -> anyhow::Result<Self> {
        let mut busy = Self(Vec::new());
        for _ in 0..BUSY {
            let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
            busy.0.push(child.context("cannot run sh")?);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Gone already, if someone was faster.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_of_the_list_is_there() {
        for it in &WAITING {
            let folder = root().join("crates").join(it.folder);
            let files = match it.program {
                "lib" => vec![folder.join("src/lib.rs")],
                name => vec![
                    folder.join(format!("tests/{name}.rs")),
                    folder.join(format!("tests/{name}/main.rs")),
                ],
            };
            assert!(files.iter().any(|file| file.exists()), "{}", it.name());
        }
    }

    #[test]
    fn a_program_is_told_from_others_of_its_name() {
        let built = |folder: &str, kind: &str, name: &str, test: bool| {
            serde_json::json!({
                "manifest_path": format!("/somewhere/crates/{folder}/Cargo.toml"),
                "target": { "kind": [kind], "name": name },
                "profile": { "test": test },
                "executable": format!("{folder}-{name}"),
            })
        };
        let all = [
            built("cli", "test", "suite", true),
            built("html", "test", "suite", true),
            built("monitor", "lib", "tonnage_monitor", false),
            built("monitor", "lib", "tonnage_monitor_tests", true),
        ];
        let found = |folder, program| {
            let waiting = Waiting { folder, program, names: &[] };
            waiting.executable(&all).map(|it| it.display().to_string()).ok()
        };
        assert_eq!(found("html", "suite").as_deref(), Some("html-suite"));
        assert_eq!(found("monitor", "lib").as_deref(), Some("monitor-tonnage_monitor_tests"));
        assert_eq!(found("monitor", "suite"), None);
    }
}
