//! The answer's lists in words: for the page of text, and for whoever shows them in another way.
//!
//! In:  an [`Answer`]. Out: [`Section`]s of [`Line`]s, what matters most first. Every figure is the answer's own.

use std::collections::BTreeMap;

use serde::Serialize;
use tonnage_events::{Bytes, counted};

use crate::answer::{Answer, Failed, Group, Growing, Near, NearLimit, Outlier, Spread, Whose};
use crate::differences::Difference;
use crate::settings::BestSetting;
use crate::text::names;

/// A list of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    /// Which: `failed`, `near`, `groups`, `outliers`, `growing`, `setting` or `unreadable`.
    pub kind: &'static str,
    /// What it is a list of.
    pub title: String,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// A line of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The file that it is about, or that stands for those it is about; none if it is about all.
    pub file: Option<String>,
    /// What that file is called.
    pub name: String,
    /// What there is to say, in lines.
    pub words: Vec<String>,
}

impl Line {
    fn of(whose: &Whose, words: Vec<String>) -> Self {
        Self { file: Some(whose.file.clone()), name: whose.name(), words }
    }
}

impl Answer {
    /// Its lists, without those that are empty.
    #[must_use]
    pub fn sections(&self) -> Vec<Section> {
        let mut sections = Vec::new();
        let mut list = |kind, title: &str, lines: Vec<Line>| {
            if !lines.is_empty() {
                sections.push(Section { kind, title: title.to_owned(), lines });
            }
        };
        let alike = self.failed_alike();
        let failed = alike.iter().map(|of| Line {
            file: Some(of[0].whose.file.clone()),
            name: names(of.iter().map(|it| &it.whose)),
            words: vec![failed_words(of)],
        });
        list("failed", "Failed", failed.collect());
        if let Some(near) = &self.near {
            let words = |it: &Near| vec![format!("{}, {}", Bytes(it.reserved), near.share(it))];
            let lines = near.ranks.iter().map(|it| Line::of(&it.whose, words(it)));
            list("near", &near.title(), lines.collect());
        }
        let outliers = self.outliers.iter().map(|it| {
            let words = it.differs.iter().map(Difference::words);
            Line::of(&it.whose, [it.belongs()].into_iter().chain(words).collect())
        });
        list("outliers", "Ranks that differ from their group", outliers.collect());
        let groups = self.groups.iter().enumerate().map(|(number, group)| {
            let mut words = vec![group.words()];
            if number > 0 {
                words.push(format!("against group 1: {}", group.against_the_first()));
            }
            let name = format!("group {}", number + 1);
            Line { file: Some(group.middle.file.clone()), name, words }
        });
        list("groups", "Groups of ranks that are alike", groups.collect());
        let growing = self.growing.iter().map(|it| Line {
            name: format!("most on {}", it.most.name()),
            ..Line::of(&it.most, vec![it.words()])
        });
        list("growing", "What grows from one iteration to the next", growing.collect());
        if let Some(setting) = &self.best_setting {
            let line = Line { file: None, name: String::new(), words: setting.words() };
            list("setting", "The setting that is best for all", vec![line]);
        }
        let unreadable = self.unreadable.iter().map(|it| Line::of(&it.whose, vec![it.why.clone()]));
        list("unreadable", "Not read", unreadable.collect());
        sections
    }

    /// Ranks that failed for the same reason at the same line, together; the most first.
    pub(crate) fn failed_alike(&self) -> Vec<Vec<&Failed>> {
        let mut alike = BTreeMap::<_, Vec<&Failed>>::new();
        for it in &self.failed {
            alike.entry((&it.cause, &it.cause_line, &it.line)).or_default().push(it);
        }
        let mut alike: Vec<_> = alike.into_values().collect();
        alike.sort_by_key(|of| (usize::MAX - of.len(), &of[0].whose.file));
        alike
    }
}

/// What failed on ranks that failed alike, behind their names.
pub(crate) fn failed_words(of: &[&Failed]) -> String {
    let it = of[0];
    let more = if of.len() > 1 { ", as the first of them" } else { "" };
    let blamed = it.cause_line.as_ref().map_or(String::new(), |line| format!(" at {line}"));
    let line = it.line.as_ref().map_or(String::new(), |line| format!(" at {line}"));
    format!(
        "{} were asked for{line} with {} reserved; what limits it is `{}`, {}{blamed}{more}",
        Bytes(it.bytes),
        Bytes(it.reserved),
        it.cause,
        Bytes(it.cause_bytes)
    )
}

