//! The answer as a page of text.
//!
//! In: an [`Answer`] and a [`Layout`]. Out: lines, what matters most first. Every figure is the answer's own; text from files
//! is made safe for terminals. Lists are cut: the JSON has all of them.

use std::collections::BTreeMap;
use std::fmt::Write;

use tonnage_analysis::report::Layout;
use tonnage_events::{Bytes, counted, grouped, plain};

use crate::answer::{Answer, Failed, Group, Outlier, Spread, Whose};
use crate::differences::Difference;
use crate::ranges::ranges;

/// How many rows of a list are shown.
const ROWS: usize = 10;

impl Answer {
    /// As a page of text.
    #[must_use]
    pub fn to_text_in(&self, layout: Layout) -> String {
        let mut text = String::new();
        layout.paragraph(&mut text, "", &self.text);
        self.failures(&mut text, layout);
        self.near(&mut text, layout);
        self.list_groups(&mut text, layout);
        self.list_outliers(&mut text, layout);
        self.growth(&mut text, layout);
        self.balance(&mut text, layout);
        self.setting(&mut text, layout);
        self.not_read(&mut text, layout);
        text
    }

    fn failures(&self, text: &mut String, layout: Layout) {
        let Some(first) = self.failed.first() else { return };
        layout.heading(text, "Failed");
        // Ranks that failed for the same reason at the same line are one row.
        let mut alike = BTreeMap::<_, Vec<&Failed>>::new();
        for it in &self.failed {
            alike.entry((&it.cause, &it.cause_line, &it.line)).or_default().push(it);
        }
        let mut alike: Vec<_> = alike.into_values().collect();
        alike.sort_by_key(|of| (usize::MAX - of.len(), &of[0].whose.file));
        for of in alike.iter().take(ROWS) {
            let it = of[0];
            let more = if of.len() > 1 { ", as the first of them" } else { "" };
            let blamed = it.cause_line.as_ref().map_or(String::new(), |line| format!(" at {line}"));
            let line = it.line.as_ref().map_or(String::new(), |line| format!(" at {line}"));
            let words = format!(
                "{}: {} were asked for{line} with {} reserved; what limits it is `{}`, {}{blamed}{more}",
                names(of.iter().map(|it| &it.whose)),
                Bytes(it.bytes),
                Bytes(it.reserved),
                it.cause,
                Bytes(it.cause_bytes)
            );
            layout.paragraph(text, "  - ", &words);
        }
        rest(text, alike.len());
        let _ = writeln!(text, "\n  {} in full:", plain(&first.whose.name()));
        layout.paragraph(text, "    ", &first.verdict);
    }

    fn near(&self, text: &mut String, layout: Layout) {
        let Some(near) = self.near.as_ref().filter(|it| !it.ranks.is_empty()) else { return };
        let source = if near.given { "" } else { ", the least that explains where ranks failed" };
        let beyond = if near.beyond() > 0 { ", or beyond it" } else { "" };
        layout.heading(text, &format!("Near the limit of {}{beyond}{source}", Bytes(near.limit)));
        for it in near.ranks.iter().take(ROWS) {
            let share = match it.reserved > near.limit {
                true => "beyond".to_owned(),
                false => format!("{:.1} %", it.reserved as f64 / near.limit.max(1) as f64 * 100.0),
            };
            let figures = format!("{:>12} {share:>8}  ", Bytes(it.reserved).to_string());
            layout.row(text, &figures, &it.whose.name());
        }
        rest(text, near.ranks.len());
    }

