//! Writing: a [`SnapshotFile`] as PyTorch would have written it.
//!
//! In:  what a snapshot holds.
//! Out: a pickle of protocol 4 that Python's `pickle`, `torch.cuda._memory_viz`, PyTorch's page and
//!      [`read`](crate::read()) understand.
//!
//! Keys come in PyTorch's order. Stacks, frames and texts are written once and then named, so they
//! are shared by whoever reads them. Left out is what reading leaves out: entries with an unknown
//! action, and the contents of `compile_context` and `forward_frames`, of which only the keys are
//! kept, since they tell the release.

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};

use tonnage_events::{
    Action, BlockState, DeviceId, Frame, PoolId, PoolKind, SnapshotBlock, SnapshotSegment, StackId,
    TraceEntry,
};

use crate::opcode::plain;
use crate::pickle_out::{PickleOut, Place};
use crate::snapshot_file::{AllocatorSettings, Annotation, EntryNote, Pinned, SnapshotFile, Stage};
use crate::strings::known;
use crate::value::StrId;

/// Writes a snapshot, a piece at a time, uncompressed.
///
/// ```
/// use tonnage_snapshot::{SnapshotFile, parse, write};
///
/// let file = SnapshotFile::default();
/// let mut bytes = Vec::new();
/// write(&mut bytes, &file)?;
/// assert_eq!(parse(&bytes)?, file);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// What `out` answers; and for what no pickle that PyTorch's page reads can hold: a text of 4 GiB,
/// 2³² distinct things.
pub fn write(out: impl Write, file: &SnapshotFile) -> io::Result<()> {
    let out = PickleOut::new(BufWriter::with_capacity(64 << 10, out))?;
    let stacks = vec![None; file.stacks.len()];
    let (frames, notes) = (HashMap::new(), &file.notes[..]);
    let purposes = file.purposes.to_text();
    let mut writer =
        Writer { out, file, stacks, frames, no_frames: None, notes, purposes: &purposes };
    writer.file()?;
    writer.out.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?.flush()
}

/// Elements in one APPENDS, as Python writes them. PyTorch's page hands all of them to one function
/// call, which fails for a hundred thousand.
const BATCH: usize = 1000;

/// What a frame is told from others by.
type FrameKey<'a> = (&'a str, &'a str, u32);

struct Writer<'a, W> {
    out: PickleOut<'a, W>,
    file: &'a SnapshotFile,
    /// Where each stack is, by its number, once it was written.
    stacks: Vec<Option<Place>>,
    /// Where each frame is.
    frames: HashMap<FrameKey<'a>, Place>,
    /// Where the list of no frames is.
    no_frames: Option<Place>,
    /// What entries that are still to come say besides.
    notes: &'a [EntryNote],
    /// What blocks are for, as a text; empty for nothing.
    purposes: &'a str,
}

impl<'a, W: Write> Writer<'a, W> {
    fn file(&mut self) -> io::Result<()> {
        let SnapshotFile { segments, traces, settings, annotations, pinned, .. } = self.file;
        let mut device = 0;
        self.dict(|it| {
            it.out.known(known::SEGMENTS)?;
            it.list(segments, Self::segment)?;
            it.out.known(known::DEVICE_TRACES)?;
            it.list(traces, |it, trace| {
                let of = DeviceId(device);
                device = device.saturating_add(1);
                it.trace(of, trace)
            })?;
            if let Some(settings) = settings {
                it.out.known(known::ALLOCATOR_SETTINGS)?;
                it.settings(settings)?;
            }
            it.out.known(known::EXTERNAL_ANNOTATIONS)?;
            it.list(annotations, Self::annotation)?;
            if let Some(Pinned { segments, trace }) = pinned {
                it.out.known(known::HOST_SEGMENTS)?;
                it.list(segments, Self::segment)?;
                it.out.known(known::HOST_TRACES)?;
                it.trace(DeviceId::HOST, trace)?;
            }
            if !it.purposes.is_empty() {
                it.out.known(known::TONNAGE_PURPOSES)?;
                it.out.text(it.purposes)?;
            }
            Ok(())
        })
    }

    fn segment(&mut self, segment: &'a SnapshotSegment) -> io::Result<()> {
        self.dict(|it| {
            it.out.known(known::DEVICE)?;
            match segment.device {
                DeviceId::HOST => it.out.signed(-1)?,
                DeviceId(ordinal) => it.out.unsigned(u64::from(ordinal))?,
            }
            it.number(known::ADDRESS, segment.address.0)?;
            it.number(known::TOTAL_SIZE, segment.total_size)?;
            it.number(known::ALLOCATED_SIZE, segment.allocated_size)?;
            it.number(known::ACTIVE_SIZE, segment.active_size)?;
            it.number(known::REQUESTED_SIZE, segment.requested_size)?;
            it.number(known::STREAM, segment.stream.0)?;
            it.word(
                known::SEGMENT_TYPE,
                match segment.kind {
                    PoolKind::Small => known::SMALL,
                    PoolKind::Large => known::LARGE,
                },
            )?;
            it.out.known(known::SEGMENT_POOL_ID)?;
            it.out.pair(segment.pool.0, segment.pool.1)?;
            it.boolean(known::IS_EXPANDABLE, segment.expandable)?;
            it.out.known(known::FRAMES)?;
            it.stack(segment.stack)?;
            it.out.known(known::BLOCKS)?;
            it.list(&segment.blocks, Self::block)
        })
    }

