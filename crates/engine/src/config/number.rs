//! Numbers as the C library reads them: as much of the text as makes a number, the rest ignored.
//!
//! In:  a token, as in `40x`.
//! Out: 40; or [`Problem::NotANumber`] where C++ throws `std::invalid_argument`, and
//!      [`Problem::NumberTooLarge`] where it throws `std::out_of_range`.
//!
//! A minus sign before an unsigned number is accepted, as in C, and makes a very large one.
//! Bounds of single settings are not checked here.

use super::error::Problem;

/// White space in the C locale: what `strtoull` and `strtod` skip at the start.
pub(super) fn is_c_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

/// `std::stoull` (and `std::stoul` where `long` has 64 bits).
pub(super) fn unsigned(text: &str) -> Result<u64, Problem> {
    let (negative, magnitude) = whole(text)?;
    Ok(if negative { magnitude.wrapping_neg() } else { magnitude })
}

/// `std::stoi`, and then the conversion to `size_t` that makes -1 the largest number there is.
pub(super) fn int_as_unsigned(text: &str) -> Result<u64, Problem> {
    let (negative, magnitude) = whole(text)?;
    let magnitude = i64::try_from(magnitude).map_err(|_| Problem::NumberTooLarge)?;
    let value = if negative { -magnitude } else { magnitude };
    let value = i32::try_from(value).map_err(|_| Problem::NumberTooLarge)?;
    Ok(i64::from(value) as u64)
}

/// Sign and magnitude of the decimal number that `text` begins with.
fn whole(text: &str) -> Result<(bool, u64), Problem> {
    let (negative, rest) = sign(text.trim_start_matches(is_c_space));
    let digits = &rest[..digits(rest)];
    if digits.is_empty() {
        return Err(Problem::NotANumber);
    }
    // All are digits, so the only way to fail is to be too large.
    digits.parse().map(|magnitude| (negative, magnitude)).map_err(|_| Problem::NumberTooLarge)
}

/// `std::stod`.
pub(super) fn double(text: &str) -> Result<f64, Problem> {
    let (negative, rest) = sign(text.trim_start_matches(is_c_space));
    let magnitude = special(rest)
        .map(Ok)
        .or_else(|| hexadecimal(rest).map(in_range))
        .or_else(|| decimal(rest).map(in_range))
        .unwrap_or(Err(Problem::NotANumber))?;
    Ok(if negative { -magnitude } else { magnitude })
}

/// A decimal number that is all of the text, without the white space and the remarks that C allows
/// around one. Too large, it is infinite.
pub(super) fn whole_decimal(text: &str) -> Option<f64> {
    let (negative, rest) = sign(text);
    let of_digits =
        rest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    let magnitude: f64 =
        rest.parse().ok().filter(|_| of_digits && !rest.starts_with(['+', '-']))?;
    Some(if negative { -magnitude } else { magnitude })
}

/// Infinity and not-a-number are numbers to C; every bound then refuses them.
fn special(text: &str) -> Option<f64> {
    let begins =
        |word: &str| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    if begins("inf") {
        Some(f64::INFINITY)
    } else if begins("nan") {
        Some(f64::NAN)
    } else {
        None
    }
}

/// A value read from digits, and whether any of the digits was not zero.
struct Read {
    value: f64,
    nonzero: bool,
}

/// The C library reports results that became infinite, zero or subnormal.
fn in_range(read: Read) -> Result<f64, Problem> {
    if read.value.is_normal() || !read.nonzero {
        Ok(read.value)
    } else {
        Err(Problem::NumberTooLarge)
    }
}

/// `0.6`, `.5`, `1e-3`.
fn decimal(text: &str) -> Option<Read> {
    let mut end = digits(text);
    let mut count = end;
    if text[end..].starts_with('.') {
        let fraction = digits(&text[end + 1..]);
        count += fraction;
        end += 1 + fraction;
    }
    if count == 0 {
        return None;
    }
    let nonzero = text[..end].contains(|c: char| matches!(c, '1'..='9'));
    end += exponent(&text[end..], 'e');
    // What was collected is a number in Rust's grammar too.
    text[..end].parse().ok().map(|value| Read { value, nonzero })
}

