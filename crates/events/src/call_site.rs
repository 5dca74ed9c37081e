//! The line of the user's program that asked for memory.
//!
//! In:  a call stack, innermost call first.
//! Out: the innermost frame outside installed packages, the standard library, compiled code under Python and this
//!      library; none if there is no such frame.
//!
//! Whoever names a line for memory asks here, so that all name the same one.

use std::borrow::Cow;

use crate::stacks::Frame;

/// Endings of compiled sources and libraries, which C++ stacks name.
const COMPILED: [&str; 10] =
    [".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".pyx", ".so"];

/// Crates of this library that are on the way of every request.
const OWN: [&str; 4] = ["device", "engine", "memory", "tensor"];

/// The innermost frame of the user's program, if there is one.
#[must_use]
pub fn call_site(frames: &[Frame]) -> Option<&Frame> {
    frames.iter().find(|frame| is_users(frame))
}

/// The frame to blame where one has to be: the call site or, if the whole stack is others', the innermost frame.
#[must_use]
pub fn blamed_frame(frames: &[Frame]) -> Option<&Frame> {
    call_site(frames).or(frames.first())
}

/// A source file as people know it: those of this library by their crate, such as `tonnage-tensor/models/gpt2.rs`, wherever it
/// was built; all others as they are.
#[must_use]
pub fn source_name(file: &str) -> Cow<'_, str> {
    let own = file!();
    let known = || {
        // `crates/events/src/…` in this workspace, `…/tonnage-events-0.1.0/src/…` from a registry.
        let root = &own[..own.rfind("events")?];
        let (folder, path) = file.strip_prefix(root)?.split_once("/src/")?;
        let name = folder.split('-').next()?;
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase());
        is_name.then(|| format!("tonnage-{name}/{path}"))
    };
    known().map_or(Cow::Borrowed(file), Cow::Owned)
}

fn is_users(frame: &Frame) -> bool {
    let filename = &*frame.filename;
    // Programs run from a shell or a notebook have names like `<stdin>`.
    if filename.is_empty() || filename == "??" || filename.starts_with("<frozen ") {
        return false;
    }
    if COMPILED.iter().any(|ending| filename.ends_with(ending)) || filename.contains(".so.") {
        return false;
    }
    if is_own(frame) || is_of_rust(frame) {
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

/// Whether a frame is of Rust's own library, by its file or, where sources lie elsewhere, by its function.
fn is_of_rust(frame: &Frame) -> bool {
    let function = frame.name.trim_start_matches(['<', '&']);
    frame.filename.starts_with("/rustc/")
        || ["core::", "alloc::", "std::"].iter().any(|library| function.starts_with(library))
}

/// Whether a frame is of [`OWN`], by its function or, since inlined functions lose their path, by where this library was
/// built from. A library from a registry lies with other crates anyway.
fn is_own(frame: &Frame) -> bool {
    let crates = env!("CARGO_MANIFEST_DIR").strip_suffix("events");
    let inside = crates.and_then(|crates| frame.filename.strip_prefix(crates));
    let file = inside.and_then(|inside| inside.split_once(['/', '\\']));
    let function = frame.name.trim_start_matches(['<', '&']).strip_prefix("tonnage_");
    let function = function.and_then(|name| name.split_once("::"));
    let is_source = |rest: &str| rest.starts_with("src");
    file.is_some_and(|(name, rest)| OWN.contains(&name) && is_source(rest))
        || function.is_some_and(|(name, _)| OWN.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_sources_go_by_their_crate() {
        let own = source_name(file!());
        assert_eq!(own, "tonnage-events/call_site.rs");
        let sibling = file!().replace("events/src/call_site.rs", "tensor/src/models/gpt2.rs");
        assert_eq!(source_name(&sibling), "tonnage-tensor/models/gpt2.rs");
        for others in ["src/main.rs", "train.py", "", "/me/crates/tensor/src/a.rs"] {
            assert_eq!(source_name(others), others);
        }
    }

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
            ("/home/me/.cargo/registry/src/index-1f/rayon-1.11.0/src/lib.rs", false),
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
            "core::ops::function::FnOnce::call_once",
            "<alloc::boxed::Box<F> as core::ops::FnOnce<()>>::call_once",
            "train::step",
        ];
        let stack = stack.map(frame);
        assert_eq!(call_site(&stack).map(|it| &*it.name), Some("train::step"));
        assert_eq!(blamed_frame(&stack), call_site(&stack));
        assert_eq!(call_site(&stack[..2]), None);
        assert_eq!(blamed_frame(&stack[..2]), stack.first(), "better than none");
        assert_eq!(blamed_frame(&[]), None);
        let crates = env!("CARGO_MANIFEST_DIR").strip_suffix("events").unwrap();
        for (file, users) in [("engine/src/native_stacks.rs", false), ("engine/tests/oom.rs", true)]
        {
            let filename = format!("{crates}{file}").into();
            assert_eq!(is_users(&Frame { name: "{closure#0}".into(), filename, line: 1 }), users);
        }
    }
}
