//! Figures as people read them, and places in drawings.

use std::fmt;

use maud::{Markup, html};
use tonnage_events::Bytes;
pub(crate) use tonnage_events::grouped;

/// A size as in the text report, with every digit where the pointer rests.
pub(crate) fn bytes(bytes: u64) -> Markup {
    html! { span.size title={ (grouped(bytes)) " bytes" } { (Bytes(bytes)) } }
}

/// How many of something: `1 block`, `2 blocks`.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
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

/// A scale from 0 in four equal steps that are easy to read.
pub(crate) struct Scale {
    /// The end, not below what is drawn.
    pub(crate) top: u64,
    unit: u64,
}

impl Scale {
    /// A scale that has room for `most`.
    pub(crate) fn of(most: u64) -> Self {
        const NICE: [f64; 21] = [
            0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
            40.0, 50.0, 60.0, 80.0, 100.0,
        ];
        let unit = 1_u64 << (most.max(1).ilog2() / 10 * 10).min(30);
        let quarter = most as f64 / unit as f64 / 4.0;
        let nice = NICE.into_iter().find(|&it| it >= quarter);
        let quarter = nice.unwrap_or_else(|| (quarter / 25.0).ceil() * 25.0);
        // More than can be counted is more than can be drawn.
        let top = (quarter * 4.0 * unit as f64) as u64;
        Self { top: top.max(4), unit }
    }

    /// The number at one of its steps, from 0 to 4, all in the same unit.
    pub(crate) fn label(&self, step: u64) -> String {
        let name = ["bytes", "KiB", "MiB", "GiB"][(self.unit.ilog2() / 10) as usize];
        let value = self.top as f64 * step as f64 / 4.0 / self.unit as f64;
        if step == 0 { "0".to_owned() } else { format!("{value} {name}") }
    }
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
        for shift in 0..63 {
            for more in [0, 1, 7] {
                let most = (1_u64 << shift) / 8 * (8 + more);
                let top = Scale::of(most).top;
                assert!(top >= most && (most < 8 || top / 2 <= most), "{most}: {top}");
            }
        }
        assert!(Scale::of(u64::MAX).top > u64::MAX / 2);
    }

    #[test]
    fn the_steps_of_a_scale_are_short_numbers_of_one_unit() {
        let labels =
            |most: u64| [4, 3, 2, 1, 0].map(|step| Scale::of(most).label(step)).join(" | ");
        assert_eq!(labels(3_198_156_800), "3 GiB | 2.25 GiB | 1.5 GiB | 0.75 GiB | 0");
        assert_eq!(labels(9_472_835_584), "10 GiB | 7.5 GiB | 5 GiB | 2.5 GiB | 0");
        assert_eq!(labels(230 << 20), "240 MiB | 180 MiB | 120 MiB | 60 MiB | 0");
    }
}
