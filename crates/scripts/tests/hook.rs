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
    answers_beside(&[("torch.py", torch)], script)
}

/// The same with these modules of the program's own.
fn answers_beside(modules: &[(&str, &str)], script: &str) -> (Vec<serde_json::Value>, usize) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    for (name, text) in modules {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
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

/// Python says that it failed, and goes on; so does the hook, parts of which are imported later.
#[test]
fn a_sitecustomize_of_the_programs_own_that_fails_ends_nothing() {
    for fails in ["import a_module_that_is_not_there", "raise ValueError", "import sitecustomize_"]
    {
        let modules = [("torch.py", STAND_IN), ("sitecustomize.py", fails)];
        let (answers, _) = answers_beside(&modules, "import torch, tonnage_values\n");
        assert_eq!(answers.len(), 1, "{fails}");
    }
}

/// One that never ends is not waited for.
#[test]
fn those_that_compile_end_with_the_script() {
    let pool = "import subprocess\n\
                class SubprocPool:\n    \
                    def __init__(self): self.process = subprocess.Popen(['sleep', '1000'])\n    \
                    def shutdown(self): return self.process.wait(300)\n";
    let modules = [
        ("torch/__init__.py", STAND_IN),
        ("torch/_inductor/__init__.py", ""),
        ("torch/_inductor/compile_worker/__init__.py", ""),
        ("torch/_inductor/compile_worker/subproc_pool.py", pool),
    ];
    let script = "import sitecustomize, torch\n\
                  sitecustomize.COMPILERS_END = 0.1\n\
                  from torch._inductor.compile_worker import subproc_pool\n\
                  assert subproc_pool.SubprocPool().shutdown() == -9\n";
    let (answers, _) = answers_beside(&modules, script);
    assert_eq!(answers.len(), 1);
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

/// By what two runs of a script tell that a process of one is the same as one of the other.
#[test]
fn processes_are_numbered_in_the_order_in_which_they_are_begun() {
    let script = "import multiprocessing, os, subprocess, sys\n\
                  show = 'import os; print(os.environ[\"TONNAGE_BIRTH\"])'\n\
                  def birth(**options):\n    \
                  done = subprocess.run([sys.executable, '-c', show], capture_output=True, text=True, check=True, **options)\n    \
                  return done.stdout.strip()\n\
                  def child(expected): sys.exit(birth() != expected)\n\
                  assert birth() == '0.1'\n\
                  assert birth(env={**os.environ, 'X': '1'}) == '0.2'\n\
                  assert birth(env={**os.environ, 'TONNAGE_BIRTH': '9'}, close_fds=False) == '0.3'\n\
                  if os.fork() == 0: os._exit(birth() != '0.4.1')\n\
                  assert os.wait()[1] == 0\n\
                  fork = multiprocessing.get_context('fork')\n\
                  for number in (5, 6):\n    \
                  process = fork.Process(target=child, args=(f'0.{number}.1',))\n    \
                  process.start(); process.join()\n    \
                  assert process.exitcode == 0, number\n\
                  assert os.posix_spawn(sys.executable, [sys.executable, '-c', f'assert (lambda: __import__(\"os\").environ[\"TONNAGE_BIRTH\"])() == \"0.7\"'], os.environ) > 0\n\
                  assert os.wait()[1] == 0\n\
                  show = 'import os; assert os.environ[\"TONNAGE_BIRTH\"] == \"{}\"'\n\
                  def spawned(expected, env):\n    \
                  os.posix_spawn(sys.executable, [sys.executable, '-c', show.format(expected)], env)\n    \
                  assert os.wait()[1] == 0, expected\n\
                  spawned('0.8', None)\n\
                  spawned('0.9', {b'TONNAGE_BIRTH': b'7'})\n\
                  assert os.popen('echo it goes on').read() == 'it goes on\\n'\n\
                  subprocess.run(['/bin/sh', '-c', 'exit 0'], close_fds=False, check=True)\n";
    answers_of(STAND_IN, script);
}

/// Else it would be on the machine's own libraries, and on its GPU if it has one.
#[test]
fn a_child_with_an_environment_of_its_own_is_one_of_the_run() {
    let script = r#"
import os, subprocess, sys
show = "import os; print(*(os.environ.get(name) for name in ('X', 'TONNAGE_OUT', 'LD_LIBRARY_PATH', 'PYTHONPATH')))"
begins = f"""
import os, subprocess, sys
def told(**options):
    words = [sys.executable, '-c', {show!r}]
    return subprocess.run(words, capture_output=True, text=True, check=True, **options).stdout.split()
out, hook = os.environ['TONNAGE_OUT'], os.environ['PYTHONPATH'].split(':')[0]
assert told(env={{'X': '1'}}) == ['1', out, '/ours', hook]
assert told(env={{'LD_LIBRARY_PATH': '/own'}}) == ['None', out, '/own', hook]
del os.environ['TONNAGE_OUT'], os.environ['LD_LIBRARY_PATH']
assert told()[1:3] == [out, '/ours']
"""
of_a_run = {"TONNAGE_FOLDER": "/nowhere", "LD_LIBRARY_PATH": "/ours:/theirs"}
subprocess.run([sys.executable, "-c", begins], env={**os.environ, **of_a_run}, check=True)
"#;
    answers_of(STAND_IN, script);
}
