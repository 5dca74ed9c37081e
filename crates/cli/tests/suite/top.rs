//! `tonnage top`, printed and in a real terminal: tmux.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::support::{command, json, text, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The program under test, to be started by others.
fn program() -> String {
    command().get_program().to_str().unwrap().to_owned()
}

fn top(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = command();
    command.arg("top").args(arguments).env("TONNAGE_MONITOR_DIR", folder);
    command.output().unwrap()
}

fn seen(folder: &Path) -> Value {
    json(&top(folder, &["--json"]))
}

/// A job that goes on until it is killed, at the end of a test at the latest.
struct Job(Child);

impl Job {
    fn start(folder: &Path, publish: &str) -> Self {
        let mut job = Command::new(program());
        job.args(["run", "mlp", "--width", "64", "--batch", "16", "--steps", "1000000"])
            .env("TONNAGE_PUBLISH", publish)
            .env("TONNAGE_MONITOR_DIR", folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(job.spawn().unwrap())
    }

    /// The same, once its figures are there.
    fn shown(folder: &Path, publish: &str) -> Self {
        let job = Self::start(folder, publish);
        wait_until("the job shows its figures", || {
            let device = &seen(folder)["processes"][0]["devices"][0];
            // What measures the machine's speed before the run has a device too, and allocates little.
            device["device"] == "host:0"
                && device["allocations"].as_u64() > Some(1_000)
                && device["allocations_per_second"].as_f64() > Some(0.0)
        });
        job
    }

    /// As by `kill -9`.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn a_running_job_is_shown_and_vanishes_when_it_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Job::shown(folder.path(), "1");
    let shown = seen(folder.path());
    let process = &shown["processes"][0];
    assert_eq!(process["pid"], job.0.id());
    assert!(process["command"].as_str().unwrap().starts_with("tonnage run mlp"), "{process}");
    let device = &process["devices"][0];
    let figure = |name: &str| device[name].as_u64().unwrap();
    assert!(figure("requested") <= figure("allocated"), "{device}");
    assert!(figure("allocated_peak") <= figure("reserved_peak"), "{device}");
    assert!(figure("allocations") > 0 && device["waste"].as_f64().unwrap() >= 1.0, "{device}");
    assert_eq!(device["call_sites"], Value::Null, "no one asked for them");

    let table = top(folder.path(), &["--once"]);
    let table = text(&table.stdout);
    assert!(table.contains("ALLOCATED") && table.contains("tonnage run mlp"), "{table}");

    job.kill();
    assert_eq!(seen(folder.path())["processes"], serde_json::json!([]));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "its sheet was swept");
}

#[test]
fn a_job_that_ends_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = command();
    run.args(["run", "mlp", "--width", "64", "--batch", "16", "--steps", "3", "--json"])
        .env("TONNAGE_PUBLISH", "1")
        .env("TONNAGE_MONITOR_DIR", folder.path());
    let output = run.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(seen(folder.path())["processes"], serde_json::json!([]));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn nothing_is_published_unless_someone_asks() {
    let folder = tempfile::tempdir().unwrap();
    // Whoever publishes makes the folder, and leaves it.
    let sheets = folder.path().join("sheets");
    for (publish, published) in [("", false), ("0", false), ("1", true)] {
        let mut run = command();
        run.args(["run", "mlp", "--width", "64", "--batch", "16", "--steps", "2", "--json"])
            .env("TONNAGE_PUBLISH", publish)
            .env("TONNAGE_MONITOR_DIR", &sheets);
        let output = run.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(sheets.exists(), published, "{publish:?}");
    }
    let output = top(&sheets, &["--once"]);
    assert_eq!(output.status.code(), Some(0));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("no process publishes") && shown.contains("TONNAGE_PUBLISH=1"),
        "{shown}"
    );
}