impl NearLimit {
    /// What its ranks are near to.
    pub(crate) fn title(&self) -> String {
        let source = if self.given { "" } else { ", the least that explains where ranks failed" };
        let beyond = if self.beyond() > 0 { ", or beyond it" } else { "" };
        format!("Near the limit of {}{beyond}{source}", Bytes(self.limit))
    }

    /// How much of the limit a rank reserved.
    pub(crate) fn share(&self, of: &Near) -> String {
        match of.reserved > self.limit {
            true => "beyond".to_owned(),
            false => format!("{:.1} %", of.reserved as f64 / self.limit.max(1) as f64 * 100.0),
        }
    }
}

impl Outlier {
    /// Its group.
    pub(crate) fn belongs(&self) -> String {
        let is = if self.stray { "like no group; nearest is" } else { "of" };
        format!("{is} group {}", self.group + 1)
    }
}

impl Group {
    /// Which ranks, and what they reserve.
    pub(crate) fn words(&self) -> String {
        let Spread { least, middle, most } = self.reserved;
        let [least, middle, most] = [least, middle, most].map(Bytes);
        let ranks = match self.ranks.as_str() {
            "" => String::new(),
            ranks => format!(" (ranks {ranks})"),
        };
        let common: Vec<_> =
            self.common.iter().map(|it| format!("{} {}", it.part, it.value)).collect();
        let common = match &common[..] {
            [] => String::new(),
            parts => format!("; {}, which no other group has", parts.join(", ")),
        };
        let spread = if least == most {
            format!("each reserves {middle}")
        } else {
            format!("they reserve {least} to {most}, the middle {middle}")
        };
        format!(
            "{}{ranks}: {spread}{common}; in the middle is {}",
            counted(self.files, "file"),
            self.middle.name()
        )
    }

    /// What tells it from the first group.
    pub(crate) fn against_the_first(&self) -> String {
        let differs: Vec<_> = self.differs.iter().map(Difference::words).collect();
        match &differs[..] {
            [] => "as group 1 but for less than 1 %".to_owned(),
            differs => differs.join(", "),
        }
    }
}

impl Growing {
    /// What grows, on which ranks, by how much.
    pub(crate) fn words(&self) -> String {
        let line = self.line.as_ref().map_or(String::new(), |line| format!(" at {line}"));
        let who = match self.ranks.as_str() {
            "" => counted(self.files, "file"),
            ranks if self.files == 1 => format!("rank {ranks}"),
            ranks => format!("{} (ranks {ranks})", counted(self.files, "file")),
        };
        let span = |[least, most]: [u64; 2]| match least == most {
            true => Bytes(most).to_string(),
            false => format!("{} to {}", Bytes(least), Bytes(most)),
        };
        let each = match self.per_iteration {
            [_, 0] => String::new(),
            span_of => format!(", {} in each iteration", span(span_of)),
        };
        format!("`{}`{line}: {who}, {}{each}", self.kind, span(self.bytes))
    }
}

impl BestSetting {
    /// Which, what it saves, and on whom.
    pub(crate) fn words(&self) -> Vec<String> {
        let replays =
            format!("{} under {}", counted(self.ranks, "rank"), counted(self.settings, "setting"));
        let Some(reserved) = self.reserved else {
            return vec![format!(
                "none: every rank has a request that fails under each; by replay of {replays}"
            )];
        };
        let conf = match self.conf.as_str() {
            "" => "PyTorch's defaults (no PYTORCH_CUDA_ALLOC_CONF)".to_owned(),
            conf => format!("PYTORCH_CUDA_ALLOC_CONF={conf}"),
        };
        let recorded = match self.recorded_alike {
            true => "under the recorded settings",
            false => "under the recorded settings, which are not the same for all",
        };
        let failing = |fits: usize| counted(self.ranks - fits, "rank");
        let change = match self.recorded {
            None => format!("; {recorded}, requests of {} fail", failing(self.recorded_fits)),
            Some(_) if self.fits < self.ranks => format!("; {recorded}, none fails"),
            Some(before) => match before.checked_sub(reserved) {
                Some(0) => format!(", as much as {recorded}"),
                Some(less) => format!(", {} less than {recorded}", Bytes(less)),
                None => format!(", {} more than {recorded}", Bytes(reserved - before)),
            },
        };
        let mut words = vec![format!(
            "{conf}: the rank that reserves most reserves {} then{change}; by replay of {replays}",
            Bytes(reserved)
        )];
        if self.fits < self.ranks {
            words.push(format!(
                "requests of {} fail under it, and what these reserve is not counted",
                failing(self.fits)
            ));
        }
        words
    }
}
