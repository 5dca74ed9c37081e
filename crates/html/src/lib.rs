//! The memory report as one HTML file.
//!
//! In:  a [`Report`] of a file, or [`Ranks`] of several.
//! Out: a page that needs nothing else: styles, script and drawings are inside. Every figure is the
//!      report's own.
//!
//! | part | lives in |
//! | --- | --- |
//! | head, policy, order of the parts | `document.rs` |
//! | text from the file, made harmless | `text.rs` |
//! | figures as people read them | `figures.rs` |
//! | several files | `ranks.rs` |
//! | verdict and figures | `verdict.rs` |
//! | what to change | `advice.rs` |
//! | reserved memory, taken apart | `waste.rs` |
//! | memory over time | `timeline.rs` |
//! | what held the peak | `peak.rs`, `flame/` |
//! | growth | `growth.rs` |
//! | failed requests | `ooms.rs` |
//!
//! And a picture by itself, of memory over time (`plot.rs`).
//!
//! # Note \[Text from strangers\]
//!
//! Names in a snapshot are anyone's. Three walls keep them text: `maud` escapes whatever is put
//! between tags or into attributes; control and direction characters are spelled out and long names cut
//! (`text.rs`); and the page's Content-Security-Policy lets nothing run or load but its one script and
//! one style sheet, which are named by hash and contain no data. That is also why there are no `style` attributes: places
//! and widths are attributes of SVG, which the policy does not concern.
//!
//! The size is bounded whatever the file: lists are as long as the report's, the flame graph has at most
//! 2,000 boxes, and every text has a longest form. What was left out is said.
//!
//! ```
//! use tonnage_analysis::report::{Report, ReportOptions};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/traces/mlp_seed.default.pickle.zst");
//! let file = tonnage_snapshot::open(path.as_ref())?;
//! let report = Report::of(&file, &ReportOptions::default())?;
//! let page = tonnage_html::report_html("mlp_seed", &report);
//! assert!(page.starts_with("<!DOCTYPE html>"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

// What parts are made of.
mod text;

mod figures;

// The parts, as the page shows them.
mod verdict;

mod advice;

mod waste;

mod timeline;

mod peak;

mod flame;

mod growth;

mod ooms;

mod pinned;

mod ranks;

// The whole.
mod document;

// A picture by itself.
mod plot;

pub use plot::{LARGEST_PLOT, PlotOptions, SMALLEST_PLOT, plot_svg};
use tonnage_analysis::report::{Ranks, Report};

/// The page of one file's report; `file` is the name it goes by.
#[must_use]
pub fn report_html(file: &str, report: &Report) -> String {
    document::document(file, &document::report(document::BRAND, file, report)).into_string()
}

/// The page of several files: how they compare, then the report of the one that is the limit.
#[must_use]
pub fn ranks_html(ranks: &Ranks) -> String {
    let title = format!("{} files", ranks.ranks.len());
    document::document(&title, &ranks::ranks(ranks)).into_string()
}
