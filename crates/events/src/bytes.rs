//! Sizes as people write them, `24GiB`, `24 GB`, `1.5MiB`, `1048576`, and numbers as they read them.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A number of bytes that came from a person or goes to one.
///
/// Between the two, sizes are plain `u64` bytes: there is only one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A size that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{text}` is not a size: {reason}. Write bytes (`25769803776`) or a number with a unit, as in `24GiB` or `24GB`"
)]
pub struct ParseBytesError {
    text: String,
    reason: &'static str,
}

/// Unit names, lower case, and the bytes of each. A lone letter means the power of 1024, as in
/// `docker run --memory 24g` and `nvidia-smi`'s habit of calling GiB "G".
const UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kb", 1_000),
    ("ki", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mb", 1_000_000),
    ("mi", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gb", 1_000_000_000),
    ("gi", 1 << 30),
    ("gib", 1 << 30),
    ("t", 1 << 40),
    ("tb", 1_000_000_000_000),
    ("ti", 1 << 40),
    ("tib", 1 << 40),
];

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |reason| ParseBytesError { text: text.to_owned(), reason };
        let trimmed = text.trim();
        let digits = trimmed
            .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let number = number.replace('_', "");
        let unit = unit.trim().to_ascii_lowercase();
        let scale = UNITS
            .iter()
            .find_map(|&(name, bytes)| (name == unit).then_some(bytes))
            .ok_or_else(|| fail("the unit is none of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB"))?;
        if number.is_empty() {
            return Err(fail("it does not begin with a number"));
        }
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(Self).ok_or_else(|| fail("it is over 16 EiB"));
        }
        let value: f64 = number.parse().map_err(|_| fail("the number cannot be read"))?;
        let bytes = value * scale as f64;
        if bytes >= u64::MAX as f64 {
            return Err(fail("it is over 16 EiB"));
        }
        Ok(Self(bytes as u64))
    }
}

/// From this many of a unit on, two decimals would read as 1024 of it.
const NEXT_UNIT: f64 = 1023.995;

/// The unit that suits the size, with two decimals: `512 bytes`, `1.50 KiB`, `20.00 MiB`. Never 1024 of a unit, which is
/// one of the next.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("0 bytes"),
            1 => f.write_str("1 byte"),
            2..1_024 => write!(f, "{} bytes", self.0),
            _ => {
                let units = [(10, "KiB"), (20, "MiB"), (30, "GiB"), (40, "TiB"), (50, "PiB")];
                let units = units.map(|(shift, unit)| (self.in_unit(shift), unit));
                let fits = units.into_iter().find(|&(number, _)| number < NEXT_UNIT);
                let (number, unit) = fits.unwrap_or((self.in_unit(60), "EiB"));
                write!(f, "{number:.2} {unit}")
            }
        }
    }
}

impl Bytes {
    fn in_unit(self, shift: u32) -> f64 {
        self.0 as f64 / (1_u64 << shift) as f64
    }

    /// As PyTorch's out-of-memory message shows it: a unit goes up to and including the next, as in `1024.00 KiB`.
    #[must_use]
    pub fn in_pytorch_message(self) -> String {
        match self.0 {
            0..=1_024 => format!("{} bytes", self.0),
            1_025..=1_048_576 => format!("{:.2} KiB", self.in_unit(10)),
            1_048_577..=1_073_741_824 => format!("{:.2} MiB", self.in_unit(20)),
            _ => format!("{:.2} GiB", self.in_unit(30)),
        }
    }
}

/// A number with its thousands apart: `52,669`. One that 64 bits do not hold is their largest.
#[must_use]
pub fn grouped(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// So many of a thing whose plural ends in `s`: `1 file`, `52,669 files`.
#[must_use]
pub fn counted(number: impl TryInto<u64>, one: &str) -> String {
    match number.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {one}"),
        number => format!("{} {one}s", grouped(number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_kept_apart() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1_000, "1,000"), (52_669, "52,669"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn one_is_not_many() {
        for (number, text) in
            [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1_000, "1,000 files")]
        {
            assert_eq!(counted(number, "file"), text);
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("8963997818", 8_963_997_818),
            ("24GiB", 24 << 30),
            ("24 GiB", 24 << 30),
            ("24gib", 24 << 30),
            ("24G", 24 << 30),
            ("24Gi", 24 << 30),
            ("1.5GiB", 3 << 29),
            ("24GB", 24_000_000_000),
            ("1.5MiB", 3 << 19),
            ("512B", 512),
            ("1_000kb", 1_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn a_bad_size_says_why_and_what_would_do() {
        for (text, part) in [
            ("", "does not begin with a number"),
            ("GiB", "does not begin with a number"),
            ("24 parsecs", "the unit is none of"),
            ("-1", "the unit is none of"),
            ("1.2.3", "cannot be read"),
            ("99999999999TiB", "over 16 EiB"),
        ] {
            let message = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
            assert!(message.contains("24GiB"), "{text}: {message}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit_of_which_there_is_one() {
        for (bytes, text, in_pytorch) in [
            (0, "0 bytes", "0 bytes"),
            (1, "1 byte", "1 bytes"),
            (1_023, "1023 bytes", "1023 bytes"),
            (1_024, "1.00 KiB", "1024 bytes"),
            (1_025, "1.00 KiB", "1.00 KiB"),
            (1_048_570, "1023.99 KiB", "1023.99 KiB"),
            (1_048_571, "1.00 MiB", "1024.00 KiB"),
            (1 << 20, "1.00 MiB", "1024.00 KiB"),
            (16 << 20, "16.00 MiB", "16.00 MiB"),
            ((1 << 30) - 1, "1.00 GiB", "1024.00 MiB"),
            (1 << 30, "1.00 GiB", "1024.00 MiB"),
            (150_109_880_320, "139.80 GiB", "139.80 GiB"),
            (1 << 40, "1.00 TiB", "1024.00 GiB"),
            (1 << 50, "1.00 PiB", "1048576.00 GiB"),
            (u64::MAX, "16.00 EiB", "17179869184.00 GiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
            assert_eq!(Bytes(bytes).in_pytorch_message(), in_pytorch);
        }
    }
}
