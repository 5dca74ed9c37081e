//! Every planted difference is named, whatever the order in which files are done.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use tonnage_analysis::report::Layout;
use tonnage_fleet::{
    Answer, AnswerOptions, Card, Crew, Found, LookOptions, NamePattern, Part, Row, Seen,
    compare_outliers, find, look,
};
use tonnage_replay::Until;
use tonnage_snapshot::SnapshotFile;

use crate::maker::{Making, Plant, make};

pub(crate) fn recording() -> SnapshotFile {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/traces/mlp_seed.default.stacks.pickle.zst"
    );
    tonnage_snapshot::open(Path::new(path)).unwrap()
}

/// Ranks of two stages, the first of which has an embedding, in a folder; these have something special.
pub(crate) fn fleet(ranks: u64, plants: &[(u64, Plant)]) -> tempfile::TempDir {
    let (base, folder) = (recording(), tempfile::tempdir().unwrap());
    for rank in 0..ranks {
        let plant = plants.iter().find(|it| it.0 == rank).map_or(Plant::Nothing, |it| it.1);
        let pp = u64::from(rank >= ranks / 2);
        let embedding = (1 - pp) * (64 << 20);
        let making = Making { seed: rank, varied: 0.01, shorter: 0.1, embedding, conf: "", plant };
        let path = folder.path().join(format!("pp{pp}_rank_{rank:03}.pickle.zst"));
        tonnage_snapshot::save(&path, &make(&base, &making)).unwrap();
    }
    folder
}

pub(crate) fn source(folder: &Path) -> [String; 1] {
    [folder.to_str().unwrap().to_owned()]
}

pub(crate) fn asked() -> AnswerOptions {
    let card = |name: &str, mib: u64| Card { name: name.to_owned(), room: mib << 20 };
    let cards = vec![card("small", 256), card("large", 4096)];
    AnswerOptions { limit: None, cards, names: NamePattern::usual(), unfinished: false }
}

pub(crate) fn rows(folder: &Path, workers: usize) -> Vec<Row> {
    let files = find(&source(folder)).unwrap();
    let crew = Crew { workers: NonZeroUsize::new(workers).unwrap(), memory: None };
    let done = |_: usize, _: &Row| Ok::<(), ()>(());
    let looked = crew.look_at(&files, &LookOptions::default(), &Until::default(), done);
    looked.unwrap().unwrap()
}

