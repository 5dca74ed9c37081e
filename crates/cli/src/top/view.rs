//! What is shown, and what keys do to it.
//!
//! In:  what processes published, keys.
//! Out: rows in order, one of them chosen. Draws nothing.

use std::cmp::Reverse;

use ratatui::crossterm::event::KeyCode;
use tonnage::monitor::{DeviceFigures, Processes, Skipped};

use crate::output::plain;

/// Without a sample for so long, a process counts as silent: stopped, or too busy to publish.
const SILENT_US: u64 = 2_000_000;

/// A device of a process.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) pid: u32,
    pub(super) command: String,
    /// Seconds for which the process has been silent, if it is.
    pub(super) silent: Option<u64>,
    pub(super) device: DeviceFigures,
}

impl Row {
    /// Names the row from one look to the next.
    fn key(&self) -> (u32, &str) {
        (self.pid, &self.device.name)
    }

    pub(super) fn waste(&self) -> String {
        self.device.waste().map_or_else(|| "–".to_owned(), |waste| format!("{waste:.2}"))
    }

    pub(super) fn rate(&self) -> String {
        match self.silent {
            Some(_) => "–".to_owned(),
            None => short(self.device.allocations_per_second),
        }
    }
}

/// A number in at most six characters: 0.3, 42, 9,999, 12.3k, 1.5M.
fn short(number: f64) -> String {
    match number {
        0.05..9.95 => format!("{number:.1}"),
        ..999.5 => format!("{number:.0}"),
        ..99_950.0 => format!("{:.1}k", number / 1e3),
        ..999_500.0 => format!("{:.0}k", number / 1e3),
        ..99_950_000.0 => format!("{:.1}M", number / 1e6),
        _ => format!("{:.0}M", number / 1e6),
    }
}

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Allocated,
    Reserved,
    Waste,
    Rate,
    Process,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Reserved => "reserved",
            Self::Waste => "waste",
            Self::Rate => "allocations",
            Self::Process => "process",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Allocated => Self::Reserved,
            Self::Reserved => Self::Waste,
            Self::Waste => Self::Rate,
            Self::Rate => Self::Process,
            Self::Process => Self::Allocated,
        }
    }

    fn apply(self, rows: &mut [Row]) {
        // Rows that are equal stay in the order of processes, so that they do not jump.
        rows.sort_by(|a, b| a.key().cmp(&b.key()));
        match self {
            Self::Allocated => rows.sort_by_key(|row| Reverse(row.device.allocated.now)),
            Self::Reserved => rows.sort_by_key(|row| Reverse(row.device.reserved.now)),
            Self::Waste => rows.sort_by(|a, b| {
                b.device.waste().unwrap_or(0.0).total_cmp(&a.device.waste().unwrap_or(0.0))
            }),
            Self::Rate => rows.sort_by(|a, b| {
                b.device.allocations_per_second.total_cmp(&a.device.allocations_per_second)
            }),
            Self::Process => {}
        }
    }
}

/// What comes of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Nothing,
    Draw,
    Leave,
}

/// All that is shown.
#[derive(Debug, Default)]
pub(super) struct View {
    rows: Vec<Row>,
    skipped: Vec<Skipped>,
    sort: Sort,
    /// The chosen row, by what it shows: rows come and go and change places.
    chosen: Option<(u32, String)>,
    paused: bool,
    help: bool,
    /// The first row on the screen; the table keeps it.
    pub(super) first: usize,
}

impl View {
    /// Takes what a look at this moment found.
    pub(super) fn update(&mut self, processes: Processes, now_us: u64) {
        let before = self.place();
        self.rows.clear();
        for sheet in processes.sheets {
            let age_us = now_us.saturating_sub(sheet.sampled_us);
            let silent = (age_us > SILENT_US).then_some(age_us / 1_000_000);
            // Published by this user's processes, but of what others may have named.
            let command = plain(&sheet.command).into_owned();
            self.rows.extend(sheet.devices.into_iter().map(|mut device| {
                device.name = plain(&device.name).into_owned();
                for site in device.call_sites.iter_mut().flatten() {
                    site.line = plain(&site.line).into_owned();
                }
                Row { pid: sheet.pid, command: command.clone(), silent, device }
            }));
        }
        self.skipped = processes.skipped;
        self.sort.apply(&mut self.rows);
        // Whoever takes the place of a row that is gone is chosen then.
        if self.place().is_none() {
            self.choose(before.unwrap_or(0));
        }
    }

    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(super) fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    pub(super) fn sort(&self) -> Sort {
        self.sort
    }

    pub(super) fn paused(&self) -> bool {
        self.paused
    }

    pub(super) fn help(&self) -> bool {
        self.help
    }

    /// Where the chosen row is.
    pub(super) fn place(&self) -> Option<usize> {
        let (pid, name) = self.chosen.as_ref()?;
        self.rows.iter().position(|row| row.key() == (*pid, name))
    }

    fn choose(&mut self, place: usize) {
        let row = self.rows.get(place.min(self.rows.len().saturating_sub(1)));
        self.chosen = row.map(|row| (row.pid, row.device.name.clone()));
    }

    pub(super) fn key(&mut self, key: KeyCode) -> Next {
        if self.help {
            // Any key puts the help away, and `q` does nothing else.
            self.help = false;
            return Next::Draw;
        }
        let place = self.place().unwrap_or(0);
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Next::Leave,
            KeyCode::Up | KeyCode::Char('k') => self.choose(place.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.choose(place.saturating_add(1)),
            KeyCode::Home | KeyCode::Char('g') => self.choose(0),
            KeyCode::End | KeyCode::Char('G') => self.choose(usize::MAX),
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.sort.apply(&mut self.rows);
            }
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('?' | 'h') => self.help = true,
            _ => return Next::Nothing,
        }
        Next::Draw
    }
}

