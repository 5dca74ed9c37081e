//! Whose a file is, by its name.
//!
//! In:  an address, and a pattern with named groups, or none.
//! Out: a [`Place`]: rank, node, coordinates in the layout of ranks, step.
//!
//! Without a pattern a number behind one of these words counts, wherever in the address, the last one if there are several:
//!
//! | part | words |
//! | --- | --- |
//! | rank | `rank`; where no `rank` has a number, `r` in the file's own name; not `local_rank` |
//! | node | `node`, `host` |
//! | pp, tp, dp | `pp`, `tp`, `dp` |
//! | step | `step`, `iteration`, `iter` |
//!
//! Behind the word may stand `_`, `-`, `=` or `.`. Where no file of a fleet has a rank by that, or all have the same by `r`
//! alone, the last number of the file's name is taken, if it tells all files apart; else, where none has a rank, the device that
//! is in the file, under the same condition.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Where a file belongs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Place {
    /// The rank.
    pub rank: Option<u64>,
    /// The machine.
    pub node: Option<u64>,
    /// The pipeline's stage.
    pub pp: Option<u64>,
    /// The place among those that share tensors.
    pub tp: Option<u64>,
    /// The place among copies of the model.
    pub dp: Option<u64>,
    /// The step at which the snapshot was taken.
    pub step: Option<u64>,
}

/// The parts of a place, by name.
pub(crate) const PARTS: [&str; 6] = ["rank", "node", "pp", "tp", "dp", "step"];

impl Place {
    /// A part by its name.
    pub(crate) fn part(&self, name: &str) -> Option<u64> {
        match name {
            "rank" => self.rank,
            "node" => self.node,
            "pp" => self.pp,
            "tp" => self.tp,
            "dp" => self.dp,
            "step" => self.step,
            _ => None,
        }
    }

    fn set(&mut self, name: &str, number: u64) {
        let part = match name {
            "rank" => &mut self.rank,
            "node" => &mut self.node,
            "pp" => &mut self.pp,
            "tp" => &mut self.tp,
            "dp" => &mut self.dp,
            "step" => &mut self.step,
            _ => return,
        };
        *part = Some(number);
    }
}

/// How names tell whose a file is.
#[derive(Clone, Debug)]
pub struct NamePattern(Option<Regex>);

/// A pattern that tells nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PatternError {
    /// No regular expression.
    #[error("no regular expression: {0}")]
    Regex(String),
    /// It names no part.
    #[error(
        "it names nothing: groups are `rank`, `node`, `pp`, `tp`, `dp` and `step`, as in 'rank_(?<rank>\\d+)'"
    )]
    NoGroup,
    /// It names something else.
    #[error("`{0}` is no part of a name: there are `rank`, `node`, `pp`, `tp`, `dp` and `step`")]
    UnknownGroup(String),
}

impl NamePattern {
    /// The words of the module's table.
    #[must_use]
    pub fn usual() -> Self {
        Self(None)
    }

    /// A regular expression with named groups; where one group has no match, the name does not tell.
    ///
    /// # Errors
    ///
    /// If it is none, or names something that is no part.
    pub fn parse(pattern: &str) -> Result<Self, PatternError> {
        let regex = Regex::new(pattern).map_err(|error| {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            PatternError::Regex(last.trim_start_matches("error: ").to_owned())
        })?;
        let names: Vec<_> = regex.capture_names().flatten().collect();
        if names.is_empty() {
            return Err(PatternError::NoGroup);
        }
        if let Some(unknown) = names.iter().find(|name| !PARTS.contains(name)) {
            return Err(PatternError::UnknownGroup((*unknown).to_owned()));
        }
        Ok(Self(Some(regex)))
    }

    /// What a name tells.
    #[must_use]
    pub fn place(&self, address: &str) -> Place {
        let mut place = Place::default();
        let Some(regex) = &self.0 else {
            for (part, words) in USUAL.iter() {
                if let Some(number) = usual(words, address) {
                    place.set(part, number);
                }
            }
            place.rank = place.rank.or_else(|| usual(&OWN_RANK, own_name(address)));
            return place;
        };
        if let Some(captures) = regex.captures(address) {
            for part in PARTS {
                let digits = captures.name(part).and_then(|it| it.as_str().parse().ok());
                if let Some(number) = digits {
                    place.set(part, number);
                }
            }
        }
        place
    }

    /// The regular expression; none for the usual words.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.0.as_ref().map(Regex::as_str)
    }

    /// Whether names are told by the usual words.
    pub(crate) fn is_usual(&self) -> bool {
        self.0.is_none()
    }
}

static USUAL: LazyLock<[(&str, Regex); 6]> = LazyLock::new(|| {
    [
        // `local_rank` says which device of a node, not which rank.
        ("rank", "rank"),
        ("node", "node|host"),
        ("pp", "pp"),
        ("tp", "tp"),
        ("dp", "dp"),
        ("step", "step|iteration|iter"),
    ]
    .map(|(part, words)| (part, behind(words)))
});

/// In a file's own name `r` will do where nothing says `rank`; folders are called `r1` for other reasons.
static OWN_RANK: LazyLock<Regex> = LazyLock::new(|| behind("r"));

/// A number behind one of these words.
fn behind(words: &str) -> Regex {
    let pattern =
        format!(r"(?i)(?:^|[^a-z])(?<local>local[_\-]?)?(?:{words})[_\-=.]?(?<number>\d+)");
    Regex::new(&pattern).expect("a pattern of this file is one")
}

fn own_name(address: &str) -> &str {
    address.rsplit('/').next().unwrap_or(address)
}

/// The last number behind such a word.
fn usual(words: &Regex, address: &str) -> Option<u64> {
    let found = words.captures_iter(address).filter(|it| it.name("local").is_none());
    found.filter_map(|it| it.name("number")?.as_str().parse().ok()).last()
}

