//! `tonnage completions`, `tonnage man`, and what the guide says.

use std::process::Command;

use crate::support::{command, python_with_packages, recording, root, text, tonnage};
use tonnage::export::Table;
use tonnage_fleet::FleetTable;

const VERBS: [&str; 19] = [
    "run",
    "predict",
    "inspect",
    "replay",
    "report",
    "tune",
    "record",
    "exec",
    "view",
    "diff",
    "export",
    "fleet",
    "plot",
    "top",
    "devices",
    "bench",
    "schema",
    "completions",
    "man",
];

#[test]
fn every_shell_completes_every_verb() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let output = tonnage(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        for verb in VERBS {
            assert!(text(&output.stdout).contains(verb), "{shell}: {verb}");
        }
        assert!(text(&output.stdout).contains("fail-if-peak-grows"), "{shell}");
    }
    assert_eq!(tonnage(&["completions", "csh"]).status.code(), Some(2));
}

#[test]
fn every_verb_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let output = tonnage(&["man", "--dir", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for verb in VERBS {
        let page =
            std::fs::read_to_string(folder.path().join(format!("tonnage-{verb}.1"))).unwrap();
        assert!(page.contains(".SH OPTIONS") && page.contains(".SH SYNOPSIS"), "{verb}: {page}");
    }
    let page = std::fs::read_to_string(folder.path().join("tonnage-fleet-report.1")).unwrap();
    assert!(page.contains("max\\-memory"), "{page}");
    let page = std::fs::read_to_string(folder.path().join("tonnage.1")).unwrap();
    assert!(page.contains("tonnage\\-inspect"), "{page}");
    assert!(text(&tonnage(&["man"]).stdout).contains(".SH SYNOPSIS"));
}

fn guide() -> String {
    std::fs::read_to_string(root().join("GUIDE.md")).unwrap()
}

/// The code blocks of one language.
fn blocks(language: &str) -> Vec<String> {
    let guide = guide();
    let begins = format!("```{language}\n");
    let parts = guide.split(begins.as_str()).skip(1);
    parts.map(|part| part.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_guides_commands_print_what_the_guide_shows() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(
        root().join("testdata").canonicalize().unwrap(),
        folder.path().join("testdata"),
    )
    .unwrap();
    let blocks = blocks("console");
    assert!(blocks.len() >= 3);
    for block in blocks {
        for part in block.split("$ tonnage ").skip(1) {
            let (line, expected) = part.split_once('\n').unwrap();
            let mut command = command();
            let words = line.split_whitespace().map(|word| word.trim_matches('"'));
            command.args(words).current_dir(folder.path());
            let output = command.output().unwrap();
            assert_eq!(text(&output.stdout).trim_end(), expected.trim_end(), "tonnage {line}");
        }
    }
}

#[test]
fn the_guides_schema_is_that_of_the_tables() {
    let guide = guide();
    let own = Table::ALL.map(|table| (table.name(), table.columns()));
    let fleets = FleetTable::ALL.map(|table| (table.name(), table.columns()));
    for (table, columns) in own.into_iter().chain(fleets) {
        let (_, rest) = guide.split_once(&format!("\n`{table}`: ")).unwrap();
        let rows = rest.lines().skip_while(|line| !line.starts_with("| `"));
        let documented: Vec<_> = rows.take_while(|line| line.starts_with("| `")).collect();
        let defined = columns.iter().map(|column| {
            let (name, kind, meaning) = (column.name, column.kind.name(), column.meaning);
            format!("| `{name}` | {kind}{} | {meaning} |", if column.optional { "?" } else { "" })
        });
        assert_eq!(documented, defined.collect::<Vec<_>>(), "{table}");
    }
}

#[test]
fn the_guides_queries_run_and_find_something() {
    let python = python_with_packages();
    let folder = tempfile::tempdir().unwrap();
    let file = recording("gpt2_varlen.default.stacks");
    for table in Table::ALL {
        let output = folder.path().join(format!("{table}.parquet"));
        let (table, output) = (table.name(), output.to_str().unwrap());
        let written =
            tonnage(&["export", &file, "--format=parquet", "--table", table, "-o", output]);
        assert_eq!(written.status.code(), Some(0), "{}", text(&written.stderr));
    }
    // And the dataset of a fleet.
    let fleet = crate::fleet::planted();
    let ranks = folder.path().join("ranks");
    let words =
        ["fleet", "report", fleet.path().to_str().unwrap(), "--out", ranks.to_str().unwrap()];
    assert_eq!(tonnage(&words).status.code(), Some(0));
    let queries = blocks("sql");
    assert!(queries.len() >= 5);
    for query in queries {
        let program =
            "import duckdb, sys\nfor row in duckdb.sql(sys.argv[1]).fetchall(): print(row)";
        let output = Command::new(&python)
            .args(["-c", program, &query])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{query}\n{}", text(&output.stderr));
        assert!(!output.stdout.is_empty(), "{query}");
    }
    // Who holds the peak holds all of it.
    let sum = "import duckdb\nprint(duckdb.sql(\"SELECT sum(size) FROM 'allocations.parquet' WHERE \
               live_at_peak\").fetchall()[0][0])";
    let output =
        Command::new(&python).args(["-c", sum]).current_dir(folder.path()).output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "7145677824", "{}", text(&output.stderr));
}
