//! What addresses mean.
//!
//! In:  an address: an object, the beginning of names (a folder), a pattern of names.
//! Out: [`Found`] files with size and version.
//!
//! | address | means |
//! | --- | --- |
//! | names an object | that |
//! | `s3://b/runs/*/rank_*.pickle` | objects whose names match; `**` stands for folders within folders |
//! | anything else | every snapshot whose name begins with it and `/` |
//!
//! Names come by pages, and only those that count are kept. A pattern is followed folder by folder, so that what lies beside
//! is not listed; with `**` or `{` in it, which may stand for several folders, every name below the part in front of them is.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use globset::GlobMatcher;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ListResult, ObjectMeta, ObjectStoreExt};

use super::trouble::{is_cut, is_without_words, no_answer};
use super::{Bucket, Storage, StorageError, Trouble, within};
use crate::address::{Address, Kind, shown};
use crate::source::{Found, FoundAll, is_glob, is_snapshot, matcher};

/// Addresses that are asked about at once.
const AT_ONCE: usize = 32;

/// Names that a listing may have, and pages without a name one after the other: chosen, no fleet has as many. A storage that
/// lists for ever ends here.
const MOST: usize = 20_000_000;
const MOST_EMPTY: usize = 1_000;

/// Files that an address may mean: a gigabyte in memory.
const MOST_FOUND: usize = 4_000_000;

/// How often a page is asked for again whose answer broke off, and how long the first of these is waited for; each one behind
/// it twice as long.
const CUT: u32 = 6;
const WAIT: Duration = Duration::from_millis(100);

/// What each of these means; ends at the first trouble that is not of one address alone, and says of which.
pub(super) async fn find_all(storage: &'static Storage, sources: Vec<String>) -> FoundAll {
    // Web servers that cannot be reached are not tried for each of their files.
    let gone = Mutex::new(HashMap::<String, StorageError>::new());
    let asked = sources.into_iter().map(|source| async {
        let server =
            Address::parse(&source).filter(|it| it.kind == Kind::Web).map(|it| it.base.to_owned());
        let gone = || gone.lock().unwrap_or_else(PoisonError::into_inner);
        let known = server.as_ref().and_then(|it| gone().get(it).cloned());
        let found = match known {
            Some(error) => Err(error),
            None => find(storage, &source).await,
        };
        if let Err(error) = &found
            && error.trouble == Trouble::Server
            && let Some(server) = server
        {
            gone().insert(server, error.clone());
        }
        storage.remember(&source, found.as_ref().err());
        (source, found)
    });
    let mut told = futures_util::stream::iter(asked).buffered(AT_ONCE);
    let mut all = Vec::new();
    while let Some((source, found)) = told.next().await {
        match found {
            Err(error) if error.trouble == Trouble::Storage => {
                return Err((shown(&source), error));
            }
            found => all.push(found),
        }
    }
    Ok(all)
}

async fn find(storage: &'static Storage, source: &str) -> Result<Vec<Found>, StorageError> {
    let address = Address::parse(source)
        .ok_or_else(|| StorageError::other("this is no address of storage".to_owned()))?;
    let (bucket, path) = storage.place(source)?;
    let is_folder =
        address.kind != Kind::Web && (address.name.is_empty() || address.name.ends_with('/'));
    let own = if is_folder { None } else { Some(about(&bucket, &path).await) };
    match own {
        Some(Ok(meta)) => return Ok(vec![found(shown(source), source.to_owned(), &meta)]),
        // Whoever may list only, or may not list, is told the same of a name that is not there.
        Some(Err(error)) if address.kind == Kind::Web || ends(error.trouble) => return Err(error),
        _ => {}
    }
    let listing = Listing { base: address.base, bucket: &bucket };
    if is_glob(address.name) {
        return listing.pattern(address.name).await;
    }
    let listed = listing.folder(address.name).await;
    match (listed, own) {
        (Ok(files), Some(Err(error))) if files.is_empty() => Err(error),
        // Whoever may read and not list is told of the object; storage says why of a listing alone.
        (Err(listed), Some(Err(own))) if listed.trouble == Trouble::Refused => {
            Err(if own.trouble == Trouble::Refused { listed } else { own })
        }
        (listed, _) => listed,
    }
}

