//! The screen: a table of processes, the chosen one below it in detail, keys at the foot.
//!
//! What there is no room for is left out, least important first: columns of the table, then the chart,
//! then the detail.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style as Look};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{
    Block, Borders, Cell, Clear, HighlightSpacing, Paragraph, Row as TableRow, Sparkline, Table,
    TableState, Wrap,
};
use tonnage::Bytes;

use crate::output::{counted, grouped, plain};
use crate::top::bars::{bars, last};
use crate::top::text::HOW_TO_PUBLISH;
use crate::top::view::{Row, Sort, View};

/// Lines of the detail: its frame, six of figures, a title and as many call sites as a sheet has.
const DETAIL: u16 = 17;

/// The table keeps this much, its header included, before the detail gets anything.
const TABLE: u16 = 5;

/// Below this width the chart has no place beside the figures.
const WIDE: u16 = 60;

/// Columns of the figures beside the chart.
const FIGURES: u16 = 36;

/// Colours, or none.
#[derive(Clone, Copy)]
pub(super) struct Style {
    colours: bool,
}

impl Style {
    /// Colours, unless `NO_COLOR` is set.
    pub(super) fn from_env() -> Self {
        Self { colours: std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty()) }
    }

    fn colour(self, colour: Color) -> Look {
        if self.colours { Look::new().fg(colour) } else { Look::new() }
    }

    fn bold(self) -> Look {
        Look::new().add_modifier(Modifier::BOLD)
    }
}

pub(super) fn draw(frame: &mut Frame, view: &mut View, style: Style) {
    let [title, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(title_line(view, style), title);
    frame.render_widget(foot_line(view, style), foot);
    if view.rows().is_empty() {
        draw_nothing(frame, body, view);
    } else {
        draw_processes(frame, body, view, style);
    }
    if view.help() {
        draw_help(frame, style);
    }
}

fn title_line(view: &View, style: Style) -> Line<'static> {
    let mut processes: Vec<_> = view.rows().iter().map(|row| row.pid).collect();
    processes.sort_unstable();
    processes.dedup();
    let processes = match processes.len() {
        1 => "1 process".to_owned(),
        number => format!("{} processes", grouped(number)),
    };
    let mut spans = vec![
        Span::styled("tonnage top", style.bold()),
        Span::raw(format!("  {processes}, by {}", view.sort().name())),
    ];
    if view.paused() {
        spans.push(Span::styled("  paused", style.colour(Color::Yellow).patch(style.bold())));
    }
    Line::from(spans)
}

fn foot_line(view: &View, style: Style) -> Line<'static> {
    let passed_over = match view.skipped() {
        [] => return Line::from("? help  q quit  ↑↓ move  s sort  p pause"),
        [one] => format!("passed over {}: {}", one.path.display(), one.reason),
        many => format!("passed over {} files: `tonnage top --once` says why", many.len()),
    };
    Line::styled(plain(&passed_over).into_owned(), style.colour(Color::Yellow))
}

fn draw_nothing(frame: &mut Frame, area: Rect, view: &View) {
    let mut text = Text::from_iter(HOW_TO_PUBLISH);
    if !view.skipped().is_empty() {
        text.push_line("");
    }
    for skipped in view.skipped() {
        let path = skipped.path.display().to_string();
        text.push_line(format!("passed over {}: {}", plain(&path), plain(&skipped.reason)));
    }
    let [_, area] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), area);
}

fn draw_processes(frame: &mut Frame, area: Rect, view: &mut View, style: Style) {
    let rows = u16::try_from(view.rows().len()).unwrap_or(u16::MAX);
    // The table needs no more than its rows; a screen too low has no room for detail.
    let table =
        rows.saturating_add(1).max(TABLE).min(area.height.saturating_sub(DETAIL).max(TABLE));
    let [table, detail] =
        Layout::vertical([Constraint::Length(table), Constraint::Fill(1)]).areas(area);
    let place = view.place();
    let mut state = TableState::new().with_offset(view.first).with_selected(place);
    frame.render_stateful_widget(processes(view, table.width, style), table, &mut state);
    view.first = state.offset();
    if let Some(row) = place.and_then(|place| view.rows().get(place))
        && detail.height >= 4
    {
        draw_detail(frame, detail, row, style);
    }
}

/// A column of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Pid,
    Device,
    Allocated,
    Reserved,
    Waste,
    Rate,
    Past,
    Command,
}

impl Column {
    const ALL: [Self; 8] = [
        Self::Pid,
        Self::Device,
        Self::Allocated,
        Self::Reserved,
        Self::Waste,
        Self::Rate,
        Self::Past,
        Self::Command,
    ];

    /// The same, most important first.
    const BY_IMPORTANCE: [Self; 8] = [
        Self::Pid,
        Self::Allocated,
        Self::Reserved,
        Self::Past,
        Self::Waste,
        Self::Rate,
        Self::Device,
        Self::Command,
    ];

