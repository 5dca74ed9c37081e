//! What went wrong with storage, in a sentence, and what to do.
//!
//! In:  an error of `object_store`. Out: a [`StorageError`]: its text is the same whoever asks and however long it took.

use std::error::Error;
use std::fmt::{Display, Formatter};

use object_store::client::{HttpError, HttpErrorKind};
use url::Url;

use super::answers::TooLong;
use crate::address::Kind;

/// Sorts of trouble, by what can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// There is no such object; others may be there.
    Absent,
    /// Reading this one is refused.
    Refused,
    /// It changed while it was read, or the connection broke where it cannot be gone on with: it can be begun again.
    Interrupted,
    /// Whatever it is, it is of this address, and asking again changes nothing.
    Address,
    /// A web server cannot be reached: the same for all of its files.
    Server,
    /// Whatever it is, it is the same for all of the storage.
    Storage,
}

/// Trouble with storage.
#[derive(Clone, Debug)]
pub(crate) struct StorageError {
    pub(crate) trouble: Trouble,
    text: String,
}

impl Display for StorageError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for StorageError {}

/// Hosts that tell a machine's own credentials, and what paths begin with there, for those with another name.
const MACHINES_OWN: [&str; 6] = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "[fd00:ec2::23]",
    "[fd00:ec2::254]",
    "metadata.google.internal",
];
const MACHINES_PATHS: [&str; 4] =
    ["/latest/api/token", "/latest/meta-data/", "/computeMetadata/", "/metadata/identity"];

/// Words of `object_store`, and of Azure's command, where there are no credentials.
const NO_CREDENTIALS: [&str; 6] = [
    "Account must be specified",
    "MissingAccount",
    "Missing AccessKeyId",
    "Missing SecretAccessKey",
    "Azure CLI",
    "az login",
];

/// What `object_store` writes in front of an answer that is none.
const ANSWERED: &str = "Server returned non-2xx status code: ";

/// Words of storage for a bucket that is not there.
const NO_BUCKET: [&str; 4] =
    ["NoSuchBucket", "ContainerNotFound", "specified bucket does not exist", "InvalidBucketName"];

/// Words of storage for credentials that are of no use, or of no use there, where it has no status of its own for that.
const OLD_CREDENTIALS: [&str; 3] = ["ExpiredToken", "InvalidToken", "AuthorizationHeaderMalformed"];

impl StorageError {
    pub(crate) fn other(text: String) -> Self {
        Self { trouble: Trouble::Storage, text }
    }

    pub(crate) fn of_address(text: String) -> Self {
        Self { trouble: Trouble::Address, text }
    }

    pub(crate) fn interrupted(text: &str) -> Self {
        Self { trouble: Trouble::Interrupted, text: text.to_owned() }
    }

    /// What `object_store` says.
    pub(crate) fn of(kind: Kind, error: &object_store::Error) -> Self {
        use object_store::Error as Said;
        let status = status(error);
        let (trouble, text) = match error {
            // Whoever is asked for them may refuse, and not only be silent.
            _ if kind != Kind::Web && no_credentials(error) => {
                (Trouble::Storage, credentials(kind).to_owned())
            }
            Said::NotFound { .. } if kind == Kind::Web => {
                (Trouble::Absent, "the server has no such file (404)".to_owned())
            }
            _ if kind != Kind::Web && says(error, &NO_BUCKET) => {
                (Trouble::Storage, no_bucket(kind))
            }
            Said::NotFound { .. } => (Trouble::Absent, "there is no such object".to_owned()),
            Said::PermissionDenied { .. } | Said::Unauthenticated { .. } => {
                (Trouble::Refused, refused(kind, error))
            }
            // Of a listing the status alone is told.
            _ if status
                .as_deref()
                .is_some_and(|it| it.starts_with("401") || it.starts_with("403")) =>
            {
                (Trouble::Refused, refused(kind, error))
            }
            Said::Precondition { .. } => {
                return Self::interrupted("it changed while it was read");
            }
            Said::InvalidPath { source } => (
                Trouble::Storage,
                format!(
                    "a name that cannot be read is among those that were listed ({}): name a smaller part, which has it not",
                    one_line(&source.to_string())
                ),
            ),
            // What answered is there: it is this name that it did not serve.
            _ if kind != Kind::Web && (status.is_none() || says(error, &OLD_CREDENTIALS)) => {
                (Trouble::Storage, answered(kind, error))
            }
            // Web servers have nothing to do with each other.
            _ if chain(error).any(is_unreached) => (Trouble::Server, answered(kind, error)),
            _ => (Trouble::Address, answered(kind, error)),
        };
        Self { trouble, text }
    }
}

