//! The modules that a call stack goes through.
//!
//! In:  a call stack, innermost call first.
//! Out: the [`ModuleCall`]s on its way, outermost first; none for memory that no module's `forward` asked for.
//!
//! PyTorch records files, lines and functions, neither classes nor instances. What tells a module is its call: frames of
//! `torch/nn/modules/module.py`, and inside of them a `forward`. So a module goes by the file of its `forward`, and its place
//! in the model by the line that calls the next one. Layers that one line calls in a loop are one in a stack, as are classes
//! of one file that one line calls; where the order of calls tells layers apart (`layers/`), they have an index.
//!
//! ```text
//! modeling_gpt2:682 > modeling_gpt2:608[7] > modeling_gpt2:274 > nn.linear
//! ```
//!
//! This is the only place that knows how module calls look.

use std::fmt::Write;

use tonnage_events::Frame;

/// Where `torch.nn.Module` calls `forward`.
const CALLER: &str = "/nn/modules/module.py";

/// Where PyTorch's own modules lie.
const OWN: &str = "torch/nn/modules/";

/// Longest name of a file that is shown.
const LONGEST: usize = 60;

/// A module that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleCall<'a> {
    /// Its `forward`.
    pub forward: &'a Frame,
    /// The line of its file that calls the next module; none for the innermost, whose lines are taken together.
    pub line: Option<u32>,
    /// Which of the modules that the line calls in one pass the next one is, from 0; none if that cannot be told.
    pub index: Option<u32>,
}

impl ModuleCall<'_> {
    /// The file without its folders and ending, such as `modeling_gpt2`; PyTorch's own as `nn.linear`.
    #[must_use]
    pub fn name(&self) -> String {
        let path = self.forward.filename.replace('\\', "/");
        let file = path.rsplit('/').next().unwrap_or_default();
        let stem = file.strip_suffix(".py").unwrap_or(file);
        let stem: String = stem.chars().take(LONGEST).collect();
        if path.contains(OWN) { format!("nn.{stem}") } else { stem }
    }
}

/// The modules on the way of a stack, outermost first.
#[must_use]
pub fn module_path(frames: &[Frame]) -> Vec<ModuleCall<'_>> {
    let places = module_places(frames).into_iter();
    places.map(|(place, line)| ModuleCall { forward: &frames[place], line, index: None }).collect()
}

/// The places of the modules' `forward` among frames, outermost first, each with the line that calls the next.
pub(crate) fn module_places(frames: &[Frame]) -> Vec<(usize, Option<u32>)> {
    let mut path = Vec::<(usize, Option<u32>)>::new();
    let mut is_called = false;
    // The line that the last module has reached: of its own file, also in a function that its `forward` calls.
    let mut reached = None;
    for (place, frame) in frames.iter().enumerate().rev() {
        let is_of_last = |it: &(usize, _)| frames[it.0].filename == frame.filename;
        if calls_a_module(frame) {
            is_called = true;
        } else if is_called && &*frame.name == "forward" {
            if let Some(last) = path.last_mut() {
                last.1 = reached;
            }
            path.push((place, None));
            (is_called, reached) = (false, Some(frame.line));
        } else if !is_called && path.last().is_some_and(is_of_last) {
            reached = Some(frame.line);
        }
    }
    path
}

/// A path as text: modules with the lines that call the next, and indices; none for no module.
#[must_use]
pub fn show_module_path(path: &[ModuleCall<'_>]) -> Option<String> {
    show(path, |_, call| call.index.map(|index| index.to_string()))
}

/// A path as text, with what `index` says of each call.
pub(crate) fn show(
    path: &[ModuleCall<'_>],
    index: impl Fn(usize, &ModuleCall<'_>) -> Option<String>,
) -> Option<String> {
    let mut text = String::new();
    for (place, call) in path.iter().enumerate() {
        let before = if text.is_empty() { "" } else { " > " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{before}{}", call.name());
        if let Some(line) = call.line {
            let _ = write!(text, ":{line}");
        }
        if let Some(index) = index(place, call) {
            let _ = write!(text, "[{index}]");
        }
    }
    (!text.is_empty()).then_some(text)
}

/// A frame in which a module is called.
pub(crate) fn calls_a_module(frame: &Frame) -> bool {
    matches!(&*frame.name, "_call_impl" | "_wrapped_call_impl")
        && frame.filename.replace('\\', "/").ends_with(CALLER)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NN: &str = "/v/site-packages/torch/nn/modules";

    fn stack(frames: &[(&str, u32, &str)]) -> Vec<Frame> {
        let frame = |&(filename, line, name): &(&str, u32, &str)| Frame {
            name: name.into(),
            filename: filename.into(),
            line,
        };
        frames.iter().map(frame).collect()
    }

    fn shown(frames: &[(&str, u32, &str)]) -> Option<String> {
        show_module_path(&module_path(&stack(frames)))
    }

    #[test]
    fn modules_go_by_their_files_and_by_the_lines_that_call_the_next() {
        let caller = format!("{NN}/module.py");
        let (linear, gpt2) = (format!("{NN}/linear.py"), "/v/site-packages/transformers/gpt2.py");
        let frames = [
            (&*linear, 125, "forward"),
            (&*caller, 1790, "_call_impl"),
            (&*caller, 1779, "_wrapped_call_impl"),
            (gpt2, 185, "attend"),
            (gpt2, 180, "forward"),
            (&*caller, 1790, "_call_impl"),
            (&*caller, 1779, "_wrapped_call_impl"),
            ("/v/site-packages/transformers/layers.py", 109, "__call__"),
            (gpt2, 608, "forward"),
            ("/v/site-packages/transformers/generic.py", 1068, "wrapper"),
            (&*caller, 1790, "_call_impl"),
            ("train.py", 12, "main"),
        ];
        assert_eq!(shown(&frames).as_deref(), Some("gpt2:608 > gpt2:185 > nn.linear"));
        // The innermost has no line: all that it asks for is one.
        assert_eq!(shown(&frames[3..]).as_deref(), Some("gpt2:608 > gpt2"));
        assert_eq!(shown(&frames[11..]), None);
    }

    #[test]
    fn a_forward_that_no_module_calls_is_none() {
        let program = [("train.py", 3, "forward"), ("train.py", 9, "main")];
        assert_eq!(shown(&program), None);
        let other = [("train.py", 3, "forward"), ("module.py", 9, "_call_impl")];
        assert_eq!(shown(&other), None);
        let on_windows = [
            ("C:\\w\\net.py", 3, "forward"),
            ("C:\\l\\torch\\nn\\modules\\module.py", 1, "_call_impl"),
        ];
        assert_eq!(shown(&on_windows).as_deref(), Some("net"));
    }

    #[test]
    fn absurd_names_are_cut() {
        let long = format!("{}.py", "é".repeat(1 << 16));
        let caller = format!("{NN}/module.py");
        let found = shown(&[(&*long, 1, "forward"), (&*caller, 1, "_call_impl")]).unwrap();
        assert_eq!(found.chars().count(), LONGEST);
    }
}
