//! Sentences of the report, each with the recording that would make a wrong one.

use tonnage_analysis::HistoryKind;
use tonnage_analysis::report::{
    Answer, Cause, GrowthKind, Layout, LimitSource, RankRow, Ranks, Report, ReportOptions,
};
use tonnage_device::Dry;
use tonnage_engine::{AllocError, Allocation};
use tonnage_snapshot::SnapshotFile;

use crate::planted::programs::{MIB, Program};
use crate::support::{testdata, without_stacks};

fn recording(name: &str) -> SnapshotFile {
    tonnage_snapshot::open(&testdata().join(format!("traces/{name}.pickle.zst"))).unwrap()
}

fn report(file: &SnapshotFile) -> Report {
    Report::of(file, &ReportOptions::default()).unwrap()
}

fn quick(file: &SnapshotFile) -> Report {
    let options = ReportOptions { without_replay: true, ..ReportOptions::default() };
    Report::of(file, &options).unwrap()
}

#[test]
fn a_limit_that_no_one_said_is_called_concluded_and_holds_the_true_one() {
    let report = report(&recording("mlp_seed.tight"));
    let limit = report.failure.as_ref().unwrap().limit;
    assert_eq!(limit.source, LimitSource::Concluded);
    let truth = std::fs::read_to_string(testdata().join("traces/mlp_seed.tight.json")).unwrap();
    let truth: serde_json::Value = serde_json::from_str(&truth).unwrap();
    let truth = truth["limit"].as_u64().unwrap();
    assert!((limit.bytes..=limit.at_most).contains(&truth), "{limit:?}, {truth}");
    assert!(report.to_text("x").contains("concluded"), "{}", report.to_text("x"));
    assert_eq!(report.limit, None, "no one said it");
}

#[test]
fn without_a_replay_no_cause_is_named_that_one_could_refute() {
    let report = quick(&recording("gpt2_varlen.tight"));
    let failure = report.failure.as_ref().unwrap();
    assert_eq!(failure.answer, Answer::NotTried);
    assert!(!matches!(report.verdict.cause, Cause::Need | Cause::LongerInputs));
    assert!(report.verdict.text.contains("not tried"), "{}", report.verdict.text);
}

#[test]
fn what_a_recording_does_not_have_is_not_claimed() {
    let died = report(&recording("mlp_seed.tight"));
    let json = died.to_json();
    assert!(json.contains("\"known\": \"up_to_the_failure\""), "{json}");
    if died.failure.as_ref().unwrap().answer == Answer::Served {
        assert!(
            died.verdict.text.contains("up to where the recording ends"),
            "{}",
            died.verdict.text
        );
    }
    let mut file = recording("mlp_seed.default");
    file.traces[0].drain(..40);
    let late = report(&file);
    assert_eq!(late.history, HistoryKind::Partial);
    assert!(late.to_json().contains("\"known\": \"without_the_beginning\""));
    let whole = report(&recording("mlp_seed.default"));
    assert!(whole.to_json().contains("\"known\": \"whole\""));
}

#[test]
fn a_state_without_a_history_claims_no_savings_and_says_how_to_record() {
    let mut file = recording("gpt2_varlen.default");
    file.traces.clear();
    let report = report(&file);
    let text = report.to_text("state");
    assert!(report.advice.is_empty() && !text.contains("saves"), "{text}");
    assert_eq!(report.verdict.cause, Cause::Unknown);
    for word in ["_record_memory_history", "_dump_snapshot", "not the peak"] {
        assert!(report.verdict.text.contains(word), "{text}");
    }
    assert!(!text.contains("fragmentation"), "{text}");
}

/// One pass through equal layers that fails, after which all is freed and something else asked for.
fn dies_in_its_first_pass() -> SnapshotFile {
    let mut program = Program::on(Dry::new(1 << 30), 1, "");
    let _weights = program.parameters(48, 2 * MIB);
    let mut kept: Vec<Allocation> = Vec::new();
    let main = tonnage_events::StreamId::DEFAULT;
    let mut layer = |program: &mut Program| -> Result<(), AllocError> {
        kept.push(program.engine.allocate(16 * MIB, main)?);
        let passing = program.engine.allocate(4 * MIB, main)?;
        kept.push(program.engine.allocate(12 * MIB, main)?);
        program.free([passing]);
        kept.push(program.engine.allocate(24 * MIB, main)?);
        Ok(())
    };
    let failed = (0..24).find_map(|_| layer(&mut program).err());
    assert!(matches!(failed, Some(AllocError::OutOfMemory(_))));
    program.free(kept);
    let _summary = program.ask(2 * MIB);
    program.planted(Cause::Need, 0, None).file
}