    fn width(self) -> u16 {
        match self {
            Self::Pid | Self::Rate => 7,
            Self::Device | Self::Past => 8,
            Self::Allocated | Self::Reserved => 11,
            Self::Waste => 5,
            Self::Command => 12,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Pid => "PID",
            Self::Device => "DEVICE",
            Self::Allocated => "ALLOCATED",
            Self::Reserved => "RESERVED",
            Self::Waste => "WASTE",
            Self::Rate => "ALLOC/S",
            Self::Past => "PAST",
            Self::Command => "COMMAND",
        }
    }

    fn sort(self) -> Option<Sort> {
        match self {
            Self::Pid => Some(Sort::Process),
            Self::Allocated => Some(Sort::Allocated),
            Self::Reserved => Some(Sort::Reserved),
            Self::Waste => Some(Sort::Waste),
            Self::Rate => Some(Sort::Rate),
            Self::Device | Self::Past | Self::Command => None,
        }
    }

    fn is_number(self) -> bool {
        self.sort().is_some()
    }

    /// Those that a screen has room for, in their order.
    fn that_fit(width: u16) -> Vec<Self> {
        let mut left = i32::from(width) + 1;
        let fit: Vec<_> = Self::BY_IMPORTANCE
            .into_iter()
            .take_while(|column| {
                left -= i32::from(column.width()) + 1;
                left >= 0
            })
            .collect();
        Self::ALL.into_iter().filter(|column| fit.contains(column)).collect()
    }

    fn text(self, row: &Row, width: u16) -> String {
        match self {
            Self::Pid => row.pid.to_string(),
            Self::Device => row.device.name.clone(),
            Self::Allocated => Bytes(row.device.allocated.now).to_string(),
            Self::Reserved => Bytes(row.device.reserved.now).to_string(),
            Self::Waste => row.waste(),
            Self::Rate => row.rate(),
            Self::Past => bars(&row.device.past, width.into()),
            Self::Command => row.command.clone(),
        }
    }
}

fn processes(view: &View, width: u16, style: Style) -> Table<'static> {
    let columns = Column::that_fit(width);
    let taken: u16 = columns.iter().map(|column| column.width() + 1).sum();
    // What is left goes to the command, or without one to the past.
    let spare = (width + 1).saturating_sub(taken);
    let widest = if columns.contains(&Column::Command) { Column::Command } else { Column::Past };
    let width_of = |column: Column| column.width() + if column == widest { spare } else { 0 };
    let cell = |column: Column, text: String, look: Look| {
        let line = Line::styled(text, look);
        let to = if column.is_number() { Alignment::Right } else { Alignment::Left };
        Cell::from(line.alignment(to))
    };
    let header = columns.iter().map(|&column| {
        let sorted = column.sort() == Some(view.sort());
        let look = style.bold();
        let look = if sorted { look.add_modifier(Modifier::UNDERLINED) } else { look };
        cell(column, column.title().to_owned(), look)
    });
    let rows = view.rows().iter().map(|row| {
        let cells = columns.iter().map(|&column| {
            let look = match column {
                Column::Past => style.colour(Color::Cyan),
                _ => Look::new(),
            };
            cell(column, column.text(row, width_of(column)), look)
        });
        let silent = if row.silent.is_some() { Modifier::DIM } else { Modifier::empty() };
        TableRow::new(cells.collect::<Vec<_>>()).style(Look::new().add_modifier(silent))
    });
    let widths = columns.iter().map(|&column| Constraint::Length(width_of(column)));
    Table::new(rows.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
        .header(TableRow::new(header.collect::<Vec<_>>()))
        .column_spacing(1)
        .highlight_spacing(HighlightSpacing::Never)
        .row_highlight_style(Look::new().add_modifier(Modifier::REVERSED))
}

fn draw_detail(frame: &mut Frame, area: Rect, row: &Row, style: Style) {
    let silent = row.silent.map_or_else(String::new, |it| format!(", silent for {it} s"));
    let title = format!(" {} on {}{silent}: {} ", row.pid, row.device.name, row.command);
    let block = Block::new().borders(Borders::TOP).title(Span::styled(title, style.bold()));
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let figures = figures(row, style);
    let sites = call_sites(row, inside.width);
    let height = u16::try_from(figures.lines.len()).unwrap_or(u16::MAX);
    let [above, below] =
        Layout::vertical([Constraint::Length(height), Constraint::Fill(1)]).areas(inside);
    if inside.width >= WIDE {
        let [left, right] =
            Layout::horizontal([Constraint::Length(FIGURES), Constraint::Fill(1)]).areas(above);
        frame.render_widget(figures, left);
        draw_chart(frame, right, row, style);
    } else {
        frame.render_widget(figures, above);
    }
    frame.render_widget(sites, below);
}

