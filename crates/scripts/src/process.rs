//! A script as a process: started in a group of its own, watched, ended when its time is over.
//!
//! What it prints is read, so that it never waits, and only the end is kept: scripts may print gigabytes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tonnage_replay::Until;

use crate::Error;
use crate::left_group::end_those_with;

/// The variable that tells processes of one run from all others.
pub(crate) const RUN_VARIABLE: &str = "TONNAGE_OUT";

/// What is kept of the output.
const TAIL: usize = 64 << 10;

/// How often a process is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// How often it is looked how much memory its processes have: that takes milliseconds.
const WEIGH: Duration = Duration::from_secs(1);

/// How long the rest of the output is waited for once the process is gone.
const REST: Duration = Duration::from_secs(2);

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// By itself, with this status.
    Exit(i32),
    /// By a signal that it did not get from here: it crashed, or someone else ended it.
    Signal(i32),
    /// Its time was over.
    TimeOut,
}

impl Ending {
    fn of(status: ExitStatus) -> Self {
        match status.code() {
            Some(code) => Self::Exit(code),
            None => Self::Signal(status.signal().unwrap_or(0)),
        }
    }
}

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) ending: Ending,
    /// The end of what it printed, both streams together.
    pub(crate) output: String,
    pub(crate) process: u32,
    /// Most bytes of the host's memory that its processes were seen to have together, those that left its group apart.
    pub(crate) memory: u64,
}

/// Bytes of the host's memory that the processes of a group have, what several share counted once.
fn memory_of(group: u32) -> u64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of_group = processes.filter_map(|it| {
        let number: u32 = it.file_name().to_str()?.parse().ok()?;
        // Behind the name, which may be anything: state, parent, group.
        let about = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        let own: u32 = about.rsplit_once(") ")?.1.split(' ').nth(2)?.parse().ok()?;
        let rollup = fs::read_to_string(format!("/proc/{number}/smaps_rollup"));
        let rollup = rollup.ok().filter(|_| own == group)?;
        let share = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        share.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    1024 * of_group.sum::<u64>()
}

/// Groups that are alive, by the number of their first process, each with the entry of the environment that tells its
/// processes from others; and whether none may begin any more.
#[derive(Default)]
struct Alive {
    groups: BTreeMap<u32, Option<Vec<u8>>>,
    over: bool,
}

static ALIVE: Mutex<Alive> = Mutex::new(Alive { groups: BTreeMap::new(), over: false });

fn alive() -> MutexGuard<'static, Alive> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends every script that runs, and lets none begin any more: for programs that are about to end themselves.
pub(crate) fn end_all() {
    let mut alive = alive();
    alive.over = true;
    for (group, entry) in &alive.groups {
        kill(*group, entry.as_deref());
    }
}

/// Ends a group, and those that left it.
fn kill(group: u32, entry: Option<&[u8]>) {
    if let Some(group) = i32::try_from(group).ok().and_then(Pid::from_raw) {
        // A group that is gone is as wanted.
        let _ = kill_process_group(group, Signal::KILL);
    }
    if let Some(entry) = entry {
        end_those_with(entry);
    }
}

/// What tells the processes of a command from others.
fn entry_of(command: &Command) -> Option<Vec<u8>> {
    let (name, value) = command.get_envs().find(|(name, _)| *name == RUN_VARIABLE)?;
    Some([name.as_bytes(), b"=", value?.as_bytes()].concat())
}

/// Everything that is alive in the group, or that left it, ends with this value.
struct Group(Child);

impl Group {
    /// Starts it, with the list of groups in hand: whoever ends all of them finds it there, or it does not begin.
    fn start(command: &mut Command) -> Result<Self, Error> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut alive = alive();
        if alive.over {
            return Err(Error::Stopped);
        }
        let child = command.spawn().map_err(|error| Error::Program { program, error })?;
        alive.groups.insert(child.id(), entry_of(command));
        Ok(Self(child))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let entry = alive().groups.get(&self.0.id()).cloned().flatten();
        kill(self.0.id(), entry.as_deref());
        let _ = self.0.wait();
        alive().groups.remove(&self.0.id());
    }
}

thread_local! {
    /// When what this thread runs is to stop.
    static UNTIL: RefCell<Until> = RefCell::default();
}

/// Does work whose scripts end, as errors, when it is to stop.
pub fn stop_scripts_when<T>(until: &Until, work: impl FnOnce() -> T) -> T {
    let before = UNTIL.replace(until.clone());
    let result = work();
    UNTIL.set(before);
    result
}

/// When what this thread runs is to stop, for what works for it.
#[must_use]
pub fn stopping_when() -> Until {
    UNTIL.with_borrow(Clone::clone)
}

pub(crate) fn is_stopped() -> bool {
    UNTIL.with_borrow(Until::is_over)
}

/// Runs a command to its end, or to the end of its time.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Ended, Error> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let program = command.get_program().to_string_lossy().into_owned();
    let started = Instant::now();
    let mut group = Group::start(command)?;
    let tail = Arc::new(Mutex::new(Vec::new()));
    let done = [
        group.0.stdout.take().map(|stream| keep_tail(stream, &tail)),
        group.0.stderr.take().map(|stream| keep_tail(stream, &tail)),
    ];
    let (mut memory, mut weighed) = (0, started);
    let ending = loop {
        let status = group
            .0
            .try_wait()
            .map_err(|error| Error::Program { program: program.clone(), error })?;
        if let Some(status) = status {
            break Ending::of(status);
        }
        if is_stopped() {
            return Err(Error::Stopped);
        }
        if started.elapsed() >= limit {
            break Ending::TimeOut;
        }
        if weighed.elapsed() >= WEIGH {
            memory = memory_of(group.0.id()).max(memory);
            weighed = Instant::now();
        }
        std::thread::sleep(LOOK);
    };
    let process = group.0.id();
    drop(group);
    for done in done.into_iter().flatten() {
        // A process that left the group may keep a stream open: its output is not waited for.
        let _ = done.recv_timeout(REST);
    }
    let tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Ended { ending, output: String::from_utf8_lossy(&tail).into_owned(), process, memory })
}

