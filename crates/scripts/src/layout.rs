//! The layout of a job's ranks: which are asked for, what coordinates each has, and which are said to be alike.
//!
//! In:  `all` or `0-15,31`; `dp=4,pp=2,tp=2`, outermost first, as `init_device_mesh("cuda", (4, 2, 2))` counts; `dp,tp`.
//! Out: ranks; for each its coordinates and a name; sets of ranks that differ along those axes alone.
//!
//! Whether ranks of a set are alike is not decided here: someone has said so, and it is checked by running the ends of each.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// Ranks of a job, as people write them: `all`, `5` or `0-15`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// Every one.
    All,
    /// From the first to the last.
    Span(u32, u32),
}

/// What is wrong with ranks or a layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadLayout(String);

fn bad<T>(why: String) -> Result<T, BadLayout> {
    Err(BadLayout(why))
}

impl FromStr for Ranks {
    type Err = BadLayout;

    fn from_str(text: &str) -> Result<Self, BadLayout> {
        if text == "all" {
            return Ok(Self::All);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(Self::Span(first, last)),
            (Ok(_), Ok(_)) => bad(format!("no rank lies in `{text}`")),
            _ => bad(format!("`{text}` is no rank: write `all`, `5`, `0-15` or several of these")),
        }
    }
}

/// So many ranks can be asked for: chosen, more than any job has.
const MOST_RANKS: usize = 1 << 20;

impl Ranks {
    /// The ranks of a job of so many, ascending and each once.
    ///
    /// # Errors
    ///
    /// If the job has no such rank, or there are too many.
    pub fn of(asked: &[Self], size: u32) -> Result<Vec<u32>, BadLayout> {
        let mut ranks = BTreeSet::new();
        for &it in asked {
            let (first, last) = match it {
                Self::All => (0, size - 1),
                Self::Span(first, last) => (first, last),
            };
            if last >= size {
                return bad(format!(
                    "--rank {last}: of a world of {size} the last rank is {}",
                    size - 1
                ));
            }
            ranks.extend((first..=last).take(MOST_RANKS + 1));
            if ranks.len() > MOST_RANKS {
                return bad(format!("--rank: no more than {MOST_RANKS} can be asked for at once"));
            }
        }
        Ok(ranks.into_iter().collect())
    }
}

/// An axis of a layout: `dp=4`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutAxis {
    /// Its name.
    pub name: String,
    /// How many places it has.
    pub size: u32,
}

/// Words that a name has for something else, in front of numbers.
const TAKEN: [&str; 7] = ["rank", "r", "node", "host", "step", "iteration", "iter"];

impl FromStr for LayoutAxis {
    type Err = BadLayout;

    fn from_str(text: &str) -> Result<Self, BadLayout> {
        let Some((name, size)) = text.split_once('=') else {
            return bad(format!("`{text}` has no `=`: write `dp=4,pp=2,tp=2`"));
        };
        let parts: Vec<_> = name.split('_').collect();
        let is_word =
            |part: &&str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_alphabetic());
        if !parts.iter().all(is_word) {
            return bad(format!(
                "`{name}` is no name of an axis: letters, perhaps with `_` between them"
            ));
        }
        if parts.last().is_some_and(|last| TAKEN.contains(&last.to_ascii_lowercase().as_str())) {
            return bad(format!(
                "`{name}` means something else in the names of files: name the axis otherwise"
            ));
        }
        match size.trim().parse() {
            Ok(size) if size > 0 => Ok(Self { name: name.to_owned(), size }),
            _ => bad(format!("`{size}` is no number of places: write `{name}=4`")),
        }
    }
}

/// The ranks of a job in rows and columns, the last axis the fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    axes: Vec<LayoutAxis>,
    /// Names of axes along which ranks are said to be alike.
    alike: Vec<String>,
}

impl Layout {
    /// A layout for a job of so many ranks.
    ///
    /// # Errors
    ///
    /// If it has another number of them, an axis twice, or not the axes along which ranks are said to be alike.
    pub fn new(axes: Vec<LayoutAxis>, alike: Vec<String>, size: u32) -> Result<Self, BadLayout> {
        let mut names = BTreeSet::new();
        if let Some(twice) = axes.iter().find(|axis| !names.insert(&axis.name)) {
            return bad(format!("--layout: `{}` is there twice", twice.name));
        }
        let product = axes.iter().try_fold(1u64, |all, axis| all.checked_mul(axis.size.into()));
        if product != Some(size.into()) {
            let sizes: Vec<_> = axes.iter().map(|axis| axis.size.to_string()).collect();
            let product = product.map_or_else(String::new, |product| format!(" = {product}"));
            return bad(format!(
                "--layout: {}{product} ranks, and the world has {size}",
                sizes.join(" × ")
            ));
        }
        if let Some(unknown) = alike.iter().find(|it| !names.contains(it)) {
            let known: Vec<_> = axes.iter().map(|axis| axis.name.as_str()).collect();
            return bad(format!(
                "--alike {unknown}: the layout has no such axis, only {}",
                known.join(", ")
            ));
        }
        Ok(Self { axes, alike })
    }

    /// Its axes, outermost first.
    #[must_use]
    pub fn axes(&self) -> &[LayoutAxis] {
        &self.axes
    }

    /// Names of axes along which ranks are said to be alike.
    #[must_use]
    pub fn alike(&self) -> &[String] {
        &self.alike
    }

