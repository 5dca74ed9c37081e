//! Memory over time: allocated and reserved bytes, iterations, failed requests, the peaks.
//!
//! The drawing is stretched to the page's width; its labels are not. So paths are in coordinates of their
//! own (a column wide, a thousandth of the scale high), and everything else is placed by shares.

use std::fmt::Write;

use maud::{Markup, html};
use tonnage_analysis::report::{Report, Span, Timeline};
use tonnage_events::Bytes;

use crate::figures::{At, Scale, bytes, count, duration, grouped, share};

/// More iterations than this are not told apart.
const MARKED: usize = 120;

/// The height of a path's coordinates.
const HIGH: f64 = 1000.0;

pub(crate) fn timeline(report: &Report) -> Markup {
    let timeline = &report.timeline;
    if timeline.columns.is_empty() {
        return html! {};
    }
    let most = timeline.columns.iter().map(|it| it.reserved.most.max(it.allocated.most)).max();
    let most = most.unwrap_or(0);
    // A limit far above says little and would flatten everything else.
    let limit = report.limit.filter(|&limit| limit / 2 <= most);
    let scale = Scale::of(most.max(limit.unwrap_or(0)));
    let top = scale.top;
    let place = |event: usize| At(share(event as u64, timeline.events as u64));
    let height = |bytes: u64| At(1.0 - share(bytes, top));
    let iterations = &timeline.iterations;
    let marked = iterations.len() <= MARKED;
    html! {
        section aria-labelledby="time-h" {
            h2 #time-h { "Memory over time" }
            p.under { (spanned(report)) }
            div.chart {
                div.scale aria-hidden="true" {
                    @for quarter in (0..=4).rev() { span { (scale.label(quarter)) } }
                }
                svg #time.plot role="img" aria-label=(said(report))
                    data-columns=(columns(timeline)) {
                    @for quarter in 0..=4 {
                        @let at = At(f64::from(quarter) / 4.0);
                        line.grid x1="0" x2="100%" y1=(at) y2=(at) {}
                    }
                    @if marked { @for &event in iterations {
                        line.iteration x1=(place(event)) x2=(place(event)) y1="0" y2="100%" {}
                    } }
                    svg viewBox={ "0 0 " (timeline.columns.len()) " " (HIGH) }
                        width="100%" height="100%" preserveAspectRatio="none" {
                        path.allocated-area d=(area(timeline, top)) {}
                        path.allocated d=(band(timeline, top, |it| it.allocated)) {}
                        path.reserved d=(band(timeline, top, |it| it.reserved)) {}
                    }
                    @for &event in &timeline.failed {
                        line.failed x1=(place(event)) x2=(place(event)) y1="0" y2="100%" {}
                    }
                    @if let Some(limit) = limit {
                        line.limit x1="0" x2="100%" y1=(height(limit)) y2=(height(limit)) {}
                    }
                    (peak(place(report.peak.reserved.event), height(report.peak.reserved.bytes)))
                    line #time-at.at x1="0" x2="0" y1="0" y2="100%" visibility="hidden" {}
                }
                div.events aria-hidden="true" {
                    @for quarter in 0..=4 {
                        span { (grouped(timeline.events.saturating_sub(1) * quarter / 4)) }
                    }
                }
            }
            output #time-said.said aria-live="off" {}
            ul.legend {
                li { (swatch("reserved")) "reserved" }
                li { (swatch("allocated")) "allocated" }
                li { (swatch("peak")) "reserved first peaks: " (bytes(report.peak.reserved.bytes)) }
                @if marked && !iterations.is_empty() { li { (swatch("iteration")) "iterations" } }
                @if !timeline.failed.is_empty() { li { (swatch("failed")) "failed requests" } }
                @if limit.is_some() { li { (swatch("limit")) "limit" } }
                @if !marked {
                    li.muted { (grouped(report.growth.iterations)) " iterations, too many to mark" }
                }
            }
        }
    }
}

/// What the drawing spans.
fn spanned(report: &Report) -> String {
    let timeline = &report.timeline;
    let mut text = count(timeline.events, "entry", "entries");
    if let Some(us) = timeline.lasted_us.filter(|&us| us > 0) {
        // Writing to a string cannot fail.
        let _ = write!(text, " in {}", duration(us));
    }
    let wide = timeline.events.div_ceil(timeline.columns.len());
    if wide > 1 {
        let _ = write!(text, "; each column is {wide} entries, from the least to the most");
    }
    text + "."
}

/// The drawing in words.
fn said(report: &Report) -> String {
    let peak = &report.peak.reserved;
    let mut text = format!(
        "Reserved memory first peaks at {} after entry {} of {}",
        Bytes(peak.bytes),
        grouped(peak.event),
        grouped(report.timeline.events)
    );
    if report.failed_requests > 0 {
        let _ =
            write!(text, "; {}", count(report.failed_requests, "request fails", "requests fail"));
    }
    if report.growth.iterations > 0 {
        let _ = write!(text, "; {}", count(report.growth.iterations, "iteration", "iterations"));
    }
    text
}

fn swatch(class: &str) -> Markup {
    html! {
        svg.swatch aria-hidden="true" viewBox="0 0 12 12" {
            @match class {
                "peak" => circle.peak cx="6" cy="6" r="4" {},
                "iteration" | "failed" => line class=(class) x1="6" x2="6" y1="0" y2="12" {},
                "limit" => line class=(class) x1="0" x2="12" y1="6" y2="6" {},
                "reserved" => path class=(class) d="M0 6H12" {},
                _ => path class={ (class) "-area" } d="M0 0H12V12H0Z" {},
            }
        }
    }
}

fn peak(x: At, y: At) -> Markup {
    html! { circle.peak cx=(x) cy=(y) r="4.5" {} }
}

/// For whoever points at the drawing: first entry, most allocated and most reserved of each column.
fn columns(timeline: &Timeline) -> String {
    let mut text = String::with_capacity(timeline.columns.len() * 24);
    for it in &timeline.columns {
        let _ = write!(text, "{} {} {} ", it.event, it.allocated.most, it.reserved.most);
    }
    text.truncate(text.trim_end().len());
    text
}

fn down(bytes: u64, top: u64) -> u64 {
    (HIGH - share(bytes, top) * HIGH).round() as u64
}

/// Everything below the most of each column.
fn area(timeline: &Timeline, top: u64) -> String {
    let mut path = format!("M0 {HIGH}");
    for (x, it) in timeline.columns.iter().enumerate() {
        let _ = write!(path, "V{}H{}", down(it.allocated.most, top), x + 1);
    }
    let _ = write!(path, "V{HIGH}Z");
    path
}

/// From the least to the most of each column: a line where they are the same.
fn band(
    timeline: &Timeline,
    top: u64,
    span: impl Fn(&tonnage_analysis::report::Column) -> Span,
) -> String {
    let spans: Vec<_> = timeline.columns.iter().map(span).collect();
    let mut path = format!("M0 {}", down(spans[0].most, top));
    for (x, it) in spans.iter().enumerate() {
        let _ = write!(path, "V{}H{}", down(it.most, top), x + 1);
    }
    for (x, it) in spans.iter().enumerate().rev() {
        let _ = write!(path, "V{}H{x}", down(it.least, top));
    }
    path.push('Z');
    path
}