#[cfg(test)]
mod tests {
    use tonnage::monitor::{FigureSheet, NowAndPeak};

    use super::*;

    /// When tests look.
    const NOW: u64 = 60_000_000;

    fn sheet(pid: u32, allocated: u64, rate: f64) -> FigureSheet {
        let device = DeviceFigures {
            name: "host:0".into(),
            allocated: NowAndPeak { now: allocated, peak: allocated },
            reserved: NowAndPeak { now: 100 - allocated, peak: 100 },
            requested: NowAndPeak { now: allocated, peak: allocated },
            allocations_per_second: rate,
            ..DeviceFigures::default()
        };
        let command = format!("job {pid}");
        FigureSheet { pid, command, sampled_us: NOW, devices: vec![device] }
    }

    fn view(sheets: Vec<FigureSheet>) -> View {
        let mut view = View::default();
        view.update(Processes { sheets, skipped: Vec::new() }, NOW);
        view
    }

    fn order(view: &View) -> Vec<u32> {
        view.rows().iter().map(|row| row.pid).collect()
    }

    #[test]
    fn s_sorts_by_the_next_column_and_comes_round() {
        let mut view = view(vec![sheet(1, 10, 3.0), sheet(2, 30, 2.0), sheet(3, 20, 9.0)]);
        let expected: [(&str, [u32; 3]); 5] = [
            ("allocated", [2, 3, 1]),
            ("reserved", [1, 3, 2]),
            ("waste", [1, 3, 2]),
            ("allocations", [3, 1, 2]),
            ("process", [1, 2, 3]),
        ];
        for (name, pids) in expected.into_iter().chain([expected[0]]) {
            assert_eq!((view.sort().name(), &*order(&view)), (name, &pids[..]));
            assert_eq!(view.key(KeyCode::Char('s')), Next::Draw);
        }
    }

    #[test]
    fn the_chosen_row_stays_chosen_when_rows_move_and_the_next_one_is_when_it_goes() {
        let mut view = view(vec![sheet(1, 10, 0.0), sheet(2, 30, 0.0), sheet(3, 20, 0.0)]);
        assert_eq!(view.place(), Some(0));
        view.key(KeyCode::Char('j'));
        let chosen = |view: &View| view.place().map(|place| view.rows()[place].pid);
        assert_eq!(chosen(&view), Some(3));
        let sheets = vec![sheet(1, 10, 0.0), sheet(2, 30, 0.0), sheet(3, 90, 0.0)];
        view.update(Processes { sheets, skipped: Vec::new() }, NOW);
        assert_eq!((chosen(&view), view.place()), (Some(3), Some(0)));
        let sheets = vec![sheet(1, 10, 0.0), sheet(2, 30, 0.0)];
        view.update(Processes { sheets, skipped: Vec::new() }, NOW);
        assert_eq!(chosen(&view), Some(2));
        for _ in 0..5 {
            view.key(KeyCode::Down);
        }
        assert_eq!(chosen(&view), Some(1), "the last row is the last");
        view.key(KeyCode::Up);
        assert_eq!(chosen(&view), Some(2));
        view.update(Processes::default(), NOW);
        assert_eq!(chosen(&view), None);
        view.key(KeyCode::Down);
        assert_eq!(chosen(&view), None);
    }

    #[test]
    fn keys_leave_pause_and_help() {
        let mut view = view(Vec::new());
        assert_eq!(view.key(KeyCode::Char('x')), Next::Nothing);
        view.key(KeyCode::Char('p'));
        assert!(view.paused());
        view.key(KeyCode::Char('?'));
        assert!(view.help());
        assert_eq!(view.key(KeyCode::Char('q')), Next::Draw, "only the help goes");
        assert_eq!(view.key(KeyCode::Char('q')), Next::Leave);
        assert_eq!(view.key(KeyCode::Esc), Next::Leave);
    }

    #[test]
    fn a_process_that_no_longer_publishes_is_silent_and_has_no_rate() {
        let mut sheet = sheet(1, 10, 7.0);
        sheet.sampled_us = NOW - 5_000_000;
        let view = view(vec![sheet]);
        assert_eq!(view.rows()[0].silent, Some(5));
        assert_eq!(view.rows()[0].rate(), "–");
    }

    #[test]
    fn text_of_processes_cannot_command_the_terminal() {
        let mut sheet = sheet(1, 10, 7.0);
        sheet.command = "\u{1b}[2Jevil".into();
        sheet.devices[0].name = "\u{9b}0".into();
        let view = view(vec![sheet]);
        assert_eq!(view.rows()[0].command, "\\u{1b}[2Jevil");
        assert_eq!(view.rows()[0].device.name, "\\u{9b}0");
    }

    #[test]
    fn rates_are_short() {
        for (rate, text) in [
            (0.0, "0"),
            (0.25, "0.2"),
            (9.94, "9.9"),
            (9.96, "10"),
            (999.4, "999"),
            (999.6, "1.0k"),
            (12_345.0, "12.3k"),
            (99_960.0, "100k"),
            (1_500_000.0, "1.5M"),
            (250_000_000.0, "250M"),
        ] {
            assert_eq!(short(rate), text);
        }
    }
}
