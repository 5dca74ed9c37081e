//! The line of the user's program that asked for memory.
//!
//! In:  a call stack, innermost call first.
//! Out: the innermost frame outside installed packages, the standard library, compiled code under Python and this
//!      library; none if there is no such frame.

use crate::stacks::Frame;

/// Endings of compiled sources and libraries, which C++ stacks name.
const COMPILED: [&str; 10] =
    [".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".pyx", ".so"];

/// Functions of these are on the way of every request, wherever their sources lie.
const OWN: [&str; 5] =
    ["tonnage_device::", "tonnage_engine::", "tonnage_memory::", "tonnage_tensor::", "backtrace::"];

/// The innermost frame of the user's program, if there is one.
#[must_use]
pub fn call_site(frames: &[Frame]) -> Option<&Frame> {
    frames.iter().find(|frame| is_users(frame))
}

fn is_users(frame: &Frame) -> bool {
    let (filename, function) = (&*frame.filename, frame.name.trim_start_matches(['<', '&']));
    // Programs run from a shell or a notebook have names like `<stdin>`.
    if filename.is_empty() || filename == "??" || filename.starts_with("<frozen ") {
        return false;
    }
    if COMPILED.iter().any(|ending| filename.ends_with(ending)) || filename.contains(".so.") {
        return false;
    }
    if OWN.iter().any(|own| function.starts_with(own)) || filename.starts_with("/rustc/") {
        return false;
    }
    let mut before = ["", ""];
    for part in filename.split(['/', '\\']) {
        let is_python = |part: &str| {
            part.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("python"))
                && part[6..].starts_with(|c: char| c.is_ascii_digit())
        };
        // `lib/python3.12/` on Unix, `Python312\Lib\` on Windows.
        let library = (before[1].starts_with("lib") && is_python(part))
            || (is_python(before[1]) && part == "Lib");
        let crates = matches!(
            [before[0], before[1], part],
            [".cargo", "registry", "src"] | [".cargo", "git", "checkouts"]
        );
        if matches!(part, "site-packages" | "dist-packages") || library || crates {
            return false;
        }
        before = [before[1], part];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_users_own_files_are_call_sites() {
        for (filename, users) in [
            ("/home/me/train.py", true),
            ("train.py", true),
            ("<stdin>", true),
            ("C:\\work\\train.py", true),
            ("/home/me/lib/model.py", true),
            ("/home/me/python3/model.py", true),
            ("src/main.rs", true),
            ("/usr/lib/python3.12/threading.py", false),
            ("/opt/conda/lib/python3.11/site-packages/torch/nn/modules/linear.py", false),
            ("/usr/lib/python3/dist-packages/numpy/core.py", false),
            ("C:\\Python312\\Lib\\threading.py", false),
            ("C:\\venv\\Lib\\site-packages\\torch\\_tensor.py", false),
            ("<frozen importlib._bootstrap>", false),
            ("??", false),
            ("", false),
            ("/pytorch/c10/core/StorageImpl.cpp", false),
            ("/lib/x86_64-linux-gnu/libc.so.6", false),
            (
                "/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/rayon-1.11.0/src/lib.rs",
                false,
            ),
            ("/home/me/.cargo/git/checkouts/burn-1f/2a/src/lib.rs", false),
            ("/rustc/59807616e1fa2540/library/core/src/ops/function.rs", false),
            ("/home/me/registry/src/main.rs", true),
        ] {
            let frame = Frame { name: "f".into(), filename: filename.into(), line: 1 };
            assert_eq!(is_users(&frame), users, "{filename}");
        }
    }

    #[test]
    fn the_librarys_own_functions_are_no_call_sites() {
        let frame =
            |name: &str| Frame { name: name.into(), filename: "src/lib.rs".into(), line: 1 };
        let stack = [
            "<tonnage_tensor::tensor::Tensor>::add",
            "tonnage_memory::device::Device::allocate",
            "train::step",
        ];
        let stack = stack.map(frame);
        assert_eq!(call_site(&stack).map(|it| &*it.name), Some("train::step"));
    }
}
