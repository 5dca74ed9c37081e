//! A card's data from the card itself, by the user's Python: the driver's answers, and what PyTorch takes there.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Error, Gpu};

/// Asks driver and PyTorch.
const CAPTURE: &str = include_str!("capture.py");

/// The text of a file with the data of a device of this machine, as `Gpu::find` reads it.
///
/// # Errors
///
/// If there is no such Python, driver or device, or what they tell are no data of a GPU.
pub fn capture(python: &str, ordinal: u32) -> Result<(Gpu, String), Error> {
    let output = Command::new(python)
        .args(["-c", CAPTURE, &ordinal.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::Program { program: python.to_owned(), error })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let bad = |reason: &str| Error::NoCapture { reason: reason.to_owned() };
    // What a Python runs when it starts may print too.
    let last = text.trim().lines().last().unwrap_or_default();
    let value: Value = serde_json::from_str(last).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        bad(said.lines().last().unwrap_or("it printed nothing"))
    })?;
    if let Some(reason) = value["error"].as_str() {
        return Err(bad(reason));
    }
    let text = format!("{value:#}\n");
    Gpu::parse("what the card told", &text).map(|gpu| (gpu, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_captured_is_told() {
        let error = capture("/nowhere/python", 0).unwrap_err().to_string();
        assert!(error.starts_with("cannot run /nowhere/python: "), "{error}");
        let error = capture("false", 0).unwrap_err().to_string();
        assert_eq!(error, "no data of a card could be had: it printed nothing");
        // A machine without a GPU, or one with fewer than that.
        let error = capture("python3", 9999).unwrap_err().to_string();
        assert!(error.starts_with("no data of a card could be had: "), "{error}");
    }
}