/// `0x1.8p-1`. Digits beyond the precision of a double are rounded one by one, which C does not.
fn hexadecimal(text: &str) -> Option<Read> {
    let rest = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    let (mut value, mut scale, mut end, mut fraction, mut count) = (0.0_f64, 0_i32, 0, false, 0);
    for c in rest.chars() {
        if let Some(digit) = c.to_digit(16) {
            value = value * 16.0 + f64::from(digit);
            scale = if fraction { scale.saturating_sub(4) } else { scale };
            count += 1;
        } else if c == '.' && !fraction {
            fraction = true;
        } else {
            break;
        }
        end += 1;
    }
    if count == 0 {
        return None;
    }
    let length = exponent(&rest[end..], 'p');
    if length > 0 {
        let written = &rest[end + 1..end + length];
        let limit = if written.starts_with('-') { i32::MIN } else { i32::MAX };
        scale = scale.saturating_add(written.parse().unwrap_or(limit));
    }
    let nonzero = value > 0.0;
    Some(Read { value: value * 2.0_f64.powi(scale), nonzero })
}

/// The length of an exponent that begins with `letter`, or 0 if it has no digits.
fn exponent(text: &str, letter: char) -> usize {
    let Some(rest) = text.strip_prefix([letter, letter.to_ascii_uppercase()]) else { return 0 };
    let (_, number) = sign(rest);
    match digits(number) {
        0 => 0,
        count => text.len() - number.len() + count,
    }
}

fn sign(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// How many decimal digits `text` begins with.
fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_end_at_the_first_other_character() {
        for (text, value) in [
            ("40", 40),
            ("40x", 40),
            ("40.9", 40),
            ("0x10", 0),
            ("+7", 7),
            ("\t40", 40),
            ("007", 7),
            ("4é", 4),
        ] {
            assert_eq!(unsigned(text), Ok(value), "{text}");
            assert_eq!(int_as_unsigned(text), Ok(value), "{text}");
        }
        for text in ["", "x40", "-", "+-4", "é", " ", "."] {
            assert_eq!(unsigned(text), Err(Problem::NotANumber), "{text}");
            assert_eq!(int_as_unsigned(text), Err(Problem::NotANumber), "{text}");
        }
    }

    #[test]
    fn a_minus_sign_wraps_as_in_c() {
        assert_eq!(unsigned("-1"), Ok(u64::MAX));
        assert_eq!(int_as_unsigned("-1"), Ok(u64::MAX));
        assert_eq!(unsigned("-18446744073709551615"), Ok(1));
        assert_eq!(int_as_unsigned("-2147483648"), Ok(0xffff_ffff_8000_0000));
    }

    #[test]
    fn numbers_that_do_not_fit_are_reported_as_such() {
        assert_eq!(unsigned("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(unsigned("18446744073709551616"), Err(Problem::NumberTooLarge));
        assert_eq!(int_as_unsigned("2147483647"), Ok(2_147_483_647));
        for text in ["2147483648", "-2147483649", "18446744073709551615", "99999999999999999999"] {
            assert_eq!(int_as_unsigned(text), Err(Problem::NumberTooLarge), "{text}");
        }
    }

    #[test]
    fn doubles_are_read_as_strtod_reads_them() {
        for (text, value) in [
            ("0.6", 0.6),
            (".5", 0.5),
            ("5.", 5.0),
            ("0.6.7", 0.6),
            ("1e-1", 0.1),
            ("1e", 1.0),
            ("1e+", 1.0),
            ("-0.5", -0.5),
            ("\t.25z", 0.25),
            ("0x1p-1", 0.5),
            ("0x.8", 0.5),
            ("0xg", 0.0),
            ("0x1p", 1.0),
            ("inf", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
            ("0e-999", 0.0),
        ] {
            assert_eq!(double(text), Ok(value), "{text}");
        }
        assert!(double("nan").unwrap().is_nan());
        for text in ["", "x", ".", "e5", "-", "é0.5"] {
            assert_eq!(double(text), Err(Problem::NotANumber), "{text}");
        }
        for text in ["1e999", "1e-999", "1e-310", "0x1p99999999999", "-0x1p-99999999999"] {
            assert_eq!(double(text), Err(Problem::NumberTooLarge), "{text}");
        }
    }
}
