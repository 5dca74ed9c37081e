//! `tonnage view`, `tonnage run --view` and `tonnage fleet view`: what they print, serve and leave behind.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::support::{json, recording, root, text, tonnage, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A command that serves, and the address that it printed. Ends with the test.
struct Served {
    child: Child,
    url: String,
    rest: Box<dyn BufRead>,
}

impl Served {
    /// Takes the address from standard output, or from standard error.
    fn start(arguments: &[&str], on_stderr: bool) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tonnage"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (told, rest): (Box<dyn Read + Send>, Box<dyn Read + Send>) =
            if on_stderr { (Box::new(err), Box::new(out)) } else { (Box::new(out), Box::new(err)) };
        let mut told = BufReader::new(told);
        let mut url = String::new();
        while !url.starts_with("http://") {
            url.clear();
            assert_ne!(told.read_line(&mut url).unwrap(), 0, "no address was printed");
        }
        // A pipe that no one reads would stop the command.
        std::thread::spawn(move || std::io::copy(&mut told, &mut std::io::sink()));
        Self { child, url: url.trim().to_owned(), rest: Box::new(BufReader::new(rest)) }
    }

    fn get(&self, path: &str) -> (u16, Vec<u8>) {
        self.ask("GET", path, "")
    }

    /// Asks for something as the page does that changes what is open.
    fn post(&self, path: &str) -> (u16, Vec<u8>) {
        self.ask("POST", path, "Content-Type: application/json\r\nContent-Length: 0\r\n")
    }

    fn ask(&self, method: &str, path: &str, headers: &str) -> (u16, Vec<u8>) {
        let address = self.url.strip_prefix("http://").unwrap();
        let (host, folder) = address.split_once('/').unwrap();
        let mut socket = TcpStream::connect(host).unwrap();
        write!(
            socket,
            "{method} /{folder}{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n"
        )
        .unwrap();
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).unwrap();
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
        let status = text(&bytes[9..12]).parse().unwrap();
        (status, bytes.split_off(end + 4))
    }

    fn json(&self, path: &str) -> Value {
        let (status, body) = self.get(path);
        assert_eq!(status, 200, "{path}: {}", text(&body));
        serde_json::from_slice(&body).unwrap()
    }

    /// Presses Ctrl-C; says how it ended and what else it wrote.
    fn stop(mut self) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        let mut rest = String::new();
        self.rest.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Gone already, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn files_are_served_until_ctrl_c_and_those_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.pickle");
    std::fs::write(&broken, b"\x80\x04cos\nsystem\n.").unwrap();
    let (one, other) = (recording("mlp_seed.default"), recording("mlp_seed.tight"));
    let broken = broken.to_str().unwrap();
    let served = Served::start(&["view", &one, &other, broken, "--no-open", "--port", "0"], false);
    assert!(served.url.starts_with("http://127.0.0.1:"), "{}", served.url);
    let start = served.json("api/start");
    let names: Vec<_> =
        start["recordings"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
    assert_eq!(names, [one.as_str(), other.as_str()]);
    assert_eq!(start["refused"][0]["name"], broken);
    let why = start["refused"][0]["error"].as_str().unwrap();
    assert!(why.starts_with("refused at byte 2: opcode GLOBAL"), "{why}");
    assert_eq!(served.get("").0, 200);
    assert_eq!(&served.get("api/recordings/0/timeline").1[..4], b"TNV1");
    let (status, errors) = served.stop();
    assert_eq!(status, Some(0));
    assert!(errors.contains("warning:") && errors.contains("broken.pickle"), "{errors}");
}

#[test]
fn without_a_file_the_recording_inside_is_shown() {
    let served = Served::start(&["view", "--no-open", "--port", "0"], false);
    let start = served.json("api/start");
    assert_eq!(start["recordings"][0]["name"], "gpt2_varlen (embedded)");
    assert_eq!(served.stop().0, Some(0));
}