#[test]
fn a_job_goes_on_where_it_cannot_publish_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let cases =
        [("1", file.as_path(), "no folder"), ("maybe", folder.path(), "write 1, sites or 0")];
    for (publish, place, reason) in cases {
        let mut run = command();
        run.args(["run", "mlp", "--width", "64", "--batch", "16", "--steps", "2", "--json"])
            .env("TONNAGE_PUBLISH", publish)
            .env("TONNAGE_MONITOR_DIR", place);
        let output = run.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let message = text(&output.stderr);
        assert!(message.contains(reason), "{message}");
        assert_eq!(message.matches("not published").count(), 1, "once: {message}");
    }
}

#[test]
fn without_a_terminal_the_way_out_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let output = top(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--once"), "{}", text(&output.stderr));
    assert_eq!(top(folder.path(), &["--interval", "0"]).status.code(), Some(2));
}

/// A terminal with a shell in it.
struct Tmux {
    folder: tempfile::TempDir,
}

impl Tmux {
    fn start(width: u16, height: u16, sheets: &Path) -> Self {
        let tmux = Self { folder: tempfile::tempdir().unwrap() };
        let (width, height) = (width.to_string(), height.to_string());
        let sheets = format!("TONNAGE_MONITOR_DIR={}", sheets.display());
        // A shell that reads no one's settings and has a prompt that can be waited for.
        let shell = ["env", "-u", "NO_COLOR", "PS1=ready> ", &*sheets, "sh"];
        let mut arguments = vec!["new-session", "-d", "-x", &*width, "-y", &*height];
        arguments.extend(shell);
        tmux.run(&arguments);
        tmux.wait_for("ready>");
        tmux
    }

    fn output(&self, arguments: &[&str]) -> Output {
        Command::new("tmux")
            .arg("-S")
            .arg(self.folder.path().join("socket"))
            .args(["-f", "/dev/null", "-u"])
            .args(arguments)
            .env("LC_ALL", "C.UTF-8")
            .env("SHELL", "/bin/sh")
            .output()
            .expect("`cargo xtask test` installs tmux for this test")
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout).to_owned()
    }

    fn keys(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    /// The screen, once it shows this.
    fn wait_for(&self, what: &str) -> String {
        self.wait_until(what, |screen| screen.contains(what))
    }

    fn wait_until(&self, what: &str, shows: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        wait_until(what, || {
            screen = self.screen();
            shows(&screen)
        });
        screen
    }

    /// Types a command for the shell that writes a file, and waits for the file. What the screen shows of it depends on
    /// whether the prompt or the typing came first.
    fn written_by(&self, command: &str) -> String {
        let file = self.folder.path().join("written");
        let (part, done) = (file.with_extension("part"), file.display());
        self.keys(&[&format!("{command} > {0} && mv {0} {done}", part.display()), "Enter"]);
        wait_until(command, || file.exists());
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        text
    }

    /// The program has ended, the shell is back, and the terminal echoes, takes lines, and shows the cursor and its old
    /// screen.
    fn is_as_before(&self, program: &Path) {
        // What is typed before goes to it, and is lost.
        wait_until("top has ended", || has_ended(program));
        let modes = self.written_by("stty -a");
        for mode in ["echo", "icanon", "isig", "opost"] {
            let mut words = modes.split([' ', ';', '\n']);
            assert!(words.any(|word| word == mode), "{mode}:\n{modes}");
        }
        // The terminal takes a while to read what it was told.
        wait_until("the cursor and the old screen are shown", || {
            self.run(&["display", "-p", "#{cursor_flag}#{alternate_on}"]).trim() == "10"
        });
        self.wait_until("the shell is back", |screen| !screen.contains("ALLOCATED"));
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // It may be gone already.
        self.output(&["kill-server"]);
    }
}

