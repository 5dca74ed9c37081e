//! What a fleet says.
//!
//! In:  a [`Row`] for each file, in the order of their addresses.
//! Out: an [`Answer`]: plain data; text and JSON are printed from it and add no figures.
//!
//! Figures of files are those of their reports. Added here are sums, middles and differences, by these rules:
//!
//! | answer | rule |
//! | --- | --- |
//! | a rank differs from its group | by more than [`NOTED`] of what the group's middle reserves (twice that where only what it reserves differs) and [`SPREAD`] times what three quarters of the group stay within; or by its settings or history, where three quarters agree |
//! | a rank was near | it reserved at least [`CLOSE`] of the limit, or more than it, and no request of it failed |
//! | the limit | the one that is given; else the most that any rank reserved, if that explains every failure: ranks that ran into less had another |
//! | levelled | every rank reserves the mean of all; of ranks that failed it is not known what they need, and they are left out |

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tonnage_events::{Bytes, counted, grouped};

use crate::differences::Difference;
use crate::facts::{Facts, Row, Seen, Share};
use crate::groups::{Grouped, Members, group};
use crate::name::{NamePattern, PARTS, Place, number_the_rest};
use crate::profile::{Family, Names, Profile, joined, middle};
use crate::ranges::ranges;
use crate::settings::BestSetting;

/// The form of the JSON; counts up when a field changes its meaning or goes. `docs/schema/fleet.json` describes it.
const SCHEMA: u32 = 1;

/// A difference below this share of what the middle of a group reserves is none.
const NOTED: f64 = 0.04;

/// Nor is one within so many times the distance from the middle that three quarters of the group stay within: four
/// deviations of a bell curve.
const SPREAD: f64 = 3.5;

/// Share of the limit from which on a rank was near it.
const CLOSE: f64 = 0.95;

/// How many differences of a group or a rank are named.
const NAMED: usize = 5;

/// A card, and what a program can have of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub room: u64,
}

/// What files do not say.
#[derive(Clone, Debug)]
pub struct AnswerOptions {
    /// The limit on reserved bytes that was in force.
    pub limit: Option<u64>,
    /// Cards that levelled memory is held against.
    pub cards: Vec<Card>,
    /// How names tell whose a file is.
    pub names: NamePattern,
    /// Whether rows may be missing: they are of a dataset whose run did not end.
    pub unfinished: bool,
}

/// What a fleet says.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    schema: u32,
    /// How many files there are.
    pub files: usize,
    /// How many of them could be read.
    pub read: usize,
    /// Whether files may be missing: the dataset that was read is of a run that did not end.
    pub unfinished: bool,
    /// What matters most, in a few sentences.
    pub text: String,
    /// Files in which a request failed, in the order of their addresses.
    pub failed: Vec<Failed>,
    /// Who was near the limit; none if no limit is known.
    pub near: Option<NearLimit>,
    /// Groups of ranks that are alike, the largest first.
    pub groups: Vec<Group>,
    /// Ranks that differ from their group, the largest difference first.
    pub outliers: Vec<Outlier>,
    /// What grows from one iteration to the next, by kind and line, the most bytes first.
    pub growing: Vec<Growing>,
    /// How uneven reserved memory is; none if no file could be read.
    pub imbalance: Option<Imbalance>,
    /// The setting that is best for all; none if no one asked.
    pub best_setting: Option<BestSetting>,
    /// Files that could not be read.
    pub unreadable: Vec<Unreadable>,
    /// Every file, in the order of their addresses; no part of the JSON, where `ranks` of groups tells them.
    #[serde(skip)]
    pub members: Vec<Member>,
}

/// A file, whose it is, and where it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The file.
    pub whose: Whose,
    /// Its group, from 0: the one that it belongs to, or is nearest to; none if it could not be read.
    pub group: Option<usize>,
}

