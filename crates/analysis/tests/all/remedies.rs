//! Programs that died at a limit, each with the change that got it through, measured on a GPU by `benches/pytorch/remedies.py`:
//! the report of the failure names that change first or second, and what it saves within a tenth: in the whole program, in what
//! of it the failure leaves, or up to the request that failed, as far as the remedied program asks for the same.
//!
//! `testdata/remedies/ranks.txt` keeps which of them it does; `TONNAGE_UPDATE=1` writes it anew; then read it. No row may get
//! worse unnoticed.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::Value;
use tonnage_analysis::report::{Report, ReportOptions};
use tonnage_events::Action;
use tonnage_snapshot::SnapshotFile;

use crate::support::testdata;

const MIB: f64 = 1024.0 * 1024.0;

/// The report's names for what a pair calls its remedy, where they differ.
fn name_of(remedy: &str) -> &str {
    match remedy {
        "accumulate" => "smaller_batch",
        "backward_each" => "backward_for_each_pass",
        "bound_length" => "bounded_inputs",
        "chunked_loss" => "loss_in_parts",
        "fewer_copies_in_flight" => "outputs_to_host",
        "fused_step" | "foreach_off" => "single_tensor_step",
        "inference_mode" => "no_grad",
        "shorter_queue" => "fewer_batches_ahead",
        "smaller_batch" => "batch_in_parts",
        other => other,
    }
}

/// What the pair's remedy saved: in the whole program, and up to the request that failed.
fn measured(pair: &Value) -> [f64; 2] {
    // Private pools hold what is reserved, not what is allocated.
    let kind = if pair["remedy"] == "shared_graph_pool" { "reserved" } else { "allocated" };
    [pair["saving"][kind].as_f64().unwrap(), pair["saving_so_far"].as_f64().unwrap()]
}

/// Live bytes before each request, with it: its size, and the most so far.
fn requests(file: &SnapshotFile) -> Vec<(u64, u64)> {
    let (mut sizes, mut live, mut most) = (HashMap::new(), 0_u64, 0_u64);
    let mut found = Vec::new();
    for it in file.traces.iter().flatten() {
        match it.action {
            Action::Alloc => {
                live += it.size;
                most = most.max(live);
                sizes.insert(it.address, it.size);
                found.push((it.size, most));
            }
            Action::FreeRequested => live -= sizes.remove(&it.address).unwrap_or(0),
            _ => {}
        }
    }
    found
}

/// What the remedy saved up to the request that failed: the remedied program asks for as much as often, and has less by then.
fn measured_up_to_there(fault: &SnapshotFile, fixed: &SnapshotFile, pair: &Value) -> Option<f64> {
    let asked = pair["failed_request"].as_u64()?;
    let need = pair["at_failure"]["held"].as_u64()? + asked;
    let before = requests(fault).iter().filter(|it| it.0 == asked).count();
    let same = requests(fixed).into_iter().filter(|it| it.0 == asked).nth(before)?;
    Some(need as f64 - same.1 as f64)
}

#[test]
fn failures_get_the_remedy_that_was_measured() {
    let folder = testdata().join("remedies");
    let truths = std::fs::read_to_string(folder.join("truths.json")).unwrap();
    let truths: Value = serde_json::from_str(&truths).unwrap();
    let pairs = truths["pairs"].as_array().unwrap();
    let mut table = format!(
        "{:26} {:26} {:>4} {:>9} {:>9} {:>9} {:>9}\n",
        "failure", "remedy", "rank", "said", "measured", "so far", "to there"
    );
    let (mut ranked, mut near) = (0, 0);
    for pair in pairs {
        let kind = pair["kind"].as_str().unwrap();
        let open = |which: &str| {
            tonnage_snapshot::open(&folder.join(format!("{kind}.{which}.pickle.xz"))).unwrap()
        };
        let file = open("fault");
        let options = ReportOptions { limit: pair["limit"].as_u64(), ..ReportOptions::default() };
        let report = Report::of(&file, &options).unwrap();
        let remedy = name_of(pair["remedy"].as_str().unwrap());
        let rank = report.advice.iter().position(|it| it.remedy == Some(remedy));
        let said = rank.map(|rank| report.advice[rank].bytes as f64);
        let [whole, so_far] = measured(pair);
        let to_there = measured_up_to_there(&file, &open("fixed"), pair);
        let is_near = said.is_some_and(|said| {
            let truths = [whole, so_far].into_iter().chain(to_there);
            truths.into_iter().any(|truth| (said - truth).abs() <= truth * 0.1)
        });
        let is_first_or_second = rank.is_some_and(|rank| rank < 2);
        ranked += usize::from(is_first_or_second);
        near += usize::from(is_first_or_second && is_near);
        let names = report.advice.iter().map(|it| it.remedy.unwrap_or(it.cause.name()));
        let names: Vec<_> = names.take(2).collect();
        let shown = |it: Option<String>| it.unwrap_or_else(|| "-".to_owned());
        writeln!(
            table,
            "{kind:26} {remedy:26} {:>4} {:>9} {:>9.1} {:>9.1} {:>9} {}",
            shown(rank.map(|rank| (rank + 1).to_string())),
            shown(said.map(|said| format!("{:.1}", said / MIB))),
            whole / MIB,
            so_far / MIB,
            shown(to_there.map(|bytes| format!("{:.1}", bytes / MIB))),
            match (is_first_or_second, is_near) {
                (true, true) => "right".to_owned(),
                (true, false) => "named".to_owned(),
                _ => format!("missed: {}", names.join(", ")),
            }
        )
        .unwrap();
    }
    writeln!(table, "{ranked} of {} first or second; {near} of them within 10 %", pairs.len())
        .unwrap();
    println!("{table}");
    is_kept("ranks.txt", &table);
}

fn is_kept(name: &str, table: &str) {
    let golden = testdata().join("remedies").join(name);
    if std::env::var_os("TONNAGE_UPDATE").is_some() {
        std::fs::write(&golden, table).unwrap();
    } else {
        assert_eq!(table, std::fs::read_to_string(&golden).unwrap());
    }
}

/// Recordings whose fault is another than a missing remedy: what is advised there is read when it changes.
#[test]
fn what_is_advised_for_planted_faults_is_kept() {
    let paths = std::fs::read_dir(testdata().join("planted")).unwrap().map(|it| it.unwrap().path());
    let mut paths: Vec<_> =
        paths.filter(|it| it.extension().is_some_and(|it| it == "gz")).collect();
    paths.sort();
    let mut table = String::new();
    for path in paths {
        let name = path.file_name().unwrap().to_str().unwrap();
        let truth = path.with_file_name(name.replace("pickle.gz", "json"));
        let truth: Value = serde_json::from_str(&std::fs::read_to_string(truth).unwrap()).unwrap();
        let (limit, total) = (truth["limit"].as_u64(), truth["total"].as_u64());
        let without_replay = truth["oom"] != true;
        let options = ReportOptions { limit, total, without_replay, ..ReportOptions::default() };
        let report = Report::of(&tonnage_snapshot::open(&path).unwrap(), &options).unwrap();
        let remedies =
            report.advice.iter().filter_map(|it| Some((it.remedy?, it.bytes, it.confidence)));
        let shown = remedies.take(3).map(|(remedy, bytes, sure)| {
            format!("{remedy} {:.0} ({})", bytes as f64 / MIB, sure.name())
        });
        let shown: Vec<_> = shown.collect();
        writeln!(table, "{}: {}", name.replace(".pickle.gz", ""), shown.join(", ")).unwrap();
    }
    is_kept("planted.txt", &table);
}