/// An error and what it comes from.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// Whether storage refused a request as such, and did not say why: to ask for the object is answered in words.
pub(super) fn is_without_words(error: &object_store::Error) -> bool {
    let told_by_all = ["401", "403", "404", "412"];
    let is_refusal = |it: String| {
        it.starts_with('4')
            && !is_for_now(&it)
            && !told_by_all.iter().any(|own| it.starts_with(own))
    };
    status(error).is_some_and(is_refusal) && code(error).is_none()
}

/// Whether a status is of storage that cannot answer now: it is asked again until it is given up.
fn is_for_now(status: &str) -> bool {
    status.starts_with('5') || status.starts_with("408") || status.starts_with("429")
}

/// Whether nobody answered.
pub(super) fn no_answer(error: &object_store::Error) -> bool {
    chain(error).any(|it| it.is::<HttpError>())
}

/// Whether an answer broke off, which `object_store` asks for no more once it has begun.
pub(super) fn is_cut(error: &object_store::Error) -> bool {
    let is_too_long = chain(error).any(|it| it.is::<TooLong>());
    no_answer(error) && !is_too_long && !says(error, &[" retries, max_retries"])
}

/// Whether there was not even a connection: refused, or nothing came back from whoever was to make it.
fn is_unreached(error: &(dyn Error + 'static)) -> bool {
    let is_refused =
        error.downcast_ref::<HttpError>().is_some_and(|it| it.kind() == HttpErrorKind::Connect);
    is_refused || error.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_connect)
}

fn says(error: &object_store::Error, words: &[&str]) -> bool {
    let text = error.to_string();
    words.iter().any(|word| text.contains(word))
}

/// Whether what failed is the search for credentials. What a server wrote, and names of objects, do not count.
fn no_credentials(error: &object_store::Error) -> bool {
    let of_the_machine = asked(error).is_some_and(|url| {
        let path = url.path();
        url.host_str().is_some_and(|it| MACHINES_OWN.contains(&it))
            || MACHINES_PATHS.iter().any(|it| path.starts_with(it))
    });
    let has_words = |text: &str| NO_CREDENTIALS.iter().any(|word| text.contains(word));
    of_the_machine
        || (status(error).is_none()
            && chain(error).last().is_some_and(|it| has_words(&it.to_string())))
}

fn no_bucket(kind: Kind) -> String {
    let what = match kind {
        Kind::S3 => {
            "there is no such bucket: look at its name, and at AWS_ENDPOINT_URL, if that is set"
        }
        Kind::Google => "there is no such bucket: look at its name",
        Kind::Azure => "there is no such container: look at its name, and at the account's",
        Kind::Web => "there is nothing",
    };
    what.to_owned()
}

fn refused(kind: Kind, error: &object_store::Error) -> String {
    let code = code(error).or_else(|| status(error)).unwrap_or_else(|| "403".to_owned());
    let what = match kind {
        Kind::S3 => {
            "with these credentials it may not be read: it takes s3:GetObject, and s3:ListBucket for folders and patterns"
        }
        Kind::Google => {
            "with these credentials it may not be read: it takes storage.objects.get, and storage.objects.list for folders and \
             patterns"
        }
        Kind::Azure => {
            "with these credentials it may not be read: it takes the role Storage Blob Data Reader, or a signature for \
             reading and listing"
        }
        Kind::Web => "the server lets nobody read it without leave: name an address that is signed",
    };
    format!("access is refused ({code}): {what}")
}

fn credentials(kind: Kind) -> &'static str {
    match kind {
        Kind::S3 => {
            "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (`aws configure export-credentials --format env` \
             prints those of a profile), or AWS_SKIP_SIGNATURE=true for a bucket that everyone may read"
        }
        Kind::Google => {
            "no credentials: set GOOGLE_APPLICATION_CREDENTIALS to a file with a key, or log in with `gcloud auth \
             application-default login`, or set GOOGLE_SKIP_SIGNATURE=true for a bucket that everyone may read"
        }
        Kind::Azure => {
            "no credentials: set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN or, \
             after `az login`, AZURE_USE_AZURE_CLI=true; AZURE_SKIP_SIGNATURE=true for a container that everyone may read"
        }
        Kind::Web => "no credentials",
    }
}