/// A file and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Whose {
    /// Its address.
    pub file: String,
    /// Whose it is.
    #[serde(flatten)]
    pub place: Place,
    /// The file of the rank whose run it shares: then there is none of its own.
    pub same_as: Option<String>,
    /// That rank, if its name tells.
    #[serde(skip)]
    same_rank: Option<u64>,
}

/// A file that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct Unreadable {
    /// The file.
    #[serde(flatten)]
    pub whose: Whose,
    /// Why.
    pub why: String,
}

/// A file in which a request failed.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    /// The file.
    #[serde(flatten)]
    pub whose: Whose,
    /// How many requests failed.
    pub requests: u64,
    /// Bytes of the last of them, rounded.
    pub bytes: u64,
    /// Who asked for them.
    pub line: Option<String>,
    /// Bytes that were reserved then.
    pub reserved: u64,
    /// Why nothing fitted.
    pub why: String,
    /// What limits the rank, in a word.
    pub cause: String,
    /// Bytes of that.
    pub cause_bytes: u64,
    /// The line to blame.
    pub cause_line: Option<String>,
    /// The whole verdict.
    pub verdict: String,
}

/// Who was near the limit.
#[derive(Clone, Debug, Serialize)]
pub struct NearLimit {
    /// The limit.
    pub limit: u64,
    /// Whether someone said it; else it is concluded, and the least that explains what ranks reserved and where they failed.
    pub given: bool,
    /// Ranks near it, the nearest first.
    pub ranks: Vec<Near>,
}

/// A rank near the limit.
#[derive(Clone, Debug, Serialize)]
pub struct Near {
    /// The file.
    #[serde(flatten)]
    pub whose: Whose,
    /// Most bytes reserved.
    pub reserved: u64,
}

/// Ranks that are alike.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// How many files.
    pub files: usize,
    /// Their ranks, as `0-127, 130`; empty if one of the names has none.
    pub ranks: String,
    /// Parts of their names that all of them have in common, and no other group has.
    pub common: Vec<Part>,
    /// The rank in the middle.
    pub middle: Whose,
    /// Most bytes reserved.
    pub reserved: Spread,
    /// Most live requested bytes.
    pub live: Spread,
    /// Their settings string, of most of them.
    pub conf: String,
    /// What holds the memory in the middle: by purpose, largest first.
    pub purposes: Vec<Share>,
    /// What tells it from the first group, the largest first.
    pub differs: Vec<Difference>,
}

/// A figure of several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// The least of them.
    pub least: u64,
    /// The middle.
    pub middle: u64,
    /// The most.
    pub most: u64,
}

/// A part of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Which: `node`, `pp`, `tp`, `dp` or `step`.
    pub part: &'static str,
    /// Its number.
    pub value: u64,
}

/// A rank that differs from its group.
#[derive(Clone, Debug, Serialize)]
pub struct Outlier {
    /// The file.
    #[serde(flatten)]
    pub whose: Whose,
    /// The group that it belongs to, or is nearest to, from 0.
    pub group: usize,
    /// Whether what holds its memory is like no group.
    pub stray: bool,
    /// In what it differs from the group's middle, the largest first.
    pub differs: Vec<Difference>,
    /// What `tonnage diff` says of the group's middle rank and this one; none for all but the first few.
    pub diff: Option<serde_json::Value>,
}

/// Ranks in which the same grows.
#[derive(Clone, Debug, Serialize)]
pub struct Growing {
    /// `leak`, `longer_inputs`, `growing_tensor` or `fragmentation`.
    pub kind: String,
    /// The line.
    pub line: Option<String>,
    /// How many files.
    pub files: usize,
    /// Their ranks.
    pub ranks: String,
    /// The file where it is most.
    pub most: Whose,
    /// Bytes in all: the least and the most.
    pub bytes: [u64; 2],
    /// Bytes in each iteration, for a leak: the least and the most.
    pub per_iteration: [u64; 2],
}

