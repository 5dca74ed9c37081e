//! The largest that fits: which values of a command are tried, one prediction after the other.
//!
//! In:  names with values, such as `batch=1..512`, and someone who tells of a choice of values whether it fits.
//! Out: for each choice of the later names, the largest value of the first that fits, and the next, which was tried too.
//!
//! More of anything is taken to need no less memory. That is what makes a search of it, and where runs tell otherwise it is
//! said ([`Found::odd`]).

use std::str::FromStr;

/// Values of a name, at most: chosen, more than anyone waits for.
const MOST: u64 = 100_000;

/// Every so many runs the middle of what is left is tried, wherever a guess points: chosen, so that bad guesses cost a few
/// runs and never many.
const MIDDLE: usize = 3;

/// A name in a command and what stands for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    name: String,
    values: Vec<u64>,
}

/// What is wrong with `NAME=VALUES`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}: write it as in `batch=1..512`, `seq=128..4096:128`, `batch=1..512:*2` or `seq=512,1024`"
)]
pub struct BadAxis(String);

impl Axis {
    /// The name, as it stands between braces.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The values, ascending.
    #[must_use]
    pub fn values(&self) -> &[u64] {
        &self.values
    }

    /// What stands for it in a command.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{{{}}}", self.name)
    }
}

impl FromStr for Axis {
    type Err = BadAxis;

    fn from_str(text: &str) -> Result<Self, BadAxis> {
        let (name, values) =
            text.split_once('=').ok_or_else(|| BadAxis(format!("`{text}` has no `=`")))?;
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        };
        if !is_name(name) {
            return Err(BadAxis(format!("`{name}` is no name")));
        }
        let mut all = Vec::new();
        for part in values.split(',') {
            append(&mut all, part)?;
        }
        if !all.is_sorted_by(|a, b| a < b) {
            return Err(BadAxis(format!("the values `{values}` do not ascend")));
        }
        Ok(Self { name: name.to_owned(), values: all })
    }
}

/// Adds the values of `7`, `1..512`, `1..512:8` or `1..512:*2`; both ends belong to a range.
fn append(values: &mut Vec<u64>, part: &str) -> Result<(), BadAxis> {
    let number = |text: &str| {
        text.trim().parse::<u64>().map_err(|_| BadAxis(format!("`{text}` is no number")))
    };
    let Some((low, rest)) = part.split_once("..") else {
        values.push(number(part)?);
        return Ok(());
    };
    let (high, step) = rest.split_once(':').unwrap_or((rest, "1"));
    let (low, high) = (number(low)?, number(high)?);
    let (factor, step) = match step.trim().strip_prefix('*') {
        Some(factor) => (number(factor)?, 0),
        None => (1, number(step)?),
    };
    if low > high {
        return Err(BadAxis(format!("nothing lies in `{part}`")));
    }
    let next = |value: u64| value.checked_mul(factor)?.checked_add(step);
    let mut value = Some(low);
    while let Some(it) = value.filter(|it| *it <= high) {
        if values.len() as u64 >= MOST {
            return Err(BadAxis(format!("`{part}` has more than {MOST} values")));
        }
        values.push(it);
        value = next(it);
        if value.is_some_and(|next| next <= it) {
            return Err(BadAxis(format!("the step of `{part}` leads nowhere")));
        }
    }
    Ok(())
}

/// The first name that stands nowhere in a command.
#[must_use]
pub fn missing<'a>(command: &[String], axes: &'a [Axis]) -> Option<&'a Axis> {
    axes.iter().find(|axis| !command.iter().any(|word| word.contains(&axis.place())))
}

/// The command with a choice of values in the place of the names. Other braces stay as they are.
#[must_use]
pub fn fill(command: &[String], axes: &[Axis], choice: &[u64]) -> Vec<String> {
    let fill = |word: &String| {
        // From left to right, so that no value is taken for a name.
        let (mut rest, mut filled) = (word.as_str(), String::new());
        while let Some(at) = rest.find('{') {
            filled.push_str(&rest[..at]);
            rest = &rest[at..];
            let named = axes.iter().zip(choice).find(|(axis, _)| rest.starts_with(&axis.place()));
            match named {
                Some((axis, value)) => {
                    filled.push_str(&value.to_string());
                    rest = &rest[axis.place().len()..];
                }
                None => {
                    filled.push('{');
                    rest = &rest[1..];
                }
            }
        }
        filled + rest
    };
    command.iter().map(fill).collect()
}

