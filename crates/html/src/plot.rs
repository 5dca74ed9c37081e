//! Memory over time as a picture by itself, for papers and pull requests.
//!
//! In:  [`Strata`], and how it should look. Out: an SVG file that needs nothing else and runs nothing.
//!
//! Every figure is that of the strata. Colours are attributes, so that every program that shows SVG shows them.

use std::fmt::Write;

use maud::{Markup, html};
use tonnage_analysis::{Phase, Strata};
use tonnage_events::Bytes;

use crate::figures::{Scale, grouped};
use crate::text::shown;

/// How a picture looks.
#[derive(Clone, Debug)]
pub struct PlotOptions {
    /// What stands above it.
    pub title: String,
    /// A limit to draw.
    pub limit: Option<u64>,
    /// Dots across and down.
    pub size: (u32, u32),
    /// Light on dark.
    pub dark: bool,
}

impl Default for PlotOptions {
    fn default() -> Self {
        Self { title: String::new(), limit: None, size: (960, 440), dark: false }
    }
}

/// Colours that people with any eyes tell apart, on white and on black.
const COLOURS: [&str; 11] = [
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#ee8866",
    "#44bb99", "#999933", "#777777",
];

/// Room around the drawing: above, where a row of words has its own beside, right, below, left.
const AROUND: (f64, f64, f64, f64) = (46.0, 20.0, 44.0, 86.0);

/// How high a row of the legend is, and where its first begins.
const ROW: f64 = 18.0;
const FIRST_ROW: f64 = 38.0;

/// More iterations than this are not told apart.
const MARKED: usize = 120;

/// The most letters of a name.
const LONGEST: usize = 60;

/// The smallest picture that has room for its words.
pub const SMALLEST_PLOT: (u32, u32) = (320, 200);

/// The largest: chosen, far beyond any screen or page.
pub const LARGEST_PLOT: (u32, u32) = (16_384, 16_384);

/// About the dots that a letter of the title takes.
const WIDE_IN_TITLE: f64 = 9.0;

/// Draws memory over time.
#[must_use]
pub fn plot_svg(strata: &Strata, options: &PlotOptions) -> String {
    let (wide, high) = options.size;
    let drawing = Drawing::new(strata, options);
    let (ink, paper) = if options.dark { ("#e6e6e6", "#111418") } else { ("#222222", "#ffffff") };
    let letters = ((f64::from(wide) - AROUND.3 - AROUND.1) / WIDE_IN_TITLE) as usize;
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(wide) height=(high)
            viewBox=(format!("0 0 {wide} {high}"))
            font-family="DejaVu Sans, Liberation Sans, Helvetica, Arial, sans-serif" font-size="12" fill=(ink) {
            title { (drawing.said()) }
            rect width="100%" height="100%" fill=(paper) {}
            text x=(AROUND.3) y="22" font-size="15" font-weight="bold" { (shown(&options.title, letters)) }
            (drawing.legend(ink))
            (drawing.axes(ink))
            @for (group, path) in drawing.areas().iter().enumerate() {
                path d=(path) fill=(colour(group)) {}
            }
            (drawing.phases(ink))
            (drawing.marks(ink))
            path d=(drawing.reserved()) fill="none" stroke=(ink) stroke-width="1.5" {}
        }
    };
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n", svg.into_string())
}

/// What the axis across says.
const AXIS: &str = "entry of the history";

/// About the dots that words take: nothing here measures fonts.
fn wide_of(words: &str) -> f64 {
    7.2 * words.chars().count() as f64
}

/// Into how many steps an axis is divided so that no figure runs into the next: the last one ends where the axis ends, the others lie
/// around their places.
fn steps_across(axis: f64, widest: f64) -> usize {
    const APART: f64 = 8.0;
    [4_usize, 2].into_iter().find(|&it| axis / it as f64 >= 1.5 * widest + APART).unwrap_or(1)
}

/// Words with a sign before each, by their places from the left, in rows.
type Rows<T> = Vec<Vec<(f64, String, T)>>;

/// Rows of words with a sign before each, each with its place from the left; as many rows as may be. How many words had no
/// place is told too.
fn in_rows<T>(items: Vec<(String, T)>, until: f64, most: usize) -> (Rows<T>, usize) {
    let (mut rows, mut x, all) = (vec![Vec::new()], AROUND.3, items.len());
    for (place, (name, sign)) in items.into_iter().enumerate() {
        let wide = 20.0 + wide_of(&name);
        let row = rows.len();
        if x + wide > until && rows.last().is_some_and(|it| !it.is_empty()) {
            if row == most {
                return (rows, all - place);
            }
            rows.push(Vec::new());
            x = AROUND.3;
        }
        rows.last_mut().unwrap_or(&mut Vec::new()).push((x, name, sign));
        x += wide + 8.0;
    }
    (rows, 0)
}

/// Phases are shades of the ink: colours are the groups'.
fn shade(phase: Phase) -> &'static str {
    match phase {
        Phase::Backward => "0.5",
        Phase::Optimizer => "0.95",
        _ => "0.18",
    }
}