/// How uneven reserved memory is.
#[derive(Clone, Debug, Serialize)]
pub struct Imbalance {
    /// The rank that reserves most.
    pub most: Near,
    /// The rank that reserves least.
    pub least: Near,
    /// The mean of all.
    pub mean: u64,
    /// The smallest card with room for the rank that reserves most; none if no card has, or if a request failed: how much
    /// more it needed is not known.
    pub card: Option<String>,
    /// The same if every rank reserved the mean, of the ranks in which no request failed.
    pub levelled: Option<String>,
    /// How many files these are.
    pub levelled_files: usize,
}

/// One readable file.
struct Rank<'a> {
    whose: Whose,
    facts: &'a Facts,
}

/// Whose these files are, by their names and, where these do not tell, by all of them together.
fn places(rows: &[&Row], names: &NamePattern) -> Vec<Place> {
    let mut places: Vec<Place> = rows.iter().map(|row| names.place(&row.address)).collect();
    if names.is_usual() {
        let device = |row: &Row| row.facts().map(|it| u64::from(it.device));
        // A folder that could not be looked into is no rank's file.
        let all = rows.iter().zip(&mut places).filter(|it| !it.0.address.ends_with('/'));
        let mut all: Vec<_> =
            all.map(|(row, place)| (row.address.clone(), place, device(row))).collect();
        number_the_rest(&mut all);
    }
    places
}

/// Gives all rows of a fleet the places that its answer has them at.
pub fn place_rows(rows: &mut [Row], names: &NamePattern) {
    let places = places(&rows.iter().collect::<Vec<_>>(), names);
    rows.iter_mut().zip(places).for_each(|(row, place)| row.place = place);
}

impl Answer {
    /// What rows say, in whatever order they come.
    #[must_use]
    pub fn of(rows: &[Row], options: &AnswerOptions) -> Self {
        let mut rows: Vec<&Row> = rows.iter().collect();
        rows.sort_by(|a, b| a.address.cmp(&b.address));
        let places = places(&rows, &options.names);
        let ranks_by_file: BTreeMap<&str, Option<u64>> =
            rows.iter().zip(&places).map(|(row, place)| (&*row.address, place.rank)).collect();
        let whose = |row: &Row, place: Place| Whose {
            file: row.address.clone(),
            place,
            same_as: row.same_as.clone(),
            same_rank: row.same_as.as_deref().and_then(|it| *ranks_by_file.get(it)?),
        };
        let of_files = rows.iter().zip(&places).map(|(row, &place)| whose(row, place));
        let mut members: Vec<_> = of_files.map(|whose| Member { whose, group: None }).collect();
        let (mut ranks, mut unreadable) = (Vec::new(), Vec::new());
        for (row, &place) in rows.iter().zip(&places) {
            match &row.seen {
                Seen::Facts(facts) => ranks.push(Rank { whose: whose(row, place), facts }),
                Seen::Unreadable(why) => {
                    unreadable.push(Unreadable { whose: whose(row, place), why: why.clone() });
                }
            }
        }
        let names = Names::of(ranks.iter().map(|it| it.facts));
        let profiles: Vec<_> = ranks.iter().map(|it| Profile::of(it.facts, &names)).collect();
        let of_ranks: Vec<_> = ranks.iter().map(|it| it.whose.place).collect();
        let grouped = group(&profiles, &of_ranks, &names);
        let readable: Vec<usize> =
            rows.iter().enumerate().filter(|it| it.1.facts().is_some()).map(|it| it.0).collect();
        let belongs = grouped.groups.iter().enumerate();
        let belongs = belongs.flat_map(|(group, of)| of.ranks.iter().map(move |&it| (it, group)));
        for (rank, group) in belongs.chain(grouped.strays.iter().copied()) {
            members[readable[rank]].group = Some(group);
        }
        let outliers = outliers(&ranks, &profiles, &grouped, &names);
        let mut answer = Self {
            schema: SCHEMA,
            files: rows.len(),
            read: ranks.len(),
            unfinished: options.unfinished,
            text: String::new(),
            failed: ranks.iter().filter_map(Failed::of).collect(),
            near: NearLimit::of(&ranks, options.limit),
            groups: groups(&ranks, &profiles, &grouped, &outliers, &names),
            outliers,
            growing: growing(&ranks),
            imbalance: Imbalance::of(&ranks, &options.cards),
            best_setting: BestSetting::of(ranks.iter().map(|it| it.facts)),
            unreadable,
            members,
        };
        answer.text = answer.summary();
        answer
    }

