//! A fleet behind the page: its figures, and its ranks, which are opened by their numbers and by nothing else.

use std::fs::File;
use std::time::SystemTime;

use serde_json::Value;
use tonnage_view::{FleetPage, ViewOptions};

use crate::fleets::{facts, of, planted, row, seen};
use crate::support::{Answer, Columns, Page, trace};

fn shown(fleet: FleetPage) -> Page {
    let page = Page::with(ViewOptions::default());
    page.recordings.show_fleet(fleet);
    page
}

fn open(page: &Page, number: usize) -> Answer {
    page.post(&format!("api/fleet/open/{number}"), "{}")
}

fn columns(page: &Page) -> Columns {
    let answer = page.get("api/fleet");
    assert_eq!(answer.status, 200, "{}", answer.text());
    Columns::read(&answer.body)
}

#[test]
fn columns_are_the_facts_of_the_rows() {
    let folder = planted();
    let fleet = seen(folder.path());
    let page = shown(fleet.clone());
    assert_eq!(page.start()["fleet"], true);
    assert_eq!(page.start()["recordings"], Value::from(Vec::<Value>::new()));
    let columns = columns(&page);
    let files = columns.head["files"].as_array().unwrap();
    assert_eq!(files.len(), fleet.rows.len());
    let starts = columns.get("starts");
    let (live, reserved) = (columns.get("steps.live"), columns.get("steps.reserved"));
    let mut levels = 0;
    for (number, row) in fleet.rows.iter().enumerate() {
        assert_eq!(files[number]["address"], *row.address);
        assert_eq!(files[number]["rank"].as_u64(), row.place.rank);
        assert_eq!(files[number]["pp"].as_u64(), row.place.pp);
        assert_eq!(files[number]["error"].as_str(), row.why());
        let Some(facts) = row.facts() else {
            assert!(
                columns.get("live")[number].is_nan() && columns.get("reserved")[number].is_nan()
            );
            assert_eq!(
                (starts[number], files[number]["group"].as_u64()),
                (starts[number + 1], None)
            );
            continue;
        };
        assert_eq!(columns.get("live")[number], facts.live as f64);
        assert_eq!(columns.get("reserved")[number], facts.reserved as f64);
        assert_eq!(columns.get("iterations")[number], facts.growth.iterations as f64);
        let own = starts[number] as usize..starts[number + 1] as usize;
        assert_eq!(own.len(), facts.iterations.len());
        levels += own.len();
        for (at, iteration) in own.zip(&facts.iterations) {
            assert_eq!(columns.get("steps.number")[at], iteration.number as f64);
            assert_eq!(
                (live[at], reserved[at]),
                (iteration.live as f64, iteration.reserved as f64)
            );
        }
    }
    assert!(levels > 12, "{levels}");
    // What they say is what the command says.
    assert_eq!(columns.head["text"], *fleet.answer.text);
    let ranks = |list: &str| -> Vec<u64> {
        let numbers = columns.head[list].as_array().unwrap();
        numbers
            .iter()
            .map(|it| files[it.as_u64().unwrap() as usize]["rank"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(ranks("failed"), [7]);
    let mut outliers = ranks("outliers");
    outliers.sort_unstable();
    assert_eq!(outliers, [3, 5, 9]);
    assert_eq!(columns.head["limit"].as_u64(), fleet.answer.near.as_ref().map(|it| it.limit));
    let kinds: Vec<_> =
        columns.head["sections"].as_array().unwrap().iter().map(|it| it["kind"].clone()).collect();
    assert_eq!(kinds, ["failed", "near", "outliers", "groups", "growing", "unreadable"]);
    // Every rank of a group is in it.
    for (number, group) in fleet.answer.groups.iter().enumerate() {
        let of = files.iter().filter(|it| it["group"].as_u64() == Some(number as u64)).count();
        let strays = fleet.answer.outliers.iter().filter(|it| it.stray && it.group == number);
        assert_eq!(of, group.files + strays.count());
    }
}

#[test]
fn a_rank_is_opened_by_its_number_as_the_recording_that_it_is() {
    let folder = planted();
    let fleet = seen(folder.path());
    let page = shown(fleet.clone());
    let (number, file) = row(&fleet, 3);
    let info = open(&page, number).json();
    assert_eq!((&info["name"], &info["row"]), (&Value::from(&*file.address), &number.into()));
    let peak = page.timeline(info["id"].as_u64().unwrap()).head["peak"].clone();
    assert_eq!(peak["reserved"], facts(&fleet, 3).reserved);
    // It is open: once more it is the same.
    assert_eq!(open(&page, number).json(), info);
    assert_eq!(page.start()["recordings"].as_array().unwrap().len(), 1);
    // Of many the last are kept; one that went is read again.
    for rank in [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11] {
        open(&page, row(&fleet, rank).0).json();
    }
    let (_, other) = trace("mlp_seed.default");
    let mut bytes = Vec::new();
    tonnage_snapshot::write(&mut bytes, &other).unwrap();
    for name in 0..8 {
        page.drop_file(&name.to_string(), &bytes, "application/octet-stream").json();
    }
    let ids = |page: &Page| -> Vec<u64> {
        let all = page.start()["recordings"].as_array().unwrap().clone();
        all.iter().map(|it| it["id"].as_u64().unwrap()).collect()
    };
    assert_eq!(ids(&page).len(), 16);
    let again = open(&page, number).json();
    assert_ne!(again["id"], info["id"]);
    assert!(ids(&page).contains(&again["id"].as_u64().unwrap()));
}

/// The page names a what-if by its question and by what it was made of, which may have to be opened again.
#[test]
fn a_what_if_of_a_rank_tells_the_rank() {
    let folder = planted();
    let fleet = seen(folder.path());
    let page = shown(fleet.clone());
    let (number, _) = row(&fleet, 3);
    let id = open(&page, number).json()["id"].clone();
    let asked = r#"{"conf": "expandable_segments:True", "policy": "pytorch", "limit": null}"#;
    let made = page.post(&format!("api/recordings/{id}/what-if"), asked).json();
    assert_eq!(
        (&made["recording"]["of"], &made["recording"]["row"]),
        (&id, &Value::from(number)),
        "{made}"
    );
}

#[test]
fn only_files_of_the_fleet_can_be_opened_and_only_by_the_page() {
    let folder = planted();
    let fleet = seen(folder.path());
    let page = shown(fleet.clone());
    let missing = open(&page, fleet.rows.len());
    assert_eq!(missing.status, 404);
    assert!(missing.text().contains("there is no file 13, but 13"), "{}", missing.text());
    for number in
        ["-1", "1.5", "x", "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "99999999999999999999"]
    {
        let status = page.post(&format!("api/fleet/open/{number}"), "{}").status;
        assert_eq!(status, 400, "{number}");
    }
    // As a form of another site would ask.
    let asked = page.post_with("api/fleet/open/0", "{}", "Content-Type: text/plain\r\n");
    assert_eq!(asked.status, 415);
    let Page { port, .. } = page;
    for path in ["0123456789abcdef0123456789abcdef/api/fleet", "api/fleet"] {
        let request =
            format!("GET /{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
        assert_eq!(page.send(&request).status, 403, "{path}");
    }
    assert_eq!(page.start()["recordings"].as_array().unwrap().len(), 0);
    // Where there is no fleet, there is nothing to open.
    let without = Page::of([trace("mlp_seed.default")]);
    assert_eq!((without.start()["fleet"].clone(), open(&without, 0).status), (false.into(), 404));
    assert!(without.get("api/fleet").text().contains("tonnage fleet view"));
}

#[test]
fn a_file_that_is_gone_or_another_one_or_none_is_refused_in_words() {
    let folder = planted();
    let fleet = seen(folder.path());
    let page = shown(fleet.clone());
    let refused = |rank: u64| {
        let (number, file) = row(&fleet, rank);
        let answer = open(&page, number);
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().starts_with(&*file.address), "{}", answer.text());
        answer.text()
    };
    let path = |rank: u64| &row(&fleet, rank).1.address;
    std::fs::remove_file(path(0)).unwrap();
    assert!(refused(0).contains("cannot open it: No such file"), "{}", refused(0));
    std::fs::copy(path(2), path(1)).unwrap();
    assert!(refused(1).contains("it has changed since it was looked at"), "{}", refused(1));
    let touched = File::options().write(true).open(path(4)).unwrap();
    touched.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert!(refused(4).contains("it has changed"), "{}", refused(4));
    std::fs::remove_file(path(6)).unwrap();
    std::fs::create_dir(path(6)).unwrap();
    assert!(refused(6).contains("this is no file any more"), "{}", refused(6));
    // What could not be read then is not tried.
    assert!(refused(12).contains(row(&fleet, 12).1.why().unwrap()), "{}", refused(12));
    assert_eq!(open(&page, row(&fleet, 2).0).status, 200);
}

#[test]
fn a_rank_that_shares_a_run_opens_the_file_of_that_run() {
    let folder = planted();
    let mut fleet = seen(folder.path());
    let (shared, address) = (row(&fleet, 2).0, row(&fleet, 2).1.address.clone());
    let (other, lost, circle) = (row(&fleet, 8).0, row(&fleet, 9).0, row(&fleet, 10).0);
    fleet.rows[other].same_as = Some(address);
    fleet.rows[lost].same_as = Some("no row of it".to_owned());
    fleet.rows[circle].same_as = Some(fleet.rows[circle].address.clone());
    let fleet = of(fleet.rows.clone(), fleet);
    let page = shown(fleet);
    let files = columns(&page).head["files"].clone();
    assert_eq!((&files[other]["shares"], &files[lost]["shares"]), (&shared.into(), &Value::Null));
    let info = open(&page, other).json();
    assert_eq!(info["row"], shared);
    assert_eq!(open(&page, shared).json(), info);
    for number in [lost, circle] {
        let refused = open(&page, number);
        assert_eq!(refused.status, 400);
        assert!(refused.text().contains("is not among these files"), "{}", refused.text());
    }
}
