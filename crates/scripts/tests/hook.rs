//! What scripts run first, in a real Python, with a stand-in for PyTorch.

use std::path::Path;
use std::process::Command;

/// What the hook asks of PyTorch, and nothing else.
const STAND_IN: &str = r#"
import types
__version__ = "0"
cuda = types.SimpleNamespace(
    _lazy_call=lambda call: call(),
    is_initialized=lambda: True,
    synchronize=lambda: None,
    memory_stats=lambda: {"x": 5},
    memory=types.SimpleNamespace(
        _record_memory_history=lambda **options: None,
        _dump_snapshot=lambda path: open(path, "w").close(),
    ),
)
"#;

/// Runs a script with the hook and a stand-in for PyTorch; the answer of its one process that used the device.
fn answer_of(torch: &str, script: &str) -> serde_json::Value {
    let (mut answers, _) = answers_of(torch, script);
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0)
}

/// The answers of all processes, and how many began to use the device.
fn answers_of(torch: &str, script: &str) -> (Vec<serde_json::Value>, usize) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(folder.path().join("torch.py"), torch).unwrap();
    let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hook");
    let path = std::env::join_paths([hook.as_path(), folder.path()]).unwrap();
    let done = Command::new("python3")
        .args(["-c", script])
        .env("PYTHONPATH", path)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TONNAGE_OUT", &out)
        .env_remove("TONNAGE_VALUES")
        .output()
        .expect("the tests need python3");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let paths: Vec<_> = std::fs::read_dir(&out).unwrap().map(|it| it.unwrap().path()).collect();
    let named = |extension: &'static str| {
        paths.iter().filter(move |path| path.extension().is_some_and(|it| it == extension))
    };
    let read = |path| serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    (named("json").map(read).collect(), named("began").count())
}

#[test]
fn figures_are_those_of_the_whole_run_whatever_the_script_sets_back() {
    let torch = STAND_IN.replace(
        "import types\n",
        "import types\n\
         figures = {'x.peak': 0, 'x.current': 0, 'x.allocated': 0, 'num_ooms': 0}\n\
         def reset_peak(device): figures['x.peak'] = figures['x.current']\n\
         def reset_sums(device): figures['x.allocated'] = figures['num_ooms'] = 0\n\
         _C = types.SimpleNamespace(_cuda_resetPeakMemoryStats=reset_peak, _cuda_resetAccumulatedMemoryStats=reset_sums)\n",
    );
    let torch = torch.replace("lambda: {\"x\": 5}", "lambda: dict(figures)");
    let script = "import torch\n\
                  torch.figures.update({'x.peak': 900, 'x.current': 100, 'x.allocated': 7, 'num_ooms': 1})\n\
                  torch._C._cuda_resetPeakMemoryStats(0)\n\
                  torch._C._cuda_resetAccumulatedMemoryStats(0)\n\
                  assert torch.cuda.memory_stats()['x.peak'] == 100, 'the script sees what it would'\n\
                  torch.figures.update({'x.peak': 300, 'x.allocated': 2})\n";
    let stats = &answer_of(&torch, script)["stats"];
    let expected = serde_json::json!({
        "x.peak": 900, "x.current": 100, "x.allocated": 9, "num_ooms": 1
    });
    assert_eq!(*stats, expected);
}

#[test]
fn a_script_that_asks_whether_pytorch_is_there_is_watched_all_the_same() {
    let script = "import importlib.util, sys\n\
                  assert importlib.util.find_spec('torch').name == 'torch'\n\
                  assert 'torch' not in sys.modules\n\
                  import torch\n\
                  assert type(torch.__loader__).__name__ == 'SourceFileLoader'\n\
                  assert torch.__spec__.loader is torch.__loader__\n";
    assert_eq!(answer_of(STAND_IN, script)["stats"]["x"], 5);
}

/// The device is used by children alone, which are forked once PyTorch was imported.
#[test]
fn children_tell_what_they_used_unless_they_are_ended_before() {
    let torch = STAND_IN
        .replace("_lazy_call=lambda call: call()", "_lazy_call=calls.append, init=init")
        .replace("is_initialized=lambda: True", "is_initialized=lambda: bool(used)")
        .replace(
            "import types\n",
            "import types\ncalls, used = [], []\ndef init():\n    used.append(1)\n    for call in calls: call()\n",
        );
    let script = "import multiprocessing, os, signal, sys, torch\n\
                  def child(): torch.cuda.init()\n\
                  process = multiprocessing.get_context('fork').Process(target=child)\n\
                  process.start(); process.join()\n\
                  if os.fork() == 0: torch.cuda.init(); sys.exit()\n\
                  os.wait()\n\
                  if os.fork() == 0: torch.cuda.init(); os.kill(os.getpid(), signal.SIGKILL)\n\
                  os.wait()\n";
    let (answers, began) = answers_of(&torch, script);
    assert_eq!((answers.len(), began), (2, 3));
    assert_ne!(answers[0]["process"], answers[1]["process"]);
}

#[test]
fn of_several_devices_the_one_that_reserved_most_counts() {
    let torch = STAND_IN.replace(
        "memory_stats=lambda: {\"x\": 5}",
        "device_count=lambda: 4, memory_stats=lambda n: {'reserved_bytes.all.peak': [2, 0, 0, 9][n]}",
    );
    let answer = answer_of(&torch, "import torch\n");
    assert_eq!(answer["device"], 3);
    assert_eq!(answer["stats"]["reserved_bytes.all.peak"], 9);
    assert_eq!(answer["elsewhere"], serde_json::json!([{ "device": 0, "reserved": 2 }]));
}

#[test]
fn whether_a_script_asks_for_the_size_of_memory_is_told() {
    let torch = STAND_IN.replace(
        "cuda = types.SimpleNamespace(",
        "import collections\n\
         cuda = types.SimpleNamespace(\n\
         mem_get_info=lambda: (1, 2),\n\
         get_device_properties=lambda n: collections.namedtuple('P', 'name total_memory')('x', 2),",
    );
    let asked = |script: &str| answer_of(&torch, script)["asked"].clone();
    assert_eq!(asked("import torch\n"), serde_json::Value::Null);
    assert_eq!(asked("import torch\ntorch.cuda.mem_get_info()\n"), "<string>:2");
    let properties = "import torch\np = torch.cuda.get_device_properties(0)\n";
    assert_eq!(asked(&format!("{properties}p.name\n")), serde_json::Value::Null);
    assert_eq!(asked(&format!("{properties}p.total_memory\n")), "<string>:2");
}