    /// Whether something was not answered: a file could not be read, or may be missing.
    #[must_use]
    pub fn is_negative(&self) -> bool {
        self.unfinished || !self.unreadable.is_empty()
    }

    /// As one JSON object.
    ///
    /// # Panics
    ///
    /// Never: the fields are numbers and strings.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings can be written")
    }

    fn summary(&self) -> String {
        let mut text = String::new();
        if self.unfinished {
            text += "This dataset is of a run that did not end, and files may be missing: the command that made it goes on with \
                     it. ";
        }
        text += &format!("{}: ", counted(self.files, "file"));
        if self.read < self.files {
            let gone = self.files - self.read;
            text += &format!("{} could not be read; ", grouped(gone));
        }
        text += &match (self.groups.len(), self.outliers.len()) {
            (0, _) => "nothing to compare.".to_owned(),
            (1, 0) => "all are alike.".to_owned(),
            (groups, outliers) => {
                let groups = if groups == 1 {
                    "one group that is alike".to_owned()
                } else {
                    format!("{groups} groups that are alike")
                };
                match outliers {
                    0 => format!("{groups}, and none that differs from its group."),
                    1 => format!("{groups}, and one that differs from its group."),
                    _ => format!("{groups}, and {} that differ from theirs.", grouped(outliers)),
                }
            }
        };
        if let [first, rest @ ..] = &self.failed[..] {
            let who = first.whose.name();
            let (cause, bytes) = (&first.cause, Bytes(first.cause_bytes));
            text += &match rest.len() {
                0 => format!(" A request failed on {who}: what limits it is `{cause}`, {bytes}."),
                more => format!(
                    " Requests failed on {} of them, first {who}: what limits it is `{cause}`, {bytes}.",
                    grouped(more + 1)
                ),
            };
        }
        if let Some(near) = self.near.as_ref().filter(|it| !it.ranks.is_empty()) {
            let (limit, beyond) = (Bytes(near.limit), near.beyond());
            if beyond > 0 {
                text += &format!(
                    " {} reserved more than the limit of {limit}.",
                    counted(beyond, "file")
                );
            }
            let within = near.ranks.len() - beyond;
            if within > 0 {
                let first = self.failed.is_empty() && beyond == 0;
                text += &format!(
                    " {} came within {:.0} % of the limit of {limit}.",
                    counted(within, if first { "file" } else { "other" }),
                    (1.0 - CLOSE) * 100.0,
                );
            }
        }
        if let Some(Imbalance { most, mean, .. }) = &self.imbalance
            && self.read > 1
        {
            text += &format!(
                " {} reserves most, {}; the mean is {}.",
                upper(&most.whose.name()),
                Bytes(most.reserved),
                Bytes(*mean)
            );
        }
        text
    }
}

fn upper(text: &str) -> String {
    match text.strip_prefix("rank ") {
        Some(rest) => format!("Rank {rest}"),
        None => text.to_owned(),
    }
}

impl Whose {
    /// The rank and its step, else the file; and whose run it shares.
    #[must_use]
    pub fn name(&self) -> String {
        let own = match (self.place.rank, self.place.step) {
            (Some(rank), Some(step)) => format!("rank {rank} at step {step}"),
            (Some(rank), None) => format!("rank {rank}"),
            (None, _) => self.file.clone(),
        };
        match (&self.same_as, self.same_rank) {
            (None, _) => own,
            (_, Some(rank)) => format!("{own} (shares the run of rank {rank})"),
            (Some(file), None) => format!("{own} (shares the run of {file})"),
        }
    }