    fn list_groups(&self, text: &mut String, layout: Layout) {
        if self.groups.is_empty() {
            return;
        }
        layout.heading(text, "Groups of ranks that are alike");
        for (number, group) in self.groups.iter().enumerate().take(ROWS) {
            let Spread { least, middle, most } = group.reserved;
            let [least, middle, most] = [least, middle, most].map(Bytes);
            let ranks = match group.ranks.as_str() {
                "" => String::new(),
                ranks => format!(" (ranks {ranks})"),
            };
            let common: Vec<_> =
                group.common.iter().map(|it| format!("{} {}", it.part, it.value)).collect();
            let common = match &common[..] {
                [] => String::new(),
                parts => format!("; {}, which no other group has", parts.join(", ")),
            };
            let spread = if least == most {
                format!("each reserves {middle}")
            } else {
                format!("they reserve {least} to {most}, the middle {middle}")
            };
            let words = format!(
                "{}{ranks}: {spread}{common}; in the middle is {}",
                counted(group.files, "file"),
                group.middle.name()
            );
            layout.paragraph(text, &format!("  {}. ", number + 1), &words);
            if number == 0 {
                holds(text, layout, group);
            } else {
                let differs: Vec<_> = group.differs.iter().map(Difference::words).collect();
                let differs = match &differs[..] {
                    [] => "as group 1 but for less than 1 %".to_owned(),
                    differs => differs.join(", "),
                };
                layout.paragraph(text, "     ", &format!("against group 1: {differs}"));
            }
        }
        rest(text, self.groups.len());
    }

    fn list_outliers(&self, text: &mut String, layout: Layout) {
        if self.outliers.is_empty() {
            return;
        }
        layout.heading(text, "Ranks that differ from their group");
        for outlier in self.outliers.iter().take(ROWS) {
            let Outlier { whose, group, stray, .. } = outlier;
            let is = if *stray { "like no group; nearest is" } else { "of" };
            let words = format!("{}, {is} group {}", whose.name(), group + 1);
            layout.paragraph(text, "  - ", &words);
            for it in &outlier.differs {
                layout.paragraph(text, "      ", &it.words());
            }
            if outlier.diff.is_some() {
                let (a, b) = (quoted(&self.groups[*group].middle.file), quoted(&whose.file));
                let _ = writeln!(text, "      tonnage diff {a} {b}");
            }
        }
        rest(text, self.outliers.len());
    }

    fn growth(&self, text: &mut String, layout: Layout) {
        if self.growing.is_empty() {
            return;
        }
        layout.heading(text, "What grows from one iteration to the next");
        for it in self.growing.iter().take(ROWS) {
            let line = it.line.as_ref().map_or(String::new(), |line| format!(" at {line}"));
            let who = match it.ranks.as_str() {
                "" => counted(it.files, "file"),
                ranks if it.files == 1 => format!("rank {ranks}"),
                ranks => format!("{} (ranks {ranks})", counted(it.files, "file")),
            };
            let span = |[least, most]: [u64; 2]| match least == most {
                true => Bytes(most).to_string(),
                false => format!("{} to {}", Bytes(least), Bytes(most)),
            };
            let each = match it.per_iteration {
                [_, 0] => String::new(),
                span_of => format!(", {} in each iteration", span(span_of)),
            };
            let words = format!("`{}`{line}: {who}, {}{each}", it.kind, span(it.bytes));
            layout.paragraph(text, "  - ", &words);
        }
        rest(text, self.growing.len());
    }

    fn balance(&self, text: &mut String, layout: Layout) {
        let Some(it) = self.imbalance.as_ref().filter(|_| self.read > 1) else { return };
        layout.heading(text, "Balance");
        let words = format!(
            "{} reserves most, {}, and {} least, {}; the mean is {}",
            it.most.whose.name(),
            Bytes(it.most.reserved),
            it.least.whose.name(),
            Bytes(it.least.reserved),
            Bytes(it.mean)
        );
        layout.paragraph(text, "  ", &words);
        if !self.failed.is_empty() {
            let failed = names(self.failed.iter().map(|it| &it.whose));
            let words = format!(
                "no card is named: requests failed on {failed}, and how much more was needed is not known"
            );
            return layout.paragraph(text, "  ", &words);
        }
        let words = match (&it.card, &it.levelled) {
            (Some(card), Some(levelled)) if card == levelled => {
                format!(
                    "levelled or not, the smallest card known here that has room for every rank is {card}"
                )
            }
            (Some(card), Some(levelled)) => format!(
                "the smallest card known here that has room for every rank is {card}; if every rank reserved the mean, {levelled} \
                 would do"
            ),
            (None, Some(levelled)) => format!(
                "no card known here has room for every rank; if every rank reserved the mean, {levelled} would do"
            ),
            (_, None) => return,
        };
        layout.paragraph(text, "  ", &words);
    }