#[test]
fn layers_are_no_iterations() {
    let file = dies_in_its_first_pass();
    for file in [file.clone(), without_stacks(file)] {
        let growth = quick(&file).growth;
        assert_ne!(growth.kind, GrowthKind::LongerInputs, "{growth:?}");
        assert_eq!(growth.longer_inputs, 0, "{growth:?}");
    }
}

#[test]
fn one_request_after_a_loop_is_no_growth() {
    let mut program = Program::new(1, "");
    let _weights = program.parameters(6, 12 * MIB);
    for _ in 0..10 {
        program.iterate(6, 20 * MIB);
    }
    let last = program.ask(466 * MIB);
    program.free([last]);
    let file = program.planted(Cause::Need, 0, None).file;
    for file in [file.clone(), without_stacks(file)] {
        let report = quick(&file);
        let growth = &report.growth;
        assert!(growth.iterations >= 9, "{growth:?}");
        assert_eq!(growth.longer_inputs, 0, "{growth:?}");
        let text = report.to_text("x");
        assert!(!text.contains("longer inputs"), "{text}");
    }
}

/// A training whose step has temporaries for all parameters at once.
fn many_tensor_step() -> SnapshotFile {
    let mut program = Program::new(1, "");
    let _weights = program.parameters(16, 20 * MIB);
    for step in 0..5 {
        program.iterate(4, 8 * MIB);
        program.marked("Optimizer.step#AdamW.step", |program| {
            if step == 0 {
                program.parameters(32, 20 * MIB);
            }
            let updates = program.parameters(16, 20 * MIB);
            program.free(updates);
        });
    }
    program.planted(Cause::Need, 0, None).file
}

#[test]
fn inside_the_optimizers_step_its_temporaries_are_what_to_change() {
    let report = quick(&many_tensor_step());
    let names: Vec<_> = report.advice.iter().filter_map(|it| it.remedy).collect();
    assert_eq!(names.first(), Some(&"single_tensor_step"), "{names:?}");
    assert!(!names.contains(&"states_in_host_memory"), "needed where they are: {names:?}");
    let first = report.advice.iter().find(|it| it.remedy.is_some()).unwrap();
    assert_eq!(first.bytes, 15 * 20 * MIB, "all but one");
    assert!(first.code.iter().any(|line| line.contains("fused=True")), "{first:?}");
}

#[test]
fn a_block_that_had_to_go_is_named() {
    let report = quick(&recording("mlp_seed.tight"));
    let would = &report.ooms[0].would_have;
    assert!(would.iter().any(|it| it.contains("at 0x") && it.contains("of entry ")), "{would:?}");
}

#[test]
fn figures_of_one_table_are_of_one_moment_and_causes_begin_with_the_verdict() {
    let names = ["gpt2_varlen.default", "multistream.default", "bert_dynpad.split128"];
    let rows: Vec<_> = names
        .map(|name| RankRow { file: name.to_owned(), report: quick(&recording(name)) })
        .into_iter()
        .collect();
    for RankRow { file, report } in &rows {
        let reserved = &report.peak.reserved;
        assert_eq!(reserved.requested + report.waste.total(), reserved.bytes, "{file}");
        assert_eq!(report.causes[0].cause, report.verdict.cause, "{file}");
    }
    let requested = tonnage_events::Bytes(rows[0].report.peak.reserved.requested).to_string();
    let text = Ranks::of(rows).unwrap().to_text_in(Layout::default());
    let row = text.lines().find(|line| line.contains("gpt2_varlen.default")).unwrap();
    assert!(
        row.contains(&requested) || text.lines().any(|line| line.contains(&requested)),
        "{text}"
    );
}

