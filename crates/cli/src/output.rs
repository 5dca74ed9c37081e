//! What every verb writes with: standard output that may be closed early, errors, files that are
//! written whole or not at all, and text from strangers made harmless.

use std::fmt::Write as _;
use std::fs::{File, Metadata};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use owo_colors::OwoColorize;
use tonnage::events::is_hidden;
pub(crate) use tonnage::events::{counted, grouped, plain};
use tonnage::snapshot::{OutputError, OutputFile, abandon_unfinished, same_file};

use crate::input::about_input;

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
    let text = with_causes(error);
    let lines: Vec<_> = text.lines().map(plain).collect();
    // If that fails too, there is no one left to tell.
    let _ = writeln!(anstream::stderr(), "{} {}", "error:".red().bold(), lines.join("\n"));
}

/// An error and its causes, each once: some errors name theirs themselves.
#[must_use]
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            let _ = write!(text, ": {cause}");
        }
    }
    text
}

/// Writes something to know to standard error; it is no reason to stop.
pub(crate) fn warning(text: &str) {
    // Whoever cannot be told is not listening.
    let _ = writeln!(anstream::stderr(), "{} {}", "warning:".yellow().bold(), plain(text));
}

/// Writes something good to know to standard error.
pub(crate) fn note(text: &str) {
    // Whoever cannot be told is not listening.
    let _ = writeln!(anstream::stderr(), "{} {}", "note:".bold(), plain(text));
}

/// What to do about a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Put the new one in its place.
    Replace,
    /// Leave it, and fail.
    Keep,
}

/// Where a verb writes.
#[derive(Debug)]
pub(crate) enum Destination {
    /// To whoever reads standard output.
    Standard,
    /// To a file, a device or a pipe.
    File(Box<OutputFile>),
}

impl Destination {
    /// What a path means that was given on the command line: `-` is standard output, and so is any other name of what
    /// that goes to. Looked at before the work, which a wrong name would be in vain; never one of the inputs.
    pub(crate) fn at(path: &Path, existing: Existing, inputs: &[PathBuf]) -> anyhow::Result<Self> {
        let inputs: Vec<_> = inputs.iter().filter_map(|input| about_input(input)).collect();
        let standard = about_standard_output();
        if path == Path::new("-") {
            return Self::standard(standard.as_ref(), &inputs);
        }
        let mut file = OutputFile::at(path)?;
        // Else what the shell has put into a file before this, or will after it, would be gone; and a pipe would get what
        // people are told between the data.
        if standard.as_ref().is_some_and(|it| file.is(it)) {
            return Self::standard(standard.as_ref(), &inputs);
        }
        if existing == Existing::Keep {
            file = file.only_if_new().map_err(already_there)?;
        }
        for input in &inputs {
            file = file.apart_from(input)?;
        }
        Ok(Self::File(Box::new(file)))
    }

    fn standard(standard: Option<&Metadata>, inputs: &[Metadata]) -> anyhow::Result<Self> {
        let is_read = |out: &Metadata| inputs.iter().any(|input| same_file(out, input));
        // A terminal is read and written.
        if standard.is_some_and(|out| out.is_file() && is_read(out)) {
            anyhow::bail!("standard output goes to the file that is read: name another one");
        }
        Ok(Self::Standard)
    }
}

fn already_there(error: OutputError) -> anyhow::Error {
    if error.source.kind() != ErrorKind::AlreadyExists {
        return error.into();
    }
    let name = error.path.display();
    anyhow::anyhow!("{name} is there already: name another file with --output, or give --force")
}

/// What standard output goes to.
fn about_standard_output() -> Option<Metadata> {
    let out = std::io::stdout().as_fd().try_clone_to_owned().ok()?;
    File::from(out).metadata().ok()
}

/// Writes a file whole or not at all. What is unfinished goes when `fill` fails, and when someone presses Ctrl-C.
pub(crate) fn write_file<T>(
    file: &OutputFile,
    fill: impl FnOnce(&mut BufWriter<File>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    remove_unfinished_when_stopped();
    file.write(fill).map_err(|error| match error.downcast::<OutputError>() {
        Ok(error) => already_there(error),
        Err(error) => error,
    })
}

/// Whether this process is the command. Another program that asks verbs has handlers of its own for signals.
static IS_COMMAND: AtomicBool = AtomicBool::new(false);

/// Says that this process is the command.
pub(crate) fn be_the_command() {
    IS_COMMAND.store(true, Ordering::Relaxed);
}

/// Whether signals are ours to handle.
pub(crate) fn is_the_command() -> bool {
    IS_COMMAND.load(Ordering::Relaxed)
}

/// Ctrl-C, a closed terminal and `kill` end the command as ever, but not before unfinished files are
/// gone.
pub(crate) fn remove_unfinished_when_stopped() {
    static ONCE: Once = Once::new();
    if !is_the_command() {
        return;
    }
    ONCE.call_once(|| {
        // Where no handler can be set, the file stays behind: no reason not to write it.
        let _ = ctrlc::set_handler(|| end_at_once());
    });
}

/// Ends the program as Ctrl-C does, without unfinished files and without scripts that go on.
pub(crate) fn end_at_once() -> ! {
    tonnage_scripts::abandon();
    abandon_unfinished();
    // What shells say of a program that Ctrl-C ended.
    std::process::exit(130);
}

/// A path as a shell takes it, and as no option.
pub(crate) fn as_a_word(path: &str) -> String {
    let path = if path.starts_with('-') { format!("./{path}") } else { path.to_owned() };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-=+:@,%".contains(c);
    match path.chars().all(is_plain) {
        true => path,
        false => format!("'{}'", plain(&path).replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_cause_is_told_once() {
        let gone = || std::io::Error::from_raw_os_error(2);
        let plain = anyhow::Error::new(gone()).context("cannot open a.pickle");
        assert_eq!(
            with_causes(&plain),
            "cannot open a.pickle: No such file or directory (os error 2)"
        );
        // It names its cause, and has it too.
        let twice = anyhow::Error::new(OutputError { path: "a".into(), source: gone() });
        assert_eq!(
            with_causes(&twice.context("saving")),
            "saving: cannot write a: No such file or directory (os error 2)"
        );
    }

    #[test]
    fn a_file_that_is_there_is_kept_or_replaced_as_it_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.csv");
        let write = |existing, fails: bool| {
            let Destination::File(file) = Destination::at(&path, existing, &[])? else {
                panic!("a file is no standard output");
            };
            write_file(&file, |out| {
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