/// What the storage answered, or why it did not.
fn answered(kind: Kind, error: &object_store::Error) -> String {
    let at = endpoint(error).map_or_else(String::new, |at| format!("{at} "));
    if let Some(http) = chain(error).find_map(|it| it.downcast_ref::<HttpError>()) {
        let last = chain(http).last().map_or_else(String::new, ToString::to_string);
        let last = one_line(&last);
        let check = match kind {
            Kind::S3 => ": look at AWS_ENDPOINT_URL and AWS_REGION, and at the network",
            Kind::Google | Kind::Azure => ": look at the endpoint that is set, and at the network",
            Kind::Web => ": look at the address, and at the network",
        };
        if last.contains("scheme is not allowed") {
            let variable = match kind {
                Kind::S3 => "AWS_ALLOW_HTTP",
                Kind::Google => "GOOGLE_ALLOW_HTTP",
                Kind::Azure => "AZURE_ALLOW_HTTP",
                Kind::Web => {
                    return "the server sends to an http:// address, which others can read and change: name that one, if you \
                            trust the way there"
                        .to_owned();
                }
            };
            return format!(
                "{at}speaks HTTP, which others can read and change: name an https:// endpoint, or set {variable}=true"
            );
        }
        return match http.kind() {
            _ if chain(http).any(|it| it.is::<TooLong>()) => {
                format!("{at}sends no names: {last}; look at the endpoint that is set")
            }
            _ if chain(http).any(is_unreached) => {
                format!("{at}cannot be reached ({last}){check}")
            }
            HttpErrorKind::Timeout => format!("{at}does not answer{check}"),
            _ => format!("{at}broke the connection ({last})"),
        };
    }
    let whole = error.to_string();
    if whole.contains("without LOCATION") {
        return "the bucket is elsewhere: set AWS_REGION to its region".to_owned();
    }
    match (status(error), code(error)) {
        // Some requests are answered without words: whoever asks is told the same.
        (Some(status), Some(code)) if !is_for_now(&status) => {
            format!("{at}answered {status} ({code})")
        }
        (Some(status), _) => format!("{at}answered {status}"),
        (None, _) => {
            let last = chain(error).last().map_or(whole, ToString::to_string);
            one_line(&last)
        }
    }
}

/// The status that the storage answered with, and its words.
fn status(error: &object_store::Error) -> Option<String> {
    chain(error).map(ToString::to_string).find_map(|it| {
        let rest = it.strip_prefix(ANSWERED)?;
        Some(rest.split(':').next().unwrap_or_default().trim().to_owned())
    })
}

/// The storage's own word for what went wrong.
fn code(error: &object_store::Error) -> Option<String> {
    let text = error.to_string();
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_word =
        !code.is_empty() && code.len() < 64 && code.bytes().all(|it| it.is_ascii_alphanumeric());
    is_word.then(|| code.to_owned())
}

/// Whom was asked, if the error says.
fn endpoint(error: &object_store::Error) -> Option<String> {
    Some(asked(error)?.origin().ascii_serialization())
}

/// What was asked for, if the error says; what was answered stands behind it.
fn asked(error: &object_store::Error) -> Option<Url> {
    let text = error.to_string();
    let said = text.split(ANSWERED).next().unwrap_or_default();
    said.split_whitespace().filter_map(|it| Url::parse(it).ok()).find(Url::has_host)
}

/// The first line, and not more of it than one reads.
fn one_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use object_store::ClientOptions;
    use object_store::client::{HttpConnector, HttpRequest, HttpRequestBody, ReqwestConnector};

    use super::*;

    /// What is made of a request for this address.
    fn asked(address: &str) -> StorageError {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = ClientOptions::new()
            .with_allow_http(true)
            .with_connect_timeout(Duration::from_millis(200));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(async {
            let client = ReqwestConnector::default().connect(&options).unwrap();
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.uri_mut() = address.parse().unwrap();
            client.execute(request).await.unwrap_err()
        });
        let error = object_store::Error::Generic { store: "HTTP", source: Box::new(error) };
        StorageError::of(Kind::Web, &error)
    }

    #[test]
    fn a_server_that_lets_nobody_in_is_not_reached() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Nobody takes these, and at some point there is room for no more.
        let soon = Duration::from_millis(200);
        let waiting: Vec<_> =
            std::iter::from_fn(|| TcpStream::connect_timeout(&address, soon).ok()).collect();
        let error = asked(&format!("http://{address}/r0.pickle"));
        assert_eq!(error.trouble, Trouble::Server, "{error} behind {}", waiting.len());
        assert!(error.to_string().contains("cannot be reached"), "{error}");
    }
}
