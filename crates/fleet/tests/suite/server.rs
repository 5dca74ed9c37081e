//! A storage on this machine: as much of S3, of Google's twin of it, of Azure and of web servers as reading takes, and every
//! way to fail.
//!
//! In:  objects by `/BUCKET/NAME`, and what goes wrong with which request. Out: an address, and a log of what was asked.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// It is answered.
    Answer,
    /// It is answered with this status and word.
    Refuse(u16, &'static str),
    /// The connection ends after so many bytes of the body.
    Break(usize),
    /// It is answered with this.
    #[allow(dead_code)]
    Say(String),
    /// The client is sent there.
    #[allow(dead_code)]
    Redirect(String),
}

/// A request, as far as it matters.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// `/BUCKET/NAME`, not escaped.
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    /// By their names in small letters.
    pub(crate) headers: BTreeMap<String, String>,
    /// How many there were before.
    pub(crate) number: usize,
}

type Fates = Box<dyn FnMut(&Request, &mut Objects) -> Fate + Send>;

/// Bytes and version.
pub(crate) type Objects = BTreeMap<String, (Vec<u8>, String)>;

struct State {
    objects: Objects,
    fates: Fates,
    log: Vec<Request>,
    /// Whether it speaks like a plain web server: without versions, without ranges.
    plain: bool,
    /// Names on a page.
    page: usize,
}

/// A storage that listens on this machine.
pub(crate) struct Server {
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    /// One with these objects, that answers everything.
    pub(crate) fn new(objects: &[(&str, Vec<u8>)]) -> Self {
        let objects = objects
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), (bytes.clone(), "\"v1\"".to_owned())));
        let state = State {
            objects: objects.collect(),
            fates: Box::new(|_, _| Fate::Answer),
            log: Vec::new(),
            plain: false,
            page: 1000,
        };
        let state = Arc::new(Mutex::new(state));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::clone(&state);
        // Ends with the program.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(client, &shared));
            }
        });
        Self { address, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// What goes wrong from now on.
    pub(crate) fn fates(&self, fates: impl FnMut(&Request, &mut Objects) -> Fate + Send + 'static) {
        self.state().fates = Box::new(fates);
    }

    /// From now on without versions and ranges.
    #[allow(dead_code)]
    pub(crate) fn plain(&self) {
        self.state().plain = true;
    }

    /// From now on so many names on a page.
    #[allow(dead_code)]
    pub(crate) fn page(&self, names: usize) {
        self.state().page = names;
    }

    /// What was asked.
    pub(crate) fn log(&self) -> Vec<Request> {
        self.state().log.clone()
    }
}

fn serve(client: TcpStream, shared: &Mutex<State>) -> Option<()> {
    let mut input = BufReader::new(client.try_clone().ok()?);
    let mut client = client;
    loop {
        let mut line = String::new();
        input.read_line(&mut line).ok().filter(|&it| it > 0)?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            input.read_line(&mut line).ok().filter(|&it| it > 0)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let query = query.split('&').filter_map(|it| it.split_once('='));
        let query = query.map(|(name, value)| (name.to_owned(), plain(value))).collect();
        let mut state = shared.lock().ok()?;
        let number = state.log.len();
        let request = Request { method, path: plain(path), query, headers, number };
        state.log.push(request.clone());
        let State { objects, fates, .. } = &mut *state;
        let fate = fates(&request, objects);
        let (head, body, cut) = match fate {
            Fate::Refuse(status, word) => {
                let (head, body) = refuse(status, word);
                (head, body, None)
            }
            Fate::Say(text) => (head(200, text.len(), ""), text.into_bytes(), None),
            Fate::Redirect(to) => (head(302, 0, &format!("location: {to}\r\n")), Vec::new(), None),
            Fate::Break(after) => {
                let (head, body) = answer(&request, &state);
                (head, body, Some(after))
            }
            Fate::Answer => {
                let (head, body) = answer(&request, &state);
                (head, body, None)
            }
        };
        drop(state);
        client.write_all(head.as_bytes()).ok()?;
        if request.method != "HEAD" {
            client.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())]).ok()?;
        }
        if cut.is_some() {
            return None;
        }
    }
}

fn head(status: u16, length: usize, more: &str) -> String {
    format!("HTTP/1.1 {status} so\r\ncontent-length: {length}\r\n{more}\r\n")
}

fn refuse(status: u16, word: &str) -> (String, Vec<u8>) {
    let body = format!("<Error><Code>{word}</Code></Error>").into_bytes();
    (head(status, body.len(), ""), body)
}

