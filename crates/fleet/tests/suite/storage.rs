//! Files on a server: read from the first byte to the last, whatever happens on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tonnage_fleet::{Found, LookOptions, Row, Seen, find, look};
use tonnage_replay::Until;

use crate::server::{Fate, Server};

fn pickle() -> Vec<u8> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/traces/mlp_seed.default.stacks.pickle.zst"
    );
    std::fs::read(path).unwrap()
}

/// A snapshot that is not packed: several pieces.
fn large() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.pickle");
    tonnage_snapshot::save(&path, &crate::planted::recording()).unwrap();
    std::fs::read(path).unwrap()
}

fn seen(file: &Found) -> Row {
    look(file, &LookOptions::default(), &Until::default()).unwrap()
}

fn why(row: &Row) -> &str {
    match &row.seen {
        Seen::Unreadable(why) => why,
        Seen::Facts(_) => "",
    }
}

#[test]
fn a_file_on_a_server_gives_the_row_of_the_same_file_here() {
    let (bytes, folder) = (pickle(), tempfile::tempdir().unwrap());
    let path = folder.path().join("rank_3.pickle.zst");
    std::fs::write(&path, &bytes).unwrap();
    let server = Server::new(&[("/runs/rank_3.pickle.zst", bytes.clone())]);
    let address = format!("{}/runs/rank_3.pickle.zst?sig=secret", server.address);
    let files = find(&[&address]).unwrap();
    assert_eq!(files[0].address, address.replace("?sig=secret", ""));
    assert_eq!((files[0].size, &*files[0].version), (Some(bytes.len() as u64), "v1"));
    let (there, here) = (seen(&files[0]), seen(&find(&[path.to_str().unwrap()]).unwrap()[0]));
    assert_eq!((&there.seen, there.place), (&here.seen, here.place), "{}", why(&there));
    assert!(there.facts().is_some());
    assert!(server.log().iter().all(|it| it.query["sig"] == "secret"));
}

#[test]
fn addresses_that_differ_in_what_is_not_shown_are_told_apart_or_refused() {
    let server = Server::new(&[("/get", pickle())]);
    let at = |query: &str| format!("{}/get{query}", server.address);
    let files = |queries: &[&str]| {
        let sources: Vec<_> = queries.iter().map(|it| at(it)).collect();
        find(&sources).map(|it| it.into_iter().map(|it| it.address).collect::<Vec<_>>())
    };
    let ranks = files(&["?rank=0&sig=a", "?rank=1&sig=b", "?rank=1&sig=b"]).unwrap();
    assert_eq!(ranks, [at("?rank=0"), at("?rank=1")]);
    let refused = files(&["?code=hidden0", "?code=hidden1"]).unwrap_err().to_string();
    assert!(refused.contains("#rank_3") && refused.starts_with(&at("")), "{refused}");
    assert!(!refused.contains("hidden"), "{refused}");
    let ranks = files(&["?code=hidden0#rank_0", "?code=hidden1#rank_1"]).unwrap();
    assert_eq!(ranks, [at("#rank_0"), at("#rank_1")]);
    assert!(server.log().iter().all(|it| it.path == "/get"));
}

#[test]
fn a_connection_that_breaks_is_made_again_where_it_broke() {
    let bytes = large();
    let server = Server::new(&[("/r0.pickle", bytes.clone())]);
    // Each answer is a part of what is left, and every third time there is none.
    let most = bytes.len() / 5;
    server.fates(move |request, _| match request.number % 3 {
        _ if request.method == "HEAD" => Fate::Answer,
        2 => Fate::Refuse(503, "SlowDown"),
        _ => Fate::Break(most),
    });
    let file = find(&[format!("{}/r0.pickle", server.address)]).unwrap().remove(0);
    let row = seen(&file);
    assert!(row.facts().is_some(), "{}", why(&row));
    let log = server.log();
    let again: Vec<_> = log.iter().filter_map(|it| it.headers.get("range")).collect();
    assert!(again.len() >= 4, "{again:?}");
    assert_eq!(again[0], &format!("bytes={most}-{}", bytes.len() - 1));
    let mut whole = Vec::new();
    file.open().unwrap().read_to_end(&mut whole).unwrap();
    assert!(whole == bytes);
}

