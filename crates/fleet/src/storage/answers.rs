//! Answers that are read whole, and how long they may be.
//!
//! In:  what is asked, by `object_store`. Out: the answer; of what is no file no more than a limit, whoever sends it.
//!
//! | answer | bytes |
//! | --- | --- |
//! | an error | the first [`LONGEST_ERROR`]: the rest is not read |
//! | a page of names | [`LONGEST_PAGE`]; a longer one is none |
//! | anything else | as it comes: a file is streamed, and is never whole in memory |

use std::fmt::{Display, Formatter};
use std::future::Future;
use std::pin::Pin;

use futures_util::StreamExt;
use object_store::client::{
    HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};

/// Bytes of an error's words: chosen, storages write a few hundred.
const LONGEST_ERROR: usize = 64 << 10;

/// Bytes of a page of names: chosen, the five thousand names that Azure sends at once take less than a tenth.
const LONGEST_PAGE: usize = 64 << 20;

/// What is asked of another, with answers that end.
#[derive(Debug)]
pub(super) struct Bounded(pub(super) HttpClient);

/// A page of names that is longer than any.
#[derive(Debug)]
pub(super) struct TooLong;

impl Display for TooLong {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "a page of names has more than {} MiB", LONGEST_PAGE >> 20)
    }
}

impl std::error::Error for TooLong {}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Bounded {
    // As `async_trait` writes it.
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Answer<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let lists = request.uri().query().is_some_and(is_of_a_listing);
            let (parts, body) = self.0.execute(request).await?.into_parts();
            let body = match parts.status.is_success() {
                true if lists => whole(body).await?,
                true => body,
                false => beginning(body).await,
            };
            Ok(HttpResponse::from_parts(parts, body))
        })
    }
}

/// Whether a request is for names: `list-type` asks S3 and Google so, `comp=list` Azure.
fn is_of_a_listing(query: &str) -> bool {
    query.split('&').any(|part| part.starts_with("list-type=") || part == "comp=list")
}

/// All of a page.
async fn whole(body: HttpResponseBody) -> Result<HttpResponseBody, HttpError> {
    let (mut pieces, mut bytes) = (body.bytes_stream(), Vec::new());
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece.map_err(broken)?);
        if bytes.len() > LONGEST_PAGE {
            return Err(HttpError::new(HttpErrorKind::Decode, TooLong));
        }
    }
    Ok(bytes.into())
}

/// A page that broke off, which whoever lists asks for again, and `object_store` does not.
fn broken(error: HttpError) -> HttpError {
    match error.kind() {
        HttpErrorKind::Timeout => error,
        _ => HttpError::new(HttpErrorKind::Unknown, error),
    }
}

/// What an error says at first. One whose words break off is an error still.
async fn beginning(body: HttpResponseBody) -> HttpResponseBody {
    let (mut pieces, mut bytes) = (body.bytes_stream(), Vec::new());
    while let Some(Ok(piece)) = pieces.next().await {
        bytes.extend_from_slice(&piece[..piece.len().min(LONGEST_ERROR - bytes.len())]);
        if bytes.len() == LONGEST_ERROR {
            break;
        }
    }
    // It may end within a letter.
    String::from_utf8_lossy(&bytes).into_owned().into()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use object_store::ClientOptions;
    use object_store::client::{HttpConnector, HttpRequestBody};

    use super::super::Clients;
    use super::*;

    /// A server whose answers have this status and never end; how many bytes it could send, and what is made of the answer.
    fn asked(status: u16, query: &str) -> (usize, Result<usize, String>) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/x?{query}", listener.local_addr().unwrap());
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let sending = std::thread::spawn(move || {
            let mut client = listener.accept().unwrap().0;
            let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|it| it.is_ok_and(|it| !it.is_empty())) {}
            let head = format!("HTTP/1.1 {status} so\r\ncontent-length: {}\r\n\r\n", 1_u64 << 40);
            client.write_all(head.as_bytes()).unwrap();
            // Two bytes each, and none of them ends where a limit is.
            let piece = ["x", &"é".repeat(32 << 10)].concat();
            while client.write_all(piece.as_bytes()).is_ok() {
                count.fetch_add(piece.len(), Ordering::SeqCst);
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let told = runtime.block_on(async {
            let options = ClientOptions::new().with_allow_http(true);
            let client = Clients::default().connect(&options).unwrap();
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.uri_mut() = address.parse().unwrap();
            let answer = client.execute(request).await.map_err(|error| error.to_string())?;
            let bytes = answer.into_body().bytes().await.map_err(|error| error.to_string())?;
            Ok(String::from_utf8(bytes.into()).unwrap().len())
        });
        drop(runtime);
        sending.join().unwrap();
        (sent.load(Ordering::SeqCst), told)
    }

    #[test]
    fn an_error_without_end_is_read_to_a_limit() {
        for status in [404, 500] {
            let (sent, told) = asked(status, "rank=3");
            // With a sign for the letter that was cut, and what lies in buffers on the way.
            assert!(told.clone().unwrap() <= LONGEST_ERROR + 2, "{told:?}");
            assert!(sent < 32 << 20, "{sent}");
        }
    }

    #[test]
    fn a_page_of_names_without_end_is_none() {
        for query in ["list-type=2&prefix=a", "restype=container&comp=list"] {
            let (sent, told) = asked(200, query);
            assert!(told.unwrap_err().contains("more than 64 MiB"));
            assert!(sent < LONGEST_PAGE + (32 << 20), "{sent}");
        }
    }
}
