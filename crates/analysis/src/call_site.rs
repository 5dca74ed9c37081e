//! Stage 5: the line of the user's program that asked for memory, as text.
//!
//! In:  a call stack, innermost call first.
//! Out: `file:line function` of its call site; none if it has none.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tonnage_events::{Frame, StackId, Stacks, call_site};

/// Longest part of a file's or function's name that is shown; longer ones are cut. No one's source
/// has such names, but a file from a stranger can.
const LONGEST_NAME: usize = 300;

/// A frame as `file:line function`.
pub(crate) fn show(frame: &Frame) -> String {
    format!("{}:{} {}", cut(&frame.filename), frame.line, cut(&frame.name))
}

/// A frame as `file:line`.
pub(crate) fn show_line(frame: &Frame) -> String {
    format!("{}:{}", cut(&frame.filename), frame.line)
}

/// The library's line that asked for the program: the innermost Python frame inside its call site; none if the program
/// asked by itself.
pub(crate) fn library_frame(frames: &[Frame]) -> Option<&Frame> {
    let is_programs = |frame: &Frame| call_site(std::slice::from_ref(frame)).is_some();
    let mut inside = frames.iter().take_while(|frame| !is_programs(frame));
    inside.find(|frame| is_python(frame))
}

/// Whether a frame is of Python code.
pub(crate) fn is_python(frame: &Frame) -> bool {
    frame.filename.ends_with(".py") || frame.filename.starts_with('<')
}

/// A library's frame as `file:line function`, the file from where libraries lie.
pub(crate) fn show_in_library(frame: &Frame) -> String {
    let file = frame.filename.rsplit_once("-packages").map_or(&*frame.filename, |it| it.1);
    let file = file.trim_start_matches(['/', '\\']);
    format!("{}:{} {}", cut(file), frame.line, cut(&frame.name))
}

fn cut(name: &str) -> &str {
    name.char_indices().nth(LONGEST_NAME).map_or(name, |(end, _)| &name[..end])
}

/// The call sites and stacks of a file as text, each call site made once.
#[derive(Debug)]
pub struct CallSites<'a> {
    stacks: &'a Stacks,
    known: FxHashMap<StackId, Option<Arc<str>>>,
}

impl<'a> CallSites<'a> {
    /// Those of these stacks.
    #[must_use]
    pub fn new(stacks: &'a Stacks) -> Self {
        Self { stacks, known: FxHashMap::default() }
    }

    /// The call site of a stack as `file:line function`.
    pub fn get(&mut self, stack: Option<StackId>) -> Option<Arc<str>> {
        let stack = stack?;
        let known = self.known.entry(stack);
        let site = known.or_insert_with(|| {
            call_site(self.stacks.frames(stack)).map(|frame| show(frame).into())
        });
        site.clone()
    }

    /// A whole stack, one frame a line, innermost call first, up to about `most` bytes; none if it
    /// has no frames.
    #[must_use]
    pub fn stack(&self, stack: StackId, most: usize) -> Option<String> {
        let frames = self.stacks.frames(stack);
        let mut text = String::new();
        for (place, frame) in frames.iter().enumerate() {
            if text.len() > most {
                text += &format!("\n({} more)", frames.len() - place);
                break;
            }
            if place > 0 {
                text.push('\n');
            }
            text += &show(frame);
        }
        (!text.is_empty()).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_frame_of_the_program_is_the_call_site() {
        let frame =
            |filename: &str, line| Frame { name: "f".into(), filename: filename.into(), line };
        let mut stacks = Stacks::default();
        let stack = stacks.intern(vec![
            frame("/v/lib/python3.12/site-packages/torch/functional.py", 1),
            frame("model.py", 2),
            frame("train.py", 3),
        ]);
        let torch_only = stacks.intern(vec![frame("/x/site-packages/torch/a.py", 1)]);
        let mut sites = CallSites::new(&stacks);
        assert_eq!(sites.get(Some(stack)).as_deref(), Some("model.py:2 f"));
        assert_eq!(sites.get(Some(torch_only)), None);
        assert_eq!(sites.get(None), None);
        assert_eq!(sites.stack(stack, 1 << 10).unwrap().lines().count(), 3);
        assert!(sites.stack(stack, 10).unwrap().ends_with("(2 more)"));
    }

    #[test]
    fn the_line_of_a_library_lies_inside_the_call_site() {
        let frame =
            |filename: &str, line| Frame { name: "f".into(), filename: filename.into(), line };
        let torch = frame("/v/lib/python3.12/site-packages/torch/nn/functional.py", 1);
        let trainer = frame("/v/lib/python3.12/site-packages/trainer/loop.py", 4);
        let stack = [frame("x.cpp", 9), torch.clone(), frame("model.py", 2), trainer.clone()];
        assert_eq!(library_frame(&stack), Some(&torch));
        assert_eq!(show_in_library(&torch), "torch/nn/functional.py:1 f");
        assert_eq!(library_frame(&stack[2..]), None);
        assert_eq!(library_frame(&stack[3..]), Some(&trainer));
    }

    #[test]
    fn absurd_names_are_cut() {
        let frame = Frame { name: "é".repeat(1 << 20).into(), filename: "a.py".into(), line: 1 };
        assert!(show(&frame).len() < 1000);
    }
}