fn answer(request: &Request, state: &State) -> (String, Vec<u8>) {
    if request.query.contains_key("list-type") || request.query.contains_key("comp") {
        return list(request, state);
    }
    let Some((bytes, tag)) = state.objects.get(&request.path) else {
        let bucket = request.path[1..].split('/').next().unwrap_or_default();
        let bucket_is_there = state.objects.keys().any(|it| it.starts_with(&format!("/{bucket}/")));
        return refuse(404, if bucket_is_there { "NoSuchKey" } else { "NoSuchBucket" });
    };
    if state.plain {
        return (head(200, bytes.len(), ""), bytes.clone());
    }
    // A weak version is equal to none.
    if request.headers.get("if-match").is_some_and(|it| it != tag || tag.starts_with("W/")) {
        return refuse(412, "PreconditionFailed");
    }
    let about = format!("etag: {tag}\r\nlast-modified: Tue, 17 Nov 2026 10:00:00 GMT\r\n");
    let range = request.headers.get("range").and_then(|it| it.strip_prefix("bytes="));
    match range.and_then(|it| it.split_once('-')) {
        Some((from, to)) => {
            let from: usize = from.parse().unwrap_or(0);
            if from >= bytes.len() {
                return refuse(416, "InvalidRange");
            }
            let to = to.parse().map_or(bytes.len(), |to: usize| (to + 1).min(bytes.len()));
            let range = format!("content-range: bytes {from}-{}/{}\r\n", to - 1, bytes.len());
            (head(206, to - from, &(about + &range)), bytes[from..to].to_vec())
        }
        None => (head(200, bytes.len(), &about), bytes.clone()),
    }
}

/// A page of names, as S3 and Google have it, or Azure.
fn list(request: &Request, state: &State) -> (String, Vec<u8>) {
    let query = |name: &str| request.query.get(name).map_or("", String::as_str);
    let bucket = format!("{}/", request.path.trim_end_matches('/'));
    let azure = request.query.contains_key("comp");
    if !state.objects.keys().any(|it| it.starts_with(&bucket)) {
        return refuse(404, if azure { "ContainerNotFound" } else { "NoSuchBucket" });
    }
    let after = if azure { query("marker") } else { query("continuation-token") };
    let (prefix, delimiter) = (query("prefix"), query("delimiter"));
    let mut folders: Vec<String> = Vec::new();
    let (mut files, mut last) = (String::new(), None);
    let names =
        state.objects.iter().filter_map(|(path, it)| Some((path.strip_prefix(&bucket)?, it)));
    let names = names.filter(|(name, _)| name.starts_with(prefix) && *name > after);
    let mut count = 0;
    for (name, (bytes, tag)) in names {
        if count == state.page {
            break;
        }
        count += 1;
        let rest = &name[prefix.len()..];
        if let Some(place) = rest.find('/').filter(|_| !delimiter.is_empty()) {
            let folder = name[..=prefix.len() + place].to_owned();
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        } else if azure {
            let _ = write!(
                files,
                "<Blob><Name>{name}</Name><Properties><Content-Length>{}</Content-Length><Content-Type>application/octet-stream</Content-Type><Etag>{}</Etag>\
                 <Last-Modified>Tue, 17 Nov 2026 10:00:00 GMT</Last-Modified></Properties></Blob>",
                bytes.len(),
                tag.trim_matches('"')
            );
        } else {
            let _ = write!(
                files,
                "<Contents><Key>{name}</Key><Size>{}</Size><ETag>{}</ETag>\
                 <LastModified>2026-11-17T10:00:00.000Z</LastModified></Contents>",
                bytes.len(),
                tag.replace('"', "&quot;")
            );
        }
        last = Some(name.to_owned());
    }
    let more = count == state.page && {
        let names = state.objects.keys().filter_map(|path| path.strip_prefix(&bucket));
        let last = last.clone().unwrap_or_default();
        names.filter(|name| name.starts_with(prefix)).any(|name| *name > *last)
    };
    let token = last.filter(|_| more).unwrap_or_default();
    let body = if azure {
        let folders: String = folders
            .iter()
            .map(|it| format!("<BlobPrefix><Name>{it}</Name></BlobPrefix>"))
            .collect();
        format!(
            "<EnumerationResults><Blobs>{files}{folders}</Blobs><NextMarker>{token}</NextMarker></EnumerationResults>"
        )
    } else {
        let folders: String = folders
            .iter()
            .map(|it| format!("<CommonPrefixes><Prefix>{it}</Prefix></CommonPrefixes>"))
            .collect();
        let token = match token.is_empty() {
            true => String::new(),
            false => format!("<NextContinuationToken>{token}</NextContinuationToken>"),
        };
        format!("<ListBucketResult>{files}{folders}{token}</ListBucketResult>")
    };
    let body = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>{body}").into_bytes();
    (head(200, body.len(), "content-type: application/xml\r\n"), body)
}

/// What is escaped in an address, as it is.
fn plain(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next().unwrap_or(b'0'), rest.next().unwrap_or(b'0')];
                let digits = std::str::from_utf8(&digits).unwrap_or("00");
                bytes.push(u8::from_str_radix(digits, 16).unwrap_or(b'?'));
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