/// The last number of a file's name.
fn last_number(address: &str) -> Option<u64> {
    let name = own_name(address);
    let name = name.split('.').next().unwrap_or(name);
    let digits = name.rsplit(|c: char| !c.is_ascii_digit()).find(|it| !it.is_empty())?;
    digits.parse().ok()
}

/// Gives ranks to files whose names have none by the usual words, or all the same `r` (of `model-r1_0`): by their last
/// numbers, else by their devices, if that tells all of them apart. `files` are addresses, places and devices.
pub(crate) fn number_the_rest(files: &mut [(String, &mut Place, Option<u64>)]) {
    if files.len() < 2 {
        return;
    }
    let tell_apart = |ranks: &[Option<u64>]| {
        let different: BTreeSet<_> = ranks.iter().flatten().collect();
        different.len() == ranks.len()
    };
    let by_name: Vec<_> = files.iter().map(|it| last_number(&it.0)).collect();
    let by_device: Vec<_> = files.iter().map(|it| it.2).collect();
    if files.iter().any(|(_, place, _)| place.rank.is_some()) {
        let first = files[0].1.rank;
        let by_r = files.iter().all(|(address, place, _)| {
            place.rank == first && place.step.is_none() && usual(&USUAL[0].1, address).is_none()
        });
        if !by_r || !tell_apart(&by_name) {
            return;
        }
    }
    if let Some(ranks) = [by_name, by_device].into_iter().find(|ranks| tell_apart(ranks)) {
        for ((_, place, _), rank) in files.iter_mut().zip(ranks) {
            place.rank = rank;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_names_tell() {
        let place = |address: &str| {
            let place = NamePattern::usual().place(address);
            PARTS.map(|part| place.part(part))
        };
        for (address, told) in [
            ("rank_12.pickle", [Some(12), None, None, None, None, None]),
            ("runs/rank12_memory.pickle.zst", [Some(12), None, None, None, None, None]),
            ("mem_r0012.pkl", [Some(12), None, None, None, None, None]),
            (
                "iteration_100/rank3_memory_snapshot.pickle",
                [Some(3), None, None, None, None, Some(100)],
            ),
            (
                "node-2/pp1_tp0_dp7-rank=130.pickle",
                [Some(130), Some(2), Some(1), Some(0), Some(7), None],
            ),
            ("host7/local_rank_3.pickle", [None, Some(7), None, None, None, None]),
            ("host7/local_rank_3/rank_59.pickle", [Some(59), Some(7), None, None, None, None]),
            ("trainer5/errors3.pickle", [None; 6]),
            ("model-R1/mem_0.pickle", [None; 6]),
            ("rank_4/r5/mem.pickle", [Some(4), None, None, None, None, None]),
            // Beside `rank`, `r` is a run or a retry.
            ("rank_5_r1.pickle", [Some(5), None, None, None, None, None]),
            ("rank_3/mem_r1_0.pickle", [Some(3), None, None, None, None, None]),
            ("rank12_retry-r3.pickle.zst", [Some(12), None, None, None, None, None]),
            ("rank_1/step_5/rank_2.pickle", [Some(2), None, None, None, None, Some(5)]),
            ("rank_99999999999999999999999.pickle", [None; 6]),
        ] {
            assert_eq!(place(address), told, "{address}");
        }
    }

    #[test]
    fn a_pattern_names_its_parts() {
        let pattern = NamePattern::parse(r"w(?<rank>\d+)s(?<step>\d+)?").unwrap();
        let place = pattern.place("rank_7/w12s.pickle");
        assert_eq!(place, Place { rank: Some(12), ..Place::default() });
        assert_eq!(pattern.place("w1s20").step, Some(20));
        assert_eq!(pattern.place("x"), Place::default());
        for (pattern, why) in [
            ("rank_(", "no regular expression"),
            (r"(\d+)", "it names nothing"),
            (r"(?<worker>\d+)", "`worker` is no part"),
        ] {
            let message = NamePattern::parse(pattern).unwrap_err().to_string();
            assert!(message.contains(why) && !message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn last_numbers_are_ranks_if_they_tell_files_apart() {
        let ranks = |files: &[(&str, Option<u64>)]| {
            let place = |it: &(&str, _)| NamePattern::usual().place(it.0);
            let mut places: Vec<_> = files.iter().map(place).collect();
            let zipped = files.iter().zip(&mut places);
            let mut all: Vec<_> =
                zipped.map(|(&(name, device), place)| (name.to_owned(), place, device)).collect();
            number_the_rest(&mut all);
            places.into_iter().map(|it| it.rank).collect::<Vec<_>>()
        };
        assert_eq!(ranks(&[("a/v2_3.pickle", None), ("b/v2_4.pickle", None)]), [Some(3), Some(4)]);
        // Else the device, under the same condition.
        let same = [("a/v2.pickle", Some(0)), ("b/v2.pickle", Some(1))];
        assert_eq!(ranks(&same), [Some(0), Some(1)]);
        assert_eq!(ranks(&[("a/v2.pickle", Some(0)), ("b/v2.pickle", Some(0))]), [None, None]);
        assert_eq!(ranks(&[("a/7.pickle", Some(0))]), [None]);
        // The same `r` for all is part of some other name; one rank at several steps is one rank.
        assert_eq!(ranks(&[("m-r1_0.pickle", None), ("m-r1_1.pickle", None)]), [Some(0), Some(1)]);
        for same in [["rank_1/a_2.pickle", "rank_1/a_3.pickle"], ["r1_step2.pkl", "r1_step3.pkl"]] {
            assert_eq!(ranks(&same.map(|it| (it, None))), [Some(1), Some(1)]);
        }
    }
}
