//! Programs that died of memory on a GPU, each of which did one thing that is known (`benches/pytorch/remedies.py`): the cause that
//! the report names, and what it says of growth.

use serde_json::Value;
use tonnage_analysis::report::{Cause, GrowthKind, Report, ReportOptions};
use tonnage_snapshot::SnapshotFile;

use crate::support::{testdata, without_stacks};

/// What a program did, as far as memory goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Did {
    /// It died in one pass, or in the first steps: what was live was needed by what it did.
    OnePass,
    /// Every iteration of a loop kept something.
    Keeps,
    /// Iterations asked for more than those before.
    AsksForMore,
    /// It makes a tensor longer and longer.
    Concatenates,
    /// Graphs had pools of their own.
    PrivatePools,
}

/// Those that did something else than die in one pass.
const OTHERS: [(&str, Did); 10] = [
    ("backward_once", Did::Keeps),
    ("cache_grows", Did::Keeps),
    ("cat_in_loop", Did::Concatenates),
    ("copies_in_flight", Did::Keeps),
    ("earlier_weights", Did::Keeps),
    ("graph_pools", Did::PrivatePools),
    ("hook_keeps_activations", Did::Keeps),
    ("outlier_length", Did::AsksForMore),
    ("outputs_in_list", Did::Keeps),
    ("summed_losses", Did::Keeps),
];

fn did(kind: &str) -> Did {
    OTHERS.iter().find(|it| it.0 == kind).map_or(Did::OnePass, |it| it.1)
}

/// Every recording of a program that died, with its name and its limit.
fn died() -> Vec<(String, u64)> {
    let truths = std::fs::read_to_string(testdata().join("remedies/truths.json")).unwrap();
    let truths: Value = serde_json::from_str(&truths).unwrap();
    let truths = truths["pairs"].as_array().unwrap().iter();
    truths
        .map(|it| (it["kind"].as_str().unwrap().to_owned(), it["limit"].as_u64().unwrap()))
        .collect()
}

fn recording(kind: &str) -> SnapshotFile {
    tonnage_snapshot::open(&testdata().join(format!("remedies/{kind}.fault.pickle.xz"))).unwrap()
}

fn report(file: &SnapshotFile, limit: u64) -> Report {
    // Which waste limits, and whether a setting serves the request, takes a replay; what the program did does not.
    let limit = Some(limit);
    Report::of(file, &ReportOptions { limit, without_replay: true, ..ReportOptions::default() })
        .unwrap()
}

#[test]
fn programs_that_died_are_said_to_have_done_what_they_did() {
    let died = died();
    assert!(died.len() >= 46, "{}", died.len());
    let mut wrong = Vec::new();
    for (kind, limit) in died {
        let report = report(&recording(&kind), limit);
        let (cause, growth) = (report.verdict.cause, report.growth.kind);
        let is_right = match did(&kind) {
            Did::OnePass => cause == Cause::Need && growth == GrowthKind::Unknown,
            Did::Keeps => cause == Cause::Leak && growth == GrowthKind::Leak,
            Did::AsksForMore => cause == Cause::LongerInputs && growth == GrowthKind::LongerInputs,
            Did::Concatenates => {
                cause == Cause::GrowingTensor && growth == GrowthKind::GrowingTensor
            }
            Did::PrivatePools => cause == Cause::PrivatePool,
        };
        if !is_right {
            wrong.push(format!("{kind}: {cause:?} and {growth:?} instead of {:?}", did(&kind)));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// What sizes do not tell: a list that is built in one expression, each part with something that comes and goes.
const BEYOND_SIZES: [&str; 1] = ["all_rays_at_once"];

#[test]
fn without_stacks_one_pass_is_called_no_loop() {
    let mut wrong = Vec::new();
    for (kind, limit) in died().into_iter().filter(|(kind, _)| did(kind) == Did::OnePass) {
        let report = report(&without_stacks(recording(&kind)), limit);
        let is_wrong = matches!(report.verdict.cause, Cause::Leak | Cause::LongerInputs);
        if is_wrong && !BEYOND_SIZES.contains(&&*kind) {
            wrong.push(format!("{kind}: {:?}, {}", report.verdict, report.growth.iterations));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_steps_of_a_decoder_are_its_iterations_and_not_its_layers() {
    let (_, limit) = died().into_iter().find(|it| it.0 == "cache_grows").unwrap();
    let growth = report(&recording("cache_grows"), limit).growth;
    // It was to take 16 steps through 6 layers each, and died in the thirteenth.
    assert_eq!(growth.iterations, 13);
}