fn figures(row: &Row, style: Style) -> Text<'static> {
    let device = &row.device;
    let mut text = Text::styled(format!("{:9} {:>11} {:>11}", "", "now", "peak"), style.bold());
    for (name, level) in [
        ("requested", device.requested),
        ("allocated", device.allocated),
        ("reserved", device.reserved),
    ] {
        let (now, peak) = (Bytes(level.now).to_string(), Bytes(level.peak).to_string());
        text.push_line(format!("{name:9} {now:>11} {peak:>11}"));
    }
    let of = match device.limit {
        Some(limit) => format!("limit {}", Bytes(limit)),
        None => format!("device has {}", Bytes(device.total)),
    };
    text.push_line(format!("waste {}, {of}", row.waste()));
    let blocks = counted(device.blocks, "block");
    text.push_line(match device.ooms {
        0 => Line::from(format!("{blocks}, {} handed out", grouped(device.allocations))),
        ooms => Line::styled(
            format!("{blocks}, {} failed", counted(ooms, "request")),
            style.colour(Color::Red),
        ),
    });
    text
}

fn draw_chart(frame: &mut Frame, area: Rect, row: &Row, style: Style) {
    let device = &row.device;
    let points = last(&device.past, area.width.into());
    let most = points.iter().copied().max().unwrap_or(0);
    let seconds = points.len() as u64 * device.span_us / 1_000_000;
    let title = format!("allocated, sampled for {seconds} s, ≤ {}", Bytes(most));
    let [above, chart] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Line::styled(title, style.bold()), above);
    // A whole bar is the peak, which may have come and gone between two samples.
    let whole_bar = device.allocated.peak.max(most).max(1);
    let chart_of = Sparkline::default().data(points).max(whole_bar);
    frame.render_widget(chart_of.style(style.colour(Color::Cyan)), chart);
}

/// The lines that hold the memory; each loses its beginning where it is too long.
fn call_sites(row: &Row, width: u16) -> Text<'static> {
    let Some(sites) = &row.device.call_sites else {
        return Text::from(vec![
            Line::from("which lines hold the memory is not recorded:"),
            Line::from("start the job with TONNAGE_PUBLISH=sites"),
        ]);
    };
    if sites.is_empty() {
        return Text::from("no line holds memory");
    }
    let lines = sites.iter().map(|site| {
        let bytes = format!("{:>11} ", Bytes(site.bytes).to_string());
        let room = usize::from(width).saturating_sub(bytes.len());
        bytes + &end_of(&site.line, room)
    });
    let title =
        Line::styled("lines that hold the memory", Look::new().add_modifier(Modifier::BOLD));
    std::iter::once(title).chain(lines.map(Line::from)).collect()
}

/// The last characters of a text that there is room for.
fn end_of(text: &str, room: usize) -> String {
    let count = text.chars().count();
    if count <= room {
        return text.to_owned();
    }
    let kept = room.saturating_sub(1);
    std::iter::once('…').chain(text.chars().skip(count - kept)).collect()
}