#[test]
fn purposes_come_with_how_sure_they_are() {
    let text = quick(&recording("mlp_seed.default.stacks")).to_text("x");
    let mut rows = text.lines().skip_while(|line| !line.contains("largest, and what for")).skip(1);
    let row = rows.next().unwrap();
    assert!(["(low)", "(medium)", "(high)"].iter().any(|it| row.contains(it)), "{row}");
}

#[test]
fn rows_keep_the_line_number_and_lines_to_copy_are_whole() {
    let file = recording("gpt2_varlen.default.stacks");
    let report = report(&file);
    let code: Vec<_> = report.advice.iter().take(6).flat_map(|it| &it.code).collect();
    assert!(!code.is_empty());
    for columns in [40, 60, 80, 120] {
        let text = report.to_text_in("x", Layout { columns: Some(columns), colours: false });
        for line in &code {
            assert!(text.contains(line.as_str()), "{columns}: {line}\n{text}");
        }
        for site in report.peak.sites.iter().take(6).filter_map(|it| it.line.as_ref()) {
            let number = site.rsplit_once(':').unwrap().1;
            assert!(text.contains(&format!(":{number}")), "{columns}: {site}\n{text}");
        }
        // What is wasted: figures, and what they mean beside or below them.
        let waste = text.split("\n\n").find(|it| it.starts_with("Reserved memory where")).unwrap();
        assert!(waste.contains("free where it did not fit"), "{waste}");
        let widest = waste.lines().map(|it| it.chars().count()).max().unwrap();
        assert!(widest <= columns.max(54), "{columns}: {widest}\n{waste}");
    }
    let whole = report.to_text("x");
    for site in report.peak.sites.iter().take(6).filter_map(|it| it.line.as_ref()) {
        assert!(whole.contains(site.as_str()), "{site}\n{whole}");
    }
    let bold = report.to_text_in("x", Layout { columns: None, colours: true });
    assert!(bold.contains("\x1b[1m") && !whole.contains('\x1b'));
}

fn remedies(file: &SnapshotFile) -> Vec<(&'static str, u64)> {
    let advice = quick(file).advice;
    advice.iter().filter_map(|it| Some((it.remedy?, it.bytes))).collect()
}

#[test]
fn scores_of_many_classes_call_for_a_loss_in_parts() {
    let found = remedies(&recording("gpt2_varlen.default.stacks"));
    // Three blocks of 707.81 MiB: the scores, their logarithms, and one of the way back.
    let scores: u64 = 3 * 742_196_224;
    let (_, bytes) = found.iter().find(|(name, _)| *name == "loss_in_parts").expect("found");
    assert!(bytes.abs_diff(scores - scores / 8) * 100 <= scores, "{bytes}");
    assert_eq!(found[0].0, "loss_in_parts", "{found:?}");
    assert!(
        !remedies(&recording("mlp_seed.default.stacks")).iter().any(|it| it.0 == "loss_in_parts")
    );
}

#[test]
fn batches_that_wait_on_the_device_are_too_many() {
    let mut program = Program::new(1, "");
    let _weights = program.parameters(6, 12 * MIB);
    let mut queue = std::collections::VecDeque::new();
    for step in 0..24 {
        queue.push_back(program.ask(40 * MIB));
        if step >= 7 {
            program.iterate(4, 8 * MIB);
            let used = queue.pop_front().unwrap();
            program.free([used]);
        }
    }
    let file = program.planted(Cause::Need, 0, None).file;
    let found = remedies(&file);
    let queue = found.iter().find(|it| it.0 == "fewer_batches_ahead");
    assert_eq!(queue, Some(&("fewer_batches_ahead", 6 * 40 * MIB)), "{found:?}");
}

#[test]
fn a_batch_that_fails_in_the_first_step_is_to_be_smaller() {
    let path = testdata().join("planted/need_forward_oom.pickle.gz");
    let report = report(&tonnage_snapshot::open(&path).unwrap());
    let names: Vec<_> = report.advice.iter().filter_map(|it| it.remedy).collect();
    assert_eq!(names.first(), Some(&"smaller_batch"), "{names:?}");
    assert!(names.contains(&"no_grad"), "nothing has gone back yet: {names:?}");
}
