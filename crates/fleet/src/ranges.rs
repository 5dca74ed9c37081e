//! Numbers in few words: `0-127, 130`.

use std::fmt::Write;

/// How many runs of numbers are written out.
const SHOWN: usize = 12;

/// Numbers, ascending and each once, as runs; the rest is counted.
#[must_use]
pub fn ranges(numbers: &[u64]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            Some((_, last)) if *last == number => {}
            _ => runs.push((number, number)),
        }
    }
    let mut text = String::new();
    for (place, (first, last)) in runs.iter().take(SHOWN).enumerate() {
        let comma = if place > 0 { ", " } else { "" };
        // Writing to a string cannot fail.
        let _ = match last - first {
            0 => write!(text, "{comma}{first}"),
            1 => write!(text, "{comma}{first}, {last}"),
            _ => write!(text, "{comma}{first}-{last}"),
        };
    }
    let rest = runs.iter().skip(SHOWN).map(|(first, last)| last - first + 1).sum::<u64>();
    if rest > 0 {
        let _ = write!(text, " and {rest} more");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_written_by_their_ends() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[3]), "3");
        assert_eq!(ranges(&[0, 1, 2, 3, 7, 8, 10]), "0-3, 7, 8, 10");
        assert_eq!(ranges(&[4, 4, 5, 6]), "4-6");
        let odd: Vec<u64> = (0..20).map(|it| 2 * it).collect();
        assert!(ranges(&odd).ends_with("22 and 8 more"), "{}", ranges(&odd));
        assert_eq!(ranges(&[u64::MAX - 1, u64::MAX]), format!("{}, {}", u64::MAX - 1, u64::MAX));
    }
}
