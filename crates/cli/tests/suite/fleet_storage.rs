//! `tonnage fleet report` of what lies in object storage: S3, Google's and Azure's protocols, from a server on this machine
//! that fails as such servers do. `cargo xtask fleet` does the same with other people's servers.

#[path = "../../../fleet/tests/suite/server.rs"]
mod server;

use std::collections::BTreeSet;
use std::process::Output;

use serde_json::{Value, json};

use crate::support::{self, command, recording, text};
use server::{Fate, Request, Server};

/// Six ranks below `/bucket/runs`, and what does not belong to them.
fn storage() -> Server {
    let bytes = |name: &str| std::fs::read(recording(name)).unwrap();
    let (usual, other) = (bytes("mlp_seed.default.stacks"), bytes("mlp_seed.expandable"));
    let mut objects = vec![
        ("/bucket/runs/notes.txt".to_owned(), b"x".to_vec()),
        ("/bucket/runs/0/checkpoint.pt".to_owned(), b"x".to_vec()),
        ("/bucket/runs2/rank_9.pickle.zst".to_owned(), usual.clone()),
    ];
    for rank in 0..6 {
        let bytes = if rank == 4 { &other } else { &usual };
        objects.push((format!("/bucket/runs/{}/rank_{rank}.pickle.zst", rank / 3), bytes.clone()));
    }
    let objects: Vec<_> = objects.iter().map(|(name, it)| (name.as_str(), it.clone())).collect();
    let server = Server::new(&objects);
    // A thousand names would be one page.
    server.page(2);
    server
}

/// What says where storage is, and with which credentials.
fn variables(at: &str) -> [(&str, &str); 7] {
    [
        ("AWS_ENDPOINT_URL", at),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("STORAGE_EMULATOR_HOST", at),
        ("AZURE_STORAGE_ENDPOINT", at),
        ("AZURE_STORAGE_ACCOUNT", "account"),
        ("AZURE_STORAGE_KEY", "c2VjcmV0"),
    ]
}

/// The report, asked about storage at this server and nothing else.
fn asked(server: &Server, words: &[&str]) -> Output {
    asking(server, &[&["fleet", "report"], words].concat())
}

/// Any command, asked so.
fn asking(server: &Server, words: &[&str]) -> Output {
    let mut command = command();
    for (name, _) in std::env::vars() {
        if ["AWS_", "GOOGLE_", "AZURE_", "STORAGE_"].iter().any(|it| name.starts_with(it)) {
            command.env_remove(name);
        }
    }
    command.envs(variables(&server.address)).args(words).output().unwrap()
}

fn report(server: &Server, words: &[&str]) -> Value {
    support::json(&asked(server, &[words, &["--json"]].concat()))
}

fn files(server: &Server, source: &str) -> u64 {
    report(server, &[source])["files"].as_u64().unwrap()
}

#[test]
fn every_protocol_says_the_same_and_pages_of_names_are_put_together() {
    let server = storage();
    let from = |base: &str| {
        let told = asked(&server, &[&format!("{base}/runs"), "--json"]);
        assert_eq!(told.status.code(), Some(0), "{base}: {}", text(&told.stderr));
        text(&told.stdout).replace(base, "s3://bucket")
    };
    let s3 = from("s3://bucket");
    assert!(s3.contains("s3://bucket/runs/1/rank_4.pickle.zst"), "{s3}");
    assert_eq!(serde_json::from_str::<Value>(&s3).unwrap()["files"], 6);
    for base in ["gs://bucket", "az://bucket", "abfss://bucket"] {
        assert_eq!(from(base), s3, "{base}");
    }
    assert!(server.log().iter().any(|it| it.headers["authorization"].contains("AWS4-HMAC-SHA256")));
}

#[test]
fn sources_in_storage_are_objects_beginnings_of_names_and_patterns() {
    let server = storage();
    assert_eq!(files(&server, "s3://bucket/runs/0/rank_1.pickle.zst"), 1);
    assert_eq!(files(&server, "s3://bucket/runs/0/"), 3);
    assert_eq!(files(&server, "s3://bucket"), 7);
    assert_eq!(files(&server, "s3://bucket/runs/*/rank_[1-4].*"), 4);
    assert_eq!(files(&server, "s3://bucket/**/rank_*.zst"), 7);
    assert_eq!(files(&server, "s3://bucket/run{s,s2}/**/*.zst"), 7);
    // A pattern without `**` asks about the folders that match, and about none beside them.
    let before = server.log().len();
    assert_eq!(files(&server, "s3://bucket/runs/1/rank_*"), 3);
    let prefixes = |from: usize| -> Vec<String> {
        server.log()[from..].iter().filter_map(|it| it.query.get("prefix").cloned()).collect()
    };
    assert!(prefixes(before).iter().all(|it| it == "runs/1/rank_"), "{:?}", prefixes(before));
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list");
    std::fs::write(
        &list,
        "s3://bucket/runs/0/rank_0.pickle.zst\ns3://bucket/runs/0/rank_7.pickle\n",
    )
    .unwrap();
    let told = asked(&server, &[&format!("@{}", list.display()), "--json"]);
    assert_eq!(told.status.code(), Some(1), "{}", text(&told.stderr));
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(told["unreadable"][0]["why"], "there is no such object");
}

