//! What every verb writes with: standard output that may be closed early, errors, files that are
//! written whole or not at all, and text from strangers made harmless.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

use anyhow::Context;
use owo_colors::OwoColorize;
use tempfile::NamedTempFile;
use tonnage::events::is_hidden;
pub(crate) use tonnage::events::plain;

/// Writes to standard output, with colours only where they can be seen. A reader that has gone away,
/// as `head` does, is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Writes JSON to standard output, with a line feed at its end.
pub(crate) fn print_json(json: &str) -> anyhow::Result<()> {
    let mut text = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        // Only strings can hold these, and there the escape means the same.
        if c != '\n' && is_hidden(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    text.push('\n');
    print(&text)
}

/// Writes what went wrong, and why, to standard error.
pub(crate) fn error(error: &anyhow::Error) {
    let text = format!("{error:#}");
    let lines: Vec<_> = text.lines().map(plain).collect();
    // If that fails too, there is no one left to tell.
    let _ = writeln!(anstream::stderr(), "{} {}", "error:".red().bold(), lines.join("\n"));
}

/// Writes something to know to standard error; it is no reason to stop.
pub(crate) fn warning(text: &str) {
    // Whoever cannot be told is not listening.
    let _ = writeln!(anstream::stderr(), "{} {}", "warning:".yellow().bold(), plain(text));
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

/// What to do about a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Put the new one in its place.
    Replace,
    /// Leave it, and fail.
    Keep,
}

/// Writes a file whole or not at all: `fill` writes to a file beside it, which takes its place at the
/// end. What is unfinished goes when `fill` fails, and when someone presses Ctrl-C.
pub(crate) fn write_file<T>(
    path: &Path,
    existing: Existing,
    fill: impl FnOnce(&mut BufWriter<&mut File>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let name = path.display();
    if existing == Existing::Keep && path.exists() {
        anyhow::bail!("{name} is there already: name another file with --output, or give --force");
    }
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let cannot = || format!("cannot write {name}");
    let mut unfinished = Unfinished::new(folder).with_context(cannot)?;
    let mut out = BufWriter::new(unfinished.file.as_file_mut());
    let done = fill(&mut out)?;
    out.flush().with_context(cannot)?;
    drop(out);
    unfinished.persist(path, existing).with_context(cannot)?;
    Ok(done)
}

/// Paths of unfinished files, for when the program is told to stop.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file that is not finished; dropping it removes it.
struct Unfinished {
    file: NamedTempFile,
}

impl Unfinished {
    fn new(folder: &Path) -> std::io::Result<Self> {
        remove_unfinished_when_stopped();
        // Held until the file is on the list, so that none is left behind in between.
        let mut list = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
        let mut builder = tempfile::Builder::new();
        builder.prefix(".tonnage-").suffix(".part");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // Like any new file, less what the umask takes; the default is for secrets.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let file = builder.tempfile_in(folder)?;
        list.push(file.path().to_owned());
        Ok(Self { file })
    }

    fn persist(self, path: &Path, existing: Existing) -> std::io::Result<()> {
        let mut list = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|other| other != self.file.path());
        match existing {
            Existing::Replace => self.file.persist(path)?,
            Existing::Keep => self.file.persist_noclobber(path)?,
        };
        Ok(())
    }
}

/// Ctrl-C, a closed terminal and `kill` end the program as ever, but not before unfinished files are
/// gone.
fn remove_unfinished_when_stopped() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Where no handler can be set, the file stays behind: no reason not to write it.
        let _ = ctrlc::set_handler(|| {
            // Never given back: nothing is begun or finished from here on.
            let list = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
            for path in list.iter() {
                let _ = std::fs::remove_file(path);
            }
            // What shells say of a program that Ctrl-C ended.
            std::process::exit(130);
        });
    });
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

    #[test]
    fn nothing_that_commands_a_terminal_is_left_in_text() {
        for (text, safe) in [
            ("train.py:3 f", "train.py:3 f"),
            ("größe 大", "größe 大"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\nb\tc\u{9b}", "a\\u{a}b\\u{9}c\\u{9b}"),
            ("\u{202e}gnp.exe", "\\u{202e}gnp.exe"),
        ] {
            assert_eq!(plain(text), safe);
        }
    }

    #[test]
    fn a_file_that_could_not_be_finished_is_not_there_and_the_old_one_still_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.csv");
        let write = |existing, fails: bool| {
            write_file(&path, existing, |out| {
                out.write_all(b"new")?;
                if fails { anyhow::bail!("half way") } else { Ok(()) }
            })
        };
        write(Existing::Keep, true).unwrap_err();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        std::fs::write(&path, "old").unwrap();
        write(Existing::Replace, true).unwrap_err();
        let message = write(Existing::Keep, false).unwrap_err().to_string();
        assert!(message.contains("--force"), "{message}");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        write(Existing::Replace, false).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