    /// The file to open for it: its own, or that of the run it shares.
    #[must_use]
    pub fn opened(&self) -> &str {
        self.same_as.as_deref().unwrap_or(&self.file)
    }
}

impl Failed {
    fn of(rank: &Rank<'_>) -> Option<Self> {
        let facts = rank.facts;
        let failed = facts.failed.as_ref()?;
        Some(Self {
            whose: rank.whose.clone(),
            requests: facts.failed_requests,
            bytes: failed.bytes,
            line: failed.line.clone(),
            reserved: failed.reserved,
            why: failed.why.clone(),
            cause: facts.cause.clone(),
            cause_bytes: facts.cause_bytes,
            cause_line: facts.cause_line.clone(),
            verdict: facts.verdict.clone(),
        })
    }
}

impl NearLimit {
    fn of(ranks: &[Rank<'_>], given: Option<u64>) -> Option<Self> {
        let limit = given.or_else(|| concluded(ranks))?;
        let close = |it: &&Rank<'_>| {
            it.facts.failed.is_none() && it.facts.reserved as f64 >= CLOSE * limit as f64
        };
        let mut near: Vec<_> = ranks.iter().filter(close).map(Near::of).collect();
        near.sort_by_key(|it| u64::MAX - it.reserved);
        Some(Self { limit, given: given.is_some(), ranks: near })
    }

    /// How many reserved more than the limit: then it was not in force.
    pub(crate) fn beyond(&self) -> usize {
        self.ranks.iter().filter(|it| it.reserved > self.limit).count()
    }
}

/// The limit that all ranks had, if one explains what each of them reserved and where each failed.
fn concluded(ranks: &[Rank<'_>]) -> Option<u64> {
    let limits = || ranks.iter().filter_map(|it| it.facts.limit);
    let at_most = limits().map(|it| it.at_most).min()?;
    let most = ranks.iter().map(|it| it.facts.reserved).chain(limits().map(|it| it.bytes)).max();
    most.filter(|&it| it <= at_most)
}

impl Near {
    fn of(rank: &Rank<'_>) -> Self {
        Self { whose: rank.whose.clone(), reserved: rank.facts.reserved }
    }
}

impl Imbalance {
    fn of(ranks: &[Rank<'_>], cards: &[Card]) -> Option<Self> {
        let reserved = |it: &&Rank<'_>| it.facts.reserved;
        // The first of several.
        let most = ranks.iter().rev().max_by_key(reserved)?;
        let least = ranks.iter().min_by_key(reserved)?;
        let whole: Vec<_> = ranks.iter().filter(|it| it.facts.failed.is_none()).collect();
        let card = |bytes: u64| {
            let large = cards.iter().filter(|it| it.room >= bytes);
            large.min_by_key(|it| it.room).map(|it| it.name.clone())
        };
        Some(Self {
            card: if whole.len() == ranks.len() { card(reserved(&most)) } else { None },
            levelled: mean(whole.iter().map(reserved)).and_then(card),
            levelled_files: whole.len(),
            most: Near::of(most),
            least: Near::of(least),
            mean: mean(ranks.iter().map(|it| reserved(&it)))?,
        })
    }
}

/// The mean of values; none of none.
fn mean(values: impl ExactSizeIterator<Item = u64>) -> Option<u64> {
    let count = values.len() as u128;
    let sum: u128 = values.map(u128::from).sum();
    Some(u64::try_from(sum.checked_div(count)?).unwrap_or(u64::MAX))
}

/// Ranks of these files, if all of them have one.
fn rank_numbers<'a>(of: impl Iterator<Item = &'a Whose>) -> String {
    let numbers: Option<Vec<u64>> = of.map(|it| it.place.rank).collect();
    let mut numbers = numbers.unwrap_or_default();
    numbers.sort_unstable();
    ranges(&numbers)
}

/// The least, the middle and the most.
fn spread(mut values: Vec<u64>) -> Spread {
    let middle = middle(&mut values);
    let (least, most) = (values.first(), values.last());
    Spread { least: least.copied().unwrap_or(0), middle, most: most.copied().unwrap_or(0) }
}

/// The most frequent text, the first of several.
fn most_frequent<'a>(texts: impl Iterator<Item = &'a str>) -> (&'a str, usize) {
    let mut counts = BTreeMap::<&str, usize>::new();
    for text in texts {
        *counts.entry(text).or_default() += 1;
    }
    counts.into_iter().rev().max_by_key(|it| it.1).unwrap_or(("", 0))
}