#[test]
fn in_a_terminal_keys_do_what_the_help_says_and_leaving_leaves_it_as_it_was() {
    let sheets = tempfile::tempdir().unwrap();
    let mut job = Job::shown(sheets.path(), "sites");
    let tmux = Tmux::start(80, 24, sheets.path());
    let process = top_in(&tmux, "--interval 0.1");

    let pid = job.0.id().to_string();
    let screen = tmux.wait_for("lines that hold the memory");
    for shown in [&*pid, "host:0", "1 process, by allocated", "reserved", "tonnage-", "? help"] {
        assert!(screen.contains(shown), "{shown}:\n{screen}");
    }
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");

    tmux.keys(&["s"]);
    tmux.wait_for("by reserved");
    tmux.keys(&["p"]);
    tmux.wait_for("paused");
    // It may still have been drawing; from some moment on nothing moves, while the job goes on.
    let handed_out =
        || seen(sheets.path())["processes"][0]["devices"][0]["allocations"].as_u64().unwrap_or(0);
    wait_until("nothing moves", || {
        let (screen, before) = (tmux.screen(), handed_out());
        for _ in 0..5 {
            let before = handed_out();
            wait_until("the job goes on", || handed_out() > before);
        }
        handed_out() > before && tmux.screen() == screen
    });
    tmux.keys(&["p"]);
    tmux.wait_until("it goes on", |screen| !screen.contains("paused"));
    tmux.keys(&["?"]);
    tmux.wait_for("keys and words");
    tmux.keys(&["q"]);
    tmux.wait_until("the help is gone", |screen| !screen.contains("keys and words"));

    // A second one comes, and can be chosen.
    let second = Job::start(sheets.path(), "1");
    tmux.wait_for("2 processes");
    tmux.keys(&["End"]);
    tmux.wait_for(" on host:0");
    tmux.keys(&["Home", "Down", "j", "Up", "k"]);
    drop(second);
    tmux.wait_for("1 process,");

    tmux.run(&["resize-window", "-x", "40", "-y", "20"]);
    let narrow = tmux.wait_until("it is narrow", |screen| {
        screen.contains("ALLOCATED") && !screen.contains("COMMAND")
    });
    assert!(narrow.contains(&pid), "{narrow}");
    tmux.run(&["resize-window", "-x", "80", "-y", "24"]);
    tmux.wait_for("COMMAND");

    job.kill();
    tmux.wait_for("no process publishes");
    tmux.keys(&["q"]);
    tmux.is_as_before(&process);
}

/// Whether a process, given by its folder under `/proc`, has ended.
fn has_ended(process: &Path) -> bool {
    std::fs::read_link(process.join("exe")).is_err()
}

/// Starts `top` in the terminal; its folder under `/proc`, once it shows itself.
fn top_in(tmux: &Tmux, options: &str) -> PathBuf {
    let number = tmux.folder.path().join("number");
    // The number of one that was started before.
    let _ = std::fs::remove_file(&number);
    let top = format!("sh -c 'echo $$ > {}; exec {} top {options}'", number.display(), program());
    tmux.keys(&[&top, "Enter"]);
    let screen = tmux.wait_until("top shows itself", |screen| screen.contains("? help"));
    let number = std::fs::read_to_string(&number).unwrap_or_else(|_| panic!("{screen}"));
    Path::new("/proc").join(number.trim())
}

#[test]
fn in_a_terminal_signals_and_ctrl_c_leave_it_as_it_was() {
    let sheets = tempfile::tempdir().unwrap();
    let tmux = Tmux::start(80, 24, sheets.path());
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let process = top_in(&tmux, "");
        let number = process.file_name().unwrap().to_str().unwrap().parse().unwrap();
        kill_process(Pid::from_raw(number).unwrap(), signal).unwrap();
        tmux.is_as_before(&process);
    }
    let process = top_in(&tmux, "");
    tmux.keys(&["C-c"]);
    tmux.is_as_before(&process);
}

#[test]
fn a_terminal_that_is_closed_takes_the_program_with_it() {
    let sheets = tempfile::tempdir().unwrap();
    let tmux = Tmux::start(80, 24, sheets.path());
    let process = top_in(&tmux, "");
    tmux.run(&["kill-server"]);
    wait_until("top has ended", || has_ended(&process));
}
