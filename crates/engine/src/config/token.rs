//! A settings string cut into words and separators.
//!
//! In:  `max_split_size_mb:40`.
//! Out: `max_split_size_mb`, `:`, `40`, each with its place in the string.
//!
//! Nothing here knows what a key is.

use super::Release;
use super::number::is_c_space;

/// A word without white space, or one of `,` `:` `[` `]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    /// Byte offset of its first character in the settings string.
    pub(super) at: usize,
}

impl Token {
    pub(super) fn is(&self, text: &str) -> bool {
        self.text == text
    }
}

/// Cuts `conf` as `release` does. White space does not end a word: `4 0` is one word, `40`.
pub(super) fn tokenise(conf: &str, release: Release) -> Vec<Token> {
    let dropped = |c| c == ' ' || (release.drops_all_white_space() && is_c_space(c));
    let mut tokens = Vec::new();
    let mut word = Token { text: String::new(), at: 0 };
    for (at, c) in conf.char_indices() {
        if matches!(c, ',' | ':' | '[' | ']') {
            let ended = std::mem::replace(&mut word, Token { text: String::new(), at: 0 });
            if !ended.text.is_empty() {
                tokens.push(ended);
            }
            tokens.push(Token { text: c.to_string(), at });
        } else if !dropped(c) {
            if word.text.is_empty() {
                word.at = at;
            }
            word.text.push(c);
        }
    }
    if !word.text.is_empty() {
        tokens.push(word);
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(conf: &str, release: Release) -> Vec<String> {
        tokenise(conf, release).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn separators_are_tokens_of_their_own() {
        for release in Release::ALL {
            assert_eq!(texts("a:[1:2,>:3],", release).concat(), "a:[1:2,>:3],");
            assert_eq!(texts("a:[1:2,>:3],", release).len(), 12);
            assert!(texts("", release).is_empty());
        }
    }

    #[test]
    fn white_space_is_dropped_even_inside_words() {
        assert_eq!(texts(" a b\t:\n4 0\r", Release::V2_11), ["ab", ":", "40"]);
    }

    #[test]
    fn before_2_10_a_tab_stays_in_its_word() {
        assert_eq!(texts(" a b\t: 4 0", Release::V2_9), ["ab\t", ":", "40"]);
    }

    #[test]
    fn a_token_knows_where_it_began() {
        let places: Vec<_> =
            tokenise("é : a  b,", Release::V2_11).iter().map(|token| token.at).collect();
        assert_eq!(places, [0, 3, 5, 9]);
    }
}
