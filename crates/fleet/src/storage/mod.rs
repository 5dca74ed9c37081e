//! Files in object storage and on web servers.
//!
//! In:  addresses. Out: [`Found`](crate::Found) files, and what reads one of them from its first byte to its last.
//!
//! | file | what it does |
//! | --- | --- |
//! | `environment.rs` | credentials and endpoints, from the variables that other tools take |
//! | `answers.rs` | what is asked, with answers that end |
//! | `listing.rs` | an address → the files that it means |
//! | `object.rs` | one file, streamed; a connection that breaks is made again where it broke |
//! | `trouble.rs` | what went wrong, in a sentence, and what to do |
//!
//! This is the one place with an asynchronous runtime: a thread that does the asking, for as long as the process is there.
//! Whoever wants something waits in a thread of their own. Nothing is kept on the disk.

mod environment;

mod answers;

mod listing;

mod object;

mod trouble;

use std::collections::HashMap;
use std::future::Future;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use object_store::client::{HttpClient, HttpConnector, ReqwestConnector};
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tonnage_replay::Until;

use crate::address::{Address, Kind, shown};
use crate::source::FoundAll;
use answers::Bounded;
use environment::Environment;
pub(crate) use object::Object;
pub(crate) use trouble::{StorageError, Trouble};

/// How long a connection may take to be made, and to say anything.
const CONNECT: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(30);

/// How often a request is made again that the storage could not answer: chosen, a throttled storage has half a minute to
/// recover, and one that is not there is told within as much.
const AGAIN: usize = 9;

/// How often credentials are asked for again of a machine's own service, which most machines have not.
const CREDENTIALS_AGAIN: usize = 2;

/// How long an answer may take, without what streams, and with all that is tried again: a server may send it byte by byte.
const ANSWER: Duration =
    if cfg!(test) { Duration::from_secs(20) } else { Duration::from_secs(120) };

/// How often someone who waits looks whether the work is to end.
const LOOK: Duration = Duration::from_millis(100);

/// The way to storage: a runtime, and connections that are there already.
pub(crate) struct Storage {
    runtime: Runtime,
    buckets: Mutex<HashMap<(String, Environment), Bucket>>,
    /// What was wrong with addresses that were looked for: whoever reads them next is told so, and not made to wait once more.
    known_wrong: Mutex<HashMap<String, StorageError>>,
    clients: Clients,
}

/// A bucket, and how its names are asked for; a web server's file has none.
#[derive(Clone)]
pub(crate) struct Bucket {
    kind: Kind,
    objects: Arc<dyn ObjectStore>,
    names: Option<Arc<dyn PaginatedListStore>>,
}

impl Storage {
    /// This process's own.
    pub(crate) fn own() -> Result<&'static Self, StorageError> {
        // A fork has none of the threads of the process that it is of, so it begins anew.
        static OWN: Mutex<Option<(u32, &'static Storage)>> = Mutex::new(None);
        let process = std::process::id();
        let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        match *own {
            Some((of, storage)) if of == process => Ok(storage),
            _ => {
                let storage: &'static Self = Box::leak(Box::new(Self::new()?));
                *own = Some((process, storage));
                Ok(storage)
            }
        }
    }

    fn new() -> Result<Self, StorageError> {
        // Fails where it is set already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tonnage-storage")
            .enable_all()
            .build()
            .map_err(|error| StorageError::other(format!("cannot start a thread: {error}")))?;
        let (buckets, known_wrong) = (Mutex::default(), Mutex::default());
        Ok(Self { runtime, buckets, known_wrong, clients: Clients::default() })
    }

    /// What many addresses mean, in their order, many at once: each the files, or why there are none. Ends at the first
    /// trouble that is not of one address alone.
    pub(crate) fn find(&'static self, sources: Vec<String>, until: &Until) -> FoundAll {
        // Whoever stops it is told one of the addresses that were asked for.
        let first = sources.first().map_or_else(String::new, |it| shown(it));
        let work = self.start(listing::find_all(self, sources));
        work.wait(until).map_err(|error| (first, error))?
    }

    /// A file, to be read from its first byte.
    pub(crate) fn open(
        &'static self,
        address: &str,
        until: &Until,
    ) -> Result<Object, StorageError> {
        let wrong = self.known_wrong.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
        if let Some(error) = wrong {
            return Err(error);
        }
        let (bucket, path) = self.place(address)?;
        Object::open(self, bucket, path, until.clone())
    }

