//! The same without a screen: a table for people, an object for programs.

use std::fmt::Write;

use owo_colors::OwoColorize;
use serde_json::{Value, json};
use tonnage::Bytes;
use tonnage::monitor::{DeviceFigures, Processes};

use crate::output::plain;
use crate::top::bars::bars;
use crate::top::view::View;

/// What to do when there is nothing to see.
pub(super) const HOW_TO_PUBLISH: [&str; 6] = [
    "no process publishes its figures",
    "",
    "start a job with TONNAGE_PUBLISH=1 in its environment,",
    "or with TONNAGE_PUBLISH=sites to see which lines hold its memory:",
    "",
    "  TONNAGE_PUBLISH=sites tonnage run --steps 1000",
];

/// Characters of the past.
const PAST: usize = 20;

pub(super) fn table(view: &View) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    if view.rows().is_empty() {
        for line in HOW_TO_PUBLISH {
            let _ = writeln!(text, "{line}");
        }
    } else {
        let title = format!(
            "{:>7} {:8} {:>11} {:>11} {:>5} {:>7} {:PAST$} {}",
            "PID", "DEVICE", "ALLOCATED", "RESERVED", "WASTE", "ALLOC/S", "PAST", "COMMAND"
        );
        let _ = writeln!(text, "{}", title.bold());
    }
    for row in view.rows() {
        let device = &row.device;
        let silent = row.silent.map_or_else(String::new, |it| format!(" (silent for {it} s)"));
        let _ = writeln!(
            text,
            "{:>7} {:8} {:>11} {:>11} {:>5} {:>7} {} {}{silent}",
            row.pid,
            device.name,
            Bytes(device.allocated.now).to_string(),
            Bytes(device.reserved.now).to_string(),
            row.waste(),
            row.rate(),
            bars(&device.past, PAST),
            row.command,
        );
    }
    for skipped in view.skipped() {
        let path = skipped.path.display().to_string();
        let _ = writeln!(text, "passed over {}: {}", plain(&path), plain(&skipped.reason));
    }
    text
}

pub(super) fn json(processes: &Processes) -> String {
    let sheets = processes.sheets.iter().map(|sheet| {
        json!({
            "pid": sheet.pid,
            "command": sheet.command,
            "age_us": sheet.age_us(),
            "devices": sheet.devices.iter().map(device).collect::<Vec<_>>(),
        })
    });
    let skipped = processes
        .skipped
        .iter()
        .map(|it| json!({ "path": it.path.display().to_string(), "reason": it.reason }));
    json!({
        "schema": 1,
        "processes": sheets.collect::<Vec<_>>(),
        "skipped": skipped.collect::<Vec<_>>(),
    })
    .to_string()
}

fn device(device: &DeviceFigures) -> Value {
    let sites = device.call_sites.as_ref().map(|sites| {
        let site = sites
            .iter()
            .map(|it| json!({ "line": it.line, "requested": it.bytes, "blocks": it.blocks }));
        site.collect::<Vec<_>>()
    });
    json!({
        "device": device.name,
        "total": device.total,
        "limit": device.limit,
        "requested": device.requested.now,
        "requested_peak": device.requested.peak,
        "allocated": device.allocated.now,
        "allocated_peak": device.allocated.peak,
        "active": device.active.now,
        "active_peak": device.active.peak,
        "reserved": device.reserved.now,
        "reserved_peak": device.reserved.peak,
        "waste": device.waste(),
        "blocks": device.blocks,
        "allocations": device.allocations,
        "frees": device.frees,
        "allocations_per_second": device.allocations_per_second,
        "ooms": device.ooms,
        "retries": device.retries,
        "past": device.past,
        "past_span_us": device.span_us,
        "call_sites": sites,
    })
}
