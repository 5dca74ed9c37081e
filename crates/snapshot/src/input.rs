//! Stage 1: the bytes of the pickle, decompressed, with their offsets.
//!
//! In:  any reader.
//! Out: a [`Source`], which hands out the plain bytes a piece at a time and knows how far it is.
//!
//! Compression is told by its first bytes, never by a file's name. No length that the file states
//! is believed: memory is taken for bytes that arrived, not for bytes that were announced.

use std::io::{self, BufReader, Cursor, Read};

use crate::error::{Result, SnapshotError};

/// Bytes held at once. Small enough to stay in a core's cache; measured from 16 KiB to 1 MiB,
/// where it hardly matters.
const BUFFER: usize = 64 << 10;

/// How the pickle is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    None,
    Zstd,
    Gzip,
}

impl Compression {
    fn of(magic: &[u8]) -> Self {
        match magic {
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            [0x1f, 0x8b, ..] => Self::Gzip,
            _ => Self::None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::None => "uncompressed",
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }
}

/// A place to take the pickle's bytes from.
pub(crate) struct Source<'a> {
    reader: Box<dyn Read + 'a>,
    compression: Compression,
    /// The bytes from `start` to `end` are still to be handed out.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The offset of the buffer's first byte.
    base: u64,
    /// Whether the reader has no more.
    ended: bool,
    /// Bytes that may come out at most.
    allowed: u64,
}

impl<'a> Source<'a> {
    /// Looks at the first bytes and sets up what unpacks the rest.
    pub(crate) fn new(mut input: impl Read + 'a, allowed: u64) -> Result<Self> {
        let mut magic = Vec::with_capacity(4);
        input.by_ref().take(4).read_to_end(&mut magic).map_err(SnapshotError::Io)?;
        let compression = Compression::of(&magic);
        let input = Cursor::new(magic).chain(input);
        let reader: Box<dyn Read + 'a> = match compression {
            Compression::None => Box::new(input),
            Compression::Gzip => {
                Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::new(input)))
            }
            Compression::Zstd => {
                Box::new(zstd::stream::read::Decoder::new(input).map_err(SnapshotError::Io)?)
            }
        };
        Ok(Self {
            reader,
            compression,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            base: 0,
            ended: false,
            allowed,
        })
    }

    /// The offset of the next byte.
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Whether the next `count` bytes are already here.
    #[inline]
    pub(crate) fn has(&self, count: usize) -> bool {
        self.end - self.start >= count
    }

    /// The next bytes, as many as are here, without taking them.
    pub(crate) fn peek(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Reads until `count` bytes are here or the input ends. At most [`BUFFER`] can be.
    #[cold]
    pub(crate) fn fill(&mut self, count: usize) -> Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.base += self.start as u64;
        self.end -= self.start;
        self.start = 0;
        while !self.ended && self.end < count.min(BUFFER) {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
            if self.base + self.end as u64 > self.allowed {
                return Err(SnapshotError::Limit {
                    limit: "pickle_bytes",
                    allowed: self.allowed,
                    unit: "bytes of pickle",
                    offset: self.allowed,
                });
            }
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> SnapshotError {
        let offset = self.base + self.end as u64;
        let by_system = source.raw_os_error().is_some();
        match (self.compression, source.kind()) {
            (Compression::None, _) => SnapshotError::Io(source),
            _ if by_system => SnapshotError::Io(source),
            (_, io::ErrorKind::UnexpectedEof) => SnapshotError::Truncated { offset },
            (compression, _) => {
                SnapshotError::Damaged { compression: compression.name(), offset, source }
            }
        }
    }

    /// Takes one byte.
    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// Takes `N` bytes.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    /// Takes `count` bytes, at most [`BUFFER`].
    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> Result<&[u8]> {
        if !self.has(count) {
            self.fill(count)?;
            if !self.has(count) {
                return Err(SnapshotError::Truncated { offset: self.base + self.end as u64 });
            }
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
}

/// What a file that does not begin like a pickle looks like instead. `None` for one that does.
pub(crate) fn not_a_pickle(first: &[u8]) -> Option<SnapshotError> {
    const DUMP: &str = "Pass the file that torch.cuda.memory._dump_snapshot wrote";
    const UNPACK: &str = "Unpack it, or pack it with zstd or gzip";
    const RESAVE: &str = "If you trust it, write it again with pickle.dump(..., protocol=4)";
    const FIND: &str = "Download the raw file";
    let text = first.trim_ascii_start();
    let (looks_like, hint) = match first {
        [0x80, ..] => return None,
        [] => ("an empty file", "Was the program stopped while it dumped the snapshot?"),
        [b'P', b'K', 3 | 5, ..] => ("a zip archive, perhaps a checkpoint of torch.save", DUMP),
        [b'B', b'Z', b'h', ..] => ("bzip2 data", UNPACK),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => ("xz data", UNPACK),
        [0x7f, b'E', b'L', b'F', ..] => ("a program", DUMP),
        [0x93, b'N', b'U', b'M', ..] => ("a NumPy array", DUMP),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x1f, 0x8b, ..] => {
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