/// What a run with a choice of values tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It fits, and takes so many bytes.
    Fits(u64),
    /// It does not.
    DoesNotFit,
}

/// The answer for one choice of the later names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Values of the later names, in their order.
    pub later: Vec<u64>,
    /// The largest value of the first name that fits; nothing if even the least does not.
    pub largest: Option<u64>,
    /// The next value, which was tried and does not fit; nothing if the largest is the last of all.
    pub next: Option<u64>,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// For each choice of the later names, in order; one row if there are none.
    pub rows: Vec<Row>,
    /// Choices, the first of which does not fit while the second does, though nothing of it is less.
    pub odd: Vec<(Vec<u64>, Vec<u64>)>,
}

/// Searches with someone who tries a choice of values, in the order of the names. Guesses rest on `room`, the bytes that
/// there are; the answer rests on what was tried.
///
/// # Errors
///
/// The first that trying returns.
pub fn search<E>(
    axes: &[Axis],
    room: u64,
    mut run: impl FnMut(&[u64]) -> Result<Tried, E>,
) -> Result<Found, E> {
    let Some((first, later)) = axes.split_first() else {
        return Ok(Found { rows: Vec::new(), odd: Vec::new() });
    };
    let mut all: Vec<(Vec<u64>, bool)> = Vec::new();
    let mut rows: Vec<Row> = Vec::new();
    for choice in choices(later) {
        // What was the largest with less of everything else is where to begin.
        let less = |row: &&Row| row.later.iter().zip(&choice).all(|(a, b)| a <= b);
        let begin = rows.iter().filter(less).filter_map(|row| row.largest).min();
        let mut bracket = Bracket::new(&first.values, room);
        let mut probe = begin.and_then(|it| first.values.iter().position(|value| *value == it));
        while let Some(at) = probe.take().or_else(|| bracket.next()) {
            let whole: Vec<u64> =
                [first.values[at]].into_iter().chain(choice.iter().copied()).collect();
            let tried = run(&whole)?;
            all.push((whole, matches!(tried, Tried::Fits(_))));
            bracket.note(at, tried);
        }
        rows.push(Row {
            later: choice,
            largest: bracket.fits.last().map(|it| first.values[it.0]),
            next: first.values.get(bracket.fails).copied(),
        });
    }
    Ok(Found { rows, odd: odd(&all) })
}

/// Every choice of one value of each, the last name changing fastest.
fn choices(axes: &[Axis]) -> Vec<Vec<u64>> {
    axes.iter().fold(vec![Vec::new()], |choices, axis| {
        let with = |choice: &Vec<u64>| {
            let choice = choice.clone();
            axis.values.iter().map(move |value| [&choice[..], &[*value]].concat())
        };
        choices.iter().flat_map(with).collect()
    })
}

/// Pairs that more of something made fit.
fn odd(all: &[(Vec<u64>, bool)]) -> Vec<(Vec<u64>, Vec<u64>)> {
    let mut odd = Vec::new();
    for (small, _) in all.iter().filter(|it| !it.1) {
        for (large, _) in all.iter().filter(|it| it.1) {
            if small.iter().zip(large).all(|(a, b)| a <= b) {
                odd.push((small.clone(), large.clone()));
            }
        }
    }
    odd
}

/// Where the largest lies, by what was tried: above every value that fits, below the least that does not.
struct Bracket<'a> {
    values: &'a [u64],
    room: u64,
    /// Places that fit, ascending, with the bytes that they take.
    fits: Vec<(usize, u64)>,
    /// The lowest place that does not fit; the number of values if none is known.
    fails: usize,
    runs: usize,
    /// How far beyond an end the next probe goes, where guesses point outside.
    step: usize,
}

impl<'a> Bracket<'a> {
    fn new(values: &'a [u64], room: u64) -> Self {
        Self { values, room, fits: Vec::new(), fails: values.len(), runs: 0, step: 1 }
    }