#[test]
fn no_command_is_printed_that_cannot_be_run() {
    let server = storage();
    let outliers = report(&server, &["s3://bucket/runs"])["outliers"].clone();
    assert!(outliers[0]["diff"].is_object(), "{outliers:#}");
    let page = asked(&server, &["s3://bucket/runs"]);
    let page = text(&page.stdout);
    assert!(page.contains("differ from their group") && !page.contains("tonnage diff"), "{page}");
}

#[test]
fn storage_that_fails_now_and_then_says_the_same() {
    let server = storage();
    let whole = report(&server, &["s3://bucket/runs"]);
    server.fates(|request, _| match request.number % 5 {
        1 => Fate::Refuse(503, "SlowDown"),
        3 => Fate::Break(if is_listing(request) { 99 } else { 4000 }),
        _ => Fate::Answer,
    });
    assert_eq!(report(&server, &["s3://bucket/runs"]), whole);
}

fn is_listing(request: &Request) -> bool {
    request.query.contains_key("list-type") || request.query.contains_key("comp")
}

#[test]
fn a_listing_that_breaks_is_asked_for_again() {
    let server = storage();
    for base in ["s3://bucket/runs", "gs://bucket/runs", "az://bucket/runs", "s3://bucket/runs/*/*"]
    {
        let whole = report(&server, &[base]);
        let before = server.log().len();
        // Each page of names breaks once.
        let mut broken = BTreeSet::new();
        server.fates(move |request, _| {
            match is_listing(request) && broken.insert(request.query.clone()) {
                true => Fate::Break(99),
                false => Fate::Answer,
            }
        });
        assert_eq!(report(&server, &[base]), whole, "{base}");
        let listings = server.log()[before..].iter().filter(|it| is_listing(it)).count();
        assert!(listings >= 8, "{base}: {listings}");
        server.fates(|_, _| Fate::Answer);
    }
    server.fates(|request, _| if is_listing(request) { Fate::Break(99) } else { Fate::Answer });
    let told = asked(&server, &["s3://bucket/runs/"]);
    let said = text(&told.stderr);
    assert_eq!((told.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("s3://bucket/runs/") && said.contains("broke the connection"), "{said}");
}

#[test]
fn one_bad_object_of_a_list_is_a_line_of_the_result() {
    let server = storage();
    server.fates(|request, _| match request.path.rsplit('/').next() {
        Some("rank_1.pickle.zst") => Fate::Refuse(400, "Bad"),
        Some("rank_2.pickle.zst") => Fate::Refuse(503, "SlowDown"),
        _ => Fate::Answer,
    });
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list");
    let told = |lines: &[String]| {
        std::fs::write(&list, lines.join("\n")).unwrap();
        asked(&server, &[&format!("@{}", list.display()), "--json"])
    };
    let ranks = |base: &str| -> Vec<_> {
        (0..3).map(|it| format!("{base}://bucket/runs/0/rank_{it}.pickle.zst")).collect()
    };
    let all: Vec<_> = ["s3", "gs", "az"].into_iter().flat_map(ranks).collect();
    let output = told(&all);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&result["files"], &result["read"]), (&json!(9), &json!(3)), "{result:#}");
    for (of, why) in result["unreadable"].as_array().unwrap().iter().zip([400, 503].iter().cycle())
    {
        assert!(of["why"].as_str().unwrap().contains(&format!("answered {why}")), "{of:#}");
    }
    // What is of the whole storage ends it.
    let output = told(&[all[0].clone(), "s3://nobucket/rank_9.pickle.zst".to_owned()]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(text(&output.stderr).contains("no such bucket"), "{}", text(&output.stderr));
}

#[test]
fn an_object_that_goes_by_two_schemes_counts_once() {
    let server = storage();
    let name = "bucket/runs/0/rank_0.pickle.zst";
    let both = |schemes: [&str; 2]| {
        let sources = schemes.map(|it| format!("{it}://{name}"));
        report(&server, &[&sources[0], &sources[1], &format!("{}://bucket/runs", schemes[1])])
    };
    for schemes in [["s3a", "s3"], ["azure", "az"], ["az", "abfs"], ["abfs", "abfss"]] {
        let told = both(schemes);
        assert_eq!(told["files"], 6, "{schemes:?}: {told:#}");
    }
    assert_eq!(both(["s3", "gs"])["files"], 7);
}