fn colour(group: usize) -> &'static str {
    COLOURS[group % COLOURS.len()]
}

/// How something is drawn: an area, or a line with its dashes.
#[derive(Clone, Copy)]
enum Sign {
    Area(&'static str),
    /// In the ink if it has no colour.
    Line(Option<&'static str>, &'static str),
}

/// Lines that are no line throughout: a limit, and where iterations begin.
const LIMIT: Sign = Sign::Line(Some("#cc0000"), "6 4");
const ITERATION: Sign = Sign::Line(None, "2 3");

/// The groups, then the lines, in rows of these dots; rows take half of the room below them at most. What has no room is counted.
fn legend(strata: &Strata, limit: bool, wide: f64, high: f64) -> Rows<Sign> {
    let mut items = Vec::new();
    // The lines come last, but are never those that have no room.
    items.push(("reserved".to_owned(), Sign::Line(None, "")));
    if limit {
        items.push(("limit".to_owned(), LIMIT));
    }
    if !strata.failed.is_empty() {
        items.push(("failed requests".to_owned(), Sign::Line(Some("#cc0000"), "")));
    }
    if (1..=MARKED).contains(&strata.iterations.len()) {
        items.push(("iterations".to_owned(), ITERATION));
    }
    let until = AROUND.3 + wide;
    let most = ((high / 2.0 / ROW) as usize).max(1);
    let letters = (((wide - 20.0) / wide_of("m")) as usize).min(LONGEST);
    let groups: Vec<_> = strata.groups.iter().enumerate().collect();
    // As many groups as have room.
    let all = |count: usize| {
        let named = groups.iter().take(count);
        let mut all: Vec<_> =
            named.map(|(group, name)| (shown(name, letters), Sign::Area(colour(*group)))).collect();
        if count < groups.len() {
            all.push((format!("and {} more", groups.len() - count), Sign::Line(None, "")));
        }
        all.extend(items.iter().cloned());
        in_rows(all, until, most)
    };
    let fits = (0..=groups.len()).rev().map(all).find(|(_, left)| *left == 0);
    fits.map_or_else(|| in_rows(items.clone(), until, most).0, |(rows, _)| rows)
}

struct Drawing<'a> {
    strata: &'a Strata,
    limit: Option<u64>,
    scale: Scale,
    legend: Rows<Sign>,
    /// Room above it.
    above: f64,
    wide: f64,
    high: f64,
}

impl<'a> Drawing<'a> {
    fn new(strata: &'a Strata, options: &PlotOptions) -> Self {
        let most = strata
            .columns
            .iter()
            .map(|it| {
                it.reserved.max(it.bytes.iter().fold(0_u64, |sum, &it| sum.saturating_add(it)))
            })
            .max();
        let most = most.unwrap_or(0);
        // A limit far above says little and would flatten everything else.
        let limit = options.limit.filter(|&limit| limit / 2 <= most);
        let (above, right, below, left) = AROUND;
        let wide = f64::from(options.size.0) - left - right;
        let high = f64::from(options.size.1) - above - below;
        let legend = legend(strata, limit.is_some(), wide, high);
        let rows = ROW * legend.len() as f64;
        Self {
            strata,
            limit,
            scale: Scale::of(most.max(limit.unwrap_or(0))),
            legend,
            above: above + rows,
            wide,
            high: high - rows,
        }
    }

    /// Where the first dot of a column is.
    fn x(&self, column: usize) -> f64 {
        AROUND.3 + self.wide * column as f64 / self.strata.columns.len().max(1) as f64
    }

    fn x_of_event(&self, event: usize) -> f64 {
        AROUND.3 + self.wide * event as f64 / self.strata.events.max(1) as f64
    }

    fn y(&self, bytes: u64) -> f64 {
        self.above + self.high * (1.0 - (bytes as f64 / self.scale.top.max(1) as f64).min(1.0))
    }

    /// What each group takes, on top of those below it.
    fn areas(&self) -> Vec<String> {
        let columns = &self.strata.columns;
        let mut below = vec![0_u64; columns.len()];
        let mut paths = Vec::new();
        for group in 0..self.strata.groups.len() {
            let mut path = format!("M{:.2} {:.2}", self.x(0), self.y(0));
            let top = |column: usize| below[column].saturating_add(columns[column].bytes[group]);
            // Writing to a string cannot fail.
            for column in 0..columns.len() {
                let _ = write!(path, "V{:.2}H{:.2}", self.y(top(column)), self.x(column + 1));
            }
            for column in (0..columns.len()).rev() {
                let _ = write!(path, "V{:.2}H{:.2}", self.y(below[column]), self.x(column));
            }
            path.push('Z');
            let tops: Vec<_> = (0..columns.len()).map(top).collect();
            below = tops;
            paths.push(path);
        }
        paths
    }

    fn reserved(&self) -> String {
        let mut path = String::new();
        for (column, it) in self.strata.columns.iter().enumerate() {
            let begin = if column == 0 { format!("M{:.2} ", self.x(0)) } else { "V".to_owned() };
            let _ = write!(path, "{begin}{:.2}H{:.2}", self.y(it.reserved), self.x(column + 1));
        }
        path
    }