/// Reads a stream to its end and keeps what came last; says when it is done.
fn keep_tail(mut stream: impl Read + Send + 'static, tail: &Arc<Mutex<Vec<u8>>>) -> Receiver<()> {
    let (done, wait) = channel();
    let tail = Arc::clone(tail);
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(count) = stream.read(&mut buffer)
            && count > 0
        {
            let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
            tail.extend(&buffer[..count]);
            if tail.len() > 2 * TAIL {
                let too_much = tail.len() - TAIL;
                tail.drain(..too_much);
            }
        }
        // Nobody may be waiting any more.
        let _ = done.send(());
    });
    wait
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn shell(line: &str, limit: Duration) -> Ended {
        run(Command::new("sh").args(["-c", line]), limit).unwrap()
    }

    #[test]
    fn endings_are_told_apart() {
        assert_eq!(shell("exit 3", LONG).ending, Ending::Exit(3));
        assert_eq!(shell("kill -SEGV $$", LONG).ending, Ending::Signal(11));
        assert_eq!(shell("sleep 1000", Duration::from_millis(50)).ending, Ending::TimeOut);
        let error = run(&mut Command::new("/nowhere/program"), LONG).unwrap_err().to_string();
        assert!(error.contains("/nowhere/program"), "{error}");
    }

    #[test]
    fn memory_of_a_process_and_its_children_is_weighed_together() {
        const HELD: u64 = 40 << 20;
        let holds = format!("held = b'x' * {HELD}");
        let child = format!("import sys; {holds}; print('there', flush=True); sys.stdin.read()");
        // The child has what it holds once it has told; both have until the standard input ends.
        let parent = format!(
            "import subprocess, sys; {holds}\n\
             child = subprocess.Popen([sys.executable, '-c', {child:?}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n\
             print(child.stdout.readline(), flush=True); sys.stdin.read()"
        );
        let mut command = Command::new("python3");
        command.args(["-c", &parent]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut group = Group::start(command.process_group(0)).unwrap();
        let mut told = [0; 5];
        group.0.stdout.take().unwrap().read_exact(&mut told).unwrap();
        let memory = memory_of(group.0.id());
        assert!((2 * HELD..20 * HELD).contains(&memory), "{memory}");
        assert_eq!(memory_of(u32::MAX), 0);
    }

    #[test]
    fn a_script_that_nobody_waits_for_ends() {
        let (until, stop) = Until::told();
        let wait = std::thread::spawn(move || {
            std::thread::sleep(5 * LOOK);
            stop.now();
        });
        let run = || run(Command::new("sleep").arg("1000"), LONG);
        assert!(matches!(stop_scripts_when(&until, run), Err(Error::Stopped)));
        wait.join().unwrap();
        assert_eq!(shell("exit 0", LONG).ending, Ending::Exit(0), "others go on");
    }

    /// In a process of its own, since nothing runs in it afterwards.
    #[test]
    fn once_all_are_ended_none_begins() {
        const ENDING: &str = "TONNAGE_TEST_ENDS_ALL";
        if std::env::var_os(ENDING).is_none() {
            let name = "process::tests::once_all_are_ended_none_begins";
            let mut again = Command::new(std::env::current_exe().unwrap());
            let output = again.args([name, "--exact"]).env(ENDING, "1").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let first = std::thread::spawn(|| shell("sleep 1000", LONG).ending);
        while alive().groups.is_empty() {
            std::thread::sleep(LOOK);
        }
        end_all();
        assert_eq!(first.join().unwrap(), Ending::Signal(9));
        let second = run(Command::new("sh").args(["-c", "exit 0"]), LONG);
        assert!(matches!(second, Err(Error::Stopped)), "{second:?}");
    }

    #[test]
    fn of_much_output_the_end_is_kept() {
        let ended = shell("yes line | head -c 10000000; echo the end; echo and errors >&2", LONG);
        assert_eq!(ended.ending, Ending::Exit(0));
        assert!(ended.output.len() <= 2 * TAIL + 100);
        assert!(ended.output.contains("the end") && ended.output.contains("and errors"));
    }

    #[test]
    fn what_a_script_leaves_running_ends_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("alive");
        let line = format!("(sleep 1000; touch {0}) & echo $!", file.display());
        let ended = shell(&line, LONG);
        wait_for_the_end_of(&ended.output);
    }

    /// Until the process of this number is gone.
    fn wait_for_the_end_of(number: &str) {
        let process: i32 = number.trim().parse().unwrap();
        let alive = || {
            std::fs::read_to_string(format!("/proc/{process}/stat"))
                .is_ok_and(|it| !it.contains(") Z"))
        };
        while alive() {
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn processes_that_leave_the_group_end_too() {
        let folder = tempfile::tempdir().unwrap();
        let told = folder.path().join("number");
        let (told, mut command) = (told.display(), Command::new("sh"));
        // It tells its number from a session of its own; the script ends once it has.
        let leaves = format!("setsid sh -c 'echo $$ > {told}; exec sleep 1000' &");
        let waits = format!("until [ -s {told} ]; do sleep 0.01; done; cat {told}");
        command.args(["-c", &format!("{leaves} {waits}")]);
        command.env(RUN_VARIABLE, folder.path());
        wait_for_the_end_of(&run(&mut command, LONG).unwrap().output);
    }
}
