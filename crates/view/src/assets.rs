//! Stage 2: the page's own files, inside the program. Built from `web/` by `cargo xtask web`.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;

#[derive(RustEmbed)]
#[folder = "dist/"]
struct Files;

/// The file of this name.
pub(crate) fn asset(name: &str) -> Response {
    let Some(file) = Files::get(name) else {
        return (StatusCode::NOT_FOUND, "there is no such page\n").into_response();
    };
    let kind = match name.rsplit_once('.').map(|it| it.1) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    };
    ([(header::CONTENT_TYPE, kind)], file.data).into_response()
}
