//! Stage 1: the server on this machine's own address.
//!
//! In:  [`Recordings`], a port. Out: a [`Server`], then one that is [`Running`] until it is stopped.
//!
//! It listens on 127.0.0.1 and nowhere else; through an SSH tunnel it is reached from elsewhere.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::api;
use crate::connections::{Patience, serve, whole_body};
use crate::gate::{Frames, Gate, gate};
use crate::recordings::Recordings;
use crate::token::Token;

/// The port that is taken if none is asked for and no one has it. Chosen.
pub const PORT: u16 = 7266;

/// Why there is no server.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Another program has the port.
    #[error(
        "port {0} is taken: name another with --port, or leave --port out to take any that is free"
    )]
    Taken(u16),
    /// No port can be had.
    #[error("cannot listen on 127.0.0.1: {0}")]
    Listen(#[source] std::io::Error),
    /// The system has no random numbers for the token.
    #[error("cannot make a token for the address: {0}")]
    Token(String),
    /// The server's own threads cannot be had.
    #[error("cannot start the server: {0}")]
    Start(#[source] std::io::Error),
}

/// A server that has its address, and does not answer yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    token: Token,
    frames: Frames,
    recordings: Recordings,
    patience: Patience,
}

impl Server {
    /// Takes a port: this one, or without one [`PORT`], else any that is free.
    ///
    /// # Errors
    ///
    /// If the port is taken, or if none can be had.
    pub fn bind(recordings: Recordings, port: Option<u16>) -> Result<Self, ServeError> {
        let listen = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let listener = match port {
            Some(port) => listen(port).map_err(|error| match error.kind() {
                ErrorKind::AddrInUse => ServeError::Taken(port),
                _ => ServeError::Listen(error),
            })?,
            None => listen(PORT).or_else(|_| listen(0)).map_err(ServeError::Listen)?,
        };
        let address = listener.local_addr().map_err(ServeError::Listen)?;
        let token = Token::random().map_err(ServeError::Token)?;
        let (frames, patience) = (Frames::default(), Patience::default());
        Ok(Self { listener, address, token, frames, recordings, patience })
    }

    /// The same with another patience.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// The same, in frames of pages that this machine serves: of a notebook. Without it no page may have it in a frame.
    #[must_use]
    pub fn in_frames_of_this_machine(self) -> Self {
        Self { frames: Frames::ThisMachine, ..self }
    }

    /// The address to open, token included.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.address, self.token)
    }

    /// The port it has.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Begins to answer, in threads of its own.
    ///
    /// # Errors
    ///
    /// If the system has no threads to spare.
    pub fn start(self) -> Result<Running, ServeError> {
        let Self { listener, token, frames, recordings, patience, .. } = self;
        listener.set_nonblocking(true).map_err(ServeError::Start)?;
        let mut threads = Builder::new_multi_thread();
        let runtime = threads.worker_threads(2).thread_name("view").enable_all().build();
        let runtime = runtime.map_err(ServeError::Start)?;
        let stopper = Stopper::new();
        let stopped = stopper.clone();
        let thread = std::thread::Builder::new().name("view".to_owned());
        let app = api::routes(&recordings)
            // Bodies are counted where they are taken.
            .layer(DefaultBodyLimit::disable())
            .layer(from_fn_with_state(patience, whole_body))
            .layer(from_fn_with_state(Gate { token, frames }, gate));
        let thread = thread.spawn(move || run(runtime, listener, app, patience, &stopped));
        Ok(Running { stopper, thread: Some(thread.map_err(ServeError::Start)?) })
    }
}

fn run(
    runtime: Runtime,
    listener: TcpListener,
    app: Router,
    patience: Patience,
    stopper: &Stopper,
) {
    runtime.block_on(async {
        // What cannot be taken over by the runtime was not listening to begin with.
        let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
        serve(listener, app, patience, stopper).await;
    });
    // A tuning that is under way is not waited for.
    runtime.shutdown_background();
}

/// A server that answers. It stops when this is dropped.
pub struct Running {
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// What stops it, from any thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Waits until it is stopped.
    pub fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // If it panicked, it has stopped too.
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        self.join();
    }
}

/// Stops a server.
#[derive(Clone)]
pub struct Stopper(Arc<watch::Sender<bool>>);

impl Stopper {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Lets it answer what was asked, for a moment, and end.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn stopped(&self) {
        // The sender lives as long as this: an error cannot come.
        let _ = self.0.subscribe().wait_for(|stopped| *stopped).await;
    }
}
