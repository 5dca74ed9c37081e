//! Fleets to show: ranks made of a real recording, in a folder; and as many as one likes, without files.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tonnage_fleet::{
    Answer, AnswerOptions, Crew, Facts, IterationLevel, LookOptions, NamePattern, Row, Seen, find,
};
use tonnage_replay::Until;
use tonnage_view::FleetPage;

use crate::maker::{Making, Plant, make};

/// Ranks of two stages, in files of these names; each has a number and may have something special.
pub(crate) fn folder(ranks: &[(&str, u64, Plant)]) -> TempDir {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/traces/mlp_seed.default.stacks.pickle.zst"
    );
    let base = tonnage_snapshot::open(Path::new(path)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for &(name, rank, plant) in ranks {
        let embedding = if rank < ranks.len() as u64 / 2 { 64 << 20 } else { 0 };
        let making = Making { seed: rank, varied: 0.01, shorter: 0.1, embedding, conf: "", plant };
        tonnage_snapshot::save(&folder.path().join(name), &make(&base, &making)).unwrap();
    }
    folder
}

/// Twelve ranks, of which one has a buffer that no other has, one leaks, one failed, one has other
/// settings, and one file is none.
pub(crate) fn planted() -> TempDir {
    let names: Vec<_> =
        (0..12).map(|rank| format!("pp{}_rank_{rank:03}.pickle.zst", rank / 6)).collect();
    let plant = |rank: usize| match rank {
        3 => Plant::Buffer(40 << 20),
        5 => Plant::Leak(12 << 20, 5),
        7 => Plant::Fails(400 << 20, 300 << 20),
        9 => Plant::Settings("expandable_segments:True"),
        _ => Plant::Nothing,
    };
    let ranks: Vec<_> =
        names.iter().enumerate().map(|(rank, name)| (&**name, rank as u64, plant(rank))).collect();
    let folder = folder(&ranks);
    std::fs::write(folder.path().join("pp1_rank_012.pickle"), b"no snapshot").unwrap();
    folder
}

/// What is seen of the files in a folder.
pub(crate) fn seen(folder: &Path) -> FleetPage {
    let (files, looking) = (find(&[folder.to_str().unwrap()]).unwrap(), LookOptions::default());
    let done = |_: usize, _: &Row| Ok::<(), ()>(());
    let looked = Crew::default().look_at(&files, &looking, &Until::default(), done);
    of(looked.unwrap().unwrap(), FleetPage { files, ..empty() })
}

fn empty() -> FleetPage {
    let (rows, looking) = (Vec::new(), LookOptions::default());
    FleetPage { answer: answer(&rows), rows, files: Vec::new(), looking }
}

fn answer(rows: &[Row]) -> Answer {
    let names = NamePattern::usual();
    Answer::of(rows, &AnswerOptions { limit: None, cards: Vec::new(), names, unfinished: false })
}

/// The same page with these rows.
pub(crate) fn of(rows: Vec<Row>, page: FleetPage) -> FleetPage {
    FleetPage { answer: answer(&rows), rows, ..page }
}

/// The row of this rank.
#[allow(dead_code, reason = "each test program uses some of it")]
pub(crate) fn row(page: &FleetPage, rank: u64) -> (usize, &Row) {
    page.rows.iter().enumerate().find(|it| it.1.place.rank == Some(rank)).unwrap()
}

/// The facts of this rank.
#[allow(dead_code, reason = "each test program uses some of it")]
pub(crate) fn facts(page: &FleetPage, rank: u64) -> &Facts {
    row(page, rank).1.facts().unwrap()
}

/// The rank among `many` that stands out, in one step alone.
#[allow(dead_code, reason = "each test program uses some of it")]
pub(crate) const ODD: (u64, u64) = (1_234, 77);

/// So many ranks with so many steps each; their files are not there.
#[allow(dead_code, reason = "each test program uses some of it")]
pub(crate) fn many(ranks: u64, steps: u64) -> FleetPage {
    let folder = folder(&[("rank_0.pickle.zst", 0, Plant::Nothing)]);
    let page = seen(folder.path());
    let first = page.rows[0].clone();
    let gib = |it: f64| (it * f64::from(1_u32 << 30)) as u64;
    let row = |rank: u64| {
        let (dp, tp, pp) = (rank / 32, rank / 4 % 8, rank % 4);
        let address = format!("node{}/pp{pp}_tp{tp}_dp{dp}_rank_{rank:05}.pickle", rank / 8);
        let mut row = first.clone();
        row.place = NamePattern::usual().place(&address);
        row.address = PathBuf::from("gone").join(address).to_str().unwrap().to_owned();
        let mut facts = first.facts().unwrap().clone();
        let noise = |step: u64| {
            let mixed = (rank * 1_000 + step).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 40) as f64 / f64::from(1_u32 << 24)
        };
        facts.iterations = (0..steps)
            .map(|number| {
                let wave = (number as f64 / 9.0 + dp as f64 / 20.0).sin();
                let odd = if (rank, number) == ODD { 30.0 } else { 0.0 };
                let live = 30.0 + 4.0 * (3 - pp) as f64 + 3.0 * wave + 2.0 * noise(number) + odd;
                let (live, reserved) = (gib(live), gib(live * (1.08 + 0.05 * noise(rank))));
                IterationLevel { number, live, reserved }
            })
            .collect();
        let most = |of: fn(&IterationLevel) -> u64| facts.iterations.iter().map(of).max();
        facts.live = most(|it| it.live).unwrap_or(0);
        facts.reserved = most(|it| it.reserved).unwrap_or(0);
        facts.requested = facts.live;
        facts.growth.iterations = steps;
        row.seen = Seen::Facts(Box::new(facts));
        row
    };
    of((0..ranks).map(row).collect(), page)
}