fn groups(
    ranks: &[Rank<'_>],
    profiles: &[Profile],
    grouped: &Grouped,
    outliers: &[Outlier],
    names: &Names,
) -> Vec<Group> {
    let first = grouped.groups.first();
    let odd: BTreeSet<_> = outliers.iter().map(|it| &it.whose.file).collect();
    let is_plain = |&rank: &usize| {
        let Rank { whose, facts } = &ranks[rank];
        facts.failed.is_none() && whose.same_as.is_none() && !odd.contains(&whose.file)
    };
    let group = |(number, members): (usize, &Members)| {
        let middle = members.middle(profiles, names, is_plain);
        let of = || members.ranks.iter().map(|&it| &ranks[it]);
        let differs = first.map_or_else(Vec::new, |first| {
            let all = joined(&first.profile.bytes, &members.profile.bytes);
            let mut differs: Vec<_> = all
                .filter(|(_, a, b)| a != b)
                .map(|(number, a, b)| Difference::held(names.get(number), a, b))
                .collect();
            let smallest = of().map(|it| it.facts.reserved).min().unwrap_or(0) as f64 * 0.01;
            differs.retain(|it| it.size() as f64 >= smallest);
            Difference::sort(&mut differs);
            differs.truncate(NAMED);
            differs
        });
        let purposes = members.profile.bytes.iter().filter_map(|&(number, bytes)| {
            let (family, name) = names.get(number);
            (*family == Family::Purpose).then(|| Share { name: name.clone(), bytes })
        });
        let mut purposes: Vec<_> = purposes.collect();
        purposes.sort_by_key(|it| u64::MAX - it.bytes);
        Group {
            files: members.ranks.len(),
            ranks: rank_numbers(of().map(|it| &it.whose)),
            common: common(number, grouped, ranks),
            middle: ranks[middle].whose.clone(),
            reserved: spread(of().map(|it| it.facts.reserved).collect()),
            live: spread(of().map(|it| it.facts.live).collect()),
            conf: most_frequent(of().map(|it| &*it.facts.conf)).0.to_owned(),
            purposes,
            differs,
        }
    };
    grouped.groups.iter().enumerate().map(group).collect()
}

/// Parts of names that a group has in common, and no other group has.
fn common(number: usize, grouped: &Grouped, ranks: &[Rank<'_>]) -> Vec<Part> {
    let value = |part: &str, rank: usize| ranks[rank].whose.place.part(part);
    let members = &grouped.groups[number].ranks;
    let others = || grouped.groups.iter().enumerate().filter(|it| it.0 != number);
    let common = PARTS.into_iter().filter_map(|part| {
        let first = value(part, *members.first()?)?;
        let has = |rank: usize| value(part, rank) == Some(first);
        let all = members.iter().all(|&it| has(it));
        let alone = all && others().all(|(_, it)| !it.ranks.iter().any(|&it| has(it)));
        // A rank is always its own.
        (alone && part != "rank").then_some(Part { part, value: first })
    });
    common.collect()
}

/// All that is of no use, whatever for: what it is put down to is compared where this differs. Where little decides between two
/// causes, ranks that are alike have now the one and now the other.
const WASTED: (&str, String) = ("wasted", String::new());

/// A figure of a rank that it is compared by beside its profile: its kind, its name, and its bytes.
fn figures(facts: &Facts) -> Vec<(&'static str, String, u64)> {
    let mut figures = vec![
        ("reserved", String::new(), facts.reserved),
        ("live", String::new(), facts.live),
        (WASTED.0, WASTED.1, facts.wasted()),
    ];
    let waste = facts.waste.iter();
    figures.extend(waste.map(|it| ("waste", it.name.clone(), it.bytes)));
    if facts.growth.grows() {
        figures.push(("growth", facts.growth.kind.clone(), facts.growth.bytes));
    }
    figures
}

fn outliers(
    ranks: &[Rank<'_>],
    profiles: &[Profile],
    grouped: &Grouped,
    names: &Names,
) -> Vec<Outlier> {
    let mut outliers = Vec::new();
    for (number, members) in grouped.groups.iter().enumerate() {
        let strays = grouped.strays.iter().filter(|it| it.1 == number).map(|it| it.0);
        let usual = Usual::of(&members.ranks, ranks, profiles);
        let all = members.ranks.iter().map(|&it| (it, false)).chain(strays.map(|it| (it, true)));
        for (rank, stray) in all {
            let differs = usual.differences(&ranks[rank], &profiles[rank], names);
            if stray || !differs.is_empty() {
                let whose = ranks[rank].whose.clone();
                outliers.push(Outlier { whose, group: number, stray, differs, diff: None });
            }
        }
    }
    outliers.sort_by(|a, b| {
        let largest = |it: &Outlier| it.differs.iter().map(Difference::size).max().unwrap_or(0);
        (largest(b), &a.whose.file).cmp(&(largest(a), &b.whose.file))
    });
    outliers
}

/// What is usual in a group.
struct Usual {
    /// The middle of what ranks reserve.
    reserved: u64,
    /// By kind and name of a figure: its middle, and how far from it three quarters are at the most.
    figures: BTreeMap<(&'static str, String), (u64, u64)>,
    /// The same by number of a profile's name.
    held: BTreeMap<u32, (u64, u64)>,
    /// Settings and histories that three quarters share.
    conf: Option<String>,
    history: Option<String>,
}

impl Usual {
    fn of(members: &[usize], ranks: &[Rank<'_>], profiles: &[Profile]) -> Self {
        let mut figure_values = BTreeMap::<(&'static str, String), Vec<u64>>::new();
        let mut held_values = BTreeMap::<u32, Vec<u64>>::new();
        for &rank in members {
            for (kind, name, bytes) in figures(ranks[rank].facts) {
                figure_values.entry((kind, name)).or_default().push(bytes);
            }
            for &(number, bytes) in &profiles[rank].bytes {
                held_values.entry(number).or_default().push(bytes);
            }
        }
        let usual = |mut values: Vec<u64>| {
            values.resize(members.len(), 0);
            let usual = middle(&mut values);
            let mut far: Vec<_> = values.iter().map(|it| it.abs_diff(usual)).collect();
            far.sort_unstable();
            // Of three ranks the one that differs does not decide what is usual; of two, neither is it.
            let last = far.len().saturating_sub(1);
            let place = if last < 2 { last } else { last * 3 / 4 };
            (usual, far.get(place).copied().unwrap_or(0))
        };
        let agreed = |of: fn(&Facts) -> &str| {
            let (text, count) = most_frequent(members.iter().map(|&it| of(ranks[it].facts)));
            (count * 4 >= members.len() * 3).then(|| text.to_owned())
        };
        let mut reserved: Vec<_> = members.iter().map(|&it| ranks[it].facts.reserved).collect();
        Self {
            reserved: middle(&mut reserved),
            figures: figure_values.into_iter().map(|(key, values)| (key, usual(values))).collect(),
            held: held_values.into_iter().map(|(key, values)| (key, usual(values))).collect(),
            conf: agreed(|facts| &facts.conf),
            history: agreed(|facts| &facts.history),
        }
    }

    /// Whether a figure is beyond what is usual.
    fn is_beyond(&self, noted: f64, bytes: u64, (usual, far): (u64, u64)) -> bool {
        let by = bytes.abs_diff(usual) as f64;
        by > noted * self.reserved as f64 && by > SPREAD * far as f64
    }

    fn differences(&self, rank: &Rank<'_>, profile: &Profile, names: &Names) -> Vec<Difference> {
        let mut differs = Vec::new();
        let mine: BTreeMap<_, _> = figures(rank.facts)
            .into_iter()
            .map(|(kind, name, bytes)| ((kind, name), bytes))
            .collect();
        let of = |key: &(&'static str, String)| {
            let usual = self.figures.get(key).copied().unwrap_or((0, 0));
            (usual, mine.get(key).copied().unwrap_or(0))
        };
        let wastes_otherwise = {
            let (usual, bytes) = of(&WASTED);
            self.is_beyond(NOTED, bytes, usual)
        };
        let added = mine.keys().filter(|it| !self.figures.contains_key(it));
        for key in self.figures.keys().chain(added).filter(|it| **it != WASTED) {
            let (usual, bytes) = of(key);
            // Segments are large: what is reserved jumps where nothing else does.
            let noted = if key.0 == "reserved" { 2.0 * NOTED } else { NOTED };
            let counts = key.0 != "waste" || wastes_otherwise;
            if counts && self.is_beyond(noted, bytes, usual) {
                differs.push(Difference::figure(key.0, &key.1, usual.0, bytes));
            }
        }
        let usual: Vec<_> =
            self.held.iter().map(|(&number, &(usual, _))| (number, usual)).collect();
        for (number, usual, bytes) in joined(&usual, &profile.bytes) {
            let far = self.held.get(&number).map_or(0, |it| it.1);
            if self.is_beyond(NOTED, bytes, (usual, far)) {
                differs.push(Difference::held(names.get(number), usual, bytes));
            }
        }
        Difference::sort(&mut differs);
        differs.truncate(NAMED);
        let texts = [
            ("settings", &self.conf, &rank.facts.conf),
            ("history", &self.history, &rank.facts.history),
        ];
        for (kind, usual, own) in texts {
            if let Some(usual) = usual.as_ref().filter(|it| *it != own) {
                differs.push(Difference::text(kind, usual, own));
            }
        }
        differs
    }
}

fn growing(ranks: &[Rank<'_>]) -> Vec<Growing> {
    let mut by_line = BTreeMap::<(&str, Option<&str>), Vec<&Rank<'_>>>::new();
    for rank in ranks.iter().filter(|it| it.facts.growth.grows()) {
        let growth = &rank.facts.growth;
        by_line.entry((&growth.kind, growth.line.as_deref())).or_default().push(rank);
    }
    let mut growing: Vec<_> = by_line
        .into_iter()
        .filter_map(|((kind, line), of)| {
            let most = of.iter().rev().max_by_key(|it| it.facts.growth.bytes)?;
            let ends = |value: fn(&Facts) -> u64| {
                let Spread { least, most, .. } =
                    spread(of.iter().map(|it| value(it.facts)).collect());
                [least, most]
            };
            Some(Growing {
                kind: kind.to_owned(),
                line: line.map(str::to_owned),
                files: of.len(),
                ranks: rank_numbers(of.iter().map(|it| &it.whose)),
                most: most.whose.clone(),
                bytes: ends(|it| it.growth.bytes),
                per_iteration: ends(|it| it.growth.leak_per_iteration),
            })
        })
        .collect();
    growing.sort_by_key(|it| u64::MAX - it.bytes[1]);
    growing
}
