//! Every question, on every kind of file.

use serde_json::Value;
use tonnage_engine::{Config, Release};
use tonnage_replay::job::Job;
use tonnage_replay::recording::RecordingOptions;
use tonnage_replay::what_if::WhatIf;
use tonnage_snapshot::SnapshotFile;
use tonnage_view::{RunProgress, ViewOptions};

use crate::support::{Page, late, testdata, trace};

/// Asks everything that can be asked of a recording.
fn ask_all(page: &Page, id: u64) {
    let columns = page.timeline(id);
    let info =
        page.start()["recordings"].as_array().unwrap().iter().find(|it| it["id"] == id).cloned();
    let info = info.unwrap();
    assert_eq!(info["entries"], columns.get("time").len());
    assert_eq!(info["allocations"], columns.get("allocations.size").len());
    let report = page.get(&format!("api/recordings/{id}/report")).json();
    for part in ["verdict", "causes", "waste", "blame", "peak", "growth", "ooms", "advice", "notes"]
    {
        assert!(!report[part].is_null(), "{part}");
    }
    if columns.get("time").is_empty() {
        return;
    }
    let tuning = page.get(&format!("api/recordings/{id}/tune")).json();
    assert!(tuning["candidates"].as_array().unwrap().len() > 5);
    let asked = r#"{"conf":"expandable_segments:True","policy":"pytorch","limit":null}"#;
    let answer = page.post(&format!("api/recordings/{id}/what-if"), asked).json();
    let made = &answer["recording"];
    assert_eq!((&made["kind"], &made["of"]), (&Value::from("what-if"), &Value::from(id)));
    let columns = page.timeline(made["id"].as_u64().unwrap());
    assert_eq!(columns.head["peak"]["reserved"], answer["reservedPeak"]);
    let allocated = columns.sums("allocations.size", "allocations.begin", "allocations.end");
    assert_eq!(allocated, columns.get("allocated"));
    let reserved = columns.sums("segments.size", "segments.begin", "segments.end");
    assert_eq!(reserved, columns.get("reserved"));
}

#[test]
fn every_question_is_answered_for_every_kind_of_recording() {
    for name in [
        "mlp_seed.default",
        "mlp_seed.expandable",
        "mlp_seed.round8",
        "mlp_seed.split128",
        "mlp_seed.gc60",
        "mlp_seed.tight",
        "mlp_seed.default.stacks",
        "cudagraph.default",
        "cudagraph.expandable",
        "multistream.default",
    ] {
        ask_all(&Page::of([trace(name)]), 0);
    }
}

#[test]
fn a_partial_history_and_one_without_any_are_shown() {
    let (name, file) = trace("mlp_seed.default");
    let length = file.traces[0].len();
    let (_, again) = trace("mlp_seed.default");
    let page =
        Page::of([(name, late(file, length / 2)), ("state".to_owned(), late(again, length))]);
    ask_all(&page, 0);
    ask_all(&page, 1);
    // What cannot be asked of a state without history is refused in words.
    let answer = page.get("api/recordings/1/tune");
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("history"), "{}", answer.text());
}

#[test]
fn pinned_memory_is_in_the_report_that_the_page_shows_and_no_device_of_its_own() {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/snapshots/pytorch_2.15.0.pickle");
    let page = Page::of([("real".to_owned(), tonnage_snapshot::open(path.as_ref()).unwrap())]);
    let start = page.get("api/start").json();
    assert_eq!(start["recordings"].as_array().map(Vec::len), Some(1));
    ask_all(&page, 0);
    let report = page.get("api/recordings/0/report").json();
    assert_eq!(report["pinned"]["allocated"], 512);
}

