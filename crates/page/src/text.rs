//! Text from a file, made harmless: see Note \[Text from strangers\] in `lib.rs`.
//!
//! In: any text. Out: text without control or direction characters and no longer than its place allows.
//! Escaping for HTML is not done here but by `maud`, wherever text is put.

use maud::{Markup, html};

/// The longest name of a file, function or line that is shown.
const NAME: usize = 400;

/// The longest sentence.
const SENTENCE: usize = 3_000;

/// Characters that are not seen but change what is: controls, separators of lines, marks that change the
/// direction of text, and marks of no width.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// At most `most` characters of a text, with hidden ones spelled out. The beginning and the end are kept: of a
/// path the end matters more.
pub(crate) fn shown(text: &str, most: usize) -> String {
    let mut safe = String::new();
    let mut spell = |part: &str| {
        for c in part.chars() {
            if is_hidden(c) {
                safe.extend(c.escape_unicode());
            } else {
                safe.push(c);
            }
        }
    };
    // No more characters than bytes; looking for the ends costs no more than what is kept.
    let (head, tail) = (most / 3, most - most / 3);
    let start = text.char_indices().nth(head).map_or(text.len(), |(at, _)| at);
    let end = text.char_indices().rev().nth(tail - 1).map_or(0, |(at, _)| at);
    if start < end {
        spell(&text[..start]);
        spell(" … ");
        spell(&text[end..]);
    } else {
        spell(text);
    }
    safe
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

/// A sentence of the report, which may have names in it.
pub(crate) fn sentence(text: &str) -> Markup {
    html! { bdi { (shown(text, SENTENCE)) } }
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
    fn nothing_hidden_is_left_in_text() {
        for (text, safe) in [
            ("train.py:3", "train.py:3"),
            ("größe 大", "größe 大"),
            ("\u{202e}gnp.exe", "\\u{202e}gnp.exe"),
            ("a\u{2028}b\0c", "a\\u{2028}b\\u{0}c"),
            ("\u{2066}x\u{200b}", "\\u{2066}x\\u{200b}"),
        ] {
            assert_eq!(shown(text, 100), safe);
        }
    }

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
    fn markup_in_a_name_stays_text() {
        let markup = name("</bdi><script>alert(1)</script>\"'&").into_string();
        assert!(!markup.contains("<script"), "{markup}");
        assert!(markup.contains("&lt;script&gt;"), "{markup}");
    }
}