    fn note(&mut self, at: usize, tried: Tried) {
        self.runs += 1;
        match tried {
            Tried::Fits(bytes) => self.fits.push((at, bytes)),
            Tried::DoesNotFit => self.fails = at,
        }
    }

    /// The next place to try; nothing once the largest and its next are known.
    fn next(&mut self) -> Option<usize> {
        let Some(&(low, _)) = self.fits.last() else {
            return (self.fails > 0).then_some(0);
        };
        if self.fails - low <= 1 {
            return None;
        }
        let (least, most) = (low + 1, self.fails - 1);
        if self.fails < self.values.len() && self.runs % MIDDLE == MIDDLE - 1 {
            return Some(usize::midpoint(least, most));
        }
        let guess = self.guess();
        let probe = if guess < least {
            low + self.step
        } else if guess > most && self.fails < self.values.len() {
            self.fails.saturating_sub(self.step)
        } else {
            self.step = 1;
            return Some(guess.min(most));
        };
        self.step *= 2;
        Some(probe.clamp(least, most))
    }

    /// The last place that would fit if bytes grew evenly: between the two largest that fit or, of one, from nothing.
    fn guess(&self) -> usize {
        let point = |it: &(usize, u64)| (self.values[it.0] as f64, it.1 as f64);
        let (a, b) = match &self.fits[..] {
            [.., a, b] => (point(a), point(b)),
            [only] => ((0.0, 0.0), point(only)),
            [] => return 0,
        };
        let slope = (b.1 - a.1) / (b.0 - a.0);
        if slope <= 0.0 || !slope.is_finite() {
            return self.values.len() - 1;
        }
        let most = b.0 + (self.room as f64 - b.1) / slope;
        self.values.partition_point(|value| *value as f64 <= most).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(texts: &[&str]) -> Vec<Axis> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// Searches where memory is a rule, and says how many runs that took.
    fn find(texts: &[&str], room: u64, bytes: impl Fn(&[u64]) -> u64) -> (Found, usize) {
        let (mut runs, axes) = (Vec::new(), axes(texts));
        let found = search(&axes, room, |choice| {
            assert!(!runs.contains(&choice.to_vec()), "{choice:?} is run twice");
            runs.push(choice.to_vec());
            Ok::<_, ()>(match bytes(choice) {
                bytes if bytes <= room => Tried::Fits(bytes),
                _ => Tried::DoesNotFit,
            })
        });
        let found = found.unwrap();
        for row in &found.rows {
            // Both sides of every answer were run.
            for value in [row.largest, row.next].into_iter().flatten() {
                let choice = [&[value], &row.later[..]].concat();
                assert!(runs.contains(&choice), "{choice:?} was not run");
            }
        }
        (found, runs.len())
    }

    #[test]
    fn values_are_numbers_ranges_and_steps() {
        let values = |text: &str| text.parse::<Axis>().unwrap().values;
        assert_eq!(values("batch=1..4"), [1, 2, 3, 4]);
        assert_eq!(values("seq=128..640:256"), [128, 384, 640]);
        assert_eq!(values("batch=3..50:*2"), [3, 6, 12, 24, 48]);
        assert_eq!(values("seq=7"), [7]);
        assert_eq!(values("seq=1,4..6,100"), [1, 4, 5, 6, 100]);
        assert_eq!(values("micro-batch=18446744073709551614..18446744073709551615").len(), 2);
        for (text, why) in [
            ("batch", "`batch` has no `=`"),
            ("=1..2", "`` is no name"),
            ("1b=1..2", "`1b` is no name"),
            ("a b=1", "`a b` is no name"),
            ("batch=", "`` is no number"),
            ("batch=1..x", "`x` is no number"),
            ("batch=-1..2", "`-1` is no number"),
            ("batch=5..4", "nothing lies in `5..4`"),
            ("batch=1..4:0", "the step of `1..4:0` leads nowhere"),
            ("batch=0..4:*2", "the step of `0..4:*2` leads nowhere"),
            ("batch=1..4:*1", "the step of `1..4:*1` leads nowhere"),
            ("batch=1..1000000", "`1..1000000` has more than 100000 values"),
            ("batch=4,2", "the values `4,2` do not ascend"),
            ("batch=2,2", "the values `2,2` do not ascend"),
        ] {
            let error = text.parse::<Axis>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{why}: write it as in ")), "{text}: {error}");
        }
    }

    #[test]
    fn names_are_filled_in_and_other_braces_stay() {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let command = words(&["python", "-c", "f({a},{b}) {{a}} {x} {", "{a}{a}", "{\"a\": {b}}"]);
        let axes = axes(&["a=1..2", "b=3..4"]);
        assert_eq!(missing(&command, &axes), None);
        assert_eq!(
            fill(&command, &axes, &[1, 3]),
            words(&["python", "-c", "f(1,3) {1} {x} {", "11", "{\"a\": 3}"])
        );
        assert_eq!(missing(&words(&["python", "{b}"]), &axes).map(Axis::name), Some("a"));
    }

    #[test]
    fn the_largest_fits_and_the_next_does_not_whatever_memory_grows_like() {
        type Rule = fn(u64) -> u64;
        let rules: [(&str, Rule); 6] = [
            ("evenly", |n| 1_000_000 + 777 * n),
            ("from nothing", |n| 1000 * n),
            ("as a square", |n| 5000 + 3 * n * n),
            ("slower and slower", |n| 100_000 * (n as f64).sqrt() as u64),
            ("in steps", |n| 2_000_000 * (1 + n / 37)),
            ("not at all, then a lot", |n| if n > 400 { 1 << 40 } else { 10 }),
        ];
        for (name, rule) in rules {
            for room in (0..40).map(|it| 50_000 * it * it) {
                let (found, runs) = find(&["n=1..512"], room, |it| rule(it[0]));
                let largest = (1..=512).rfind(|n| rule(*n) <= room);
                let row = &found.rows[0];
                assert_eq!(row.largest, largest, "{name}, {room}");
                assert_eq!(row.next, Some(largest.unwrap_or(0) + 1).filter(|it| *it <= 512));
                assert!(runs <= 27, "{name}, {room}: {runs} runs");
                assert!(found.odd.is_empty());
            }
        }
    }

    #[test]
    fn memory_that_grows_evenly_takes_few_runs() {
        for room in [3 << 30, 24 << 30, 80 << 30_u64] {
            let (found, runs) = find(&["batch=1..512"], room, |it| (2 << 30) + it[0] * 177_000_000);
            assert!(found.rows[0].next.is_some() && runs <= 4, "{runs} runs, {found:?}");
        }
        let (found, runs) = find(&["batch=1..512"], 1 << 50, |it| it[0] << 20);
        assert_eq!((found.rows[0].largest, found.rows[0].next, runs), (Some(512), None, 2));
    }

    /// Of several names each row has its own two runs, and begins where the rows before it ended.
    #[test]
    fn of_several_names_each_choice_of_the_later_ones_has_its_largest() {
        let bytes = |it: &[u64]| 1_000_000 + it[0] * it[1] * 1000 + it[2];
        let (found, runs) = find(&["batch=1..64", "seq=128..1024:128", "x=1,2"], 20_000_000, bytes);
        assert_eq!(found.rows.len(), 16);
        for row in &found.rows {
            let largest =
                (1..=64).rfind(|n| bytes(&[*n, row.later[0], row.later[1]]) <= 20_000_000);
            assert_eq!(row.largest, largest, "{:?}", row.later);
        }
        assert_eq!(found.rows[3].later, [256, 2]);
        assert!(runs <= 16 * 5, "{runs} runs");
    }

    #[test]
    fn more_that_fits_where_less_does_not_is_told() {
        let (found, _) = find(&["n=1..2", "m=1..2"], 100, |it| if it == [2, 1] { 1000 } else { 1 });
        assert_eq!(found.odd, [(vec![2, 1], vec![2, 2])]);
        assert_eq!(found.rows[0].next, Some(2));
        assert_eq!(found.rows[1].largest, Some(2));
    }

    #[test]
    fn what_cannot_be_tried_ends_the_search() {
        let mut runs = 0;
        let result = search(&axes(&["n=1..100"]), 50, |it| {
            runs += 1;
            if it[0] > 40 { Err("broken") } else { Ok(Tried::Fits(it[0])) }
        });
        assert_eq!((result, runs), (Err("broken"), 2));
    }
}