#[test]
fn what_a_run_of_this_project_saves_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pickle");
    let mut options = tonnage_plan::Options::new(tonnage_plan::Recipe::Mlp);
    options.steps = 4;
    options.save = Some(path.clone());
    let device = tonnage_plan::DeviceKind::Dry.open(&options).unwrap();
    let outcome = tonnage_plan::train(&device, &options, &mut |_| ()).unwrap();
    let page = Page::of([("run.pickle".to_owned(), tonnage_snapshot::open(&path).unwrap())]);
    ask_all(&page, 0);
    let peak = page.timeline(0).head["peak"].clone();
    assert_eq!(peak["allocated"], outcome.allocated_peak);
    assert_eq!(peak["reserved"], outcome.reserved_peak);
}

#[test]
fn a_what_if_has_the_figures_of_replay() {
    let page = Page::of([trace("deepnet_ckpt.default")]);
    let (_, file) = trace("deepnet_ckpt.default");
    let (recorded, job) = Job::read(&file, &RecordingOptions::default()).unwrap();
    for (conf, limit) in [
        ("", None),
        ("expandable_segments:True", None),
        ("max_split_size_mb:128", None),
        ("roundup_power2_divisions:8", Some(recorded.stats.max_memory_reserved())),
        ("", Some(job.floor() / 2)),
    ] {
        let config = Config::parse(conf, Release::default()).unwrap();
        let expected = WhatIf::new(config).with_limit(limit).predict(&job);
        let asked = serde_json::json!({ "conf": conf, "policy": "pytorch", "limit": limit });
        let answer = page.post("api/recordings/0/what-if", &asked.to_string()).json();
        assert_eq!(answer["reservedPeak"], expected.stats.max_memory_reserved(), "{conf}");
        assert_eq!(answer["recordedPeak"], recorded.stats.max_memory_reserved());
        assert_eq!(answer["oom"]["entry"].as_u64(), expected.oom.map(|it| it.event as u64));
        let id = answer["recording"]["id"].as_u64().unwrap();
        let columns = page.timeline(id);
        assert_eq!(columns.head["peak"]["reserved"], answer["reservedPeak"], "{conf}");
        // The same question has the same answer, not another recording.
        let again = page.post("api/recordings/0/what-if", &asked.to_string()).json();
        assert_eq!(again, answer);
        // Asked of a what-if, it is asked of what that was made from.
        let of_that = page.post(&format!("api/recordings/{id}/what-if"), &asked.to_string());
        assert_eq!(of_that.json(), answer);
    }
}

