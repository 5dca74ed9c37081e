//! `tonnage top`, printed and in a real terminal: tmux.

mod support;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{command, text};

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
    support::json(&top(folder, &["--json"]))
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
            device["device"] == "host:0" && device["allocations_per_second"].as_f64() > Some(0.0)
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

fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happens() {
        assert!(begin.elapsed() < Duration::from_secs(60), "after a minute: {what}");
        std::thread::sleep(Duration::from_millis(50));
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
    for publish in ["", "0"] {
        let job = Job::start(folder.path(), publish);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{publish:?}");
        drop(job);
    }
    let output = top(folder.path(), &["--once"]);
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
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(60) {
            screen = self.screen();
            if shows(&screen) {
                return screen;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("after a minute: {what}\n{screen}");
    }

    /// The shell is back, and the terminal echoes, takes lines, and shows the cursor and its old screen.
    fn is_as_before(&self) {
        self.wait_until("the shell is back", |screen| {
            screen.trim_end().ends_with("ready>") && !screen.contains("ALLOCATED")
        });
        self.keys(&["stty -a | tr ';' '\\n' | grep -cwE -e '-(echo|icanon|isig|opost)'", "Enter"]);
        self.wait_for("\n0\n");
        assert_eq!(self.run(&["display", "-p", "#{cursor_flag}#{alternate_on}"]).trim(), "10");
        self.keys(&["clear", "Enter"]);
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
    let top = format!("{} top --interval 0.1", program());
    tmux.keys(&[&top, "Enter"]);

    let pid = job.0.id().to_string();
    let screen = tmux.wait_for("lines that hold the memory");
    for shown in [&*pid, "host:0", "1 process, by allocated", "reserved", "crates/", "? help"] {
        assert!(screen.contains(shown), "{shown}:\n{screen}");
    }
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");

    tmux.keys(&["s"]);
    tmux.wait_for("by reserved");
    tmux.keys(&["p"]);
    let paused = tmux.wait_for("paused");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(tmux.screen(), paused, "nothing moves");
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
    tmux.is_as_before();
}

#[test]
fn in_a_terminal_signals_and_ctrl_c_leave_it_as_it_was() {
    let sheets = tempfile::tempdir().unwrap();
    let tmux = Tmux::start(80, 24, sheets.path());
    let number = sheets.path().join("number");
    for signal in ["TERM", "INT", "HUP"] {
        let top = format!("sh -c 'echo $$ > {}; exec {} top'", number.display(), program());
        tmux.keys(&[&top, "Enter"]);
        tmux.wait_for("? help");
        let pid = std::fs::read_to_string(&number).unwrap();
        let killed =
            Command::new("kill").args([&format!("-{signal}"), pid.trim()]).status().unwrap();
        assert!(killed.success());
        tmux.is_as_before();
    }
    tmux.keys(&[&format!("{} top", program()), "Enter"]);
    tmux.wait_for("? help");
    tmux.keys(&["C-c"]);
    tmux.is_as_before();
}

#[test]
fn a_terminal_that_is_closed_takes_the_program_with_it() {
    let sheets = tempfile::tempdir().unwrap();
    let tmux = Tmux::start(80, 24, sheets.path());
    let number = sheets.path().join("number");
    let top = format!("sh -c 'echo $$ > {}; exec {} top'", number.display(), program());
    tmux.keys(&[&top, "Enter"]);
    tmux.wait_for("? help");
    let pid = std::fs::read_to_string(&number).unwrap();
    tmux.run(&["kill-server"]);
    let running = Path::new("/proc").join(pid.trim()).join("exe");
    wait_until("top has ended", || std::fs::read_link(&running).is_err());
}
