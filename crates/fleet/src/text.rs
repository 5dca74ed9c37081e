//! The answer as a page of text.
//!
//! In: an [`Answer`] and a [`Layout`]. Out: lines, what matters most first. Every figure is the answer's own; text from files
//! is made safe for terminals. Lists are cut: the JSON has all of them.

use std::fmt::Write;

use tonnage_analysis::report::Layout;
use tonnage_events::{Bytes, counted, grouped, plain};

use crate::address::Address;
use crate::answer::{Answer, Group, Outlier, Whose};
use crate::lines::failed_words;
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
        let alike = self.failed_alike();
        for of in alike.iter().take(ROWS) {
            let who = names(of.iter().map(|it| &it.whose));
            layout.paragraph(text, "  - ", &format!("{who}: {}", failed_words(of)));
        }
        rest(text, alike.len());
        let _ = writeln!(text, "\n  {} in full:", plain(&first.whose.name()));
        layout.paragraph(text, "    ", &first.verdict);
    }

    fn near(&self, text: &mut String, layout: Layout) {
        let Some(near) = self.near.as_ref().filter(|it| !it.ranks.is_empty()) else { return };
        layout.heading(text, &near.title());
        for it in near.ranks.iter().take(ROWS) {
            let share = near.share(it);
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
            let words = group.words();
            layout.paragraph(text, &format!("  {}. ", number + 1), &words);
            if number == 0 {
                holds(text, layout, group);
            } else {
                let differs = group.against_the_first();
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
            let Outlier { whose, group, .. } = outlier;
            let words = format!("{}, {}", whose.name(), outlier.belongs());
            layout.paragraph(text, "  - ", &words);
            for it in &outlier.differs {
                layout.paragraph(text, "      ", &it.words());
            }
            let (a, b) = (self.groups[*group].middle.opened(), whose.opened());
            // The command reads files of this machine alone.
            let are_here = [a, b].iter().all(|it| Address::parse(it).is_none());
            if outlier.diff.is_some() && are_here {
                let (a, b) = (quoted(a), quoted(b));
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
            let words = it.words();
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
            let mut words = format!(
                "no card is named: requests failed on {failed}, and how much more was needed is not known"
            );
            if let Some(levelled) = it.levelled.as_ref().filter(|_| it.levelled_files > 1) {
                let others = counted(it.levelled_files, "other");
                words += &format!(
                    "; if the {others} reserved the mean of them, {levelled} would do for these"
                );
            }
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
        for words in it.words() {
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
pub(crate) fn names<'a>(of: impl Iterator<Item = &'a Whose>) -> String {
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
