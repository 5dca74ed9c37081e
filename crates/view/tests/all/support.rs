//! A page that is served, and a client that asks it over a socket: requests are written as they are sent.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tonnage_snapshot::SnapshotFile;
use tonnage_view::{Patience, Recordings, Running, Server, ViewOptions};

/// A server of its own, on any port.
pub(crate) struct Page {
    pub(crate) port: u16,
    pub(crate) token: String,
    pub(crate) recordings: Recordings,
    _running: Running,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl Page {
    pub(crate) fn with(options: ViewOptions) -> Self {
        Self::patient(options, Patience::default())
    }

    pub(crate) fn patient(options: ViewOptions, patience: Patience) -> Self {
        let recordings = Recordings::new(options);
        let server = Server::bind(recordings.clone(), Some(0)).unwrap().with_patience(patience);
        Self::started(server, recordings)
    }

    /// A page that notebooks may have in a frame.
    pub(crate) fn in_frames() -> Self {
        let recordings = Recordings::new(ViewOptions::default());
        let server = Server::bind(recordings.clone(), Some(0)).unwrap();
        Self::started(server.in_frames_of_this_machine(), recordings)
    }

    fn started(server: Server, recordings: Recordings) -> Self {
        let (port, url) = (server.port(), server.url());
        let token = url.trim_end_matches('/').rsplit_once('/').unwrap().1.to_owned();
        Self { port, token, recordings, _running: server.start().unwrap() }
    }

    /// A page on these files.
    pub(crate) fn of(files: impl IntoIterator<Item = (String, SnapshotFile)>) -> Self {
        let page = Self::with(ViewOptions::default());
        for (name, file) in files {
            page.recordings.open(&name, file);
        }
        page
    }

    /// Sends a request as it is, to the end of which nothing is added.
    pub(crate) fn send(&self, request: &str) -> Answer {
        self.send_bytes(request.as_bytes())
    }

    /// Sends a file to be opened, as this type.
    pub(crate) fn drop_file(&self, name: &str, file: &[u8], kind: &str) -> Answer {
        let Self { port, token, .. } = self;
        let head = format!(
            "POST /{token}/api/open/{name} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            file.len()
        );
        self.send_bytes(&[head.as_bytes(), file].concat())
    }

    fn send_bytes(&self, request: &[u8]) -> Answer {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.write_all(request).unwrap();
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).unwrap();
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n").expect("an answer has a head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Answer { status, headers, body: bytes[end + 4..].to_vec() }
    }

    /// `GET`s a path below the token.
    pub(crate) fn get(&self, path: &str) -> Answer {
        let Self { port, token, .. } = self;
        self.send(&format!(
            "GET /{token}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
        ))
    }

    /// `POST`s JSON to a path below the token.
    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.post_with(path, body, "Content-Type: application/json\r\n")
    }

    /// The same with these headers.
    pub(crate) fn post_with(&self, path: &str, body: &str, headers: &str) -> Answer {
        let Self { port, token, .. } = self;
        let length = body.len();
        self.send(&format!(
            "POST /{token}/{path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\
             {headers}Content-Length: {length}\r\n\r\n{body}"
        ))
    }

    pub(crate) fn start(&self) -> Value {
        self.get("api/start").json()
    }

    pub(crate) fn timeline(&self, id: u64) -> Columns {
        let answer = self.get(&format!("api/recordings/{id}/timeline"));
        assert_eq!(answer.status, 200, "{}", answer.text());
        Columns::read(&answer.body)
    }
}

/// A timeline, read back.
pub(crate) struct Columns {
    pub(crate) head: Value,
    columns: BTreeMap<String, Vec<f64>>,
}

impl Columns {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        assert_eq!(&bytes[..4], b"TNV1");
        let length = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let head: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let data = &bytes[8 + length..];
        let mut columns = BTreeMap::new();
        for column in head["columns"].as_array().unwrap() {
            let number = |key: &str| column[key].as_u64().unwrap() as usize;
            let (offset, length) = (number("offset"), number("length"));
            assert!((8 + offset).is_multiple_of(8));
            let kind = column["type"].as_str().unwrap();
            let width = match kind {
                "u8" => 1,
                "u16" => 2,
                "u32" => 4,
                _ => 8,
            };
            let values = data[offset..offset + width * length].chunks(width).map(|it| match kind {
                "u8" => f64::from(it[0]),
                "u16" => f64::from(u16::from_le_bytes(it.try_into().unwrap())),
                "u32" => f64::from(u32::from_le_bytes(it.try_into().unwrap())),
                _ => f64::from_le_bytes(it.try_into().unwrap()),
            });
            columns.insert(column["name"].as_str().unwrap().to_owned(), values.collect());
        }
        Self { head, columns }
    }

    pub(crate) fn get(&self, name: &str) -> &[f64] {
        self.columns.get(name).unwrap_or_else(|| panic!("no column {name}"))
    }

    pub(crate) fn moments(&self) -> usize {
        self.get("allocated").len()
    }

    /// At each moment, the sum of the rows that are there then.
    pub(crate) fn sums(&self, of: &str, begin: &str, end: &str) -> Vec<f64> {
        let mut changes = vec![0.0; self.moments() + 2];
        for ((size, begin), end) in self.get(of).iter().zip(self.get(begin)).zip(self.get(end)) {
            changes[*begin as usize] += size;
            changes[*end as usize] -= size;
        }
        let mut sum = 0.0;
        let sums = changes.into_iter().map(|change| {
            sum += change;
            sum
        });
        sums.take(self.moments()).collect()
    }
}

pub(crate) fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

pub(crate) fn trace(name: &str) -> (String, SnapshotFile) {
    let path = testdata().join("traces").join(format!("{name}.pickle.zst"));
    (name.to_owned(), tonnage_snapshot::open(&path).unwrap())
}

/// The same without the beginning of its history, as a ring that was full leaves it.
pub(crate) fn late(mut file: SnapshotFile, lost: usize) -> SnapshotFile {
    for entries in &mut file.traces {
        entries.drain(..lost.min(entries.len()));
    }
    file
}
