//! The secret in the address: who knows it may ask.

use std::fmt;

use subtle::ConstantTimeEq;

/// 128 bits from the system, as text.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// A new one.
    pub(crate) fn random() -> Result<Self, String> {
        let mut bytes = [0_u8; 16];
        getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Whether a path begins with it. Takes as long whatever the path says, so that guesses learn nothing.
    pub(crate) fn begins(&self, path: &str) -> bool {
        let given = path.strip_prefix('/').unwrap_or_default();
        let given = given.split_once('/').map_or(given, |(first, _)| first);
        given.as_bytes().ct_eq(self.0.as_bytes()).into()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_below_the_token_begin_with_it() {
        let token = Token::random().unwrap();
        assert_eq!(token.to_string().len(), 32);
        assert_ne!(token.to_string(), Token::random().unwrap().to_string());
        for (path, begins) in [
            (format!("/{token}"), true),
            (format!("/{token}/"), true),
            (format!("/{token}/api/start"), true),
            (format!("/{token}x/"), false),
            (format!("//{token}/"), false),
            (format!("/x/{token}"), false),
            (format!("/{}/", &token.to_string()[1..]), false),
            ("/".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(token.begins(&path), begins, "{path}");
        }
    }
}
