//! Text from a file, made harmless: file names, lines and settings are what a stranger wrote.
//!
//! In:  any text.
//! Out: text without characters that are not seen but change what is. Escaping for HTML or JSON is left to whoever
//!      writes these.

use std::borrow::Cow;

/// Whether a character is not seen but changes what is: controls of both sets, separators of lines, marks that change
/// the direction of text, and marks, fillers and tags of no width.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// The text with hidden characters spelled out: it commands no terminal, reorders no line and makes no new one.
///
/// ```
/// # use tonnage_events::plain;
/// assert_eq!(plain("größe 大.py"), "größe 大.py");
/// assert_eq!(plain("\u{202e}gnp.exe\n"), "\\u{202e}gnp.exe\\u{a}");
/// ```
#[must_use]
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_hidden_is_left() {
        for (text, safe) in [
            ("train.py:3", "train.py:3"),
            ("größe 大", "größe 大"),
            ("\u{202e}gnp.exe", "\\u{202e}gnp.exe"),
            ("a\u{2028}b\0c\u{85}", "a\\u{2028}b\\u{0}c\\u{85}"),
            ("\u{2066}x\u{200b}", "\\u{2066}x\\u{200b}"),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("a\u{e0041}b\u{ad}c", "a\\u{e0041}b\\u{ad}c"),
        ] {
            assert_eq!(plain(text), safe);
            assert!(!plain(text).contains(is_hidden));
        }
    }
}
