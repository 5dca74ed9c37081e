//! Stage 1: which requests are answered, and what every answer says.
//!
//! In:  a request. Out: the same, or a refusal of one sentence; on the way back, the headers that keep the page to
//! itself.
//!
//! A page of another site can send requests here, or give itself a name that points here; but its browser then says so
//! in `Origin` or `Host`.

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::token::Token;

/// Scripts, styles and data of this server alone; nothing inline, nothing evaluated. What may have it in a frame follows.
macro_rules! policy {
    ($ancestors:literal) => {
        concat!(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; ",
            "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; ",
            "frame-ancestors ",
            $ancestors
        )
    };
}

/// Who may show the page in a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Frames {
    /// No one.
    #[default]
    None,
    /// Pages that this machine serves under its own names, such as notebooks. They need the token like anyone.
    ThisMachine,
}

impl Frames {
    fn policy(self) -> &'static str {
        match self {
            Self::None => policy!("'none'"),
            Self::ThisMachine => policy!(
                "http://localhost:* http://127.0.0.1:* https://localhost:* https://127.0.0.1:*"
            ),
        }
    }
}

/// What the gate knows.
#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) token: Token,
    pub(crate) frames: Frames,
}

const HEADERS: [(HeaderName, &str); 5] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Names that this machine has for itself.
const HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

pub(crate) async fn gate(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let refusal = refusal(&gate.token, request.uri(), request.headers());
    let mut response = match refusal {
        Some(why) => (StatusCode::FORBIDDEN, why).into_response(),
        None => next.run(request).await,
    };
    let policy = (header::CONTENT_SECURITY_POLICY, gate.frames.policy());
    for (name, value) in HEADERS.into_iter().chain([policy]) {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Why a request is not answered, if it is not.
fn refusal(token: &Token, uri: &Uri, headers: &HeaderMap) -> Option<&'static str> {
    let host = only(headers, &header::HOST);
    let named_otherwise = uri.authority().is_some_and(|it| !is_this_machine(it.as_str()));
    if named_otherwise || !host.is_some_and(is_this_machine) {
        return Some("This server is reached as localhost or 127.0.0.1 only.\n");
    }
    if headers.contains_key(header::ORIGIN) {
        let origin = only(headers, &header::ORIGIN).and_then(|it| it.strip_prefix("http://"));
        if origin != host {
            return Some("Pages of other sites are not answered.\n");
        }
    }
    (!token.begins(uri.path()))
        .then_some("The address lacks its token: take the whole one that `tonnage view` printed.\n")
}

/// The value of a header that comes once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Whether a `Host` header names this machine, with any port: an SSH tunnel has its own.
fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => host,
    };
    HOSTS.iter().any(|it| it.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_taken() {
        for (host, taken) in [
            ("localhost", true),
            ("LOCALHOST:80", true),
            ("127.0.0.1:7266", true),
            ("[::1]:1", true),
            ("[::1]", true),
            ("evil.example", false),
            ("localhost.evil.example:80", false),
            ("127.0.0.1.evil.example", false),
            ("localhost:80@evil.example", false),
            ("::1", false),
            ("0.0.0.0:7266", false),
            ("127.0.0.2", false),
            ("", false),
            (":80", false),
        ] {
            assert_eq!(is_this_machine(host), taken, "{host}");
        }
    }
}
