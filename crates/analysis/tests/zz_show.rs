use tonnage_analysis::report::{Report, ReportOptions};
#[test]
fn show() {
    for name in std::env::var("SHOW").unwrap_or_default().split_whitespace() {
        let path = if name.contains("/") { format!("{}/../../testdata/{name}", env!("CARGO_MANIFEST_DIR")) } else { format!("{}/../../testdata/planted/{name}.pickle.gz", env!("CARGO_MANIFEST_DIR")) };
        let mut file = tonnage_snapshot::open(path.as_ref()).unwrap();
        if std::env::var_os("NOMARKS").is_some() { file.annotations.clear(); }
        let options = ReportOptions { without_replay: std::env::var_os("REPLAY").is_none(), ..ReportOptions::default() };
        let report = Report::of(&file, &options).unwrap();
        println!("{}", report.to_text(name));
        for it in &report.growth.each { println!("{it:?}"); }
        if std::env::var_os("EVENTS").is_some() {
            for (i, e) in file.traces[0].iter().enumerate() {
                println!("{i} {:?} {:x} {} s{} {:?}", e.action, e.address.0, e.size, e.stream.0, e.stack.and_then(|s| file.stacks.frames(s).iter().find(|f| f.filename.contains("planted")).map(|f| f.line)));
            }
        }
        for m in file.annotations.iter().take(6) { println!("{m:?}"); }
    }
}
