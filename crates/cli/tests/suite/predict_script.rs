//! `tonnage predict -- python train.py`, with a stand-in for PyTorch whose figures and history are those of a recording:
//! what is said of a script, however it ends. PyTorch itself is run by `cargo xtask scripts`.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use crate::schemas;
use crate::support::{command, json, testdata, text};

/// What the command asks of PyTorch, and nothing else; of the Python package's tests too.
const STAND_IN: [(&str, &str); 8] = [
    ("__init__.py", include_str!("../stand_in/torch/__init__.py")),
    ("utils/_python_dispatch.py", include_str!("../stand_in/torch/utils/_python_dispatch.py")),
    ("utils/_pytree.py", include_str!("../stand_in/torch/utils/_pytree.py")),
    ("utils/__init__.py", include_str!("../stand_in/torch/utils/__init__.py")),
    ("autograd/graph.py", include_str!("../stand_in/torch/autograd/graph.py")),
    ("multiprocessing/__init__.py", include_str!("../stand_in/torch/multiprocessing/__init__.py")),
    (
        "multiprocessing/reductions.py",
        include_str!("../stand_in/torch/multiprocessing/reductions.py"),
    ),
    ("autograd/__init__.py", include_str!("../stand_in/torch/autograd/__init__.py")),
];

/// A Python with the stand-in, and a script.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let torch = folder.path().join("torch");
        for (name, text) in STAND_IN {
            let path = torch.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        // A library with names: those of PyTorch's runtime do not matter here.
        std::fs::create_dir(torch.join("lib")).unwrap();
        std::fs::copy(fake_libraries(), torch.join("lib/libcudart.so.13")).unwrap();
        // Its release is told before that of a PyTorch that the machine's Python may have.
        let told = folder.path().join("torch-2.11.0.dist-info");
        std::fs::create_dir(&told).unwrap();
        std::fs::write(
            told.join("METADATA"),
            "Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n",
        )
        .unwrap();
        std::fs::write(folder.path().join("train.py"), script).unwrap();
        Self(folder)
    }

    fn predict(&self, recording: &str, flags: &[&str]) -> Output {
        self.run(recording, flags, &[])
    }

    pub(crate) fn run(&self, recording: &str, flags: &[&str], words: &[&str]) -> Output {
        let mut command = command();
        command.arg("predict").args(flags).args(["--", "python3", "train.py"]).args(words);
        command.current_dir(self.0.path()).env("PYTHONPATH", self.0.path());
        command.env("STAND_IN", testdata("traces").join(recording));
        command.output().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Where cargo puts them: beside the program, or below.
fn fake_libraries() -> PathBuf {
    let program = assert_cmd::cargo::cargo_bin("tonnage");
    let folder = program.parent().unwrap();
    let file = Path::new("libtonnage_fake_cudart.so");
    let mut places = [folder.join(file), folder.join("deps").join(file)].into_iter();
    places.find(|path| path.is_file()).expect("cargo builds the fake libraries with the command")
}

const TRAINS: &str = "import torch\ntorch.cuda.init()\nprint('a loss')\n";

pub(crate) fn valid(output: &Output) -> Value {
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    schemas::assert_is("predict", &value);
    value
}

#[test]
fn a_script_that_fits_is_told_with_its_peaks_and_other_cards() {
    let place = Place::new(TRAINS);
    let output = place.predict("mlp_seed.default", &["--limit", "24GiB"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for words in [
        "python3 train.py\nas one NVIDIA H200 (139.80 GiB) and PyTorch 2.11.0 would run it\n",
        "reserved     208.00 MiB  218,103,808 bytes\n",
        "fits: 1.00 GiB of the limit of 24.00 GiB, the driver's own 820.81 MiB among them\n",
        "  fits: t4 (14.56 GiB), ",
    ] {
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
    assert!(!said.contains("guesses"), "{said}");
    assert!(said.contains("h200 ("), "under a limit the card itself is another one\n{said}");
    let output = place.predict("mlp_seed.default", &[]);
    let whole = text(&output.stdout);
    assert!(!whole.contains("h200 ("), "the card itself is no other card\n{whole}");

    let value = valid(&place.predict("mlp_seed.default", &["--json"]));
    assert_eq!(value["reserved"], serde_json::json!({ "low": 218_103_808, "high": 218_103_808 }));
    assert_eq!((&value["fits"], &value["allocations"]), (&true.into(), &151.into()));
    assert_eq!((&value["ooms"], &value["snapshot"]), (&0.into(), &Value::Null));
    assert_eq!(value["cards"].as_array().unwrap().len(), 11);
}

#[test]
fn a_script_that_does_not_fit_is_told_with_its_error_and_what_would_help() {
    let place = Place::new(
        "import torch\ntorch.cuda.init()\n\ndef step():\n    raise torch.OutOfMemoryError('Tried to allocate')\n\nstep()\n",
    );
    let output = place.predict("mlp_seed.tight", &[]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for words in [
        "peak, up to where it failed\n",
        "does not fit: it needs more than the card's 139.80 GiB",
        "OutOfMemoryError: Tried to allocate\n",
        "train.py:5 step\n",
        "One request failed.",
    ] {
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
    let value = valid(&place.predict("mlp_seed.tight", &["--json"]));
    assert_eq!((&value["fits"], &value["ooms"]), (&false.into(), &1.into()));
    assert_eq!(value["error"]["type"], "OutOfMemoryError");
    assert_eq!(
        value["cards"],
        serde_json::json!([]),
        "what it would go on to ask for is not known"
    );
    assert!(value["verdict"].as_str().unwrap().starts_with("One request failed."), "{value}");
}

/// What it makes of that is its own affair.
#[test]
fn a_script_that_fails_because_memory_did_not_suffice_does_not_fit() {
    let fails = |from: &str| {
        let script = "import torch\ntorch.cuda.init()\ntry:\n    raise torch.OutOfMemoryError('Tried to allocate')\n\
                      except RuntimeError as error:\n    why = error\nraise ValueError('too large')";
        Place::new(&format!("{script}{from}\n")).predict("mlp_seed.tight", &[])
    };
    let output = fails(" from why");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("OutOfMemoryError: Tried to allocate\n"), "{said}");
    assert!(said.contains("train.py:4 <module>\n"), "{said}");
    // One that it got over is another matter.
    let output = fails("");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    assert!(
        text(&output.stderr).contains("the script failed: ValueError: too large"),
        "{output:?}"
    );
}

#[test]
fn a_script_that_catches_the_error_and_gives_up_does_not_fit() {
    let place = Place::new("import sys, torch\ntorch.cuda.init()\nsys.exit(3)\n");
    assert_eq!(place.predict("mlp_seed.tight", &[]).status.code(), Some(1));
    // Without a request that failed, it is not for want of memory.
    let output = place.predict("mlp_seed.default", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).ends_with("error: the script ended with status 3\n"),
        "{output:?}"
    );
}

#[test]
fn a_script_that_fails_by_itself_is_no_answer() {
    for (script, why) in [
        (
            "import torch\ntorch.cuda.init()\nraise ValueError('no such file')\n",
            "ValueError: no such file",
        ),
        ("import torch\nprint('all is well')\n", "never used the GPU"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "was ended by signal 11"),
    ] {
        let place = Place::new(script);
        let output = place.predict("mlp_seed.default", &[]);
        assert_eq!(output.status.code(), Some(2), "{script}");
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
        assert!(!text(&output.stdout).contains("fits"), "{}", text(&output.stdout));
        let value = valid(&place.predict("mlp_seed.default", &["--json"]));
        assert_eq!(value["fits"], Value::Null, "{script}");
    }
    let place = Place::new("import time\nwhile True: time.sleep(1)\n");
    let output = place.predict("mlp_seed.default", &["--time", "1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("was not done after 1 s"), "{}", text(&output.stderr));
}

#[test]
fn a_device_that_is_not_there_can_be_given() {
    let fails = "raise RuntimeError('CUDA error: invalid device ordinal')\n";
    let place = Place::new(&format!("{TRAINS}{fails}"));
    let output = place.predict("mlp_seed.default", &["--gpus", "2"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("it sees 2 GPUs: give it more with --gpus"),
        "{output:?}"
    );
    let refused = place.predict("mlp_seed.default", &["--gpus", "2", "--world", "2"]);
    assert!(text(&refused.stderr).contains("cannot be used with '--world"), "{refused:?}");
}

#[test]
fn an_allocator_that_tells_nothing_is_no_script_without_a_gpu() {
    let place = Place::new(
        "import torch\ntorch.cuda.init()\ndef refuse(): raise RuntimeError('it tells no figures\\nat all')\n\
         torch.cuda.memory_stats = refuse\n",
    );
    let output = place.predict("mlp_seed.default", &[]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(
        said.contains("its allocator tells no figures (it tells no figures): only PyTorch's own"),
        "{said}"
    );
}

#[test]
fn what_compiles_is_a_range_by_a_guess() {
    let compiles = "import sys\nsys.modules['torch._inductor.compile_fx'] = sys\n";
    let place = Place::new(&format!("{TRAINS}{compiles}"));
    let value = valid(&place.predict("mlp_seed.default", &["--json"]));
    assert_eq!(value["by_guess"], true);
    assert_eq!(value["reserved"], serde_json::json!({ "low": 202_836_541, "high": 233_371_074 }));
    let output = place.predict("mlp_seed.default", &[]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("202,836,541 to 233,371,074 bytes, by what is guessed"));
    // What is counted where something was compiled says that nothing was.
    let counts = "sys.modules['torch._dynamo.utils'] = type(sys)('utils')\n\
                  sys.modules['torch._dynamo.utils'].counters = {'stats': {}}\n";
    let place = Place::new(&format!("{TRAINS}{compiles}{counts}"));
    assert_eq!(valid(&place.predict("mlp_seed.default", &["--json"]))["by_guess"], false);
}

/// Two processes used the device, of which none could tell how much.
#[test]
fn processes_that_could_not_tell_are_no_script_without_a_gpu() {
    let untold = "import os, torch\nfor name in ('1', '2'): open(f\"{os.environ['TONNAGE_OUT']}/{name}.began\", 'w').close()\n";
    let place = Place::new(untold);
    let output = place.predict("mlp_seed.default", &[]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(
        said.contains("2 processes of it that used the GPU ended before telling how much"),
        "{said}"
    );
    // Beside one that did, they are a guess.
    let place = Place::new(&format!("{untold}torch.cuda.init()\n"));
    let value = valid(&place.predict("mlp_seed.default", &["--json"]));
    assert_eq!((&value["fits"], &value["silent"]), (&true.into(), &2.into()));
    let guess = value["guesses"][0]["what"].as_str().unwrap();
    assert!(guess.contains("what they held is not counted"), "{guess}");
}

/// What the started process does does not say whether another one had enough.
#[test]
fn a_process_that_runs_out_of_memory_and_fails_decides() {
    let child = |status: &str| {
        format!(
            "import subprocess, sys\n\
             code = 'import sys, torch; torch.cuda.init(); sys.exit({status})'\n\
             subprocess.run([sys.executable, '-c', code])\n"
        )
    };
    let place = Place::new(&child("1"));
    let output = place.predict("mlp_seed.tight", &[]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("does not fit"), "{}", text(&output.stdout));
    let value = valid(&place.predict("mlp_seed.tight", &["--json"]));
    assert_eq!(value["fits"], false);
    assert_eq!(value["need"], Value::Null, "with plenty it fails as well");
    let value = valid(&Place::new(&child("0")).predict("mlp_seed.tight", &["--json"]));
    assert_eq!(value["fits"], true, "it got over that");
}

#[test]
fn a_python_that_ignores_the_path_is_told_as_the_reason() {
    let uses = "import os\n\
                notes = os.environ['TONNAGE_FAKE_NOTES']\n\
                open(f'{notes}/used', 'w').write(str(os.getpid()))\n";
    let output = Place::new(uses).predict("mlp_seed.default", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("leave out the options -I, -E and -S"), "{output:?}");
    // Beside a process that tells, it is a guess.
    let place = Place::new(&format!("{TRAINS}{}", uses.replace("os.getpid()", "1")));
    let value = valid(&place.predict("mlp_seed.default", &["--json"]));
    let guesses = value["guesses"].to_string();
    assert!(value["fits"] == true && guesses.contains("ignores PYTHONPATH"), "{value}");
}

#[test]
fn whoever_asks_past_pytorch_how_much_memory_there_is_is_told() {
    let asks = "import ctypes\n\
                free, total = ctypes.c_size_t(), ctypes.c_size_t()\n\
                ctypes.CDLL(None).cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))\n";
    let place = Place::new(&format!("{TRAINS}{asks}"));
    let value = valid(&place.predict("mlp_seed.default", &["--json"]));
    let guesses = value["guesses"].to_string();
    assert!(guesses.contains("how much memory there is (cudaMemGetInfo)"), "{guesses}");
}

/// Reads of the device by number: what they answer is written by the first run.
#[test]
fn each_process_is_told_its_own_reads() {
    let child = "import ctypes, os, sys, torch\n\
                 torch.cuda.init()\n\
                 core = ctypes.CDLL(None)\n\
                 place = ctypes.c_void_p()\n\
                 assert core.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(2 << 20)) == 0\n\
                 mine, read = ctypes.c_int64(int(sys.argv[1])), ctypes.c_int64()\n\
                 if os.environ['TONNAGE_VALUES'] == '1':\n    core.tonnage_fake_answer(ctypes.byref(mine), ctypes.c_size_t(8))\n\
                 assert core.cudaMemcpy(ctypes.byref(read), place, ctypes.c_size_t(8), 2) == 0\n\
                 sys.exit(read.value != mine.value)\n";
    let script = "import os, subprocess, sys, torch\n\
                  torch.cuda.init()\n\
                  for number in ('5', '6', '7'):\n    subprocess.run([sys.executable, 'child.py', number], check=True)\n\
                  if os.fork() == 0:\n    os.execv(sys.executable, [sys.executable, 'child.py', '8'])\n\
                  assert os.wait()[1] == 0\n";
    let place = Place::new(script);
    std::fs::write(place.path("child.py"), child).unwrap();
    let output = place.predict("mlp_seed.default", &["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let guesses = valid(&output)["guesses"].to_string();
    assert!(!guesses.contains("read"), "{guesses}");
}

#[test]
fn a_process_that_reads_for_the_first_time_is_told_zeros_and_that_is_said() {
    let reads = "import ctypes, os\n\
                 core, place, read = ctypes.CDLL(None), ctypes.c_void_p(), ctypes.c_int64()\n\
                 if os.environ['TONNAGE_VALUES'] != '1':\n    core.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(2 << 20))\n    core.cudaMemcpy(ctypes.byref(read), place, ctypes.c_size_t(8), 2)\n";
    let place = Place::new(&format!("{TRAINS}{reads}"));
    let value = valid(&place.predict("mlp_seed.default", &["--json"]));
    let guesses = value["guesses"].to_string();
    assert!(guesses.contains("reads that read nothing before"), "{guesses}");
}

/// The card of the second try has plenty of memory.
#[test]
fn what_a_script_needs_is_told_unless_it_takes_a_share_of_what_there_is() {
    let needs = "import os, torch\ntorch.cuda.init()\n\
                 total = int(open(os.environ['TONNAGE_FAKE_PROFILE']).read().split('total ')[1].split()[0])\n\
                 if total < 1 << 40: raise torch.OutOfMemoryError('Tried to allocate')\n";
    let need = |script: &str| {
        let value = valid(&Place::new(script).predict("mlp_seed.tight", &["--json"]));
        assert_eq!(value["fits"], false);
        (value["need"]["reserved"]["high"].clone(), value["guesses"].to_string())
    };
    let (reserved, guesses) = need(needs);
    assert_eq!((reserved, &*guesses), (218_103_808.into(), "[]"));
    let (reserved, guesses) = need(&needs.replace("total =", "torch.cuda.mem_get_info()\ntotal ="));
    assert_eq!(reserved, Value::Null);
    assert!(
        guesses.contains("train.py:3") && guesses.contains("asks how much memory there is"),
        "{guesses}"
    );
}

/// What it needs rests on what is guessed on the way there, which may be beyond the request that failed.
#[test]
fn guesses_of_the_run_with_plenty_are_told_and_its_figures_are_ranges() {
    let script = "import json, os, torch\ntorch.cuda.init()\n\
                  total = int(open(os.environ['TONNAGE_FAKE_PROFILE']).read().split('total ')[1].split()[0])\n\
                  if total < 1 << 40: raise torch.OutOfMemoryError('Tried to allocate')\n\
                  if 'TONNAGE_GUESSES' in os.environ:\n    \
                  with open(os.environ['TONNAGE_GUESSES'], 'a') as file:\n        \
                  file.write(json.dumps({'line': 'train.py:9', 'what': 'a mask beyond', 'kind': 'mask'}) + '\\n')\n\
                  if os.environ.get('TONNAGE_DENSITY') == '1': raise ValueError('all of it')\n";
    let value = valid(&Place::new(script).predict("mlp_seed.tight", &["--json"]));
    assert_eq!(value["fits"], false);
    assert_eq!(value["need"]["reserved"]["high"], 218_103_808);
    let guesses = value["guesses"].to_string();
    assert!(guesses.contains("a mask beyond"), "{guesses}");
    assert!(guesses.contains("everything true in masks"), "{guesses}");
}

#[test]
fn the_history_is_saved_for_the_other_verbs() {
    let place = Place::new(TRAINS);
    let output = place.predict("mlp_seed.default", &["--save", "run.pickle", "--json"]);
    assert_eq!(valid(&output)["snapshot"], "run.pickle");
    let saved = place.path("run.pickle");
    let report = json(&command().args(["report", "--json"]).arg(&saved).output().unwrap());
    assert_eq!(report["files"][0]["report"]["peak"]["reserved"]["bytes"], 218_103_808);
    // What is to be tried next can be, whatever the file is called.
    for (name, word) in [("a run.pickle", "'a run.pickle'"), ("it's", "'it'\\''s'"), ("-x", "./-x")]
    {
        let output = place.predict("mlp_seed.default", &[&format!("--save={name}")]);
        let said = text(&output.stdout);
        assert!(said.contains(&format!("  tonnage report {word} ")), "{word:?} is not in\n{said}");
    }
}

#[test]
fn what_cannot_be_run_is_said() {
    let place = Place::new(TRAINS);
    for (flags, why) in [
        (&["--gpu", "h2000"][..], "no GPU is called `h2000` here: known are t4, "),
        (&["--limit", "100MiB"], "leaves nothing"),
        (&["--save", "-"], "--save"),
        (&["--batch", "3"], "cannot be used with"),
        (&["mlp"], "cannot be used with"),
    ] {
        let output = place.predict("mlp_seed.default", flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
    let output = command().args(["predict", "--", "/nowhere/python", "x.py"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/nowhere/python"), "{}", text(&output.stderr));
    let output = command().args(["predict", "--gpu", "t4"]).output().unwrap();
    assert!(text(&output.stderr).contains("required"), "{}", text(&output.stderr));
}

#[test]
fn what_a_script_changes_among_files_is_listed_and_stays() {
    let place = Place::new(
        "import os, torch\ntorch.cuda.init()\nos.makedirs('out', exist_ok=True)\nopen('out/new', 'w').write('zeros')\n\
         open('kept.txt', 'w').write('zeros')\n",
    );
    std::fs::write(place.path("kept.txt"), "mine").unwrap();
    let output = place.predict("mlp_seed.default", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let words = "files that the script wrote or removed, and folders that it made:\n  kept.txt: changed\n  out: new\n  out/new: new\n";
    assert!(said.contains(words), "{said}");
    let before = "note: the script really runs here, more than once; what it writes is written";
    assert!(text(&output.stderr).starts_with(before), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_to_string(place.path("kept.txt")).unwrap(), "zeros");
    let value = valid(&place.predict("mlp_seed.default", &["--json"]));
    assert_eq!(value["files"][0]["what"], "changed");
}

/// The second run finds what the first one wrote; real ones begin with nothing.
#[test]
fn a_script_that_goes_on_from_what_it_wrote_is_noticed() {
    let place = Place::new(
        "import os, torch\n\
         if os.path.exists('last.pt'):\n    open('last.pt').read()\n    torch.allocations = 10\n\
         torch.cuda.init()\nopen('last.pt', 'w').write('zeros')\n",
    );
    let value = valid(&place.predict("mlp_seed.default", &["--json"]));
    let guesses = value["guesses"].to_string();
    assert!(guesses.contains("train.py:3") && guesses.contains("last.pt is read"), "{guesses}");
    assert!(guesses.contains("memory was asked for 10 times, and 151 times"), "{guesses}");
    assert_eq!(value["by_guess"], true);
    // One that finds a file each time asks for the same each time.
    let value = valid(&place.predict("mlp_seed.default", &["--json"]));
    let guesses = value["guesses"].to_string();
    assert!(guesses.contains("last.pt is read") && !guesses.contains("times"), "{guesses}");
    assert_eq!(value["by_guess"], false);
}

/// What runs after the first two write is written too.
#[test]
fn files_of_every_run_are_listed() {
    let place = Place::new(
        "import os, torch\ntorch.cuda.init()\nopen('runs', 'a').write('x')\n\
         if os.stat('runs').st_size < 3: raise torch.OutOfMemoryError('out of memory')\n\
         open('model.pt', 'w').write('zeros')\n",
    );
    let value = valid(&place.predict("mlp_seed.tight", &["--json", "--limit", "2GiB"]));
    assert_eq!(std::fs::read_to_string(place.path("runs")).unwrap(), "xxxx");
    let files: Vec<_> = value["files"].as_array().unwrap().iter().map(|it| &it["path"]).collect();
    let path = |name| place.path("").canonicalize().unwrap().join(name);
    assert_eq!(files, [&path("model.pt").to_str().unwrap(), &path("runs").to_str().unwrap()]);
}

#[test]
fn a_path_with_spaces_is_a_path() {
    let place = Place::new(TRAINS);
    let folder = place.path("a folder: of temporary files");
    std::fs::create_dir(&folder).unwrap();
    let mut command = command();
    command.args(["predict", "--json", "--", "python3", "train.py"]);
    command.current_dir(place.path("")).env("PYTHONPATH", place.path("")).env("TMPDIR", &folder);
    command.env("STAND_IN", testdata("traces").join("mlp_seed.default"));
    let output = command.output().unwrap();
    assert_eq!(valid(&output)["fits"], true, "{}", text(&output.stderr));
}

/// One request fails at the end of the recording; a script that ends well got over it.
#[test]
fn a_failure_that_the_script_got_over_does_not_decide() {
    let place = Place::new(TRAINS);
    let value = valid(&place.predict("mlp_seed.tight", &["--json"]));
    assert_eq!((&value["fits"], &value["ooms"]), (&true.into(), &1.into()));
}

#[test]
fn ranks_stand_side_by_side() {
    let place = Place::new(
        "import json, os, torch\ntorch.cuda.init()\n\
         names = ['RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK']\n\
         print(json.dumps([int(os.environ[name]) for name in names]))\n\
         assert [int(os.environ[name]) for name in names] in ([0, 64, 0, 8, 0], [31, 64, 7, 8, 3])\n",
    );
    let ranks = ["--world", "64", "--rank", "0,31"];
    let output = place.predict("mlp_seed.default", &ranks);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for words in [
        "2 ranks of a job of 64, 8 on each host, each by itself",
        "     0    186.47 MiB    186.47 MiB    208.00 MiB  fits\n",
        "    31    186.47 MiB    186.47 MiB    208.00 MiB  fits\n",
    ] {
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
    let value = valid(&place.predict("mlp_seed.default", &[&ranks[..], &["--json"]].concat()));
    assert_eq!(value["ranks"][1]["prediction"]["rank"], 31);
    assert_eq!(value["reserved"]["high"], 218_103_808);
    for (flags, why) in [
        (&["--world", "8", "--rank", "8"][..], "of a world of 8 the last rank is 7"),
        (&["--world", "8", "--rank", "0,1", "--save", "x.pickle"], "--save keeps one run"),
        (&["--rank", "1"], "--world"),
    ] {
        let output = place.predict("mlp_seed.default", flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}
