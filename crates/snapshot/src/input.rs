//! Stage 1: the bytes of the pickle, decompressed, with their offsets.
//!
//! In:  any reader.
//! Out: a [`Source`], which hands out the plain bytes a piece at a time and knows how far it is.
//!
//! Compression is told by its first bytes, never by a file's name. No length that the file states
//! is believed: memory is taken for bytes that arrived, not for bytes that were announced.

use std::io::{self, BufReader, Cursor, Read};

use crate::error::{Result, SnapshotError};

/// Bytes held at once. Chosen: few calls to the reader, and it stays in a core's cache.
pub(crate) const BUFFER: usize = 64 << 10;

/// Bytes of an opcode with the longest arguments of fixed length: FRAME and its eight.
const LONGEST: usize = 9;

/// How the pickle is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Zstd,
    Gzip,
    Xz,
}

/// Bytes that unpacking zstd or xz may take: their formats let a file ask for gigabytes. Enough for
/// what the highest levels of the usual tools write.
const WINDOW: u32 = 128 << 20;

/// What zstd says to a file that asks for more; its error has no kind of its own.
const ZSTD_WINDOW: &str = "Frame requires too much memory for decoding";

impl Compression {
    fn of(magic: &[u8]) -> Self {
        match magic {
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            _ => Self::None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::None => "uncompressed",
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
        }
    }
}

/// A place to take the pickle's bytes from.
pub(crate) struct Source<'a> {
    reader: Box<dyn Read + 'a>,
    compression: Compression,
    /// What was read, and when the input has ended, [`LONGEST`] zeros: an opcode can then be
    /// looked at whole without asking whether all of it is there, which is asked at the next one.
    buffer: Box<[u8]>,
    /// The next byte in the buffer.
    start: usize,
    /// How much of the buffer is in use, those zeros included.
    filled: usize,
    /// The offset of the buffer's first byte.
    base: u64,
    /// Where the input ends in the buffer, once that is known.
    ended: Option<usize>,
    /// Bytes that may come out at most.
    allowed: u64,
}

/// The eight bytes after an opcode, of which its argument takes as many as it needs.
///
/// An argument is taken where the opcode is known. To look its length up in a table instead, tried
/// first, makes the place of each opcode wait for two loads of the one before it.
#[derive(Clone, Copy)]
pub(crate) struct Ahead(u64);

impl Ahead {
    /// Takes an argument of one byte.
    #[inline]
    pub(crate) fn byte(self, source: &mut Source<'_>) -> u8 {
        source.start += 1;
        self.0 as u8
    }

    /// Takes an argument of two bytes.
    #[inline]
    pub(crate) fn short(self, source: &mut Source<'_>) -> u16 {
        source.start += 2;
        self.0 as u16
    }

    /// Takes an argument of four bytes.
    #[inline]
    pub(crate) fn int(self, source: &mut Source<'_>) -> u32 {
        source.start += 4;
        self.0 as u32
    }

    /// Takes an argument of eight bytes.
    #[inline]
    pub(crate) fn long(self, source: &mut Source<'_>) -> u64 {
        source.start += 8;
        self.0
    }

    /// The seven bytes after an argument of one byte, which are not taken.
    #[inline]
    pub(crate) fn behind_byte(self) -> u64 {
        self.0 >> 8
    }
}