    /// Keeps what is wrong with an address, if that is of it alone, in the place of what was wrong before.
    fn remember(&self, address: &str, error: Option<&StorageError>) {
        let of_it = error.filter(|it| matches!(it.trouble, Trouble::Address | Trouble::Server));
        let mut wrong = self.known_wrong.lock().unwrap_or_else(PoisonError::into_inner);
        match of_it {
            Some(error) => wrong.insert(address.to_owned(), error.clone()),
            None => wrong.remove(address),
        };
    }

    /// The bucket of an address, and the name in it.
    fn place(&self, address: &str) -> Result<(Bucket, Path), StorageError> {
        let parts = Address::parse(address)
            .ok_or_else(|| StorageError::other("this is no address of storage".to_owned()))?;
        if let Some(wrong) = parts.wrong() {
            return Err(StorageError::of_address(wrong.to_owned()));
        }
        let path = match parts.kind {
            // A web server's file is a bucket of its own: its address may end in a query.
            Kind::Web => Path::ROOT,
            _ => {
                let path = Path::parse(parts.name);
                path.map_err(|error| StorageError::of_address(error.to_string()))?
            }
        };
        Ok((self.bucket(address, &parts)?, path))
    }

    fn bucket(&self, address: &str, parts: &Address<'_>) -> Result<Bucket, StorageError> {
        if parts.kind == Kind::Web {
            return environment::web(address, &self.clients);
        }
        let key = (parts.base.to_owned(), Environment::of(parts.kind));
        let known = self.buckets.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(bucket) = known {
            return Ok(bucket);
        }
        let bucket = key.1.bucket(parts, &self.clients)?;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(buckets.entry(key).or_insert(bucket).clone())
    }

    /// Starts work on the runtime's thread.
    fn start<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Work<T> {
        let (tell, told) = sync_channel(1);
        let task = self.runtime.spawn(async move {
            // Whoever waited has gone.
            let _ = tell.send(work.await);
        });
        Work { told, task: task.abort_handle() }
    }
}

/// What is asked, as long as it takes no longer than an answer may.
async fn within<T>(asked: impl Future<Output = T>) -> Result<T, StorageError> {
    let slow = |_| StorageError::of_address("the answer takes more than two minutes".to_owned());
    tokio::time::timeout(ANSWER, asked).await.map_err(slow)
}

/// Work that goes on elsewhere; given up when dropped.
struct Work<T> {
    told: Receiver<T>,
    task: AbortHandle,
}

impl<T> Work<T> {
    fn wait(&self, until: &Until) -> Result<T, StorageError> {
        loop {
            match self.told.recv_timeout(LOOK) {
                Ok(done) => return Ok(done),
                Err(RecvTimeoutError::Timeout) if until.is_over() => {
                    return Err(StorageError::other("it was stopped".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let mistake = "asking the storage failed: this is a mistake in tonnage";
                    return Err(StorageError::other(mistake.to_owned()));
                }
            }
        }
    }
}

impl<T> Drop for Work<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Connections by what is asked of them, shared by all buckets: to make one reads the system's certificates.
#[derive(Clone, Debug, Default)]
struct Clients(Arc<Mutex<HashMap<String, HttpClient>>>);

impl HttpConnector for Clients {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = format!("{options:?}");
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        let client = HttpClient::new(Bounded(ReqwestConnector::default().connect(options)?));
        clients.insert(key, client.clone());
        Ok(client)
    }
}

/// How connections are made.
fn client_options() -> ClientOptions {
    // A large file takes longer than any request may: what counts is that something comes.
    let agent = concat!("tonnage/", env!("CARGO_PKG_VERSION"));
    ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT)
        .with_read_timeout(SILENCE)
        .with_user_agent(agent.parse().expect("it is ASCII"))
}

/// What is done about requests that were not answered.
fn retrying(again: usize) -> RetryConfig {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(5),
        base: 2.0,
    };
    RetryConfig { backoff, max_retries: again, retry_timeout: Duration::from_secs(60) }
}

/// Variables of this process whose names begin so, sorted.
fn variables(prefixes: &[&str]) -> Vec<(String, String)> {
    let all = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut all: Vec<_> =
        all.filter(|(name, _)| prefixes.iter().any(|it| name.starts_with(it))).collect();
    all.sort();
    all
}