#[test]
fn two_versions_are_never_mixed() {
    let (first, second) = (large(), pickle());
    let server = Server::new(&[("/r0.pickle", first.clone())]);
    let file = find(&[format!("{}/r0.pickle", server.address)]).unwrap().remove(0);
    let broken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&broken);
    let (cut, wanted) = (first.len() / 2, second.clone());
    // The first connection breaks, and then there is another object of the same name.
    server.fates(move |request, objects| {
        if request.method == "HEAD" || count.fetch_add(1, Ordering::SeqCst) > 0 {
            if let Some(object) = objects.get_mut("/r0.pickle") {
                *object = (wanted.clone(), "\"v2\"".to_owned());
            }
            return Fate::Answer;
        }
        Fate::Break(cut)
    });
    let row = seen(&file);
    assert!(row.facts().is_some(), "{}", why(&row));
    // The row says what was read, not what was listed.
    assert_eq!((&*file.version, &*row.version), ("v1", "v2"));
    assert_eq!(row.size, Some(second.len() as u64));
    let asked: Vec<_> = server.log();
    let ranges: Vec<_> = asked.iter().filter(|it| it.headers.contains_key("range")).collect();
    assert!(!ranges.is_empty());
}

#[test]
fn a_server_without_versions_is_begun_again_and_not_for_ever() {
    let bytes = large();
    let server = Server::new(&[("/r0.pickle", bytes.clone())]);
    server.plain();
    let file = find(&[format!("{}/r0.pickle", server.address)]).unwrap().remove(0);
    assert_eq!((file.size, &*file.version), (Some(bytes.len() as u64), ""));
    let cut = bytes.len() / 2;
    let before = server.log().len();
    server.fates(
        move |request, _| if request.number == before { Fate::Break(cut) } else { Fate::Answer },
    );
    assert!(seen(&file).facts().is_some());
    server.fates(move |_, _| Fate::Break(cut));
    let row = seen(&file);
    assert!(why(&row).contains("names no version (ETag) to go on with"), "{}", why(&row));
}

#[test]
fn a_weak_version_is_none_to_go_on_with() {
    let bytes = large();
    let server = Server::new(&[("/r0.pickle", bytes.clone())]);
    server.fates(|_, objects| {
        objects.values_mut().for_each(|it| it.1 = "W/\"v1\"".to_owned());
        Fate::Answer
    });
    let file = find(&[format!("{}/r0.pickle", server.address)]).unwrap().remove(0);
    assert!(seen(&file).facts().is_some());
    // What `object_store` asks for, of any version, is refused; then it is asked for this one.
    server.fates(move |request, _| match request.headers.get("range") {
        None => Fate::Break(bytes.len() / 2),
        Some(_) if request.headers.contains_key("if-match") => Fate::Answer,
        Some(_) => Fate::Refuse(400, "Bad"),
    });
    let row = seen(&file);
    assert!(why(&row).contains("names no version (ETag) to go on with"), "{}", why(&row));
}

#[test]
fn words_of_a_strangers_page_are_no_trouble_of_ours() {
    let server = Server::new(&[("/r0.pickle", pickle())]);
    let words = ["az login", "MissingAccount", "http://169.254.169.254/latest/api/token"];
    for (status, told) in [(404, "no such file (404)"), (400, "answered 400"), (403, "refused")] {
        for word in words {
            server.fates(move |request, _| match &*request.path {
                "/r0.pickle" => Fate::Answer,
                _ => Fate::Refuse(status, word),
            });
            // A name that has such words is one.
            let address = format!("{}/latest/api/token/Azure CLI.pickle", server.address);
            let folder = tempfile::tempdir().unwrap();
            let list = folder.path().join("list");
            std::fs::write(&list, format!("{address}\n{}/r0.pickle\n", server.address)).unwrap();
            let rows: Vec<_> =
                find(&[format!("@{}", list.display())]).unwrap().iter().map(seen).collect();
            assert!(why(&rows[0]).contains(told), "{word}: {}", why(&rows[0]));
            assert!(rows[1].facts().is_some());
        }
    }
}

#[test]
fn whoever_stops_while_names_are_asked_for_is_told_which() {
    let server = Server::new(&[]);
    server.fates(|_, _| Fate::Refuse(503, "SlowDown"));
    let (until, stop) = Until::told();
    stop.now();
    let address = format!("{}/r0.pickle?sig=secret", server.address);
    let told = tonnage_fleet::find_until(&[&address], &until).unwrap_err().to_string();
    assert_eq!(told, address.replace("?sig=secret", ": it was stopped"));
}