#[test]
fn threads_that_cannot_be_started_are_done_without() {
    let name = "TONNAGE_TEST_WITHOUT_THREADS";
    if let Ok(folder) = std::env::var(name) {
        let rows = rows(Path::new(&folder), 9);
        assert!(rows.len() == 3 && rows.iter().all(|it| it.facts().is_some()));
        return;
    }
    let folder = fleet(3, &[]);
    // No address space has room for such stacks.
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "planted::threads_that_cannot_be_started_are_done_without",
            "--exact",
            "--test-threads=1",
        ])
        .env("RUST_MIN_STACK", (1_u64 << 45).to_string())
        .env(name, folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn whoever_stops_waits_for_no_comparison() {
    let folder = fleet(6, &[(4, Plant::Buffer(40 << 20))]);
    let (mut answer, files) =
        (Answer::of(&rows(folder.path(), 2), &asked()), find(&source(folder.path())).unwrap());
    let (until, stop) = Until::told();
    stop.now();
    compare_outliers(&mut answer, &files, &LookOptions::default(), &until);
    assert!(answer.outliers[0].diff.is_none());
    compare_outliers(&mut answer, &files, &LookOptions::default(), &Until::default());
    assert!(answer.outliers[0].diff.is_some());
}

fn answer(folder: &Path, workers: usize) -> Answer {
    let mut answer = Answer::of(&rows(folder, workers), &asked());
    compare_outliers(
        &mut answer,
        &find(&source(folder)).unwrap(),
        &LookOptions::default(),
        &Until::default(),
    );
    answer
}

const PLANTS: [(u64, Plant); 4] = [
    (3, Plant::Buffer(40 << 20)),
    (7, Plant::Leak(12 << 20, 5)),
    (20, Plant::Settings("expandable_segments:True")),
    (30, Plant::Fails(300 << 20, 200 << 20)),
];

fn text(answer: &Answer) -> String {
    answer.to_text_in(Layout::default())
}

#[test]
fn every_planted_difference_is_named_and_nothing_else() {
    let folder = fleet(40, &PLANTS);
    let answer = answer(folder.path(), 2);
    let page = text(&answer);
    let ranks: Vec<_> = answer.groups.iter().map(|it| it.ranks.as_str()).collect();
    assert_eq!(answer.groups.len(), 2, "{page}");
    assert_eq!(ranks, ["20-39", "0-6, 8-19"], "{page}");
    let common: Vec<_> = answer.groups.iter().map(|it| it.common.clone()).collect();
    let pp = |value| vec![Part { part: "pp", value }];
    assert_eq!(common, [pp(1), pp(0)], "{page}");
    let middles: Vec<_> = answer.groups.iter().map(|it| it.middle.place.rank.unwrap()).collect();
    assert!(!PLANTS.iter().any(|it| middles.contains(&it.0)), "{page}");
    let apart = &answer.groups[1].differs[0];
    assert!(apart.name.ends_with("embedding.py:11"), "{page}");
    let mut named: Vec<_> = answer.outliers.iter().map(|it| it.whose.place.rank.unwrap()).collect();
    named.sort_unstable();
    assert_eq!(named, [3, 7, 20], "{page}");
    let of = |rank| answer.outliers.iter().find(|it| it.whose.place.rank == Some(rank)).unwrap();
    let says = |rank: u64, kind: &str, name: &str| {
        of(rank).differs.iter().any(|it| it.kind == kind && it.name.ends_with(name))
    };
    assert!(says(3, "site", "plugins/cache.py:7"), "{page}");
    assert!(says(7, "site", "train/log.py:31") && says(7, "growth", "leak"), "{page}");
    let settings = of(20).differs.iter().find(|it| it.kind == "settings").unwrap();
    assert_eq!(settings.here_text.as_deref(), Some("expandable_segments:True"));
    assert!(answer.outliers.iter().all(|it| it.diff.is_some()), "{page}");
    let failed: Vec<_> = answer.failed.iter().map(|it| it.whose.place.rank.unwrap()).collect();
    assert_eq!(failed, [30], "{page}");
    // The most that any rank reserved explains that failure too.
    let near = answer.near.as_ref().unwrap();
    let ranks: Vec<_> = near.ranks.iter().map(|it| it.whose.place.rank.unwrap()).collect();
    assert_eq!((near.given, ranks), (false, vec![7, 3]), "{page}");
    assert!(answer.failed[0].line.as_ref().unwrap().ends_with("train/eval.py:5"), "{page}");
    let growing = answer.growing.iter().find(|it| it.kind == "leak").unwrap();
    assert_eq!((growing.ranks.as_str(), growing.files), ("7", 1), "{page}");
    let balance = answer.imbalance.as_ref().unwrap();
    // What the rank needs that failed is not known.
    let levelled = (balance.levelled.as_deref(), balance.levelled_files);
    assert_eq!((&balance.card, levelled), (&None, (Some("small"), 39)), "{page}");
    let joined = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(joined.contains("no card is named: requests failed on rank 30"), "{page}");
    let of_others = "if the 39 others reserved the mean of them, small would do for these";
    assert!(joined.contains(of_others), "{page}");
    assert!(!answer.is_negative());
}

#[test]
fn what_waste_is_put_down_to_counts_where_there_is_more_or_less_of_it() {
    let folder = fleet(10, &[]);
    let mut rows = rows(folder.path(), 2);
    let outliers = |rows: &[Row]| -> Vec<_> {
        let answer = Answer::of(rows, &asked());
        let of = |it: &tonnage_fleet::Outlier| {
            (it.whose.place.rank.unwrap(), it.differs.iter().map(|it| it.kind).collect::<Vec<_>>())
        };
        answer.outliers.iter().map(of).collect()
    };
    assert_eq!(outliers(&rows), []);
    let share = |name: &str, bytes| tonnage_fleet::Share { name: name.to_owned(), bytes };
    let mut put = |rank: usize, pinned: u64, more: u64| {
        let Seen::Facts(facts) = &mut rows[rank].seen else { panic!("a file that was read") };
        facts.reserved = facts.requested + (60 << 20) + more;
        let other = (60 << 20) + more - pinned;
        facts.waste = vec![share("pinned_segment", pinned), share("fragmentation", other)];
    };
    for rank in 0..10 {
        put(rank, 20 << 20, 0);
    }
    put(3, 0, 0);
    put(8, 60 << 20, 40 << 20);
    assert_eq!(outliers(&rows), [(8, vec!["waste", "reserved"])]);
}

#[test]
fn a_card_is_told_of_ranks_that_did_not_fail() {
    let folder = fleet(4, &[(1, Plant::Fails(250 << 20, 200 << 20))]);
    let mut rows = rows(folder.path(), 2);
    let set = |row: &mut Row, reserved| {
        let Seen::Facts(facts) = &mut row.seen else { panic!("a file that was read") };
        facts.reserved = reserved;
    };
    let told = |rows: &[Row]| {
        let balance = Answer::of(rows, &asked()).imbalance.unwrap();
        (balance.card, balance.levelled, balance.levelled_files, balance.mean)
    };
    rows.iter_mut().for_each(|row| set(row, 200 << 20));
    set(&mut rows[1], 800 << 20);
    // Of all four the mean has no room on the small one.
    assert_eq!(told(&rows), (None, Some("small".to_owned()), 3, 350 << 20));
    let failed = rows[1].clone();
    rows.remove(1);
    assert_eq!(told(&rows).0.as_deref(), Some("small"));
    assert_eq!(told(&[failed]), (None, None, 0, 800 << 20));
}

#[test]
fn the_answer_is_the_same_bytes_in_whatever_order_files_are_done() {
    let folder = fleet(12, &PLANTS[..2]);
    let one = answer(folder.path(), 1);
    for workers in [2, 5] {
        let other = answer(folder.path(), workers);
        assert_eq!(one.to_json(), other.to_json());
        assert_eq!(text(&one), text(&other));
    }
    let mut rows = rows(folder.path(), 2);
    rows.reverse();
    let (mut backwards, options) = (Answer::of(&rows, &asked()), LookOptions::default());
    compare_outliers(
        &mut backwards,
        &find(&source(folder.path())).unwrap(),
        &options,
        &Until::default(),
    );
    assert_eq!(one.to_json(), backwards.to_json());
}

#[test]
fn the_best_setting_is_the_least_of_the_worst_rank() {
    let folder = fleet(4, &[(1, Plant::Settings("max_split_size_mb:128"))]);
    assert!(answer(folder.path(), 2).best_setting.is_none());
    let options = LookOptions { tune: true, ..LookOptions::default() };
    let files = find(&source(folder.path())).unwrap();
    let done = |_: usize, _: &Row| Ok::<(), ()>(());
    let rows = Crew::default().look_at(&files, &options, &Until::default(), done);
    let rows = rows.unwrap().unwrap();
    let answer = Answer::of(&rows, &asked());
    let best = answer.best_setting.as_ref().unwrap();
    let worst = |conf: &str| {
        let under = |row: &Row| {
            let tried = &row.facts().unwrap().tried;
            tried.iter().find(|it| it.conf == conf).unwrap().reserved
        };
        rows.iter().map(under).max().unwrap()
    };
    assert_eq!((best.ranks, best.fits, best.settings), (4, 4, 8));
    assert_eq!(best.reserved, Some(worst(&best.conf)));
    let least = ["", "expandable_segments:True"].map(worst);
    assert!(least.iter().all(|it| best.reserved <= Some(*it)));
    let own = |row: &Row| {
        let tried = &row.facts().unwrap().tried;
        tried.iter().find(|it| it.recorded).unwrap().reserved
    };
    assert_eq!(best.recorded, rows.iter().map(own).max());
    assert_eq!((best.recorded_fits, best.recorded_alike), (4, false));
    let page = text(&answer);
    assert!(page.contains("best for all") && page.contains("not the same for all"), "{page}");
}

/// Two ranks with this recording, replayed under other settings.
fn tuned(recording: &str, limit: Option<u64>) -> Answer {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("{}/../../testdata/traces/{recording}", env!("CARGO_MANIFEST_DIR"));
    for rank in 0..2 {
        let rank = folder.path().join(format!("rank_{rank}.pickle.zst"));
        std::fs::copy(&path, rank).unwrap();
    }
    let options = LookOptions { tune: true, limit, ..LookOptions::default() };
    let files = find(&source(folder.path())).unwrap();
    let done = |_: usize, _: &Row| Ok::<(), ()>(());
    let rows = Crew::default().look_at(&files, &options, &Until::default(), done);
    Answer::of(&rows.unwrap().unwrap(), &AnswerOptions { limit, ..asked() })
}

#[test]
fn settings_are_tried_with_the_limit_that_a_failure_tells() {
    let answer = tuned("cudagraph.tight.pickle.zst", None);
    let best = answer.best_setting.as_ref().unwrap();
    assert_eq!((best.ranks, best.fits, best.reserved), (2, 0, None));
    let page = text(&answer);
    assert!(page.contains("none: every rank has a request that fails under each"), "{page}");
}

#[test]
fn a_replay_that_fails_is_compared_with_none() {
    let answer = tuned("mlp_seed.split128.pickle.zst", Some(206 << 20));
    let best = answer.best_setting.as_ref().unwrap();
    let (fits, own) = (best.fits, (best.recorded, best.recorded_fits, best.recorded_alike));
    let page = text(&answer);
    assert_eq!((fits, own), (2, (None, 0, true)), "{page}");
    assert!(page.contains("under the recorded settings, requests of 2 ranks fail"), "{page}");
    assert!(!page.contains("not the same"), "{page}");
}

#[test]
fn one_of_three_that_differs_is_named() {
    let folder = fleet(6, &[(4, Plant::Buffer(24 << 20))]);
    let answer = answer(folder.path(), 2);
    let named: Vec<_> = answer.outliers.iter().map(|it| it.whose.place.rank).collect();
    assert_eq!((answer.groups.len(), named), (2, vec![Some(4)]), "{}", text(&answer));
}

fn first(folder: &Path, name: &str) -> PathBuf {
    let files = find(&source(folder)).unwrap();
    files.iter().find(|it| it.address.ends_with(name)).unwrap().path.clone()
}

#[test]
fn files_that_cannot_be_read_are_lines_of_the_result() {
    let folder = fleet(10, &[]);
    let cut = first(folder.path(), "rank_002.pickle.zst");
    let bytes = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    std::fs::write(first(folder.path(), "rank_005.pickle.zst"), b"cos\nsystem\n.").unwrap();
    std::fs::write(first(folder.path(), "rank_006.pickle.zst"), b"").unwrap();
    let answer = answer(folder.path(), 2);
    let page = text(&answer);
    let named: Vec<_> = answer.unreadable.iter().map(|it| it.whose.place.rank.unwrap()).collect();
    assert_eq!(named, [2, 5, 6], "{page}");
    assert_eq!((answer.files, answer.read), (10, 7));
    assert!(answer.is_negative() && page.contains("3 could not be read"), "{page}");
    assert!(answer.unreadable.iter().all(|it| page.contains(&it.whose.file)), "{page}");
}

#[test]
fn a_folder_that_could_not_be_looked_into_is_a_line_and_no_rank() {
    let folder = fleet(2, &[]);
    let mut rows = rows(folder.path(), 2);
    for (number, row) in rows.iter_mut().enumerate() {
        row.address = format!("mem_{number}.pickle");
    }
    let shut = Found {
        address: "runs7/".to_owned(),
        path: folder.path().to_owned(),
        size: None,
        version: String::new(),
    };
    rows.extend(look(&shut, &LookOptions::default(), &Until::default()));
    let answer = Answer::of(&rows, &asked());
    assert!(answer.is_negative() && answer.unreadable[0].why.contains("could not be looked into"));
    assert_eq!(answer.unreadable[0].whose.place.rank, None);
    assert_eq!(answer.imbalance.unwrap().most.whose.place.rank, Some(0));
}

#[test]
fn ranks_of_a_group_are_listed_if_all_have_one() {
    let folder = fleet(6, &[]);
    let mut rows = rows(folder.path(), 2);
    rows[0].address = "other.pickle".to_owned();
    let answer = Answer::of(&rows, &asked());
    let mut ranks: Vec<_> = answer.groups.iter().map(|it| it.ranks.as_str()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["", "3-5"], "{}", text(&answer));
}

#[test]
fn a_rank_that_shares_a_run_says_so_and_the_file_of_that_run_is_opened() {
    let folder = fleet(12, &[(4, Plant::Buffer(40 << 20))]);
    let mut rows = rows(folder.path(), 2);
    let shared = rows[4].address.clone();
    // The last of the stage shares the run of the one that differs, and has no file.
    rows[5].address = rows[5].address.replace("rank_005", "rank_105");
    rows[5].same_as = Some(shared.clone());
    rows[5].seen = rows[4].seen.clone();
    let written = serde_json::to_string(&rows[5]).unwrap();
    assert_eq!(serde_json::from_str::<Row>(&written).unwrap(), rows[5]);
    assert!(!serde_json::to_string(&rows[4]).unwrap().contains("same_as"));
    let mut answer = Answer::of(&rows, &asked());
    let files = find(&source(folder.path())).unwrap();
    compare_outliers(&mut answer, &files, &LookOptions::default(), &Until::default());
    let page = text(&answer);
    let outlier = answer.outliers.iter().find(|it| it.whose.place.rank == Some(105)).unwrap();
    assert_eq!(outlier.whose.same_as.as_ref(), Some(&shared));
    assert!(page.contains("rank 105 (shares the run of rank 4), of group"), "{page}");
    assert!(outlier.diff.is_some() && !page.contains("rank_105"), "{page}");
}

#[test]
fn what_is_kept_of_a_file_can_be_read_back() {
    let folder = fleet(4, &[(1, Plant::Fails(250 << 20, 200 << 20))]);
    for row in rows(folder.path(), 2) {
        let text = serde_json::to_string(&row).unwrap();
        assert!(text.len() < 16 << 10, "{}", text.len());
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
    }
}

#[test]
fn a_limit_tells_who_was_near_and_work_can_be_stopped() {
    let folder = fleet(6, &[]);
    let rows = rows(folder.path(), 2);
    let most = rows.iter().filter_map(|it| Some(it.facts()?.reserved)).max().unwrap();
    let limit = Some(most + (most / 100));
    let answer = Answer::of(&rows, &AnswerOptions { limit, ..asked() });
    let near = answer.near.as_ref().unwrap();
    let ranks: Vec<_> = near.ranks.iter().map(|it| it.whose.place.rank.unwrap()).collect();
    assert!(near.given && !ranks.is_empty() && ranks.iter().all(|it| *it < 3), "{ranks:?}");
    assert!(Answer::of(&rows, &asked()).near.is_none());
    assert!(answer.text.contains("came within 5 %") && !answer.text.contains("other"));
    // A limit that was not in force.
    let beyond = Answer::of(&rows, &AnswerOptions { limit: Some(0), ..asked() });
    assert!(beyond.text.contains("6 files reserved more than the limit"), "{}", beyond.text);
    assert!(!text(&beyond).contains('%'), "{}", text(&beyond));
    let (until, stop) = Until::told();
    let files = find(&source(folder.path())).unwrap();
    let one = Crew { workers: NonZeroUsize::MIN, memory: None };
    let looked = one.look_at(&files, &LookOptions::default(), &until, |_, _| {
        stop.now();
        Ok::<(), ()>(())
    });
    assert!(looked.unwrap().is_err());
}

/// A dataset may be of someone who means harm.
#[test]
fn rows_with_absurd_figures_are_answered_about() {
    let folder =
        fleet(6, &[(1, Plant::Fails(250 << 20, 200 << 20)), (4, Plant::Leak(12 << 20, 5))]);
    let rows = rows(folder.path(), 2);
    let figures = regex::Regex::new(r":\d+").unwrap();
    let device = regex::Regex::new(r#""device":\d+"#).unwrap();
    for value in ["0", "1", "18446744073709551615", "9223372036854775808"] {
        let absurd: Vec<Row> = rows
            .iter()
            .map(|row| {
                let text = serde_json::to_string(&row.seen).unwrap();
                // Ordinals are no figures.
                let text = figures.replace_all(&text, format!(":{value}"));
                let text = device.replace(&text, "\"device\":0");
                Row { seen: serde_json::from_str(&text).unwrap(), ..row.clone() }
            })
            .collect();
        let mixed: Vec<_> = rows[..3].iter().chain(&absurd[3..]).cloned().collect();
        for rows in [absurd, mixed] {
            let answer = Answer::of(&rows, &asked());
            assert_eq!((answer.read, answer.members.len()), (6, 6), "{value}");
            assert!(!text(&answer).is_empty() && !answer.sections().is_empty(), "{value}");
        }
    }
}

#[test]
fn lists_say_what_the_text_says_and_every_file_has_its_group() {
    let plants = [(3, Plant::Buffer(40 << 20)), (7, Plant::Fails(400 << 20, 300 << 20))];
    let folder = fleet(12, &plants);
    std::fs::write(folder.path().join("rank_99.pickle"), b"nothing").unwrap();
    let answer = Answer::of(&rows(folder.path(), 2), &asked());
    let joined = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = joined(&text(&answer));
    let sections = answer.sections();
    let kinds: Vec<_> = sections.iter().map(|it| it.kind).collect();
    // The rank with the buffer reserves the most, which is the least limit that explains the failure.
    assert_eq!(kinds, ["failed", "near", "outliers", "groups", "unreadable"]);
    for section in &sections {
        assert!(page.contains(&section.title), "{}", section.title);
        for words in section.lines.iter().flat_map(|it| &it.words) {
            // Figures of those that were near stand in columns there.
            let columns =
                if section.kind == "near" { words.replace(", ", " ") } else { words.clone() };
            assert!(page.contains(&joined(&columns)), "{words} is not in {page}");
        }
    }
    let files: Vec<_> = answer.members.iter().map(|it| it.whose.file.clone()).collect();
    assert!(files.is_sorted() && files.len() == 13);
    for (number, group) in answer.groups.iter().enumerate() {
        let of = answer.members.iter().filter(|it| it.group == Some(number));
        let ranks: Vec<_> = of.map(|it| it.whose.place.rank.unwrap()).collect();
        assert!(ranks.len() >= group.files && !ranks.is_empty(), "{ranks:?}");
    }
    let unread = answer.members.iter().find(|it| it.whose.place.rank == Some(99)).unwrap();
    assert_eq!(unread.group, None);
}