    /// A rank's place on each axis.
    #[must_use]
    pub fn coordinates(&self, rank: u32) -> Vec<u32> {
        let mut rest = rank;
        let mut places: Vec<_> = self
            .axes
            .iter()
            .rev()
            .map(|axis| {
                let place = rest % axis.size;
                rest /= axis.size;
                place
            })
            .collect();
        places.reverse();
        places
    }

    /// What tells a rank from those that are not said to be like it.
    fn apart(&self, rank: u32) -> Vec<u32> {
        let places = self.coordinates(rank).into_iter().zip(&self.axes);
        places.filter(|(_, axis)| !self.alike.contains(&axis.name)).map(|it| it.0).collect()
    }
}

/// Sets of ranks that are said to be alike, each ascending; without a layout every rank is alone.
#[must_use]
pub fn sets(layout: Option<&Layout>, ranks: &[u32]) -> Vec<Vec<u32>> {
    let Some(layout) = layout.filter(|it| !it.alike.is_empty()) else {
        return ranks.iter().map(|&rank| vec![rank]).collect();
    };
    let mut sets = BTreeMap::<_, Vec<u32>>::new();
    for &rank in ranks {
        sets.entry(layout.apart(rank)).or_default().push(rank);
    }
    let mut sets: Vec<_> = sets.into_values().collect();
    sets.sort();
    sets
}

/// A name that tells the rank and its coordinates, as `dp3_pp1_tp0_rank_00013`; in the order of ranks.
#[must_use]
pub fn rank_name(layout: Option<&Layout>, rank: u32) -> String {
    let mut name = String::new();
    if let Some(layout) = layout {
        for (place, axis) in layout.coordinates(rank).into_iter().zip(&layout.axes) {
            let width = (axis.size - 1).to_string().len();
            name += &format!("{}{place:0width$}_", axis.name);
        }
    }
    format!("{name}rank_{rank:05}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(axes: &str, alike: &str, size: u32) -> Result<Layout, BadLayout> {
        let axes = axes.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let alike = alike.split(',').filter(|it| !it.is_empty()).map(str::to_owned).collect();
        Layout::new(axes, alike, size)
    }

    fn ranks(text: &str, size: u32) -> Result<Vec<u32>, BadLayout> {
        let asked: Vec<Ranks> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Ranks::of(&asked, size)
    }

    #[test]
    fn ranks_are_written_as_lists_and_spans() {
        assert_eq!(ranks("all", 3).unwrap(), [0, 1, 2]);
        assert_eq!(ranks("7,0-2,1", 8).unwrap(), [0, 1, 2, 7]);
        for (text, why) in [
            ("0-8", "of a world of 8 the last rank is 7"),
            ("3-1", "no rank lies in `3-1`"),
            ("x", "`x` is no rank"),
            ("-1", "`-1` is no rank"),
        ] {
            let error = ranks(text, 8).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(ranks("all", 1 << 20).unwrap().len(), 1 << 20);
        assert_eq!(ranks("4294967294", u32::MAX).unwrap(), [u32::MAX - 1]);
        for text in ["all", "0-1048576", "0-1000000,2000000-3000000"] {
            let error = ranks(text, u32::MAX).unwrap_err().to_string();
            assert_eq!(error, "--rank: no more than 1048576 can be asked for at once");
        }
    }

    #[test]
    fn coordinates_count_as_a_device_mesh_does() {
        let layout = layout("dp=4,pp=2,tp=2", "", 16).unwrap();
        assert_eq!(layout.coordinates(0), [0, 0, 0]);
        assert_eq!(layout.coordinates(1), [0, 0, 1]);
        assert_eq!(layout.coordinates(13), [3, 0, 1]);
        assert_eq!(rank_name(Some(&layout), 13), "dp3_pp0_tp1_rank_00013");
        let wide = self::layout("dp=11,tp=1", "", 11).unwrap();
        assert_eq!(rank_name(Some(&wide), 9), "dp09_tp0_rank_00009");
        assert_eq!(rank_name(None, 130), "rank_00130");
    }

    #[test]
    fn ranks_that_differ_along_the_named_axes_alone_are_a_set() {
        let all: Vec<u32> = (0..16).collect();
        let sets_of = |alike: &str, ranks: &[u32]| {
            sets(Some(&layout("dp=4,pp=2,tp=2", alike, 16).unwrap()), ranks)
        };
        assert_eq!(sets_of("", &all).len(), 16);
        assert_eq!(
            sets_of("dp", &all),
            [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
        );
        assert_eq!(sets_of("dp,tp", &all)[0], [0, 1, 4, 5, 8, 9, 12, 13]);
        assert_eq!(sets_of("dp,pp,tp", &all), std::slice::from_ref(&all));
        assert_eq!(sets_of("dp", &[0, 1, 8]), [vec![0, 8], vec![1]]);
        assert_eq!(sets(None, &[0, 2]), [[0], [2]]);
    }

    #[test]
    fn a_layout_that_is_none_is_told() {
        for (axes, alike, why) in [
            ("dp=4,tp=2", "", "4 × 2 = 8 ranks, and the world has 16"),
            ("dp=4,dp=4", "", "`dp` is there twice"),
            ("dp=16", "tp", "--alike tp: the layout has no such axis, only dp"),
            ("dp", "", "`dp` has no `=`"),
            ("dp=0", "", "`0` is no number of places"),
            ("dp2=16", "", "`dp2` is no name of an axis"),
            ("local_rank=16", "", "means something else"),
            (
                "dp=4294967295,pp=4294967295,tp=4294967295,cp=4294967295,ep=4294967295",
                "",
                "ranks, and the world",
            ),
        ] {
            let error = layout(axes, alike, 16).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