/// Whether to list what is below a name is of no use either.
fn ends(trouble: Trouble) -> bool {
    matches!(trouble, Trouble::Storage | Trouble::Address)
}

/// Size and version of one object.
async fn about(bucket: &Bucket, path: &Path) -> Result<ObjectMeta, StorageError> {
    let head = match within(bucket.objects.head(path)).await? {
        // An address that is signed for reading is not signed for this, and some servers know it not.
        Err(error) if bucket.kind == Kind::Web && !no_answer(&error) => {
            within(bucket.objects.get_opts(path, GetOptions::default())).await?.map(|it| it.meta)
        }
        // The answer to this has no words, which tell whether it is the name or the credentials.
        Err(error) if bucket.kind != Kind::Web && is_without_words(&error) => {
            let byte = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
            within(bucket.objects.get_opts(path, byte)).await?.map(|it| it.meta)
        }
        head => head,
    };
    head.map_err(|error| StorageError::of(bucket.kind, &error))
}

fn found(address: String, path: String, meta: &ObjectMeta) -> Found {
    Found { address, path: path.into(), size: Some(meta.size), version: version(meta) }
}

/// What tells this version of an object from another: listings have quotes around it in some storages and not in others.
pub(super) fn version(meta: &ObjectMeta) -> String {
    match (&meta.e_tag, meta.last_modified.timestamp()) {
        (Some(tag), _) => tag.trim_matches('"').to_owned(),
        // What stands for a server that does not say.
        (None, 0) => String::new(),
        (None, seconds) => seconds.to_string(),
    }
}

struct Listing<'a> {
    base: &'a str,
    bucket: &'a Bucket,
}

/// What a listing has collected so far, and how much it went through.
#[derive(Default)]
struct Met {
    files: Vec<Found>,
    names: usize,
    empty: usize,
}

/// Where a listing is: what the next page is asked for with.
#[derive(Debug, Default)]
struct Pages {
    next: Option<String>,
    /// One that was met before, and how many pages it is kept for: twice as many each time, so that a circle of any length is
    /// found by one that is in it.
    met: Option<String>,
    kept: usize,
    keep: usize,
}

impl Pages {
    /// Goes on to the next page; whether that was met before.
    fn go_on(&mut self, next: Option<String>) -> bool {
        let again = next.is_some() && next == self.met;
        if self.kept == self.keep {
            (self.met, self.kept, self.keep) = (next.clone(), 0, 2 * self.keep + 1);
        }
        self.kept += 1;
        self.next = next;
        again
    }
}

