//! Figures as people read them, and places in drawings.

use std::fmt;

use maud::{Markup, html};
use tonnage_events::Bytes;

/// A number with its thousands apart: 52,669.
pub(crate) fn grouped(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A size as in the text report, with every digit where the pointer rests.
pub(crate) fn bytes(bytes: u64) -> Markup {
    html! { span.size title={ (grouped(bytes)) " bytes" } { (Bytes(bytes)) } }
}

/// How many of something: `1 block`, `2 blocks`.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number as u64), if number == 1 { one } else { many })
}

/// A part of a whole, from 0 to 1.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    (part as f64 / whole.max(1) as f64).clamp(0.0, 1.0)
}

/// A share as people read it: `75.2 %`.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", share(part, whole) * 100.0)
}

/// A place or width in a drawing: a share of its own width or height, in as few digits as do.
#[derive(Clone, Copy)]
pub(crate) struct At(pub(crate) f64);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:.4}", self.0 * 100.0);
        write!(f, "{}%", digits.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl maud::Render for At {
    fn render_to(&self, buffer: &mut String) {
        use fmt::Write;
        // Digits, a point and a sign have no meaning in HTML; writing to a string cannot fail.
        let _ = write!(buffer, "{self}");
    }
}

/// How long something took.
pub(crate) fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

/// A bar as long as its share of the largest.
pub(crate) fn bar(part: u64, largest: u64) -> Markup {
    html! {
        svg.bar aria-hidden="true" { rect width=(At(share(part, largest))) height="100%" {} }
    }
}

/// The end of a scale with four equal parts that are easy to read, not below `most`.
pub(crate) fn scale(most: u64) -> u64 {
    let quarter = most.div_ceil(4).max(1);
    let unit = 1_u64 << (quarter.ilog2() / 10 * 10);
    let steps = quarter.div_ceil(unit);
    let nice = [1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 150, 200, 250, 300];
    let nice = nice.into_iter().chain([400, 500, 600, 800, 1024]).find(|&it| it >= steps);
    nice.unwrap_or(1024).saturating_mul(unit).saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_take_as_few_digits_as_do() {
        for (place, text) in
            [(0.0, "0%"), (1.0, "100%"), (0.5, "50%"), (1.0 / 3.0, "33.3333%"), (0.1, "10%")]
        {
            assert_eq!(At(place).to_string(), text);
        }
    }

    #[test]
    fn a_scale_holds_what_is_drawn_and_wastes_less_than_half() {
        for shift in 0..62 {
            for more in [0, 1, 7] {
                let most = (1_u64 << shift).saturating_mul(8 + more) / 8;
                let end = scale(most);
                assert!(end >= most && (most < 8 || end / 2 <= most), "{most}: {end}");
            }
        }
        assert_eq!(scale(9_472_835_584), 12 << 30);
        assert!(scale(u64::MAX) > u64::MAX / 2);
    }
}
