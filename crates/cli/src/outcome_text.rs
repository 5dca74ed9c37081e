//! What the verbs that replay a recording say alike: which one it is, its settings, and what its file does
//! not tell.
//!
//! Names, settings and conclusions hold text from the file, so all of it goes through [`plain`].

use std::borrow::Cow;
use std::fmt::Write;

use owo_colors::OwoColorize;
use tonnage::replay::Outcome;

use crate::output::{grouped, plain};

/// The first line: the recording, how long it is, and by whose rules it was read.
pub(crate) fn heading(name: &str, recorded: &Outcome) -> String {
    format!(
        "{}: {}, device {}, PyTorch {}\n",
        plain(name).bold(),
        entries(recorded.events),
        recorded.device,
        recorded.release
    )
}

/// So many entries.
fn entries(number: usize) -> String {
    if number == 1 { "1 entry".to_owned() } else { format!("{} entries", grouped(number)) }
}

/// Settings as people read them.
pub(crate) fn shown(conf: &str) -> Cow<'_, str> {
    if conf.is_empty() { Cow::Borrowed("defaults") } else { plain(conf) }
}

/// The last lines: what the file does not say and was concluded instead.
pub(crate) fn describe_inferred(text: &mut String, inferred: &[String]) {
    if inferred.is_empty() {
        return;
    }
    text.push_str("\nnot in the file, inferred:\n");
    for line in inferred {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  - {}", plain(line));
    }
}
