//! What PyTorch's history of a script tells: where the peak was.

use std::path::Path;

use tonnage_analysis::{CallSites, Levels, Lifetimes, devices};
use tonnage_events::Frame;
use tonnage_snapshot::SnapshotFile;

use crate::Error;
use crate::orders::Orders;

/// What a script was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Python was running: the forward, or anything else.
    Forward,
    /// No Python was: PyTorch's own threads, on the way back.
    Backward,
    /// The step of an optimizer.
    Optimizer,
}

impl Phase {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
        }
    }

    fn of(frames: &[Frame]) -> Self {
        let in_optimizer =
            |frame: &Frame| frame.filename.contains("/optim/") && &*frame.name == "step";
        match frames {
            [] => Self::Backward,
            _ if frames.iter().any(in_optimizer) => Self::Optimizer,
            _ => Self::Forward,
        }
    }
}

/// The moment at which most was allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeakAt {
    /// What the script was doing.
    pub phase: Phase,
    /// The line that asked: `train.py:12 main`. Nothing where no Python was running.
    pub line: Option<String>,
}

/// A script's history.
pub(crate) struct History {
    file: SnapshotFile,
    /// The device that counts.
    device: u32,
}

impl History {
    /// Of one device.
    pub(crate) fn open(path: &Path, device: u32) -> Result<Self, Error> {
        let file =
            tonnage_snapshot::open(path).map_err(|error| Error::Snapshot(error.to_string()))?;
        Ok(Self { file, device })
    }

    /// Where most was allocated; nothing if nothing was.
    pub(crate) fn peak(&self) -> Option<PeakAt> {
        let views = devices(&self.file);
        let view = views.iter().find(|view| view.device.0 == self.device)?;
        let peak = Levels::of(view, &Lifetimes::of(view)).peak(|level| level.allocated)?;
        let entry = view.entries.get(peak.moment.event()?)?;
        let frames = entry.stack.map_or(&[][..], |stack| self.file.stacks.frames(stack));
        let line = CallSites::new(&self.file.stacks).get(entry.stack);
        Some(PeakAt { phase: Phase::of(frames), line: line.map(|line| line.to_string()) })
    }

    /// What its requests come to under other orders of addresses, or why that cannot be told from the history; nothing where it has none.
    pub(crate) fn orders(&self) -> Option<Result<Orders, String>> {
        Orders::of(&self.file, self.device)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn phases_are_told_by_frames() {
        let frame = |filename: &str, name: &str| Frame {
            name: Arc::from(name),
            filename: Arc::from(filename),
            line: 1,
        };
        let main = frame("train.py", "<module>");
        assert_eq!(Phase::of(&[]), Phase::Backward);
        assert_eq!(Phase::of(std::slice::from_ref(&main)), Phase::Forward);
        assert_eq!(
            Phase::of(&[frame("torch/optim/adam.py", "step"), main.clone()]),
            Phase::Optimizer
        );
        assert_eq!(Phase::of(&[frame("torch/optim/adam.py", "zero_grad"), main]), Phase::Forward);
    }
}
