//! Stage 3: what the page asks for. One file per route; `web/src/api.ts` has the shapes.
//!
//! Addresses lie below the token, which the gate has compared already.

mod fit;

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
}

/// The page and its questions.
pub(crate) fn routes(recordings: &Recordings) -> Router {
    let app = App {
        recordings: recordings.clone(),
        work: Arc::new(Semaphore::new(WORKERS)),
        predictions: Arc::new(Semaphore::new(1)),
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
    /// the same work; who goes away does not stop it, so that asking again does not begin again.
    async fn once<T: Clone + Send + Sync + 'static>(
        &self,
        recording: &Arc<Recording>,
        place: fn(&Recording) -> &OnceCell<Result<T, ApiError>>,
        work: impl FnOnce(&Recording) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if let Some(known) = place(recording).get() {
            return known.clone();
        }
        let (app, recording) = (self.clone(), Arc::clone(recording));
        let task = tokio::spawn(async move {
            let it = Arc::clone(&recording);
            let compute = async || app.apart(move || work(&it)).await;
            place(&recording).get_or_init(compute).await.clone()
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
