//! How many addresses an expandable segment reserves, where a setting says so.
//!
//! In:  a value as a settings string has it: `0.5` of the device, or `40G`.
//! Out: a [`Reserve`], and from it bytes.
//!
//! A value that is none is not an error: PyTorch warns of it and goes on as if it were not there.

use std::fmt;

use super::number;

/// A share of a device's memory, or a number of GiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reserve {
    /// This many times the device's memory.
    Fraction(f64),
    /// This many GiB.
    Gib(f64),
}

impl Reserve {
    /// The value that `text` writes; none if it is not a positive and finite number.
    pub(super) fn read(text: &str) -> Option<Self> {
        let number = text.strip_suffix(['G', 'g']);
        let value = number::whole_decimal(number.unwrap_or(text))?;
        let valid = value > 0.0 && value.is_finite();
        valid.then(|| if number.is_some() { Self::Gib(value) } else { Self::Fraction(value) })
    }

    /// Whether a settings string can say it.
    pub(super) fn is_valid(self) -> bool {
        let (Self::Fraction(value) | Self::Gib(value)) = self;
        value > 0.0 && value.is_finite()
    }

    /// Bytes on a device of `total` bytes.
    #[must_use]
    pub fn bytes(self, total: u64) -> u64 {
        // A product of doubles, cut off, and at most what fits: as PyTorch computes it.
        match self {
            Self::Fraction(fraction) => (fraction * total as f64) as u64,
            Self::Gib(gib) => (gib * (1_u64 << 30) as f64) as u64,
        }
    }
}

/// As a settings string writes it.
impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fraction(fraction) => write!(f, "{fraction}"),
            Self::Gib(gib) => write!(f, "{gib}G"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_2_15_reads_them() {
        let total = 8 << 30;
        for (text, bytes) in [
            ("0.5", 4_294_967_296),
            ("2G", 2_147_483_648),
            ("2g", 2_147_483_648),
            ("1.5G", 1_610_612_736),
            ("5", 42_949_672_960),
            (".5", 4_294_967_296),
            ("+.25", 2_147_483_648),
            ("1e20G", u64::MAX),
            ("1e-320", 0),
        ] {
            let read = Reserve::read(text).expect(text);
            assert_eq!(read.bytes(total), bytes, "{text}");
            assert_eq!(Reserve::read(&read.to_string()), Some(read), "{text}");
        }
        for text in
            ["0", "-1", "x", "0.25x", "nan", "inf", "G", "2GG", "0x1p-2", "1e400", "[", "", "infG"]
        {
            assert_eq!(Reserve::read(text), None, "{text}");
        }
    }
}