#[test]
fn what_cannot_be_shown_is_an_error() {
    let stream = std::fs::read_dir(root().join("testdata/streams"))
        .unwrap()
        .map(|it| it.unwrap().path())
        .find(|it| it.to_string_lossy().contains(".jsonl"))
        .unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (arguments, words) in [
        (vec!["view", stream.to_str().unwrap(), "--no-open"], "a command stream has no history"),
        (vec!["view", "no such file", "--no-open"], "cannot open no such file"),
        (vec!["view", "--no-open", "--port", &port], "is taken: name another with --port"),
    ] {
        let output = tonnage(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
    let output = tonnage(&["run", "mlp", "--device", "dry", "--no-open"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn ctrl_c_ends_a_run_that_still_trains_and_leaves_no_file_behind() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.pickle");
    let saved = file.to_str().unwrap();
    let endless = ["run", "mlp", "--steps", "1000000", "--save", saved, "--view", "--no-open"];
    let watched = Served::start(&[&endless[..], &["--port", "0"]].concat(), true);
    wait_until("a step has ended", || watched.json("api/run")["done"].as_u64() > Some(0));
    assert_eq!(watched.stop().0, Some(130));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_run_that_is_watched_takes_the_same_bytes_and_stays_on_the_page() {
    let recipe = ["run", "deepnet", "--layers", "4", "--width", "64", "--steps", "6", "--json"];
    let alone = json(&tonnage(&recipe));
    let watched =
        Served::start(&[&recipe[..], &["--view", "--no-open", "--port", "0"]].concat(), true);
    wait_until("the run has ended", || watched.json("api/run")["finished"] == true);
    let state = watched.json("api/run");
    assert_eq!(
        (&state["done"], &state["of"], &state["error"]),
        (&6.into(), &6.into(), &Value::Null)
    );
    assert_eq!(state["losses"].as_array().unwrap().len(), 6);
    assert_eq!(state["allocatedPeak"], alone["allocated_peak"]);
    let start = watched.json("api/start");
    assert_eq!((&start["run"], &start["recordings"][0]["kind"]), (&true.into(), &"run".into()));
    assert!(start["recordings"][0]["version"].as_u64().unwrap() >= 2);
    let timeline = watched.get("api/recordings/0/timeline").1;
    let head = u32::from_le_bytes(timeline[4..8].try_into().unwrap()) as usize;
    let head: Value = serde_json::from_slice(&timeline[8..8 + head]).unwrap();
    assert_eq!(head["peak"]["allocated"], alone["allocated_peak"]);
    assert_eq!(head["peak"]["reserved"], alone["reserved_peak"]);
    let (status, out) = watched.stop();
    assert_eq!(status, Some(0));
    let printed: Value = serde_json::from_str(&out).unwrap();
    for key in ["allocated_peak", "reserved_peak", "requested_peak", "breakdown", "losses"] {
        assert_eq!(printed[key], alone[key], "{key}");
    }
}

/// The head of what a page is told of a fleet.
fn fleet_head(served: &Served) -> Value {
    let (status, bytes) = served.get("api/fleet");
    assert_eq!(status, 200);
    let length = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    serde_json::from_slice(&bytes[8..8 + length]).unwrap()
}

#[test]
fn a_fleet_is_served_and_what_is_kept_of_it_without_its_files() {
    let (folder, outs) = (crate::fleet::planted(), tempfile::tempdir().unwrap());
    let (source, out) = (folder.path().to_str().unwrap(), outs.path().join("ranks"));
    let out = out.to_str().unwrap();
    let serve = |words: &[&str]| {
        Served::start(&[&["fleet", "view", "--no-open", "--port", "0"], words].concat(), false)
    };
    let served = serve(&[source, "--out", out]);
    let start = served.json("api/start");
    assert_eq!(
        (&start["fleet"], &start["recordings"]),
        (&true.into(), &Vec::<Value>::new().into())
    );
    let head = fleet_head(&served);
    let mut said = json(&tonnage(&["fleet", "report", source, "--json"]));
    assert_eq!(head["text"], said["text"]);
    assert_eq!(head["files"].as_array().unwrap().len(), 12);
    let (status, opened) = served.post("api/fleet/open/3");
    assert_eq!(status, 200, "{}", text(&opened));
    let opened: Value = serde_json::from_slice(&opened).unwrap();
    assert_eq!(opened["name"], head["files"][3]["address"]);
    assert_eq!(&served.get("api/recordings/0/timeline").1[..4], b"TNV1");
    assert_eq!(served.stop().0, Some(0));

    // The dataset says the same, but for what two files have to be read for.
    std::fs::remove_dir_all(folder.path()).unwrap();
    for outlier in said["outliers"].as_array_mut().unwrap() {
        outlier["diff"] = Value::Null;
    }
    assert_eq!(json(&tonnage(&["fleet", "report", out, "--json"])), said);
    let served = serve(&[out, "--limit", "300MiB"]);
    let kept = fleet_head(&served);
    assert_eq!((&kept["limit"], &kept["given"]), (&(300 << 20).into(), &true.into()));
    assert_eq!(kept["files"], head["files"]);
    let (status, why) = served.post("api/fleet/open/3");
    assert_eq!(status, 400);
    assert!(text(&why).contains("cannot open it"), "{}", text(&why));
    assert_eq!(served.stop().0, Some(0));

    for (words, why) in [
        (vec![out, "--tune"], "--tune is asked of files"),
        (vec![out, "--ordinal", "0"], "--ordinal is asked of files"),
        (vec![out, "--out", source], "--out is asked of files"),
        (vec![outs.path().join("none").to_str().unwrap()], "cannot look at"),
    ] {
        let output = tonnage(&[&["fleet", "view", "--no-open"], &words[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
    for part in std::fs::read_dir(outs.path().join("ranks/files")).unwrap() {
        std::fs::write(part.unwrap().path(), b"PAR1").unwrap();
    }
    for verb in ["view", "report"] {
        let output = tonnage(&["fleet", verb, out]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{verb}");
        assert!(text(&output.stderr).contains("is damaged"), "{}", text(&output.stderr));
    }
}

#[test]
fn a_fleet_of_which_nothing_can_be_read_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rank_0.pickle"), b"no snapshot").unwrap();
    let output = tonnage(&["fleet", "view", folder.path().to_str().unwrap(), "--no-open"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(text(&output.stderr).contains("rank_0.pickle: "), "{}", text(&output.stderr));
}

#[test]
fn ctrl_c_while_a_fleet_is_looked_at_keeps_what_is_done() {
    let (folder, outs) = (crate::fleet::planted(), tempfile::tempdir().unwrap());
    let (source, out) = (folder.path().to_str().unwrap(), outs.path().join("ranks"));
    let kept = out.to_str().unwrap();
    let words = ["fleet", "view", source, "--jobs", "1", "--out", kept, "--no-open", "--port", "0"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_tonnage"))
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the dataset is begun", || out.join("iterations").exists());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    // It may be done by then, and its page was ended.
    let status = child.wait().unwrap();
    assert!(matches!(status.code(), Some(0 | 130)), "{status}");
    let report =
        |more: &[&str]| json(&tonnage(&[&["fleet", "report", source, "--json"], more].concat()));
    assert_eq!(report(&["--out", kept]), report(&[]));
}
