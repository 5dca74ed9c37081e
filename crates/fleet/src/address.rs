//! Addresses of files that lie in object storage or on a web server.
//!
//! In:  a source as it is written. Out: an [`Address`], if it is one of these. Nothing is asked of anyone.
//!
//! | address | where |
//! | --- | --- |
//! | `s3://BUCKET/NAME`, `s3a://` | S3, and what speaks like it |
//! | `gs://BUCKET/NAME` | Google Cloud Storage |
//! | `az://CONTAINER/NAME`, `abfs://`, `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/NAME` | Azure Blob Storage |
//! | `https://HOST/…`, `http://` | a web server: one file, and no folders |
//!
//! Names are taken as they are: only addresses of web servers have `%20` for a space.

/// Which protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    S3,
    Google,
    Azure,
    Web,
}

/// An address, in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address<'a> {
    pub(crate) kind: Kind,
    /// `s3://BUCKET`.
    pub(crate) base: &'a str,
    /// The bucket or container, as it is written; a web server's name.
    pub(crate) bucket: &'a str,
    /// The name behind it, without the `/` between them.
    pub(crate) name: &'a str,
}

/// Schemes, by protocol.
const SCHEMES: [(&str, Kind); 9] = [
    ("s3", Kind::S3),
    ("s3a", Kind::S3),
    ("gs", Kind::Google),
    ("az", Kind::Azure),
    ("azure", Kind::Azure),
    ("abfs", Kind::Azure),
    ("abfss", Kind::Azure),
    ("https", Kind::Web),
    ("http", Kind::Web),
];

/// What names of a query's parts have in them whose values let others read.
const SECRETS: [&str; 15] = [
    "token",
    "key",
    "sig",
    "auth",
    "secret",
    "pass",
    "pwd",
    "cred",
    "code",
    "hdnea",
    "md5",
    "hmac",
    "jwt",
    "session",
    "googleaccessid",
];

/// What stands beside a signature and changes with it: all parts of S3's and Google's begin so.
const BESIDE: [&str; 2] = ["x-amz-", "x-goog-"];

/// The same of Azure, where these stand beside `sig` and `sv`.
const AZURE: [&str; 16] = [
    "sv", "se", "st", "sp", "sr", "si", "ss", "srt", "sip", "spr", "skoid", "sktid", "skt", "ske",
    "sks", "skv",
];

/// Letters of what a part of a query says, and of what it says that of, and of a name behind `#`: chosen. What tells a file
/// from others is short; no signature is so short that it protects something, whatever its name is.
const LONGEST_VALUE: usize = 12;
const LONGEST_NAME: usize = 32;
const LONGEST_LABEL: usize = 64;

impl<'a> Address<'a> {
    /// The parts of an address; none of what is a file of this machine.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let kind = SCHEMES.iter().find(|it| it.0 == scheme)?.1;
        let (bucket, name) = match rest.find(['/', '?', '#']) {
            Some(place) if rest[place..].starts_with('/') => (&rest[..place], &rest[place + 1..]),
            // Only a web server's name ends at a query.
            Some(place) if kind == Kind::Web => (&rest[..place], &rest[place..]),
            _ => rest.split_once('/').unwrap_or((rest, "")),
        };
        let base = &text[..scheme.len() + 3 + bucket.len()];
        Some(Self { kind, base, bucket, name })
    }

    /// Why nothing can be there, if that is so.
    #[cfg_attr(not(feature = "storage"), allow(dead_code))]
    pub(crate) fn wrong(&self) -> Option<&'static str> {
        if self.bucket.is_empty() {
            return Some(match self.kind {
                Kind::Web => "this names no server",
                Kind::Azure => "this names no container",
                _ => "this names no bucket",
            });
        }
        let empty = self.name.starts_with('/') || self.name.contains("//");
        let dots = self.name.split('/').any(|part| matches!(part, "." | ".."));
        let controls = self.name.bytes().any(|byte| byte.is_ascii_control());
        (self.kind != Kind::Web && (empty || dots || controls)).then_some(
            "names with an empty part (`//`), with `.` or `..` as a part or with control characters cannot be read",
        )
    }
}

/// Whether a text has the form of an address, of whatever protocol.
pub(crate) fn has_scheme(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme.bytes().all(|it| it.is_ascii_alphanumeric() || matches!(it, b'+' | b'-'))
    })
}