impl<'a> Source<'a> {
    /// Looks at the first bytes and sets up what unpacks the rest.
    pub(crate) fn new(mut input: impl Read + 'a, allowed: u64) -> Result<Self> {
        // As many bytes as the longest sign takes, which is that of xz.
        let mut magic = Vec::with_capacity(6);
        input.by_ref().take(6).read_to_end(&mut magic).map_err(SnapshotError::Io)?;
        let compression = Compression::of(&magic);
        let input = Cursor::new(magic).chain(input);
        let reader: Box<dyn Read + 'a> = match compression {
            Compression::None => Box::new(input),
            Compression::Gzip => {
                Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::new(input)))
            }
            Compression::Zstd => {
                let mut decoder =
                    zstd::stream::read::Decoder::new(input).map_err(SnapshotError::Io)?;
                decoder.window_log_max(WINDOW.ilog2()).map_err(SnapshotError::Io)?;
                Box::new(decoder)
            }
            Compression::Xz => {
                let input = BufReader::new(input);
                Box::new(lzma_rust2::XzReader::new_mem_limit(input, true, WINDOW >> 10))
            }
        };
        Ok(Self {
            reader,
            compression,
            buffer: vec![0; BUFFER + LONGEST].into_boxed_slice(),
            start: 0,
            filled: 0,
            base: 0,
            ended: None,
            allowed,
        })
    }

    /// The offset of the next byte.
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Whether [`Source::next`] can answer without reading.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        self.start + LONGEST <= self.filled
    }

    /// Whether more was taken than there is.
    pub(crate) fn is_past_end(&self) -> bool {
        self.ended.is_some_and(|end| self.start > end)
    }

    /// Takes the next opcode and shows what comes after it.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<(u8, Ahead)> {
        if !self.has_next() {
            self.fill()?;
        }
        match self.rest().first_chunk::<LONGEST>() {
            Some(&[opcode, ref ahead @ ..]) => {
                // Little endian, as nearly all arguments are.
                let ahead = Ahead(u64::from_le_bytes(*ahead));
                self.start += 1;
                Ok((opcode, ahead))
            }
            None => Err(self.truncated()),
        }
    }

    /// The bytes that are here, without taking them. Zeros may follow the last.
    #[inline]
    pub(crate) fn rest(&self) -> &[u8] {
        self.buffer.get(self.start..self.filled).unwrap_or_default()
    }

    /// Takes `count` bytes of those in [`Source::rest`].
    #[inline]
    pub(crate) fn advance(&mut self, count: usize) {
        self.start += count;
    }

    /// Takes `count` bytes, at most [`BUFFER`].
    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> Result<&[u8]> {
        if self.filled < self.start + count + LONGEST {
            self.fill_for(count)?;
        }
        let from = self.start;
        self.start += count;
        Ok(&self.buffer[from..self.start])
    }

    /// Takes `count` bytes a buffer at a time, so that a false count costs nothing.
    pub(crate) fn take_pieces(
        &mut self,
        mut count: u64,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        while count > 0 {
            let piece = count.min(BUFFER as u64) as usize;
            each(self.take(piece)?)?;
            count -= piece as u64;
        }
        Ok(())
    }

    /// Whether a text of `count` bytes can be taken in one piece.
    #[inline]
    pub(crate) fn fits(count: u64) -> bool {
        count <= BUFFER as u64
    }

    /// The first bytes, before any is taken.
    pub(crate) fn first(&mut self) -> Result<&[u8]> {
        self.fill()?;
        let end = self.ended.unwrap_or(self.filled);
        Ok(&self.buffer[..end])
    }

    /// Makes sure that `count` bytes are here.
    #[cold]
    fn fill_for(&mut self, count: usize) -> Result<()> {
        if self.ended.is_none() {
            self.fill()?;
        }
        let end = self.ended.unwrap_or(self.filled);
        if end < self.start + count {
            return Err(self.truncated());
        }
        Ok(())
    }

    /// Forgets what was taken and fills the buffer up.
    #[cold]
    pub(crate) fn fill(&mut self) -> Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        self.buffer.copy_within(self.start..self.filled, 0);
        self.base += self.start as u64;
        self.filled -= self.start;
        self.start = 0;
        while self.filled < BUFFER && self.ended.is_none() {
            match self.reader.read(&mut self.buffer[self.filled..BUFFER]) {
                Ok(0) => self.ended = Some(self.filled),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        if self.base + self.filled as u64 > self.allowed {
            return Err(SnapshotError::Limit {
                limit: "pickle_bytes",
                allowed: self.allowed,
                unit: "bytes of pickle",
                offset: self.allowed,
            });
        }
        if self.ended.is_some() {
            self.buffer[self.filled..][..LONGEST].fill(0);
            self.filled += LONGEST;
        }
        Ok(())
    }

    /// Reads what is left to the end, which also lets the decompressor check its sums, and returns
    /// how many bytes that was.
    pub(crate) fn drain(&mut self) -> Result<u64> {
        let from = self.offset();
        while self.ended.is_none() {
            self.start = self.filled;
            self.fill()?;
        }
        let end = self.base + self.ended.unwrap_or(self.filled) as u64;
        Ok(end.saturating_sub(from))
    }

    /// The error for wanting more than there is.
    #[cold]
    pub(crate) fn truncated(&self) -> SnapshotError {
        let end = self.ended.unwrap_or(self.filled);
        SnapshotError::Truncated { offset: self.base + end as u64 }
    }

    fn failed(&self, source: io::Error) -> SnapshotError {
        let offset = self.base + self.filled as u64;
        let by_system = source.raw_os_error().is_some();
        match (self.compression, source.kind()) {
            (Compression::None, _) => SnapshotError::Io(source),
            _ if by_system => SnapshotError::Io(source),
            (_, io::ErrorKind::UnexpectedEof) => SnapshotError::Truncated { offset },
            (compression, kind)
                if kind == io::ErrorKind::OutOfMemory || source.to_string() == ZSTD_WINDOW =>
            {
                SnapshotError::Window { compression: compression.name(), allowed: WINDOW.into() }
            }
            (compression, _) => {
                SnapshotError::Damaged { compression: compression.name(), offset, source }
            }
        }
    }
}

/// What a file that does not begin like a pickle looks like instead. `None` for one that does.
pub(crate) fn not_a_pickle(first: &[u8]) -> Option<SnapshotError> {
    const DUMP: &str = "Pass the file that torch.cuda.memory._dump_snapshot wrote";
    const UNPACK: &str = "Unpack it, or pack it with zstd, gzip or xz";
    const RESAVE: &str = "If you trust it, write it again with pickle.dump(..., protocol=4)";
    const FIND: &str = "Download the raw file";
    let text = first.trim_ascii_start();
    let (looks_like, hint) = match first {
        [0x80, ..] => return None,
        [] => ("an empty file", "Was the program stopped while it dumped the snapshot?"),
        [b'P', b'K', 3 | 5, ..] => ("a zip archive, perhaps a checkpoint of torch.save", DUMP),
        [b'B', b'Z', b'h', ..] => ("bzip2 data", UNPACK),
        [0x7f, b'E', b'L', b'F', ..] => ("a program", DUMP),
        [0x93, b'N', b'U', b'M', ..] => ("a NumPy array", DUMP),
        _ if Compression::of(first) != Compression::None => {
            ("data compressed twice", "Unpack it once")
        }
        _ if text.starts_with(b"<") => ("a web page or other XML", FIND),
        _ if text.starts_with(b"version https://git-lfs") => {
            ("a Git LFS pointer", "Run git lfs pull")
        }
        // A pickle of protocol 1 can begin with the brackets of JSON, but is not text.
        _ if matches!(text, [b'{' | b'[', ..]) && first.iter().all(|byte| *byte >= b'\t') => {
            ("JSON text", DUMP)
        }
        [b'(' | b'}' | b']', ..] => ("a pickle of protocol 0 or 1", RESAVE),
        _ if text.is_ascii() => ("text", DUMP),
        _ => ("some other binary data", DUMP),
    };
    Some(SnapshotError::NotAPickle { looks_like, hint })
}