    fn setting(&self, text: &mut String, layout: Layout) {
        let Some(it) = &self.best_setting else { return };
        layout.heading(text, "The setting that is best for all");
        let replays =
            format!("{} under {}", counted(it.ranks, "rank"), counted(it.settings, "setting"));
        let Some(reserved) = it.reserved else {
            let words = format!(
                "none: every rank has a request that fails under each; by replay of {replays}"
            );
            return layout.paragraph(text, "  ", &words);
        };
        let conf = match it.conf.as_str() {
            "" => "PyTorch's defaults (no PYTORCH_CUDA_ALLOC_CONF)".to_owned(),
            conf => format!("PYTORCH_CUDA_ALLOC_CONF={conf}"),
        };
        let recorded = match it.recorded_alike {
            true => "under the recorded settings",
            false => "under the recorded settings, which are not the same for all",
        };
        let failing = |fits: usize| counted(it.ranks - fits, "rank");
        let change = match it.recorded {
            None => format!("; {recorded}, requests of {} fail", failing(it.recorded_fits)),
            Some(_) if it.fits < it.ranks => format!("; {recorded}, none fails"),
            Some(before) => match before.checked_sub(reserved) {
                Some(0) => format!(", as much as {recorded}"),
                Some(less) => format!(", {} less than {recorded}", Bytes(less)),
                None => format!(", {} more than {recorded}", Bytes(reserved - before)),
            },
        };
        let words = format!(
            "{conf}: the rank that reserves most reserves {} then{change}; by replay of {replays}",
            Bytes(reserved)
        );
        layout.paragraph(text, "  ", &words);
        if it.fits < it.ranks {
            let words = format!(
                "requests of {} fail under it, and what these reserve is not counted",
                failing(it.fits)
            );
            layout.paragraph(text, "  ", &words);
        }
    }

    fn not_read(&self, text: &mut String, layout: Layout) {
        if self.unreadable.is_empty() {
            return;
        }
        layout.heading(text, "Not read");
        for it in self.unreadable.iter().take(ROWS) {
            layout.paragraph(text, "  - ", &format!("{}: {}", it.whose.file, it.why));
        }
        rest(text, self.unreadable.len());
    }
}

/// What holds the memory of a group's middle.
fn holds(text: &mut String, layout: Layout, group: &Group) {
    let purposes: Vec<_> =
        group.purposes.iter().map(|it| format!("{} {}", Bytes(it.bytes), it.name)).collect();
    if !purposes.is_empty() {
        layout.paragraph(text, "     ", &format!("at its peak it holds {}", purposes.join(", ")));
    }
}

/// How many there are behind those that were shown.
fn rest(text: &mut String, all: usize) {
    if all > ROWS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  and {} more: --json has all", grouped(all - ROWS));
    }
}

/// Ranks of files; a file alone by its name.
fn names<'a>(of: impl Iterator<Item = &'a Whose>) -> String {
    let all: Vec<_> = of.collect();
    let ranks: Vec<u64> = all.iter().filter_map(|it| it.place.rank).collect();
    match &all[..] {
        [one] => one.name(),
        _ if ranks.len() == all.len() => {
            let mut ranks = ranks;
            ranks.sort_unstable();
            format!("ranks {}", ranges(&ranks))
        }
        _ => counted(all.len(), "file"),
    }
}

/// A path as a shell takes it.
fn quoted(path: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "/._-=+:@,%".contains(c);
    if !path.is_empty() && path.chars().all(safe) {
        return path.to_owned();
    }
    format!("'{}'", plain(path).replace('\'', "'\\''"))
}