/// Whether a text is meant for storage, also where a path was made of it, which has one `/` for two.
pub(crate) fn names_storage(text: &str) -> bool {
    let as_path = |scheme: &str| text.strip_prefix(scheme).is_some_and(|it| it.starts_with(":/"));
    has_scheme(text) || SCHEMES.iter().any(|it| as_path(it.0))
}

/// What a file goes by: its address without what lets others read it, which changes from one day to the next.
pub(crate) fn shown(text: &str) -> String {
    let Some(Address { kind: Kind::Web, bucket, .. }) = Address::parse(text) else {
        return text.to_owned();
    };
    let mut text = text.to_owned();
    if let Some((secret, _)) = bucket.rsplit_once('@') {
        text = text.replacen(&format!("{secret}@"), "", 1);
    }
    let place = text.find('#').unwrap_or(text.len());
    // Servers are not sent what stands behind `#`: people tell files apart by it.
    let (sent, fragment) = text.split_at(place);
    let (file, query) = sent.split_once('?').unwrap_or((sent, ""));
    let query = open_parts(query, LONGEST_VALUE);
    let fragment = open_parts(fragment.trim_start_matches('#'), LONGEST_LABEL);
    let part = |mark: &str, part: String| match part.as_str() {
        "" => String::new(),
        _ => format!("{mark}{part}"),
    };
    format!("{file}{}{}", part("?", query), part("#", fragment))
}

/// The parts of a query that everyone may see: short and plain ones alone, since nobody knows what all servers call a
/// signature. A part without a name may have `longest` letters.
fn open_parts(query: &str, longest: usize) -> String {
    let names: Vec<_> = query.split(['&', ';']).map(part_name).collect();
    let has = |name: &str| names.iter().any(|it| it == name);
    let is_azure = has("sig") && has("sv");
    let is_open = |part: &&str| {
        let name = part_name(part);
        let is_short = match part.split_once('=') {
            Some((name, value)) => is_plain(name, LONGEST_NAME) && is_plain(value, LONGEST_VALUE),
            None => is_plain(part, longest),
        };
        let beside =
            BESIDE.iter().any(|it| name.starts_with(it)) || (is_azure && AZURE.contains(&&*name));
        is_short && !beside && !SECRETS.iter().any(|it| name.contains(it))
    };
    let open: Vec<_> = query.split('&').filter(is_open).collect();
    // Where something was signed, so was until when that holds: another day has another.
    let is_signed = open.len() < query.split('&').count();
    let is_of_the_file = |part: &&str| !is_signed || part_name(part) != "expires";
    open.into_iter().filter(is_of_the_file).collect::<Vec<_>>().join("&")
}

/// The name of a query's part, in small letters.
fn part_name(part: &str) -> String {
    part.split('=').next().unwrap_or_default().to_ascii_lowercase()
}

/// Whether a text is a few letters that mean themselves.
fn is_plain(text: &str, longest: usize) -> bool {
    let is_letter = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'_' | b'.' | b'-');
    (1..=longest).contains(&text.len()) && text.bytes().all(is_letter)
}

