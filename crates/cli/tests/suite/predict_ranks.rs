//! `tonnage predict --world 16 --rank all --out DATASET -- python train.py`, with the stand-in for PyTorch of `predict_script.rs`:
//! which ranks run, which share a run, what is kept, and what is said.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tonnage_fleet::{Dataset, Found, LookOptions, Row};

use crate::predict_script::{Place, valid};
use crate::support::{command, recording, root, testdata, text, wait_until};

/// Tells that it ran, and as which rank; what else it does stands behind.
const RANK: &str =
    "import os, torch\nrank = int(os.environ['RANK'])\nopen('ran', 'a').write(f'{rank}\\n')\n";

const TRAINS: &str = "torch.cuda.init()\n";

/// Ranks of these numbers ask for something else.
fn others_for(ranks: &str) -> String {
    format!(
        "{RANK}if rank in {ranks}: torch.recording = torch.recording.replace('mlp_seed', 'deepnet_plain')\n{TRAINS}"
    )
}

/// A place with a script, and recordings as PyTorch writes them: not packed, whatever their names say.
struct Job {
    place: Place,
}

impl Job {
    fn new(script: &str) -> Self {
        let place = Place::new(script);
        for name in ["mlp_seed.default", "deepnet_plain.default"] {
            let from = |ending: &str| testdata("traces").join(format!("{name}.{ending}"));
            let to = |ending: &str| place.path(&format!("{name}.{ending}"));
            std::fs::copy(from("json"), to("json")).unwrap();
            let packed = std::fs::File::open(from("pickle.zst")).unwrap();
            std::fs::write(to("pickle.zst"), zstd::decode_all(packed).unwrap()).unwrap();
        }
        Self { place }
    }

    fn words(&self, flags: &[&str]) -> std::process::Command {
        self.words_of(flags, &["train.py"])
    }

    /// Flags, and what stands behind `python3`.
    fn words_of(&self, flags: &[&str], script: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(command().get_program());
        command.arg("predict").args(flags).args(["--", "python3"]).args(script);
        command.current_dir(self.place.path("")).env("PYTHONPATH", self.place.path(""));
        command.env("STAND_IN", self.place.path("mlp_seed.default"));
        command
    }

    fn predict(&self, flags: &[&str]) -> Output {
        self.words(flags).output().unwrap()
    }

    /// Sixteen ranks, kept in `out`.
    fn all(&self, more: &[&str]) -> Output {
        self.predict(&[&["--world", "16", "--rank", "all", "--out", "out"], more].concat())
    }

    fn all_as_json(&self, more: &[&str]) -> Value {
        let output = self.all(&[more, &["--json"]].concat());
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output.stderr));
        valid(&output)
    }

    /// Ranks that ran since this was asked last: each runs twice.
    fn ran(&self) -> Vec<u32> {
        let path = self.place.path("ran");
        let told = std::fs::read_to_string(&path).unwrap_or_default();
        let _ = std::fs::remove_file(path);
        let mut times = BTreeMap::<u32, u32>::new();
        for line in told.lines() {
            *times.entry(line.parse().unwrap()).or_default() += 1;
        }
        assert!(times.values().all(|it| *it == 2), "{times:?}");
        times.into_keys().collect()
    }

    fn snapshots(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.place.path("out/snapshots")).unwrap();
        let mut names: Vec<_> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Rows of the dataset, by the files that they are of or share.
    fn rows(&self, ranks: &[(String, String)]) -> Vec<Row> {
        let here = self.place.path("");
        let found: Vec<_> = ranks
            .iter()
            .map(|(name, of)| {
                let path = here.join(format!("out/snapshots/{of}.pickle.zst"));
                let address = format!("out/snapshots/{name}.pickle.zst");
                Found { address, ..Found::file(&path).unwrap() }
            })
            .collect();
        let gpu = std::fs::read_to_string(root().join("crates/scripts/data/gpus/h200.json"));
        let gpu: Value = serde_json::from_str(&gpu.unwrap()).unwrap();
        let [memory, context] = ["memory", "context"].map(|it| gpu[it].as_u64().unwrap());
        let (limit, total) = (Some(memory - context), Some(memory));
        let options = LookOptions { limit, total, ..LookOptions::default() };
        Dataset::open(&here.join("out")).unwrap().known(&found, &options).unwrap()
    }
}

