//! What every verb prints with: standard output that may be closed early, and errors.

use std::io::{ErrorKind, Write};

use owo_colors::OwoColorize;

/// Writes to standard output, with colours only where they can be seen. A reader that has gone away,
/// as `head` does, is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Writes what went wrong, and why, to standard error.
pub(crate) fn error(error: &anyhow::Error) {
    // If that fails too, there is no one left to tell.
    let _ = writeln!(anstream::stderr(), "{} {error:#}", "error:".red().bold());
}

/// A number with its thousands apart: 52,669.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
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
    }
}
