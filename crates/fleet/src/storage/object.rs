//! One file of a storage, from its first byte to its last.
//!
//! In:  a bucket and a name. Out: bytes, as they come: one piece is read ahead, a few hundred kilobytes.
//!
//! A connection that breaks is made again where it broke, for the same version of the object (`If-Match`): two versions are
//! never mixed. Where that cannot be (the object changed, or the server has no versions or no ranges), whoever reads is told,
//! and may begin again. A server that sends so little that the file would take for ever is left.

use std::io::Read;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta};
use tonnage_replay::Until;

use super::listing::version;
use super::{Bucket, Storage, StorageError, Work, within};

/// Breaks without [`PROGRESS`] between them, and all of one file.
const BREAKS: u32 = 6;
const ALL_BREAKS: u32 = 1_000;

/// Bytes that count as going on: a break behind fewer is one more of those without any.
const PROGRESS: u64 = 64 << 10;

/// How long whoever waits for bytes waits, and how many have to come in that time: chosen, a kilobyte a second is no network.
const PATIENCE: Duration =
    if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(120) };
const LEAST: u64 = if cfg!(test) { 1 << 10 } else { 120 << 10 };

/// How long the first break is waited for; each one behind it twice as long.
const WAIT: Duration = Duration::from_millis(100);

type Stream = BoxStream<'static, object_store::Result<Bytes>>;

/// A piece of the file, and what the next one comes from.
type Piece = (Stream, Option<object_store::Result<Bytes>>);

/// An object that is being read.
pub(crate) struct Object {
    storage: &'static Storage,
    bucket: Bucket,
    path: Path,
    meta: ObjectMeta,
    until: Until,
    /// Bytes that have come.
    come: u64,
    /// Of these, what is not read yet.
    waiting: Bytes,
    next: Option<Work<Piece>>,
    breaks: u32,
    all_breaks: u32,
    /// Bytes that had come when the last break counted as the first.
    come_at_break: u64,
    pace: Pace,
    failed: Option<StorageError>,
}

impl Object {
    pub(super) fn open(
        storage: &'static Storage,
        bucket: Bucket,
        path: Path,
        until: Until,
    ) -> Result<Self, StorageError> {
        let result = ask(storage, &bucket, &path, GetOptions::default(), &until)?;
        let meta = result.meta.clone();
        let next = Some(follow(storage, result.into_stream()));
        Ok(Self {
            storage,
            bucket,
            path,
            meta,
            until,
            come: 0,
            waiting: Bytes::new(),
            next,
            breaks: 0,
            all_breaks: 0,
            come_at_break: 0,
            pace: Pace::default(),
            failed: None,
        })
    }

    /// The version that is read, and its bytes.
    pub(crate) fn version(&self) -> (String, u64) {
        (version(&self.meta), self.meta.size)
    }

    /// What reading failed with, if it did.
    pub(crate) fn failed(&self) -> Option<&StorageError> {
        self.failed.as_ref()
    }

    fn piece(&mut self) -> Result<Bytes, StorageError> {
        loop {
            let began = Instant::now();
            let work = match self.next.take() {
                Some(work) => work,
                None => self.go_on()?,
            };
            let come = work.wait(&self.until)?;
            let bytes = come.1.as_ref().and_then(|it| it.as_ref().ok()).map_or(0, Bytes::len);
            self.pace.count(began.elapsed(), bytes as u64)?;
            match come {
                (stream, Some(Ok(bytes))) => {
                    self.come += bytes.len() as u64;
                    if self.come < self.meta.size {
                        self.next = Some(follow(self.storage, stream));
                    }
                    if !bytes.is_empty() {
                        return Ok(bytes);
                    }
                }
                (_, Some(Err(_)) | None) => self.broke()?,
            }
        }
    }

    /// A connection ended before the file did.
    fn broke(&mut self) -> Result<(), StorageError> {
        if !self.meta.e_tag.as_deref().is_some_and(is_strong) {
            return Err(StorageError::interrupted(
                "the connection broke, and the server names no version (ETag) to go on with",
            ));
        }
        if self.come - self.come_at_break >= PROGRESS {
            (self.breaks, self.come_at_break) = (0, self.come);
        }
        self.breaks += 1;
        self.all_breaks += 1;
        if self.breaks > BREAKS || self.all_breaks > ALL_BREAKS {
            let breaks = "the connection breaks again and again".to_owned();
            return Err(StorageError::of_address(breaks));
        }
        let wait = WAIT * (1 << (self.breaks - 1));
        self.storage.start(async move { tokio::time::sleep(wait).await }).wait(&self.until)
    }

