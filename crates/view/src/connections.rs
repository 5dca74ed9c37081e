//! Stage 1: connections, each for as long as it gets on.
//!
//! In:  a listener, the routes, a [`Patience`]. Out: answers, until the server is stopped.
//!
//! A connection that sends no whole head, no more of its body, or takes no more of its answer within the time it
//! has is closed, so that clients that went away or mean harm hold nothing. Whoever waits for an answer may wait as
//! long as that takes.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};

use crate::serve::Stopper;

/// How long a client may take, part by part.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the connection, or the last answer, to the end of the next request's head.
    pub head: Duration,
    /// Between two pieces of a body.
    pub body: Duration,
    /// Until more of an answer is taken.
    pub answer: Duration,
}

impl Default for Patience {
    /// Chosen: far longer than a browser on this machine, or behind a tunnel, ever takes.
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { head: seconds(30), body: seconds(30), answer: seconds(60) }
    }
}

/// The most connections at once. Chosen: a browser has six, and a page may be open in many.
const MOST: usize = 256;

/// How long connections have to end once the server is stopped.
const GRACE: Duration = Duration::from_millis(500);

/// Answers whoever connects until the server is stopped, and lets what is under way end.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Router,
    patience: Patience,
    stopper: &Stopper,
) {
    let room = Arc::new(Semaphore::new(MOST));
    let mut open = JoinSet::new();
    let mut stopped = pin!(stopper.stopped());
    loop {
        let next = async {
            // Never closed.
            let place = Arc::clone(&room).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = &mut stopped => break,
        };
        // Those that have ended are not kept.
        while open.try_join_next().is_some() {}
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, or gone before it was taken: others may end meanwhile.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (app, stopper) = (app.clone(), stopper.clone());
        open.spawn(async move {
            let _place = place;
            connection(stream, app, patience, &stopper).await;
        });
    }
    drop(listener);
    // What takes longer is cut off.
    let _ = timeout(GRACE, async { while open.join_next().await.is_some() {} }).await;
}

async fn connection(stream: TcpStream, app: Router, patience: Patience, stopper: &Stopper) {
    let io = TokioIo::new(Impatient { stream, answer: patience.answer, since: None });
    let service = TowerToHyperService::new(app);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(patience.head);
    let mut connection = pin!(builder.serve_connection(io, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stopper.stopped() => None,
    };
    if ended.is_none() {
        connection.as_mut().graceful_shutdown();
        // Why a connection ended is of no use to anyone.
        let _ = connection.await;
    }
}

/// A stream that is given up if the other side takes nothing of what is written to it.
struct Impatient {
    stream: TcpStream,
    answer: Duration,
    /// Runs while something waits to be taken.
    since: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    /// What writing came to; too late if it has waited for long enough.
    fn or_late<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.since = None;
            return written;
        }
        let answer = self.answer;
        let since = self.since.get_or_insert_with(|| Box::pin(sleep(answer)));
        ready!(since.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.or_late(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.or_late(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.or_late(context, shut)
    }
}

/// Longest body of a question, and longest file that a page may send: larger ones are named on the command line.
const MOST_BODY: usize = 64 << 10;
const MOST_FILE: usize = 1 << 30;

/// Takes the whole body before anything else is done, as long as it keeps coming.
pub(crate) async fn whole_body(
    State(patience): State<Patience>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    let is_file = parts.uri.path().split('/').nth(3) == Some("open");
    let most = if is_file { MOST_FILE } else { MOST_BODY };
    match collected(body, most, patience.body).await {
        Ok(bytes) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Err(refusal) => refusal.into_response(),
    }
}

async fn collected(
    mut body: Body,
    most: usize,
    patience: Duration,
) -> Result<Bytes, (StatusCode, String)> {
    let mut whole = Vec::new();
    loop {
        let frame = timeout(patience, poll_fn(|context| Pin::new(&mut body).poll_frame(context)));
        let Ok(frame) = frame.await else {
            return Err((StatusCode::REQUEST_TIMEOUT, "the request did not go on\n".to_owned()));
        };
        let Some(frame) = frame else { return Ok(whole.into()) };
        let broken = |_| (StatusCode::BAD_REQUEST, "the request broke off\n".to_owned());
        if let Ok(data) = frame.map_err(broken)?.into_data() {
            if data.len() > most - whole.len() {
                let why = format!(
                    "more than {most} bytes are not taken here: name the file on the command line\n"
                );
                return Err((StatusCode::PAYLOAD_TOO_LARGE, why));
            }
            whole.extend_from_slice(&data);
        }
    }
}
