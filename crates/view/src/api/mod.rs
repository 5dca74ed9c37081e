//! Stage 3: what the page asks for. One file per route; `web/src/api.ts` has the shapes.
//!
//! Addresses lie below the token, which the gate has compared already.

mod fit;

mod fleet;

mod open;

mod predict;

mod recipes;

mod report;

mod run;

mod stack;

mod start;

mod timeline;

mod tune;

mod what_if;

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use serde::Serialize;
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::spawn_blocking;
use tonnage_replay::{Stop, Until};

use crate::assets::asset;
use crate::error::ApiError;
use crate::recording::Recording;
use crate::recordings::Recordings;

/// How many recordings are worked on at once. A tuning takes all cores by itself.
const WORKERS: usize = 2;

/// What every route can reach.
#[derive(Clone)]
struct App {
    recordings: Recordings,
    /// Work on recordings, which may take seconds.
    work: Arc<Semaphore>,
    /// Predictions, which answer a slider and do not wait for that.
    predictions: Arc<Semaphore>,
    /// Ranks of a fleet are opened one after the other.
    opening: Arc<Semaphore>,
}

/// The page and its questions.
pub(crate) fn routes(recordings: &Recordings) -> Router {
    let app = App {
        recordings: recordings.clone(),
        work: Arc::new(Semaphore::new(WORKERS)),
        predictions: Arc::new(Semaphore::new(1)),
        opening: Arc::new(Semaphore::new(1)),
    };
    let recording = Router::new()
        .route("/timeline", get(timeline::timeline))
        .route("/stacks", get(stack::stacks))
        .route("/stacks/{stack}", get(stack::stack))
        .route("/report", get(report::report))
        .route("/report/at-once", get(report::at_once))
        .route("/tune", get(tune::tune))
        .route("/what-if", post(what_if::what_if));
    let questions = Router::new()
        .route("/start", get(start::start))
        .route("/recipes", get(recipes::recipes))
        .route("/predict", post(predict::predict))
        .route("/fit", post(fit::fit))
        .route("/run", get(run::run))
        .route("/open/{name}", post(open::open))
        .route("/fleet", get(fleet::fleet))
        .route("/fleet/open/{number}", post(fleet::open))
        .nest("/recordings/{id}", recording);
    Router::new()
        // Addresses in the page are relative to a folder.
        .route(
            "/{token}",
            get(async |Path(token): Path<String>| Redirect::permanent(&format!("/{token}/"))),
        )
        .route("/{token}/", get(async || asset("index.html")))
        .route("/{token}/{file}", get(async |Path((_, file)): Path<(String, String)>| asset(&file)))
        .nest("/{token}/api", questions)
        .fallback(async || asset(""))
        .with_state(app)
}

impl App {
    fn recording(&self, id: u32) -> Result<Arc<Recording>, ApiError> {
        self.recordings.get(id).ok_or_else(|| ApiError::no_recording(id))
    }

    /// Something of a recording: what was computed before, or what `work` makes of it. Whoever asks meanwhile waits for
    /// the same work. Work whose asker goes away is told to stop, and its answer is nobody's: whoever waits, or asks again,
    /// begins again.
    async fn once<T: Clone + Send + Sync + 'static>(
        &self,
        recording: &Arc<Recording>,
        place: fn(&Recording) -> &OnceCell<Result<T, ApiError>>,
        work: impl FnOnce(&Recording, &Until) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.once_or_stopped(recording, place, work, true).await
    }

    /// The same for work that does not stop: its answer is kept, whoever goes away.
    async fn once_whole<T: Clone + Send + Sync + 'static>(
        &self,
        recording: &Arc<Recording>,
        place: fn(&Recording) -> &OnceCell<Result<T, ApiError>>,
        work: impl FnOnce(&Recording) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.once_or_stopped(recording, place, |it, _| work(it), false).await
    }

    async fn once_or_stopped<T: Clone + Send + Sync + 'static>(
        &self,
        recording: &Arc<Recording>,
        place: fn(&Recording) -> &OnceCell<Result<T, ApiError>>,
        work: impl FnOnce(&Recording, &Until) -> Result<T, ApiError> + Send + 'static,
        stops: bool,
    ) -> Result<T, ApiError> {
        if let Some(known) = place(recording).get() {
            return known.clone();
        }
        let (app, recording) = (self.clone(), Arc::clone(recording));
        let (until, stop) = Until::told();
        let _asker = Asker(stop);
        let task = tokio::spawn(async move {
            let it = Arc::clone(&recording);
            let compute = async || {
                let told = until.clone();
                let answer = app
                    .apart(move || match told.is_over() && stops {
                        true => Err(given_up()),
                        false => work(&it, &told),
                    })
                    .await;
                if stops && until.is_over() { Err(given_up()) } else { Ok(answer) }
            };
            place(&recording).get_or_try_init(compute).await.cloned().and_then(|answer| answer)
        });
        task.await.unwrap_or_else(|_| Err(broken()))
    }

    /// Runs work where it holds up no connection, a few pieces at a time.
    async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        in_turn(&self.work, work).await
    }
}

