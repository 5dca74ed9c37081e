//! Text from a file, made harmless: see Note \[Text from strangers\] in `lib.rs`.
//!
//! In: any text. Out: text without control or direction characters and no longer than its place allows.
//! Escaping for HTML is not done here but by `maud`, wherever text is put.

use maud::{Markup, html};
use tonnage_events::plain;

/// The longest name of a file, function or line that is shown.
const NAME: usize = 400;

/// The longest sentence.
const SENTENCE: usize = 3_000;

/// At most `most` characters of a text, with hidden ones spelled out. The beginning and the end are kept: of a
/// path the end matters more.
pub(crate) fn shown(text: &str, most: usize) -> String {
    // No more characters than bytes; looking for the ends costs no more than what is kept.
    let (head, tail) = (most / 3, most - most / 3);
    let start = text.char_indices().nth(head).map_or(text.len(), |(at, _)| at);
    let end = text.char_indices().rev().nth(tail - 1).map_or(0, |(at, _)| at);
    if start < end {
        format!("{} … {}", plain(&text[..start]), plain(&text[end..]))
    } else {
        plain(text).into_owned()
    }
}

/// A name, kept apart from its surroundings so that letters written from right to left move nothing else.
pub(crate) fn name(text: &str) -> Markup {
    html! { bdi.name { (shown(text, NAME)) } }
}

/// The line of the program, if there is one.
pub(crate) fn line(line: Option<&str>) -> Markup {
    match line {
        Some(line) => name(line),
        None => html! { span.muted { "(no line of the program)" } },
    }
}

/// A sentence of the report, which may have names in it. What stands between backticks is code.
pub(crate) fn sentence(text: &str) -> Markup {
    let text = shown(text, SENTENCE);
    // A backtick of a name may have no partner.
    let last = text.split('`').count() - 1;
    html! { bdi {
        @for (place, part) in text.split('`').enumerate() {
            @if place % 2 == 1 && place < last { code { (part) } } @else {
                @if place % 2 == 1 { "`" }
                (part)
            }
        }
    } }
}

/// The first letter as a capital.
pub(crate) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_its_beginning_and_its_end() {
        let long = format!("/home/{}/train.py:7", "é".repeat(1 << 20));
        let short = shown(&long, 30);
        assert!(short.starts_with("/home/éé") && short.ends_with("éé/train.py:7"), "{short}");
        assert_eq!(short.chars().count(), 33);
        assert_eq!(shown("123456", 6), "123456");
        assert_eq!(shown("1234567", 6), "12 … 4567");
    }

    #[test]
    fn what_stands_between_backticks_is_code() {
        for (text, shown) in [
            ("2 MiB more of `leak`; so", "2 MiB more of <code>leak</code>; so"),
            ("`a` and `b`", "<code>a</code> and <code>b</code>"),
            ("it's `odd", "it's `odd"),
            ("`<b>`", "<code>&lt;b&gt;</code>"),
        ] {
            assert_eq!(sentence(text).into_string(), format!("<bdi>{shown}</bdi>"));
        }
    }

    #[test]
    fn markup_in_a_name_stays_text() {
        let markup = name("</bdi><script>alert(1)</script>\"'&").into_string();
        assert!(!markup.contains("<script"), "{markup}");
        assert!(markup.contains("&lt;script&gt;"), "{markup}");
    }
}