    fn axes(&self, ink: &str) -> Markup {
        let left = AROUND.3;
        let (right, bottom) = (left + self.wide, self.above + self.high);
        let last = self.strata.events.saturating_sub(1);
        let steps = steps_across(self.wide, wide_of(&grouped(last)));
        html! {
            @for step in 0..=4_u64 {
                @let y = self.y(self.scale.top / 4 * step);
                line x1=(left) x2=(right) y1=(y) y2=(y) stroke=(ink) stroke-opacity="0.15" {}
                text x=(left - 8.0) y=(y + 4.0) text-anchor="end" { (self.scale.label(step)) }
            }
            @for step in 0..=steps {
                @let x = left + self.wide * step as f64 / steps as f64;
                // The last one may be wider than the room beside it.
                @let anchor = if step == steps { "end" } else { "middle" };
                text x=(x) y=(bottom + 20.0) text-anchor=(anchor) { (grouped(last * step / steps)) }
            }
            text x=(right) y=(bottom + 38.0) text-anchor="end" { (AXIS) }
        }
    }

    /// Below the axis what the program was doing, and what its shades mean; the latter as far as there is room.
    fn phases(&self, ink: &str) -> Markup {
        let columns = &self.strata.columns;
        let bottom = self.above + self.high;
        let mut stretches: Vec<(Phase, usize, usize)> = Vec::new();
        for (column, it) in columns.iter().enumerate() {
            match (stretches.last_mut(), it.phase) {
                (Some((last, _, end)), Some(phase)) if *last == phase && *end == column => {
                    *end += 1
                }
                (_, Some(phase)) => stretches.push((phase, column, column + 1)),
                (_, None) => {}
            }
        }
        let names = Phase::ALL.into_iter().filter(|&it| stretches.iter().any(|at| at.0 == it));
        let names = names.map(|it| (it.name().to_owned(), it));
        let until = AROUND.3 + self.wide - wide_of(AXIS);
        let (rows, _) = in_rows(names.collect(), until, 1);
        html! {
            @for &(phase, from, to) in &stretches {
                rect x=(format!("{:.2}", self.x(from))) y=(bottom + 1.0) height="6"
                    width=(format!("{:.2}", self.x(to) - self.x(from))) fill=(ink) fill-opacity=(shade(phase)) {}
            }
            @for (x, name, phase) in rows.into_iter().flatten() {
                rect x=(x) y=(bottom + 28.0) width="12" height="12" fill=(ink) fill-opacity=(shade(phase)) {}
                text x=(x + 16.0) y=(bottom + 38.0) { (name) }
            }
        }
    }

    /// Iterations, failed requests and the limit.
    fn marks(&self, ink: &str) -> Markup {
        let (top, bottom) = (self.above, self.above + self.high);
        let iterations = &self.strata.iterations;
        html! {
            @if iterations.len() <= MARKED { @for &event in iterations {
                @let x = self.x_of_event(event);
                line x1=(x) x2=(x) y1=(top) y2=(bottom) stroke=(ink) stroke-opacity="0.35" stroke-dasharray="2 3" {}
            } }
            @for &event in self.strata.failed.iter().take(MARKED) {
                @let x = self.x_of_event(event);
                line x1=(x) x2=(x) y1=(top) y2=(bottom) stroke="#cc0000" stroke-width="1.5" {}
            }
            @if let Some(limit) = self.limit {
                @let y = self.y(limit);
                line x1=(AROUND.3) x2=(AROUND.3 + self.wide) y1=(y) y2=(y)
                    stroke="#cc0000" stroke-width="1.5" stroke-dasharray="6 4" {}
            }
        }
    }

    fn legend(&self, ink: &str) -> Markup {
        html! {
            @for (row, items) in self.legend.iter().enumerate() {
                @let y = FIRST_ROW + ROW * row as f64;
                @for (x, name, sign) in items {
                    @match sign {
                        Sign::Area(colour) => rect x=(x) y=(y) width="12" height="12" fill=(colour) {},
                        Sign::Line(colour, dashes) => line x1=(x) x2=(x + 12.0) y1=(y + 6.0) y2=(y + 6.0)
                            stroke=(colour.unwrap_or(ink)) stroke-width="2"
                            stroke-dasharray=[(!dashes.is_empty()).then_some(dashes)] {},
                    }
                    text x=(x + 16.0) y=(y + 10.0) { (name) }
                }
            }
        }
    }

    /// The picture in words.
    fn said(&self) -> String {
        let columns = &self.strata.columns;
        let allocated = columns
            .iter()
            .map(|it| it.bytes.iter().fold(0_u64, |sum, &it| sum.saturating_add(it)))
            .max()
            .unwrap_or(0);
        let reserved = columns.iter().map(|it| it.reserved).max().unwrap_or(0);
        format!(
            "Memory over {} entries: at most {} allocated, {} reserved",
            grouped(self.strata.events),
            Bytes(allocated),
            Bytes(reserved)
        )
    }
}