#[test]
fn what_fails_is_told_alike_to_whoever_asks() {
    let server = storage();
    let name = "s3://bucket/runs/0/rank_0.pickle.zst";
    // The answer to what is asked first has no words; a worker of Ray does not ask it.
    for (status, word, expected) in [
        (503, "SlowDown", "answered 503 Service Unavailable"),
        (429, "TooMany", "answered 429 Too Many Requests"),
        (409, "Restoring", "answered 409 Conflict (Restoring)"),
        (400, "az login", "answered 400 Bad Request"),
    ] {
        server.fates(move |request, _| match request.path.ends_with("rank_0.pickle.zst") {
            true => Fate::Refuse(status, word),
            false => Fate::Answer,
        });
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("list");
        std::fs::write(&list, format!("{name}\ns3://bucket/runs/0/rank_1.pickle.zst")).unwrap();
        let told = asked(&server, &[&format!("@{}", list.display()), "--json"]);
        assert_eq!(told.status.code(), Some(1), "{status}: {}", text(&told.stderr));
        let told: Value = serde_json::from_slice(&told.stdout).unwrap();
        let here = told["unreadable"][0]["why"].as_str().unwrap();
        let words = ["fleet", "look", name, "--address", name, "--version-of", ""];
        let there = asking(&server, &words);
        let there: Value = serde_json::from_slice(&there.stdout).unwrap();
        assert_eq!(there["seen"]["unreadable"], here, "{status}");
        assert!(here.ends_with(expected), "{here}");
    }
}

#[test]
fn a_storage_that_goes_away_ends_the_run_and_the_same_command_goes_on() {
    let server = storage();
    let outs = tempfile::tempdir().unwrap();
    let out = outs.path().join("ranks");
    let words = ["s3://bucket/runs", "--out", out.to_str().unwrap(), "--jobs", "1"];
    let whole = report(&server, &words[..1]);
    // Credentials that expire behind the first file; before it the folder is asked for as an object.
    let mut read = 0;
    server.fates(move |request, _| {
        read += usize::from(!is_listing(request));
        if read > 2 { Fate::Refuse(400, "ExpiredToken") } else { Fate::Answer }
    });
    let before = server.log().len();
    let told = asked(&server, &words);
    let said = text(&told.stderr);
    assert_eq!(
        (told.status.code(), told.stdout.len(), said.lines().count()),
        (Some(2), 0, 1),
        "{said}"
    );
    assert!(said.contains("s3://bucket: ") && said.contains("(ExpiredToken)"), "{said}");
    let kept = "4 of 6 files were looked at by then; what is done is kept, the same command goes on from there";
    assert!(said.contains(kept), "{said}");
    assert_eq!(server.log()[before..].iter().filter(|it| !is_listing(it)).count(), 5);
    server.fates(|_, _| Fate::Answer);
    assert_eq!(report(&server, &words), whole);
    // Of a single one nobody knows whether it is of all.
    server.fates(|request, _| match &*request.path {
        "/bucket/runs/0/rank_1.pickle.zst" => Fate::Refuse(400, "ExpiredToken"),
        _ => Fate::Answer,
    });
    let told = asked(&server, &words[..1]);
    assert_eq!(told.status.code(), Some(1), "{}", text(&told.stderr));
}

#[test]
fn ctrl_c_while_names_are_listed_is_no_error() {
    let server = storage();
    let outs = tempfile::tempdir().unwrap();
    let out = outs.path().join("ranks");
    for verb in ["report", "view"] {
        let before = server.log().len();
        server.fates(|_, _| Fate::Refuse(503, "SlowDown"));
        let mut command = std::process::Command::new(command().get_program());
        let child = command
            .args(["fleet", verb, "s3://bucket/runs", "--out"])
            .arg(&out)
            .envs(variables(&server.address))
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // By then Ctrl-C is the command's own.
        support::wait_until("names are asked for", || server.log().len() > before);
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let ended = child.wait_with_output().unwrap();
        let said = text(&ended.stderr);
        assert_eq!((ended.status.code(), ended.stdout.len()), (Some(130), 0), "{verb}: {said}");
        assert_eq!(said, "note: stopped: nothing was looked at yet\n", "{verb}");
    }
}

