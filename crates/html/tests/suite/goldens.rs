//! Pages of two recordings against the files in `testdata/html`, and bounds on any page.
//!
//! `TONNAGE_UPDATE=1` writes them anew; then look at them in a browser.

use crate::support::{hostile, page, recording, row, testdata};

#[test]
fn pages_are_as_they_were_looked_at() {
    let folder = testdata().join("html");
    let update = std::env::var_os("TONNAGE_UPDATE").is_some();
    for name in ["mlp_seed.default.stacks", "mlp_seed.tight"] {
        let html = page(&recording(name));
        let golden = folder.join(format!("{name}.html"));
        if update {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&golden, html).unwrap();
        } else {
            let same = html == std::fs::read_to_string(&golden).unwrap();
            assert!(same, "{} differs: TONNAGE_UPDATE=1 writes it anew", golden.display());
        }
    }
}

#[test]
fn a_page_of_a_long_recording_is_no_larger_than_a_picture() {
    for name in ["gpt2_varlen.default.stacks", "llama_ckpt_accum.tight", "resnet50.tight"] {
        let html = page(&recording(name));
        assert!(html.len() < 300 << 10, "{name}: {} bytes", html.len());
    }
}

#[test]
fn a_page_has_a_bound_whatever_the_file_holds() {
    let html = page(&row(&"<".repeat(1 << 20), &hostile::recording()));
    assert!(html.len() < 4 << 20, "{} bytes", html.len());
}

#[test]
fn a_file_without_a_history_has_a_page_without_a_timeline() {
    let mut pages = 0;
    for entry in std::fs::read_dir(testdata().join("snapshots")).unwrap() {
        let Ok(mut file) = tonnage_snapshot::open(&entry.unwrap().path()) else { continue };
        file.traces.clear();
        if file.segments.is_empty() {
            continue;
        }
        let html = page(&row("state", &file));
        assert!(html.contains("When the snapshot was taken") && !html.contains("Memory over time"));
        pages += 1;
    }
    assert!(pages > 0);
}