/// Issue 14, fault 16: limits that print alike shared one answer.
#[test]
fn limits_a_byte_apart_have_answers_of_their_own() {
    let (name, file) = trace("mlp_seed.default");
    let (recorded, job) = Job::read(&file, &RecordingOptions::default()).unwrap();
    let page = Page::of([(name, file)]);
    let peak = recorded.stats.max_memory_reserved();
    let mut names = Vec::new();
    for limit in [peak, peak - 1] {
        let what_if = WhatIf::new(Config::parse("", Release::default()).unwrap());
        let expected = what_if.with_limit(limit).predict(&job);
        let asked = serde_json::json!({ "conf": "", "policy": "", "limit": limit });
        let answer = page.post("api/recordings/0/what-if", &asked.to_string()).json();
        assert_eq!(answer["reservedPeak"], expected.stats.max_memory_reserved(), "{limit}");
        assert_eq!(answer["oom"]["entry"].as_u64(), expected.oom.map(|it| it.event as u64));
        names.push(answer["recording"]["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(names[0], "what if: PyTorch's defaults, limit 208.00 MiB");
    assert_eq!(names[1], "what if: PyTorch's defaults, limit 218103807 bytes");
}

#[test]
fn a_what_if_keeps_the_stacks_of_the_requests_it_serves() {
    let page = Page::of([trace("mlp_seed.default.stacks")]);
    let asked = r#"{"conf":"expandable_segments:True","policy":"","limit":null}"#;
    let answer = page.post("api/recordings/0/what-if", asked).json();
    let (recorded, made) =
        (page.timeline(0), page.timeline(answer["recording"]["id"].as_u64().unwrap()));
    let requests = |columns: &crate::support::Columns| -> Vec<(u64, u64)> {
        let rows =
            columns.get("allocations.requested").iter().zip(columns.get("allocations.stack"));
        rows.map(|(&bytes, &stack)| (bytes as u64, stack as u64)).collect()
    };
    assert_eq!(requests(&recorded), requests(&made));
}

#[test]
fn bad_settings_are_refused_with_the_words_of_their_parser() {
    let page = Page::of([trace("mlp_seed.default")]);
    let ask = |conf: &str, policy: &str| {
        let asked = serde_json::json!({ "conf": conf, "policy": policy, "limit": null });
        let answer = page.post("api/recordings/0/what-if", &asked.to_string());
        assert_eq!(answer.status, 400, "{conf}");
        answer.text()
    };
    // Of the release that made the recording.
    let parser = Config::parse("max_split_size_mb:1", Release::V2_11).unwrap_err();
    assert_eq!(ask("max_split_size_mb:1", ""), parser.to_string());
    assert!(ask("nonsense:1", "").contains("nonsense"));
    assert!(ask("backend:cudaMallocAsync", "").contains("another allocator"));
    assert!(ask("", "nonsense").contains("nonsense"));
}

#[test]
fn of_what_ifs_the_last_eight_are_kept() {
    let page = Page::of([trace("mlp_seed.default")]);
    for size in 21..=30 {
        let asked = format!(r#"{{"conf":"max_split_size_mb:{size}","policy":"","limit":null}}"#);
        page.post("api/recordings/0/what-if", &asked).json();
    }
    let start = page.start();
    let ids: Vec<_> = start["recordings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids, [0, 3, 4, 5, 6, 7, 8, 9, 10]);
    let gone = page.get("api/recordings/1/timeline");
    assert_eq!(gone.status, 404);
    assert!(gone.text().contains("last 8"));
}

#[test]
fn several_files_and_devices_are_listed_and_what_is_empty_is_refused() {
    let (name, mut file) = trace("mlp_seed.default");
    let mut second = file.traces[0].clone();
    second.truncate(100);
    file.traces.push(second);
    let page = Page::of([(name, file), trace("mlp_seed.tight")]);
    page.recordings.open("empty.pickle", SnapshotFile::default());
    page.recordings.refuse("broken.pickle", "it ends within a list");
    let start = page.start();
    let devices: Vec<_> = start["recordings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["device"].as_u64().unwrap())
        .collect();
    assert_eq!(devices, [0, 1, 0]);
    assert_eq!(start["refused"][0]["name"], "empty.pickle");
    assert_eq!(start["refused"][1]["error"], "it ends within a list");
    assert_eq!(start["run"], false);
    assert_eq!(page.get("api/run").status, 404);
    page.timeline(1);
    let only = Page::with(ViewOptions { ordinal: Some(7), ..ViewOptions::default() });
    only.recordings.open("a", trace("mlp_seed.default").1);
    assert!(only.start()["refused"][0]["error"].as_str().unwrap().contains("device 7"));
}

/// Files that the fuzzer found worth keeping: those that can be read are shown, whatever they say.
#[test]
fn files_from_strangers_are_shown_or_refused() {
    let corpus = testdata().join("../fuzz/corpus/pickle");
    let mut shown = 0;
    let mut paths: Vec<_> =
        std::fs::read_dir(corpus).unwrap().map(|it| it.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let Ok(file) = tonnage_snapshot::open(&path) else { continue };
        let page = Page::of([(path.display().to_string(), file)]);
        for info in page.start()["recordings"].as_array().unwrap() {
            let id = info["id"].as_u64().unwrap();
            page.timeline(id);
            for question in ["report", "tune"] {
                let status = page.get(&format!("api/recordings/{id}/{question}")).status;
                assert!(status < 500, "{}: {question}: {status}", path.display());
            }
            shown += 1;
        }
    }
    assert!(shown > 0);
}

#[test]
fn many_who_ask_for_the_same_get_the_same() {
    let page = Page::of([trace("mlp_seed.default")]);
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..10).map(|_| scope.spawn(|| page.get("api/recordings/0/tune").body)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|it| *it == answers[0] && !it.is_empty()));
}

#[test]
fn a_run_is_followed_and_stays() {
    let page = Page::with(ViewOptions::default());
    let run = page.recordings.run("gpt2 --steps 2", "");
    let info = |page: &Page| page.start()["recordings"][0].clone();
    assert_eq!((&info(&page)["kind"], &info(&page)["version"]), (&"run".into(), &0.into()));
    assert_eq!(page.timeline(0).moments(), 1);
    assert_eq!(page.get("api/recordings/0/report").status, 400);
    run.progress(&RunProgress { done: 1, of: 2, loss: Some(5.5), allocated_peak: 7, reserved: 9 });
    run.show(trace("mlp_seed.default").1);
    let state = page.get("api/run").json();
    assert_eq!((&state["done"], &state["losses"][0]), (&1.into(), &5.5.into()));
    assert_eq!(info(&page)["version"], 1);
    assert!(page.timeline(0).moments() > 1);
    run.finish(Some("out of memory".to_owned()));
    let state = page.get("api/run").json();
    assert_eq!((&state["finished"], &state["error"]), (&true.into(), &"out of memory".into()));
    assert_eq!(page.start()["run"], true);
}

#[test]
fn a_file_that_is_dropped_on_the_page_is_opened_or_refused_in_words() {
    let page = Page::with(ViewOptions::default());
    let path = testdata().join("traces/mlp_seed.default.pickle.zst");
    let file = std::fs::read(path).unwrap();
    let octets = "application/octet-stream";
    let opened = page.drop_file("my%20run%2Frank0.pickle", &file, octets).json();
    assert_eq!(opened[0]["name"], "my run/rank0.pickle");
    assert_eq!(page.start()["recordings"], opened);
    ask_all(&page, opened[0]["id"].as_u64().unwrap());
    // What a form of another site can send without asking.
    assert_eq!(page.drop_file("a", &file, "text/plain").status, 415);
    let broken = page.drop_file("half.pickle", &file[..file.len() / 2], octets);
    assert_eq!(broken.status, 400);
    assert!(broken.text().starts_with("half.pickle: "), "{}", broken.text());
    assert_eq!(page.drop_file("empty", b"", octets).status, 400);
}

#[test]
fn all_stacks_together_are_the_stacks_one_by_one() {
    let page = Page::of([trace("mlp_seed.default.stacks")]);
    let answer = page.get("api/recordings/0/stacks");
    let all = crate::support::Columns::read(&answer.body);
    let (starts, frames) = (all.get("starts"), all.get("frames"));
    assert!(starts.len() > 10);
    for stack in 0..starts.len() - 1 {
        let one = page.get(&format!("api/recordings/0/stacks/{stack}")).json();
        let numbers = &frames[starts[stack] as usize..starts[stack + 1] as usize];
        let named: Vec<_> =
            numbers.iter().map(|&it| all.head["names"][it as usize].clone()).collect();
        assert_eq!(Value::from(named), one, "{stack}");
    }
}

/// Marks of optimizers at any time, behind the last entry, of two optimizers at once; sums beyond 64 bits.
#[test]
fn odd_files_are_reported_too() {
    for name in
        ["marks_at_any_time", "marks_after_last_entry", "two_sgd_optimizers", "sizes_of_2_63"]
    {
        let path = testdata().join("odd").join(format!("{name}.pickle"));
        let page = Page::of([(name.to_owned(), tonnage_snapshot::open(&path).unwrap())]);
        let answer = page.get("api/recordings/0/report");
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        assert!(!answer.json()["verdict"].is_null(), "{name}");
    }
}