#[test]
fn a_dataset_knows_objects_by_their_etag() {
    let server = storage();
    let outs = tempfile::tempdir().unwrap();
    let out = outs.path().join("ranks");
    let words = ["s3://bucket/runs", "--out", out.to_str().unwrap()];
    let told = report(&server, &words);
    let gets = |from: usize| -> Vec<String> {
        let log = server.log();
        let gets = log[from..].iter().filter(|it| it.method == "GET" && it.query.is_empty());
        gets.map(|it| it.path.clone()).collect()
    };
    let before = server.log().len();
    server.fates(|_, objects| {
        if let Some(object) = objects.get_mut("/bucket/runs/0/rank_2.pickle.zst") {
            object.1 = "\"v2\"".to_owned();
        }
        Fate::Answer
    });
    assert_eq!(report(&server, &words)["groups"], told["groups"]);
    let again = gets(before);
    // It is read for its row; what differs is compared with the middle of its group besides.
    assert!(again.iter().any(|it| it.ends_with("rank_2.pickle.zst")), "{again:?}");
    let compared = ["rank_2.pickle.zst", "rank_4.pickle.zst"];
    let middle = told["groups"][0]["middle"]["file"].as_str().unwrap();
    let expected = |it: &String| {
        compared.iter().any(|name| it.ends_with(name)) || middle.ends_with(it.as_str())
    };
    assert!(again.iter().all(expected), "{again:?}");
}

#[test]
fn what_is_wrong_names_the_address_and_what_to_do() {
    let server = storage();
    let told = |source: &str| {
        let output = asked(&server, &[source]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{source}");
        let said = text(&output.stderr).to_owned();
        assert!(said.contains(source), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    assert!(told("s3://bucket/gone").contains("there is no such object"));
    assert!(told("s3://bucket/runs/*.npz").contains("no object matches"));
    assert!(told("s3://nobucket/runs").contains("there is no such bucket"));
    assert!(told("s3://bucket//runs").contains("cannot be read"));
    assert!(told("s3://").contains("names no bucket"));
    assert!(told("s3://bucket/runs/[").contains("no pattern of names"));
    server.fates(|_, _| Fate::Refuse(403, "AccessDenied"));
    let refused = told("s3://bucket/runs");
    assert!(
        refused.contains("refused (AccessDenied)") && refused.contains("s3:ListBucket"),
        "{refused}"
    );
    assert!(told("az://bucket/runs").contains("Storage Blob Data Reader"));
}

#[test]
fn a_listing_that_never_ends_does() {
    let server = storage();
    // The same page again and again.
    server.fates(|request, _| {
        let again = request.query.contains_key("list-type");
        let body =
            "<ListBucketResult><NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
        if again { Fate::Say(body.to_owned()) } else { Fate::Answer }
    });
    let output = asked(&server, &["s3://bucket/runs/"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("does not end"), "{}", text(&output.stderr));
    // Two pages in turn, each with a name: no page is empty, and none follows itself.
    server.fates(|request, _| {
        let (name, next) = match request.query.get("continuation-token").map(String::as_str) {
            Some("t") => ("a", "u"),
            _ => ("b", "t"),
        };
        let again = request.query.contains_key("list-type");
        let body = format!(
            "<ListBucketResult><Contents><Key>runs/{name}.pickle</Key><Size>1</Size><ETag>x</ETag>\
             <LastModified>2026-11-17T10:00:00.000Z</LastModified></Contents>\
             <NextContinuationToken>{next}</NextContinuationToken></ListBucketResult>"
        );
        if again && request.number < 5_000 { Fate::Say(body) } else { Fate::Refuse(403, "Enough") }
    });
    let output = asked(&server, &["s3://bucket/runs/"]);
    assert!(text(&output.stderr).contains("does not end"), "{}", text(&output.stderr));
}

#[test]
fn an_endpoint_that_is_not_there_is_named() {
    let mut command = command();
    // A port that nobody listens on: it was given back.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let at = format!("http://127.0.0.1:{port}");
    let output = command
        .envs([
            ("AWS_ENDPOINT_URL", at.as_str()),
            ("AWS_ACCESS_KEY_ID", "k"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
        ])
        .args(["fleet", "report", "s3://bucket/runs"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(
        said.contains(&at)
            && said.contains("cannot be reached")
            && said.contains("AWS_ENDPOINT_URL"),
        "{said}"
    );
}

#[test]
fn http_is_spoken_to_this_machine_alone() {
    // No name is looked up, and nobody asked.
    let output = command()
        .envs([
            ("AWS_ENDPOINT_URL", "http://storage.invalid"),
            ("AWS_ACCESS_KEY_ID", "k"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
        ])
        .args(["fleet", "report", "s3://bucket/runs"])
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("AWS_ALLOW_HTTP=true"), "{said}");
}