fn draw_help(frame: &mut Frame, style: Style) {
    let lines = [
        "↑ ↓ j k   choose a process",
        "g G       the first, the last",
        "s         sort by the next column",
        "p space   pause, go on",
        "q Esc     quit",
        "",
        "allocated  blocks handed out",
        "reserved   obtained from the device",
        "waste      peak reserved ÷",
        "           peak requested",
        "alloc/s    blocks handed out",
        "past       allocated, ½ s a bar",
    ];
    let whole = frame.area();
    let width = whole.width.min(40);
    let height = whole.height.min(lines.len() as u16 + 2);
    let area = Rect {
        x: whole.x + (whole.width - width) / 2,
        y: whole.y + (whole.height - height) / 2,
        width,
        height,
    };
    let block = Block::bordered().title(Span::styled(" keys and words ", style.bold()));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(Text::from_iter(lines)).block(block), area);
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;
    use tonnage::monitor::{CallSite, DeviceFigures, FigureSheet, NowAndPeak, Processes, Skipped};

    use super::*;

    fn device(name: &str, scale: u64) -> DeviceFigures {
        let level = |now: u64, peak: u64| NowAndPeak {
            now: (now * scale) << 20,
            peak: (peak * scale) << 20,
        };
        DeviceFigures {
            name: name.into(),
            total: 80 << 30,
            requested: level(90, 200),
            allocated: level(100, 210),
            active: level(110, 220),
            reserved: level(300, 400),
            blocks: 1_234,
            allocations: 5_678_901,
            frees: 5_677_667,
            allocations_per_second: 12_345.0,
            past: (0..120).map(|it| ((it % 30) * scale) << 20).collect(),
            span_us: 500_000,
            ..DeviceFigures::default()
        }
    }

    /// When tests look.
    const NOW: u64 = 60_000_000;

    fn sheets() -> Vec<FigureSheet> {
        let mut busy = device("cuda:0", 64);
        busy.limit = Some(40 << 30);
        let site = |line: &str, bytes: u64| CallSite { line: line.into(), bytes, blocks: 3 };
        busy.call_sites = Some(vec![
            site("src/model.rs:120 model::attention::forward", 4 << 30),
            site(&format!("{}src/data.rs:7", "very/long/folder/".repeat(8)), 1 << 30),
        ]);
        let mut failed = device("cuda:1", 1);
        failed.ooms = 2;
        let sheet = |pid, command: &str, sampled_us, devices| FigureSheet {
            pid,
            command: command.into(),
            sampled_us,
            devices,
        };
        vec![
            sheet(4_194_303, "train --recipe gpt2 --layers 48 --batch 8", NOW, vec![busy, failed]),
            sheet(77, "tonnage run", NOW - 9_000_000, vec![device("host:0", 2)]),
        ]
    }

    fn screen(width: u16, height: u16, sheets: Vec<FigureSheet>, keys: &[KeyCode]) -> String {
        let mut view = View::default();
        view.update(Processes { sheets, skipped: Vec::new() }, NOW);
        for &key in keys {
            view.key(key);
        }
        shown(width, height, &mut view)
    }

    fn shown(width: u16, height: u16, view: &mut View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let style = Style { colours: false };
        terminal.draw(|frame| draw(frame, view, style)).unwrap();
        let buffer = terminal.backend().buffer();
        let mut text = String::new();
        for line in buffer.content().chunks(width.into()) {
            let line: String = line.iter().map(|cell| cell.symbol()).collect();
            writeln!(text, "{}", line.trim_end()).unwrap();
        }
        text
    }

    #[test]
    fn the_screen_of_80_by_24() {
        insta::assert_snapshot!(screen(80, 24, sheets(), &[]));
    }

    #[test]
    fn the_screen_of_40_by_24() {
        insta::assert_snapshot!(screen(40, 24, sheets(), &[KeyCode::End]));
    }

    #[test]
    fn the_screen_of_80_by_24_with_nothing_to_see() {
        insta::assert_snapshot!(screen(80, 24, Vec::new(), &[]));
    }

    #[test]
    fn the_help_fits_into_40_columns() {
        insta::assert_snapshot!(screen(40, 16, sheets(), &[KeyCode::Char('?')]));
    }

    #[test]
    fn no_size_is_too_small_or_too_large_to_draw() {
        for width in (1..=40).chain([60, 80, 200, 500]) {
            for height in (1..=24).chain([60, 100]) {
                for sheets in [sheets(), Vec::new()] {
                    screen(width, height, sheets.clone(), &[]);
                    screen(width, height, sheets, &[KeyCode::Char('?')]);
                }
            }
        }
    }

    #[test]
    fn the_chosen_row_stays_on_the_screen_among_many() {
        let sheets = (1..=200).map(|pid| FigureSheet { pid, ..sheets()[1].clone() }).collect();
        let text = screen(80, 24, sheets, &[KeyCode::Char('G')]);
        assert!(text.contains("\n    200 host:0"), "{text}");
        assert!(text.contains("200 processes"), "{text}");
    }

    #[test]
    fn what_was_passed_over_is_told() {
        let mut view = View::default();
        let skipped = |name: &str| Skipped { path: name.into(), reason: "its checksum".into() };
        view.update(Processes { sheets: sheets(), skipped: vec![skipped("/a")] }, NOW);
        assert!(shown(80, 24, &mut view).contains("passed over /a: its checksum"));
        view.update(
            Processes { sheets: sheets(), skipped: vec![skipped("/a"), skipped("/b")] },
            NOW,
        );
        assert!(shown(80, 24, &mut view).contains("passed over 2 files"));
        view.update(Processes { sheets: Vec::new(), skipped: vec![skipped("/a")] }, NOW);
        assert!(shown(80, 24, &mut view).contains("passed over /a: its checksum"));
    }

    #[test]
    fn without_colours_nothing_is_coloured() {
        let mut view = View::default();
        view.update(Processes { sheets: sheets(), skipped: Vec::new() }, NOW);
        for (colours, coloured) in [(false, false), (true, true)] {
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
            terminal.draw(|frame| draw(frame, &mut view, Style { colours })).unwrap();
            let cells = terminal.backend().buffer().content().iter();
            assert_eq!(cells.clone().any(|cell| cell.fg != Color::Reset), coloured);
            // The chosen row shows without them too.
            assert!(cells.clone().any(|cell| cell.modifier.contains(Modifier::REVERSED)));
        }
    }
}