impl Listing<'_> {
    /// Every snapshot whose name begins so.
    async fn folder(&self, name: &str) -> Result<Vec<Found>, StorageError> {
        let prefix = match name.trim_end_matches('/') {
            "" => String::new(),
            name => format!("{name}/"),
        };
        let mut met = Met::default();
        let mut pages = Pages::default();
        loop {
            let page = self.page(&prefix, false, &mut pages, &mut met).await?;
            self.take(&page, &mut met, |name| is_snapshot(name.as_ref()))?;
            if pages.next.is_none() {
                return Ok(met.files);
            }
        }
    }

    /// Every object whose name matches.
    async fn pattern(&self, pattern: &str) -> Result<Vec<Found>, StorageError> {
        let whole = compiled(pattern)?;
        let mut met = Met::default();
        if pattern.contains("**") || pattern.contains('{') {
            let prefix = fixed(pattern).to_owned();
            let mut pages = Pages::default();
            loop {
                let page = self.page(&prefix, false, &mut pages, &mut met).await?;
                self.take(&page, &mut met, |name| whole.is_match(name))?;
                if pages.next.is_none() {
                    return Ok(met.files);
                }
            }
        }
        self.within("", pattern, &whole, &mut met).await?;
        Ok(met.files)
    }

    /// What matches below a folder that does; `rest` is the pattern behind it.
    fn within<'a>(
        &'a self,
        folder: &'a str,
        rest: &'a str,
        whole: &'a GlobMatcher,
        met: &'a mut Met,
    ) -> BoxFuture<'a, Result<(), StorageError>> {
        Box::pin(async move {
            let fixed = fixed(rest);
            let (behind, rest) = fixed.rsplit_once('/').map_or(("", rest), |(folders, _)| {
                let length = folders.len() + 1;
                (&rest[..length], &rest[length..])
            });
            let folder = format!("{folder}{behind}");
            let (part, deeper) = rest.split_once('/').map_or((rest, None), |(a, b)| (a, Some(b)));
            let prefix = format!("{folder}{}", self::fixed(part));
            let own = compiled(part)?;
            let mut folders = Vec::new();
            let mut pages = Pages::default();
            loop {
                let page = self.page(&prefix, true, &mut pages, met).await?;
                match deeper {
                    None => self.take(&page, met, |name| whole.is_match(name))?,
                    Some(_) => {
                        let names = page.common_prefixes.iter();
                        let names =
                            names.filter(|it| it.filename().is_some_and(|it| own.is_match(it)));
                        folders.extend(names.map(|it| format!("{it}/")));
                    }
                }
                if pages.next.is_none() {
                    break;
                }
            }
            if let Some(deeper) = deeper {
                for folder in &folders {
                    self.within(folder, deeper, whole, met).await?;
                }
            }
            Ok(())
        })
    }

    /// The next page of names, and what the one behind it is asked for with.
    async fn page(
        &self,
        prefix: &str,
        by_folders: bool,
        pages: &mut Pages,
        met: &mut Met,
    ) -> Result<ListResult, StorageError> {
        let Some(names) = &self.bucket.names else {
            return Err(StorageError::other("a web server lists no names".to_owned()));
        };
        let options = PaginatedListOptions {
            delimiter: by_folders.then_some("/".into()),
            page_token: pages.next.clone(),
            ..PaginatedListOptions::default()
        };
        let prefix = Some(prefix).filter(|it| !it.is_empty());
        let page = within(whole_page(&**names, prefix, options)).await?;
        let page = page.map_err(|error| StorageError::of(self.bucket.kind, &error))?;
        let count = page.result.objects.len() + page.result.common_prefixes.len();
        met.names += count;
        met.empty = if count == 0 { met.empty + 1 } else { 0 };
        if pages.go_on(page.page_token) || met.names > MOST || met.empty > MOST_EMPTY {
            let endless =
                "listing its names does not end: name a smaller part, or files in a list (@FILE)";
            return Err(StorageError::other(endless.to_owned()));
        }
        Ok(page.result)
    }

    fn take(
        &self,
        page: &ListResult,
        met: &mut Met,
        counts: impl Fn(&str) -> bool,
    ) -> Result<(), StorageError> {
        for meta in &page.objects {
            if counts(meta.location.as_ref()) {
                let address = format!("{}/{}", self.base, meta.location);
                met.files.push(found(address.clone(), address, meta));
            }
        }
        if met.files.len() > MOST_FOUND {
            let many = "more files than a fleet may have: name a smaller part";
            return Err(StorageError::other(many.to_owned()));
        }
        Ok(())
    }
}

/// A page of names, asked for again where its answer broke off.
async fn whole_page(
    names: &dyn PaginatedListStore,
    prefix: Option<&str>,
    options: PaginatedListOptions,
) -> object_store::Result<PaginatedListResult> {
    for cut in 0..CUT {
        match names.list_paginated(prefix, options.clone()).await {
            Err(error) if is_cut(&error) => tokio::time::sleep(WAIT * (1 << cut)).await,
            told => return told,
        }
    }
    names.list_paginated(prefix, options).await
}

fn compiled(pattern: &str) -> Result<GlobMatcher, StorageError> {
    matcher(pattern).map_err(|why| StorageError::of_address(format!("no pattern of names: {why}")))
}

/// The part of a pattern in front of what stands for other letters.
fn fixed(pattern: &str) -> &str {
    &pattern[..pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(pattern.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_go_in_a_circle_are_found() {
        for (lead, circle) in [(0, 1), (1, 1), (0, 2), (3, 2), (5, 7), (100, 33)] {
            let mut pages = Pages::default();
            let token =
                |page: usize| if page < lead { page } else { lead + (page - lead) % circle };
            let told =
                (0..10 * (lead + circle)).position(|it| pages.go_on(Some(token(it).to_string())));
            assert!(told.is_some_and(|it| it >= lead + circle), "{lead} {circle}: {told:?}");
        }
        let mut pages = Pages::default();
        assert!((0..10_000).all(|it| !pages.go_on(Some(it.to_string()))));
        assert!(!pages.go_on(None) && pages.next.is_none());
    }
}