    fn block(&mut self, block: &'a SnapshotBlock) -> io::Result<()> {
        self.dict(|it| {
            it.number(known::ADDRESS, block.address.0)?;
            it.number(known::SIZE, block.size)?;
            it.number(known::REQUESTED_SIZE, block.requested_size)?;
            it.word(
                known::STATE,
                match block.state {
                    BlockState::ActiveAllocated => known::ACTIVE_ALLOCATED,
                    BlockState::ActivePendingFree => known::ACTIVE_PENDING_FREE,
                    BlockState::Inactive => known::INACTIVE,
                },
            )?;
            it.out.known(known::FRAMES)?;
            it.stack(block.stack)
        })
    }

    /// The history of a device, or of the host.
    fn trace(&mut self, device: DeviceId, trace: &'a [TraceEntry]) -> io::Result<()> {
        let mut number = 0;
        self.list(trace, |it, entry| {
            let note = it.note(device, number);
            number += 1;
            it.entry(entry, device, note)
        })
    }

    /// What an entry says besides. Entries are asked for in the order of the notes; notes of entries that are
    /// not there are passed over.
    #[inline]
    fn note(&mut self, device: DeviceId, entry: u32) -> Option<&'a EntryNote> {
        let before = |it: &EntryNote| (it.device, it.entry) < (device, entry);
        while self.notes.first().is_some_and(before) {
            self.notes = &self.notes[1..];
        }
        self.notes.first().filter(|it| (it.device, it.entry) == (device, entry))
    }

    #[inline]
    fn entry(
        &mut self,
        entry: &'a TraceEntry,
        device: DeviceId,
        note: Option<&'a EntryNote>,
    ) -> io::Result<()> {
        let keys = self.file.keys;
        self.dict(|it| {
            // The first ids are the actions, in their order.
            it.word(known::ACTION, StrId(entry.action as u32))?;
            let address = match entry.action {
                Action::Oom => known::DEVICE_FREE,
                _ => known::ADDR,
            };
            it.number(address, entry.address.0)?;
            it.number(known::SIZE, entry.size)?;
            it.number(known::STREAM, entry.stream.0)?;
            it.number(known::TIME_US, entry.time_us)?;
            if keys.compile_context {
                let none =
                    if device == DeviceId::HOST { known::EMPTY } else { known::NOT_APPLICABLE };
                it.word(known::COMPILE_CONTEXT, none)?;
            }
            if keys.user_metadata {
                it.out.known(known::USER_METADATA)?;
                match note.map_or("", |note| &*note.user_metadata) {
                    "" => it.out.known(known::EMPTY)?,
                    text => it.out.text(text)?,
                }
            }
            if let Some(text) = note.and_then(|note| note.internal_metadata.as_deref()) {
                it.out.known(known::INTERNAL_METADATA)?;
                it.out.text(text)?;
            }
            if keys.pool_id {
                let pool = note.map_or(PoolId::DEFAULT, |note| note.pool);
                it.out.known(known::POOL_ID)?;
                it.out.pair(pool.0, pool.1)?;
            }
            if keys.forward_frames {
                it.out.known(known::FORWARD_FRAMES)?;
                it.stack(None)?;
            }
            if entry.stack.is_some() {
                it.out.known(known::FRAMES)?;
                it.stack(entry.stack)?;
            }
            Ok(())
        })
    }

    /// The list of a stack's frames.
    fn stack(&mut self, stack: Option<StackId>) -> io::Result<()> {
        let frames = stack.map_or(&[][..], |stack| self.file.stacks.frames(stack));
        let Some(stack) = stack.filter(|_| !frames.is_empty()) else {
            match self.no_frames {
                Some(place) => return self.out.again(place),
                None => self.out.opcode(plain::EMPTY_LIST)?,
            }
            self.no_frames = Some(self.out.memoise()?);
            return Ok(());
        };
        let number = stack.number() as usize;
        if let Some(place) = self.stacks[number] {
            return self.out.again(place);
        }
        // Memoised while it is empty, as Python does.
        self.out.opcode(plain::EMPTY_LIST)?;
        self.stacks[number] = Some(self.out.memoise()?);
        self.batches(frames, Self::frame)
    }

    fn frame(&mut self, frame: &'a Frame) -> io::Result<()> {
        let key = (&*frame.name, &*frame.filename, frame.line);
        if let Some(&place) = self.frames.get(&key) {
            return self.out.again(place);
        }
        self.out.opcode(plain::EMPTY_DICT)?;
        let place = self.out.memoise()?;
        self.frames.insert(key, place);
        self.out.opcode(plain::MARK)?;
        self.out.known(known::NAME)?;
        self.out.text(&frame.name)?;
        self.out.known(known::FILENAME)?;
        self.out.text(&frame.filename)?;
        self.number(known::LINE, u64::from(frame.line))?;
        self.out.opcode(plain::SETITEMS)
    }

    fn settings(&mut self, settings: &'a AllocatorSettings) -> io::Result<()> {
        self.dict(|it| {
            it.out.known(known::PYTORCH_CUDA_ALLOC_CONF)?;
            it.out.text(&settings.conf)?;
            if let Some(size) = settings.max_split_size {
                it.out.known(known::MAX_SPLIT_SIZE)?;
                it.out.signed(size)?;
            }
            if let Some(threshold) = settings.garbage_collection_threshold {
                it.out.known(known::GARBAGE_COLLECTION_THRESHOLD)?;
                it.out.float(threshold)?;
            }
            let flags = [
                (known::EXPANDABLE_SEGMENTS, settings.expandable_segments),
                (known::RELEASE_LOCK_ON_CUDAMALLOC, settings.release_lock_on_cudamalloc),
                (known::PINNED_USE_CUDA_HOST_REGISTER, settings.pinned_use_cuda_host_register),
                (
                    known::GRAPH_CAPTURE_RECORD_STREAM_REUSE,
                    settings.graph_capture_record_stream_reuse,
                ),
            ];
            for (key, value) in flags {
                if let Some(value) = value {
                    it.boolean(key, value)?;
                }
            }
            if let Some(threads) = settings.pinned_num_register_threads {
                it.number(known::PINNED_NUM_REGISTER_THREADS, threads)?;
            }
            for (key, bound) in [
                (known::MAX_ROUND_THRESHOLD, settings.max_round_threshold),
                (known::MAX_CACHED_SIZE, settings.max_cached_size),
            ] {
                if let Some(bound) = bound {
                    it.out.known(key)?;
                    it.out.signed(bound)?;
                }
            }
            if let Some(divisions) = settings.roundup_power2_divisions {
                it.out.known(known::ROUNDUP_POWER2_DIVISIONS)?;
                it.divisions(divisions)?;
            }
            Ok(())
        })
    }

    fn divisions(&mut self, divisions: [u64; 16]) -> io::Result<()> {
        self.dict(|it| {
            for (size, divisions) in (known::SIZE_1.0..).map(StrId).zip(divisions) {
                it.number(size, divisions)?;
            }
            Ok(())
        })
    }

    fn annotation(&mut self, annotation: &'a Annotation) -> io::Result<()> {
        self.dict(|it| {
            match &annotation.stage {
                Stage::Start => it.word(known::STAGE, known::START)?,
                Stage::End => it.word(known::STAGE, known::END)?,
                Stage::Other(word) => {
                    it.out.known(known::STAGE)?;
                    it.out.text(word)?;
                }
            }
            it.out.known(known::NAME)?;
            it.out.text(&annotation.name)?;
            it.number(known::DEVICE, u64::from(annotation.device.0))?;
            it.number(known::TIME_US, annotation.time_us)
        })
    }

    /// A list, with `each` to write an element.
    fn list<T>(
        &mut self,
        items: &'a [T],
        each: impl FnMut(&mut Self, &'a T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.opcode(plain::EMPTY_LIST)?;
        self.batches(items, each)
    }

    /// Puts elements into the list that was begun.
    fn batches<T>(
        &mut self,
        items: &'a [T],
        mut each: impl FnMut(&mut Self, &'a T) -> io::Result<()>,
    ) -> io::Result<()> {
        for batch in items.chunks(BATCH) {
            self.out.opcode(plain::MARK)?;
            for item in batch {
                each(self, item)?;
            }
            self.out.opcode(plain::APPENDS)?;
        }
        Ok(())
    }

    /// A dictionary, with `pairs` to write keys and values in turn.
    #[inline]
    fn dict(&mut self, pairs: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.out.opcode(plain::EMPTY_DICT)?;
        self.out.opcode(plain::MARK)?;
        pairs(self)?;
        self.out.opcode(plain::SETITEMS)
    }

    // What keys hold.

    #[inline]
    fn number(&mut self, key: StrId, number: u64) -> io::Result<()> {
        self.out.known(key)?;
        self.out.unsigned(number)
    }

    #[inline]
    fn word(&mut self, key: StrId, word: StrId) -> io::Result<()> {
        self.out.known(key)?;
        self.out.known(word)
    }

    fn boolean(&mut self, key: StrId, value: bool) -> io::Result<()> {
        self.out.known(key)?;
        self.out.boolean(value)
    }
}
