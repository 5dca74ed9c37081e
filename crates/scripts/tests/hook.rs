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

#[test]
fn a_script_that_asks_whether_pytorch_is_there_is_watched_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(folder.path().join("torch.py"), STAND_IN).unwrap();
    let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/hook");
    let path = std::env::join_paths([hook.as_path(), folder.path()]).unwrap();
    let script = "import importlib.util, sys\n\
                  assert importlib.util.find_spec('torch').name == 'torch'\n\
                  assert 'torch' not in sys.modules\n\
                  import torch\n\
                  assert type(torch.__loader__).__name__ == 'SourceFileLoader'\n\
                  assert torch.__spec__.loader is torch.__loader__\n";
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
    let answers = names.filter(|path| path.extension().is_some_and(|it| it == "json")).count();
    assert_eq!(answers, 1, "the process is watched");
}
