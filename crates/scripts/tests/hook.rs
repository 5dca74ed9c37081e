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

/// Runs a script with the hook and a stand-in for PyTorch; the answer of its process.
fn answer_of(torch: &str, script: &str) -> serde_json::Value {
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
    let names = std::fs::read_dir(&out).unwrap().map(|it| it.unwrap().path());
    let mut answers = names.filter(|path| path.extension().is_some_and(|it| it == "json"));
    let text = std::fs::read_to_string(answers.next().expect("the process is watched")).unwrap();
    assert!(answers.next().is_none());
    serde_json::from_str(&text).unwrap()
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