/// Someone who waits for an answer: without them, work stops.
struct Asker(Stop);

impl Drop for Asker {
    fn drop(&mut self) {
        self.0.now();
    }
}

/// Runs work once it has its turn, which it keeps to its end, whether or not someone still waits for the answer.
async fn in_turn<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    // Never closed; without a turn the work would only begin sooner.
    let turn = Arc::clone(turns).acquire_owned().await;
    let kept = move || {
        let _turn = turn;
        work()
    };
    spawn_blocking(kept).await.unwrap_or_else(|_| Err(broken()))
}

/// What nobody reads: the asker is gone.
fn given_up() -> ApiError {
    ApiError::Failed("nobody waits for this any more".to_owned())
}

/// A panic: the message is on the terminal.
fn broken() -> ApiError {
    ApiError::Failed("this could not be computed: the terminal says why".to_owned())
}

/// JSON that was made before.
fn json(bytes: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], bytes).into_response()
}

fn to_json(value: &impl Serialize) -> Result<Bytes, ApiError> {
    let text = serde_json::to_vec(value).map_err(|error| ApiError::Failed(error.to_string()))?;
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread::sleep;
    use std::time::Duration;

    use tonnage_snapshot::SnapshotFile;

    use super::*;
    use crate::connections::{Patience, serve};
    use crate::recording::Info;
    use crate::recordings::ViewOptions;
    use crate::serve::Stopper;

    fn app() -> App {
        let turns = || Arc::new(Semaphore::new(WORKERS));
        let recordings = Recordings::new(ViewOptions::default());
        App { recordings, work: turns(), predictions: turns(), opening: turns() }
    }

    fn recording() -> Arc<Recording> {
        let file = Arc::new(SnapshotFile::default());
        Arc::new(Recording::new(Info::default(), file, ViewOptions::default()))
    }

    #[test]
    fn work_stops_once_its_asker_hangs_up_and_begins_again_when_asked_again() {
        let (app, recording) = (app(), recording());
        let (begun, begins) = mpsc::channel();
        let (ended, ends) = mpsc::channel();
        let asked = Arc::new(AtomicUsize::new(0));
        let place = Arc::clone(&recording);
        // The first time it works for as long as someone waits.
        let question = get(move || {
            let (app, place) = (app.clone(), Arc::clone(&place));
            let (begun, ended) = (begun.clone(), ended.clone());
            let first = asked.fetch_add(1, Ordering::Relaxed) == 0;
            let work = move |_: &Recording, until: &Until| {
                let _ = begun.send(());
                let since = std::time::Instant::now();
                while first && !until.is_over() {
                    if since.elapsed() > Duration::from_secs(600) {
                        return Ok(Bytes::from_static(b"nobody said stop"));
                    }
                    sleep(Duration::from_millis(1));
                }
                let _ = ended.send(());
                Ok(Bytes::from_static(b"an answer"))
            };
            async move { app.once(&place, |it| &it.report, work).await }
        });
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let routes = Router::new().route("/", question);
            serve(listener, routes, Patience::default(), &Stopper::new()).await;
        });
        let ask = || {
            let mut socket = TcpStream::connect(address).unwrap();
            let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            socket.write_all(request).unwrap();
            socket
        };
        let socket = ask();
        // Far above what it takes; otherwise it would wait for ever.
        let patience = Duration::from_secs(300);
        begins.recv_timeout(patience).unwrap();
        drop(socket);
        ends.recv_timeout(patience).expect("work goes on although nobody waits");
        let answer = std::io::read_to_string(ask()).unwrap();
        assert!(answer.ends_with("an answer"), "{answer}");
        begins.recv_timeout(patience).unwrap();
        assert!(recording.report.initialized());
    }
}