/// An object's address, the same whichever of its protocol's schemes it is written with; none of a web server's.
pub(crate) fn with_usual_scheme(text: &str) -> Option<String> {
    let Address { kind, bucket, name, .. } = Address::parse(text)?;
    let usual = SCHEMES.iter().find(|it| it.1 == kind).filter(|_| kind != Kind::Web)?.0;
    Some(format!("{usual}://{bucket}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_files() {
        let parts = |text| Address::parse(text).map(|it| (it.kind, it.base, it.name));
        assert_eq!(parts("s3://b/a/r 0?.pickle"), Some((Kind::S3, "s3://b", "a/r 0?.pickle")));
        assert_eq!(parts("gs://b"), Some((Kind::Google, "gs://b", "")));
        assert_eq!(parts("s3://b?x/y"), Some((Kind::S3, "s3://b?x", "y")));
        let azure = "abfss://c@a.dfs.core.windows.net";
        assert_eq!(parts("abfss://c@a.dfs.core.windows.net/x"), Some((Kind::Azure, azure, "x")));
        assert_eq!(parts("https://h:1/x?y"), Some((Kind::Web, "https://h:1", "x?y")));
        assert_eq!(parts("https://h?y=/"), Some((Kind::Web, "https://h", "?y=/")));
        for file in ["s3:/b/x", "runs/x.pickle", "hdfs://n/x", "://x", "S3//x", "./s3://b/x"] {
            assert_eq!(parts(file), None, "{file}");
        }
        assert!(has_scheme("hdfs://n/x") && !has_scheme("a b://x") && !has_scheme("://x"));
    }

    #[test]
    fn what_can_name_nothing_is_told() {
        let wrong = |text| Address::parse(text).unwrap().wrong().is_some();
        for bad in ["s3://", "s3:///x", "gs://b//x", "az://c/a//b", "s3://b/../x", "s3://b/a\nb"] {
            assert!(wrong(bad), "{bad}");
        }
        for good in ["s3://b", "s3://b/", "s3://b/a/", "https://h/a//b", "gs://b/a..b/.x"] {
            assert!(!wrong(good), "{good}");
        }
    }

    #[test]
    fn what_lets_others_read_is_not_shown() {
        let signed = "https://b.s3.amazonaws.com/r0.pickle?X-Amz-Date=1&X-Amz-Signature=abc";
        assert_eq!(shown(signed), "https://b.s3.amazonaws.com/r0.pickle");
        assert_eq!(shown("https://me:secret@h/x?sv=1&sig=z"), "https://h/x");
        assert_eq!(shown("https://h/get?rank=3"), "https://h/get?rank=3");
        assert_eq!(shown("s3://b/x?sig=1"), "s3://b/x?sig=1");
        // What tells one file from another stays.
        assert_eq!(shown("https://h/get?rank=0&sig=a"), "https://h/get?rank=0");
        assert_eq!(shown("https://h/get?sv=3&rank=1"), "https://h/get?sv=3&rank=1");
        assert_eq!(shown("https://h/get?code=a#rank_3"), "https://h/get#rank_3");
        let label = "#dp03_pp1_tp0_rank_00052";
        assert_eq!(shown(&format!("https://h/get{label}")), format!("https://h/get{label}"));
        for secret in [
            "access_token",
            "private_token",
            "api_key",
            "code",
            "hdnea",
            "md5",
            "Key-Pair-Id",
            "X-Amz-Credential",
            "password",
            "Authorization",
            "acc%65ss_t%6Fken",
            "a=1;token",
            "jwt",
            "X-Goog-Signature",
        ] {
            let told = shown(&format!("https://h/x?a=1&{secret}=hidden&b=2"));
            assert_eq!(told, "https://h/x?a=1&b=2", "{secret}");
        }
    }

    #[test]
    fn a_signature_of_any_name_is_not_shown() {
        for signed in [
            "hdnts=exp=1763546400~acl=/*~hmac=0a1b2c3d4e5f",
            "verify=1763546400-aBcDeFgHiJkL%2B%3D",
            "hash=5d41402abc4b2a76b9719d911017c592&expires=1763546400",
            "st=qN0ZrYtGkL8aWn3VbXcD4w",
            "5d41402abc4b2a76b9719d911017c592",
            "c2VjcmV0LXNpZ25hdHVyZQ=",
            "f=%73ecret",
        ] {
            let told = shown(&format!("https://h/x?rank=3&{signed}"));
            assert_eq!(told, "https://h/x?rank=3", "{signed}");
        }
        let told = shown("https://h/x#access=5d41402abc4b2a76b9719d911017c592&rank_3");
        assert_eq!(told, "https://h/x#rank_3");
        // Of a file that is not signed, all may be seen.
        assert_eq!(shown("https://h/x?expires=9&b=1"), "https://h/x?expires=9&b=1");
    }

    #[test]
    fn schemes_of_one_protocol_name_one_object() {
        let same = |a: &str, b: &str| with_usual_scheme(a) == with_usual_scheme(b);
        assert!(same("s3a://b/x", "s3://b/x") && same("azure://c/x", "abfs://c/x"));
        assert!(same("abfs://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"));
        assert!(!same("s3://b/x", "gs://b/x") && !same("s3://b/x", "s3://b/y"));
        assert!(!same("az://c/x", "abfss://c@a.dfs.core.windows.net/x"));
        assert_eq!(with_usual_scheme("https://h/x").or(with_usual_scheme("runs/x")), None);
    }
}