#[test]
fn what_is_wrong_is_told_with_the_address_and_what_to_do() {
    let server = Server::new(&[("/r0.pickle", pickle())]);
    let at = |name: &str| format!("{}/{name}", server.address);
    let told = |source: &str| find(&[source]).unwrap_err().to_string();
    let absent = told(&at("gone.pickle"));
    assert!(
        absent.starts_with(&at("gone.pickle")) && absent.contains("no such file (404)"),
        "{absent}"
    );
    server.fates(|_, _| Fate::Refuse(403, "AccessDenied"));
    let refused = told(&at("r0.pickle"));
    assert!(refused.contains("access is refused"), "{refused}");
    // A redirect that never ends.
    let to = at("r0.pickle");
    server.fates(move |_, _| Fate::Redirect(to.clone()));
    let loops = told(&at("r0.pickle"));
    assert!(loops.contains("redirect"), "{loops}");
    assert!(server.log().len() < 200, "{}", server.log().len());
    // Of a list, what is not there is a line of the result.
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list");
    server.fates(|_, _| Fate::Answer);
    std::fs::write(&list, format!("{}\n{}\n", at("gone.pickle"), at("r0.pickle"))).unwrap();
    let files = find(&[format!("@{}", list.display())]).unwrap();
    let rows: Vec<_> = files.iter().map(seen).collect();
    assert_eq!(rows.len(), 2);
    assert!(why(&rows[0]).contains("no such file") && rows[1].facts().is_some());
}

#[test]
fn one_bad_line_of_a_list_is_a_line_of_the_result() {
    let server = Server::new(&[("/r0.pickle", pickle()), ("/r1.pickle", pickle())]);
    server.fates(|request, _| match &*request.path {
        "/gone.pickle" => Fate::Refuse(410, "Gone"),
        "/bad.pickle" => Fate::Refuse(400, "Bad"),
        "/down.pickle" => Fate::Refuse(503, "SlowDown"),
        _ => Fate::Answer,
    });
    // A port that nobody listens on: it was given back.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let own = |name: &str| format!("{}/{name}", server.address);
    let closed: Vec<_> =
        (0..40).map(|it| format!("http://127.0.0.1:{port}/r{it}.pickle")).collect();
    let wrong = [
        (own("bad.pickle"), "answered 400"),
        (own("down.pickle"), "answered 503"),
        (own("gone.pickle"), "answered 410"),
        ("http:///r0.pickle".to_owned(), "names no server"),
        ("s3://".to_owned(), "names no bucket"),
        ("s3://b//x".to_owned(), "empty part"),
    ];
    let mut lines: Vec<_> = wrong.iter().map(|it| it.0.clone()).chain(closed.clone()).collect();
    lines.extend([own("r0.pickle"), own("r1.pickle")]);
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list");
    std::fs::write(&list, lines.join("\n")).unwrap();
    let files = find(&[format!("@{}", list.display())]).unwrap();
    assert_eq!(files.len(), lines.len());
    let began = std::time::Instant::now();
    for file in &files {
        let row = seen(file);
        let expected = wrong.iter().find(|it| it.0 == file.address).map(|it| it.1);
        let expected = expected.or(closed.contains(&file.address).then_some("cannot be reached"));
        match expected {
            Some(why_not) => {
                assert!(why(&row).contains(why_not), "{}: {}", file.address, why(&row))
            }
            None => assert!(row.facts().is_some(), "{}: {}", file.address, why(&row)),
        }
    }
    // Nobody waits for them once more.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn whoever_stops_does_not_wait_for_a_server() {
    let bytes = large();
    let server = Server::new(&[("/r0.pickle", bytes)]);
    let file = find(&[format!("{}/r0.pickle", server.address)]).unwrap().remove(0);
    let (until, stop) = Until::told();
    let asked = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&asked);
    server.fates(move |_, _| {
        told.fetch_add(1, Ordering::SeqCst);
        Fate::Refuse(503, "SlowDown")
    });
    let looking = std::thread::spawn(move || look(&file, &LookOptions::default(), &until));
    while asked.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    stop.now();
    assert!(looking.join().unwrap().is_none());
}