    /// Asks for what has not come yet, of the same version.
    fn go_on(&self) -> Result<Work<Piece>, StorageError> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(self.come..self.meta.size)),
            if_match: self.meta.e_tag.clone(),
            ..GetOptions::default()
        };
        let result = ask(self.storage, &self.bucket, &self.path, options, &self.until);
        let result = result.map_err(|error| match error.to_string().contains("non-partial") {
            true => StorageError::interrupted(
                "the connection broke, and the server sends no parts of a file",
            ),
            false => error,
        })?;
        // A server need not heed what it is asked.
        if (&result.meta.e_tag, result.meta.size) != (&self.meta.e_tag, self.meta.size) {
            return Err(StorageError::interrupted("it changed while it was read"));
        }
        Ok(follow(self.storage, result.into_stream()))
    }
}

/// Whether a version can be asked for: a weak one (`W/"…"`) is equal to none, and is of bytes that may differ.
fn is_strong(tag: &str) -> bool {
    !tag.starts_with("W/")
}

/// How fast bytes come while someone waits for them.
#[derive(Debug, Default)]
struct Pace {
    waited: Duration,
    come: u64,
}

impl Pace {
    /// Counts what came after so long; an error if that is too little.
    fn count(&mut self, waited: Duration, bytes: u64) -> Result<(), StorageError> {
        self.waited += waited;
        self.come += bytes;
        if self.waited < PATIENCE {
            return Ok(());
        }
        let come = std::mem::take(self).come;
        if come < LEAST {
            let slow =
                format!("it comes too slowly: {} in two minutes", tonnage_events::Bytes(come));
            return Err(StorageError::of_address(slow));
        }
        Ok(())
    }
}

fn ask(
    storage: &'static Storage,
    bucket: &Bucket,
    path: &Path,
    options: GetOptions,
    until: &Until,
) -> Result<GetResult, StorageError> {
    let (objects, path) = (bucket.objects.clone(), path.clone());
    let work = storage.start(within(async move { objects.get_opts(&path, options).await }));
    work.wait(until)??.map_err(|error| StorageError::of(bucket.kind, &error))
}

/// Reads one piece ahead.
fn follow(storage: &'static Storage, mut stream: Stream) -> Work<Piece> {
    storage.start(async move {
        let piece = stream.next().await;
        (stream, piece)
    })
}

impl Read for Object {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if buffer.is_empty() || (self.waiting.is_empty() && self.come >= self.meta.size) {
            return Ok(0);
        }
        if let Some(error) = &self.failed {
            return Err(std::io::Error::other(error.clone()));
        }
        if self.waiting.is_empty() {
            match self.piece() {
                Ok(bytes) => self.waiting = bytes,
                Err(error) => {
                    self.failed = Some(error.clone());
                    return Err(std::io::Error::other(error));
                }
            }
        }
        let count = buffer.len().min(self.waiting.len());
        self.waiting.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A server of one file with a megabyte, of which `send` sends the body; it takes this many connections.
    fn server(connections: usize, send: fn(&mut TcpStream)) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/r0.pickle", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten().take(connections) {
                let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
                let mut from = 0;
                while let Some(Ok(line)) =
                    lines.next().filter(|it| it.as_ref().is_ok_and(|it| !it.is_empty()))
                {
                    let range = line.to_ascii_lowercase();
                    let range =
                        range.strip_prefix("range: bytes=").and_then(|it| it.split('-').next());
                    from = range.map_or(from, |it| it.parse().unwrap());
                }
                let mut client = client;
                let (all, left) = (1 << 20, (1 << 20) - from);
                let status = if from == 0 { "200 OK" } else { "206 Part" };
                let range = format!("content-range: bytes {from}-{}/{all}\r\n", all - 1);
                let head =
                    format!("HTTP/1.1 {status}\r\ncontent-length: {left}\r\netag: \"1\"\r\n");
                let head = if from == 0 { head } else { head + &range };
                client.write_all(format!("{head}\r\n").as_bytes()).unwrap();
                send(&mut client);
            }
        });
        address
    }

    fn read(address: &str) -> String {
        let mut object = Storage::own().unwrap().open(address, &Until::default()).unwrap();
        let read = std::io::copy(&mut object, &mut std::io::sink());
        read.unwrap_err().to_string()
    }

    #[test]
    fn a_server_that_trickles_is_left() {
        let address = server(1, |client| {
            while client.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let began = Instant::now();
        let told = read(&address);
        assert!(told.contains("too slowly"), "{told}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }

    #[test]
    fn a_server_that_breaks_after_each_byte_is_left() {
        let address = server(usize::MAX, |client| client.write_all(b"x").unwrap());
        let told = read(&address);
        assert!(told.contains("again and again") || told.contains("too slowly"), "{told}");
    }

    #[test]
    fn pace_is_of_the_time_that_someone_waits() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            pace.count(PATIENCE / 2, LEAST / 2).unwrap();
        }
        pace.count(PATIENCE / 2, 0).unwrap();
        pace.count(PATIENCE / 2, LEAST - 1).unwrap_err();
    }
}