fn all(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

fn name(rank: u32) -> String {
    format!("dp{}_pp{}_tp{}_rank_{rank:05}", rank / 4, rank / 2 % 2, rank % 2)
}

const LAYOUT: [&str; 2] = ["--layout", "dp=4,pp=2,tp=2"];

#[test]
fn ranks_that_are_alike_share_a_run_and_are_named_as_such() {
    let job = Job::new(&others_for("(2, 3, 6, 7, 10, 11, 14, 15)"));
    let flags = [&LAYOUT[..], &["--alike", "dp"]].concat();
    let told = job.all_as_json(&flags);
    // The first and the last of the four along `dp`, at each of four places.
    assert_eq!(job.ran(), [0, 1, 2, 3, 12, 13, 14, 15]);
    assert_eq!((&told["runs"], &told["dataset"]), (&8.into(), &"out".into()));
    let shared: Vec<_> = (4..12).map(|rank| json!({ "rank": rank, "same_as": rank % 4 })).collect();
    assert_eq!(told["shared"], Value::Array(shared));
    assert_eq!((&told["unlike"], &told["fits"]), (&json!([]), &true.into()));
    assert_eq!(told["ranks"][4]["rank"], 12);
    let kept = told["ranks"][4]["prediction"]["snapshot"].as_str().unwrap();
    assert_eq!(kept, "out/snapshots/dp3_pp0_tp0_rank_00012.pickle.zst");
    assert_eq!(job.snapshots().len(), 16, "a history and what is known of each that ran");
    // Every rank is a row: of its own file, or of that which it shares.
    let ranks: Vec<_> = (0..16)
        .map(|rank| (name(rank), name(if (4..12).contains(&rank) { rank % 4 } else { rank })))
        .collect();
    let rows = job.rows(&ranks);
    assert_eq!(rows.len(), 16);
    for (rank, row) in (0_u64..).zip(&rows) {
        assert_eq!((row.place.rank, row.place.dp), (Some(rank), Some(rank / 4)));
        let shares = (4..12)
            .contains(&rank)
            .then(|| format!("out/snapshots/{}.pickle.zst", name(rank as u32 % 4)));
        assert_eq!(row.same_as, shares, "{rank}");
        let reserved = row.facts().unwrap().reserved;
        assert_eq!(reserved, rows[(rank % 4) as usize].facts().unwrap().reserved);
    }
    assert_ne!(rows[0].facts().unwrap().live, rows[2].facts().unwrap().live);
    // What is said of each file is what `fleet report` says of it.
    let mut report = command();
    report.args(["fleet", "report", "out/snapshots", "--json"]).current_dir(job.place.path(""));
    let report: Value = serde_json::from_slice(&report.output().unwrap().stdout).unwrap();
    assert_eq!(report["files"], 8);
    let least = report["imbalance"]["least"]["reserved"].as_u64().unwrap();
    assert_eq!(least, rows.iter().map(|row| row.facts().unwrap().reserved).min().unwrap());

    let page = job.all(&flags);
    assert_eq!(page.status.code(), Some(0), "{}", text(&page.stderr));
    assert_eq!(job.ran(), all(0..0));
    let said = text(&page.stdout);
    for words in [
        "16 ranks of a job of 16, 8 on each host, each by itself",
        "the layout, outermost first: dp 4, pp 2, tp 2\n",
        "8 were run, and 8 share the run of one that is alike along dp: ",
        "8 were kept from before\n",
        "  rank   dp   pp   tp     requested     allocated      reserved\n",
        "     0    0    0    0    186.47 MiB    186.47 MiB    208.00 MiB  fits\n",
        "     4    1    0    0    186.47 MiB    186.47 MiB    208.00 MiB  fits, as rank 0\n",
        "tonnage report out/snapshots/dp0_",
    ] {
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
}

#[test]
fn ranks_that_are_not_alike_are_each_run_and_that_is_said() {
    let job = Job::new(&others_for("(12,)"));
    let flags = [&LAYOUT[..], &["--alike", "dp"]].concat();
    let told = job.all_as_json(&flags);
    // Of the set whose ends differ, the middle is run too.
    assert_eq!(job.ran(), [0, 1, 2, 3, 4, 8, 12, 13, 14, 15]);
    assert_eq!(told["unlike"], json!([[0, 4, 8, 12]]));
    let page = job.all(&flags);
    for words in [
        "10 were run, and 6 share the run of one that is alike along dp: the first and the last of each of these sets ask for the same\n",
        "ranks 0, 4, 8, 12 are not alike along dp, as rank 0 and rank 12 tell: each was run",
    ] {
        assert!(text(&page.stdout).contains(words), "{words:?} is not in\n{}", text(&page.stdout));
    }
}

#[test]
fn the_rank_is_named_that_differs() {
    let job = Job::new(&others_for("(8,)"));
    let flags = [&LAYOUT[..], &["--world", "16", "--out", "out"]].concat();
    assert_eq!(job.predict(&[&flags[..], &["--rank", "8"]].concat()).status.code(), Some(0));
    assert_eq!(job.ran(), [8]);
    // Ends are alike; what was kept of the middle is not.
    let page = job.predict(&[&flags[..], &["--rank", "all", "--alike", "dp"]].concat());
    assert_eq!(job.ran(), [0, 1, 2, 3, 4, 12, 13, 14, 15]);
    let words = "ranks 0, 4, 8, 12 are not alike along dp, as rank 0 and rank 8 tell: each was run";
    assert!(text(&page.stdout).contains(words), "{}", text(&page.stdout));
}

#[test]
fn what_was_run_with_the_same_is_not_run_again() {
    let job = Job::new(&format!("{RANK}{TRAINS}"));
    let some = ["--world", "16", "--rank", "0-2,9", "--out", "out", "--json"];
    assert_eq!(valid(&job.predict(&some))["runs"], 4);
    assert_eq!(job.ran(), [0, 1, 2, 9]);
    let told = job.all_as_json(&[]);
    assert_eq!((&told["runs"], &told["from_before"]), (&16.into(), &4.into()));
    assert_eq!(job.ran(), [all(3..9), all(10..16)].concat());
    let again = job.all_as_json(&[]);
    assert_eq!((&again["from_before"], &again["ranks"]), (&16.into(), &told["ranks"]));
    assert_eq!(job.ran(), all(0..0));
    // Half of a run, or one that someone has taken away, is none.
    std::fs::remove_file(job.place.path("out/snapshots/rank_00005.pickle.zst")).unwrap();
    std::fs::write(job.place.path("out/snapshots/rank_00006.json"), "{").unwrap();
    job.all_as_json(&[]);
    assert_eq!(job.ran(), [5, 6]);
    // Rows that were lost are made of what is kept.
    for part in std::fs::read_dir(job.place.path("out/files")).unwrap() {
        std::fs::remove_file(part.unwrap().path()).unwrap();
    }
    job.all_as_json(&[]);
    assert_eq!(job.ran(), all(0..0));
    let names: Vec<_> =
        (0..16).map(|it| format!("rank_{it:05}")).map(|it| (it.clone(), it)).collect();
    assert_eq!(job.rows(&names).len(), 16);
}

#[test]
fn what_was_run_with_something_else_is_run_again() {
    let job = Job::new(&format!("{RANK}{TRAINS}"));
    let two = |more: &[&str], (name, value): (&str, &str)| {
        let mut words = job.words(&[&["--rank", "0-1", "--out", "two"], more].concat());
        words.env(name, value).output().unwrap();
        job.ran()
    };
    let (base, nothing) = (&["--world", "16"][..], ("XDG_SESSION_ID", "1"));
    // One thing is another one each time, and what was run before goes with the question.
    for (more, variable) in [
        (&["--world", "8"][..], nothing),
        (&["--world", "16", "--per-host", "4"], nothing),
        (&["--world", "16", "--gpu", "a100-80"], nothing),
        (&["--world", "16", "--limit", "24GiB"], nothing),
        (&["--world", "16", "--conf", "expandable_segments:True"], nothing),
        (base, ("HIDDEN_SIZE", "1024")),
        (base, ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")),
    ] {
        assert_eq!(two(base, nothing), [0, 1], "{more:?} {variable:?}");
        assert_eq!(two(base, nothing), all(0..0), "{more:?} {variable:?}");
        assert_eq!(two(more, variable), [0, 1], "{more:?} {variable:?}");
    }
    assert_eq!(two(base, nothing), [0, 1]);
    // A session's own are no part of the question.
    for variable in [("XDG_SESSION_ID", "2"), ("SSH_TTY", "/dev/pts/1"), ("SHLVL", "7")] {
        assert_eq!(two(base, variable), all(0..0), "{variable:?}");
    }
    std::fs::write(job.place.path("train.py"), format!("{RANK}{TRAINS}\n")).unwrap();
    assert_eq!(two(base, nothing), [0, 1]);
    assert_eq!(two(base, nothing), all(0..0));
}

#[test]
fn the_file_of_a_module_is_a_file_that_is_named() {
    let job = Job::new("");
    std::fs::create_dir_all(job.place.path("pkg/train")).unwrap();
    for (module, file) in [("pkg.step", "pkg/step.py"), ("pkg.train", "pkg/train/__main__.py")] {
        let two = || {
            let flags = ["--world", "2", "--rank", "all", "--out", "out"];
            job.words_of(&flags, &["-m", module]).output().unwrap();
            job.ran()
        };
        std::fs::write(job.place.path(file), format!("{RANK}{TRAINS}")).unwrap();
        assert_eq!(two(), [0, 1], "{module}");
        assert_eq!(two(), all(0..0), "{module}");
        std::fs::write(job.place.path(file), format!("{RANK}{TRAINS}\n")).unwrap();
        assert_eq!(two(), [0, 1], "{module}");
    }
}

#[test]
fn files_that_ranks_write_themselves_change_nothing() {
    let writes = "import sys\nif rank == 0: open(sys.argv[1], 'a').write('a line\\n')\n";
    let job = Job::new(&format!("{RANK}{writes}{TRAINS}"));
    std::fs::write(job.place.path("config"), "small").unwrap();
    let two = || {
        let flags = ["--world", "2", "--rank", "all", "--out", "out"];
        let words = ["train.py", "train.log", "--config=config"];
        let output = job.words_of(&flags, &words).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        job.ran()
    };
    assert_eq!(two(), [0, 1]);
    assert!(job.place.path("train.log").is_file());
    assert_eq!(two(), all(0..0));
    // What they read is another matter.
    std::fs::write(job.place.path("config"), "larger").unwrap();
    assert_eq!(two(), [0, 1]);
    assert_eq!(two(), all(0..0));
}

#[test]
fn a_run_that_left_no_history_is_not_made_again() {
    let script = "def refuse(path): raise RuntimeError('it has none')\ntorch.cuda.memory._dump_snapshot = refuse\n\
                  torch.cuda.init()\nraise torch.OutOfMemoryError('Tried to allocate')\n";
    let job = Job::new(&format!("{RANK}{script}"));
    let flags = ["--world", "2", "--rank", "all", "--out", "out", "--json"];
    let output = job.predict(&flags);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    std::fs::remove_file(job.place.path("ran")).unwrap();
    let again = valid(&job.predict(&flags));
    assert_eq!((&again["from_before"], &again["fits"]), (&2.into(), &false.into()));
    assert!(!job.place.path("ran").exists());
    assert_eq!(job.snapshots(), ["rank_00000.json", "rank_00001.json"]);
}

#[test]
fn ranks_that_are_not_asked_for_stay() {
    let job = Job::new(&format!("{RANK}{TRAINS}"));
    let alike = [&LAYOUT[..], &["--alike", "dp"]].concat();
    job.all_as_json(&alike);
    assert_eq!(job.ran(), [0, 1, 2, 3, 12, 13, 14, 15]);
    let before = job.snapshots();
    let five = [&["--world", "16", "--rank", "5", "--out", "out", "--json"][..], &LAYOUT].concat();
    let told = valid(&job.predict(&five));
    assert_eq!((job.ran(), &told["runs"], &told["from_before"]), (vec![5], &1.into(), &0.into()));
    let now = job.snapshots();
    assert!(before.iter().all(|it| now.contains(it)) && now.len() == before.len() + 2, "{now:?}");
    // So do their rows, and those of ranks that share a run.
    let of = |rank: u32| if rank != 5 && (4..12).contains(&rank) { rank % 4 } else { rank };
    let ranks: Vec<_> = (0..16).map(|rank| (name(rank), name(of(rank)))).collect();
    let rows = job.rows(&ranks);
    assert_eq!(rows.len(), 16);
    for (rank, row) in (0..).zip(&rows) {
        let shares = format!("out/snapshots/{}.pickle.zst", name(of(rank)));
        assert_eq!(row.same_as, (of(rank) != rank).then_some(shares), "{rank}");
    }
    let told = job.all_as_json(&alike);
    assert_eq!((job.ran(), &told["from_before"]), (all(0..0), &9.into()));
    // Of another question nothing stays.
    job.predict(&[&five[..], &["--limit", "24GiB"]].concat());
    assert_eq!((job.ran(), job.snapshots().len()), (vec![5], 2));
}

#[test]
fn ranks_whose_figures_rest_on_guesses_are_named() {
    let guesses = "if rank in (1, 2): open(os.environ.get('TONNAGE_GUESSES', os.devnull), 'a').write('{\"line\": \"\", \"what\": \"x\"}\\n')\n";
    let job = Job::new(&format!("{RANK}{guesses}{TRAINS}"));
    let output = job.predict(&["--world", "4", "--rank", "all"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let words = "rest on what is not known: 2 ranks (1, 2); --json has what of each\n";
    assert!(said.contains(words), "{said}");
    let output = job.predict(&["--world", "4", "--rank", "0,3"]);
    assert!(!text(&output.stdout).contains("rest on"), "{}", text(&output.stdout));
}

/// Else it would go on from another's checkpoint, and its small peaks would be taken for those of one that begins.
#[test]
fn what_other_ranks_wrote_before_is_noticed_when_it_is_read() {
    let job = Job::new(&format!(
        "{RANK}if rank and os.path.exists('last.pt'): open('last.pt').read()\n{TRAINS}\
         if not rank: open('last.pt', 'w').write('zeros')\n"
    ));
    let told = |ranks: &str| {
        let words = ["--world", "4", "--rank", ranks, "--jobs", "1", "--out", "out", "--json"];
        let output = job.predict(&words);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output.stderr));
        let told = valid(&output);
        let ranks = told["ranks"].as_array().unwrap().iter();
        ranks.map(|it| it["prediction"]["guesses"].to_string()).collect::<Vec<_>>()
    };
    let noticed = |guesses: &str| guesses.contains("last.pt is read, as an earlier run");
    let [first, second] = &told("0,1")[..] else { panic!("not two ranks") };
    assert!(!noticed(first) && noticed(second), "{first} {second}");
    // Those of an earlier command too.
    let third = &told("2")[0];
    assert!(noticed(third), "{third}");
}

#[test]
fn a_rank_that_fails_by_itself_is_a_row_and_the_rest_goes_on() {
    let job = Job::new(&format!("{RANK}{TRAINS}if rank == 5: raise ValueError('no such shard')\n"));
    let output = job.all(&[]);
    assert_eq!(output.status.code(), Some(2));
    let why = "rank 5: the script failed: ValueError: no such shard";
    assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    assert_eq!(job.ran(), all(0..16));
    let line = text(&output.stdout).lines().find(|it| it.starts_with("     5 ")).unwrap();
    assert!(line.ends_with("failed"), "{line}");
    // It is tried again; the others are not.
    let output = job.all(&["--json"]);
    let told = valid(&output);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(job.ran(), [5]);
    assert_eq!((&told["fits"], &told["failed"][0]["rank"]), (&Value::Null, &5.into()));
    assert_eq!(told["ranks"][5]["prediction"]["error"]["type"], "ValueError");
    assert!(!job.snapshots().contains(&"rank_00005.pickle.zst".to_owned()));
}

#[test]
fn ranks_that_fail_for_the_same_reason_are_not_all_run() {
    let job = Job::new(&format!("{RANK}raise ValueError('no such file')\n"));
    let output = job.all(&["--layout", "dp=16", "--alike", "dp"]);
    assert_eq!(output.status.code(), Some(2));
    let why = "all of 16 ranks failed by themselves, first rank 0: the script ended with status 1: ValueError: no such file";
    assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    assert_eq!(job.ran(), [0, 15]);
}

#[test]
fn of_many_ranks_groups_are_told() {
    let job = Job::new(&others_for("range(20, 40)"));
    let flags = ["--world", "40", "--rank", "all", "--layout", "pp=2,dp=20", "--alike", "dp"];
    let output = job.predict(&flags);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(job.ran(), [0, 19, 20, 39]);
    let said = text(&output.stdout);
    for words in [
        "fits: 40 ranks (0-39)\n",
        "Groups of ranks that are alike",
        "Balance",
        "the smallest card known here",
    ] {
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
    assert!(!said.contains("as rank 0\n"), "{said}");
    // Where each is kept, it is the same.
    let kept = job.predict(&[&flags[..], &["--out", "out"]].concat());
    let at = |said: &str| said.find("Groups").map(|it| said[it..it + 400].to_owned());
    assert_eq!(at(text(&kept.stdout)), at(said));
}

#[test]
fn ranks_run_at_once() {
    // Each waits until the other is there.
    let waits = "import time\nopen(f'here{rank}', 'w').close()\nwhile not os.path.exists(f'here{1 - rank}'): time.sleep(0.05)\n";
    let job = Job::new(&format!("{RANK}{waits}{TRAINS}"));
    let flags = ["--world", "2", "--rank", "all"];
    let both = job.predict(&[&flags[..], &["--jobs", "2"]].concat());
    assert_eq!(both.status.code(), Some(0), "{}", text(&both.stderr));
    for rank in 0..2 {
        std::fs::remove_file(job.place.path(&format!("here{rank}"))).unwrap();
    }
    let one = job.predict(&[&flags[..], &["--jobs", "1", "--time", "1"]].concat());
    assert_eq!(one.status.code(), Some(2), "{}", text(&one.stdout));
}

#[test]
fn ctrl_c_keeps_what_is_done_and_the_same_command_goes_on() {
    let waits = "import time\nwhile rank == 7 and os.path.exists('wait'): time.sleep(0.05)\n";
    let job = Job::new(&format!("{RANK}{waits}{TRAINS}"));
    std::fs::write(job.place.path("wait"), "").unwrap();
    let temporary = job.place.path("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let alike = ["--layout", "dp=4,tp=2", "--alike", "dp"];
    let flags =
        [&["--world", "8", "--rank", "all", "--out", "out", "--jobs", "1"][..], &alike].concat();
    let mut words = job.words(&flags);
    words.env("TMPDIR", &temporary).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = words.spawn().unwrap();
    let is_there =
        |path: PathBuf| std::fs::read_to_string(path).is_ok_and(|it| it.ends_with("7\n"));
    wait_until("rank 7 runs", || is_there(job.place.path("ran")));
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    // Those of one set are, and the first of the other.
    let note = "note: stopped: 5 of 8 ranks are done and kept; the same command goes on from there";
    assert!(text(&output.stderr).contains(note), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "nothing is left behind");
    std::fs::remove_file(job.place.path("ran")).unwrap();
    std::fs::remove_file(job.place.path("wait")).unwrap();
    assert_eq!(job.predict(&flags).status.code(), Some(0));
    assert_eq!(job.ran(), [7]);
}

#[test]
fn what_is_no_layout_and_no_dataset_is_told_before_anything_runs() {
    let job = Job::new(&format!("{RANK}{TRAINS}"));
    for (flags, why) in [
        (&["--layout", "dp=4,tp=2"][..], "4 × 2 = 8 ranks, and the world has 16"),
        (
            &["--layout", "dp=16", "--alike", "pp"],
            "--alike pp: the layout has no such axis, only dp",
        ),
        (&["--layout", "dp=x"], "`x` is no number of places"),
        (&["--alike", "dp"], "--layout"),
        (&["--rank", "0-16"], "of a world of 16 the last rank is 15"),
        (&["--rank", "5-3"], "no rank lies in `5-3`"),
        (&["--save", "x.pickle"], "cannot be used with"),
        (&["--jobs", "0"], "--jobs"),
        (&["--ray", "auto"], "pip install tonnage ray"),
    ] {
        let output = job.all(flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(text(&output.stderr).contains(why), "{flags:?}: {}", text(&output.stderr));
    }
    let output = job.predict(&["--out", "out"]);
    assert!(text(&output.stderr).contains("--world"), "{}", text(&output.stderr));
    // Somebody else's folder.
    let output = job.predict(&["--world", "2", "--rank", "all", "--out", "."]);
    assert!(text(&output.stderr).contains("name another folder"), "{}", text(&output.stderr));
    // Recordings' dataset.
    let mut report = command();
    report.args(["fleet", "report", &recording("mlp_seed.default"), "--out", "files"]);
    assert!(report.current_dir(job.place.path("")).output().unwrap().status.success());
    let output = job.predict(&["--world", "2", "--rank", "all", "--out", "files"]);
    let why = "files: this is a dataset of files: name another folder";
    assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    let output = job.predict(&["--world", "4294967295", "--rank", "all", "--out", "out"]);
    let why = "--rank: no more than 1048576 can be asked for at once";
    assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    assert_eq!(job.ran(), all(0..0));
    assert!(!job.place.path("out").exists());
}

/// The steps that Ray's workers and their driver do.
#[test]
fn single_steps_say_the_same_as_the_command() {
    let job = Job::new(&others_for("(1, 3)"));
    let flags = ["--world=4", "--layout=dp=2,tp=2", "--alike=dp"];
    let step = |more: &[&str]| {
        let output = job.predict(&[&flags[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        output
    };
    let plan: Value =
        serde_json::from_slice(&step(&["--rank=all", "--out=out", "--left", "--json"]).stdout)
            .unwrap();
    assert_eq!(
        (&plan["left"], &plan["command"]),
        (&json!([0, 1, 2, 3]), &json!(["python3", "train.py"]))
    );
    let key = format!("--key={}", plan["key"]);
    // Settings travel, and places do not.
    let mut words = job.words(&["--world=2", "--out=plan", "--left", "--json"]);
    words.env("NCCL_A_SETTING", "1").env("TORCH_HOME", "/home").env("OTHER", "1");
    let settings: Value = serde_json::from_slice(&words.output().unwrap().stdout).unwrap();
    let values = settings["settings"]["values"].as_object().unwrap();
    assert_eq!(values["NCCL_A_SETTING"], "1");
    assert!(!values.contains_key("TORCH_HOME") && !values.contains_key("OTHER"), "{values:?}");
    let made = tempfile::tempdir().unwrap();
    let one = format!("--one={}", made.path().display());
    let output = job.predict(&["--world=4", "--rank=0", &one, &key, "--torch=9.9"]);
    let why = "and this program 9.9: install the same on every node";
    assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    for rank in 0..4 {
        let made = tempfile::tempdir().unwrap();
        let (rank, folder) = (format!("--rank={rank}"), made.path().to_str().unwrap());
        let one = format!("--one={folder}");
        let words = plan["words"].as_array().unwrap().iter().map(|it| it.as_str().unwrap());
        let output = job.predict(&words.chain([&*rank, &*one, &*key]).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        step(&[&rank, "--out=out", &format!("--keep={folder}")]);
    }
    job.ran();
    // Whatever there is by now, what ranks are run with is what it was at the beginning.
    let left = |more: &[&str]| {
        let words = [&flags[..], &["--rank=all", "--out=out", "--left", "--json"], more].concat();
        let output = job.words(&words).env("OTHER", "1").output().unwrap();
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        plan["left"].clone()
    };
    assert_eq!(left(&[]), json!([0, 1, 2, 3]));
    assert_eq!(left(&[&key]), json!([]));
    let whole = [&flags[..], &["--rank=all", "--json"]].concat();
    let there = valid(&job.predict(&[&whole[..], &["--out=out", "--failures-kept"]].concat()));
    assert_eq!(job.ran(), all(0..0));
    let here = valid(&job.predict(&[&whole[..], &["--out=here"]].concat()));
    assert_eq!(without_times(&there, "out"), without_times(&here, "here"));
}

fn without_times(told: &Value, folder: &str) -> Value {
    let mut told: Value =
        serde_json::from_str(&told.to_string().replace(&format!("{folder}/"), "")).unwrap();
    for name in ["dataset", "from_before"] {
        told[name] = Value::Null;
    }
    for rank in told["ranks"].as_array_mut().unwrap() {
        rank["prediction"]["seconds"] = Value::Null;
        rank["prediction"]["files"] = Value::Null;
    }
    told
}

#[test]
fn a_file_that_is_somebody_elses_stays_and_ends_what_runs() {
    // The last rank never ends by itself, and the one before waits until it runs.
    let waits = "import time\nif rank == 2: open('here', 'w').close()\n\
                 while rank == 2 or rank == 1 and not os.path.exists('here'): time.sleep(0.05)\n";
    let job = Job::new(&format!("{RANK}{waits}{TRAINS}"));
    let theirs: &Path = &job.place.path("out/snapshots/rank_00001.pickle.zst");
    let first = ["--world", "3", "--rank", "0", "--out", "out"];
    assert_eq!(job.predict(&first).status.code(), Some(0));
    std::fs::write(theirs, "a recording").unwrap();
    let begun = Instant::now();
    let output = job.predict(&["--world", "3", "--rank", "all", "--out", "out", "--jobs", "2"]);
    assert!(begun.elapsed() < Duration::from_secs(500), "{:?}", begun.elapsed());
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("is no file of a simulated rank"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(std::fs::read(theirs).unwrap(), b"a recording");
}
