//! The native stacks of callers.
//!
//! Finding out where a return address lies in the source takes a thousand times as long as finding the
//! address. So each is looked up once, and a stack that was seen before is known by its addresses.

use std::ffi::c_void;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tonnage_events::{Frame, StackId, Stacks};

/// Deeper stacks lose their outermost frames.
const DEEPEST: usize = 256;

/// Stacks and frames seen so far, by return address.
#[derive(Clone, Debug, Default)]
pub(crate) struct NativeStacks {
    stacks: FxHashMap<Box<[usize]>, StackId>,
    /// The functions at an address: several where calls were inlined, none where nothing is known.
    frames: FxHashMap<usize, Arc<[Frame]>>,
    /// The addresses of the stack in hand; kept for its memory.
    addresses: Vec<usize>,
}

impl NativeStacks {
    /// The stack below the allocator, innermost first; at least `caller`, the caller's own line.
    pub(crate) fn here(&mut self, stacks: &mut Stacks, caller: impl FnOnce() -> Frame) -> StackId {
        self.addresses.clear();
        backtrace::trace(|frame| {
            self.addresses.push(frame.ip().addr());
            self.addresses.len() < DEEPEST
        });
        if let Some(&known) = self.stacks.get(self.addresses.as_slice()) {
            return known;
        }
        let mut frames = Vec::new();
        for &address in &self.addresses {
            let known = self.frames.entry(address).or_insert_with(|| frames_at(address));
            frames.extend_from_slice(known);
        }
        if frames.is_empty() {
            frames.push(caller());
        }
        let id = stacks.intern(frames);
        self.stacks.insert(self.addresses.as_slice().into(), id);
        id
    }
}

/// The functions that the code at an address belongs to, but for the recorder's own, which say nothing
/// about the caller.
fn frames_at(address: usize) -> Arc<[Frame]> {
    let mut frames = Vec::new();
    // Looked up by address alone: the frame itself is gone when others of its stack are looked up.
    backtrace::resolve(std::ptr::without_provenance_mut::<c_void>(address), |symbol| {
        let (Some(name), Some(file)) = (symbol.name(), symbol.filename()) else { return };
        let name = format!("{name:#}");
        if name.starts_with("tonnage_engine::") || name.starts_with("backtrace::") {
            return;
        }
        frames.push(Frame {
            name: name.into(),
            filename: file.to_string_lossy().into(),
            line: symbol.lineno().unwrap_or(0),
        });
    });
    frames.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere() -> Frame {
        Frame { name: "nowhere".into(), filename: "".into(), line: 0 }
    }

    #[inline(never)]
    fn deep(native: &mut NativeStacks, stacks: &mut Stacks) -> StackId {
        native.here(stacks, nowhere)
    }

    #[test]
    fn the_same_way_is_the_same_stack_and_another_way_is_another() {
        let (mut native, mut stacks) = (NativeStacks::default(), Stacks::default());
        let mut ids: Vec<_> = (0..3).map(|_| deep(&mut native, &mut stacks)).collect();
        ids.dedup();
        assert_eq!(ids.len(), 1);
        assert_ne!(deep(&mut native, &mut stacks), ids[0]);
        assert_eq!(native.stacks.len(), 2);
    }

    #[test]
    fn a_stack_names_functions_with_their_files_and_never_the_recorder() {
        let (mut native, mut stacks) = (NativeStacks::default(), Stacks::default());
        let id = deep(&mut native, &mut stacks);
        let frames = stacks.frames(id);
        assert!(frames.len() > 1, "{frames:?}");
        assert!(frames.iter().all(|frame| !frame.filename.is_empty()));
        assert!(frames.iter().all(|frame| !frame.name.starts_with("tonnage_engine::")));
    }
}
